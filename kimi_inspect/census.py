"""Routed experts counted layer by layer, by three witnesses: those that are stored, the router's rows, the config."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from kimi_inspect.components import Component
from kimi_inspect.facts import MAX_COUNT, Facts
from kimi_inspect.findings import MAX_EXAMPLES, finding
from kimi_inspect.sums import distinct
from kimi_inspect.table import COMPONENTS, TensorTable
from kimi_inspect.values import Finding, Role, Severity

__all__ = ["LayerExperts", "expert_findings", "experts_by_layer"]

Numbers = NDArray[np.int64]


@frozen(eq=False, kw_only=True)
class LayerExperts:
    """The experts of one layer.

    Attributes:
        layer: its number.
        present: numbers of the experts that are stored whole; of fused experts 0 to their count.
        partial: numbers of those that have fewer tensors than the others of the layer.
        rows: outputs of the router, or None.
    """

    layer: int
    present: Numbers
    partial: Numbers = field(factory=lambda: np.zeros(0, np.int64))
    rows: int | None = None

    @property
    def whole(self) -> LayerExperts:
        """The same with experts that are there in part taken for whole."""
        return LayerExperts(layer=self.layer, present=np.union1d(self.present, self.partial), rows=self.rows)

    @property
    def count(self) -> int:
        """Experts of which anything is stored."""
        return len(self.present) + len(self.partial)

    def lacks(self, count: int) -> int:
        """Return how many numbers below `count` have not all stored."""
        return count - int(np.count_nonzero(self.present < count))

    def missing(self, count: int) -> list[int]:
        """Return the numbers below `count` of which not all is stored."""
        there = self.present[self.present < count]
        missing: list[int] = [] if len(there) == count else np.setdiff1d(np.arange(count), there).tolist()
        return missing


def experts_by_layer(table: TensorTable, *, routers: bool = True) -> list[LayerExperts]:
    """Count the experts of every layer that has any, or a router; without `routers`, these are not looked at."""
    columns = table.columns
    routed = (columns.component == COMPONENTS.index(Component.ROUTED_EXPERTS)) & (columns.layer >= 0)
    weights = np.array([look.role is Role.WEIGHT for look in columns.looks] or [False])[columns.look]
    numbered = _numbered(columns.layer, columns.expert, routed & weights & (columns.expert >= 0))
    rows = _router_rows(table) if routers else {}
    fused = np.flatnonzero(routed & weights & (columns.expert < 0) & (columns.experts >= 0))
    counts: dict[int, list[int]] = {}
    for layer, count in zip(columns.layer[fused].tolist(), columns.experts[fused].tolist(), strict=True):
        counts.setdefault(layer, []).append(count)
    found = []
    for layer in sorted({*numbered, *counts, *rows}):
        whole, partial = numbered.get(layer) or (np.arange(min(counts.get(layer, [0]))), np.zeros(0, np.int64))
        if layer in counts:
            partial = np.arange(len(whole), max(counts[layer]))
        found.append(LayerExperts(layer=layer, present=whole, partial=partial, rows=rows.get(layer)))
    return found


def _numbered(
    layer: NDArray[np.int32], expert: NDArray[np.int32], rows: NDArray[np.bool_]
) -> dict[int, tuple[Numbers, Numbers]]:
    """Return for each layer with experts of their own number which are whole and which have fewer tensors."""
    where = np.flatnonzero(rows)
    if not len(where):
        return {}
    width = int(expert.max()) + 1
    pairs, index = distinct(layer[where].astype(np.int64) * width + expert[where])
    tensors = np.bincount(index)
    numbers = pairs // width
    bounds = np.flatnonzero(np.diff(numbers, prepend=-1))
    most = np.maximum.reduceat(tensors, bounds)
    whole = tensors == np.repeat(most, np.diff(bounds, append=len(numbers)))
    parts = zip(np.split(pairs - numbers * width, bounds[1:]), np.split(whole, bounds[1:]), strict=True)
    return {
        int(number): (ids[full], ids[~full])
        for number, (ids, full) in zip(numbers[bounds].tolist(), parts, strict=True)
    }


def _router_rows(table: TensorTable) -> dict[int, int]:
    """Return the outputs of each layer's router: the first dimension of its matrix, if it has just one."""
    found: dict[int, set[int]] = {}
    for item in table.select(component=Component.ROUTER, role=Role.WEIGHT):
        # A table of token numbers has a shape of two dimensions too.
        is_matrix = item.shape and len(item.shape) == 2 and item.shape[0] <= MAX_COUNT
        if item.layer is not None and item.shape and is_matrix and item.encoding not in ("i32", "i64"):
            found.setdefault(item.layer, set()).add(item.shape[0])
    return {layer: rows.pop() for layer, rows in found.items() if len(rows) == 1}


def expert_findings(layers: list[LayerExperts], facts: Facts, *, partial: bool) -> Iterator[Finding]:
    """Yield where the witnesses disagree: holes, layers that differ, a number that router or config say otherwise.

    Args:
        layers: the experts of each layer.
        facts: what the config says.
        partial: tell of experts that are there in part; else their missing tensors are told one by one elsewhere.
    """
    layers = [one if partial else one.whole for one in layers if one.count or one.rows]
    if not any(one.count for one in layers):
        return
    expected = _expected(layers, facts)
    broken = [one for one in layers if one.lacks(expected[one.layer])]
    holed = [one for one in broken if _has_holes(one) or any(other not in broken for other in layers)]
    if holed:
        yield _missing(holed, expected)
    intact = [one for one in layers if one not in holed]
    # Of a layer whose router says another number it is told already.
    yield from _uneven([one for one in intact if one.rows in (None, one.count)], facts)
    yield from _miscounted(intact, facts)


def _expected(layers: list[LayerExperts], facts: Facts) -> dict[int, int]:
    """Return how many experts each layer should have: by its router, else as the config says or most layers have."""
    by_layer = facts.experts_by_layer
    said = by_layer if by_layer and len(by_layer) == len(layers) else [_usual(layers, facts)] * len(layers)
    return {one.layer: count if one.rows is None else one.rows for one, count in zip(layers, said, strict=True)}


def _usual(layers: list[LayerExperts], facts: Facts) -> int:
    """Return the number of experts of which the layers' highest numbers speak; a stray one of a high number does not.

    What the config says is true if any layer has it: the others may lack their last experts.
    """
    full = Counter(int(one.present.max(initial=-1)) + 1 for one in layers)
    if facts.experts is not None and facts.experts in full:
        return facts.experts
    return max(full, key=lambda count: (full[count], count))


def _has_holes(one: LayerExperts) -> bool:
    return len(one.partial) > 0 or one.count != int(one.present.max(initial=-1)) + 1


def _missing(layers: list[LayerExperts], expected: dict[int, int]) -> Finding:
    each = ((one.layer, expert) for one in layers for expert in one.missing(expected[one.layer]))
    lacking = [*islice(each, MAX_EXAMPLES)]
    layer, expert = lacking[0]
    first = layers[0]
    what = "is there in part" if expert in first.partial else "is not there"
    return finding(
        "expert-missing",
        f"layer {layer}, expert {expert}",
        f"expert {expert} of layer {layer} {what}, and the router may choose it",
        expected=expected[layer],
        actual=len(first.present),
        layer=layer,
        count=sum(one.lacks(expected[one.layer]) for one in layers),
        examples=[f"layer {one}, expert {number}" for one, number in lacking],
    )


def _uneven(layers: list[LayerExperts], facts: Facts) -> Iterator[Finding]:
    """Find layers of different numbers of experts; where the config says so for each layer, it is on purpose."""
    counts = {one.count for one in layers}
    if len(counts) < 2:
        return
    declared = facts.experts_by_layer == tuple(one.count for one in layers)
    usual = max(counts, key=lambda count: sum(one.count == count for one in layers))
    odd = [one for one in layers if one.count != usual]
    message = f"layers have {min(counts)} to {max(counts)} experts" + (
        ", as the config says" if declared else "; loaders that take one number for all layers fail"
    )
    yield finding(
        "experts-uneven",
        f"layer {odd[0].layer}",
        message,
        expected=usual,
        actual=odd[0].count,
        layer=odd[0].layer,
        count=len(odd),
        examples=[f"layer {one.layer}: {one.count}" for one in odd[:MAX_EXAMPLES]],
        severity=Severity.WARNING if declared else None,
    )


def _miscounted(layers: list[LayerExperts], facts: Facts) -> Iterator[Finding]:
    """Find a router or a config that says another number than all layers have."""
    details: dict[str, Any]
    wrong = [one for one in layers if one.rows is not None and one.rows != one.count]
    if wrong:
        message = f"the router chooses among {wrong[0].rows} experts, and {wrong[0].count} are stored"
        details = {"layer": wrong[0].layer, "count": len(wrong)}
        where, expected = f"layer {wrong[0].layer}, router", wrong[0].rows
        yield finding("expert-count-disagrees", where, message, expected=expected, actual=wrong[0].count, **details)
        return
    counts = {one.count for one in layers}
    if facts.experts is not None and len(counts) == 1 and counts != {facts.experts}:
        stored = counts.pop()
        message = f"{facts.experts} experts a layer are declared, and {stored} are stored"
        yield finding("expert-count-disagrees", "config", message, expected=facts.experts, actual=stored)
