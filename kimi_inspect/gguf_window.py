"""The bytes of a header read so far, and the reading of values from them: it asks for more only at their end."""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import Any, TypeVar

from kimi_inspect.errors import HeaderTooLargeError, TruncatedError
from kimi_inspect.header import malformed
from kimi_inspect.values import ByteRange

__all__ = ["PAIR_WORK", "ROW_WORK", "Step", "Window"]

T = TypeVar("T")

MAX_WORK = 4_000_000
"""Strings of arrays that are kept, and what costs as much; a header with more would take long to loop over."""

PAIR_WORK, ROW_WORK = 8, 4
"""What a key-value or a nested array costs, and a tensor, in such strings."""

Step = Generator[ByteRange, bytes, T]
"""Part of a plan: asks for the bytes it lacks, returns what it read."""


class Window:
    """A place in a file that is read from the front.

    Attributes:
        data: the bytes read so far, from the start of the file.
        at: the place: where the next value starts.
        order: ``<`` or ``>``, as the `struct` module writes byte orders.
        wide: counts and lengths have 64 bits, else 32.
    """

    def __init__(self, file: str, file_bytes: int, *, first_read: int, max_read: int, max_header_bytes: int) -> None:
        self.file = file
        self.file_bytes = file_bytes
        self.data = bytearray()
        self.at = 0
        self.order = "<"
        self.wide = True
        self._work = 0
        self._next_read = max(first_read, 1)
        self._max_read = max_read
        self._max_header_bytes = max_header_bytes

    def spend(self, count: int) -> None:
        """Count what is looped over one by one, and refuse more than any header has."""
        self._work += count
        if self._work > MAX_WORK:
            malformed("the header holds more key-values, arrays or tensors than any does", self.file, offset=self.at)

    def expect(self, count: int, what: str) -> None:
        """Refuse what would need more bytes than the file has left, before any of it is read or looped over."""
        left = max(self.file_bytes - self.at, 0)
        if count > left:
            raise TruncatedError(
                f"the file ends inside {what}, or its counts are wrong; download it again",
                file=self.file,
                offset=self.at,
                expected=f"{count:,} bytes" if count < 2**128 else "more bytes than any file has",
                actual=f"{left:,} bytes",
            )

    def need(self, count: int, what: str) -> Step[None]:
        """Have `count` bytes from the place on."""
        self.expect(count, what)
        end = self.at + count
        if end > self._max_header_bytes:
            raise HeaderTooLargeError(
                f"the header has at least {end:,} bytes; raise max_header_bytes if that is right",
                file=self.file,
                offset=self.at,
                expected=f"at most {self._max_header_bytes:,} bytes",
                actual=end,
            )
        while len(self.data) < end:
            until = min(len(self.data) + self._next_read, self._max_header_bytes, self.file_bytes)
            until = max(until, end)
            self.data += yield ByteRange(len(self.data), until)
            self._next_read = max(self._next_read, min(2 * self._next_read, self._max_read))

    def skip(self, count: int, what: str) -> Step[None]:
        """Step over bytes that are inside the file; the next value asks for what follows them."""
        yield from self.need(count, what)
        self.at += count

    def numbers(self, form: str, count: int) -> Step[list[Any]]:
        """Read numbers of one type."""
        layout = f"{self.order}{count}{form}"
        size = struct.calcsize(layout)
        yield from self.need(size, "a number")
        values = list(struct.unpack_from(layout, self.data, self.at))
        self.at += size
        return values

    def number(self, form: str, what: str) -> Step[Any]:
        """Read one number."""
        size = struct.calcsize("<" + form)
        yield from self.need(size, what)
        (value,) = struct.unpack_from(self.order + form, self.data, self.at)
        self.at += size
        return value

    def count(self, what: str) -> Step[int]:
        """Read a count or a length, whose width depends on the version."""
        value: int = yield from self.number("Q" if self.wide else "I", what)
        return value

    def text(self, what: str) -> Step[str]:
        """Read a string; bytes in it that are not UTF-8 come out as escapes."""
        length = yield from self.count(what)
        yield from self.need(length, what)
        raw = self.data[self.at : self.at + length]
        self.at += length
        return raw.decode(errors="backslashreplace")

    def name(self, what: str) -> Step[str]:
        """Read a string that has to be UTF-8."""
        begin = self.at
        text = yield from self.text(what)
        raw = bytes(self.data[self.at - len(text.encode()) : self.at])
        if raw != text.encode():
            malformed(f"{what} is not UTF-8", self.file, offset=begin, actual=repr(text[:60]))
        return text

    def strings(self, count: int, *, keep: bool) -> Step[list[str]]:
        """Read `count` strings, or step over them: a tokenizer has hundreds of thousands."""
        if keep:
            self.spend(count)
            kept = []
            for _ in range(count):
                kept.append((yield from self.text("a string")))
            return kept
        left = count
        while left:
            left = self._step_over(left)
            if left:
                length = yield from self.count("a string")
                yield from self.skip(length, "a string")
                left -= 1
        return []

    def _step_over(self, count: int) -> int:
        """Step over whole strings inside the window, `count` at most; return how many are left."""
        length_of = struct.Struct(self.order + ("Q" if self.wide else "I"))
        unpack, width = length_of.unpack_from, length_of.size
        data, at, end = self.data, self.at, len(self.data)
        while count and at + width <= end:
            (length,) = unpack(data, at)
            if at + width + length > end:
                break
            at += width + length
            count -= 1
        self.at = at
        return count
