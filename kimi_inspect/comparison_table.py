"""The table of a comparison, for people: one line a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from kimi_inspect.comparison import INSIDE, Comparison, ComparisonRow, ComponentSize
from kimi_inspect.components import Component, Group
from kimi_inspect.drawing import UNKNOWN, Column, bits_a_weight, draw, exact, gigabytes, text_of
from kimi_inspect.rates import seconds_for
from kimi_inspect.text import plural, printable
from kimi_inspect.values import Severity

__all__ = ["comparison_table", "duration", "short_names", "show_compared"]

MIN_NAME = 26
"""Characters that a name may always have."""

_SPANS = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))
_UNITS = ((10**12, "Tbit/s"), (10**9, "Gbit/s"), (10**6, "Mbit/s"), (10**3, "kbit/s"))


def show_compared(console: Console, comparison: Comparison, *, link: int | None = None) -> None:
    """Print the table, then why some could not be read.

    Args:
        console: where to.
        comparison: what was compared.
        link: bits a second to tell download times by, or None.
    """
    console.print(comparison_table(console, comparison, link=link))
    unread = [row for row in comparison.rows if row.error is not None]
    if unread:
        console.print()
    for row in unread:
        console.print(text_of(f"cannot be read: {_why(row)}", "bold red"))


def _why(row: ComparisonRow) -> str:
    told = row.error or {}
    file = str(told.get("file") or "")
    place = row.name if file in row.name else f"{row.name}: {file}"
    return f"{place}: {told.get('message')}"


def comparison_table(console: Console, comparison: Comparison, *, link: int | None = None) -> Table:
    """Build the table of a comparison, with as many columns as fit."""
    rows = comparison.rows
    names = short_names([row.name for row in rows], max(MIN_NAME, console.width * 3 // 10))

    def column(title: str, cell: Callable[[ComparisonRow], str], rank: int, *, right: bool = True) -> Column:
        cells = ["" if row.error is not None else cell(row) for row in rows]
        return Column(title, cells, rank, right)

    columns = [
        Column("checkpoint", names, right=False),
        column("format", lambda row: str(row.format), 9, right=False),
        column("files", lambda row: exact(row.shard_count), 8),
        column("GB\n(10^9)", lambda row: gigabytes(row.file_bytes or 0), 0),
        *([column(f"download\nat {_rate(link)}", lambda row: _time(row, link), 1)] if link else []),
        column("parameters\n(10^9)", _billions, 2),
        column("experts\na layer", _experts, 3),
        column("bits a\nweight", lambda row: bits_a_weight(row.tensor_bytes or 0, row.parameters), 4),
        column("bits in\nexperts", lambda row: _bits(row.of_group(Group.EXPERTS)), 6),
        column("bits in\nattention", lambda row: _bits(row.of_group(Group.ATTENTION)), 7),
        column("bits in\nMLP", lambda row: _bits(row.of_group(Group.MLP)), 7),
        column(
            "encodings\nof experts", lambda row: ", ".join(row[Component.ROUTED_EXPERTS].encodings), 10, right=False
        ),
        column("vision", lambda row: _part(row.vision), 8, right=False),
        column("draft", lambda row: _part(row.draft), 9, right=False),
        Column("findings", list(map(_findings, rows)), 5, right=False),
        column("bytes", lambda row: exact(row.file_bytes), 11),
        column("parameters", lambda row: exact(row.parameters), 12),
    ]
    return draw(console, columns, sums=False)


def short_names(names: Sequence[str], limit: int) -> list[str]:
    """Cut the middle out of names longer than `limit`, but not where two would look the same."""
    full = list(map(printable, names))
    head = limit * 2 // 5
    short = [name if len(name) <= limit else f"{name[:head]}…{name[head + 1 - limit :]}" for name in full]
    meant: dict[str, set[str]] = {}
    for cut, name in zip(short, full, strict=True):
        meant.setdefault(cut, set()).add(name)
    return [cut if len(meant[cut]) == 1 else name for cut, name in zip(short, full, strict=True)]


def duration(seconds: float) -> str:
    """Write a time in its two largest units, rounded: ``3 h 28 min``."""
    if seconds < 1:
        return "< 1 s"
    for large, name, small, rest in _SPANS:
        steps = round(seconds / small)
        if steps * small >= large:
            return f"{steps * small // large:,} {name} {steps * small % large // small} {rest}"
    return f"{round(seconds)} s"


def _time(row: ComparisonRow, link: int) -> str:
    seconds = seconds_for(row.file_bytes, link)
    return UNKNOWN if seconds is None else duration(seconds)


def _rate(link: int) -> str:
    power, unit = next(((power, unit) for power, unit in _UNITS if link >= power), (1, "bit/s"))
    return f"{link / power:,.6g} {unit}"


def _billions(row: ComparisonRow) -> str:
    return UNKNOWN if row.parameters is None else f"{row.parameters / 1e9:,.2f}"


def _experts(row: ComparisonRow) -> str:
    if row.experts is None:
        return "-"
    low, high = row.experts.per_layer_min, row.experts.per_layer_max
    return str(low) if low == high else f"{low}-{high}"


def _bits(size: ComponentSize) -> str:
    return bits_a_weight(size.stored_bytes, size.parameters)


def _part(place: str | None) -> str:
    return "yes" if place == INSIDE else place or "-"


def _findings(row: ComparisonRow) -> str:
    if row.error is not None:
        return "cannot be read"
    counts = [(severity, row.finding_counts.get(severity, 0)) for severity in (Severity.ERROR, Severity.WARNING)]
    return ", ".join(plural(count, severity) for severity, count in counts if count) or "clean"
