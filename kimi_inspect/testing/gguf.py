"""GGUF files with hollow bodies, written from the format's public description.

A file is the word "GGUF", a version, the number of tensors and of key-values, the key-values, a description of each
tensor, then padding up to the alignment, and the data, each tensor padded to the alignment too. Versions 2 and 3 are
alike but for 3's leave to be big-endian; version 1 has 32-bit lengths. Nothing is shared with any reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from struct import Struct, pack
from typing import Any, Literal

from kimi_inspect.testing.hollow import HollowFile

__all__ = [
    "GGML_TYPES",
    "ByteOrder",
    "Encoded",
    "GgufTensor",
    "SplitNumbers",
    "Typed",
    "ValueKind",
    "encoded",
    "hollow_gguf",
    "split_gguf",
]

ByteOrder = Literal["<", ">"]
ValueKind = Literal["u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "u64", "i64", "f64"]

# Every tensor type of ggml that is in use: its number, the elements of a block, and the bytes of a block.
GGML_TYPES: Mapping[str, tuple[int, int, int]] = {
    "F32": (0, 1, 4),
    "F16": (1, 1, 2),
    "Q4_0": (2, 32, 2 + 16),
    "Q4_1": (3, 32, 4 + 16),
    "Q5_0": (6, 32, 2 + 4 + 16),
    "Q5_1": (7, 32, 4 + 4 + 16),
    "Q8_0": (8, 32, 2 + 32),
    "Q8_1": (9, 32, 4 + 32),
    "Q2_K": (10, 256, 16 + 64 + 4),
    "Q3_K": (11, 256, 32 + 64 + 12 + 2),
    "Q4_K": (12, 256, 4 + 12 + 128),
    "Q5_K": (13, 256, 4 + 12 + 32 + 128),
    "Q6_K": (14, 256, 128 + 64 + 16 + 2),
    "Q8_K": (15, 256, 4 + 256 + 32),
    "IQ2_XXS": (16, 256, 2 + 64),
    "IQ2_XS": (17, 256, 2 + 64 + 8),
    "IQ3_XXS": (18, 256, 2 + 96),
    "IQ1_S": (19, 256, 2 + 32 + 16),
    "IQ4_NL": (20, 32, 2 + 16),
    "IQ3_S": (21, 256, 2 + 64 + 8 + 32 + 4),
    "IQ2_S": (22, 256, 2 + 64 + 8 + 8),
    "IQ4_XS": (23, 256, 2 + 2 + 4 + 128),
    "I8": (24, 1, 1),
    "I16": (25, 1, 2),
    "I32": (26, 1, 4),
    "I64": (27, 1, 8),
    "F64": (28, 1, 8),
    "IQ1_M": (29, 256, 32 + 16 + 8),
    "BF16": (30, 1, 2),
    "TQ1_0": (34, 256, 48 + 4 + 2),
    "TQ2_0": (35, 256, 64 + 2),
    "MXFP4": (39, 32, 1 + 16),
    "NVFP4": (40, 64, 4 + 32),
    "Q1_0": (41, 128, 2 + 16),
    "Q2_0": (42, 64, 2 + 16),
}

# The number of a value's type, and how the struct module writes it.
_VALUES: Mapping[str, tuple[int, str]] = {
    "u8": (0, "B"),
    "i8": (1, "b"),
    "u16": (2, "H"),
    "i16": (3, "h"),
    "u32": (4, "I"),
    "i32": (5, "i"),
    "f32": (6, "f"),
    "bool": (7, "?"),
    "str": (8, ""),
    "u64": (10, "Q"),
    "i64": (11, "q"),
    "f64": (12, "d"),
}
_ARRAY = 9
_KINDS: Mapping[type, ValueKind] = {str: "str", bool: "bool", int: "u32", float: "f32"}
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor as a GGUF file describes it: `type` by ggml's name, `dims` with the contiguous one first."""

    name: str
    type: str
    dims: tuple[int, ...]

    @property
    def parameters(self) -> int:
        """Values that it holds."""
        return prod(self.dims)

    @property
    def stored_bytes(self) -> int:
        """Length in the data section in bytes, without padding.

        Raises ValueError when a row does not fill whole blocks.
        """
        _, elements, nbytes = GGML_TYPES[self.type]
        row = self.dims[0] if self.dims else 1
        if row % elements:
            raise ValueError(f"{self.name}: {self.type} has blocks of {elements} elements, a row is {row}")
        return prod(self.dims) // elements * nbytes


@dataclass(frozen=True, slots=True)
class Typed:
    """A metadata value of a type that its Python type does not tell; `kind` of a list is that of its elements."""

    kind: ValueKind
    value: Any


@dataclass(frozen=True, slots=True)
class Encoded:
    """A metadata value as it lies in the file: the number of its type, then `body`."""

    number: int
    body: bytes


@dataclass(frozen=True, slots=True)
class SplitNumbers:
    """What a part says of its set: its own number from 0, how many parts there are, and the tensors of all."""

    no: int
    count: int
    tensors: int

    def metadata(self) -> dict[str, Typed]:
        """Return the three key-values of a part."""
        return {
            "split.no": Typed("u16", self.no),
            "split.count": Typed("u16", self.count),
            "split.tensors.count": Typed("i32", self.tensors),
        }


def encoded(value: Any, *, version: int = 3, byte_order: ByteOrder = "<") -> Encoded:
    """Encode a metadata value once, for the many files of this version and byte order that it goes into.

    A str is a STRING, a bool a BOOL, an int a UINT32, a float a FLOAT32, and a list an ARRAY of what its first item
    is; `Typed` says otherwise, and has to for an empty list.
    """
    if isinstance(value, Encoded):
        return value
    return _Writer(version, byte_order).value(value)


def hollow_gguf(
    tensors: Sequence[GgufTensor],
    metadata: Mapping[str, Any],
    *,
    version: int = 3,
    byte_order: ByteOrder = "<",
    alignment: int = _DEFAULT_ALIGNMENT,
) -> HollowFile:
    """Return a GGUF file that describes `tensors`, in this order, over a body of holes.

    Values are as in `encoded`. An `alignment` other than the usual 32 bytes is added to the metadata.
    """
    writer = _Writer(version, byte_order)
    pairs = dict(metadata)
    if alignment != _DEFAULT_ALIGNMENT:
        pairs.setdefault("general.alignment", alignment)
    pieces = [b"GGUF", pack(byte_order + "I", version), writer.length(len(tensors)), writer.length(len(pairs))]
    for key, value in pairs.items():
        one = encoded(value, version=version, byte_order=byte_order)
        pieces += [writer.string(key), pack(byte_order + "I", one.number), one.body]
    place = 0
    for tensor in tensors:
        pieces.append(writer.tensor(tensor, place))
        place += _padded(tensor.stored_bytes, alignment)
    size = sum(map(len, pieces))
    head = b"".join([*pieces, bytes(_padded(size, alignment) - size)])
    return HollowFile(head, len(head) + place)


def split_gguf(
    stem: str,
    parts: Sequence[Sequence[GgufTensor]],
    metadata: Mapping[str, Any],
    *,
    numbers: Mapping[int, SplitNumbers] | None = None,
    version: int = 3,
    byte_order: ByteOrder = "<",
    alignment: int = _DEFAULT_ALIGNMENT,
) -> dict[str, HollowFile]:
    """Return a set of parts, `STEM-00001-of-000NN.gguf` to file; `parts` are the tensors of each.

    The first part has all the `metadata`, each has its `SplitNumbers`; those in `numbers`, by the part's number from
    0, are written instead of the true ones.
    """
    total = sum(map(len, parts))
    files = {}
    for no, tensors in enumerate(parts):
        said = (numbers or {}).get(no, SplitNumbers(no, len(parts), total)).metadata()
        files[f"{stem}-{no + 1:05d}-of-{len(parts):05d}.gguf"] = hollow_gguf(
            tensors,
            said if no else {**metadata, **said},
            version=version,
            byte_order=byte_order,
            alignment=alignment,
        )
    return files


class _Writer:
    """Writes in one byte order and one width of lengths."""

    def __init__(self, version: int, byte_order: ByteOrder) -> None:
        self._order = byte_order
        self._width = "I" if version == 1 else "Q"
        self.length = Struct(byte_order + self._width).pack

    def string(self, text: str) -> bytes:
        raw = text.encode()
        return self.length(len(raw)) + raw

    def value(self, value: Any) -> Encoded:
        if isinstance(value, Typed):
            kind, content = value.kind, value.value
        else:
            kind, content = _KINDS[type(value[0] if isinstance(value, list) else value)], value
        number = _VALUES[kind][0]
        if not isinstance(content, list):
            return Encoded(number, self._items(kind, [content]))
        head = pack(self._order + "I", number) + self.length(len(content))
        return Encoded(_ARRAY, head + self._items(kind, content))

    def tensor(self, tensor: GgufTensor, offset: int) -> bytes:
        count = len(tensor.dims)
        form = f"{self._order}I{count}{self._width}IQ"
        return self.string(tensor.name) + pack(form, count, *tensor.dims, GGML_TYPES[tensor.type][0], offset)

    def _items(self, kind: ValueKind, items: list[Any]) -> bytes:
        if kind != "str":
            return pack(f"{self._order}{len(items)}{_VALUES[kind][1]}", *items)
        # A vocabulary has hundreds of thousands of items: no call of our own for each.
        length = self.length
        return b"".join([length(len(raw)) + raw for raw in [item.encode() for item in items]])


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
