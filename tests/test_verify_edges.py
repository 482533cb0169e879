"""Lock and verify where the ground is odd: circles of links, devices, pipes, names, and sources that refuse."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from verified import REPO, SHARDS, flipped, sha256, shard, shard_name, small_kimi, statuses, write

import kimi_inspect as ki
from kimi_inspect.checksums import parse_checksums
from kimi_inspect.cli import main
from kimi_inspect.journal import journal_file
from kimi_inspect.manifest import Manifest
from kimi_inspect.testing import GgufTensor, HollowFile, LoopbackHub, Repository, faults, hollow_gguf

FILES = small_kimi()
ALL_OK = dict.fromkeys(FILES, "ok")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "model", FILES)


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    with LoopbackHub([Repository(REPO, FILES)]) as hub:
        yield hub


@pytest.fixture
def unlisted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder that cannot be listed, for a superuser neither."""
    write(folder, {"locked/extra.bin": b"x"})
    scandir = os.scandir

    def refusing(path: Any = ".") -> Any:
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    return folder / "locked"


# Where a manifest goes


def test_a_link_stays_and_its_target_is_written(folder: Path, tmp_path: Path) -> None:
    for name, target in (("old", tmp_path / "there.json"), ("new", tmp_path / "not-yet.json")):
        if name == "old":
            target.write_text(Manifest(source="before", files=()).to_json())
        (tmp_path / name).symlink_to(target)
        assert main(["lock", str(folder), "-o", str(tmp_path / name)]) == 0
        assert (tmp_path / name).is_symlink()
        assert len(Manifest.from_json(target.read_bytes()).files) == len(FILES)


def test_a_pipe_is_written_to(folder: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    assert main(["lock", str(folder), "-o", str(pipe)]) == 0
    reader.join(10)
    assert len(Manifest.from_json(got[0]).files) == len(FILES)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_stays_one(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "null").symlink_to(os.devnull)
    for output in (os.devnull, str(tmp_path / "null")):
        assert main(["lock", str(folder), "-o", output]) == 0
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)
    assert (tmp_path / "null").is_symlink()


@pytest.mark.parametrize("output", ["-", "/dev/stdout"])
@pytest.mark.parametrize("into", ["a pipe", "a file"])
def test_standard_output(output: str, into: str, folder: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "kimi_inspect", "lock", str(folder), "-o", output]
    if into == "a pipe":
        data = subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout
    else:
        with (tmp_path / "out.json").open("wb") as file:
            subprocess.run(words, check=True, stdout=file)
        data = (tmp_path / "out.json").read_bytes()
    assert len(Manifest.from_json(data).files) == len(FILES)


# Links in a circle


def test_a_circle_is_a_row(folder: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "m.json"
    assert main(["lock", str(folder), "-o", str(manifest)]) == 0
    (folder / "loop").symlink_to("loop")
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("config.json")
    found = ki.verify(folder, manifest)
    assert statuses(found.files) == {**ALL_OK, "loop": "extra", "config.json": "unreadable"}
    with pytest.raises(ki.SourceError, match="Too many levels"):
        ki.lock(folder, leave_out=manifest)


def test_output_into_a_circle(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "self").symlink_to("self")
    assert main(["lock", str(folder), "-o", str(tmp_path / "self")]) == 2
    assert "cannot be written: Too many levels" in capsys.readouterr().err


# Folders that cannot be listed


def test_lock_refuses_a_folder_that_it_may_not_list(unlisted: Path, folder: Path) -> None:
    with pytest.raises(ki.SourceError, match="cannot be listed: Permission denied") as caught:
        ki.lock(folder)
    assert caught.value.file == str(unlisted)


@pytest.mark.usefixtures("unlisted")
def test_verify_fails_over_a_folder_that_it_may_not_list(folder: Path, hub: LoopbackHub) -> None:
    found = ki.verify(folder, REPO, endpoint=hub.endpoint)
    assert statuses(found.files) == {**ALL_OK, "locked": "unreadable"}
    assert not found.ok
    assert any(note.startswith("1 folder could not be listed") for note in found.notes)
    assert ki.verify(folder, REPO, endpoint=hub.endpoint, files="*.json").ok


# Headers


@pytest.mark.parametrize("quick", [False, True])
def test_one_bit_in_a_header_is_damage_perhaps(quick: bool, folder: Path) -> None:
    manifest = ki.lock(folder)
    data = FILES[shard_name(3)]
    write(folder, {shard_name(3): data.replace(b"up_proj", b"uq_proj")})
    found = ki.verify(folder, manifest, quick=quick)
    (wrong,) = found.having("mismatch")
    assert wrong.note == "its header is another: damaged, or of another revision"
    assert not any("another revision or build" in note for note in found.notes)


@pytest.mark.parametrize("quick", [False, True])
def test_most_headers_are_others(quick: bool, folder: Path) -> None:
    manifest = ki.lock(folder)
    for number in range(1, SHARDS + 1):
        write(folder, {shard_name(number): FILES[shard_name(number)].replace(b"up_proj", b"uq_proj")})
    found = ki.verify(folder, manifest, quick=quick)
    assert {file.note for file in found.having("mismatch")} == {
        "a whole file by its own header: of another revision or build, not a damaged one"
    }
    write(folder, {shard_name(1): FILES[shard_name(1)]})  # one is right
    found = ki.verify(folder, manifest, quick=quick)
    assert {file.note for file in found.having("mismatch")} == {
        "its header is another: damaged, or of another revision"
    }


def test_the_only_weight_file_of_another_build(tmp_path: Path) -> None:
    folder = write(tmp_path / "one", {"model.safetensors": shard(1)})
    manifest = ki.lock(folder)
    write(folder, {"model.safetensors": shard(1, columns=96)})
    assert "the weight file is whole, with headers of another revision or build" in ki.verify(folder, manifest).notes


def test_a_side_file_is_to_be_fetched_again(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = tmp_path / "m.json"
    main(["lock", str(folder), "-o", str(manifest)])
    write(folder, {"config.json": flipped(FILES["config.json"], 3)})
    assert main(["verify", str(folder), "--against", str(manifest)]) == 1
    assert "no loader" not in capsys.readouterr().out


# Names and globs


def test_a_name_with_a_backslash_is_refused_before_anything_is_read(folder: Path) -> None:
    write(folder, {"a\\b": b"x"})
    with pytest.raises(ki.CheckpointError, match="rename it"):
        ki.lock(folder)
    assert len(ki.lock(folder, files="*.json").files) == 2


def test_what_was_not_asked_for_may_be_unfinished(folder: Path, hub: LoopbackHub) -> None:
    (folder / shard_name(2)).rename(folder / f"{shard_name(2)}.incomplete")
    found = ki.verify(folder, REPO, endpoint=hub.endpoint, files=["*.json", shard_name(1)])
    assert found.ok
    assert statuses(found.files)[f"{shard_name(2)}.incomplete"] == "extra"
    assert not ki.verify(folder, REPO, endpoint=hub.endpoint, files=shard_name(2)).ok


# Sources that refuse


def test_a_gated_repository_is_locked_by_what_it_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "")
    output = tmp_path / "m.json"
    with LoopbackHub([Repository(REPO, FILES, gated=True)], tokens=["hf_good"]) as hub:
        assert main(["lock", REPO, "--endpoint", hub.endpoint, "-o", str(output)]) == 0
    files = {file.path: file for file in Manifest.from_json(output.read_bytes()).files}
    assert {path: file.bytes for path, file in files.items()} == {path: len(data) for path, data in FILES.items()}
    assert {(file.sha256, file.header_sha256) for path, file in files.items() if path.endswith("s")} == {(None, None)}
    assert files["config.json"].git_sha1
    assert f"{SHARDS} headers could not be read" in capsys.readouterr().err


def test_one_header_that_is_not_there_is_a_note(folder: Path, hub: LoopbackHub) -> None:
    hub.play(faults.refused("entry-missing"), path=shard_name(2), times=None)
    found = ki.verify(folder, REPO, endpoint=hub.endpoint, quick=True)
    assert found.ok
    assert "1 header could not be read at the source and was not compared" in found.notes


def test_headers_of_missing_files_are_not_asked_for(folder: Path, hub: LoopbackHub) -> None:
    (folder / shard_name(2)).unlink()
    hub.clear_log()
    assert not ki.verify(folder, REPO, endpoint=hub.endpoint, quick=True).ok
    asked = {name for name in FILES if any(name in one.target for one in hub.log)}
    assert asked == {shard_name(number) for number in range(1, SHARDS + 1)} - {shard_name(2)}


def test_an_address_that_nobody_answers(tmp_path: Path) -> None:
    folder = write(tmp_path / "one", {"model.safetensors": shard(1)})
    assert main(["verify", str(folder), "--against", "http://127.0.0.1:9/model.safetensors"]) == 2


def test_an_address_shows_no_digest_whoever_asks(tmp_path: Path) -> None:
    folder = write(tmp_path / "one", {shard_name(1): FILES[shard_name(1)]})
    opened = ki.open_checkpoint({shard_name(1): ki.sources.LocalFile(folder / shard_name(1))})
    (found,) = ki.verify(folder, opened).files
    assert (found.status, found.note) == ("digest-unknown", "the source shows no digest of it")


# Lists, journals, and what is no argument


def test_a_mark_before_the_text(folder: Path, tmp_path: Path) -> None:
    manifest = "\ufeff" + ki.lock(folder).to_json()
    assert len(Manifest.from_json(manifest).files) == len(Manifest.from_json(manifest.encode()).files) == len(FILES)
    lines = "\ufeff" + "".join(f"{sha256(data)}  {path}\n" for path, data in FILES.items())
    for name, text in (("m.json", manifest), ("SHA256SUMS", lines)):
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert statuses(ki.verify(folder, tmp_path / name).files) == ALL_OK


@pytest.mark.parametrize("cut", [1, 2, 40, 63, 64, 65])
def test_a_list_that_is_cut(cut: int) -> None:
    line = f"{'ab' * 32}  a\n"
    with pytest.raises(ki.InvalidSourceError, match="line 2 of the list is cut or damaged"):
        parse_checksums((line + line[:cut]).encode())


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_a_journal_that_is_no_file(kind: str, folder: Path, tmp_path: Path, hub: LoopbackHub) -> None:
    file = journal_file(folder)
    assert file is not None
    victim = tmp_path / "victim"
    victim.write_text("mine\n")
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "link":
        file.symlink_to(victim)
    else:
        file.mkdir()
    found = ki.verify(folder, REPO, endpoint=hub.endpoint)
    assert found.ok
    assert any(note.startswith("no journal is kept") for note in found.notes)
    assert victim.read_text() == "mine\n"


@pytest.mark.parametrize("digest", [None, 5, b"0" * 64])
def test_digests_of_other_types(digest: Any, folder: Path) -> None:
    with pytest.raises(ki.InvalidSourceError, match="no digest"):
        ki.verify_file(folder / "config.json", digest)


@pytest.mark.parametrize("workers", [0, -1, 1.5, "2", True])
def test_numbers_of_workers(workers: Any, folder: Path) -> None:
    for call in (lambda: ki.lock(folder, max_workers=workers), lambda: ki.verify(folder, REPO, max_workers=workers)):
        with pytest.raises(ki.InvalidSourceError, match="number of workers"):
            call()


@pytest.mark.parametrize("name", ["nofile.sums", "nofile.json", "nofile.txt", "./no/file.sums", "SHA256SUMS"])
def test_a_list_that_is_not_there(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(folder), "--against", name, "--json"]) == 2
    assert "no such file" in json.loads(capsys.readouterr().out)["message"]


def test_a_home_of_nobody_and_a_name_with_nul(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("~nobody-of-this-name/x", "a\0b"):
        with pytest.raises(ki.SourceError):
            ki.verify(name, ki.lock(folder))
        assert main(["verify", str(folder), "--against", name]) == 2
        assert main(["lock", str(folder), "-o", name]) == 2


# What would say more than it knows


def test_a_journal_that_was_disproved_is_not_believed_again(folder: Path) -> None:
    manifest = ki.lock(folder, journal=False)
    assert ki.verify(folder, manifest).ok
    path = folder / shard_name(2)
    before = path.stat()
    path.write_bytes(flipped(FILES[shard_name(2)], -2))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert ki.verify(folder, manifest).ok, "the change keeps all that the journal looks at"
    assert not ki.verify(folder, manifest, journal=False).ok
    assert not ki.verify(folder, manifest).ok


def test_quick_says_that_the_folder_is_of_another_commit(folder: Path, hub: LoopbackHub) -> None:
    noted = {".cache/huggingface/download/config.json.metadata": b"%s\netag\n1.0\n" % (b"e" * 40)}
    told = f"of commit {'e' * 40}, not "
    assert not any(told in note for note in ki.verify(write(folder, noted), REPO, endpoint=hub.endpoint).notes)
    found = ki.verify(folder, REPO, endpoint=hub.endpoint, quick=True)
    assert found.ok
    assert any(told in note for note in found.notes)


@pytest.mark.parametrize(
    "partial",
    [
        f".cache/huggingface/download/x7Yz=.{sha256(FILES[shard_name(6)])}.incomplete",
        f"._____temp/{shard_name(6)}",
        f"{shard_name(6)}.aria2",
    ],
)
def test_a_download_that_is_not_finished(partial: str, folder: Path, hub: LoopbackHub) -> None:
    manifest = ki.lock(REPO, endpoint=hub.endpoint)
    (folder / shard_name(6)).unlink()
    write(folder, {partial: b"12345"})
    with pytest.raises(ki.CheckpointError, match="unfinished download") as caught:
        ki.lock(folder)
    assert caught.value.file == partial
    found = {file.path: file.status for file in ki.verify(folder, manifest).files}
    assert found.pop(shard_name(6)) == "unfinished"
    assert {path: status for path, status in found.items() if status != "ok"} == (
        {partial: "unfinished"} if partial.endswith(".aria2") else {}
    )


def test_no_command_that_would_not_do(folder: Path, tmp_path: Path) -> None:
    names = ("new\nline.txt", "esc\x1b[31m.txt", "bidi\u202e.txt", "config.json", "README/more.md", "plain.txt")
    files = tuple(ki.ManifestFile(path=path, bytes=1, sha256="0" * 64) for path in names)
    manifest = ki.Manifest(source="acme/tiny", commit="e" * 40, files=files)
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    (folder / "README").write_text("a file")
    told = {file.path: file.command for file in ki.verify(folder, manifest).files if file.command}
    assert list(told) == ["plain.txt"]
    snapshot = tmp_path / "snapshots" / ("f" * 40)
    snapshot.mkdir(parents=True)
    assert not [file.command for file in ki.verify(snapshot, manifest).files if file.command]


@pytest.mark.parametrize("closed", ["2", "1"])
@pytest.mark.parametrize("verb", ["verify", "lock"])
def test_a_service_may_close_what_it_does_not_read(closed: str, verb: str, folder: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "m.json"
    manifest.write_text(ki.lock(folder).to_json())
    arguments = {"verify": [str(folder), "--against", str(manifest)], "lock": [str(folder), "-o", str(manifest)]}
    line = ["sh", "-c", f'exec "$@" {closed}>&-', "sh", sys.executable, "-m", "kimi_inspect", verb, *arguments[verb]]
    done = subprocess.run(line, capture_output=True, check=False, timeout=60)
    assert done.returncode == (0 if closed == "2" else 2)
    assert b"Traceback" not in done.stderr
    assert bool(done.stdout) == (closed == "2")


@pytest.mark.parametrize("name", ["config.json", shard_name(1), "docs/usage.md"])
def test_lock_writes_over_no_other_file(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lock", str(folder), "-o", str(folder / name)]) == 2
    assert "there is another file" in capsys.readouterr().err
    assert (folder / name).read_bytes() == FILES[name]


@pytest.mark.parametrize("form", [[], ["--sha256sums"]])
def test_lock_writes_over_what_it_has_written(form: list[str], folder: Path) -> None:
    for _ in range(2):
        assert main(["lock", str(folder), "-o", str(folder / "locked"), *form]) == 0
        assert statuses(ki.verify(folder, folder / "locked").files) == ALL_OK


def test_a_list_of_no_globs_is_refused(folder: Path) -> None:
    manifest = ki.lock(folder)
    for call in (lambda: ki.verify(folder, manifest, files=[]), lambda: ki.open_checkpoint(folder, files=[])):
        with pytest.raises(ki.InvalidSourceError, match="fits no file"):
            call()


def test_a_status_of_a_later_version_is_not_ok(folder: Path) -> None:
    document = ki.verify(folder, ki.lock(folder)).to_dict()
    assert ki.Verification.from_dict(document).ok
    document["files"][0]["status"] = "rotten"
    assert not ki.Verification.from_dict(document).ok


@pytest.mark.parametrize("document", [[], None, 5, "x"])
def test_what_is_no_manifest(document: Any) -> None:
    with pytest.raises(ki.InvalidSourceError, match="no manifest"):
        Manifest.from_dict(document)
    with pytest.raises(ki.InvalidSourceError, match="no manifest"):
        Manifest.from_json(json.dumps(document))


def test_a_folder_without_a_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "", "--against", str(folder)]) == 2
    assert "no folder is named" in capsys.readouterr().err


def test_a_signature_that_has_expired_costs_no_header(hub: LoopbackHub) -> None:
    hub.play(faults.expired_signature(), path=shard_name(1), origin="cdn")
    assert all(file.header_sha256 for file in ki.lock(REPO, endpoint=hub.endpoint).files if "model-" in file.path)


@pytest.mark.parametrize(
    "line", [["verify", "FOLDER", "--against", "none.json"], ["lock", "./none", "-o", "x"], ["verify"]]
)
def test_a_log_that_is_full_changes_no_status(line: list[str], folder: Path, tmp_path: Path) -> None:
    words = [str(folder) if word == "FOLDER" else word for word in line]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-m", "kimi_inspect", *words], stderr=full, cwd=tmp_path, check=False)
    assert done.returncode == 2


def test_a_watch_whose_log_is_full_still_ends(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(ki.lock(folder).to_json())
    line = [sys.executable, "-m", "kimi_inspect", "verify", str(folder), "--against", "m.json", "--watch"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(line, stdout=subprocess.PIPE, stderr=full, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout[:3]) == (0, b"ok:")


def test_a_revision_that_a_manifest_is_not_of(folder: Path, hub: LoopbackHub) -> None:
    manifest = ki.lock(REPO, endpoint=hub.endpoint)
    assert ki.verify(folder, manifest, revision=manifest.commit).ok
    for against in (manifest, ki.lock(folder)):
        with pytest.raises(ki.InvalidSourceError, match="leave the revision out"):
            ki.verify(folder, against, revision="v2")


def test_a_manifest_from_a_pipe(folder: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = ki.lock(folder).to_json()
    writer = threading.Thread(target=lambda: pipe.write_text(text), daemon=True)
    writer.start()
    assert statuses(ki.verify(folder, pipe).files) == ALL_OK
    writer.join(10)


def test_a_damaged_manifest_is_named(folder: Path, tmp_path: Path) -> None:
    for text in ("{}", "{not", json.dumps({**ki.lock(folder).to_dict(), "commit": "x"})):
        (tmp_path / "m.json").write_text(text)
        with pytest.raises(ki.InvalidSourceError) as caught:
            ki.verify(folder, tmp_path / "m.json")
        assert caught.value.file == str(tmp_path / "m.json")


@pytest.mark.parametrize("document", [{}, {"files": [{}]}, {"files": 5}])
def test_what_is_no_verification(document: Any) -> None:
    with pytest.raises(ki.InvalidSourceError, match="no result of verify"):
        ki.Verification.from_dict(document)


def test_the_command_where_an_endpoint_was_given(
    folder: Path, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = ki.lock(REPO, endpoint=hub.endpoint)
    (folder / "config.json").unlink()
    (missing,) = ki.verify(folder, manifest, endpoint=hub.endpoint).having("missing")
    assert (missing.command or "").startswith(f"HF_ENDPOINT={hub.endpoint} hf download")
    monkeypatch.chdir(folder.parent)
    folder.rename("~tilde")
    (missing,) = ki.verify(Path("~tilde"), manifest).having("missing")
    assert (missing.command or "").endswith("--local-dir './~tilde'")


@pytest.mark.parametrize("companions", [True, "mmproj*"])
def test_side_files_of_a_set_where_they_are_asked_for(companions: Any, tmp_path: Path) -> None:
    def gguf(architecture: str, name: str, kind: str) -> HollowFile:
        return hollow_gguf([GgufTensor(name, kind, (64, 32))], {"general.architecture": architecture})

    files = {
        "m-Q4_0.gguf": gguf("llama", "token_embd.weight", "Q4_0"),
        "m-Q8_0.gguf": gguf("llama", "token_embd.weight", "Q8_0"),
        "mmproj-F16.gguf": gguf("clip", "v.patch_embd.weight", "F16"),
    }
    folder = write(tmp_path / "model", {path: file.read() for path, file in files.items() if "Q4" not in path})
    with LoopbackHub([Repository("acme/two-GGUF", files)]) as hub:
        source, options = "acme/two-GGUF:Q8_0", {"endpoint": hub.endpoint}
        assert [file.path for file in ki.lock(source, **options).files] == ["m-Q8_0.gguf"]  # type: ignore[arg-type]
        manifest = ki.lock(source, companions=companions, **options)  # type: ignore[arg-type]
        assert [file.path for file in manifest.files] == ["m-Q8_0.gguf", "mmproj-F16.gguf"]
        (folder / "mmproj-F16.gguf").write_bytes(flipped(files["mmproj-F16.gguf"].read(), -1))
        assert ki.verify(folder, source, **options).ok  # type: ignore[arg-type]
        (wrong,) = ki.verify(folder, source, companions=companions, **options).having("mismatch")  # type: ignore[arg-type]
        assert wrong.path == "mmproj-F16.gguf"
        line = ["verify", str(folder), "--against", source, "--endpoint", hub.endpoint, "--companions"]
        assert main(line) == 1


@pytest.mark.parametrize("against", [None, 5, b"x", object()])
def test_what_is_nothing_to_hold_a_folder_against(against: Any, folder: Path) -> None:
    with pytest.raises(ki.InvalidSourceError):
        ki.verify(folder, against)
