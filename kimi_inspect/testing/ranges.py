"""A file, or the part of it that was asked for: Range, If-Range and If-None-Match by RFC 9110."""

from __future__ import annotations

import re

from kimi_inspect.testing.hollow import HollowFile
from kimi_inspect.testing.wire import Answer, Body, Headers, Kind, Request, bytes_body

__all__ = ["content_range", "file_answer", "requested_range", "unsatisfiable"]

_SINGLE_RANGE = re.compile(r"bytes=(?:(\d+)-(\d*)|-(\d+))", re.IGNORECASE)


def requested_range(value: str | None, size: int) -> tuple[int, int] | None:
    """Return the half-open range that a Range header asks of a file of `size` bytes, clipped at its end.

    None when the whole file is to be sent: no header, one that breaks the grammar, or several ranges. An empty range
    is one that cannot be satisfied.
    """
    match = _SINGLE_RANGE.fullmatch(value.strip()) if value else None
    if match is None:
        return None
    first, last, suffix = match.groups()
    if suffix is not None:
        return max(0, size - int(suffix)), size
    if last and int(last) < int(first):
        return None
    end = min(int(last) + 1, size) if last else size
    return min(int(first), end), end


def content_range(begin: int, end: int, size: int) -> str:
    """Return a Content-Range value for the half-open [`begin`, `end`); on the wire the last byte is included."""
    return f"bytes {begin}-{end - 1}/{size}"


def unsatisfiable(size: int) -> Answer:
    """Return a 416, which tells the size of the file in bytes."""
    return Answer(416, (("Content-Range", f"bytes */{size}"),), bytes_body(b"Range Not Satisfiable\n"))


def file_answer(request: Request, file: HollowFile, *, etag: str, headers: Headers, kind: Kind) -> Answer:
    """Return the 200, 206, 304 or 416 for `file`, whose strong entity tag is `etag`, quotes included."""
    common: Headers = (("ETag", etag), ("Accept-Ranges", "bytes"), *headers)
    if request.headers.get("if-none-match") in {etag, "W/" + etag, "*"}:
        return Answer(304, common)
    wanted = None
    # Range has no meaning but for GET, and If-Range takes it back when the file is another by now.
    if request.method == "GET" and request.headers.get("if-range", etag) == etag:
        wanted = requested_range(request.headers.get("range"), file.size)
    if wanted is None:
        return Answer(200, common, Body(file, 0, file.size), kind)
    begin, end = wanted
    if begin >= end:
        return unsatisfiable(file.size)
    partial: Headers = (*common, ("Content-Range", content_range(begin, end, file.size)))
    return Answer(206, partial, Body(file, begin, end), kind)
