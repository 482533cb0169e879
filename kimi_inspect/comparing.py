"""Names that are there against names that are promised: half a million of each, by pattern and number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from kimi_inspect.inventory import Inventory, Template
from kimi_inspect.patterns import Patterns

__all__ = ["Comparison", "Lack", "compare"]


@frozen(eq=False)
class Lack:
    """Names of one template that are not there: `missing`, int64, are their places in its order."""

    template: Template
    missing: NDArray[np.int64]

    def numbers(self, place: str) -> NDArray[np.int64]:
        """Return for each missing name the number in a place, ``layer`` or ``expert``; -1 where it has none."""
        index = self.missing
        for name, numbers in reversed(self.template.filled):
            if name == place:
                return np.asarray(numbers, np.int64)[index % len(numbers)]
            index = index // len(numbers)
        return np.full(len(self.missing), -1)


@frozen(eq=False)
class Comparison:
    """What an inventory has and the names lack, and the rows of names that it does not have."""

    lacks: tuple[Lack, ...]
    unexpected: NDArray[np.int64]


def compare(inventory: Inventory, patterns: Patterns) -> Comparison:
    """Compare the names behind `patterns` with an inventory."""
    templates: dict[str, list[Template]] = {}
    for template in inventory.templates:
        templates.setdefault(template.shape, []).append(template)
    there = {id(template): np.zeros(len(template), bool) for template in inventory.templates}
    expected = np.zeros(len(patterns.code), bool)
    rows_of = patterns.sorted_rows()
    for code, text in enumerate(patterns.texts):
        rows = rows_of(code)
        numbers = patterns.numbers_of(code, rows) if text in templates else []
        for template in templates.get(text, ()):
            index, fitting = _indices(template, numbers, len(rows))
            there[id(template)][index] = True
            expected[rows[fitting]] = True
    lacks = [Lack(one, np.flatnonzero(~there[id(one)])) for one in inventory.templates if not there[id(one)].all()]
    return Comparison(tuple(lacks), np.flatnonzero(~expected))


def _indices(
    template: Template, numbers: Sequence[tuple[int, NDArray[np.int64]]], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which of `count` names are of the template, and where they stand in its order.

    Args:
        template: the template.
        numbers: every number of the names from left to right: its digits, and int64 values.
        count: how many names there are.
    """
    fitting = np.arange(count)
    free: list[tuple[Sequence[int], int, NDArray[np.int64]]] = []
    for allowed, (width, values) in zip(template.places, numbers, strict=True):
        if not width:  # too many digits to be told apart
            fitting = fitting[:0]
        elif not isinstance(allowed, str):
            free.append((allowed, width, values))
        elif width == len(allowed):
            fitting = fitting[values[fitting] == int(allowed)]
        else:
            fitting = fitting[:0]
    index = np.zeros(len(fitting), np.int64)
    for allowed, width, values in free:
        here = values[fitting]
        at, known = _looked_up(allowed, here)
        if width > 1:
            known &= here >= 10 ** (width - 1)
        index = (index * max(len(allowed), 1) + at)[known]
        fitting = fitting[known]
    return index, fitting


def _looked_up(allowed: Sequence[int], numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return where each number stands in `allowed`, which has each but once, and whether it does."""
    if isinstance(allowed, range) and allowed == range(len(allowed)):
        return numbers, numbers < len(allowed)
    values = np.asarray(allowed, np.int64)
    if not len(values):
        return np.zeros(len(numbers), np.int64), np.zeros(len(numbers), bool)
    order = np.argsort(values)
    place = np.searchsorted(values, numbers, sorter=order)
    at = order[np.minimum(place, len(values) - 1)]
    return at, values[at] == numbers
