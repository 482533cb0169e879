"""Counts and sums over columns: sums of int64 as exact Python integers, however large."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["distinct", "exact_sum", "exact_sums", "present"]

LIMB = 21
"""Bits summed at a time: 2^32 such limbs still fit the 53 exact bits of a float64, which is what bincount adds in."""


def exact_sums(keys: NDArray[np.integer], values: NDArray[np.int64], count: int) -> list[int]:
    """Sum `values`, none negative, for each of the keys 0 to `count` - 1."""
    totals = [0] * count
    for shift in range(0, 63, LIMB):
        limbs = (values >> shift) & ((1 << LIMB) - 1)
        sums = np.bincount(keys, weights=limbs, minlength=count)
        totals = [total + (int(part) << shift) for total, part in zip(totals, sums.tolist(), strict=True)]
    return totals


def exact_sum(values: NDArray[np.int64]) -> int:
    """Sum `values`, none negative."""
    if len(values) and int(values.max()) > (2**63 - 1) // len(values):
        return exact_sums(np.zeros(len(values), np.int64), values, 1)[0]
    return int(values.sum())


def distinct(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct values of `keys`, none negative, in order, and for each key the index of its value."""
    if int(keys.max(initial=0)) > len(keys):  # else counting costs less than sorting
        values, index = np.unique(keys, return_inverse=True)
        return values, index
    present = np.bincount(keys) > 0
    return np.flatnonzero(present), (np.cumsum(present) - 1)[keys]


def present(numbers: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the distinct numbers from 0 on, in order; negative ones stand for none."""
    known = numbers[numbers >= 0]
    if int(known.max(initial=0)) > len(known):  # as above
        return np.unique(known).astype(np.int64)
    return np.flatnonzero(np.bincount(known))
