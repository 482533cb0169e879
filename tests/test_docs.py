"""The examples of README.md and docs/ are run, against a hub that holds the official Kimi K3.1 Pro."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kimi_inspect.demo import loopback_kimi
from kimi_inspect.findings import SEVERITIES

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])

RUN_PAGE = """
import doctest, sys
failed, tried = doctest.testfile(sys.argv[1], module_relative=False, optionflags=doctest.ELLIPSIS, encoding="utf-8")
print(f"{tried} examples")
sys.exit(failed > 0 or tried == 0)
"""


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """An environment in which the Hub is the loopback, and this environment's commands come first."""
    with loopback_kimi() as endpoint:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        yield {**os.environ, "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1", "PATH": path}


def with_examples(mark: str) -> list[Path]:
    return [page for page in PAGES if mark in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", with_examples("\n>>> "), ids=lambda page: page.name)
def test_python_examples(page: Path, environment: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN_PAGE, str(page)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def console_examples() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for block in re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            command, _, output = block.partition("\n")
            yield command.removeprefix("$ "), output


@pytest.mark.parametrize(("command", "output"), list(console_examples()))
def test_console_examples(command: str, output: str, environment: dict[str, str], tmp_path: Path) -> None:
    """Run a command and compare what it prints; … in the page stands for anything."""
    done = subprocess.run(
        ["bash", "-c", command], env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True
    )
    printed = "".join(line.rstrip() + "\n" for line in done.stdout.splitlines())
    assert re.fullmatch(re.escape(output).replace("…", ".*"), printed), printed


def test_every_finding_is_explained_with_its_severity() -> None:
    rows = re.findall(
        r"^\| `([a-z-]+)` \| (\w+) \|", (ROOT / "docs/findings.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert dict(rows) == {code: str(severity) for code, severity in SEVERITIES.items()}


def test_links_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "benchmarks/README.md"]:
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_repository_stands_alone() -> None:
    """No file names a place outside the checkout."""
    for path in ROOT.rglob("*"):
        if (
            path.suffix in (".py", ".md", ".toml", ".pyi")
            and not {"dist", "build"} & set(path.parts)
            and ".venv" not in str(path)
        ):
            assert ".." + "/shared" not in path.read_text(encoding="utf-8")
