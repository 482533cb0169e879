"""Headers that are kept: a second look reads none, and no damage or rival can make it tell wrong numbers."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import msgspec
import numpy as np
import pytest
from contracts.checks import CONFIG, LOOKS, REPO, TOKEN, check_numbers, usual_requests
from gguf_files import ARRAY, STRING, Tensor, Value, gguf_file

import kimi_inspect.caching
from kimi_inspect import Checkpoint, open_checkpoint
from kimi_inspect.caching import MAGIC, HeaderCache
from kimi_inspect.cli import main
from kimi_inspect.errors import GatedRepositoryError, HeaderTooLargeError
from kimi_inspect.gguf import read_gguf_header
from kimi_inspect.header import Header
from kimi_inspect.names import Names
from kimi_inspect.planning import run
from kimi_inspect.safetensors import read_header
from kimi_inspect.sources import ListedFile
from kimi_inspect.testing import (
    Files,
    HollowFile,
    LoopbackHub,
    Repository,
    TensorSpec,
    faults,
    hollow_from_header,
    hollow_safetensors,
    kimi_gguf,
)
from kimi_inspect.values import LongArray

ORIGIN = "https://hub.example"
TWO = (Tensor("token_embd.weight", (8, 4)), Tensor("blk.0.attn_q.weight", (32, 2), "Q8_0"))
ODD = [
    *TWO,
    Tensor("blk.0.new.weight", (64,), number=57, nbytes=96),
    Tensor("n" * 64, (8,)),
    Tensor("blk.0.far.weight", (8,), offset=4096),
]
PAIRS = [
    ("general.architecture", Value(STRING, "llama")),
    ("general.architecture", Value(STRING, "qwen3")),
    ("tokens", Value(ARRAY, (STRING, ["ab"] * 1025))),
    ("nested", Value(ARRAY, (ARRAY, [(4, [1, 2]), (5, [-3] * 1025)]))),
    ("big", Value(10, 2**64 - 1)),
    ("yes", Value(7, value=True)),
    ("third", Value(6, 0.1)),
    ("odd", Value(STRING, b"\xff\xfe")),
]
GGUF = gguf_file(ODD, PAIRS)
SAFETENSORS = hollow_safetensors([TensorSpec("a", "F32", (2, 3)), TensorSpec("b", "F4", (8,))], metadata={"k": "é"})
NEW_TYPE = hollow_from_header(b'{"__metadata__":{"k":1},"a":{"dtype":"F99","shape":[7],"data_offsets":[0,9]}}', 9)

HEADERS: dict[str, tuple[str, bytes]] = {
    "safetensors": ("x.safetensors", SAFETENSORS.read()),
    "new type": ("x.safetensors", NEW_TYPE.read()),
    "no tensors": ("x.safetensors", hollow_safetensors([]).read()),
    "cut": ("x.safetensors", SAFETENSORS.read()[:-20]),
    "gguf": ("x.gguf", GGUF),
    "gguf, no tensors": ("x.gguf", gguf_file([], PAIRS[2:3])),
    "gguf, cut": ("x.gguf", GGUF[:-40]),
    "version 1": ("x.gguf", gguf_file(TWO, version=1, alignment=64, pairs=[("general.alignment", Value(4, 64))])),
    "big-endian": ("x.gguf", gguf_file(TWO, PAIRS, order=">")),
}


@pytest.fixture(autouse=True)
def no_cache(clean_environment: Path) -> Path:
    """Keep headers, in the home that the test has of its own; return where."""
    return clean_environment / "assets" / "kimi_inspect" / "headers" / "v1"


@pytest.fixture
def folder(no_cache: Path) -> Path:
    return no_cache


@pytest.fixture
def cache(tmp_path: Path) -> HeaderCache:
    (tmp_path / "kept").mkdir()
    return HeaderCache(tmp_path / "kept", ORIGIN)


def parsed(path: str, data: bytes) -> Header:
    plan: Any = read_gguf_header if path.endswith(".gguf") else read_header
    header: Header = run(plan(len(data), file=path), lambda begin, end: data[begin:end])
    return header


def listed(data: bytes, **changes: Any) -> ListedFile:
    return attrs.evolve(ListedFile(path="x", size=len(data), sha256="a" * 64), **changes)


def told(value: Any) -> Any:
    """Return what can be compared in place of an object with columns, types of columns and values included."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.tolist()
    if isinstance(value, bytes | str | int | float | None):
        return type(value), value
    if isinstance(value, list | tuple):
        return type(value), [told(item) for item in value]
    if isinstance(value, dict):
        return [(key, told(item)) for key, item in value.items()]
    # What names have in common beside themselves need not be kept.
    names = ["blob", "ends"] if isinstance(value, Names) else [field.name for field in attrs.fields(type(value))]
    return type(value), [told(getattr(value, name)) for name in names]


def seen(checkpoint: Checkpoint) -> Any:
    """Return all that a checkpoint says but for what it cost."""
    fields = attrs.asdict(checkpoint, recurse=False)
    del fields["traffic"]
    return {name: told(value) for name, value in fields.items() if name != "tensors"}, told(checkpoint.tensors.columns)


def kept(folder: Path) -> dict[str, bytes]:
    return {item.name: item.read_bytes() for item in folder.iterdir()} if folder.exists() else {}


# ---- one entry


@pytest.mark.parametrize(("path", "data"), HEADERS.values(), ids=HEADERS)
class TestOneEntry:
    def test_what_is_kept_comes_back(self, cache: HeaderCache, path: str, data: bytes) -> None:
        header = parsed(path, data)
        cache.put(listed(data), header)
        again = cache.get(listed(data), max_header_bytes=10**6)
        assert told(again) == told(header)

    @pytest.mark.parametrize("changes", [{"sha256": "b" * 64}, {"size": 7}, {"sha256": None}, {"size": None}], ids=str)
    def test_another_file(self, cache: HeaderCache, path: str, data: bytes, changes: dict[str, Any]) -> None:
        cache.put(listed(data), parsed(path, data))
        assert cache.get(listed(data, **changes), max_header_bytes=10**6) is None
        cache.put(listed(data, **changes), parsed(path, data))
        assert len(kept(cache.folder)) == (2 if changes == {"sha256": "b" * 64} else 1)

    def test_another_origin_and_another_path(self, cache: HeaderCache, path: str, data: bytes) -> None:
        cache.put(listed(data), parsed(path, data))
        assert cache.get(listed(data, path="y/z"), max_header_bytes=10**6) is not None
        assert attrs.evolve(cache, origin="http://other").get(listed(data), max_header_bytes=10**6) is None

    def test_no_longer_header_than_is_wanted(self, cache: HeaderCache, path: str, data: bytes) -> None:
        header = parsed(path, data)
        cache.put(listed(data), header)
        assert cache.get(listed(data), max_header_bytes=header.header_bytes) is not None
        assert cache.get(listed(data), max_header_bytes=header.header_bytes - 1) is None


def test_what_would_not_come_back_is_not_kept(cache: HeaderCache) -> None:
    pairs = [("t", Value(ARRAY, (4, [number] * 1025))) for number in (1, 2)]
    for data in (gguf_file(TWO, pairs), gguf_file(TWO, [("x", Value(6, float("nan")))])):
        header = parsed("x.gguf", data)
        file = listed(data, sha256=f"{len(data):064x}")
        cache.put(file, header)
        again = cache.get(file, max_header_bytes=10**6)
        assert again is None or repr(told(again)) == repr(told(header))


def test_a_small_file_is_kept_under_its_own_id_alone(cache: HeaderCache) -> None:
    file = ListedFile(path="config.json", size=2, blob_id="9e26dfeeb6e641a33dae4961196235bdb965b21b")
    cache.put_blob(file, b"[]")
    cache.put_blob(attrs.evolve(file, blob_id=None), b"{}")
    assert kept(cache.folder) == {}
    cache.put_blob(file, b"{}")
    assert cache.get_blob(attrs.evolve(file, path="y")) == b"{}"
    assert cache.get_blob(attrs.evolve(file, blob_id="0" * 40)) is None
    assert cache.get_blob(attrs.evolve(file, blob_id=None)) is None
    assert attrs.evolve(cache, origin="http://other").get_blob(file) is None


SMALL = {name: HEADERS[name] for name in ("safetensors", "new type", "gguf, no tensors", "version 1")}


@pytest.mark.parametrize(("path", "data"), SMALL.values(), ids=SMALL)
class TestDamage:
    @pytest.fixture
    def entry(self, cache: HeaderCache, path: str, data: bytes) -> Path:
        cache.put(listed(data), parsed(path, data))
        (entry,) = cache.folder.iterdir()
        return entry

    def check_dropped(self, cache: HeaderCache, entry: Path, content: bytes, data: bytes) -> None:
        entry.write_bytes(content)
        assert cache.get(listed(data), max_header_bytes=10**6) is None
        assert not entry.exists()

    def test_every_byte(self, cache: HeaderCache, entry: Path, data: bytes) -> None:
        whole = entry.read_bytes()
        for place in range(len(whole)):
            for bits in (1, 0xFF):
                damaged = bytes([*whole[:place], whole[place] ^ bits, *whole[place + 1 :]])
                self.check_dropped(cache, entry, damaged, data)

    def test_every_length(self, cache: HeaderCache, entry: Path, data: bytes) -> None:
        whole = entry.read_bytes()
        for length in range(len(whole)):
            self.check_dropped(cache, entry, whole[:length], data)
        self.check_dropped(cache, entry, whole + b"\0", data)

    @pytest.mark.parametrize(
        "payload",
        [b"", b"\xc1", b"\x80", b"\x90", b"\xc0" * 100, msgspec.msgpack.encode({"key": "x"}), os.urandom(64)],
        ids=range(7),
    )
    @pytest.mark.parametrize("magic", [MAGIC, b"kimi-inspect cache 0\n", b""], ids=["ours", "older", "none"])
    def test_what_is_no_entry(self, cache: HeaderCache, entry: Path, data: bytes, payload: bytes, magic: bytes) -> None:
        self.check_dropped(cache, entry, magic + zlib.crc32(payload).to_bytes(4, "little") + payload, data)

    def test_columns_of_no_whole_numbers(self, cache: HeaderCache, entry: Path, data: bytes) -> None:
        fields = msgspec.msgpack.decode(entry.read_bytes()[len(MAGIC) + 4 :])
        for column in ("ends", "kind", "begin", "end"):
            payload = msgspec.msgpack.encode({**fields, column: fields[column] + b"\0"})
            self.check_dropped(cache, entry, MAGIC + zlib.crc32(payload).to_bytes(4, "little") + payload, data)

    def test_an_entry_in_the_place_of_another(self, cache: HeaderCache, entry: Path, data: bytes) -> None:
        entry.rename(entry.with_name("moved"))
        other = listed(data, sha256="b" * 64)
        cache.put(other, parsed("x.safetensors", hollow_safetensors([]).resized(len(data)).read()))
        (place,) = (item for item in cache.folder.iterdir() if item.name != "moved")
        entry.with_name("moved").replace(place)
        assert cache.get(other, max_header_bytes=10**6) is None


# ---- looking twice


def look(hub: LoopbackHub, source: str = REPO, **options: Any) -> Checkpoint:
    hub.clear_log()
    return open_checkpoint(source, endpoint=hub.endpoint, token=options.pop("token", False), **options)


def check_cheap(hub: LoopbackHub, checkpoint: Checkpoint) -> None:
    assert checkpoint.traffic.requests == len(hub.log) == LOOKS
    assert all("/api/models/" in one.target for one in hub.log)


SETS: dict[str, Files] = {
    "safetensors": {"model.safetensors": SAFETENSORS},
    "new type": {"model.safetensors": NEW_TYPE, "config.json": b'{"model_type": "llama"}'},
    "gguf": {"model.gguf": GGUF},
    "kimi": kimi_gguf("MXFP4_MOE", layers=5, experts=4, tokens=2000, parts=4),
}


@pytest.mark.parametrize("files", SETS.values(), ids=SETS)
def test_a_second_look_reads_no_header(files: Files) -> None:
    with LoopbackHub([Repository(REPO, files)]) as hub:
        first, second = look(hub), look(hub)
        check_cheap(hub, second)
        assert first.traffic.requests > LOOKS
        assert second.traffic.bytes_read < first.traffic.bytes_read
    assert seen(second) == seen(first)
    assert [info for info in second.tensors] == [*first.tensors]  # noqa: C416


def test_a_second_look_at_many_shards_with_a_config(hub: LoopbackHub, kimi: dict[str, HollowFile]) -> None:
    first, second = look(hub), look(hub)
    assert first.traffic.requests == usual_requests(kimi)
    check_cheap(hub, second)
    check_numbers(second, kimi)
    assert seen(second) == seen(first)
    assert second.config == first.config is not None


def test_the_same_files_elsewhere(kimi: dict[str, HollowFile]) -> None:
    with LoopbackHub([Repository(REPO, kimi), Repository("acme/mirror", kimi)]) as hub:
        first, other = look(hub), look(hub, "acme/mirror")
        check_cheap(hub, other)
        check_numbers(other, kimi)
        commit = hub.push(REPO, {**kimi, "README.md": b"# new\n"})
        moved = look(hub)
        check_cheap(hub, moved)
        assert moved.commit == commit != first.commit
        assert all(commit in (shard.url or "") for shard in moved.shards)


def test_another_hub_vouches_for_itself_alone(kimi: dict[str, HollowFile]) -> None:
    for _ in range(2):
        with LoopbackHub([Repository(REPO, kimi)]) as hub:
            assert look(hub).traffic.requests == usual_requests(kimi)
            check_cheap(hub, look(hub))


def test_a_size_that_the_listing_has_wrong(hub: LoopbackHub, kimi: dict[str, HollowFile]) -> None:
    path = "model-00002-of-000008.safetensors"
    look(hub)
    for _ in range(2):
        hub.play(faults.wrong_listed_size(path))
        checkpoint = look(hub)
        assert checkpoint.traffic.requests > LOOKS
        assert [finding.code for finding in checkpoint.findings] == ["size-differs-from-listing"]
        check_numbers(checkpoint, kimi)


def test_a_gated_repository_is_not_told_of_to_those_without_access(kimi: dict[str, HollowFile]) -> None:
    with LoopbackHub([Repository(REPO, kimi, gated="auto")], tokens=[TOKEN]) as hub:
        look(hub, token=TOKEN)
        with pytest.raises(GatedRepositoryError):
            look(hub)
        check_cheap(hub, look(hub, token=TOKEN))


def test_another_config_is_read(hub: LoopbackHub, kimi: dict[str, HollowFile]) -> None:
    look(hub)
    for config in ({"model_type": "other"}, {"model_type": "third"}):
        hub.push(REPO, {**kimi, "config.json": msgspec.json.encode(config)})
        again = look(hub)
        assert again.config == config
        assert again.traffic.requests == LOOKS + CONFIG
        assert look(hub).config == config
        assert len(hub.log) == LOOKS


def test_another_version_of_this_package_reads_anew(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    first = look(hub)
    monkeypatch.setattr(kimi_inspect.caching, "__version__", "0.0.0")
    assert look(hub).traffic.requests == first.traffic.requests


@pytest.mark.parametrize(
    "damage", [lambda data: data[:0], lambda data: data[:-1], lambda data: data[::-1]], ids=range(3)
)
def test_damaged_entries_are_read_anew(
    hub: LoopbackHub, kimi: dict[str, HollowFile], folder: Path, damage: Callable[[bytes], bytes]
) -> None:
    first = look(hub)
    whole = kept(folder)
    for name, data in whole.items():
        (folder / name).write_bytes(damage(data))
    again = look(hub)
    assert again.traffic.requests == usual_requests(kimi)
    assert seen(again) == seen(first)
    assert kept(folder) == whole


def test_entries_that_have_changed_places(hub: LoopbackHub, folder: Path) -> None:
    first = look(hub)
    whole = kept(folder)
    for name, data in zip(whole, [*whole.values()][1:] + [*whole.values()][:1], strict=True):
        (folder / name).write_bytes(data)
    assert seen(look(hub)) == seen(first)
    assert kept(folder) == whole


# ---- when it is not wanted


@pytest.mark.parametrize("full", [False, True])
def test_it_can_be_left_out(hub: LoopbackHub, kimi: dict[str, HollowFile], folder: Path, full: bool) -> None:
    if full:
        look(hub)
        for name in kept(folder):
            os.utime(folder / name, (5, 5))
    before = kept(folder)
    assert look(hub, cache=False).traffic.requests == usual_requests(kimi)
    hub.clear_log()
    assert main(["show", REPO, "--endpoint", hub.endpoint, "--no-cache", "--json"]) == 0
    assert len(hub.log) == usual_requests(kimi)
    assert kept(folder) == before
    assert {item.stat().st_mtime for item in folder.iterdir()} == {5.0} if full else not folder.exists()


def test_whole_arrays_pass_it_by() -> None:
    with LoopbackHub([Repository(REPO, {"x.gguf": GGUF})]) as hub:
        for _ in range(2):
            assert look(hub).metadata["tokens"] == LongArray("string", 1025)
            whole = look(hub, arrays=True)
            assert whole.metadata["tokens"] == ["ab"] * 1025
            assert whole.traffic.requests > LOOKS


def test_a_header_longer_than_is_wanted_is_refused_though_it_is_kept(hub: LoopbackHub) -> None:
    look(hub)
    with pytest.raises(HeaderTooLargeError):
        look(hub, max_header_bytes=100)
    check_cheap(hub, look(hub))
