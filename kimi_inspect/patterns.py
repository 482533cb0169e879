"""Names sorted by pattern, so that half a million names are judged some sixty times.

A name's pattern is the name with each digit written as 0. Names of one pattern differ in their numbers alone, and
the numbers, the layer and the expert among them, come out as columns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from kimi_inspect.names import Names

__all__ = ["Patterns"]

MAX_DIGITS = 18
"""Digits of one name that fit an int64; a name with more is a pattern of its own."""

_DIGITS_TO_ZERO = bytes(ord("0") if chr(byte).isdigit() and byte < 128 else byte for byte in range(256))
_POWERS = 10 ** np.arange(MAX_DIGITS + 1, dtype=np.int64)


@frozen(eq=False)
class Patterns:
    """The patterns of n names.

    Attributes:
        masks: each distinct pattern, digit for digit: ``layers.00.w0``.
        code: int32 [n], index into `masks`.
        key: int64 [n], all digits of the name read as one number: with `code`, it tells two names apart.
        numbers: int64, the numbers of all names, one after another.
        first: int64 [n], where the numbers of each name start in `numbers`.
    """

    masks: list[bytes]
    code: NDArray[np.int32]
    key: NDArray[np.int64]
    numbers: NDArray[np.int64]
    first: NDArray[np.int64]

    @classmethod
    def of(cls, parts: Sequence[Names]) -> Patterns:
        """Find the patterns of all names in `parts`, one after another."""
        masks: dict[bytes, int] = {}
        code, key, numbers, first, count = [], [], [], [], 0
        for names in parts:
            part_first, part_numbers, digits, part_key = _numbers(names)
            code.append(_codes(names, digits, masks))
            key.append(part_key)
            numbers.append(part_numbers)
            first.append(part_first + count)
            count += len(part_numbers)
        return cls(
            masks=list(masks),
            code=_joined(code, np.int32),
            key=_joined(key, np.int64),
            numbers=_joined(numbers, np.int64),
            first=_joined(first, np.int64),
        )

    @property
    def texts(self) -> list[str]:
        """Each pattern with every number, however long, written as one 0: ``layers.0.w0``."""
        return [re.sub(rb"[0-9]+", b"0", mask).decode() for mask in self.masks]

    def number(self, ordinal: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return for each name its number at the place that its pattern has in `ordinal`; -1 for place -1."""
        place = ordinal[self.code]
        found = place >= 0
        result = np.full(len(place), -1, np.int64)
        result[found] = self.numbers[self.first[found] + place[found]]
        return result


def _joined(parts: list[NDArray[np.int64]], dtype: type) -> NDArray[np.int64]:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)


def _codes(names: Names, digits: NDArray[np.int64], masks: dict[bytes, int]) -> NDArray[np.int32]:
    masked = names.split(names.blob.translate(_DIGITS_TO_ZERO))
    for index in np.flatnonzero(digits > MAX_DIGITS).tolist():
        masked[index] = names.raw(index)
    for mask in dict.fromkeys(masked):
        masks.setdefault(mask, len(masks))
    return np.fromiter(map(masks.__getitem__, masked), np.int32, len(masked))


def _numbers(names: Names) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return where each name's numbers start, the numbers, how many digits each name has, and its key.

    A number longer than `MAX_DIGITS` comes out as -1, and so does the key of a name with so many digits.
    """
    text = np.frombuffer(names.blob, np.uint8)
    where = np.flatnonzero((text - np.uint8(ord("0"))) < 10)  # noqa: SIM300: bytes below "0" wrap round
    digit = (text[where] - np.uint8(ord("0"))).astype(np.int64)
    begins = np.flatnonzero(np.diff(where, prepend=-2) != 1)
    numbers = _read(digit, begins)
    name_begins = np.searchsorted(where, names.starts)
    counts = np.diff(name_begins, append=len(where))
    key = np.zeros(len(names), np.int64)
    key[counts > 0] = _read(digit, name_begins[counts > 0])
    return np.searchsorted(begins, name_begins), numbers, counts, key


def _read(digit: NDArray[np.int64], begins: NDArray[np.int64]) -> NDArray[np.int64]:
    """Read each stretch of digits that starts at one of `begins` as a decimal number."""
    if not len(begins):
        return np.zeros(0, np.int64)
    lengths = np.diff(begins, append=len(digit))
    power = np.repeat(begins + lengths, lengths) - 1 - np.arange(len(digit))
    values = np.add.reduceat(digit * _POWERS[np.minimum(power, MAX_DIGITS)], begins)
    return np.where(lengths > MAX_DIGITS, -1, values)
