"""Weight files taken apart and written again, so that one thing can be changed in them and all the rest stays true.

Only heads are read, and only what this package writes: safetensors, and GGUF of version 3 in little-endian order. They
are read by the formats' descriptions, and nothing is shared with any other reader.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from struct import calcsize, unpack_from
from typing import Any

from kimi_inspect.testing.gguf import GGML_TYPES, Encoded, GgufTensor, Typed, encoded, hollow_gguf
from kimi_inspect.testing.hollow import HollowFile, TensorSpec, hollow_safetensors, index_json, index_lines

__all__ = ["GgufPart", "Part", "SafetensorsPart", "indexed", "take_apart", "weight_paths"]

_INDEX = "model.safetensors.index.json"
_ALIGNMENT = "general.alignment"
_TENSORS_OF_ALL = "split.tensors.count"

_STRING, _ARRAY = 8, 9
# Bytes of a GGUF value by the number of its type.
_WIDTHS: Mapping[int, int] = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_TYPE_NAMES: Mapping[int, str] = {number: name for name, (number, _, _) in GGML_TYPES.items()}


@dataclass(frozen=True, slots=True)
class SafetensorsPart:
    """A safetensors file: its tensors in the order of their data."""

    tensors: tuple[TensorSpec, ...]
    metadata: Mapping[str, str] | None
    pad_to: int

    def file(self) -> HollowFile:
        """Write it, with offsets that follow from the tensors."""
        return hollow_safetensors(self.tensors, metadata=self.metadata, pad_to=self.pad_to)


@dataclass(frozen=True, slots=True)
class GgufPart:
    """A GGUF file: its tensors, with ggml's types and the outermost extent first, and its key-values as they lie."""

    tensors: tuple[TensorSpec, ...]
    pairs: Mapping[str, Encoded]

    def file(self) -> HollowFile:
        """Write it, with offsets that follow from the tensors."""
        tensors = [GgufTensor(tensor.name, tensor.dtype, tensor.shape[::-1]) for tensor in self.tensors]
        if _ALIGNMENT not in self.pairs:
            return hollow_gguf(tensors, self.pairs)
        (alignment,) = unpack_from("<I", self.pairs[_ALIGNMENT].body)
        return hollow_gguf(tensors, self.pairs, alignment=alignment)


Part = SafetensorsPart | GgufPart


def take_apart(file: HollowFile) -> Part:
    """Read the head of a weight file; ValueError when it is a GGUF file of another version or byte order."""
    return _gguf(file.head) if file.head.startswith(b"GGUF") else _safetensors(file.head)


def weight_paths(files: Mapping[str, HollowFile]) -> list[str]:
    """Return the paths of the weight files, in order."""
    return sorted(path for path in files if path.endswith((".safetensors", ".gguf")))


def indexed(files: Mapping[str, HollowFile]) -> dict[str, HollowFile]:
    """Return the files with what is said of all of them made true.

    That is the index where there is one, and in GGUF the number of tensors that every part gives for its set.
    """
    parts = {path: take_apart(files[path]) for path in weight_paths(files)}
    made = dict(files)
    if _INDEX in files:
        total = sum(tensor.stored_bytes for part in parts.values() for tensor in part.tensors)
        lines = (index_lines((tensor.name for tensor in part.tensors), path) for path, part in parts.items())
        made[_INDEX] = HollowFile(index_json(lines, total))
    split = {path: one for path, one in parts.items() if isinstance(one, GgufPart) and _TENSORS_OF_ALL in one.pairs}
    count = encoded(Typed("i32", sum(len(part.tensors) for part in split.values())))
    return made | {
        path: replace(part, pairs={**part.pairs, _TENSORS_OF_ALL: count}).file() for path, part in split.items()
    }


def _safetensors(head: bytes) -> SafetensorsPart:
    (length,) = unpack_from("<Q", head)
    header = json.loads(head[8 : 8 + length])
    metadata = header.pop("__metadata__", None)
    tensors = [TensorSpec(name, one["dtype"], tuple(one["shape"])) for name, one in header.items()]
    return SafetensorsPart(tuple(tensors), metadata, 1 if length % 8 else 8)


def _gguf(head: bytes) -> GgufPart:
    cursor = _Cursor(head)
    _, version, tensors, pairs = cursor.take("<4sIQQ")
    if version != 3:
        raise ValueError(f"expected GGUF of version 3, little-endian, got version {version}")
    found = dict(cursor.pair() for _ in range(pairs))
    return GgufPart(tuple(cursor.tensor() for _ in range(tensors)), found)


class _Cursor:
    """A place in the head of a GGUF file that moves on with all that is taken."""

    def __init__(self, head: bytes) -> None:
        self._head = head
        self._place = 0

    def take(self, form: str) -> tuple[Any, ...]:
        values = unpack_from(form, self._head, self._place)
        self._place += calcsize(form)
        return values

    def pair(self) -> tuple[str, Encoded]:
        key = self._string()
        (kind,) = self.take("<I")
        begin = self._place
        self._pass(kind)
        return key, Encoded(kind, self._head[begin : self._place])

    def tensor(self) -> TensorSpec:
        name = self._string()
        (count,) = self.take("<I")
        *dims, kind, _ = self.take(f"<{count}QIQ")
        return TensorSpec(name, _TYPE_NAMES[kind], tuple(reversed(dims)))

    def _string(self) -> str:
        (length,) = self.take("<Q")
        (raw,) = self.take(f"{length}s")
        text: str = raw.decode()
        return text

    def _pass(self, kind: int, count: int = 1) -> None:
        """Step over so many values of a type."""
        if kind in _WIDTHS:
            self._place += _WIDTHS[kind] * count
            return
        for _ in range(count):
            if kind == _STRING:
                self._place += 8 + unpack_from("<Q", self._head, self._place)[0]
            else:
                self._pass(*self.take("<IQ"))
