"""Imports point down: the house has floors, and no module imports from a floor above its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import kimi_inspect

PACKAGE = Path(kimi_inspect.__file__).parent

FLOORS = (
    ("text", "advice", "errors", "components", "values", "findings", "dtypes", "names", "sums", "hashing"),
    (
        "planning",
        "sidecars",
        "set_names",
        "name_words",
        "index_file",
        "header",
        "safetensors",
        "gguf_types",
        "gguf_window",
        "gguf_findings",
        "gguf",
    ),
    (
        "sources",
        "forward",
        "addresses",
        "http_status",
        "watchdog",
        "transport",
        "remote_file",
        "hub_card",
        "remote",
        "modelscope",
        "locating",
        "manifest",
        "checksums",
        "written",
        "tree",
    ),
    (
        "embedded",
        "caching",
        "journal",
        "reading",
        "fronts",
        "sets",
        "weight_maps",
        "pipelines",
        "wholeness",
        "companions",
        "choosing",
        "copies",
    ),
    (
        *(
            "patterns",
            "facts",
            "inventory",
            "rules",
            "declared",
            "leaves",
            "forms",
            "table",
            "pairing",
            "packing",
            "families",
            "places",
            "holdings",
            "differences",
        ),
        *(
            "expecting",
            "classifying",
            "meaning",
            "census",
            "promises",
            "siblings",
            "dimensions",
            "completeness",
            "causes",
            "index_check",
            "indexes",
            "labels",
        ),
    ),
    ("checkpoint", "opening", "bodies"),
    (
        *("report", "verdict", "summarizing", "comparison", "comparing", "published", "counted"),
        *("name_claims", "claims"),
        *("loader_rules", "engines", "loaders"),
        *("outcome", "identity", "sides", "references", "difference_findings"),
        *("structure_audit", "config_audit", "manifest_audit", "auditing"),
        *("verification", "digesting", "judging", "refetching", "locking", "expectations", "checking"),
        *("verifying", "watching"),
    ),
    (
        "drawing",
        "rates",
        "tables",
        "comparison_table",
        "audit_tables",
        "verification_table",
        "bars",
        "demo",
        "verbs",
        "cli",
        "__main__",
    ),
)
"""Modules by floor. On one floor a module may import those before it."""

PLACE = {module: (floor, place) for floor, modules in enumerate(FLOORS) for place, module in enumerate(modules)}


def modules() -> Iterator[tuple[str, Path]]:
    """Yield each module of the house and its file; a family is one of `families`, the hub for tests stands beside."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] not in ("testing", "__init__"):
            yield parts[0], path


def imported(path: Path) -> Iterator[str]:
    """Yield what a file imports of the package, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "kimi_inspect":
            yield from (alias.name for alias in node.names if alias.name != "__version__")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kimi_inspect."):
            yield (node.module or "").split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("kimi_inspect."))


def test_every_module_has_a_floor() -> None:
    assert {name for name, _ in modules()} == set(PLACE)


@pytest.mark.parametrize(("module", "path"), [pytest.param(*item, id=str(item[1].stem)) for item in modules()])
def test_imports_point_down(module: str, path: Path) -> None:
    above = {name for name in imported(path) if name != module and PLACE[name] >= PLACE[module]}
    assert not above


@pytest.mark.parametrize("path", sorted((PACKAGE / "testing").rglob("*.py")), ids=lambda path: path.stem)
def test_the_hub_for_tests_shares_no_code_with_what_it_tests(path: Path) -> None:
    assert set(imported(path)) <= {"testing"}


def test_no_module_bears_the_name_of_a_public_function() -> None:
    functions = {name for name in kimi_inspect.__all__ if name.islower()}
    assert not functions & set(PLACE)


def test_the_stub_lists_what_the_root_offers() -> None:
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    stub = {alias.name: node.module for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(stub) == set(kimi_inspect.__all__)
    for name, home in stub.items():
        assert getattr(kimi_inspect, name) is getattr(__import__(str(home), fromlist=[name]), name)
