"""How tables are drawn: as many columns as the terminal holds, in decimal units, and nothing that it would obey."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import field, frozen
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from kimi_inspect.report import bits_per_weight
from kimi_inspect.text import printable
from kimi_inspect.values import Severity

__all__ = [
    "SEVERITY_STYLES",
    "UNKNOWN",
    "WIDE",
    "Column",
    "bits_a_weight",
    "draw",
    "exact",
    "gigabytes",
    "output",
    "percent",
    "text_of",
]

SEVERITY_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "dim"}

UNKNOWN = "unknown"

WIDE = 400
"""Columns of output that goes to a file or a pipe: no table is cut there."""

GAP = 2
"""Spaces between two columns."""


@frozen
class Column:
    """A column of a table.

    Attributes:
        cells: one text a row, the row of sums last.
        rank: columns of the highest rank are left out first where the terminal is narrow; 0 always stays.
        fold: characters that are left to a column whose cells may be folded into several lines; None of others.
        styles: by cell, how that is written.
    """

    title: str
    cells: Sequence[str]
    rank: int = 0
    right: bool = True
    fold: int | None = None
    styles: Mapping[str, str] = field(factory=dict)

    @property
    def width(self) -> int:
        """Characters of the longest cell, or of the title."""
        return max(map(cell_len, [*self.title.splitlines(), *map(printable, self.cells)]), default=0)

    @property
    def least(self) -> int:
        """Characters that the column may not do without."""
        return self.width if self.fold is None else min(self.fold, self.width)


def text_of(words: str, style: str = "") -> Text:
    """Make printable text: no terminal escape and no markup in it is obeyed."""
    return Text(printable(words), style=style)


def gigabytes(nbytes: int) -> str:
    """Write bytes in decimal gigabytes."""
    return f"{nbytes / 1e9:,.2f}"


def exact(number: int | None) -> str:
    """Write a count with its thousands set off."""
    return UNKNOWN if number is None else f"{number:,}"


def percent(part: int, whole: int) -> str:
    """Write a part in per cent of the whole."""
    if not whole:
        return ""
    return "< 0.01 %" if 0 < part < whole / 20_000 else f"{100 * part / whole:.2f} %"


def bits_a_weight(stored_bytes: int, parameters: int | None) -> str:
    """Write bits for each parameter; nothing where there is none or their number is not known."""
    number = bits_per_weight(stored_bytes, parameters)
    return "" if number is None else f"{number:.2f}"


def draw(console: Console, columns: Sequence[Column], *, sums: bool = True) -> Table:
    """Build the table with as many columns as fit the console; `sums` sets the last row off."""
    ranks = sorted({column.rank for column in columns}, reverse=True)
    choices = [[column for column in columns if column.rank <= rank] for rank in ranks]
    for chosen in choices:
        spare = console.width - GAP * (len(chosen) - 1) - sum(column.least for column in chosen)
        if spare >= 0:
            return _table(chosen, _widths(chosen, spare), sums)
    return _table(choices[-1], [None] * len(choices[-1]), sums)


def _widths(columns: Sequence[Column], spare: int) -> list[int | None]:
    """Return how wide each column that folds is, the narrowest widened first; None of others."""
    widths, whole = [column.least for column in columns], [column.width for column in columns]
    for _ in range(spare):
        growing = [place for place, width in enumerate(widths) if width < whole[place]]
        if not growing:
            break
        widths[min(growing, key=widths.__getitem__)] += 1
    return [None if column.fold is None else width for column, width in zip(columns, widths, strict=True)]


def _table(columns: Sequence[Column], widths: Sequence[int | None], sums: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    folds = any(column.fold is not None for column in columns)
    for column, width in zip(columns, widths, strict=True):
        justify: JustifyMethod = "right" if column.right else "left"
        table.add_column(
            column.title,
            justify=justify,
            vertical="top" if folds else "bottom",
            no_wrap=column.fold is None,
            overflow="ellipsis" if column.fold is None else "fold",
            width=width,
        )
    rows = list(zip(*(column.cells for column in columns), strict=True))
    for number, row in enumerate(rows, 1):
        last = sums and number == len(rows)
        texts = [text_of(cell, column.styles.get(cell, "")) for column, cell in zip(columns, row, strict=True)]
        table.add_row(*texts, style="bold" if last else "", end_section=sums and number == len(rows) - 1)
    return table


class _Output(Console):
    """A console that leaves it to the command line what a reader that has gone away means."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def output(*, stderr: bool = False) -> Console:
    """Make the console for results: as wide as the terminal, or as the table where no terminal cuts it."""
    console = _Output(highlight=False, stderr=stderr)
    return console if console.is_terminal else _Output(highlight=False, stderr=stderr, width=WIDE)
