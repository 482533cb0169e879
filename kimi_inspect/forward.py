"""Reads a file from the front as one stream that is closed early, where nobody knows how long the header is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from kimi_inspect.errors import (
    GatedRepositoryError,
    RateLimitedError,
    RepositoryNotFoundError,
    SourceError,
    SourceFileNotFoundError,
    TransportError,
)
from kimi_inspect.sources import ByteSource

__all__ = ["Forward", "StreamedSource"]


FINAL = (RepositoryNotFoundError, SourceFileNotFoundError, GatedRepositoryError, RateLimitedError)
"""What a second request would meet as well; a limit has been waited for."""


@runtime_checkable
class StreamedSource(ByteSource, Protocol):
    """A source that can hand over bytes while they still come."""

    def stream(self, begin: int, end: int) -> AbstractContextManager[Iterator[bytes]]:
        """Give the bytes from `begin` up to `end` in pieces; leaving the block early ends the transfer."""


class Forward:
    """A source that is read on from where the last read ended, in one stream from the byte `since` on.

    Reads before that, and all reads of a source that cannot stream, are plain ones. A stream that breaks off is given
    up for a plain read, which tries again as long as that makes sense.

    Args:
        source: what is read.
        since: where the stream begins at the earliest.
        until: where it ends at the latest.
    """

    def __init__(self, source: ByteSource, *, since: int, until: int) -> None:
        self._source = source
        self._since = since
        self._until = until
        self._stream = ExitStack()
        self._pieces: Iterator[bytes] | None = None
        self._at: int | None = None
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stream.close()

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes from `begin` up to `end`."""
        source = self._source
        if not isinstance(source, StreamedSource) or not self._since <= begin < end <= self._until:
            return source.read(begin, end)
        try:
            if self._at != begin:
                self._open(source, begin)
            data = self._next(end - begin)
        except SourceError as error:
            self._at = None
            self._stream.close()
            if isinstance(error, FINAL) and self._pieces is None:
                raise
            return source.read(begin, end)
        self._at = end
        return data

    def _open(self, source: StreamedSource, begin: int) -> None:
        self._stream.close()
        self._pieces = None
        self._pieces = self._stream.enter_context(source.stream(begin, self._until))
        self._rest = b""

    def _next(self, count: int) -> bytes:
        """Take `count` bytes from the stream."""
        parts = [self._rest]
        missing = count - len(self._rest)
        while missing > 0:
            piece = next(self._pieces or iter(()), None)
            if piece is None:
                raise TransportError("the stream has ended early", expected=count, actual=count - missing)
            parts.append(piece)
            missing -= len(piece)
        data = b"".join(parts)
        self._rest = data[count:]
        return data[:count]
