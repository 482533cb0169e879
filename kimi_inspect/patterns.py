"""Names sorted by pattern, so that half a million names are judged some sixty times.

A name's pattern is the name with each digit written as 0. Names of one pattern differ in their numbers alone, and
the numbers, the layer and the expert among them, come out as columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from kimi_inspect.names import Names

__all__ = ["Patterns"]

MAX_DIGITS = 18
"""Digits of one name that fit an int64; a name with more is a pattern of its own."""

MAX_NUMBER = 999_999
"""Layers, blocks and experts are numbered up to this; a number beyond it is something else."""

_NUMBER = re.compile(rb"[0-9]+")
_POWERS = 10 ** np.arange(MAX_DIGITS + 1, dtype=np.int64)


@frozen(eq=False)
class Patterns:
    """The patterns of n names.

    Attributes:
        masks: each distinct pattern, digit for digit: ``layers.00.w0``.
        code: int32 [n], index into `masks`.
        key: int64 [n], all digits of the name read as one number: with `code`, it tells two names apart.
    """

    masks: list[bytes]
    code: NDArray[np.int32]
    key: NDArray[np.int64]

    @classmethod
    def of(cls, parts: Sequence[Names]) -> Patterns:
        """Find the patterns of all names in `parts`, one after another."""
        masks: dict[bytes, int] = {}
        seen: dict[bytes, _Alike] = {}
        code, key = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
        for names in parts:
            # Layers of one kind differ in their numbers alone: the names of most shards look like those of another.
            shape = names.alike or names.masked
            alike = seen.get(shape)
            if alike is None or not np.array_equal(alike.ends, names.ends):
                alike = _Alike.of(names, names.masked, masks)
                if not alike.literal.any():
                    seen[shape] = alike
            code.append(alike.code)
            key.append(alike.keys(names.blob))
        return cls(masks=list(masks), code=np.concatenate(code), key=np.concatenate(key))

    @property
    def texts(self) -> list[str]:
        """Each pattern with every number, however long, written as one 0: ``layers.0.w0``."""
        return [_NUMBER.sub(b"0", mask).decode() for mask in self.masks]

    def sorted_rows(self) -> Callable[[int], NDArray[np.int64]]:
        """Sort the rows by pattern once; return what gives those of one pattern, in file order."""
        order = np.argsort(self.code.astype(np.min_scalar_type(max(len(self.masks), 1))), kind="stable")
        bounds = np.searchsorted(self.code[order], np.arange(len(self.masks) + 1))
        return lambda pattern: order[bounds[pattern] : bounds[pattern + 1]]

    def number(self, places: Sequence[int]) -> NDArray[np.int32]:
        """Return for each name one of its numbers.

        Args:
            places: for each pattern which number, counted from 0; -1 for none.

        Returns:
            int32 [n], -1 for none and for a number beyond `MAX_NUMBER`.
        """
        numbers = np.full(len(self.code), -1, np.int32)
        rows, found, _ = self._found(places)
        numbers[rows] = found
        return numbers

    def cut_out(self, places: Sequence[int], keys: NDArray[np.int64]) -> None:
        """Set one number of each name to 0 in `keys`, a copy of the keys, where `number` returns it."""
        rows, found, divisor = self._found(places)
        keys[rows] -= found * divisor

    def _found(self, places: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows that have such a number, the numbers, and the power of ten that each stands at."""
        cuts = [_cut(mask, place) for mask, place in zip(self.masks, places, strict=True)]
        divisor, modulus = (np.array(column, np.int64) for column in zip(*(cuts or [(1, 1)]), strict=True))
        rows = np.flatnonzero((modulus > 1)[self.code])  # often few names have such a number
        power = divisor[self.code[rows]]
        found = self.key[rows] // power % modulus[self.code[rows]]
        small = found <= MAX_NUMBER
        return rows[small], found[small], power[small]

    def numbers_of(self, code: int, rows: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
        """Return for rows of one pattern their numbers from left to right: how many digits each, and int64 values."""
        mask = self.masks[code]
        cuts = [_cut(mask, place) for place in range(len(_NUMBER.findall(mask)))]
        numbers = []
        for divisor, modulus in cuts:
            left = self.key[rows] // divisor
            # numpy divides by one number fast, but has no such way to a remainder.
            numbers.append((len(str(modulus)) - 1, left - left // modulus * modulus))
        return numbers


def _cut(mask: bytes, place: int) -> tuple[int, int]:
    """Return the divisor and modulus that cut a number out of the key of a name; modulus 1 if there is none."""
    widths = [len(number) for number in _NUMBER.findall(mask)]
    if place < 0 or sum(widths) > MAX_DIGITS:
        return 1, 1
    return 10 ** sum(widths[place + 1 :]), 10 ** widths[place]


@frozen(eq=False, kw_only=True)
class _Alike:
    """What is common to names that look alike, digits aside.

    Attributes:
        ends: where each name ends.
        code: the pattern of each name.
        literal: whether a name has too many digits and is a pattern of its own.
        where: where the digits are.
        power: the power of ten that each digit stands for in the key of its name.
        first: where, among those, the digits of each name with any start.
        numbered: whether a name has digits.
    """

    ends: NDArray[np.int64]
    code: NDArray[np.int32]
    literal: NDArray[np.bool_]
    where: NDArray[np.int64]
    power: NDArray[np.int64]
    first: NDArray[np.int64]
    numbered: NDArray[np.bool_]

    @classmethod
    def of(cls, names: Names, blob: bytes, masks: dict[bytes, int]) -> _Alike:
        """Study names whose digits are zeros in `blob`; patterns that are new are added to `masks`."""
        where = np.flatnonzero(np.frombuffer(blob, np.uint8) == ord("0"))
        until = np.searchsorted(where, names.ends)
        counts = np.diff(until, prepend=0)
        literal = counts > MAX_DIGITS
        masked = names.split(blob)
        for index in np.flatnonzero(literal).tolist():
            masked[index] = names.raw(index)
        for mask in dict.fromkeys(masked):
            masks.setdefault(mask, len(masks))
        exponent = np.repeat(until, counts) - 1 - np.arange(len(where))
        return cls(
            ends=names.ends,
            code=np.fromiter(map(masks.__getitem__, masked), np.int32, len(masked)),
            literal=literal,
            where=where,
            power=_POWERS[np.minimum(exponent, MAX_DIGITS)],
            first=(until - counts)[counts > 0],
            numbered=counts > 0,
        )

    def keys(self, blob: bytes) -> NDArray[np.int64]:
        """Read all digits of each name as one number; -1 for a name that is a pattern of its own."""
        keys = np.zeros(len(self.ends), np.int64)
        if len(self.first):
            digits = np.frombuffer(blob, np.uint8)[self.where] - np.uint8(ord("0"))
            keys[self.numbered] = np.add.reduceat(digits * self.power, self.first)
        keys[self.literal] = -1
        return keys
