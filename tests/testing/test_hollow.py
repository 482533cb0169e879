from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from kimi_inspect.testing import (
    DTYPE_BITS,
    HollowFile,
    TensorSpec,
    hollow_checkpoint,
    hollow_from_header,
    hollow_safetensors,
)
from kimi_inspect.testing.hollow import PIECE_BYTES, REAL_DIGEST_LIMIT


@given(st.binary(max_size=50), st.integers(0, 50), st.integers(0, 120), st.integers(0, 120), st.integers(1, 20))
def test_reads_like_the_bytes_it_stands_for(head: bytes, holes: int, begin: int, end: int, piece: int) -> None:
    file = HollowFile(head, len(head) + holes)
    whole = head + bytes(holes)
    assert file.read() == whole
    assert file.read(begin, end) == whole[begin:end]
    pieces = list(file.pieces(begin, end, piece))
    assert b"".join(pieces) == whole[begin:end]
    assert all(0 < len(one) <= piece for one in pieces)


def test_a_giant_is_read_without_being_made() -> None:
    file = HollowFile(b"head", 10**15)
    assert file.read(10**15 - 3, 10**15 + 5) == b"\0\0\0"
    assert len(next(file.pieces(0, 10**15))) == 4
    assert len(next(file.pieces(4, 10**15))) == PIECE_BYTES


def test_a_built_head_is_built_once_and_late() -> None:
    calls: list[int] = []

    def build() -> bytes:
        calls.append(1)
        return b"abc"

    file = HollowFile(build)
    assert repr(file) == "HollowFile(size=?)"
    assert not calls
    assert (file.size, file.head, file.read(1)) == (3, b"abc", b"bc")
    assert len(calls) == 1


def test_a_file_shorter_than_its_head_is_refused() -> None:
    with pytest.raises(ValueError, match="at least the 4 bytes"):
        HollowFile(b"head", 3)


@pytest.mark.parametrize("size", [4, 5, PIECE_BYTES + 4, REAL_DIGEST_LIMIT])
def test_small_files_have_their_real_digest(size: int) -> None:
    file = HollowFile(b"head", size)
    assert file.digest_is_real
    assert file.sha256 == hashlib.sha256(b"head".ljust(size, b"\0")).hexdigest()


def test_giants_have_a_stand_in_that_tells_them_apart() -> None:
    size = REAL_DIGEST_LIMIT + 1
    giant = HollowFile(b"head", size)
    assert not giant.digest_is_real
    assert giant.sha256 == HollowFile(b"head", size).sha256
    assert len({giant.sha256, HollowFile(b"heap", size).sha256, HollowFile(b"head", size + 1).sha256}) == 3


def test_resized() -> None:
    file = HollowFile(b"head", 10)
    assert file.resized(3).read() == b"hea"
    assert file.resized(6).read() == b"head\0\0"


def test_header_is_compact_padded_and_without_gaps() -> None:
    tensors = [
        TensorSpec("b", "F32", (2, 3)),
        TensorSpec("a", "F4", (4,)),
        TensorSpec("s", "U8", ()),
        TensorSpec("z", "I8", (0,)),
    ]
    file = hollow_safetensors(tensors, metadata={"format": "pt"})
    (length,) = struct.unpack("<Q", file.head[:8])
    text = file.head[8:]
    assert length == len(text)
    assert length % 8 == 0
    assert text.rstrip(b" ") == (
        b'{"__metadata__":{"format":"pt"},'
        b'"b":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},'
        b'"a":{"dtype":"F4","shape":[4],"data_offsets":[24,26]},'
        b'"s":{"dtype":"U8","shape":[],"data_offsets":[26,27]},'
        b'"z":{"dtype":"I8","shape":[0],"data_offsets":[27,27]}}'
    )
    assert file.size == 8 + length + 27


def test_a_header_may_be_anything() -> None:
    file = hollow_from_header(b"{]", 5, pad_to=1)
    assert file.read() == struct.pack("<Q", 2) + b"{]" + bytes(5)


def test_what_cannot_be_stored_is_refused() -> None:
    with pytest.raises(ValueError, match="no whole bytes"):
        hollow_safetensors([TensorSpec("odd", "F4", (3,))])
    with pytest.raises(ValueError, match="declared twice"):
        hollow_safetensors([TensorSpec("a", "U8", (1,)), TensorSpec("a", "U8", (1,))])


def test_the_reference_reader_accepts_every_dtype(tmp_path: Path) -> None:
    # Eight elements fill whole bytes at any width; the reader wants F4's last extent even and no more.
    tensors = [TensorSpec(f"t{number}", dtype, (2, 8)) for number, dtype in enumerate(DTYPE_BITS)]
    path = tmp_path / "model.safetensors"
    hollow_safetensors(tensors, metadata={"format": "pt"}).write_to(path)
    with safe_open(path, framework="numpy") as reader:
        assert reader.metadata() == {"format": "pt"}
        read = {name: reader.get_slice(name) for name in reader.keys()}  # noqa: SIM118 - it is no dict
        assert {name: one.get_dtype() for name, one in read.items()} == {one.name: one.dtype for one in tensors}


def test_a_checkpoint_of_given_tensors() -> None:
    shards = {"x-1.safetensors": [TensorSpec("a", "U8", (3,))], "x-2.safetensors": [TensorSpec("b", "F16", (2,))]}
    files = hollow_checkpoint(shards, {"model_type": "m"})
    index = json.loads(files["model.safetensors.index.json"].read())
    assert index == {"metadata": {"total_size": 7}, "weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}
    assert json.loads(files["config.json"].read()) == {"model_type": "m"}
    assert set(files) == {*shards, "README.md", "config.json", "model.safetensors.index.json", "tokenizer_config.json"}
