"""What is said of a file, given what was expected and what was seen: no file is touched here."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from kimi_inspect.digesting import Answer
from kimi_inspect.errors import KimiInspectError, SourceError
from kimi_inspect.fronts import Front
from kimi_inspect.hashing import GIT_SHA1, SHA256
from kimi_inspect.tree import Entry
from kimi_inspect.verification import HEADER_BYTES, HEADER_SHA256, FileVerification, Status

__all__ = ["Expected", "by_answer", "by_header", "by_look", "by_own_header", "unhashed", "unknown"]


@frozen(kw_only=True)
class Expected:
    """One file as it should be; what is not known is None.

    Attributes:
        path: from the root of the folder.
        bytes: its size.
        sha256, git_sha1: its digests, in hex.
        header_sha256: of its first `header_bytes` bytes.
        header_bytes: everything before its data.
        masked: the source is one that shows digests, with access.
    """

    path: str
    bytes: int | None = None
    sha256: str | None = None
    git_sha1: str | None = None
    header_sha256: str | None = None
    header_bytes: int | None = None
    masked: bool = False

    @property
    def digest(self) -> tuple[str, str] | None:
        """The algorithm and digest to hold it against: the stronger that is known."""
        if self.sha256:
            return SHA256, self.sha256
        return (GIT_SHA1, self.git_sha1) if self.git_sha1 else None


def _found(file: Expected, status: Status, size: int | None, **more: Any) -> FileVerification:
    algorithm, digest = file.digest or (None, None)
    values = {"algorithm": algorithm, "expected": digest, **more}
    return FileVerification(path=file.path, status=status, bytes=size, **values)


def by_look(expected: Expected, entry: Entry, *, partial: str | None) -> FileVerification | None:
    """Judge a file by what stands there; None if that is a file of the right size.

    Args:
        expected: what should be there.
        entry: what is.
        partial: what shows that it is still being fetched, or was not to the end; None if nothing does.
    """
    size = entry.mark.size if entry.mark else None
    if entry.problem:
        return _found(expected, Status.UNREADABLE, size, note=entry.problem)
    if partial:
        return _found(expected, Status.UNFINISHED, size, note=partial)
    if size is None:
        return _found(expected, Status.MISSING, size, note="there is a link to nothing" if entry.dangling else None)
    if expected.bytes is not None and size != expected.bytes:
        return _found(expected, Status.SIZE_DIFFERS, size, algorithm=None, expected=expected.bytes, actual=size)
    return None


def by_header(expected: Expected, front: Front, size: int) -> FileVerification | None:
    """Judge a weight file by its header; None if that is as expected, or nothing is expected of it."""
    if isinstance(front.error, SourceError):
        return _found(expected, Status.UNREADABLE, size, note=front.error.problem)
    if expected.header_sha256:
        if front.sha256 == expected.header_sha256:
            return None
        note = f"no header that can be read: {front.error.problem}" if front.error else "another header"
        digests = {"expected": expected.header_sha256, "actual": front.sha256}
        return _found(expected, Status.MISMATCH, size, algorithm=HEADER_SHA256, **digests, note=note)
    if expected.header_bytes and front.header_bytes != expected.header_bytes:
        lengths = {"expected": expected.header_bytes, "actual": front.header_bytes}
        note = "a header of another length"
        return _found(expected, Status.MISMATCH, size, algorithm=HEADER_BYTES, **lengths, note=note)
    return None


def by_own_header(
    expected: Expected, error: KimiInspectError | None, promised: object, size: int
) -> FileVerification | None:
    """Judge a weight file of which no size is expected by its own header; None if it is as long as that says.

    Args:
        expected: what should be there.
        error: why the header cannot be read, or None.
        promised: where it says that the file ends.
        size: of the file.
    """
    if error is not None:
        note = f"no header that can be read: {error.problem}"
        return _found(expected, Status.MISMATCH, size, algorithm=HEADER_SHA256, expected=None, note=note)
    if promised != size:
        sizes = {"algorithm": None, "expected": promised, "actual": size}
        return _found(expected, Status.SIZE_DIFFERS, size, **sizes, note="its own header promises another size")
    return None


def unhashed(expected: Expected, front: Front | None, size: int) -> FileVerification:
    """Tell of a file whose size, and header if one is known, are as expected, and that nobody hashes."""
    note = f"its header cannot be read: {front.error.problem}" if front and front.error else None
    return _found(expected, Status.NOT_HASHED, size, note=note)


def by_answer(expected: Expected, answer: Answer, size: int) -> FileVerification:
    """Judge a file by its digest, which is expected to be a certain one."""
    algorithm, digest = expected.digest or ("", "")
    if answer.problem:
        status = Status.UNFINISHED if answer.changed else Status.UNREADABLE
        return _found(expected, status, size, note=answer.problem)
    actual = answer.digests[algorithm]
    status = Status.OK if actual == digest else Status.MISMATCH
    return _found(expected, status, size, actual=actual, remembered=size > 0 and not answer.hashed)


def unknown(expected: Expected, size: int) -> FileVerification:
    """Tell of a file whose digest nobody knows."""
    note = "the source shows no digest of it"
    if expected.masked:
        note += "; a gated repository shows them with a token that has access"
    return _found(expected, Status.DIGEST_UNKNOWN, size, note=note)
