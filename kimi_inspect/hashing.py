"""The digest of one file: a unit of work that any process on any machine can do, given a path that it sees.

A file is read from the front into one buffer that is used again and again. hashlib lets other threads run meanwhile, so
as many files as there are cores are hashed at full speed. What the reads bring into the page cache is dropped behind
them; what was in it before, because others use the file, stays.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection
from stat import S_ISDIR, S_ISREG
from typing import IO, Any

from attrs import frozen

__all__ = ["GIT_SHA1", "SHA256", "DigestTask", "Digested", "Mark", "digest_file"]

SHA256, GIT_SHA1 = "sha256", "git-sha1"
"""The digests: of the content, and git's id of it, the SHA-1 of `blob <size>`, a NUL, and the content."""

BUFFER_BYTES = 1 << 20
SEGMENT_BYTES = 32 << 20
"""What is judged, dropped and told at a time."""

_SPOTS = 3
"""Places of a segment that are looked at to see whether it is in the page cache."""

_PAGE_BYTES = 4096

Tell = Callable[[int], object]
"""Is told how many bytes more have been hashed; what it raises ends the work."""


@frozen(kw_only=True)
class Mark:
    """What tells a file that has not been written to since: none of it changes by itself.

    Attributes:
        size: in bytes.
        mtime_ns: time of the last change, in nanoseconds.
        inode, device: which file it is.
    """

    size: int
    mtime_ns: int
    inode: int
    device: int

    @classmethod
    def of(cls, status: os.stat_result) -> Mark:
        """Make it of what the system says of a file."""
        return cls(size=status.st_size, mtime_ns=status.st_mtime_ns, inode=status.st_ino, device=status.st_dev)


@frozen(kw_only=True)
class DigestTask:
    """One file to be hashed.

    Attributes:
        path: where the work is done.
        algorithms: which digests are wanted.
        nonce: makes it another task than any before: some executors give the kept result of an equal one.
    """

    path: str
    algorithms: tuple[str, ...]
    nonce: str = ""


@frozen(kw_only=True)
class Digested:
    """What came of a task.

    Attributes:
        digests: algorithm and hex digits; none if there is a problem.
        bytes: how many were hashed.
        problem: why there is no digest, or None.
        changed: the problem is that somebody writes to the file.
    """

    digests: tuple[tuple[str, str], ...] = ()
    bytes: int = 0
    problem: str | None = None
    changed: bool = False


def digest_file(task: DigestTask, tell: Tell | None = None) -> Digested:
    """Hash one file. What is wrong with it is told in the result; nothing is raised but what `tell` raises."""
    try:
        with open(task.path, "rb", buffering=0, opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            if not S_ISREG(status.st_mode):
                return Digested(problem="a folder" if S_ISDIR(status.st_mode) else "no regular file")
            digests = _hashed(file, status.st_size, task.algorithms, tell or (lambda _: None))
            same = Mark.of(os.fstat(file.fileno())) == Mark.of(status)
    except OSError as error:
        return Digested(problem="a folder" if isinstance(error, IsADirectoryError) else error.strerror or str(error))
    if digests is None or not same:
        return Digested(problem="it changed while it was read", changed=True)
    return Digested(digests=digests, bytes=status.st_size)


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for somebody to write, if it is a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _hashed(file: IO[bytes], size: int, algorithms: Collection[str], tell: Tell) -> tuple[tuple[str, str], ...] | None:
    """Hash a file of `size` bytes; None if it ends before that."""
    states = [_started(algorithm, size) for algorithm in algorithms]
    buffer = memoryview(bytearray(min(BUFFER_BYTES, max(size, 1))))
    pages = _Pages(file.fileno())
    for begin in range(0, size, SEGMENT_BYTES):
        end = min(begin + SEGMENT_BYTES, size)
        foreign = pages.hold(begin, end)
        left = end - begin
        while left:
            count: int = file.readinto(buffer[:left])  # type: ignore[attr-defined] # it is a raw file
            if not count:
                return None
            for state in states:
                state.update(buffer[:count])
            left -= count
        if not foreign:
            pages.drop(begin, end)
        tell(end - begin)
    return tuple((algorithm, state.hexdigest()) for algorithm, state in zip(algorithms, states, strict=True))


def _started(algorithm: str, size: int) -> Any:
    if algorithm == SHA256:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)


class _Pages:
    """The pages of a file in the system's cache; where it takes no advice, nothing is done."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._advise = getattr(os, "posix_fadvise", None)
        if self._advise:
            self._advise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def hold(self, begin: int, end: int) -> bool:
        """Whether that part is cached already: somebody uses it.

        What our own reading ahead brings is found in the first part of a segment only, so that is not looked at.
        """
        if not self._advise:
            return True
        step = (end - begin) // _SPOTS
        spots = [end - 1 - number * step for number in range(_SPOTS)]
        return all(self._is_cached(spot) for spot in spots)

    def _is_cached(self, spot: int) -> bool:
        """Read one byte, if that needs no disk; where the file system cannot tell, what we read is taken for ours."""
        try:
            return bool(os.preadv(self._descriptor, [bytearray(1)], spot, os.RWF_NOWAIT))
        except (OSError, AttributeError):
            return False

    def drop(self, begin: int, end: int) -> None:
        """Let the system use those pages for others; it keeps those that are mapped or not yet written."""
        if self._advise:
            length = -(-(end - begin) // _PAGE_BYTES) * _PAGE_BYTES
            self._advise(self._descriptor, begin, length, os.POSIX_FADV_DONTNEED)
