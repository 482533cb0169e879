"""One file behind an address, and what its answers must agree with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain

from kimi_inspect.errors import RateLimitedError, SourceError, TransportError
from kimi_inspect.http_status import UnsatisfiableRangeError
from kimi_inspect.transport import FileFacts, OpenRange, RangeAnswer, Transport

__all__ = ["PROBE_BYTES", "SHA256", "RemoteFile", "agree", "digest_of"]

PROBE_BYTES = 1 << 20
"""First read of a file whose size nobody has told; the answer tells it."""

MAX_CHANGES = 3
"""Times that answers may tell another size than the one before."""

SHA256 = re.compile(r"[0-9a-f]{64}")


class RemoteFile:
    """One file behind an address.

    Args:
        transport: what fetches.
        url: its address; the signed one that it redirects to serves later parts, as long as it lives.
        path: what to call it.
        size: in bytes by the listing; None if the first answer shall tell. An answer that tells another wins.
        probe_bytes: length of that first read.
        commit, sha256: what every answer that names one must agree with.
    """

    def __init__(
        self,
        transport: Transport,
        url: str,
        *,
        path: str,
        size: int | None,
        probe_bytes: int = PROBE_BYTES,
        commit: str | None = None,
        sha256: str | None = None,
    ) -> None:
        self._transport = transport
        self._url = url
        self._path = path
        self._size = size
        self._probe_bytes = probe_bytes
        self._commit = commit
        self._sha256 = sha256
        self._told: int | None = None
        self._changes = 0
        self._signed: str | None = None
        self._front = b""

    @property
    def size(self) -> int:
        """Length of the file in bytes: by the last answer, else by the listing."""
        if self._size is not None:
            return self._size
        try:
            answer = self._fetch(0, self._probe_bytes)
        except UnsatisfiableRangeError as error:
            if error.file_bytes != 0:
                raise
            self._size = 0  # an empty file has no range to ask for
            return 0
        self._front = answer.data
        return answer.file_bytes

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes from `begin` up to `end`."""
        front = self._front[begin:end]
        return front if len(front) == end - begin else front + self._fetch(begin + len(front), end).data

    @contextmanager
    def stream(self, begin: int, end: int) -> Iterator[Iterator[bytes]]:
        """Give the bytes from `begin` up to `end` as they come, by one request; leave the block when enough came."""
        front = self._front[begin:end]
        if len(front) == end - begin:
            yield iter([front])
            return
        with ExitStack() as stack:
            part = self._open(stack, begin + len(front), end)
            self._learn(part.facts, part.url, part.file_bytes)
            yield chain([front], part.pieces)

    def _open(self, stack: ExitStack, begin: int, end: int) -> OpenRange:
        if self._signed:
            signed = self._transport.open_range(self._signed, begin, end, file=self._path, patient=False)
            try:
                return stack.enter_context(signed)
            except RateLimitedError:
                raise  # it has been waited for
            except SourceError:
                self._signed = None  # expired, most likely: ask for a new one
        return stack.enter_context(self._transport.open_range(self._url, begin, end, file=self._path))

    def _fetch(self, begin: int, end: int) -> RangeAnswer:
        if self._signed:
            try:
                return self._take(self._signed, begin, end)
            except RateLimitedError:
                raise  # it has been waited for
            except SourceError:
                self._signed = None  # expired, most likely: ask for a new one
        return self._take(self._url, begin, end)

    def _take(self, url: str, begin: int, end: int) -> RangeAnswer:
        answer = self._transport.read_range(url, begin, end, file=self._path, patient=url == self._url)
        self._learn(answer.facts, answer.url, answer.file_bytes)
        return answer

    def _learn(self, facts: FileFacts, url: str, file_bytes: int) -> None:
        """Hold an answer against the listing, and keep what it told."""
        agree(facts, commit=self._commit, sha256=self._sha256, path=self._path)
        self._changes += self._told not in (None, file_bytes)
        if self._changes > MAX_CHANGES:
            problem = "the server tells another size at every answer"
            raise TransportError(problem, file=self._path, expected=self._told, actual=file_bytes)
        if url != self._url:
            self._signed = url
        self._size = self._told = file_bytes


def agree(facts: FileFacts, *, commit: str | None, sha256: str | None, path: str) -> None:
    """Hold what an answer says of a file against the listing.

    Raises:
        TransportError: it is of another commit, or another file.
    """
    for what, expected, actual in (("commit", commit, facts.commit), ("SHA-256", sha256, digest_of(facts.etag))):
        if expected and actual and expected != actual:
            raise TransportError(
                f"the server sends a file of another {what} than the listing says; start again",
                file=path,
                expected=expected,
                actual=actual,
            )


def digest_of(etag: str | None) -> str | None:
    """Return the SHA-256 in an ETag: quoted, weak or bare, but 64 hex digits and no more."""
    bare = (etag or "").removeprefix("W/").strip('"')
    return bare if SHA256.fullmatch(bare) else None
