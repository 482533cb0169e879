"""A real model file, out of a wheel on PyPI: tensor by tensor what safetensors makes of it, from disk and over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.resources import files
from math import prod
from pathlib import Path

import pytest
from safetensors import deserialize

import kimi_inspect as ki
from kimi_inspect.testing import HollowFile, LoopbackHub


@pytest.fixture(scope="module")
def model() -> bytes:
    return files("static_model").joinpath("model", "model.safetensors").read_bytes()


@contextmanager
def on_disk(model: bytes, folder: Path) -> Iterator[str]:
    (folder / "model.safetensors").write_bytes(model)
    yield str(folder / "model.safetensors")


@contextmanager
def in_a_folder(model: bytes, folder: Path) -> Iterator[str]:
    with on_disk(model, folder):
        yield str(folder)


@contextmanager
def over_http(model: bytes, _folder: Path) -> Iterator[str]:
    with LoopbackHub(plain_files={"model.safetensors": model}) as hub:
        yield hub.plain_url("model.safetensors")


@pytest.mark.parametrize("place", [on_disk, in_a_folder, over_http])
def test_every_tensor_is_what_safetensors_says(
    place: Callable[[bytes, Path], AbstractContextManager[str]], model: bytes, tmp_path: Path
) -> None:
    with place(model, tmp_path) as source:
        checkpoint = ki.open_checkpoint(source)
    found = {
        info.name: (info.dtype, info.stored_shape, model[info.byte_range.begin : info.byte_range.end])
        for info in checkpoint.tensors
    }
    theirs = dict(deserialize(model))  # type: ignore[no-untyped-call]
    assert theirs
    assert found == {name: (t["dtype"], tuple(t["shape"]), bytes(t["data"])) for name, t in theirs.items()}
    assert len(checkpoint.tensors) == len(theirs)
    assert checkpoint.complete
    assert [finding for finding in checkpoint.findings if finding.severity is not ki.Severity.INFO] == []


def test_the_report_adds_up_to_the_file(model: bytes) -> None:
    report = ki.inspect({"model.safetensors": HollowFile(model)})
    theirs = dict(deserialize(model))  # type: ignore[no-untyped-call]
    data_bytes = sum(len(tensor["data"]) for tensor in theirs.values())
    assert report.file_bytes == len(model)
    assert (report.header_bytes, report.tensor_bytes) == (len(model) - data_bytes, data_bytes)
    assert report.padding_bytes == report.missing_bytes == report.unread_bytes == 0
    assert report.parameters == sum(prod(tensor["shape"]) for tensor in theirs.values())
    assert {row.encoding: row.stored_bytes for row in report.by_encoding()} == {
        tensor["dtype"].lower(): len(tensor["data"]) for tensor in theirs.values()
    }


def test_only_the_header_is_read(model: bytes, tmp_path: Path) -> None:
    with on_disk(model, tmp_path) as source:
        checkpoint = ki.open_checkpoint(source)
    assert checkpoint.traffic.bytes_read < len(model) / 2
    assert checkpoint.traffic.requests == 0


@pytest.mark.parametrize("lost", [1, 640_000, 640_001])
def test_a_download_that_stopped_early_says_how_much_is_lost(model: bytes, lost: int) -> None:
    checkpoint = ki.open_checkpoint({"model.safetensors": HollowFile(model[:-lost])})
    (finding,) = (finding for finding in checkpoint.findings if finding.code == "truncated")
    names = [info.name for info in checkpoint.tensors if info.byte_range.end > len(model) - lost]
    assert checkpoint.shards[0].missing_bytes == lost
    assert (finding.tensor, finding.count, finding.expected, finding.actual) == (
        names[0],
        len(names),
        len(model),
        len(model) - lost,
    )
    assert not checkpoint.complete
