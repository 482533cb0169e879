"""Manifests: right from every kind of source, written whole, and read back as they were."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from verified import REPO, SHARDS, flipped, git_sha1, header_sha256, sha256, shard_name, small_kimi, write

import kimi_inspect as ki
from kimi_inspect import Manifest, ManifestFile
from kimi_inspect.cli import main
from kimi_inspect.remote import HubRepository
from kimi_inspect.testing import LoopbackHub, LoopbackModelScope, Repository, faults, hollow_gguf, kimi_gguf
from kimi_inspect.testing.gguf import GgufTensor

FILES = small_kimi()


def expected(files: Mapping[str, bytes], *, git: Callable[[str], bool] = lambda _: True) -> list[ManifestFile]:
    """Say what stands in a manifest, by the plainest means."""
    return [
        ManifestFile(
            path=path,
            bytes=len(data),
            sha256=sha256(data),
            git_sha1=git_sha1(data) if git(path) and not path.endswith(".safetensors") else None,
            header_sha256=header_sha256(data) if path.endswith(".safetensors") else None,
        )
        for path, data in sorted(files.items())
    ]


def test_of_the_hub() -> None:
    with LoopbackHub([Repository(REPO, FILES)]) as hub:
        commit = ki.open_checkpoint(REPO, endpoint=hub.endpoint).commit
        hub.clear_log()
        manifest = ki.lock(REPO, endpoint=hub.endpoint)
        log = hub.log
    assert (manifest.source, manifest.commit) == (REPO, commit)
    assert list(manifest.files) == expected(FILES)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", manifest.created or "")
    shards = [one for one in log if ".safetensors" in one.target and one.origin == "hub"]
    assert len(shards) == SHARDS  # one read a shard


def test_of_modelscope() -> None:
    with LoopbackModelScope({REPO: FILES}) as site:
        manifest = ki.lock(f"ms://{REPO}", endpoint=site.endpoint)
    assert (manifest.source, manifest.commit) == (f"ms://{REPO}", None)
    assert list(manifest.files) == expected(FILES, git=lambda _: False)


def test_of_a_folder(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", {**FILES, ".git/config": b"x", ".cache/huggingface/download/x.lock": b""})
    deep = write(folder, {"a/b/c/d/e/f/deep.txt": b"deep", ".gitattributes": b"attributes"})
    manifest = ki.lock(deep)
    assert manifest.source == str(folder)
    added = {"a/b/c/d/e/f/deep.txt": b"deep", ".gitattributes": b"attributes"}
    assert list(manifest.files) == expected({**FILES, **added})


def test_headers_are_hashed_whatever_their_length(tmp_path: Path) -> None:
    """Longer than the first read, as long as the file, and of GGUF with a tokenizer and padding before the data."""
    long = json.dumps({"__metadata__": {"x": "y" * 3_000_000}}).encode()
    files = {"long.safetensors": len(long).to_bytes(8, "little") + long}
    files |= {
        f"part{number}.gguf": file.head + bytes(99) for number, file in enumerate(kimi_gguf("MXFP4_MOE").values())
    }
    small = hollow_gguf([GgufTensor("token_embd.weight", "F32", (8, 4))], {"general.architecture": "llama"})
    files["tiny.gguf"] = small.read()
    manifest = ki.lock(write(tmp_path, files))
    heads = {path: len(data) - 99 for path, data in files.items() if path.startswith("part")}
    heads["tiny.gguf"] = small.size - 8 * 4 * 4
    for file in manifest.files:
        if file.path in heads:
            assert file.header_sha256 == sha256(files[file.path][: heads[file.path]]), file.path
    assert manifest.files[0].header_sha256 == sha256(files["long.safetensors"])


def test_of_a_set_and_of_globs(tmp_path: Path) -> None:
    files = {**FILES, "extra-q8.gguf": hollow_gguf([GgufTensor("a", "F32", (4,))], {}).read()}
    folder = write(tmp_path, files)
    of_set = {file.path for file in ki.lock(f"{folder}:model").files}
    assert of_set == {*FILES}
    one = ki.lock(folder / "extra-q8.gguf")
    assert [file.path for file in one.files] == ["extra-q8.gguf"]
    assert {file.path for file in ki.lock(folder, files=["*.json", "docs/*"]).files} == {
        "config.json",
        "tokenizer_config.json",
        "docs/usage.md",
    }
    with pytest.raises(ki.NoCheckpointError):
        ki.lock(folder, files="*.nothing")


def test_masked_digests_are_none() -> None:
    with LoopbackHub([Repository(REPO, FILES, gated=True)], tokens=["hf_good"]) as hub:
        masked = {file.path: file for file in ki.lock(REPO, endpoint=hub.endpoint, token=False).files}
        assert {path: file.bytes for path, file in masked.items()} == {path: len(data) for path, data in FILES.items()}
        assert (masked[shard_name(1)].sha256, masked[shard_name(1)].header_sha256) == (None, None)
        assert list(ki.lock(REPO, endpoint=hub.endpoint, token="hf_good").files) == expected(FILES)


def test_a_small_file_of_another_content_than_listed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HubRepository, "read_small", lambda _, file, __: bytes(file.size or 0))
    with (
        LoopbackHub([Repository(REPO, FILES)]) as hub,
        pytest.raises(ki.SourceError, match="not the one that the listing"),
    ):
        ki.lock(REPO, endpoint=hub.endpoint)


@pytest.mark.parametrize("name", ["config.json", shard_name(2)])
def test_a_listing_of_another_size_is_refused(name: str) -> None:
    """No true copy would fit a manifest that holds it."""
    with LoopbackHub([Repository(REPO, FILES)]) as hub:
        hub.play(faults.wrong_listed_size(name), times=None)
        with pytest.raises(ki.SourceError, match="not as long as the listing tells") as caught:
            ki.lock(REPO, endpoint=hub.endpoint)
    assert (caught.value.file, caught.value.actual) == (name, len(FILES[name]))


@pytest.mark.parametrize("name", ["model.safetensors.incomplete", "model.gguf.aria2", "x.part"])
def test_a_folder_with_an_unfinished_download_is_refused(name: str, tmp_path: Path) -> None:
    """Unless files are chosen: others, or one that is called so for good."""
    folder = write(tmp_path, {**FILES, name: b"half"})
    with pytest.raises(ki.CheckpointError, match="unfinished download"):
        ki.lock(folder)
    assert [file.path for file in ki.lock(folder, files=["config.json", name]).files] == sorted(["config.json", name])


def test_folders_that_are_links_are_locked(tmp_path: Path) -> None:
    """A circle is not followed."""
    folder = write(tmp_path / "model", FILES)
    write(tmp_path / "elsewhere", {"w.safetensors": FILES[shard_name(1)], "deep/x.txt": b"x"})
    (folder / "unet").symlink_to("../elsewhere")
    for circle in ("self", "docs/up", "unet/deep/back"):
        (folder / circle).symlink_to(folder)
    manifest = ki.lock(folder)
    assert {file.path for file in manifest.files} == {*FILES, "unet/w.safetensors", "unet/deep/x.txt"}
    (tmp_path / "elsewhere" / "more.txt").write_text("x")
    assert [file.path for file in ki.verify(folder, manifest).having("extra")] == ["unet/more.txt"]


def test_a_dangling_link_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, FILES)
    (folder / "more.safetensors").symlink_to("nowhere")
    with pytest.raises(ki.SourceError, match="a link to nothing"):
        ki.lock(folder)


def test_offline_it_is_the_cache_that_is_locked(monkeypatch: pytest.MonkeyPatch, clean_environment: Path) -> None:
    """The manifest does not say that the Hub has these digests: nobody has asked it."""
    cache = clean_environment / "hub" / "models--acme--tiny-kimi"
    commit = "c" * 40
    snapshot = write(cache / "snapshots" / commit, FILES)
    write(cache / "refs", {"main": commit.encode()})
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    manifest = ki.lock(REPO)
    assert (manifest.source, manifest.commit) == (str(snapshot), None)
    assert list(manifest.files) == expected(FILES)


def test_an_audit_takes_what_lock_makes(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", FILES)
    manifest = ki.lock(folder)
    write(folder, {shard_name(1): flipped(FILES[shard_name(1)], 20)})
    found = ki.audit(folder, manifest)
    assert found.verdict != ki.Verdict.IDENTICAL
    with LoopbackHub([Repository(REPO, FILES)]) as hub:
        assert ki.audit(REPO, manifest, endpoint=hub.endpoint).verdict == ki.Verdict.IDENTICAL


def test_json_there_and_back(tmp_path: Path) -> None:
    manifest = ki.lock(write(tmp_path, FILES))
    document = json.loads(manifest.to_json())
    assert Manifest.from_dict(document) == Manifest.from_json(manifest.to_json()) == manifest
    assert document["schema"] == "kimi-inspect/manifest/1"
    assert set(document) == {"schema", "source", "commit", "created", "files"}
    assert all(set(file) == {"path", "bytes", "sha256", "git_sha1", "header_sha256"} for file in document["files"])


def test_a_journal_spares_a_second_reading(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", FILES)
    seen: list[ki.Progress] = []
    first = ki.lock(folder)
    second = ki.lock(folder, progress=seen.append)
    assert first.files == second.files
    assert not [item for item in seen if item.phase == "hashing"]
    ki.lock(folder, journal=False, progress=seen.append)
    assert [item for item in seen if item.phase == "hashing"][-1].done == sum(map(len, FILES.values()))


# The command line


def test_command_writes_a_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, output = write(tmp_path / "model", FILES), tmp_path / "model" / "kimi.lock.json"
    for _ in range(2):  # what it writes is no part of what it says, and is written over
        assert main(["lock", str(folder), "-o", str(output)]) == 0
        assert list(Manifest.from_json(output.read_bytes()).files) == expected(FILES)
    total = sum(map(len, FILES.values()))
    assert capsys.readouterr().out == f"{len(FILES)} files, {total:,} bytes: {output}\n" * 2
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []
    assert output.stat().st_mode & 0o777 == (folder / "config.json").stat().st_mode & 0o777


def test_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lock", str(write(tmp_path, FILES)), "--json"]) == 0
    assert list(Manifest.from_json(capsys.readouterr().out).files) == expected(FILES)


def test_command_writes_what_sha256sum_reads(tmp_path: Path) -> None:
    folder, output = write(tmp_path / "model", FILES), tmp_path / "SHA256SUMS"
    with LoopbackHub([Repository(REPO, FILES)]) as hub:
        assert main(["lock", REPO, "--endpoint", hub.endpoint, "-o", str(output), "--sha256sums"]) == 0
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", output], cwd=folder, check=True)
    (folder / shard_name(1)).write_bytes(flipped(FILES[shard_name(1)], -1))
    done = subprocess.run(["sha256sum", "--check", "--status", output], cwd=folder, check=False)
    assert done.returncode == 1


def test_command_without_a_place_to_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path, FILES)
    assert main(["lock", str(folder)]) == 2
    assert "give -o FILE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("output", "problem"), [("none/x.json", "No such file or directory"), ("kept", "Is a directory")]
)
def test_command_says_before_it_works_that_it_cannot_write(
    output: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kept").mkdir()
    with LoopbackHub([Repository(REPO, FILES)]) as hub:
        assert main(["lock", REPO, "--endpoint", hub.endpoint, "-o", str(tmp_path / output)]) == 2
    assert f"cannot be written: {problem}" in capsys.readouterr().err
    assert not hub.log
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_list_without_some_digests_is_not_written() -> None:
    manifest = Manifest(
        source="x", files=(ManifestFile(path="a", bytes=1), ManifestFile(path="b", bytes=1, sha256="0" * 64))
    )
    with pytest.raises(ki.InvalidSourceError, match="no SHA-256 is known of 1 file;"):
        manifest.checksums()
