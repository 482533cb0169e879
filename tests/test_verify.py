"""A folder held against digests: each kind of damage gets its status and all else is ok, whoever tells the digests."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from test_real_gguf import NAME as GEMMA
from test_real_gguf import SHA256 as GEMMA_SHA256
from test_real_gguf import path as gemma  # noqa: F401 - a fixture
from verified import (
    REPO,
    SHARDS,
    flipped,
    git_sha1,
    header_sha256,
    sha256,
    shard,
    shard_name,
    small_kimi,
    statuses,
    write,
)

import kimi_inspect as ki
from kimi_inspect import Status, Verification
from kimi_inspect.checksums import format_checksums
from kimi_inspect.hashing import Digested, DigestTask, digest_file
from kimi_inspect.testing import LoopbackHub, LoopbackModelScope, Repository, faults

FILES = small_kimi()
ALL_OK = dict.fromkeys(FILES, "ok")
Check = Callable[..., Verification]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "model", FILES)


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    with LoopbackHub([Repository(REPO, FILES)]) as hub:
        yield hub


@pytest.fixture(params=["hub", "modelscope", "manifest", "manifest file", "folder", "sha256sums"])
def check(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Check]:
    """Hold a folder against the small Kimi, as each kind of source tells it; offline where nothing is to be asked."""
    with ExitStack() as stack:
        options: dict[str, Any] = {}
        against: Any = tmp_path / "SHA256SUMS"
        if request.param == "hub":
            options["endpoint"] = stack.enter_context(LoopbackHub([Repository(REPO, FILES)])).endpoint
            against = REPO
        elif request.param == "modelscope":
            options["endpoint"] = stack.enter_context(LoopbackModelScope({REPO: FILES})).endpoint
            against = f"ms://{REPO}"
        elif request.param == "folder":
            against = write(tmp_path / "copy", FILES)
        elif request.param == "sha256sums":
            names = sorted(FILES)
            copy = write(tmp_path / "copy", FILES)
            against.write_bytes(subprocess.check_output(["sha256sum", *names], cwd=copy))
        else:
            with LoopbackHub([Repository(REPO, FILES)]) as hub:
                against = ki.lock(REPO, endpoint=hub.endpoint)
            if request.param == "manifest file":
                (tmp_path / "kimi.json").write_text(against.to_json())
                against = tmp_path / "kimi.json"
            monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        yield lambda folder, **more: ki.verify(folder, against, **options, **more)


def test_a_whole_folder_is_ok(check: Check, folder: Path) -> None:
    found = check(folder)
    assert statuses(found.files) == ALL_OK
    assert found.ok
    assert bool(found)
    assert (found.bytes_hashed, found.bytes_remembered) == (sum(map(len, FILES.values())), 0)
    for file in found.files:
        assert file.expected == file.actual
        assert file.actual in (sha256(FILES[file.path]), git_sha1(FILES[file.path]))
    assert [file.algorithm for file in found.files if file.path.endswith(".safetensors")] == ["sha256"] * SHARDS


def test_every_damage_gets_its_status(check: Check, folder: Path, request: pytest.FixtureRequest) -> None:
    names = [shard_name(number) for number in range(1, SHARDS + 1)]
    (folder / names[0]).write_bytes(flipped(FILES[names[0]], -7))
    (folder / names[1]).write_bytes(FILES[names[1]][:-100])
    (folder / names[2]).unlink()
    (folder / names[3]).rename(folder / f"{names[3]}.incomplete")
    (folder / names[4]).unlink()
    (folder / names[4]).mkdir()
    (folder / "config.json").write_bytes(FILES["config.json"].replace(b"\n", b"\r\n"))
    (folder / "docs/usage.md").unlink()
    (folder / "docs/usage.md").symlink_to("nowhere")
    write(folder, {"more.safetensors": b"more", "sub/notes.txt": b"", ".git/HEAD": b"x", ".cache/huggingface/x": b"x"})
    found = check(folder)
    sizes = "mismatch" if "sha256sums" in request.node.name else "size-differs"  # such a list tells no size
    assert statuses(found.files) == ALL_OK | {
        names[0]: "mismatch",
        names[1]: sizes,
        names[2]: "missing",
        names[3]: "unfinished",
        f"{names[3]}.incomplete": "unfinished",
        names[4]: "unreadable",
        "config.json": sizes,
        "docs/usage.md": "missing",
        "more.safetensors": "extra",
        "sub/notes.txt": "extra",
    }
    assert not found.ok
    told = {file.path: file for file in found.files}
    wrong = told[names[0]]
    assert (wrong.algorithm, wrong.expected) == ("sha256", sha256(FILES[names[0]]))
    assert wrong.actual == sha256((folder / names[0]).read_bytes())
    if sizes == "size-differs":
        assert (told[names[1]].expected, told[names[1]].actual) == (len(FILES[names[1]]), len(FILES[names[1]]) - 100)
        assert "its own header promises 100 bytes more" in (told[names[1]].note or "")
    assert told["docs/usage.md"].note == "there is a link to nothing"
    assert told[names[4]].note == "there is a folder"
    assert told["more.safetensors"].ok
    assert told["more.safetensors"].bytes == 4


@pytest.mark.parametrize("place", [0, 9, 100, -1])
def test_one_bit_anywhere_in_a_weight_file(place: int, check: Check, folder: Path) -> None:
    name = shard_name(3)
    (folder / name).write_bytes(flipped(FILES[name], place))
    found = check(folder)
    assert statuses(found.files) == ALL_OK | {name: "mismatch"}
    (wrong,) = found.having("mismatch")
    assert (wrong.algorithm, wrong.actual) == ("sha256", sha256(flipped(FILES[name], place)))


def test_line_ends_of_a_small_file_that_keep_its_size(folder: Path, hub: LoopbackHub) -> None:
    changed = FILES["config.json"].replace(b"\n", b"\r", 1)
    (folder / "config.json").write_bytes(changed)
    (wrong,) = ki.verify(folder, REPO, endpoint=hub.endpoint).having("mismatch")
    assert (wrong.path, wrong.algorithm) == ("config.json", "git-sha1")
    assert (wrong.expected, wrong.actual) == (git_sha1(FILES["config.json"]), git_sha1(changed))


def test_a_file_that_may_not_be_read(check: Check, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so that the system refuses is played."""
    hidden = folder / shard_name(2)
    true_open = os.open

    def refuse(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path) == str(hidden):
            raise PermissionError(13, "Permission denied")
        return true_open(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    found = check(folder)
    assert statuses(found.files) == ALL_OK | {shard_name(2): "unreadable"}
    assert not found.ok


# The order: sizes, headers, digests


def test_quick_hashes_nothing_and_says_so(check: Check, folder: Path, request: pytest.FixtureRequest) -> None:
    name = shard_name(1)
    (folder / name).write_bytes(flipped(FILES[name], -1))
    found = check(folder, quick=True)
    assert statuses(found.files) == dict.fromkeys(FILES, "not-hashed")
    assert (found.ok, found.quick, found.bytes_hashed) == (True, True, 0)
    sized = "sha256sums" not in request.node.name
    assert any(("were not hashed, and may be others of the same length" in note) == sized for note in found.notes)
    assert any("no size is known of 10 files" in note for note in found.notes) != sized
    assert not any(file.actual for file in found.files)
    assert all(file.expected for file in found.files) or "folder" in request.node.name


def test_quick_sees_another_header(check: Check, folder: Path, request: pytest.FixtureRequest) -> None:
    name = shard_name(4)
    changed = FILES[name].replace(b"up_proj", b"up_Proj")
    (folder / name).write_bytes(changed)
    found = check(folder, quick=True)
    if "sha256sums" in request.node.name:  # it tells nothing of headers
        assert found.ok
        return
    assert statuses(found.files) == dict.fromkeys(FILES, "not-hashed") | {name: "mismatch"}
    (wrong,) = found.having("mismatch")
    assert wrong.algorithm == "header-sha256"
    assert (wrong.expected, wrong.actual) == (header_sha256(FILES[name]), header_sha256(changed))


def test_quick_sees_sizes_and_what_is_missing(check: Check, folder: Path, request: pytest.FixtureRequest) -> None:
    (folder / shard_name(1)).unlink()
    (folder / "config.json").write_bytes(b"{}")
    found = check(folder, quick=True)
    assert {file.path for file in found.having("missing")} == {shard_name(1)}
    assert len(found.having("size-differs")) == ("sha256sums" not in request.node.name)


def test_quick_tells_of_a_header_that_cannot_be_read(folder: Path, tmp_path: Path) -> None:
    """A file that was laid out in full and never filled."""
    name = shard_name(5)
    manifest = ki.lock(folder)
    bare = evolve(manifest, files=tuple(evolve(file, header_sha256=None) for file in manifest.files))
    (folder / name).write_bytes(bytes(len(FILES[name])))
    (tmp_path / "SHA256SUMS").write_bytes(format_checksums((path, sha256(data)) for path, data in FILES.items()))
    found = ki.verify(folder, tmp_path / "SHA256SUMS", quick=True)
    (wrong,) = found.having("mismatch")
    assert not found.ok
    assert (wrong.path, (wrong.note or "").partition(":")[0]) == (name, "no header that can be read")
    # Where its size is right, and a manifest has no header of it either, it may be what was locked.
    found = ki.verify(folder, bare, quick=True)
    assert found.ok
    assert any(f"a header that cannot be read: {name}" in note for note in found.notes)
    assert any("no header is known of 6 weight files" in note for note in found.notes)


@pytest.mark.parametrize("left", [0, 5, 1000])
def test_quick_sees_what_is_cut_where_a_list_tells_no_sizes(left: int, folder: Path, tmp_path: Path) -> None:
    name = shard_name(5)
    (tmp_path / "SHA256SUMS").write_bytes(format_checksums((path, sha256(data)) for path, data in FILES.items()))
    (folder / name).write_bytes(FILES[name][:left])
    found = ki.verify(folder, tmp_path / "SHA256SUMS", quick=True)
    assert statuses(found.files) == dict.fromkeys(FILES, "not-hashed") | {
        name: "size-differs" if left == 1000 else "mismatch"
    }
    (wrong,) = (file for file in found.files if not file.ok)
    assert left < 1000 or (wrong.expected, wrong.actual) == (len(FILES[name]), left)


def test_quick_sees_what_is_too_long_where_a_list_tells_no_sizes(folder: Path, tmp_path: Path) -> None:
    name = shard_name(5)
    (tmp_path / "SHA256SUMS").write_bytes(format_checksums((path, sha256(data)) for path, data in FILES.items()))
    (folder / name).write_bytes(FILES[name] + bytes(40))
    (wrong,) = ki.verify(folder, tmp_path / "SHA256SUMS", quick=True).having("size-differs")
    assert (wrong.path, wrong.expected, wrong.actual) == (name, len(FILES[name]), len(FILES[name]) + 40)


def test_a_large_file_of_another_header_is_not_hashed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = ki.lock(folder)
    monkeypatch.setattr("kimi_inspect.checking.HASHED_ANYWAY", 100)
    (folder / shard_name(2)).write_bytes(FILES[shard_name(2)].replace(b"up_proj", b"up_Proj"))
    found = ki.verify(folder, manifest, journal=False)
    (wrong,) = found.having("mismatch")
    assert wrong.algorithm == "header-sha256"
    assert found.bytes_hashed == sum(len(data) for path, data in FILES.items() if path != shard_name(2))


def test_sizes_are_compared_before_a_byte_is_read(folder: Path, hub: LoopbackHub) -> None:
    for number in range(1, SHARDS + 1):
        os.truncate(folder / shard_name(number), 50)
    found = ki.verify(folder, REPO, endpoint=hub.endpoint, files="*.safetensors")
    assert {file.status for file in found.files} == {"size-differs"}
    assert found.bytes_hashed == 0


# What is expected


def test_files_limit_the_expectation(check: Check, folder: Path) -> None:
    (folder / shard_name(1)).unlink()
    (folder / "config.json").write_bytes(b"changed")
    (folder / "alien").write_bytes(b"")
    found = check(folder, files=["*-00002-*", "docs/*"])
    assert statuses(found.files) == {shard_name(2): "ok", "docs/usage.md": "ok", "alien": "extra"}
    assert found.ok


def test_globs_that_fit_nothing_prove_nothing(check: Check, folder: Path) -> None:
    with pytest.raises(ki.NoCheckpointError, match="no file is expected"):
        check(folder, files="*.bin")


def test_masked_digests_are_unknown_and_never_a_mismatch(folder: Path) -> None:
    files = {**FILES, "tokenizer.model": b"pieces"}
    write(folder, files)
    with LoopbackHub([Repository(REPO, files, gated=True)], tokens=["hf_good"]) as hub:
        found = ki.verify(folder, REPO, endpoint=hub.endpoint, token=False)
        with_access = ki.verify(folder, REPO, endpoint=hub.endpoint, token="hf_good")
    unknown = {path: "digest-unknown" for path in files if path.endswith((".safetensors", ".model"))}
    assert statuses(found.files) == dict.fromkeys(files, "ok") | unknown
    assert not found.ok  # of weights that is not enough
    assert [file.ok for file in found.files if file.path == "tokenizer.model"] == [True]
    assert with_access.ok
    assert set(statuses(with_access.files).values()) == {"ok"}


def test_quick_on_masked_digests(folder: Path) -> None:
    with LoopbackHub([Repository(REPO, FILES, gated=True)]) as hub:
        found = ki.verify(folder, REPO, endpoint=hub.endpoint, token=False, quick=True)
    assert found.ok
    assert f"{SHARDS} headers could not be read at the source and were not compared" in found.notes


def test_quick_does_not_pass_over_headers_that_come_to_nothing(folder: Path, hub: LoopbackHub) -> None:
    hub.play(faults.wrong_commit(), path=shard_name(2), times=None)
    with pytest.raises(ki.SourceError):
        ki.verify(folder, REPO, endpoint=hub.endpoint, quick=True)


def test_against_an_open_checkpoint(folder: Path, hub: LoopbackHub) -> None:
    checkpoint = ki.open_checkpoint(REPO, endpoint=hub.endpoint)
    found = ki.verify(folder, checkpoint)
    assert (found.against, found.commit) == (REPO, checkpoint.commit)
    expected = {path: "ok" if path.endswith(".safetensors") else "extra" for path in FILES}
    assert statuses(found.files) == expected
    (folder / shard_name(1)).write_bytes(FILES[shard_name(1)][:9] + b" " * (len(FILES[shard_name(1)]) - 9))
    assert ki.verify(folder, checkpoint).having("mismatch")
    # A header of the right length is all that an open checkpoint knows of it.
    assert not ki.verify(folder, checkpoint, quick=True).having("mismatch")
    (folder / shard_name(1)).write_bytes(bytes(len(FILES[shard_name(1)])))
    (wrong,) = ki.verify(folder, checkpoint, quick=True).having("mismatch")
    assert wrong.algorithm == "header-bytes"


def test_a_set_of_a_repository(tmp_path: Path) -> None:
    files = {**FILES, "q8/a-q8_0.gguf": b"GGUF not looked at"}
    folder = write(tmp_path / "model", files)
    with LoopbackHub([Repository(REPO, files)]) as hub:
        found = ki.verify(folder, f"{REPO}:model", endpoint=hub.endpoint)
    assert statuses(found.files) == ALL_OK


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/hostname", "a/../../b"])
def test_a_manifest_that_leads_outside(name: str, folder: Path, tmp_path: Path) -> None:
    file = ki.ManifestFile(path=name, bytes=1, sha256="0" * 64)
    with pytest.raises(ki.UnsafePathError):
        ki.verify(folder, ki.Manifest(source="x", files=(file,)))
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  {name}\n")
    with pytest.raises(ki.UnsafePathError):
        ki.verify(folder, tmp_path / "SHA256SUMS")


def test_names_that_only_some_systems_allow(tmp_path: Path) -> None:
    odd = {"a\\b": b"1", "new\nline": b"2", "blank ": b"3", "*star": b"4", "-dash": b"5"}
    folder = write(tmp_path / "odd", odd)
    (tmp_path / "SHA256SUMS").write_bytes(subprocess.check_output(["sha256sum", "--", *odd], cwd=folder))
    assert statuses(ki.verify(folder, tmp_path / "SHA256SUMS").files) == dict.fromkeys(odd, "ok")
    (folder / "a\\b").rename(folder / "a_b")  # a manifest is for other systems too
    names = {name.replace("\\", "_") for name in odd}
    assert statuses(ki.verify(folder, ki.lock(folder), journal=False).files) == dict.fromkeys(names, "ok")


def test_a_folder_is_not_its_own_witness(folder: Path) -> None:
    with pytest.raises(ki.InvalidSourceError, match="proves nothing"):
        ki.verify(folder, folder)


def test_offline_the_cache_is_no_witness(
    folder: Path, monkeypatch: pytest.MonkeyPatch, clean_environment: Path
) -> None:
    cache = clean_environment / "hub" / "models--acme--tiny-kimi"
    commit = "c" * 40
    write(cache / "snapshots" / commit, FILES)
    write(cache / "refs", {"main": commit.encode()})
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ki.OfflineError, match="no witness"):
        ki.verify(folder, REPO)


@pytest.mark.parametrize(
    ("against", "error"),
    [
        ("nonsense", ki.InvalidSourceError),
        ("./nowhere", ki.SourceFileNotFoundError),
        ("no.json", ki.SourceFileNotFoundError),
    ],
)
def test_nothing_to_hold_it_against(against: str, error: type[Exception], folder: Path) -> None:
    with pytest.raises(error):
        ki.verify(folder, against)


def test_files_that_are_neither_manifest_nor_list(folder: Path, tmp_path: Path) -> None:
    for name, data in (("x.json", b"{}"), ("x.json", b"{"), ("SHA256SUMS", b"hello\n"), ("note.txt", b"\0\1")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ki.InvalidSourceError):
            ki.verify(folder, tmp_path / name)


def test_no_folder(tmp_path: Path, folder: Path) -> None:
    manifest = ki.lock(folder)
    with pytest.raises(ki.SourceFileNotFoundError, match="no such folder"):
        ki.verify(tmp_path / "none", manifest)
    with pytest.raises(ki.TransportError, match="a file, not a folder"):
        ki.verify(folder / "config.json", manifest)


def test_the_cache_of_a_repository_is_no_folder_of_files(tmp_path: Path, folder: Path) -> None:
    cache = write(tmp_path / "models--a--b", {"blobs/x": b"", "refs/main": b"", "snapshots/x/y": b""})
    with pytest.raises(ki.InvalidSourceError, match="give one of its snapshots"):
        ki.verify(cache, ki.lock(folder))


def test_the_list_may_lie_in_the_folder(folder: Path) -> None:
    (folder / "SHA256SUMS").write_bytes(subprocess.check_output(["sha256sum", *FILES], cwd=folder))
    assert statuses(ki.verify(folder, folder / "SHA256SUMS").files) == ALL_OK


# Folders as download programs make them


def cached(home: Path, files: dict[str, bytes], commit: str) -> Path:
    """Lay files out as the Hub's cache does: links into blobs, which are named by their digests."""
    cache = home / "hub" / "models--acme--tiny-kimi"
    snapshot = cache / "snapshots" / commit
    for path, data in files.items():
        blob = cache / "blobs" / (sha256(data) if path.endswith(".safetensors") else git_sha1(data))
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        (snapshot / path).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / path).symlink_to(os.path.relpath(blob, (snapshot / path).parent))
    return snapshot


def test_a_snapshot_of_the_cache_and_its_blobs(hub: LoopbackHub, clean_environment: Path) -> None:
    commit = ki.open_checkpoint(REPO, endpoint=hub.endpoint).commit or ""
    snapshot = cached(clean_environment, FILES, commit)
    assert statuses(ki.verify(snapshot, REPO, endpoint=hub.endpoint).files) == ALL_OK
    # The name of a blob says what it should be, and is no evidence of what it is.
    blob = (snapshot / shard_name(1)).resolve()
    assert blob.name == sha256(FILES[shard_name(1)])
    blob.write_bytes(flipped(FILES[shard_name(1)], 500))
    (snapshot / shard_name(2)).resolve().rename(
        snapshot.parent.parent / "blobs" / f"{sha256(FILES[shard_name(2)])}.incomplete"
    )
    (snapshot / shard_name(3)).resolve().unlink()
    found = ki.verify(snapshot, REPO, endpoint=hub.endpoint)
    assert statuses(found.files) == ALL_OK | {
        shard_name(1): "mismatch",
        shard_name(2): "unfinished",
        shard_name(3): "missing",
    }
    (wrong,) = found.having("mismatch")
    command = f"hf download {REPO} {shard_name(1)} --revision {commit} --force-download"
    assert wrong.command == f"HF_ENDPOINT={hub.endpoint} {command}"


def test_an_unfinished_download_of_the_hubs_client(folder: Path, hub: LoopbackHub) -> None:
    (folder / shard_name(6)).unlink()
    kept = f".cache/huggingface/download/x7Yz=.{sha256(FILES[shard_name(6)])}.incomplete"
    write(folder, {kept: b"12345", ".cache/huggingface/download/other.incomplete": b""})
    found = ki.verify(folder, REPO, endpoint=hub.endpoint)
    assert statuses(found.files) == ALL_OK | {shard_name(6): "unfinished"}
    (wrong,) = found.having("unfinished")
    assert wrong.note == "5 bytes of it have been fetched"


def test_a_file_that_aria2_still_has_notes_on(folder: Path, hub: LoopbackHub) -> None:
    """It has its full size from the beginning."""
    write(folder, {f"{shard_name(1)}.aria2": b"notes"})
    found = ki.verify(folder, REPO, endpoint=hub.endpoint)
    assert {file.path for file in found.having("unfinished")} == {shard_name(1), f"{shard_name(1)}.aria2"}
    assert not found.ok


def test_a_partial_file_beside_a_whole_one_is_named(folder: Path, hub: LoopbackHub) -> None:
    write(folder, {f"{shard_name(1)}.part": b"half"})
    found = ki.verify(folder, REPO, endpoint=hub.endpoint)
    assert statuses(found.files) == ALL_OK | {f"{shard_name(1)}.part": "unfinished"}


def test_links_to_folders_and_in_a_circle(tmp_path: Path, hub: LoopbackHub) -> None:
    real = write(tmp_path / "real", FILES)
    folder = tmp_path / "model"
    folder.mkdir()
    for path in FILES:
        if "/" not in path:
            (folder / path).symlink_to(real / path)
    (folder / "docs").symlink_to(real / "docs")
    (folder / "circle").symlink_to(folder)
    assert statuses(ki.verify(folder, REPO, endpoint=hub.endpoint).files) == ALL_OK
    (folder / shard_name(1)).unlink()
    (folder / shard_name(1)).symlink_to(shard_name(1))
    (wrong,) = ki.verify(folder, REPO, endpoint=hub.endpoint).having("unreadable")
    assert "symbolic links" in (wrong.note or "")


# Another revision than expected


def test_another_revision_of_other_headers_is_recognised(
    check: Check, folder: Path, request: pytest.FixtureRequest
) -> None:
    if "sha256sums" in request.node.name:
        pytest.skip("such a list tells nothing of sizes and headers")
    write(folder, {shard_name(number): shard(number, columns=96) for number in range(1, SHARDS + 1)})
    found = check(folder)
    assert len(found.having("size-differs")) == SHARDS
    assert f"{SHARDS} of {SHARDS} weight files are whole, with headers of another revision or build" in found.notes


def test_another_revision_of_the_same_headers_is_recognised(check: Check, folder: Path) -> None:
    write(folder, small_kimi(seed=1))
    found = check(folder)
    assert len(found.having("mismatch")) == SHARDS + 1  # config.json
    assert any(note.startswith("every weight file has its size and another content") for note in found.notes)


def test_the_commit_that_the_folder_tells_of(folder: Path, hub: LoopbackHub) -> None:
    commit = ki.open_checkpoint(REPO, endpoint=hub.endpoint).commit
    note = f"{'d' * 40}\n{sha256(b'')}\n1.0\n".encode()
    write(folder, {".cache/huggingface/download/config.json.metadata": note, "config.json": b"{}"})
    found = ki.verify(folder, REPO, endpoint=hub.endpoint)
    assert f"by the notes of the Hub's client the folder is of commit {'d' * 40}, not {commit}" in found.notes
    write(folder, FILES)  # it is a hint, and nothing where all is well
    assert not [
        note for note in ki.verify(folder, REPO, endpoint=hub.endpoint, journal=False).notes if "commit" in note
    ]


# What fetches a file again


def test_commands_that_fetch_a_file_again(folder: Path, hub: LoopbackHub) -> None:
    (folder / shard_name(1)).write_bytes(flipped(FILES[shard_name(1)], -1))
    (folder / shard_name(2)).unlink()
    found = ki.verify(folder, REPO, endpoint=hub.endpoint)
    commands = {file.path: file.command for file in found.files if file.command}
    base = f"hf download {REPO} {{}} --revision {found.commit} --local-dir {folder}"
    expected = {
        shard_name(1): base.format(shard_name(1)) + " --force-download",
        shard_name(2): base.format(shard_name(2)),
    }
    assert commands == {path: f"HF_ENDPOINT={hub.endpoint} {command}" for path, command in expected.items()}
    with LoopbackHub([Repository(REPO, FILES)]) as other:
        manifest = ki.lock(REPO, endpoint=other.endpoint)
    # A manifest does not say where its repository is.
    assert {file.path: file.command for file in ki.verify(folder, manifest).files if file.command} == expected


def test_the_command_of_modelscope(folder: Path) -> None:
    (folder / shard_name(1)).unlink()
    with LoopbackModelScope({REPO: FILES}, revisions=["v1"]) as site:
        (missing,) = ki.verify(folder, f"ms://{REPO}@v1", endpoint=site.endpoint).having("missing")
        manifest = ki.lock(f"ms://{REPO}@v1", endpoint=site.endpoint)
    assert missing.command is None, "its client asks no other site"
    (missing,) = ki.verify(folder, manifest).having("missing")
    expected = f"modelscope download --model {REPO} {shard_name(1)} --revision v1 --local_dir {folder}"
    assert missing.command == expected


def test_a_strangers_names_make_no_other_command(tmp_path: Path) -> None:
    files = tuple(ki.ManifestFile(path=path, bytes=1, sha256="0" * 64) for path in ("a; rm -rf ~", "-x", "$(id)"))
    (tmp_path / "model").mkdir()
    manifest = ki.Manifest(source="acme/tiny", commit="e" * 40, files=files)
    commands = {file.path: file.command for file in ki.verify(tmp_path / "model", manifest).files}
    assert commands["-x"] is None
    for path in ("a; rm -rf ~", "$(id)"):
        assert f"hf download acme/tiny '{path}' --revision" in (commands[path] or "")
    for source in ("acme/tiny; id", "--flag/x", "./acme/tiny", "acme", ""):
        found = ki.verify(tmp_path / "model", ki.Manifest(source=source, commit="e" * 40, files=files))
        assert not [file.command for file in found.files if file.command]


# Resume


def test_a_stopped_run_goes_on_where_it_was(folder: Path, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    class EnoughError(Exception):
        pass

    done: list[str] = []
    enough = threading.Event()

    def three_and_a_slow_one(task: DigestTask, tell: Any) -> Digested:
        if len(done) >= 3 or task.path.endswith(shard_name(4)):
            enough.wait(60)
        return digest_file(task, tell)

    def stop_after_three(progress: ki.Progress) -> None:
        if progress.phase == "hashing" and progress.path:
            done.append(progress.path)
            if len(done) == 3:
                enough.set()
                raise EnoughError

    with monkeypatch.context() as patched:
        patched.setattr("kimi_inspect.digesting.digest_file", three_and_a_slow_one)
        with pytest.raises(EnoughError):
            ki.verify(folder, REPO, endpoint=hub.endpoint, max_workers=1, progress=stop_after_three)
    found = ki.verify(folder, REPO, endpoint=hub.endpoint, max_workers=1)
    assert found.ok
    remembered = {file.path for file in found.files if file.remembered}
    assert {path for path in done if FILES[path]} <= remembered
    assert found.bytes_remembered == sum(len(FILES[path]) for path in remembered)
    assert found.bytes_hashed == sum(map(len, FILES.values())) - found.bytes_remembered > 0


def test_a_change_that_keeps_size_and_mtime_needs_no_journal(folder: Path, hub: LoopbackHub) -> None:
    assert ki.verify(folder, REPO, endpoint=hub.endpoint).ok
    path = folder / shard_name(1)
    status = path.stat()
    with path.open("r+b") as file:
        file.write(flipped(FILES[path.name], 1000))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    second = ki.verify(folder, REPO, endpoint=hub.endpoint)
    assert (second.bytes_hashed, second.bytes_remembered) == (0, sum(map(len, FILES.values())))
    assert any("not read again" in note for note in second.notes)
    third = ki.verify(folder, REPO, endpoint=hub.endpoint, journal=False)
    assert [file.path for file in third.having("mismatch")] == [path.name]
    # Any other change is seen with the journal too.
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert ki.verify(folder, REPO, endpoint=hub.endpoint).having("mismatch")


def test_a_read_only_folder_and_one_that_is_replaced(folder: Path, hub: LoopbackHub) -> None:
    before = sorted(path.name for path in folder.rglob("*"))
    assert ki.verify(folder, REPO, endpoint=hub.endpoint).ok
    assert sorted(path.name for path in folder.rglob("*")) == before
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)  # keeps mtimes
    shutil.rmtree(folder)
    copy.rename(folder)
    assert ki.verify(folder, REPO, endpoint=hub.endpoint).bytes_remembered == 0


# The result


def test_json_by_the_contract(folder: Path, hub: LoopbackHub) -> None:
    (folder / shard_name(1)).unlink()
    write(folder, {"alien.txt": b"alien"})
    found = ki.verify(folder, REPO, endpoint=hub.endpoint)
    document = json.loads(json.dumps(found.to_dict()))
    assert document["schema"] == "kimi-inspect/verify/1"
    assert {"folder", "against", "commit", "quick", "ok", "bytes_hashed", "files"} <= document.keys()
    assert all(
        {"path", "status", "algorithm", "expected", "actual", "bytes"} <= file.keys() for file in document["files"]
    )
    assert (document["ok"], document["folder"], document["against"]) == (False, str(folder), REPO)
    assert Verification.from_dict(document) == found
    newer = document | {"later": 1, "files": [file | {"later": 2} for file in document["files"]]}
    assert Verification.from_dict(newer) == found
    older = {key: value for key, value in document.items() if key not in ("notes", "bytes_remembered")}
    assert Verification.from_dict(older).ok is False
    assert pickle.loads(pickle.dumps(found)) == found  # noqa: S301


@pytest.mark.parametrize("status", list(Status))
def test_which_statuses_are_no_failure(status: Status) -> None:
    fine = {Status.OK, Status.NOT_HASHED, Status.EXTRA}
    weights = ki.FileVerification(path="a.safetensors", status=status)
    small = ki.FileVerification(path="a.json", status=status)
    assert weights.ok == (status in fine)
    assert bool(small) == (status in fine | {Status.DIGEST_UNKNOWN})


def test_progress_in_bytes_from_the_callers_thread(folder: Path, hub: LoopbackHub) -> None:
    seen: list[ki.Progress] = []
    threads = set()

    def note(progress: ki.Progress) -> None:
        seen.append(progress)
        threads.add(threading.get_ident())

    ki.verify(folder, REPO, endpoint=hub.endpoint, progress=note)
    hashing = [item for item in seen if item.phase == "hashing"]
    total = sum(map(len, FILES.values()))
    assert threads == {threading.get_ident()}
    assert {(item.unit, item.total) for item in hashing} == {("bytes", total)}
    done = [item.done for item in hashing]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, total)
    assert {item.path for item in hashing} - {None} == {*FILES}


# One file


@pytest.mark.parametrize("form", ["{}", "sha256:{}", " {}\n"])
@pytest.mark.parametrize("case", [str.lower, str.upper])
def test_verify_file(form: str, case: Callable[[str], str], folder: Path) -> None:
    path = folder / shard_name(1)
    good = case(sha256(FILES[path.name]))
    found = ki.verify_file(path, form.format(good))
    assert found
    assert (found.status, found.algorithm, found.actual) == ("ok", "sha256", good.lower())
    assert (found.path, found.bytes) == (str(path), len(FILES[path.name]))
    assert not ki.verify_file(str(path), form.format("0" * 64))


def test_verify_file_by_gits_id(folder: Path) -> None:
    git = subprocess.run(["git", "hash-object", folder / "config.json"], stdout=subprocess.PIPE, text=True, check=True)
    assert ki.verify_file(folder / "config.json", git.stdout).status == "ok"
    wrong = ki.verify_file(folder / "tokenizer_config.json", git.stdout)
    assert (wrong.status, wrong.algorithm) == ("mismatch", "git-sha1")
    assert wrong.actual == git_sha1(FILES["tokenizer_config.json"])


@pytest.mark.parametrize(
    "digest", ["", "0" * 63, "0" * 65, "0" * 128, f"{'0' * 32}-12", "g" * 64, "md5:" + "0" * 32, "*" * 64]
)
def test_what_is_no_digest(digest: str, folder: Path) -> None:
    with pytest.raises(ki.InvalidSourceError, match="no digest"):
        ki.verify_file(folder / "config.json", digest)


def test_verify_file_of_nothing_and_of_a_folder(folder: Path) -> None:
    assert ki.verify_file(folder / "none", "0" * 64).status == "missing"
    assert ki.verify_file(folder, "0" * 64).status == "unreadable"


def test_the_real_gemma_by_its_published_digest(gemma: Path) -> None:  # noqa: F811
    assert ki.verify_file(gemma, GEMMA_SHA256).status == "ok"
    listed = ki.Manifest(
        source="x", files=(ki.ManifestFile(path=GEMMA, bytes=gemma.stat().st_size, sha256=GEMMA_SHA256),)
    )
    found = ki.verify(gemma.parent, listed)
    assert found.ok
    assert (len(found.files), found.bytes_hashed) == (1, gemma.stat().st_size)
    assert ki.lock(gemma, journal=False).files[0].sha256 == GEMMA_SHA256
