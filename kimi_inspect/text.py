"""Text from strangers, made safe to print."""

from __future__ import annotations

__all__ = ["printable", "quoted"]

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
