from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from contracts.checks import REPO, check_numbers, weights
from huggingface_hub import constants

from kimi_inspect import ByteSource, open_checkpoint
from kimi_inspect.errors import (
    InvalidSourceError,
    KimiInspectError,
    NoCheckpointError,
    OfflineError,
    SourceFileNotFoundError,
)
from kimi_inspect.locating import locate
from kimi_inspect.remote import HubRepository, PlainFiles
from kimi_inspect.sources import LocalFolder, MappedFiles
from kimi_inspect.testing import HollowFile, LoopbackHub

HUB = "https://huggingface.co"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SECRET = "WordThatNobodyElseMayRead"

Files = dict[str, HollowFile]


@pytest.mark.parametrize(
    ("source", "name", "set_name", "member"),
    [
        ("a/b", "a/b", None, None),
        ("a/b@v1", "a/b@v1", None, None),
        (f"a/b@{COMMIT}", f"a/b@{COMMIT}", None, None),
        ("a/b@refs/pr/1", "a/b@refs/pr/1", None, None),
        ("a/b:UD-Q4_K_XL", "a/b", "UD-Q4_K_XL", None),
        ("a/b@v1:sub/model", "a/b@v1", "sub/model", None),
        ("moonshotai/Kimi-K3.1-Pro", "moonshotai/Kimi-K3.1-Pro", None, None),
        ("hf://a/b", "a/b", None, None),
        ("hf://a/b@v1", "a/b@v1", None, None),
        ("hf://a/b@v1:x", "a/b@v1", "x", None),
        ("hf://models/a/b", "a/b", None, None),
        (f"{HUB}/a/b", "a/b", None, None),
        (f"{HUB}/a/b/", "a/b", None, None),
        ("HTTPS://HuggingFace.co/a/b", "a/b", None, None),
        ("https://hf.co/a/b", "a/b", None, None),
        (f"{HUB}/a/b?library=transformers#files", "a/b", None, None),
        (f"{HUB}/a/b/tree/v1", "a/b@v1", None, None),
        (f"{HUB}/a/b/tree/v1/", "a/b@v1", None, None),
        (f"{HUB}/a/b/tree/v1/sub/folder", "a/b@v1", None, None),
        (f"{HUB}/a/b/tree/refs%2Fpr%2F1", "a/b@refs/pr/1", None, None),
        (f"{HUB}/a/b/blob/main/README.md", "a/b@main", None, None),
        (f"{HUB}/a/b/blob/main/sub/x.safetensors", "a/b@main", None, "sub/x.safetensors"),
        (f"{HUB}/a/b/blob/main/x%20y.gguf", "a/b@main", None, "x y.gguf"),
        (f"{HUB}/a/b/resolve/refs%2Fpr%2F1/x.safetensors?download=true", "a/b@refs/pr/1", None, "x.safetensors"),
        (f"https://user:{SECRET}@huggingface.co/a/b?token={SECRET}", "a/b", None, None),
    ],
)
def test_repositories(source: str, name: str, set_name: str | None, member: str | None) -> None:
    location = locate(source)
    assert isinstance(location.store, HubRepository)
    assert location.store._endpoint == HUB
    assert (location.store.source, location.set_name, location.member) == (name, set_name, member)


@pytest.mark.parametrize(
    "source",
    [
        "",
        " ",
        "a",
        "gpt2",
        "a/b/c",
        "a/b@",
        "a/b:",
        "a/b@x y",
        "a /b",
        "a/--b",
        "a/b..c",
        "@v1",
        "/../a:b://",
        "hf://",
        "hf://a",
        "hf://datasets/a/b",
        f"{HUB}",
        f"{HUB}/",
        f"{HUB}/a",
        f"{HUB}/datasets/a/b",
        f"{HUB}/a/b/discussions/1",
        f"{HUB}/a%2F..%2Fc/b",
        "http://",
        "https://example.com/a/b",
        "https://example.com/x.bin",
        "https://[bad/x.safetensors",
        "https://example.com:port/x.safetensors",
        "https://example.com:99999/x.safetensors",
        "nosuchscheme://a/b",
        "\x1b[2J/b",
    ],
)
def test_strings_that_name_nothing(source: str) -> None:
    with pytest.raises(InvalidSourceError) as caught:
        locate(source)
    assert isinstance(caught.value, ValueError)
    # The advice: what would be a source.
    assert "owner/name" in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "source",
    [
        f"https://user:{SECRET}@example.com/x.bin",
        f"https://{SECRET}@example.com/x.bin",
        f"https://example.com/x.bin?token={SECRET}",
        f"https://example.com/x.bin#{SECRET}",
        f"HTTPS://user:{SECRET}@example.com/x.bin",
        f"http://user:{SECRET}/x.safetensors",
        f"ftp://user:{SECRET}@example.com/x.safetensors",
        f"s3://user:{SECRET}@bucket/x.safetensors",
        f"hf://user:{SECRET}@a/b",
        f"hf://a/b?token={SECRET}",
        f"a/b?token={SECRET}",
        f"user:{SECRET}@a/b",
        f"{HUB}/a?token={SECRET}",
        f"{HUB}/a/b/tree/x/y?token={SECRET}",
        f"https://user:{SECRET}@example.com/x.safetensors?token={SECRET}",
    ],
)
def test_a_secret_in_a_source_is_not_shown(source: str) -> None:
    shown: list[object] = []
    try:
        location = locate(source)
        shown += [location, location.store.source]
    except KimiInspectError as error:
        shown += [str(error), repr(error), vars(error)]
    assert SECRET not in f"{shown}"


@pytest.mark.parametrize("source", ["a/b@v1", "hf://a/b@v1", f"{HUB}/a/b/tree/v1", f"{HUB}/a/b/blob/v1/x.gguf"])
@pytest.mark.parametrize(("revision", "agrees"), [("v1", True), (None, True), ("v2", False), ("main", False)])
def test_two_revisions(source: str, revision: str | None, agrees: bool) -> None:
    if agrees:
        assert locate(source, revision=revision).store.source == "a/b@v1"
        return
    with pytest.raises(InvalidSourceError, match="two revisions") as caught:
        locate(source, revision=revision)
    assert (caught.value.expected, caught.value.actual) == ("v1", revision)


def test_a_revision_beside_the_source() -> None:
    assert locate("a/b", revision="v2").store.source == "a/b@v2"


@pytest.mark.parametrize(
    ("source", "endpoint"),
    [
        ("./" + "a" * 300, None),
        ("./x\0", None),
        (Path("~nosuchuser/x"), None),
        ("http://a..b/x.safetensors", None),
        (f"http://{'a' * 64}/x.safetensors", None),
        ("http://127.0.0.1:1/\ud800.safetensors", None),
        ("a/b@\ud800", "http://127.0.0.1:1"),
        ("a/b", "http://[::1"),
        ("a/b", "http://127.0.0.1:port"),
        ("a/b", "http://127.0.0.1:99999"),
        ("a/b", "huggingface.co"),
        ("a/b", "ftp://huggingface.co"),
    ],
    ids=itertools.count(),
)
def test_what_can_never_be_is_our_error_at_once(pauses: list[float], source: str | Path, endpoint: str | None) -> None:
    with pytest.raises(KimiInspectError):
        open_checkpoint(source, endpoint=endpoint)
    assert pauses == []


def set_endpoint(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """Do what HF_ENDPOINT does when the Hub's client is imported."""
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")


class TestEndpoint:
    def test_the_one_given(self, hub: LoopbackHub, kimi: Files) -> None:
        check_numbers(open_checkpoint(REPO, endpoint=hub.endpoint + "/"), kimi)

    def test_the_one_of_the_settings(self, hub: LoopbackHub, kimi: Files, monkeypatch: pytest.MonkeyPatch) -> None:
        set_endpoint(monkeypatch, hub.endpoint)
        check_numbers(open_checkpoint(REPO), kimi)

    @pytest.mark.parametrize("how", ["setting", "argument"])
    @pytest.mark.parametrize("rest", ["", "/tree/main", "/blob/main/{shard}", "/resolve/main/{shard}"])
    def test_an_address_there(
        self, hub: LoopbackHub, kimi: Files, monkeypatch: pytest.MonkeyPatch, how: str, rest: str
    ) -> None:
        source = f"{hub.endpoint}/{REPO}{rest}".format(shard=list(weights(kimi))[2])
        if how == "setting":
            set_endpoint(monkeypatch, hub.endpoint)
        checkpoint = open_checkpoint(source, endpoint=hub.endpoint if how == "argument" else None)
        check_numbers(checkpoint, kimi)
        assert checkpoint.source == (f"{REPO}@main" if rest else REPO)
        assert {one.origin for one in hub.log} == {"hub", "cdn"}

    def test_a_pasted_address_is_its_own_endpoint(self) -> None:
        store = locate(f"{HUB}/a/b", endpoint="http://127.0.0.1:1").store
        assert isinstance(store, HubRepository)
        assert store._endpoint == HUB


@pytest.fixture
def folder(tmp_path: Path, kimi: Files) -> Path:
    """The small Kimi on disk, hollow."""
    folder = tmp_path / "home" / "kimi"
    folder.mkdir(parents=True)
    for path, file in kimi.items():
        file.write_to(folder / path)
    return folder


class TestLocal:
    @pytest.mark.parametrize(
        "write",
        [
            str,
            Path,
            lambda folder: f"{folder}/",
            lambda _: ".",
            lambda _: "./",
            lambda _: "../kimi",
            lambda _: "~/kimi",
            lambda folder: folder / "model-00003-of-000008.safetensors",
            lambda folder: str(folder / "model-00003-of-000008.safetensors"),
            lambda _: "model-00003-of-000008.safetensors",
            lambda _: "./model-00003-of-000008.safetensors",
            lambda _: Path("model-00003-of-000008.safetensors"),
            lambda _: "~/kimi/model-00003-of-000008.safetensors",
        ],
    )
    def test_a_folder_or_a_file(
        self,
        folder: Path,
        kimi: Files,
        monkeypatch: pytest.MonkeyPatch,
        write: Callable[[Path], str | Path],
    ) -> None:
        monkeypatch.chdir(folder)
        monkeypatch.setenv("HOME", str(folder.parent))
        checkpoint = open_checkpoint(write(folder))
        check_numbers(checkpoint, kimi)
        assert (checkpoint.commit, checkpoint.findings) == (None, ())
        assert checkpoint.traffic.requests == 0
        assert {shard.url for shard in checkpoint.shards} == {None}

    def test_a_path_is_never_a_repository(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        Path("a/b").mkdir(parents=True)
        assert isinstance(locate(Path("a/b")).store, LocalFolder)
        assert isinstance(locate("./a/b").store, LocalFolder)
        assert isinstance(locate("a/b").store, HubRepository)

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(SourceFileNotFoundError, match="no such"):
            open_checkpoint(tmp_path / "nothing")

    def test_a_file_that_is_not_there(self, folder: Path) -> None:
        with pytest.raises(SourceFileNotFoundError) as caught:
            open_checkpoint(folder / "nothing.safetensors")
        assert "nothing.safetensors" in str(caught.value)

    def test_a_folder_without_weights(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_bytes(b"{}")
        with pytest.raises(NoCheckpointError, match="no safetensors or GGUF file"):
            open_checkpoint(tmp_path)


def test_a_mapping(kimi: Files) -> None:
    class Own:
        def __init__(self, file: HollowFile) -> None:
            self.file = file
            self.size = file.size

        def read(self, begin: int, end: int) -> bytes:
            return self.file.read(begin, end)

    sources: dict[str, ByteSource] = {path: Own(file) for path, file in kimi.items()}
    assert isinstance(locate(sources).store, MappedFiles)
    checkpoint = open_checkpoint(sources)
    check_numbers(checkpoint, kimi)
    assert (checkpoint.commit, checkpoint.findings) == (None, ())
    assert checkpoint.architecture == "kimi_k31"


class TestPlain:
    def test_with_its_siblings(self, kimi: Files) -> None:
        with LoopbackHub(plain_files={f"k 3/{path}": file for path, file in weights(kimi).items()}) as hub:
            address = hub.plain_url("k 3/model-00003-of-000008.safetensors")
            checkpoint = open_checkpoint(address)
            assert (len(hub.log), checkpoint.traffic.requests) == (len(weights(kimi)), len(hub.log))
        check_numbers(checkpoint, kimi)
        assert (checkpoint.findings, checkpoint.commit, checkpoint.source) == ((), None, address)
        assert [shard.url for shard in checkpoint.shards] == [hub.plain_url(f"k 3/{path}") for path in weights(kimi)]

    def test_with_credentials(self, kimi: Files) -> None:
        with LoopbackHub(plain_files=weights(kimi)) as hub:
            bare = hub.plain_url("model-00003-of-000008.safetensors")
            checkpoint = open_checkpoint(bare.replace("://", f"://user:{SECRET}@") + f"?token={SECRET}")
            check_numbers(checkpoint, kimi)
            # Whoever writes them wants them sent, with every part of the set.
            assert all(SECRET in one.target for one in hub.log)
            assert all((one.authorization or "").startswith("Basic ") for one in hub.log)
        assert checkpoint.source == bare
        assert SECRET not in f"{checkpoint!r}{checkpoint.shards}{checkpoint.findings}"

    def test_what_is_no_set(self) -> None:
        store = locate("http://127.0.0.1:1/a/x.safetensors").store
        assert isinstance(store, PlainFiles)
        assert [file.path for file in store.list_files()] == ["x.safetensors"]


@pytest.fixture
def cached(clean_environment: Path, kimi: Files) -> Path:
    """The small Kimi in the Hub's cache, as its client lays it out; the snapshot is returned."""
    repository = clean_environment / "hub" / f"models--{REPO.replace('/', '--')}"
    snapshot = repository / "snapshots" / COMMIT
    for folder in (repository / "blobs", repository / "refs", snapshot):
        folder.mkdir(parents=True)
    for path, file in kimi.items():
        file.write_to(repository / "blobs" / file.sha256)
        (snapshot / path).symlink_to(Path("..", "..", "blobs", file.sha256))
    for name in ("main", "v1"):
        (repository / "refs" / name).write_text(COMMIT)
    return snapshot


class TestHubCache:
    @pytest.mark.parametrize("part", ["", "model-00003-of-000008.safetensors"])
    def test_a_snapshot_is_a_folder_with_a_commit(self, cached: Path, kimi: Files, part: str) -> None:
        checkpoint = open_checkpoint(cached / part)
        check_numbers(checkpoint, kimi)
        assert checkpoint.commit == COMMIT

    def test_a_folder_of_such_a_name_elsewhere_is_none(self, tmp_path: Path, cached: Path) -> None:
        for name in (COMMIT, f"snapshots/{COMMIT[:-1]}", f"snapshots/{COMMIT}0"):
            elsewhere = tmp_path / name
            elsewhere.mkdir(parents=True)
            assert locate(elsewhere).store.commit is None
        assert locate(cached).store.commit == COMMIT

    @pytest.mark.parametrize(
        "source",
        [REPO, f"{REPO}@v1", f"{REPO}@{COMMIT}", f"{REPO}:model", f"hf://{REPO}", f"{HUB}/{REPO}/tree/main"],
    )
    def test_offline(self, cached: Path, kimi: Files, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
        assert cached.is_dir()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        checkpoint = open_checkpoint(source)
        check_numbers(checkpoint, kimi)
        assert checkpoint.commit == COMMIT
        assert checkpoint.traffic.requests == 0

    @pytest.mark.parametrize("source", ["acme/none", f"{REPO}@v2", f"{REPO}@{'f' * 40}"])
    def test_offline_without_a_snapshot(self, cached: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
        assert cached.is_dir()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(OfflineError, match="HF_HUB_OFFLINE") as caught:
            open_checkpoint(source)
        assert caught.value.file == source.partition("@")[0]
        assert not caught.value.retryable

    def test_offline_with_a_snapshot_that_holds_no_weights(self, cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        for shard in cached.glob("*.safetensors"):
            shard.unlink()
        with pytest.raises(OfflineError, match="lacks these weights"):
            open_checkpoint(REPO)

    def test_offline_with_a_part_of_the_files(self, cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As the client notes it: it knows all files of the commit, and has not been asked for all."""
        trees = cached.parent.parent / "trees"
        trees.mkdir()
        names = sorted(path.name for path in cached.glob("*.safetensors"))
        (trees / f"{COMMIT}.json").write_text(json.dumps(names))
        for name in names[1:]:
            (cached / name).unlink()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert [shard.path for shard in open_checkpoint(REPO, files=names[0]).shards] == names[:1]
        whole = open_checkpoint(REPO)
        assert not whole.complete
        assert "shard-missing" in {finding.code for finding in whole.findings}

    @pytest.mark.parametrize("revision", ["../main", "..", "v\0", "no-such", "f" * 40, "refs/pr/1"])
    def test_offline_by_a_revision_that_is_not_kept(
        self, cached: Path, monkeypatch: pytest.MonkeyPatch, revision: str
    ) -> None:
        assert cached.is_dir()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises((OfflineError, InvalidSourceError)):
            open_checkpoint(REPO, revision=revision)

    def test_the_cache_is_not_asked_while_the_hub_can_be(self, cached: Path, hub: LoopbackHub, kimi: Files) -> None:
        assert cached.is_dir()
        checkpoint = open_checkpoint(REPO, endpoint=hub.endpoint)
        check_numbers(checkpoint, kimi)
        assert checkpoint.commit != COMMIT

    def test_offline_reaches_no_plain_address(self, kimi: Files, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        with LoopbackHub(plain_files=weights(kimi)) as hub:
            with pytest.raises(OfflineError):
                open_checkpoint(hub.plain_url("model-00003-of-000008.safetensors"))
            assert hub.log == ()

    def test_offline_by_the_variable(self, cached: Path) -> None:
        assert cached.is_dir()
        script = (
            "import kimi_inspect as ki\n"
            f"print(ki.open_checkpoint({REPO!r}).commit)\n"
            "try:\n    ki.open_checkpoint('acme/none')\n"
            "except ki.OfflineError as error:\n    print(error.file)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert done.stdout.split() == [COMMIT, "acme/none"]


@pytest.mark.parametrize("source", [7, None, 1.5, b"a/b", ["a/b"], ("a/b",), {"a/b"}, object()])
def test_what_is_no_source_at_all(source: Any) -> None:
    with pytest.raises(InvalidSourceError, match=f"expected a string, a path.*{type(source).__name__}"):
        locate(source)
    with pytest.raises(InvalidSourceError, match="no source"):
        open_checkpoint(source)


class BytesPath:
    def __fspath__(self) -> bytes:
        return b"a/b"


def test_a_path_of_bytes_is_none() -> None:
    with pytest.raises(InvalidSourceError, match="BytesPath"):
        locate(cast("Any", BytesPath()))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"model_type": "x"}, "config.*write it to a file, or pass its path"),
        ({"architectures": ["X"], "hidden_size": 8}, "config.*write it to a file, or pass its path"),
        ({"model.safetensors": b"x"}, "none of byte sources.*str to bytes"),
        ({"model.safetensors": "model.safetensors"}, "none of byte sources.*str to str"),
        ({7: HollowFile(b"")}, "none of byte sources.*int to HollowFile"),
        ({"a.gguf": HollowFile(b""), "b.gguf": None}, "none of byte sources.*str to NoneType"),
    ],
)
def test_mappings_of_anything_else(source: Any, words: str) -> None:
    with pytest.raises(InvalidSourceError, match=words):
        locate(source)


def test_a_config_may_be_a_name_of_byte_sources() -> None:
    assert isinstance(locate({"model_type": HollowFile(b"")}).store, MappedFiles)
