"""Hollow files: true first bytes, then holes up to the full length.

A checkpoint of a terabyte is told apart by its headers alone, so a stand-in needs only those: the bodies are holes that
cost neither memory nor disk. The safetensors layout (8-byte little-endian header length, JSON, data section) is written
here from the format's own description and shares no code with any reader.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, Protocol, TypeVar

__all__ = [
    "DTYPE_BITS",
    "PIECE_BYTES",
    "REAL_DIGEST_LIMIT",
    "Files",
    "HasBytes",
    "HollowFile",
    "TensorSpec",
    "dealt",
    "header_json",
    "hollow_checkpoint",
    "hollow_from_header",
    "hollow_safetensors",
    "in_data_order",
    "index_json",
    "index_lines",
    "small_files",
]

# Bits of one element of every dtype that safetensors 0.8.0 knows, under the name used in the header.
DTYPE_BITS: Mapping[str, int] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}

# Up to this many bytes a file is hashed whole, holes included (about 40 ms); beyond it the digest is a stand-in.
REAL_DIGEST_LIMIT = 1 << 26

PIECE_BYTES = 256 * 1024
_ZEROS = bytes(PIECE_BYTES)


class HollowFile:
    """A read-only file: the bytes of `head`, then zeros up to `size` bytes.

    `head` may be a function, called once when the bytes (or, with no `size`, the length) are first asked for.
    Without `size` the file is its head and nothing else. Positions are in bytes and ranges half-open. `values` says
    whose weights the holes stand for: of giants with equal heads those of other values have other digests.
    """

    def __init__(self, head: bytes | Callable[[], bytes], size: int | None = None, *, values: str = "") -> None:
        self._source = head
        self._size = size
        self.values = values
        if isinstance(head, bytes) and size is not None and size < len(head):
            raise ValueError(f"size: expected at least the {len(head)} bytes of the head, got {size}")

    def __repr__(self) -> str:
        """Name the length only: the head may be long, or not built yet."""
        known = self._size is not None or isinstance(self._source, bytes)
        return f"HollowFile(size={self.size if known else '?'})"

    @cached_property
    def head(self) -> bytes:
        """The real bytes at the start of the file."""
        return self._source if isinstance(self._source, bytes) else self._source()

    @cached_property
    def size(self) -> int:
        """Length of the whole file in bytes, holes included."""
        return len(self.head) if self._size is None else self._size

    @property
    def digest_is_real(self) -> bool:
        """Whether `sha256` is the digest of the content (else a stand-in)."""
        return self.size <= REAL_DIGEST_LIMIT or self.size == len(self.head)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the content, 64 hex digits; for a hollow giant a *stand-in*.

        A file above `REAL_DIGEST_LIMIT` bytes that has holes is never hashed whole. Its stand-in is the SHA-256 of the
        head followed by the decimal size and `values`: equal for equal files, different for different ones, but not
        what `sha256sum` says of the file.
        """
        digest = hashlib.sha256(self.head)
        if self.digest_is_real:
            for piece in self.pieces(len(self.head), self.size):
                digest.update(piece)
        else:
            digest.update(b"%d%s" % (self.size, self.values.encode()))
        return digest.hexdigest()

    def read(self, begin: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of [`begin`, `end`), clipped at the end of the file."""
        return b"".join(self.pieces(begin, self.size if end is None else end))

    def pieces(self, begin: int, end: int, piece_bytes: int = PIECE_BYTES) -> Iterator[memoryview]:
        """Yield [`begin`, `end`), clipped at the end of the file, in views of at most `piece_bytes` bytes.

        Holes are views of one shared block of zeros, so that a giant is never materialised.
        """
        head, zeros = memoryview(self.head), memoryview(_ZEROS)
        step = min(piece_bytes, PIECE_BYTES)
        end = min(end, self.size)
        while begin < end:
            stop = min(begin + step, end)
            if begin < len(head):
                stop = min(stop, len(head))
                yield head[begin:stop]
            else:
                yield zeros[: stop - begin]
            begin = stop

    def resized(self, size: int) -> HollowFile:
        """Return the same file cut, or lengthened with holes, to `size` bytes."""
        return HollowFile(self.head[:size], size, values=self.values)

    def write_to(self, path: str | os.PathLike[str]) -> None:
        """Write the file to `path`, sparse where the file system can: the holes are never written."""
        with Path(path).open("wb") as stream:
            stream.write(self.head)
            stream.truncate(self.size)


Files = Mapping[str, HollowFile | bytes]
"""The content of a repository, path to file; plain bytes are a file as they stand."""


class HasBytes(Protocol):
    """A tensor of any format."""

    @property
    def stored_bytes(self) -> int:
        """Length in the data section, in bytes."""


_Stored = TypeVar("_Stored", bound=HasBytes)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor as a safetensors header declares it: `dtype` in the header's spelling, `shape` outermost first."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def stored_bytes(self) -> int:
        """Length in the data section, in bytes.

        Raises ValueError when the elements do not fill whole bytes (an odd count of F4, say).
        """
        bits = DTYPE_BITS[self.dtype] * prod(self.shape)
        if bits % 8:
            raise ValueError(f"{self.name}: {self.dtype} of shape {self.shape} is {bits} bits, no whole bytes")
        return bits // 8


def header_json(tensors: Iterable[TensorSpec], *, metadata: Mapping[str, str] | None = None) -> tuple[bytes, int]:
    """Return a safetensors header as compact JSON, unframed and unpadded, and the bytes of the data section.

    Offsets run from zero without a gap, in the order given; `__metadata__` comes first when there is one.
    """
    entries: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    begin = 0
    for tensor in tensors:
        if tensor.name in entries:
            raise ValueError(f"{tensor.name}: declared twice")
        end = begin + tensor.stored_bytes
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": (begin, end)}
        begin = end
    return json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode(), begin


def hollow_from_header(header: bytes, payload: int, *, pad_to: int = 8, values: str = "") -> HollowFile:
    """Frame `header` as a safetensors file with `payload` bytes of holes for data.

    The header is taken as it is, so that malformed ones can be written too; blanks pad it to a multiple of `pad_to`
    bytes. The length word counts the padding but not its own 8 bytes.
    """
    padded = header + b" " * (-len(header) % pad_to)
    head = struct.pack("<Q", len(padded)) + padded
    return HollowFile(head, len(head) + payload, values=values)


def hollow_safetensors(
    tensors: Iterable[TensorSpec], *, metadata: Mapping[str, str] | None = None, pad_to: int = 8
) -> HollowFile:
    """Return a safetensors file that declares `tensors`, in this order, over a body of holes."""
    header, payload = header_json(tensors, metadata=metadata)
    return hollow_from_header(header, payload, pad_to=pad_to)


def index_lines(names: Iterable[str], shard: str) -> bytes:
    """Return the `weight_map` lines that put every one of `names` into `shard`, each with its comma and line end."""
    return "".join(f'    {json.dumps(name)}: "{shard}",\n' for name in names).encode()


def index_json(lines: Iterable[bytes], total_size: int) -> bytes:
    """Return a `model.safetensors.index.json` of the given `weight_map` lines; `total_size` is in tensor bytes."""
    parts = [b'{\n  "metadata": {\n    "total_size": %d\n  },\n  "weight_map": {\n' % total_size, *filter(None, lines)]
    parts[-1] = parts[-1].removesuffix(b",\n")
    # One join: a full-size index is 60 MB, and each further copy of it is felt.
    return b"".join([*parts, b"\n  }\n}\n"])


def small_files(config: Mapping[str, Any]) -> dict[str, HollowFile]:
    """Return the few small files beside the weights: config.json, and a token README and tokenizer configuration."""
    tokenizer = {"model_max_length": 1048576, "tokenizer_class": "TikTokenTokenizer"}
    return {
        "README.md": HollowFile(b"---\nlibrary_name: transformers\n---\n\nTrue headers over hollow weights.\n"),
        "config.json": HollowFile(_pretty(config)),
        "tokenizer_config.json": HollowFile(_pretty(tokenizer)),
    }


def dealt(tensors: Sequence[_Stored], count: int) -> list[list[_Stored]]:
    """Deal the tensors out, in their order, to `count` parts of about the same bytes; a part may come out empty."""
    total = sum(tensor.stored_bytes for tensor in tensors)
    parts: list[list[_Stored]] = [[] for _ in range(count)]
    begin = 0
    for tensor in tensors:
        # By its middle: a part then begins, and ends, at most half a tensor off its share.
        parts[(begin + tensor.stored_bytes // 2) * count // total].append(tensor)
        begin += tensor.stored_bytes
    return parts


def in_data_order(tensors: Iterable[TensorSpec]) -> list[TensorSpec]:
    """Return the tensors as the standard writer puts them: by dtype, the last that it knows first, then by name."""
    rank = {dtype: number for number, dtype in enumerate(DTYPE_BITS)}
    return sorted(tensors, key=lambda tensor: (-rank[tensor.dtype], tensor.name))


def hollow_checkpoint(
    shards: Mapping[str, Sequence[TensorSpec]],
    config: Mapping[str, Any],
    *,
    metadata: Mapping[str, str] | None = None,
    pad_to: int = 8,
) -> dict[str, HollowFile]:
    """Return a whole repository, path to file: the shards, their index, config.json and a few small files.

    `shards` maps each shard's path to its tensors in the order of their data. The headers are as in
    `hollow_safetensors`.
    """

    def index() -> bytes:
        total = sum(tensor.stored_bytes for tensors in shards.values() for tensor in tensors)
        return index_json((index_lines((t.name for t in tensors), path) for path, tensors in shards.items()), total)

    files = small_files(config)
    files |= {path: hollow_safetensors(tensors, metadata=metadata, pad_to=pad_to) for path, tensors in shards.items()}
    files["model.safetensors.index.json"] = HollowFile(index)
    return files


def _pretty(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=2).encode() + b"\n"
