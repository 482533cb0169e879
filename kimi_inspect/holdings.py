"""A checkpoint by what it holds: one unit for each place in each block, whatever files and names it is spread over.

Half a million tensors are some two thousand units: the experts of a layer count together, scales with their weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from kimi_inspect.components import Component
from kimi_inspect.places import Places, places_of
from kimi_inspect.sums import distinct, exact_sums
from kimi_inspect.table import COMPONENTS, Look, TensorTable
from kimi_inspect.values import Role

__all__ = ["Unit", "holdings_of"]


@frozen(kw_only=True)
class Unit:
    """All that stands at one place of one block: a matrix, or that matrix of all experts of a layer.

    Attributes:
        place: in GGUF's spelling: ``attn_output``, ``ffn_gate_exps``.
        number: of the layer or block; -1 outside of any.
        layer: of the language stack, or None.
        tensors: weights; several where experts lie apart.
        experts: how many it holds, or None outside of routed experts.
        parameters: of all of it, or None if they are not known.
        stored_bytes: of all of it, scales included.
        encodings: of its weights, in order.
        shape: logical, of one expert where there are several, sides of length 1 left out; None where weights differ.
        example: name of its first tensor.
    """

    component: Component
    place: str
    number: int
    layer: int | None
    tensors: int
    experts: int | None
    parameters: int | None
    stored_bytes: int
    encodings: tuple[str, ...]
    shape: tuple[int, ...] | None
    example: str

    @property
    def encoding(self) -> str:
        """Its encoding; several drawn together by ``+``."""
        return "+".join(self.encodings)

    @property
    def each(self) -> int | None:
        """Parameters of one expert, or of the whole outside of routed experts."""
        return None if self.parameters is None else self.parameters // (self.experts or 1)


def holdings_of(
    table: TensorTable, weights_format: str, *, architecture: str | None = None
) -> Mapping[tuple[str, int], Unit]:
    """Return the units of a checkpoint by place and number; arguments as for `places_of`."""
    places = places_of(table, weights_format, architecture=architecture)
    return {(unit.place, unit.number): unit for unit in _units(table, places)}


def _units(table: TensorTable, places: Places) -> Iterator[Unit]:
    columns = table.columns
    looks, numbers = len(columns.looks), int(places.number.max(initial=-1)) + 2
    key = places.place.astype(np.int64) * numbers + places.number + 1
    cells, cell_of = distinct(key * looks + columns.look)
    first = _first_rows(cell_of, len(cells))
    counts = np.bincount(cell_of[~columns.repeated], minlength=len(cells))
    nbytes = exact_sums(cell_of, columns.end - columns.begin, len(cells))
    groups: dict[int, list[int]] = {}
    for cell, code in enumerate((cells // looks).tolist()):
        groups.setdefault(code, []).append(cell)
    for code, members in groups.items():
        parts = [(columns.looks[int(cells[cell]) % looks], int(counts[cell]), int(first[cell])) for cell in members]
        weights = [part for part in parts if part[0].role is Role.WEIGHT]
        if weights:
            yield _unit(
                table,
                weights,
                place=places.texts[code // numbers],
                number=code % numbers - 1,
                stored_bytes=sum(nbytes[cell] for cell in members),
            )


def _unit(
    table: TensorTable, weights: list[tuple[Look, int, int]], *, place: str, number: int, stored_bytes: int
) -> Unit:
    """Make the unit of weights: how each look, how many, and the first row of each."""
    columns = table.columns
    row = min(first for _, _, first in weights)
    component = COMPONENTS[columns.component[row]]
    tensors = sum(count for _, count, _ in weights)
    stacked = int(columns.experts[row]) if columns.expert[row] < 0 else -1
    experts = stacked if stacked >= 0 else tensors if columns.expert[row] >= 0 else None
    sizes = [None if look.parameters is None else look.parameters * count for look, count, _ in weights]
    known = [size for size in sizes if size is not None]
    shapes = {_bare(look.shape, stacked=stacked >= 0) for look, _, _ in weights}
    return Unit(
        component=component,
        place=place,
        number=number,
        layer=int(columns.layer[row]) if columns.layer[row] >= 0 else None,
        tensors=tensors,
        experts=experts,
        parameters=sum(known) if len(known) == len(sizes) else None,
        stored_bytes=stored_bytes,
        encodings=tuple(sorted({look.encoding for look, _, _ in weights})),
        shape=shapes.pop() if len(shapes) == 1 else None,
        example=table.name_of(row),
    )


def _bare(shape: tuple[int, ...] | None, *, stacked: bool) -> tuple[int, ...] | None:
    """Leave out sides of length 1, which converters add and drop; and the one that counts experts."""
    if shape is None or not prod(shape):
        return shape
    return tuple(side for side in (shape[1:] if stacked else shape) if side != 1)


def _first_rows(cell_of: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return the first row of each cell."""
    first = np.zeros(count, np.int64)
    rows = np.arange(len(cell_of) - 1, -1, -1)
    first[cell_of[rows]] = rows  # of several assignments to one place the last one stays
    return first
