"""Text from strangers, made safe to print."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["number_ranges", "plural", "printable", "quoted", "were"]

MAX_RUNS = 3
"""Runs of numbers that are written out in one line."""

LONGEST = 200
"""Characters of a stranger's name that a message repeats."""


def printable(text: str) -> str:
    r"""Return `text` with every character that a terminal may obey written as an escape such as ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def quoted(name: str) -> str:
    """Return a name in quotes, printable, its end cut off if it is very long."""
    return repr(name if len(name) <= LONGEST else name[:LONGEST] + "…")


def plural(number: int, what: str) -> str:
    """Write how many there are of something."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def were(number: int) -> str:
    """Return the verb for so many."""
    return "was" if number == 1 else "were"


def number_ranges(numbers: Sequence[int]) -> str:
    """Write ascending numbers with runs drawn together: ``0-2, 4``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    shown = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs[:MAX_RUNS]]
    return ", ".join(shown) + (f", … ({len(numbers)})" if len(runs) > MAX_RUNS else "")
