"""Names that are there against names that are promised: half a million of each, by pattern and number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from kimi_inspect.inventory import Inventory, Template
from kimi_inspect.patterns import Patterns
from kimi_inspect.sums import present

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


def compare(inventory: Inventory, patterns: Patterns, *, unique: bool) -> Comparison:
    """Compare the names behind `patterns` with an inventory; `unique` says that none of them stands twice."""
    templates: dict[str, list[Template]] = {}
    for template in inventory.templates:
        templates.setdefault(template.shape, []).append(template)
    there = {id(template): np.zeros(len(template), bool) for template in inventory.templates}
    expected = np.zeros(len(patterns.code), bool)
    for text, alike in _by_text(patterns).items():
        group = templates.get(text, [])
        # As many different names as the templates have, none of which can be another: they are all there.
        if unique and sum(len(rows) for rows, _ in alike) == sum(map(len, group)) and _fit(group, alike):
            for template in group:
                there[id(template)][:] = True
            for rows, _ in alike:
                expected[rows] = True
            continue
        for template in group:
            for rows, numbers in alike:
                index, fitting = _indices(template, numbers, len(rows))
                there[id(template)][index] = True
                expected[rows[fitting]] = True
    lacks = [Lack(one, np.flatnonzero(~there[id(one)])) for one in inventory.templates if not there[id(one)].all()]
    return Comparison(tuple(lacks), np.flatnonzero(~expected))


Numbers = Sequence[tuple[int, NDArray[np.int64]]]
"""Every number of some names from left to right: its digits, and int64 values."""


def _by_text(patterns: Patterns) -> dict[str, list[tuple[NDArray[np.int64], Numbers]]]:
    """Sort the rows by the text of their patterns; give the numbers of their names too."""
    rows_of = patterns.sorted_rows()
    found: dict[str, list[tuple[NDArray[np.int64], Numbers]]] = {}
    for code, text in enumerate(patterns.texts):
        rows = rows_of(code)
        found.setdefault(text, []).append((rows, patterns.numbers_of(code, rows)))
    return found


def _fit(group: Sequence[Template], alike: Sequence[tuple[NDArray[np.int64], Numbers]]) -> bool:
    """Whether every name is of one of these templates, as far as that shows place by place.

    It does where the templates differ in one number alone: then any number that may stand in each place makes a name.
    """
    places = list(zip(*(template.places for template in group), strict=True))
    differing = [place for place in places if any(allowed != place[0] for allowed in place)]
    if len(differing) > 1 or any(not isinstance(allowed, str) for place in differing for allowed in place):
        return False
    return all(
        _may_stand(place, width, values)
        for _, numbers in alike
        for place, (width, values) in zip(places, numbers, strict=True)
    )


def _may_stand(place: Sequence[Sequence[int] | str], width: int, values: NDArray[np.int64]) -> bool:
    """Whether each of the values, written with so many digits, may stand in a place."""
    there = present(values)
    if not width or not len(there):
        return False
    if isinstance(place[0], str):
        return set(there.tolist()) <= {
            int(digits) for digits in place if isinstance(digits, str) and len(digits) == width
        }
    _, known = _looked_up(place[0], there)
    return bool(known.all()) and (width == 1 or int(there[0]) >= 10 ** (width - 1))


def _indices(template: Template, numbers: Numbers, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
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
