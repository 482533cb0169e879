"""Tables for people: reports and listings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kimi_inspect.components import Component
from kimi_inspect.drawing import (
    SEVERITY_STYLES,
    UNKNOWN,
    Column,
    bits_a_weight,
    draw,
    exact,
    gigabytes,
    percent,
    text_of,
)
from kimi_inspect.opening import Listing
from kimi_inspect.report import ComponentRow, EncodingRow, LayerRow, Report, merged, total
from kimi_inspect.text import number_ranges, plural, printable
from kimi_inspect.values import Finding, Severity, Shard

__all__ = ["show_comparison", "show_report", "show_sets"]

MAX_NAMED = 8
"""Other checkpoints that are named in the head of a report."""


MAX_USERS = 2
"""Components that are named beside an encoding."""


def _measures(
    rows: Iterable[tuple[int, int, int | None]], tensors_total: int, bytes_total: int, parameters_total: int | None
) -> list[Column]:
    """Make the columns that every table of tensors has: (tensor count, stored bytes, parameters) a row."""
    listed = [*rows, (tensors_total, bytes_total, parameters_total)]
    return [
        Column("tensors", [exact(count) for count, _, _ in listed], 1),
        Column("GB (10^9)", [gigabytes(nbytes) for _, nbytes, _ in listed]),
        Column("bytes", [exact(nbytes) for _, nbytes, _ in listed], 2),
        Column("share", [percent(nbytes, bytes_total) for _, nbytes, _ in listed], 4),
        Column("parameters", [exact(parameters) for _, _, parameters in listed], 3),
        Column("bits/weight", [bits_a_weight(nbytes, parameters) for _, nbytes, parameters in listed], 5),
    ]


def report_table(console: Console, report: Report, by: str = "component") -> Table:
    """Build the table of a report, by ``component``, ``layer``, ``file`` or ``encoding``."""
    if by == "file":
        return draw(console, _file_columns(report))
    if by == "encoding":
        return draw(console, _encoding_columns(report))
    if by == "layer":
        return draw(console, _layer_columns(report))
    return draw(console, _component_columns(report))


def _sums(report: Report) -> tuple[int, int, int | None]:
    return report.tensor_count, report.tensor_bytes, report.parameters


def _component_columns(report: Report) -> list[Column]:
    rows = report.components
    return [
        Column("component", [*(row.component for row in rows), "sum"], right=False),
        *_measures(((row.tensor_count, row.stored_bytes, row.parameters) for row in rows), *_sums(report)),
        Column("encodings", [*(_encodings(row) for row in rows), ""], 6, right=False),
    ]


def _encodings(row: ComponentRow) -> str:
    return ", ".join(encoding.encoding for encoding in row.encodings)


def _layer_columns(report: Report) -> list[Column]:
    """Lay out layers that are made alike together, one line a component: which layers, which component, which type."""
    lines = [
        ("" if place else layers, part, rows)
        for layers, parts in _alike(report.by_layer())
        for place, (part, rows) in enumerate(parts)
    ]
    return [
        Column("layer", [*(layers for layers, _, _ in lines), "sum"], right=False),
        Column("component", [*(part for _, part, _ in lines), ""], right=False),
        *_measures((_summed(rows) for _, _, rows in lines), *_sums(report)),
        Column("encodings", [*(", ".join(row.encoding for row in rows) for _, _, rows in lines), ""], right=False),
    ]


def _alike(rows: Iterable[LayerRow]) -> Iterator[tuple[str, list[tuple[str, tuple[EncodingRow, ...]]]]]:
    """Put layers of the same components in the same encodings together; yield numbers, and parts added up."""
    groups: dict[tuple[object, ...], list[LayerRow]] = {}
    for row in rows:
        look = {part.component: tuple(sorted(each.encoding for each in part.encodings)) for part in row.components}
        groups.setdefault((row.layer is None, *sorted(look.items())), []).append(row)
    for members in groups.values():
        parts: dict[Component, list[EncodingRow]] = {}
        for part in (part for row in members for part in row.components):
            parts.setdefault(part.component, []).extend(part.encodings)
        added = {component: merged(found) for component, found in parts.items()}
        largest = sorted(added, key=lambda component: -sum(row.stored_bytes for row in added[component]))
        layers = [row.layer for row in members if row.layer is not None]
        yield number_ranges(layers) if layers else "outside", [(component, added[component]) for component in largest]


def _summed(rows: Iterable[EncodingRow]) -> tuple[int, int, int | None]:
    listed = list(rows)
    parameters = total(row.parameters for row in listed)
    return sum(row.tensor_count for row in listed), sum(row.stored_bytes for row in listed), parameters


def _encoding_columns(report: Report) -> list[Column]:
    rows: tuple[EncodingRow, ...] = report.by_encoding()
    return [
        Column("encoding", [*(row.encoding for row in rows), "sum"], right=False),
        *_measures(((row.tensor_count, row.stored_bytes, row.parameters) for row in rows), *_sums(report)),
        Column(
            "of it scales",
            [*(exact(row.scale_bytes) for row in rows), exact(total(row.scale_bytes for row in rows))],
            6,
        ),
        Column("components", [*(_users(report, row.encoding) for row in rows), ""], 1, right=False),
    ]


def _users(report: Report, encoding: str) -> str:
    """Name the components that hold tensors of an encoding."""
    users = [row.component for row in report.components if any(each.encoding == encoding for each in row.encodings)]
    more = len(users) - MAX_USERS
    return ", ".join(users[:MAX_USERS]) + (f" and {more} more" if more > 0 else "")


def _file_columns(report: Report) -> list[Column]:
    rows: tuple[Shard, ...] = report.by_file()
    return [
        Column("file", [*(row.path for row in rows), f"sum of {len(rows)}"], right=False),
        Column("GB (10^9)", [*(gigabytes(row.file_bytes) for row in rows), gigabytes(report.file_bytes)]),
        Column("bytes", [*(exact(row.file_bytes) for row in rows), exact(report.file_bytes)], 1),
        Column("header", [*(exact(row.header_bytes) for row in rows), exact(report.header_bytes)], 3),
        Column("padding", [*(exact(row.padding_bytes) for row in rows), exact(report.padding_bytes)], 4),
        Column("missing", [*(exact(row.missing_bytes) for row in rows), exact(report.missing_bytes)], 4),
        Column("sha256", [*((row.sha256 or UNKNOWN)[:12] for row in rows), ""], 5, right=False),
    ]


def report_head(report: Report) -> list[Text]:
    """Say in a few lines what a checkpoint is and how large."""
    at = f" at {report.commit[:12]}" if report.commit else ""
    files = plural(report.shard_count, "file")
    chosen = report.set_name if report.other_sets else None
    what = ", ".join(filter(None, [chosen, report.family, report.format, files]))
    lines = [
        text_of(f"{report.source}{at}", "bold"),
        text_of(f"{what}, {plural(report.tensor_count, 'tensor')}" + ("" if report.complete else ", not complete")),
        text_of(_bytes_line(report)),
        text_of(_parameters_line(report)),
    ]
    if report.experts:
        lines.append(text_of(_experts_line(report)))
    lines += [text_of(line) for line in _beside_lines(report)]
    return [*lines, Text()]


def _beside_lines(report: Report) -> Iterator[str]:
    """Name what lies beside the checkpoint."""
    for item in report.companions:
        counted = "counted" if item.counted else "not counted"
        yield f"side file {item.path}, {item.role}, {gigabytes(item.bytes)} GB, {counted}"
    if report.other_sets:
        shown = ", ".join(report.other_sets[:MAX_NAMED])
        more = len(report.other_sets) - MAX_NAMED
        yield f"other checkpoints there: {shown}" + (f" and {more:,} more; `ls` shows them" if more > 0 else "")


def _bytes_line(report: Report) -> str:
    parts = {
        "headers": report.header_bytes,
        "tensors": report.tensor_bytes,
        "padding": report.padding_bytes,
        "missing": report.missing_bytes,
        "unread": report.unread_bytes,
    }
    told = ", ".join(f"{name} {count:,}" for name, count in parts.items() if count)
    size = f"{gigabytes(report.file_bytes)} GB: " if report.file_bytes >= 10**7 else ""
    return f"{size}{report.file_bytes:,} bytes ({told})"


def _parameters_line(report: Report) -> str:
    if report.parameters is not None:
        bits = bits_a_weight(report.tensor_bytes, report.parameters)
        return f"{report.parameters:,} parameters" + (f", {bits} bits a weight" if bits else "")
    return f"{report.known_parameters:,} parameters known, those of {report.unknown_tensors:,} tensors unknown"


def _experts_line(report: Report) -> str:
    census = report.experts
    if census is None:
        return ""
    low, high = census.per_layer_min, census.per_layer_max
    count = str(low) if low == high else f"{low} to {high}"
    declared = "" if census.declared is None else f", {census.declared} declared"
    layers = "1 layer" if census.layers == 1 else f"each of {census.layers} layers"
    return f"{count} routed experts in {layers}{declared}"


def show_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Print findings, gravest first, a few lines each."""
    for item in findings:
        line = Text().append(f"{item.severity}: ", style=SEVERITY_STYLES[item.severity])
        line.append(printable(f"{item.code}, {item.where}: {item.message}"))
        if item.count > 1:
            line.append(f" ({item.count:,} in all)")
        console.print(line)


def show_sets(console: Console, listing: Listing) -> None:
    """Print the checkpoints of a folder or repository."""
    at = f" at {listing.commit[:12]}" if listing.commit else ""
    console.print(text_of(f"{listing.source}{at}", "bold"))
    sets = [*listing.sets, *listing.side]
    if not sets:
        console.print("no safetensors or GGUF file")
        return
    sizes = [item.file_bytes for item in sets]
    notes = ["default" if item.default else "" for item in listing.sets] + ["side file"] * len(listing.side)
    table = [
        Column("set", [item.name for item in sets], right=False),
        Column("format", [item.format for item in sets], 2, right=False),
        Column("files", [exact(item.file_count) for item in sets], 1),
        Column("GB (10^9)", [UNKNOWN if size is None else gigabytes(size) for size in sizes]),
        Column("bytes", [exact(size) for size in sizes], 3),
        Column("", notes, 4, right=False),
    ]
    console.print(draw(console, table, sums=False))


def show_report(console: Console, report: Report, by: str = "component") -> None:
    """Print a report: what it is, the table, what was found, what reading it cost."""
    for line in report_head(report):
        console.print(line)
    console.print(report_table(console, report, by))
    console.print()
    show_findings(console, report.findings)
    if not any(item.severity is not Severity.INFO for item in report.findings):
        console.print("nothing found that is wrong")
    traffic = report.traffic
    if traffic.requests:
        console.print(text_of(f"{traffic.requests:,} requests, {traffic.bytes_read / 1e6:,.1f} MB read", "dim"))


def show_comparison(console: Console, rows: Sequence[tuple[str, str, str]]) -> None:
    """Print published figures beside ours: (what, published, counted) a row."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, right in (("published on 2026-11-09", False), ("published", True), ("counted", True), ("", False)):
        table.add_column(title, justify="right" if right else "left")
    for what, published, counted in rows:
        same = published == counted
        table.add_row(
            *map(text_of, (what, published, counted)),
            text_of("equal" if same else "differs", "green" if same else "red"),
        )
    console.print()
    console.print(table)
    console.print()
