"""Tables fit their terminal, keep their sums, and obey nothing that a file says."""

from __future__ import annotations

import io

import attrs
import pytest
from rich.console import Console

import kimi_inspect as ki
from kimi_inspect.drawing import gigabytes
from kimi_inspect.tables import report_table, show_findings, show_report
from kimi_inspect.testing import HollowFile

BY = ("component", "layer", "file", "encoding")


@pytest.fixture(scope="module")
def report(kimi: dict[str, HollowFile]) -> ki.Report:
    return ki.inspect(kimi)


def drawn(report: ki.Report, by: str, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    with console.capture() as capture:
        console.print(report_table(console, report, by))
    return capture.get().splitlines()


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 160, 400])
def test_a_table_is_never_wider_than_its_terminal_and_cuts_no_number(report: ki.Report, by: str, width: int) -> None:
    lines = drawn(report, by, width)
    assert max(map(len, lines)) <= width
    rows = {
        "component": report.components,
        # Layers that are made alike share the lines of their components: 0, 1 and 2, 3, and what stands outside.
        "layer": [part for row in report.by_layer() if row.layer in (None, 0, 1, 3) for part in row.components],
        "file": report.by_file(),
        "encoding": report.by_encoding(),
    }
    assert len(lines) == len(rows[by]) + 2
    if width >= 60:
        assert not any("…" in line for line in lines)


@pytest.mark.parametrize("by", BY)
def test_a_wider_terminal_shows_more_columns(report: ki.Report, by: str) -> None:
    counts = [len(drawn(report, by, width)[0].split()) for width in (60, 100, 400)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


@pytest.mark.parametrize("by", BY)
def test_the_last_row_holds_the_sums(report: ki.Report, by: str) -> None:
    last = drawn(report, by, 400)[-1]
    assert "sum" in last
    assert f"{report.file_bytes if by == 'file' else report.tensor_bytes:,}" in last


def test_unknown_parameters_are_called_so(report: ki.Report) -> None:
    document = report.to_dict()
    document["components"][0]["encodings"][0]["parameters"] = None
    document["parameters"] = None
    lines = drawn(ki.Report.from_dict(document), "component", 200)
    assert "unknown" in lines[1]
    assert "unknown" in lines[-1]


@pytest.mark.parametrize(("layers", "text"), [(1, "8 routed experts in 1 layer,"), (4, "in each of 4 layers,")])
def test_experts_are_counted_by_the_layer(report: ki.Report, layers: int, text: str) -> None:
    assert report.experts is not None
    experts = attrs.evolve(report.experts, layers=layers, per_layer_min=8, per_layer_max=8, declared=8)
    console = Console(file=io.StringIO(), width=200)
    with console.capture() as capture:
        show_report(console, attrs.evolve(report, experts=experts), by="component")
    assert text in capture.get()


@pytest.mark.parametrize(("count", "text"), [(0, "0.00"), (1_561_293_160_568, "1,561.29"), (5_000_000, "0.01")])
def test_gigabytes_are_decimal(count: int, text: str) -> None:
    assert gigabytes(count) == text


def test_findings_are_shown_safely_with_their_severity() -> None:
    evil = ki.Finding(
        code="gap", severity=ki.Severity.ERROR, where="a\x1b[2Jb", message="[red]markup[/red]\nnext", count=12
    )
    console = Console(file=io.StringIO(), width=200, highlight=False)
    with console.capture() as capture:
        show_findings(console, [evil])
    assert capture.get() == "error: gap, a\\x1b[2Jb: [red]markup[/red]\\nnext (12 in all)\n"


@pytest.mark.parametrize(
    ("severity", "calm"),
    [(ki.Severity.ERROR, False), (ki.Severity.WARNING, False), (ki.Severity.INFO, True), (None, True)],
)
def test_a_report_says_that_nothing_is_wrong_only_where_it_is_so(
    report: ki.Report, severity: ki.Severity | None, calm: bool
) -> None:
    findings = [ki.Finding(code="gap", severity=severity, where="there", message="so")] if severity else []
    console = Console(file=io.StringIO(), width=200)
    with console.capture() as capture:
        show_report(console, attrs.evolve(report, findings=tuple(findings)))
    assert ("nothing found that is wrong" in capture.get()) is calm
