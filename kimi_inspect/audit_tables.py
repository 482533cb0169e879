"""An audit for people: the verdict first, then what was found and what to do, then the tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from kimi_inspect.advice import ADVICE
from kimi_inspect.drawing import SEVERITY_STYLES, Column, draw, gigabytes, text_of
from kimi_inspect.tables import report_head
from kimi_inspect.text import number_ranges, printable
from kimi_inspect.values import Finding, Severity
from kimi_inspect.verdict import Audit, Kept, Relation, Requantization, Verdict

__all__ = ["show_audit"]

MEANINGS: dict[Verdict, str] = {
    Verdict.DAMAGED: "a loader fails, or loads wrong weights",
    Verdict.DIFFERENT_MODEL: "not the reference's weights, whatever its name says",
    Verdict.REDUCED: "parts of the reference were left out",
    Verdict.REQUANTIZED: "all parts are there; some are stored in another encoding",
    Verdict.FAITHFUL: "the reference's encodings and bytes, packed otherwise",
    Verdict.IDENTICAL: "every weight file is the reference's, by SHA-256",
    Verdict.CONSISTENT: "nothing it says of itself is wrong; no reference was asked",
}
"""What each verdict means, in one line."""

_STYLES = {
    Verdict.DAMAGED: "bold red",
    Verdict.DIFFERENT_MODEL: "bold red",
    Verdict.REDUCED: "bold yellow",
}


def show_audit(console: Console, audit: Audit) -> None:
    """Print an audit."""
    console.print(_verdict_line(audit))
    for line in _head(audit):
        console.print(text_of(line))
    console.print()
    _show_findings(console, audit.findings)
    if audit.report:
        for part in report_head(audit.report):
            console.print(part)
    for title, columns in _tables(audit):
        console.print(text_of(title, "bold"))
        console.print(draw(console, columns, sums=False))
        console.print()
    traffic = audit.traffic
    if traffic.requests:
        console.print(text_of(f"{traffic.requests:,} requests, {traffic.bytes_read / 1e6:,.1f} MB read", "dim"))


def _verdict_line(audit: Audit) -> Text:
    said = MEANINGS[audit.verdict]
    if audit.verdict is Verdict.CONSISTENT and audit.against:
        said = "nothing it says of itself is wrong; the reference tells no more"
    return Text().append(str(audit.verdict), style=_STYLES.get(audit.verdict, "bold green")).append(f": {said}")


def _head(audit: Audit) -> Iterator[str]:
    chosen = f":{audit.report.set_name}" if audit.report and audit.report.other_sets else ""
    yield f"{audit.candidate}{chosen}" + (f", against {audit.against}" if audit.against else "")
    if audit.report and audit.reference_parameters is not None:
        here = "unknown" if audit.report.parameters is None else f"{audit.report.parameters:,}"
        yield f"{here} parameters here, {audit.reference_parameters:,} in the reference"
    if audit.identity and audit.identity.relation is not Relation.DISJOINT:
        of = f"{audit.identical_shards} of {audit.shard_count} weight files are the reference's by SHA-256"
        renamed = f", {len(audit.identity.renamed)} under another name" if audit.identity.renamed else ""
        lacking = f"; {len(audit.identity.missing)} of the reference's are not there" if audit.identity.missing else ""
        yield of + renamed + lacking


def _show_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Print findings, gravest first, and what to do; encodings that changed are in the table."""
    shown = [item for item in findings if item.code != "component-requantized"]
    for item in shown:
        line = Text().append(f"{item.severity}: ", style=SEVERITY_STYLES[item.severity])
        line.append(printable(f"{item.code}, {item.where}: {item.message}"))
        if item.count > 1:
            line.append(f" ({item.count:,} in all)")
        console.print(line)
        if item.severity is not Severity.INFO and item.code in ADVICE:
            console.print(text_of(f"  what to do: {ADVICE[item.code]}"))
    if not any(item.severity is not Severity.INFO for item in shown):
        console.print("nothing found that is wrong")
    console.print()


def _tables(audit: Audit) -> Iterator[tuple[str, list[Column]]]:
    if audit.kept or audit.requantizations:
        yield "how the weights are stored", _encodings(audit.kept, audit.requantizations)
    if audit.claims:
        yield "what is said of it, beside what is counted", _claims(audit)
    if audit.loaders:
        yield "what loads it", _loaders(audit)


def _encodings(kept: Sequence[Kept], changed: Sequence[Requantization]) -> list[Column]:
    """Lay out what was kept and what changed, those of one component together, the largest first."""
    rows: list[tuple[str, str, str, str, str, int]] = []
    for one in kept:
        bits = _bits(one.stored_bytes, one.parameters)
        rows.append((one.component, one.encoding, "the same", bits, _layers(one.layers), one.stored_bytes))
    for item in changed:
        bits = " -> ".join("?" if value is None else f"{value:.2f}" for value in (item.bits_before, item.bits_after))
        after = item.after + (" (lossless)" if item.lossless else "")
        rows.append((item.component, item.before, after, bits, _layers(item.layers), item.bytes_after))
    largest: dict[str, int] = {}
    for row in rows:
        largest[row[0]] = largest.get(row[0], 0) + row[5]
    rows.sort(key=lambda row: (-largest[row[0]], row[0], -row[5]))
    return [
        Column("component", [row[0] for row in rows], right=False),
        Column("reference", [row[1] for row in rows], right=False),
        Column("here", [row[2] for row in rows], right=False),
        Column("bits/weight", [row[3] for row in rows], 1),
        Column("GB (10^9)", [gigabytes(row[5]) for row in rows], 2),
        Column("layers", [row[4] for row in rows], 3, right=False),
    ]


def _bits(stored_bytes: int, parameters: int | None) -> str:
    return f"{8 * stored_bytes / parameters:.2f}" if parameters else "?"


def _layers(layers: Sequence[int]) -> str:
    return number_ranges(layers) if layers else "outside"


def _claims(audit: Audit) -> list[Column]:
    rows = audit.claims
    agrees = {True: "agrees", False: "does not agree", None: ""}
    return [
        Column("what", [row.subject for row in rows], right=False),
        Column("said by", [row.said_by for row in rows], 1, right=False),
        Column("said", [_said(row.said) for row in rows]),
        Column("counted", [_said(row.counted) for row in rows]),
        Column("", [agrees[row.agrees] for row in rows], right=False),
    ]


def _said(value: str | int | None) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else value


def _loaders(audit: Audit) -> list[Column]:
    rows = audit.loaders
    return [
        Column("engine", [row.engine for row in rows], right=False),
        Column("loads it", [str(row.support) for row in rows], right=False),
        Column("why", [row.reason for row in rows], right=False),
        Column("by", [row.rule for row in rows], 1, right=False),
    ]
