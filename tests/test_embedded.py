"""A second file inside the first: what begins in bytes that no tensor owns, at the cost of a few bytes, or of none."""

from __future__ import annotations

import json
import struct

import pytest

from kimi_inspect import Checkpoint, open_checkpoint
from kimi_inspect.embedded import find_embedded
from kimi_inspect.errors import TransportError
from kimi_inspect.findings import finding
from kimi_inspect.header import Header
from kimi_inspect.planning import run
from kimi_inspect.safetensors import read_header
from kimi_inspect.testing import (
    GgufTensor,
    HollowFile,
    LoopbackHub,
    Repository,
    TensorSpec,
    hollow_gguf,
    hollow_safetensors,
)

INNER = hollow_safetensors([TensorSpec("a", "F32", (4,))])
KINDS = {
    "GGUF": b"GGUF\x03\0\0\0",
    "safetensors": INNER.read(),
    "ZIP": b"PK\x03\x04\x14\0",
    "ELF": b"\x7fELF\x02\x01",
    "MZ": b"MZ\x90\0",
    "pickle": b"\x80\x04\x95",
    "PDF": b"%PDF-1.7",
    "gzip": b"\x1f\x8b\x08\0",
}
OTHER = [b"\0" * 40, b"", b"hello", b"\x80\x09", b"\xff" * 8 + b'{"a":1}', struct.pack("<Q", 999) + b'{"a"', b"G"]
ALONE = "model.safetensors"


def codes(files: dict[str, HollowFile]) -> list[str]:
    return [item.code for item in open_checkpoint(files).findings if item.code != "unclassified"]


def with_gap(inside: bytes) -> HollowFile:
    """Two tensors of 64 bytes, and these bytes between them."""
    size = len(inside)
    entries = {
        "lm_head.weight": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]},
        "norm.weight": {"dtype": "F32", "shape": [16], "data_offsets": [64 + size, 128 + size]},
    }
    header = json.dumps(entries).encode()
    return HollowFile(struct.pack("<Q", len(header)) + header + bytes(64) + inside + bytes(64))


def followed(by: bytes) -> HollowFile:
    return HollowFile(hollow_safetensors([TensorSpec("norm.weight", "F32", (16,))]).read() + by)


def in_gguf(padding: int, inside: bytes) -> HollowFile:
    """A tensor of 4 bytes, which padding to 32 follows, and then a file behind so many bytes of that."""
    whole = hollow_gguf([GgufTensor("output_norm.weight", "F32", (1,))], {"general.architecture": "llama"}).read()
    return HollowFile(whole[: len(whole) - 32 + 4 + padding] + inside + bytes(64))


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_behind_the_last_tensor(kind: str) -> None:
    file = followed(KINDS[kind])
    (found,) = open_checkpoint({ALONE: file}).findings
    assert (found.code, found.file, found.count) == ("embedded-file", ALONE, 1)
    assert found.actual == file.size - len(KINDS[kind])
    assert kind in found.message


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_between_two_tensors(kind: str) -> None:
    assert codes({ALONE: with_gap(KINDS[kind])}) == ["embedded-file"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padding", [0, 28])
def test_a_file_in_a_gguf_file(kind: str, padding: int) -> None:
    assert codes({"x.gguf": in_gguf(padding, KINDS[kind])}) == ["embedded-file"]


@pytest.mark.parametrize("inside", OTHER)
def test_other_bytes_are_what_they_were(inside: bytes) -> None:
    assert codes({ALONE: followed(inside)}) == ["trailing-bytes"] * bool(inside)
    assert codes({ALONE: with_gap(inside)}) == ["gap"] * bool(inside)


def test_a_gap_and_what_follows_are_told_apart() -> None:
    both = HollowFile(with_gap(bytes(32)).read() + KINDS["PDF"])
    assert codes({ALONE: both}) == ["gap", "embedded-file"]


def parsed(file: HollowFile) -> Header:
    return run(read_header(file.size, file=ALONE), file.read)


def test_few_bytes_are_read_and_none_of_a_sound_file() -> None:
    asked: list[tuple[int, int]] = []

    def read(begin: int, end: int) -> bytes:
        asked.append((begin, end))
        return bytes(end - begin)

    entries = {
        f"norm{number}": {"dtype": "F32", "shape": [4], "data_offsets": [number * 32, number * 32 + 16]}
        for number in range(50)
    }
    text = json.dumps(entries).encode()
    holed = parsed(HollowFile(struct.pack("<Q", len(text)) + text + bytes(50 * 32)))
    assert find_embedded(read, holed, ALONE, holed.findings) == list(holed.findings)
    assert len(asked) == 8
    assert all(end - begin <= 16 for begin, end in asked)
    asked.clear()
    sound = parsed(INNER)
    other = [finding("bad-padding", ALONE, "")]
    assert find_embedded(read, sound, ALONE, other) == other
    assert asked == []


def test_bytes_that_cannot_be_had_leave_what_is_known() -> None:
    def read(_begin: int, _end: int) -> bytes:
        raise TransportError("gone", file=ALONE)

    header = parsed(followed(KINDS["ZIP"]))
    assert find_embedded(read, header, ALONE, header.findings) == list(header.findings)


def test_on_the_hub_it_costs_one_more_read() -> None:
    def opened(file: HollowFile) -> Checkpoint:
        with LoopbackHub([Repository("acme/x", {ALONE: file})]) as hub:
            return open_checkpoint("acme/x", endpoint=hub.endpoint, token=False)

    sound, odd = opened(followed(b"")), opened(followed(KINDS["ZIP"]))
    assert [item.code for item in odd.findings] == ["embedded-file"]
    assert 1 <= odd.traffic.requests - sound.traffic.requests <= 2
    assert odd.traffic.bytes_read - sound.traffic.bytes_read <= 100
