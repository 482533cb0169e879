"""How a parser asks for bytes: a generator that yields the range it needs and is sent those bytes.

The parser never fetches and the fetcher never parses, so one parser serves files, HTTP and tests.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from kimi_inspect.values import ByteRange

__all__ = ["Plan", "run"]

T = TypeVar("T")

Plan = Generator[ByteRange, bytes, T]
"""Yields non-empty ranges inside the file, is sent exactly their bytes, returns the parsed value."""


def run(plan: Plan[T], read: Callable[[int, int], bytes], *, turn: AbstractContextManager[object] | None = None) -> T:
    """Drive `plan` with `read(begin, end)` until it returns its value; parse only inside `turn`, if one is given."""
    turn = turn or nullcontext()
    try:
        wanted = next(plan)
        while True:
            data = read(wanted.begin, wanted.end)
            with turn:
                wanted = plan.send(data)
    except StopIteration as stop:
        value: T = stop.value
        return value
