"""Digests that are remembered, so that a check which was stopped goes on where it was.

One file a folder, of one line a digest: a checksum, and in JSON the path, what tells the file that was hashed (size,
mtime in nanoseconds, inode, device), the algorithm and the digest. A line is appended by one write, and a line whose
checksum is wrong is passed over: whenever the process dies, what was remembered before stays, and nothing else is
believed. It lies beside the cached headers, never in the folder itself, which may be read-only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from typing import Any

from kimi_inspect.hashing import GIT_SHA1, SHA256, Mark
from kimi_inspect.written import write_whole

__all__ = ["Disproved", "Journal", "Memory", "journal_file", "open_memory"]

MAX_BYTES = 64 * 1024 * 1024
"""A longer journal is no journal: a line has some 250 bytes, and the largest folders some thousand files."""

SPARE_LINES = 1000
"""Lines that stand for nothing any more, after which the journal is written anew."""

_FORMS = {SHA256: re.compile("[0-9a-f]{64}"), GIT_SHA1: re.compile("[0-9a-f]{40}")}

_CAREFUL = getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Opens a file as bytes, follows no link, and waits for no other end of a pipe."""

Key = tuple[str, Mark, str]
"""A path in the folder, the file that stood there, and an algorithm."""


class Memory:
    """Digests by file, as long as the object lives."""

    def __init__(self) -> None:
        self._digests: dict[Key, str] = {}
        self.notes: tuple[str, ...] = ()

    def recall(self, path: str, mark: Mark, algorithm: str) -> str | None:
        """Return the digest of a file that has not changed since, or None."""
        return self._digests.get((path, mark, algorithm))

    def remember(self, path: str, mark: Mark, algorithm: str, digest: str) -> None:
        """Keep a digest."""
        self._digests[path, mark, algorithm] = digest


class Journal(Memory):
    """Digests by file, kept in a file of its own from one call to the next; nothing it does can fail a call."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file
        self._usable = _may_be_journal(file)
        if not self._usable:
            self.notes = (f"no journal is kept, for its place is taken by what is no file: {file}",)
        lines = _lines(file) if self._usable else []
        # Of a path only what was found last can still be so.
        latest = {(key[0], key[2]): (key, digest) for key, digest in filter(None, map(_entry, lines or []))}
        self._digests.update(latest.values())
        self._ends_whole = not lines or lines[-1] == b""
        if lines is None or len(lines) > len(self._digests) + SPARE_LINES:
            self._rewrite()

    def remember(self, path: str, mark: Mark, algorithm: str, digest: str) -> None:
        """Keep a digest, and write it down at once."""
        super().remember(path, mark, algorithm, digest)
        if self._usable:
            try:
                self._append(_line((path, mark, algorithm), digest))
            except OSError as error:
                self._usable = False
                self.notes = (f"no journal is kept: {self._file} cannot be written: {error.strerror or error}",)

    def _append(self, line: bytes) -> None:
        handle = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _CAREFUL, 0o600)
        try:
            if S_ISREG(os.fstat(handle).st_mode):
                # What a dead process left of a line is ended, so that it does not swallow this one.
                data = line if self._ends_whole else b"\n" + line
                self._ends_whole = os.write(handle, data) == len(data)
        finally:
            os.close(handle)

    def _rewrite(self) -> None:
        with suppress(OSError):
            write_whole(self._file, b"".join(_line(*item) for item in self._digests.items()))
            self._ends_whole = True


class Disproved(Memory):
    """What a call remembers that believes no journal: where it finds what is not as written, it corrects that."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def remember(self, path: str, mark: Mark, algorithm: str, digest: str) -> None:
        """Keep a digest."""
        super().remember(path, mark, algorithm, digest)
        if self._journal.recall(path, mark, algorithm) not in (None, digest):
            self._journal.remember(path, mark, algorithm, digest)


def journal_file(folder: Path) -> Path | None:
    """Return where digests of the files in a folder are remembered; None where no such place can be made."""
    from huggingface_hub import cached_assets_path, constants

    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]
    try:
        place = cached_assets_path("kimi_inspect", "verified", "v1", assets_dir=constants.HF_ASSETS_CACHE)
    except (OSError, ValueError):
        return None
    return place / f"{name}.journal"


def open_memory(folder: Path, *, believed: bool) -> Memory:
    """Open the journal of a folder.

    Where it is not believed, or none can be kept, digests are known until the call ends.
    """
    file = journal_file(folder)
    if not believed:
        return Disproved(Journal(file)) if file and file.exists() else Memory()
    if file is None:
        memory = Memory()
        memory.notes = ("no journal is kept: no folder for it can be made below huggingface_hub's folder for assets",)
        return memory
    return Journal(file)


def _may_be_journal(file: Path) -> bool:
    """Whether a file is there, or can be made: no link, pipe or device, which would lead or wait elsewhere."""
    try:
        return S_ISREG(file.lstat().st_mode)
    except OSError:
        return True


def _lines(file: Path) -> list[bytes] | None:
    """Read the lines of a journal; none where it cannot be one, or is not this user's own; None if it is too long."""
    with suppress(OSError), os.fdopen(os.open(file, os.O_RDONLY | _CAREFUL), "rb") as stream:
        status = os.fstat(stream.fileno())
        if not S_ISREG(status.st_mode):
            return []
        if not hasattr(os, "getuid") or status.st_uid == os.getuid():
            return stream.read().split(b"\n") if status.st_size <= MAX_BYTES else None
    return []


def _line(key: Key, digest: str) -> bytes:
    path, mark, algorithm = key
    body = json.dumps([path, mark.size, mark.mtime_ns, mark.inode, mark.device, algorithm, digest]).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _entry(line: bytes) -> tuple[Key, str] | None:
    """Read a line; None where it is not as it was written."""
    checksum, _, body = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(body):
        return None
    try:
        path, *numbers, algorithm, digest = _values(body)
    except (ValueError, TypeError, RecursionError):
        return None
    if not _FORMS[algorithm].fullmatch(digest):
        return None
    return (path, Mark(**dict(zip(("size", "mtime_ns", "inode", "device"), numbers, strict=True))), algorithm), digest


def _values(body: bytes) -> Iterator[Any]:
    """Return the seven values of a line, all of their types."""
    values = json.loads(body)
    types = (str, int, int, int, int, str, str)
    if not isinstance(values, list) or tuple(map(type, values)) != types or values[5] not in _FORMS:
        raise TypeError
    return iter(values)
