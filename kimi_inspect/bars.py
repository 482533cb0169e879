"""The bar that is drawn while a verb works: how much is done, and of bytes how fast, and how long the rest takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich import progress as bars
from rich.console import Console
from rich.text import Text

from kimi_inspect.text import printable
from kimi_inspect.values import Progress, ProgressCallback

__all__ = ["amount", "drawn_progress"]


@contextmanager
def drawn_progress(console: Console) -> Iterator[ProgressCallback]:
    """Give a callback that draws a bar."""
    columns = (
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        _AmountColumn(),
        bars.TimeElapsedColumn(),
    )
    with bars.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        subject, phase = "", ""

        def tell(progress: Progress) -> None:
            nonlocal subject, phase
            if progress.unit == "checkpoints":  # what follows is of this one
                subject = f"{printable(progress.path)}: " if progress.path else ""
                return
            if progress.phase != phase:  # the rate of one is not that of another
                phase = progress.phase
                bar.reset(task)
            described = subject + progress.phase
            bar.update(task, description=described, completed=progress.done, total=progress.total, unit=progress.unit)

        yield tell


class _AmountColumn(bars.ProgressColumn):
    """Says how much is done."""

    def render(self, task: bars.Task) -> Text:
        """Write the words of one task."""
        return Text(amount(task.completed, task.total, task.fields.get("unit", ""), task.speed, task.time_remaining))


def amount(done: float, total: float | None, unit: str, rate: float | None, left: float | None) -> str:
    """Write how much is done; of bytes also the rate, and the time left in seconds as minutes or hours.

    Args:
        done: how much.
        total: of how much, or None.
        unit: of what.
        rate: in units a second, or None.
        left: seconds that the rest will take, or None.
    """
    if unit != "bytes":
        return f"{done:,.0f}/{'?' if total is None else f'{total:,.0f}'}"
    words = f"{done / 1e9:,.2f} of {(total or 0) / 1e9:,.2f} GB"
    if rate:
        words += f", {rate / 1e9:.2f} GB/s"
    if left is not None:
        minutes, seconds = divmod(int(left), 60)
        hours, minutes = divmod(minutes, 60)
        words += f", {hours} h {minutes} min left" if hours else f", {minutes} min {seconds} s left"
    return words
