"""Every error this package raises.

::

    KimiInspectError
    ├── SourceError (OSError)              the bytes cannot be had
    │   ├── RepositoryNotFoundError        no such repository, or hidden from this token
    │   ├── GatedRepositoryError           it exists; access has to be asked for
    │   ├── AuthenticationError            the token is refused
    │   ├── RevisionNotFoundError
    │   ├── SourceFileNotFoundError
    │   ├── RateLimitedError               `retry_after` says how long to wait
    │   ├── RangeNotSupportedError         the server does not serve parts of a file
    │   ├── TransportError                 no answer, or one that contradicts itself
    │   └── OfflineError
    ├── FormatError (ValueError)           the bytes are not what they should be
    │   ├── NotWeightsError                a Git LFS pointer, a web page, another format
    │   ├── TruncatedError                 the file ends inside its header
    │   ├── MalformedHeaderError
    │   ├── HeaderTooLargeError
    │   └── UnsupportedVersionError
    ├── CheckpointError (ValueError)       the files do not make one checkpoint
    │   ├── AmbiguousCheckpointError
    │   ├── UnsafePathError
    │   └── NoCheckpointError
    └── InvalidSourceError (ValueError)    the source string means nothing
"""

from __future__ import annotations

from typing import Any, ClassVar

from kimi_inspect.text import printable

__all__ = [
    "AmbiguousCheckpointError",
    "AuthenticationError",
    "CheckpointError",
    "FormatError",
    "GatedRepositoryError",
    "HeaderTooLargeError",
    "InvalidSourceError",
    "KimiInspectError",
    "MalformedHeaderError",
    "NoCheckpointError",
    "NotWeightsError",
    "OfflineError",
    "RangeNotSupportedError",
    "RateLimitedError",
    "RepositoryNotFoundError",
    "RevisionNotFoundError",
    "SourceError",
    "SourceFileNotFoundError",
    "TransportError",
    "TruncatedError",
    "UnsafePathError",
    "UnsupportedVersionError",
]


class KimiInspectError(Exception):
    """Base of all errors here; never raised itself.

    Attributes:
        problem: what went wrong and what to do next, without the place.
        file: path of the file at fault, or None.
        offset: byte in that file, from its start, or None.
        expected: what should have been there, or None.
        actual: what was there, or None.
        retryable: the same call may well succeed a little later.
    """

    retryable: bool = False
    _extra: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        problem: str,
        *,
        file: str | None = None,
        offset: int | None = None,
        expected: object = None,
        actual: object = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.file = file
        self.offset = offset
        self.expected = expected
        self.actual = actual
        if retryable is not None:
            self.retryable = retryable

    def __str__(self) -> str:
        place = self.file or ""
        if self.offset is not None:
            place += f" at byte {self.offset:,}" if place else f"at byte {self.offset:,}"
        parts = [f"{place}: {self.problem}" if place else self.problem]
        if self.expected is not None:
            parts.append(f"expected {self.expected}")
        if self.actual is not None:
            parts.append(f"got {self.actual}")
        return printable(parts[0] if len(parts) == 1 else f"{parts[0]} ({', '.join(parts[1:])})")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the attributes: the keyword-only ones are not in `args`."""
        state = {"file": self.file, "offset": self.offset, "expected": self.expected, "actual": self.actual}
        state |= {name: getattr(self, name) for name in ("retryable", *self._extra)}
        return _rebuild, (type(self), self.problem, state)


def _rebuild(kind: type[KimiInspectError], problem: str, state: dict[str, Any]) -> KimiInspectError:
    error = kind(problem)
    error.__dict__.update(state)
    return error


class SourceError(KimiInspectError, OSError):
    """The bytes cannot be had."""


class RepositoryNotFoundError(SourceError):
    """No such repository, or one that this token may not see: the Hub does not tell them apart."""


class GatedRepositoryError(SourceError):
    """The repository is gated: ask for access on its page, then use a token that has it."""


class AuthenticationError(SourceError):
    """The token, or the lack of one, is refused."""


class RevisionNotFoundError(SourceError):
    """The repository has no such branch, tag or commit."""


class SourceFileNotFoundError(SourceError):
    """There is no such file or folder."""


class RateLimitedError(SourceError):
    """The server asks to wait longer than we are willing to.

    Attributes:
        retry_after: seconds until the server will answer again, or None if it did not say.
    """

    retryable = True
    _extra = ("retry_after",)

    def __init__(self, problem: str, *, retry_after: float | None = None, **details: Any) -> None:
        super().__init__(problem, **details)
        self.retry_after = retry_after


class RangeNotSupportedError(SourceError):
    """The server answers a request for a part of a file with something else."""


class TransportError(SourceError):
    """No answer in time, a broken one, or one that contradicts the request or the listing."""

    retryable = True


class OfflineError(SourceError):
    """Offline mode is on and the cache does not hold what was asked for."""


class FormatError(KimiInspectError, ValueError):
    """The bytes are not a well-formed file of their format."""


class NotWeightsError(FormatError):
    """Something else stands under the name of a weight file."""


class TruncatedError(FormatError):
    """The file ends inside its header."""


class MalformedHeaderError(FormatError):
    """The header contradicts the format or itself.

    Attributes:
        contradictory: it contradicts itself: a name twice, ranges that overlap, a range and a shape that disagree. It
            was read whole, but any numbers made of it would be wrong.
    """

    contradictory: bool = False
    _extra = ("contradictory",)


class HeaderTooLargeError(FormatError):
    """The header is longer than the limit set by `max_header_bytes`."""


class UnsupportedVersionError(FormatError):
    """A version of the format that nobody has specified yet."""


class CheckpointError(KimiInspectError, ValueError):
    """The files there do not make one checkpoint."""


class AmbiguousCheckpointError(CheckpointError):
    """Several checkpoints are there and nothing says which one is meant."""


class UnsafePathError(CheckpointError):
    """A path out of a listing or an index leaves its repository."""


class NoCheckpointError(CheckpointError):
    """No weight file that this package reads is there."""


class InvalidSourceError(KimiInspectError, ValueError):
    """The string names no source."""
