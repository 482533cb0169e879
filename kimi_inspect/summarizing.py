"""Counts the tensors of a checkpoint: columns in, report out."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Unpack

import numpy as np
from attrs import frozen

from kimi_inspect.census import experts_by_layer
from kimi_inspect.checkpoint import Checkpoint
from kimi_inspect.components import Component
from kimi_inspect.facts import facts_of
from kimi_inspect.locating import Source
from kimi_inspect.opening import OpenOptions, open_checkpoint
from kimi_inspect.report import ComponentRow, EncodingRow, ExpertCensus, LayerRow, Report, merged
from kimi_inspect.sums import distinct, exact_sums
from kimi_inspect.table import COMPONENTS, Look, TensorTable
from kimi_inspect.values import Role

__all__ = ["inspect", "summarize"]


def inspect(source: Source, **options: Unpack[OpenOptions]) -> Report:
    """Open a checkpoint and report what it holds, with the options and errors of `open_checkpoint`."""
    return summarize(open_checkpoint(source, **options))


def summarize(checkpoint: Checkpoint) -> Report:
    """Count what an open checkpoint holds; nothing is read."""
    shards = checkpoint.shards
    cells = _cells(checkpoint.tensors)
    known = sum(cell.distinct * (cell.look.parameters or 0) for cell in cells)
    unknown = sum(cell.distinct for cell in cells if cell.look.parameters is None)
    return Report(
        source=checkpoint.source,
        commit=checkpoint.commit,
        format=checkpoint.format,
        architecture=checkpoint.architecture,
        family=checkpoint.family,
        set_name=checkpoint.set_name,
        shard_count=len(shards),
        complete=checkpoint.complete,
        file_bytes=sum(shard.file_bytes for shard in shards),
        header_bytes=sum(shard.header_bytes for shard in shards),
        tensor_bytes=sum(shard.tensor_bytes for shard in shards),
        padding_bytes=sum(shard.padding_bytes for shard in shards),
        missing_bytes=sum(shard.missing_bytes for shard in shards),
        unread_bytes=sum(shard.unread_bytes for shard in shards),
        tensor_count=len(checkpoint.tensors),
        parameters=None if unknown else known,
        known_parameters=known,
        unknown_tensors=unknown,
        components=_by_component(cells),
        experts=_census(checkpoint),
        companions=checkpoint.companions,
        other_sets=checkpoint.other_sets,
        findings=checkpoint.findings,
        traffic=checkpoint.traffic,
        layers=_by_layer(cells),
        files=shards,
    )


@frozen
class _Cell:
    """All tensors of one layer (-1: none), component and look; `distinct` leaves out names that came before."""

    layer: int
    component: Component
    look: Look
    count: int
    distinct: int
    stored_bytes: int

    def row(self) -> EncodingRow:
        parameters = self.look.parameters
        return EncodingRow(
            encoding=self.look.encoding,
            tensor_count=self.count,
            stored_bytes=self.stored_bytes,
            scale_bytes=0 if self.look.role is Role.WEIGHT else self.stored_bytes,
            parameters=None if parameters is None and self.distinct else (parameters or 0) * self.distinct,
        )


def _cells(tensors: TensorTable) -> list[_Cell]:
    columns = tensors.columns
    looks, components = len(columns.looks), len(COMPONENTS)
    key = ((columns.layer.astype(np.int64) + 1) * components + columns.component) * looks + columns.look
    cells, cell_of = distinct(key)
    counts = np.bincount(cell_of, minlength=len(cells)).tolist()
    repeated = np.bincount(cell_of[columns.repeated], minlength=len(cells)).tolist()
    nbytes = exact_sums(cell_of, columns.end - columns.begin, len(cells))
    return [
        _Cell(
            layer=code // looks // components - 1,
            component=COMPONENTS[code // looks % components],
            look=columns.looks[code % looks],
            count=count,
            distinct=count - again,
            stored_bytes=size,
        )
        for code, count, again, size in zip(cells.tolist(), counts, repeated, nbytes, strict=True)
    ]


def _by_component(cells: Iterable[_Cell]) -> tuple[ComponentRow, ...]:
    groups: dict[Component, list[EncodingRow]] = {}
    for cell in cells:
        groups.setdefault(cell.component, []).append(cell.row())
    rows = [ComponentRow(component=component, encodings=merged(group)) for component, group in groups.items()]
    return tuple(sorted(rows, key=lambda row: (-row.stored_bytes, COMPONENTS.index(row.component))))


def _by_layer(cells: Iterable[_Cell]) -> tuple[LayerRow, ...]:
    layers = groupby(cells, key=lambda cell: cell.layer)  # cells come sorted by layer
    return tuple(
        LayerRow(layer=None if layer < 0 else layer, components=_by_component(group)) for layer, group in layers
    )


def _census(checkpoint: Checkpoint) -> ExpertCensus | None:
    counts = [one.count for one in experts_by_layer(checkpoint.tensors, routers=False) if one.count]
    if not counts:
        return None
    facts = facts_of(checkpoint.config, checkpoint.metadata, weights_format=checkpoint.format)
    return ExpertCensus(
        layers=len(counts), per_layer_min=min(counts), per_layer_max=max(counts), declared=facts.experts
    )
