"""`kimi-inspect verify`: what it prints, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console
from verified import REPO, SHARDS, flipped, sha256, shard_name, small_kimi, write

import kimi_inspect as ki
from kimi_inspect.bars import amount, drawn_progress
from kimi_inspect.cli import main
from kimi_inspect.drawing import output
from kimi_inspect.testing import LoopbackHub, Repository
from kimi_inspect.values import Progress
from kimi_inspect.verification_table import show_verification

FILES = small_kimi()
TOTAL = sum(map(len, FILES.values()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "model", FILES)


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    with LoopbackHub([Repository(REPO, FILES)]) as hub:
        (tmp_path / "kimi.json").write_text(ki.lock(REPO, endpoint=hub.endpoint).to_json())
    return tmp_path / "kimi.json"


def test_a_whole_folder(folder: Path, manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(folder), "--against", str(manifest)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == f"ok: {len(FILES)} files, {TOTAL:,} bytes hashed"
    assert out.splitlines()[1].startswith(f"{folder} against {manifest} at ")
    assert err == ""
    assert main(["verify", str(folder), "--against", str(manifest)]) == 0
    assert f"0 bytes hashed, {TOTAL:,} bytes hashed before" in capsys.readouterr().out
    assert main(["verify", str(folder), "--against", str(manifest), "--no-journal", "--jobs", "1"]) == 0
    assert f"{TOTAL:,} bytes hashed\n" in capsys.readouterr().out


def test_what_is_wrong_and_what_to_do(folder: Path, manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = flipped(FILES[shard_name(1)], -1)
    write(folder, {shard_name(1): bad, "alien\x1b[2J.txt": b"x", "config.json": b"{}"})
    (folder / shard_name(2)).unlink()
    assert main(["verify", str(folder), "--against", str(manifest)]) == 1
    lines = capsys.readouterr().out.splitlines()
    hashed = TOTAL - len(FILES[shard_name(2)]) - len(FILES["config.json"])
    assert lines[0] == (
        f"failed: 3 of {len(FILES)} files: 1 size-differs, 1 mismatch, 1 missing; {hashed:,} bytes hashed"
    )
    place = lines.index(f"mismatch: {shard_name(1)}")
    assert lines[place + 1] == f"    sha256 expected {sha256(FILES[shard_name(1)])}, got {sha256(bad)}"
    assert lines[place + 2].startswith(f"    hf download {REPO} {shard_name(1)} --revision ")
    assert lines[place + 2].endswith(" --force-download")
    assert f"    bytes expected {len(FILES['config.json'])}, got 2" in lines
    assert lines[-1] == "extra (nobody expects it): alien\\x1b[2J.txt"


def test_quick(folder: Path, manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(folder), "--against", str(manifest), "--quick"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"not hashed: {len(FILES)} files look as expected"
    unread = f"{TOTAL:,} bytes were not hashed, and may be others of the same length"
    assert lines[-1] == f"note: only sizes and headers were compared: {unread}"


def test_json(folder: Path, manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / shard_name(1)).unlink()
    assert main(["verify", str(folder), "--against", str(manifest), "--json"]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    assert ki.Verification.from_dict(json.loads(out)).having("missing")[0].path == shard_name(1)


def test_against_the_hub_with_its_options(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "config.json").unlink()
    with LoopbackHub([Repository(REPO, FILES, tags=("v1",))], tokens=["hf_x"]) as hub:
        options = ["--endpoint", hub.endpoint, "--revision", "v1", "--token", "hf_x", "--files", "*.safetensors"]
        assert main(["verify", str(folder), "--against", REPO, *options]) == 0
        assert {one.authorization for one in hub.log} == {"Bearer hf_x"}
    assert capsys.readouterr().out.startswith(f"ok: {SHARDS} files")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["verify", "{folder}"], "required: --against"),
        (["verify", "--against", "{manifest}"], "required: FOLDER"),
        (["verify", "{folder}", "--against", "nonsense"], "'nonsense' names no checkpoint"),
        (["verify", "{folder}/none", "--against", "{manifest}"], "there is no such folder"),
        (["verify", "{folder}", "--against", "{manifest}", "--quick", "--watch"], "not allowed with argument"),
        (["verify", "{folder}", "--against", "{manifest}", "--files", "*.bin"], "no file is expected"),
    ],
)
def test_bad_usage(
    arguments: list[str], words: str, folder: Path, manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [word.format(folder=folder, manifest=manifest) for word in arguments]
    assert main(filled) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert words in err
    assert main([*filled, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["schema"] == "kimi-inspect/error/1"


def test_interrupted(
    folder: Path, manifest: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kimi_inspect.digesting.digest_file", interrupt)
    assert main(["verify", str(folder), "--against", str(manifest)]) == 130
    assert capsys.readouterr() == ("", "interrupted\n")


def test_watch_tells_each_file_and_then_the_verdict(
    folder: Path, manifest: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("kimi_inspect.verbs.time.sleep", waited.append)
    (folder / shard_name(3)).write_bytes(flipped(FILES[shard_name(3)], 999))
    assert main(["verify", str(folder), "--against", str(manifest), "--watch"]) == 1
    out, err = capsys.readouterr()
    assert len(waited) == 1
    assert f"ok: {shard_name(1)}\n" in err
    assert f"mismatch: {shard_name(3)}\n" in err
    assert f"    hf download {REPO} {shard_name(3)} " in err
    assert out.startswith(f"failed: 1 of {len(FILES)} files: 1 mismatch; {TOTAL:,} bytes hashed\n")
    assert main(["verify", str(folder), "--against", str(manifest), "--watch", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_terabytes_are_told_in_gigabytes(capsys: pytest.CaptureFixture[str]) -> None:
    file = ki.FileVerification(path="a.safetensors", status="ok", bytes=1_561_293_160_568)
    found = ki.Verification(
        folder="k", against="x", commit=None, quick=False, bytes_hashed=1_561_293_160_568, files=(file,) * 96
    )
    show_verification(output(), found)
    assert capsys.readouterr().out.splitlines()[0] == "ok: 96 files, 1,561.29 GB hashed"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((3, 96, "files", None, None), "3/96"),
        ((3, None, "files", None, None), "3/?"),
        ((12_340_000_000, 1_561_293_160_568, "bytes", None, None), "12.34 of 1,561.29 GB"),
        ((5e9, 9e9, "bytes", 3.16e9, 61.7), "5.00 of 9.00 GB, 3.16 GB/s, 1 min 1 s left"),
        ((5e9, 9e9, "bytes", 1e9, 7325.0), "5.00 of 9.00 GB, 1.00 GB/s, 2 h 2 min left"),
    ],
)
def test_rate_and_time_left(arguments: tuple[float, float | None, str, float | None, float | None], words: str) -> None:
    assert amount(*arguments) == words


def test_the_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    console = Console(stderr=True, force_terminal=True, width=200)
    with drawn_progress(console) as tell:
        tell(Progress(phase="", done=0, total=2, unit="checkpoints", path="acme/\x1b[2Jone"))
        tell(Progress(phase="headers", done=1, total=2, unit="files"))
        tell(Progress(phase="hashing", done=2 * 10**9, total=4 * 10**9, unit="bytes", path="a"))
    err = capsys.readouterr().err
    assert "2.00 of 4.00 GB" in err
    assert "acme/\\x1b[2Jone: hashing" in err
