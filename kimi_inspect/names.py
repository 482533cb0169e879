"""Tensor names kept once, as bytes; a Python string only for a name that is asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

__all__ = ["Names"]

SEPARATOR = b"\n"

_DIGITS_TO_ZERO = bytes(ord("0") if chr(byte).isdigit() and byte < 128 else byte for byte in range(256))


def _array(values: NDArray[np.int64]) -> NDArray[np.int64]:
    values.setflags(write=False)
    return values


@frozen(eq=False)
class Names(Sequence[str]):
    """An immutable sequence of names in one UTF-8 string.

    Attributes:
        blob: the names in order, one newline between two.
        ends: int64 [n], where each name ends in `blob`, in bytes.
        alike: a digest that names have in common which differ in digits alone, where somebody has worked it out.
    """

    blob: bytes
    ends: NDArray[np.int64] = field(converter=_array)
    alike: bytes | None = None

    @classmethod
    def of(cls, names: Sequence[str]) -> Names:
        """Pack `names`."""
        blob = "\n".join(names).encode()
        breaks = np.flatnonzero(np.frombuffer(blob, np.uint8) == SEPARATOR[0])
        if names and len(breaks) == len(names) - 1:
            return cls(blob, np.append(breaks, len(blob)))
        # A name holds a newline of its own.
        lengths = np.fromiter((len(name.encode()) for name in names), np.int64, len(names))
        return cls(blob, np.cumsum(lengths) + np.arange(len(names)))

    @property
    def starts(self) -> NDArray[np.int64]:
        """int64 [n], where each name starts in `blob`, in bytes."""
        starts = np.zeros_like(self.ends)
        starts[1:] = self.ends[:-1] + 1
        return starts

    def likeness(self) -> bytes:
        """Work out the digest that names alike have in common."""
        ends = self.ends.astype("<i8").tobytes()
        return hashlib.blake2b(self.masked, digest_size=32, key=hashlib.blake2b(ends, digest_size=32).digest()).digest()

    @property
    def masked(self) -> bytes:
        """`blob` with each digit written as 0."""
        return self.blob.translate(_DIGITS_TO_ZERO)

    def __len__(self) -> int:
        return len(self.ends)

    def raw(self, index: int) -> bytes:
        """Return one name as bytes."""
        begin = int(self.ends[index - 1]) + 1 if index else 0
        return self.blob[begin : int(self.ends[index])]

    def split(self, blob: bytes) -> list[bytes]:
        """Cut `blob`, which is this one with characters replaced one for one, into names."""
        parts = blob.split(SEPARATOR) if len(self) else []
        if len(parts) == len(self):
            return parts
        return [blob[begin:end] for begin, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True)]

    def __iter__(self) -> Iterator[str]:
        return (name.decode() for name in self.split(self.blob))

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        return self.raw(range(len(self))[index]).decode()
