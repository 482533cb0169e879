"""An audit for people: the verdict first, then what was found and what to do, then the tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from kimi_inspect.advice import ADVICE, MILD_ADVICE
from kimi_inspect.drawing import SEVERITY_STYLES, Column, draw, gigabytes, text_of
from kimi_inspect.tables import report_head
from kimi_inspect.text import LONGEST, number_ranges, printable
from kimi_inspect.values import Finding, Severity
from kimi_inspect.verdict import Audit, Kept, Loader, Relation, Requantization, Verdict

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

TOLD_ELSEWHERE = frozenset({"component-requantized", "identical"})
"""Findings that are not among those for people: the table of encodings and the head say the same."""

MAX_LINE, MAX_CELL = 1000, 300
"""Characters of a finding and of a cell that are shown; JSON has them whole."""

INDENT = 2

_STYLES = {
    Verdict.DAMAGED: "bold red",
    Verdict.DIFFERENT_MODEL: "bold red",
    Verdict.REDUCED: "bold yellow",
}


def show_audit(console: Console, audit: Audit) -> None:
    """Print an audit."""
    _say(console, _verdict_line(audit))
    for words in _head(audit):
        _say(console, text_of(words))
    console.print()
    _show_findings(console, audit.findings)
    for line in report_head(audit.report) if audit.report else ():
        _say(console, line)
    for title, columns in _tables(audit):
        console.print(text_of(title, "bold"))
        console.print(draw(console, columns, sums=False))
        console.print()
    traffic = audit.traffic
    if traffic.requests:
        console.print(text_of(f"{traffic.requests:,} requests, {traffic.bytes_read / 1e6:,.1f} MB read", "dim"))


def _say(console: Console, line: Text) -> None:
    """Print a line; what does not fit goes on below, set in."""
    if line.cell_len <= console.width:
        console.print(line)
        return
    for number, part in enumerate(line.wrap(console, max(console.width - INDENT, 1))):
        part.rstrip()
        console.print(Text(" " * INDENT if number else "").append_text(part))


def _verdict_line(audit: Audit) -> Text:
    said = MEANINGS[audit.verdict]
    if audit.verdict is Verdict.CONSISTENT and audit.against:
        said = "nothing it says of itself is wrong; the reference tells no more"
    return Text().append(str(audit.verdict), style=_STYLES.get(audit.verdict, "bold green")).append(f": {said}")


def _named(source: str, set_name: str | None) -> str:
    """Name a set of a source, as one would ask for it; of a file the set is that file."""
    return f"{source}:{set_name}" if set_name and not source.endswith((".safetensors", ".gguf")) else source


def _head(audit: Audit) -> Iterator[str]:
    against = f", against {_named(audit.against, audit.against_set)}" if audit.against else ""
    yield _named(audit.candidate, audit.candidate_set) + against
    if audit.report and audit.reference_parameters is not None:
        here = "unknown" if audit.report.parameters is None else f"{audit.report.parameters:,}"
        yield f"{here} parameters here, {audit.reference_parameters:,} in the reference"
    if audit.unchecked_index_bytes is not None:
        size = f"{audit.unchecked_index_bytes / 1e6:,.0f} MB"
        yield f"its index ({size}) was not held against the headers; --check-index does that"
    if audit.identity and audit.identity.relation is not Relation.DISJOINT:
        of = f"{audit.identical_shards} of {audit.shard_count} weight files are the reference's by SHA-256"
        renamed = f", {len(audit.identity.renamed)} under another name" if audit.identity.renamed else ""
        lacking = f", and it lacks {len(audit.identity.missing)} of the reference's" if audit.identity.missing else ""
        yield of + renamed + lacking


def _show_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Print findings, gravest first, and what to do."""
    shown = [item for item in findings if item.code not in TOLD_ELSEWHERE]
    for item in shown:
        line = Text().append(f"{item.severity}: ", style=SEVERITY_STYLES[item.severity])
        line.append(shortened(f"{item.code}, {shortened(item.where, LONGEST)}: {item.message}", MAX_LINE))
        if item.count > 1:
            line.append(f" ({item.count:,} in all)")
        _say(console, line)
        advice = _advice(item)
        if advice and not item.message.endswith(advice):
            console.print(text_of(f"  what to do: {advice}"))
    if not any(item.severity is not Severity.INFO for item in shown):
        console.print("nothing found that is wrong")
    console.print()


def _advice(item: Finding) -> str | None:
    by_code = {Severity.ERROR: ADVICE, Severity.WARNING: ADVICE | MILD_ADVICE, Severity.INFO: {}}
    return by_code[item.severity].get(item.code)


def shortened(text: str, limit: int) -> str:
    """Return printable text, without its end if it is very long: a stranger's name may have a million letters."""
    shown = printable(text[: limit + 1])
    return shown if len(text) <= limit else shown[:limit] + "…"


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
        _left("component", [row[0] for row in rows]),
        _left("reference", [row[1] for row in rows], fold=14),
        _left("here", [row[2] for row in rows], fold=14),
        Column("bits/weight", [row[3] for row in rows], 1),
        Column("GB (10^9)", [gigabytes(row[5]) for row in rows], 2),
        _left("layers", [row[4] for row in rows], 3),
    ]


def _left(title: str, cells: Sequence[str], rank: int = 0, **how: Any) -> Column:
    return Column(title, [shortened(cell, MAX_CELL) for cell in cells], rank, right=False, **how)


def _bits(stored_bytes: int, parameters: int | None) -> str:
    return f"{8 * stored_bytes / parameters:.2f}" if parameters else "?"


def _layers(layers: Sequence[int]) -> str:
    return number_ranges(layers) if layers else "outside"


def _claims(audit: Audit) -> list[Column]:
    rows = audit.claims
    agrees = {True: "yes", False: "no", None: ""}
    return [
        _left("what", [row.subject for row in rows]),
        _left("said by", [row.said_by.replace(", ", " ") for row in rows], fold=18),
        _left("said", [_said(row.said) for row in rows], fold=17),
        _left("counted", [_said(row.counted) for row in rows], fold=17),
        _left("agrees", [agrees[row.agrees] for row in rows], styles={"no": "yellow"}),
    ]


def _said(value: str | int | None) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else value


def _loaders(audit: Audit) -> list[Column]:
    rows = audit.loaders
    return [
        _left("engine", [row.engine for row in rows], fold=20),
        _left("loads it", [str(row.support) for row in rows], styles={"yes": "green", "no": "red"}),
        _left("why", [row.reason for row in rows], fold=40),
        _left("according to", [_rule(row) for row in rows], 1, fold=28),
    ]


def _rule(row: Loader) -> str:
    """Say where the rule comes from, without the engine's name, which stands at the head of the row."""
    return "; ".join(part.removeprefix(f"{row.engine}, ") for part in row.rule.split("; "))
