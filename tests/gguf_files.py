"""GGUF files made in memory, byte by byte from the format's description; shares nothing with the parser."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["BLOCKS", "Tensor", "Value", "gguf_file"]

BLOCKS = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q8_0": (8, 32, 34), "Q2_K": (10, 256, 84), "MXFP4": (39, 32, 17)}
"""Number, elements and bytes a block, of a few types."""

FORMATS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
STRING, ARRAY = 8, 9


class Value(NamedTuple):
    """A metadata value of a type by number; that of an array is (type of its elements, elements)."""

    type: int
    value: Any


class Tensor(NamedTuple):
    """A tensor of a type by name, or of any number and size."""

    name: str
    dimensions: tuple[int, ...]
    type: str = "F32"
    number: int | None = None
    nbytes: int | None = None
    offset: int | None = None

    @property
    def size(self) -> int:
        if self.nbytes is not None:
            return self.nbytes
        _, elements, nbytes = BLOCKS[self.type]
        count = 1
        for dimension in self.dimensions:
            count *= dimension
        return count // elements * nbytes


class Writer:
    """Writes numbers and strings in one byte order and width."""

    def __init__(self, version: int, order: str) -> None:
        self.order = order
        self.length = "I" if version == 1 else "Q"

    def number(self, form: str, value: Any) -> bytes:
        return struct.pack(self.order + form, value)

    def string(self, text: str | bytes) -> bytes:
        raw = text.encode() if isinstance(text, str) else text
        return self.number(self.length, len(raw)) + raw

    def value(self, value: Value) -> bytes:
        if value.type == STRING:
            return self.string(value.value)
        if value.type == ARRAY:
            kind, items = value.value
            body = b"".join(self.value(Value(kind, item)) for item in items)
            return self.number("I", kind) + self.number(self.length, len(items)) + body
        return self.number(FORMATS[value.type], value.value)


def gguf_file(
    tensors: Sequence[Tensor] = (),
    pairs: Sequence[tuple[str, Value]] = (),
    *,
    version: int = 3,
    order: str = "<",
    alignment: int = 32,
    tail: bool = True,
) -> bytes:
    """Return a whole file; its data are bytes that say which tensor they are of. `tail` pads the last tensor too."""
    writer = Writer(version, order)
    head = b"GGUF" + writer.number("I", version)
    head += writer.number(writer.length, len(tensors)) + writer.number(writer.length, len(pairs))
    for key, value in pairs:
        head += writer.string(key) + writer.number("I", value.type) + writer.value(value)
    place, data = 0, b""
    for index, tensor in enumerate(tensors):
        offset = place if tensor.offset is None else tensor.offset
        number = BLOCKS[tensor.type][0] if tensor.number is None else tensor.number
        head += writer.string(tensor.name) + writer.number("I", len(tensor.dimensions))
        head += b"".join(writer.number(writer.length, dimension) for dimension in tensor.dimensions)
        head += writer.number("I", number) + writer.number("Q", offset)
        data += bytes([index % 251]) * tensor.size
        if tail or index < len(tensors) - 1:
            data += bytes(-len(data) % alignment)
        place = len(data)
    return head + bytes(-len(head) % alignment) + data
