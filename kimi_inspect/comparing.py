"""Compares checkpoints: opens one after the other, and keeps a row of each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Unpack

from attrs import evolve

from kimi_inspect.addresses import public_url
from kimi_inspect.checkpoint import Checkpoint
from kimi_inspect.comparison import INSIDE, SIDE_FILE, Comparison, ComparisonRow, ComponentSize, error_values
from kimi_inspect.components import Component
from kimi_inspect.errors import AmbiguousCheckpointError, InvalidSourceError, KimiInspectError
from kimi_inspect.locating import Location, Source
from kimi_inspect.opening import OpenOptions, listed, located, open_listed, options_for
from kimi_inspect.report import ComponentRow, Report
from kimi_inspect.sources import ListedFile, MappedFiles
from kimi_inspect.summarizing import summarize
from kimi_inspect.values import Progress, Severity

__all__ = ["compare"]


def compare(*sources: Source | Checkpoint, **options: Unpack[OpenOptions]) -> Comparison:
    """Put checkpoints side by side, one row each, in order.

    One that cannot be read is a row with its error. Where a source holds several checkpoints and none comes before the
    others, there is a row for each. One checkpoint at a time is held in memory.

    Args:
        sources: sources, or open checkpoints.
        options: as of `open_checkpoint`, for every source; `token` and `endpoint` for those of the first one's site, be
            it the Hub or ModelScope. Side files count only on `companions`, as there.
    """
    notify = options.get("progress") or (lambda _: None)
    named = [(source, _shown(source)) for source in sources]
    rows: list[ComparisonRow] = []
    for number, (source, shown) in enumerate(named):
        notify(Progress(phase="comparing", done=number, total=len(named), unit="checkpoints", path=shown))
        rows += _rows(source, shown, options_for(source, options, among=sources))
    notify(Progress(phase="comparing", done=len(named), total=len(named), unit="checkpoints"))
    return Comparison(rows=tuple(rows))


def _shown(source: Source | Checkpoint) -> str:
    """Return what to call a source before it is found, without what may be secret in an address."""
    if isinstance(source, Checkpoint):
        return source.source
    if isinstance(source, Mapping):
        return MappedFiles.source
    if not isinstance(source, str | os.PathLike):
        raise InvalidSourceError("no source", expected="a str, a path, or an open checkpoint", actual=repr(source))
    text = os.fspath(source)
    return public_url(text) if text.lower().startswith(("http://", "https://")) else text


def _rows(source: Source | Checkpoint, shown: str, options: OpenOptions) -> list[ComparisonRow]:
    if isinstance(source, Checkpoint):
        return [_row(summarize(source))]
    try:
        location = located(source, options)
        listing = listed(location, options.get("progress"))
    except KimiInspectError as error:
        return [ComparisonRow(source=shown, name=shown, error=error_values(error))]
    row, sets = _look(location, listing, options, ComparisonRow(source=shown, name=shown))
    named = [ComparisonRow(source=shown, name=f"{shown}:{name}", set_name=name) for name in sets]
    return [_look(evolve(location, set_name=one.set_name), listing, options, one)[0] for one in named] or [row]


def _look(
    location: Location, listing: Sequence[ListedFile], options: OpenOptions, unread: ComparisonRow
) -> tuple[ComparisonRow, Sequence[str]]:
    """Open a checkpoint and let it go.

    Args:
        location: where it is.
        listing: all files there.
        options: how to open it.
        unread: the row of one that cannot be read, as yet without the error.

    Returns:
        Its row, and the names of the sets there if none comes before the others.
    """
    sets: Sequence[str] = ()
    try:
        return _row(summarize(open_listed(location, listing, options, sure=True))), sets
    except AmbiguousCheckpointError as error:
        values = error_values(error)
        sets = values["actual"]
    except KimiInspectError as error:
        values = error_values(error)
    return evolve(unread, error=values), sets


def _row(report: Report) -> ComparisonRow:
    return ComparisonRow(
        source=report.source,
        commit=report.commit,
        format=report.format,
        family=report.family,
        shard_count=report.shard_count,
        file_bytes=report.file_bytes,
        parameters=report.parameters,
        components={row.component.value: _size(row) for row in report.components},
        experts=report.experts,
        name=_name(report),
        set_name=report.set_name,
        complete=report.complete,
        tensor_bytes=report.tensor_bytes,
        known_parameters=report.known_parameters,
        vision=_place(report, Component.VISION_TOWER, "vision"),
        draft=_place(report, Component.MTP, "draft"),
        finding_counts={
            severity.value: sum(item.severity is severity for item in report.findings) for severity in Severity
        },
    )


def _size(row: ComponentRow) -> ComponentSize:
    encodings = tuple(each.encoding for each in row.encodings)
    return ComponentSize(stored_bytes=row.stored_bytes, parameters=row.parameters, encodings=encodings)


def _name(report: Report) -> str:
    is_file = any(report.source == shard.path or report.source.endswith(f"/{shard.path}") for shard in report.by_file())
    return f"{report.source}:{report.set_name}" if report.other_sets and not is_file else report.source


def _place(report: Report, component: Component, role: str) -> str | None:
    """Say where a part is: what a counted side file holds is among the components too."""
    beside = [item for item in report.companions if item.role == role]
    if report[component].tensor_count and not any(item.counted for item in beside):
        return INSIDE
    return SIDE_FILE if beside else None
