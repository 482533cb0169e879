"""The verb audit: its statuses, its JSON, what it may be held against, and how it looks on any terminal."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from rich.cells import cell_len
from rich.console import Console

import kimi_inspect as ki
from kimi_inspect import Component, Severity
from kimi_inspect.audit_tables import MAX_LINE, MEANINGS, show_audit
from kimi_inspect.cli import main
from kimi_inspect.testing import (
    KIMI_K31_PRO_ID,
    HollowFile,
    LoopbackHub,
    Repository,
    damage,
    devquasar_gguf,
    kimi_k3,
    kimi_k31_pro,
    kimi_mlx,
    kimi_nf12,
    kimi_pruned,
    kimi_reap,
)
from kimi_inspect.values import Finding
from kimi_inspect.verdict import Audit, Claim, Identity, Kept, Loader, Relation, Requantization, Support, Verdict

SMALL: dict[str, int] = {"layers": 5, "experts": 8}
COPY, SWAPPED, OTHER, MLX, GGUF, PRUNED = "a/copy", "a/swapped", "a/other", "a/mlx", "a/gguf", "a/pruned"
MXFP4_MOE = f"{GGUF}:MXFP4_MOE"

KEYS = {
    *(
        "schema",
        "candidate",
        "against",
        "candidate_set",
        "against_set",
        "verdict",
        "findings",
        "identical_shards",
        "shard_count",
        "report",
    ),
    *(
        "identity",
        "requantizations",
        "kept",
        "claims",
        "loaders",
        "reference_parameters",
        "unchecked_index_bytes",
        "traffic",
    ),
}
FINDING_KEYS = {
    *("code", "severity", "where", "message", "expected", "actual", "file", "tensor", "layer", "count", "examples"),
}


def write(folder: Path, files: Mapping[str, HollowFile]) -> str:
    for path, file in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        file.write_to(folder / path)
    return str(folder)


@pytest.fixture(scope="module")
def hub() -> Iterator[LoopbackHub]:
    official = kimi_k31_pro(**SMALL)
    shelves: dict[str, Mapping[str, HollowFile]] = {
        KIMI_K31_PRO_ID: official,
        COPY: official,
        SWAPPED: damage.swap_shard(official, 2, kimi_k3(**SMALL)),
        OTHER: kimi_k3(**SMALL),
        MLX: kimi_mlx(**SMALL),
        GGUF: devquasar_gguf(**SMALL, tokens=64, parts=2),
        PRUNED: kimi_pruned(layers=5, experts=2),
    }
    with LoopbackHub([Repository(repo_id=name, files=files) for name, files in shelves.items()]) as hub:
        yield hub


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders by name: a whole model, a damaged one, one whose header is cut, an empty one, one with a config alone."""
    root = tmp_path_factory.mktemp("folders")
    official = kimi_k31_pro(**SMALL)
    shelves = {
        "good": official,
        "cut": damage.cut_shard(official, 3, 1000),
        "unreadable": {"model.safetensors": HollowFile(b"\x90" + bytes(7) + b"{")},
        "config": {"config.json": official["config.json"]},
        "manifest": {"kimi.json": HollowFile(json.dumps(manifest_of(official)).encode())},
        "list": {"list.json": HollowFile(b"[]")},
    }
    (root / "empty").mkdir()
    return {"empty": str(root / "empty"), **{name: write(root / name, files) for name, files in shelves.items()}}


def manifest_of(files: Mapping[str, HollowFile]) -> dict[str, Any]:
    listed = [{"path": path, "bytes": file.size, "sha256": file.sha256} for path, file in files.items()]
    return {"schema": "kimi-inspect/manifest/1", "source": "x/y", "files": listed}


@pytest.fixture
def audited(hub: LoopbackHub, capsys: pytest.CaptureFixture[str]) -> Any:
    """A function that audits on the hub and returns the exit status and the JSON document."""

    def audit(*arguments: str) -> tuple[int, dict[str, Any]]:
        status = main(["audit", *arguments, "--json", "--no-cache", "--endpoint", hub.endpoint])
        out, err = capsys.readouterr()
        assert err == ""
        return status, json.loads(out)

    return audit


# Statuses


@pytest.mark.parametrize(
    ("arguments", "status", "verdict"),
    [
        ([KIMI_K31_PRO_ID], 0, "consistent"),
        ([COPY, "--against", KIMI_K31_PRO_ID], 0, "identical"),
        ([MLX, "--against", KIMI_K31_PRO_ID], 0, "faithful"),
        ([MXFP4_MOE, "--against", KIMI_K31_PRO_ID, "--companions"], 0, "requantized"),
        ([MXFP4_MOE, "--against", KIMI_K31_PRO_ID], 0, "reduced"),
        ([MXFP4_MOE, "--against", KIMI_K31_PRO_ID, "--fail-on", "warning"], 1, "reduced"),
        ([PRUNED, "--against", KIMI_K31_PRO_ID], 0, "reduced"),
        ([PRUNED, "--against", KIMI_K31_PRO_ID, "--fail-on", "warning"], 1, "reduced"),
        ([PRUNED, "--fail-on", "warning"], 0, "consistent"),
        ([OTHER, "--against", KIMI_K31_PRO_ID], 1, "different-model"),
    ],
)
def test_statuses_and_verdicts(arguments: list[str], status: int, verdict: str, audited: Any) -> None:
    got, document = audited(*arguments)
    assert (got, document["verdict"]) == (status, verdict)


def test_another_model_is_a_status_of_one_where_only_digests_tell(audited: Any) -> None:
    status, document = audited(SWAPPED, "--against", KIMI_K31_PRO_ID)
    assert (status, document["verdict"]) == (1, "different-model")
    assert {item["severity"] for item in document["findings"]} == {"info"}


def test_damage_is_a_status_of_one(folders: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", folders["cut"]]) == 1
    out = capsys.readouterr().out
    assert out.startswith("damaged: a loader fails, or loads wrong weights\n")
    assert "error: truncated, model-00003-of-000008.safetensors: the file ends 1,000 bytes early" in out


@pytest.mark.parametrize("as_json", [[], ["--json"]])
@pytest.mark.parametrize(
    ("candidate", "against", "words"),
    [
        ("unreadable", None, "while reading the candidate: model.safetensors at byte 9: the file ends"),
        ("unreadable", "good", "while reading the candidate: model.safetensors at byte 9: the file ends"),
        ("good", "unreadable", "while reading the reference: model.safetensors at byte 9: the file ends"),
        ("unreadable", "config", "while reading the candidate: model.safetensors"),
        ("nowhere", "good", "while reading the candidate: nowhere: there is no such file or folder"),
        ("good", "nowhere", "while reading the reference: nowhere: there is no such file or folder"),
        ("good", "nowhere.json", "while reading the reference: nowhere.json: there is no such file"),
        ("good", "list/list.json", "list.json: neither a manifest nor a model's config"),
        ("good", "empty", "while reading the reference: "),
        ("empty", "good", "while reading the candidate: "),
    ],
)
def test_what_cannot_be_read_is_named_in_one_line(
    candidate: str,
    against: str | None,
    words: str,
    as_json: list[str],
    folders: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def place(name: str) -> str:
        first, slash, rest = name.partition("/")
        return folders.get(first, f"./{first}") + slash + rest

    arguments = [place(candidate), *(["--against", place(against)] if against else [])]
    assert main(["audit", *arguments, *as_json]) == 2
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert words in err
    assert (json.loads(out)["schema"] == "kimi-inspect/error/1") if as_json else out == ""


def test_a_gguf_candidate_and_a_reference_that_cannot_be_read(
    hub: LoopbackHub, folders: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", MXFP4_MOE, "--against", folders["unreadable"], "--endpoint", hub.endpoint]) == 2
    assert capsys.readouterr().err.startswith("kimi-inspect: while reading the reference: model.safetensors")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "the following arguments are required: SOURCE; see kimi-inspect audit --help"),
        (["--against", "a/b"], "the following arguments are required: SOURCE"),
        (["a/b", "--against"], "argument --against: expected one argument"),
        (["a/b", "c/d"], "unrecognized arguments: c/d"),
        (["a/b", "--fail-on", "info"], "invalid choice: 'info'"),
        (["nonsense", "--against", "a/b"], "while reading the candidate: 'nonsense' names no checkpoint"),
        (["{good}", "--against", "nonsense"], "while reading the reference: 'nonsense' names no checkpoint"),
        (["{good}", "--against", "evil\x1b[31m\u202e"], r"'evil\x1b[31m\u202e' names no checkpoint"),
    ],
)
def test_bad_usage_is_one_line(
    arguments: list[str], words: str, folders: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", *(word.format(**folders) for word in arguments)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err
    assert not {"\x1b", "\u202e"} & set(err)


# JSON


def test_json_has_the_keys_of_the_schema(audited: Any) -> None:
    _, document = audited(MXFP4_MOE, "--against", KIMI_K31_PRO_ID)
    assert set(document) == KEYS
    assert document["schema"] == "kimi-inspect/audit/1"
    assert (document["candidate"], document["against"]) == (GGUF, KIMI_K31_PRO_ID)
    assert document["report"]["schema"] == "kimi-inspect/report/1"
    assert all(set(item) == FINDING_KEYS for item in document["findings"])
    assert {item["code"] for item in document["findings"]} >= {"component-missing", "component-requantized"}
    assert (document["identical_shards"], document["shard_count"]) == (0, 2)


def test_json_without_a_report_or_a_reference_has_the_same_keys(audited: Any) -> None:
    _, same = audited(COPY, "--against", KIMI_K31_PRO_ID)
    assert set(same) == KEYS
    assert (same["report"], same["identical_shards"], same["shard_count"]) == (None, 8, 8)
    _, alone = audited(COPY)
    assert set(alone) == KEYS
    assert (alone["against"], alone["identity"], alone["reference_parameters"]) == (None, None, None)


def test_json_is_the_audit(hub: LoopbackHub, audited: Any) -> None:
    _, document = audited(MLX, "--against", KIMI_K31_PRO_ID)
    audit = ki.audit(MLX, KIMI_K31_PRO_ID, endpoint=hub.endpoint, token=False, cache=False)
    expected = json.loads(json.dumps(audit.to_dict()))
    assert {**document, "traffic": None, "report": None} == {**expected, "traffic": None, "report": None}


# What it is held against, and common options


@pytest.mark.parametrize("form", ["config", "config/config.json"])
def test_against_a_config(form: str, folders: dict[str, str], audited: Any) -> None:
    name, slash, rest = form.partition("/")
    status, document = audited(PRUNED, "--against", folders[name] + slash + rest)
    assert (status, document["verdict"]) == (0, "reduced")
    assert document["against"].endswith(form)


def test_against_a_manifest(folders: dict[str, str], audited: Any) -> None:
    path = f"{folders['manifest']}/kimi.json"
    status, document = audited(COPY, "--against", path)
    assert (status, document["verdict"], document["against"]) == (0, "identical", "x/y")
    status, document = audited(SWAPPED, "--against", path)
    assert (document["identical_shards"], document["shard_count"]) == (7, 8)


def test_against_a_folder_and_a_relative_path(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(folders["good"]).parent)
    assert main(["audit", "./good", "--against", "./good"]) == 0
    assert capsys.readouterr().out.startswith("faithful: the reference's encodings and bytes")
    assert main(["audit", "./good", "--against", "config/config.json"]) == 0
    assert "good, against config/config.json" in capsys.readouterr().out


def test_files_are_the_candidates_alone(audited: Any) -> None:
    _, document = audited(COPY, "--against", KIMI_K31_PRO_ID, "--files", "model-0000[12]-*")
    assert document["identity"]["relation"] == "subset"
    assert (document["identical_shards"], document["shard_count"]) == (2, 2)


def test_a_source_behind_companions_is_no_glob(audited: Any) -> None:
    _, document = audited("--against", KIMI_K31_PRO_ID, "--companions", MXFP4_MOE)
    assert (document["candidate"], document["verdict"]) == (GGUF, "requantized")


def test_companions_by_glob(audited: Any) -> None:
    _, document = audited(MXFP4_MOE, "--against", KIMI_K31_PRO_ID, "--companions", "mmproj-BF16*")
    assert document["verdict"] == "requantized"
    assert [item["counted"] for item in document["report"]["companions"]] == [True]


def test_the_demo_audits_the_official_model(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "audit"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert out.startswith(
        f"consistent: nothing it says of itself is wrong; no reference was asked\n{KIMI_K31_PRO_ID}\n"
    )


# What people see


OFFICIAL = kimi_k31_pro(**SMALL)
GGUF_FILES = {path: file for path, file in devquasar_gguf(**SMALL, tokens=50, parts=2).items() if "Q2_K" in path}
BUILDS = {
    "faithful": kimi_mlx(**SMALL),
    "requantized": kimi_nf12(**SMALL),
    "reduced": kimi_reap(4, layers=5, experts=3),
    "gguf": GGUF_FILES,
    "other": kimi_k3(**SMALL),
    "damaged": damage.drop_expert(OFFICIAL, 2, 3),
}


@pytest.fixture(scope="module")
def audits() -> dict[str, Audit]:
    made = {name: ki.audit(files, OFFICIAL) for name, files in BUILDS.items()}
    named = {name: attrs.evolve(one, candidate=f"a-maker/of-builds-{name}") for name, one in made.items()}
    return {**named, "alone": ki.audit(OFFICIAL), "hostile": hostile()}


EVIL = "\x1b[31m[bold]evil\r\n\u202e:smile:"
LONG = "x" * 100_000


def hostile() -> Audit:
    """An audit with a stranger's text wherever there may be one."""
    finding = Finding(code="unexpected-tensor", severity=Severity.WARNING, where=EVIL, message=EVIL, count=7)
    return Audit(
        candidate=EVIL,
        against=EVIL,
        verdict=Verdict.REDUCED,
        findings=(finding, attrs.evolve(finding, where=LONG, message=LONG), attrs.evolve(finding, message=EVIL * 99)),
        identical_shards=1,
        shard_count=3,
        report=None,
        identity=Identity(relation=Relation.OVERLAPPING, equal=("a",), renamed=(("a", EVIL),), missing=(EVIL, "b")),
        requantizations=(
            Requantization(
                component=Component.ROUTED_EXPERTS,
                before=f"unknown:{EVIL}",
                after=f"unknown:{LONG}",
                bytes_before=8,
                bytes_after=4,
                parameters=8,
                parameters_before=8,
                layers=(1, 3),
            ),
        ),
        kept=(Kept(component=Component.NORMS, encoding=EVIL, stored_bytes=8, parameters=8),),
        claims=(
            Claim(subject="licence", said_by=EVIL, said=EVIL, counted=EVIL),
            Claim(subject="licence", said_by=LONG, said=LONG, counted=LONG),
        ),
        loaders=(
            Loader(engine="vLLM", support=Support.NO, reason=EVIL, rule=EVIL),
            Loader(engine="vLLM", support=Support.NO, reason=LONG, rule=LONG),
        ),
    )


def drawn(audit: Audit, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    with console.capture() as capture:
        show_audit(console, audit)
    return capture.get().splitlines()


def section(lines: Sequence[str], title: str) -> list[str]:
    """Return the rows of a table, without its title and the names of its columns."""
    start = lines.index(title) + 2
    return list(lines[start : lines.index("", start)])


@pytest.mark.parametrize("width", [60, 79, 80, 100, 120, 160, 200, 400])
@pytest.mark.parametrize("name", [*BUILDS, "alone", "hostile"])
def test_no_line_is_wider_than_the_terminal(name: str, width: int, audits: dict[str, Audit]) -> None:
    assert max(map(cell_len, drawn(audits[name], width))) <= width


@pytest.mark.parametrize("width", [80, 120, 400])
@pytest.mark.parametrize("name", [*BUILDS, "alone"])
def test_the_order_of_what_is_said(name: str, width: int, audits: dict[str, Audit]) -> None:
    lines = drawn(audits[name], width)
    audit = audits[name]
    assert lines[0].startswith(f"{audit.verdict}: ")
    assert lines[1].startswith(audit.candidate)
    found = [line for line in lines if line.startswith(("error: ", "warning: ", "info: ", "nothing found"))]
    head = next(line for line in lines if " bytes (headers " in line)
    titles = ["how the weights are stored", "what is said of it, beside what is counted", "what loads it"]
    marks = [*found, head, *(title for title in titles if title in lines)]
    places = [lines.index(mark) for mark in marks]
    assert places == sorted(places)
    gravest = ["error: ", "warning: ", "info: ", "nothing"]
    ranks = [next(rank for rank, word in enumerate(gravest) if line.startswith(word)) for line in found]
    assert ranks == sorted(ranks)


def test_findings_come_with_what_to_do_once(audits: dict[str, Audit]) -> None:
    lines = drawn(audits["reduced"], 120)
    pruned = next(number for number, line in enumerate(lines) if line.startswith("warning: experts-pruned"))
    assert lines[pruned + 1] == "  what to do: test it on your own tasks"
    cut = drawn(ki.audit(damage.cut_shard(OFFICIAL, 3, 1000)), 200)
    assert sum("download it again" in line for line in cut) == 1


def test_a_warning_under_the_code_of_an_error_asks_for_something_milder(audits: dict[str, Audit]) -> None:
    lines = drawn(audits["gguf"], 200)
    assert "  what to do: load it as a model without that part, or get the side file" in lines
    missing = next(item for item in audits["gguf"].findings if item.code == "component-missing")
    grave = attrs.evolve(audits["gguf"], findings=(attrs.evolve(missing, severity=Severity.ERROR),))
    assert "  what to do: do not load it; tell the publisher" in drawn(grave, 200)


def test_a_finding_that_does_not_fit_goes_on_set_in(audits: dict[str, Audit]) -> None:
    lines = drawn(audits["gguf"], 80)
    start = next(number for number, line in enumerate(lines) if line.startswith("warning: component-missing"))
    assert lines[start + 1].startswith("  ")
    assert not lines[start + 1].startswith("   ")


def test_at_80_columns_no_engine_and_no_reason_is_cut(audits: dict[str, Audit]) -> None:
    for audit in (audits["faithful"], audits["gguf"], audits["alone"]):
        rows = section(drawn(audit, 80), "what loads it")
        for loader in audit.loaders:
            row = next(line for line in rows if line.startswith(f"{loader.engine} "))
            assert f" {loader.support} " in row
            assert set(loader.reason.split()) <= set(" ".join(rows).split())


def test_a_wider_terminal_has_more_columns(audits: dict[str, Audit]) -> None:
    narrow, wide = drawn(audits["reduced"], 72), drawn(audits["reduced"], 120)
    assert not any(line.startswith("component ") and "layers" in line for line in narrow)
    assert any(line.startswith("component ") and "layers" in line for line in wide)
    assert not any("according to" in line for line in narrow)
    assert any("according to" in line for line in wide)
    assert all(any(line.startswith("what ") and "agrees" in line for line in lines) for lines in (narrow, wide))


def test_a_rule_does_not_repeat_its_engine(audits: dict[str, Audit]) -> None:
    rows = section(drawn(audits["faithful"], 400), "what loads it")
    llama = next(row for row in rows if row.startswith("llama.cpp "))
    assert llama.count("llama.cpp") == 1
    assert llama.rstrip().endswith("README.md")


@pytest.mark.parametrize("width", [60, 80, 400])
def test_nothing_in_a_strangers_names_is_obeyed_and_nothing_fills_the_screen(
    width: int, audits: dict[str, Audit]
) -> None:
    lines = drawn(audits["hostile"], width)
    text = "\n".join(lines)
    assert not {"\x1b", "\r", "\u202e"} & set(text)
    assert r"\x1b[31m[bold]evil\r\n\u202e:smile:" in text
    assert len(text) < 20 * MAX_LINE


def test_names_in_a_file_are_shown_safely(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "\x1b[31m[bold]evil\r\u202e"
    entry = {"dtype": name, "shape": [64], "data_offsets": [0, 64]}
    header = json.dumps({f"{name}.weight": entry, "__metadata__": {"format": name}}).encode()
    file = HollowFile(len(header).to_bytes(8, "little") + header, 8 + len(header) + 64)
    write(tmp_path / name, {f"{name}.safetensors": file})
    (tmp_path / name / "config.json").write_text(json.dumps({"model_type": name, "architectures": [name]}))
    main(["audit", str(tmp_path / name), "--against", str(tmp_path / name)])
    out, err = capsys.readouterr()
    assert not {"\x1b", "\r", "\u202e"} & set(out + err)
    assert r"\x1b[31m[bold]evil" in out


def test_identical_checkpoints_are_told_once(hub: LoopbackHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", COPY, "--against", KIMI_K31_PRO_ID, "--endpoint", hub.endpoint, "--no-cache"]) == 0
    assert capsys.readouterr().out == (
        "identical: every weight file is the reference's, by SHA-256\n"
        f"{COPY}, against {KIMI_K31_PRO_ID}\n"
        "8 of 8 weight files are the reference's by SHA-256\n\n"
        "nothing found that is wrong\n\n"
        "4 requests, 0.0 MB read\n"
    )


def test_every_verdict_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Verdict)
    assert all(meaning.isprintable() and len(meaning) < 62 for meaning in MEANINGS.values())
