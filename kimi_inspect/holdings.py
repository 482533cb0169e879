"""A checkpoint by what it holds: one unit for each place in each block, whatever files and names it is spread over.

Half a million tensors are some two thousand units: the experts of a layer count together, scales with their weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

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
        tensors: weights; several where experts lie apart, none where scales have lost theirs.
        experts: how many it holds, or None outside of routed experts.
        parameters: of all of it, or None if they are not known.
        stored_bytes: of all of it, scales included.
        encodings: of its weights, in order.
        shape: logical, of one expert where there are several, sides of length 1 left out; None where it is not known,
            and where several tensors make one thing.
        uneven: its weights are of several shapes.
        example: name of its first tensor.
        shard: path of the file that holds that.
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
    uneven: bool = False
    example: str
    shard: str

    @property
    def encoding(self) -> str:
        """Its encoding; several drawn together by ``+``."""
        return "+".join(self.encodings)

    @property
    def each(self) -> int | None:
        """Parameters of one expert, of a mean one where they differ; of the whole outside of routed experts."""
        return None if self.parameters is None else self.parameters // (self.experts or 1)


class _Part(NamedTuple):
    """The tensors of a unit that have one look: how many, repeated ones left out, and the first row."""

    look: Look
    tensors: int
    first: int


def holdings_of(
    table: TensorTable, weights_format: str, *, architecture: str | None = None
) -> Mapping[tuple[str, int], Unit]:
    """Return the units of a checkpoint by place and number; arguments as for `places_of`."""
    places = places_of(table, weights_format, architecture=architecture)
    return {(unit.place, unit.number): unit for unit in _units(table, places)}


def _units(table: TensorTable, places: Places) -> Iterator[Unit]:
    columns = table.columns
    looks, numbers = max(len(columns.looks), 1), int(places.number.max(initial=-1)) + 2
    units, unit_of = distinct(places.place.astype(np.int64) * numbers + places.number + 1)
    cells, cell_of = distinct(unit_of * looks + columns.look)
    first = _first_rows(cell_of, len(cells)).tolist()
    counts = np.bincount(cell_of[~columns.repeated], minlength=len(cells)).tolist()
    nbytes = exact_sums(unit_of, columns.end - columns.begin, len(units))
    parts = [_Part(columns.looks[cell % looks], counts[at], first[at]) for at, cell in enumerate(cells.tolist())]
    bounds = np.searchsorted(cells, np.arange(len(units) + 1) * looks).tolist()
    for at, code in enumerate(units.tolist()):
        yield _unit(
            table,
            parts[bounds[at] : bounds[at + 1]],
            place=places.texts[code // numbers],
            number=code % numbers - 1,
            stored_bytes=nbytes[at],
        )


def _unit(table: TensorTable, parts: Sequence[_Part], *, place: str, number: int, stored_bytes: int) -> Unit:
    columns = table.columns
    weights = [part for part in parts if part.look.role is Role.WEIGHT]
    row = min(part.first for part in weights or parts)
    tensors = sum(part.tensors for part in weights)
    stacked = int(columns.experts[row]) if columns.expert[row] < 0 else -1
    experts = stacked if stacked >= 0 else tensors if tensors and columns.expert[row] >= 0 else None
    there = [part for part in weights if part.tensors]  # what came before in another shard says nothing new
    sizes = [None if part.look.parameters is None else part.look.parameters * part.tensors for part in there]
    known = [size for size in sizes if size is not None]
    shapes = {_bare(part.look.shape, stacked=stacked >= 0) for part in weights}
    alone = experts is not None or tensors == 1
    return Unit(
        component=COMPONENTS[columns.component[row]],
        place=place,
        number=number,
        layer=int(columns.layer[row]) if columns.layer[row] >= 0 else None,
        tensors=tensors,
        experts=experts,
        parameters=sum(known) if len(known) == len(sizes) else None,
        stored_bytes=stored_bytes,
        encodings=tuple(sorted({part.look.encoding for part in weights})),
        shape=shapes.pop() if len(shapes) == 1 and alone else None,
        uneven=len(shapes) > 1,
        example=table.name_of(row),
        shard=columns.paths[columns.shard[row]],
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
