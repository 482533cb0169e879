"""What a folder was found to be, file by file, held against digests; and its JSON form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import attrs
from attrs import frozen

from kimi_inspect.errors import InvalidSourceError

__all__ = [
    "HEADER_BYTES",
    "HEADER_SHA256",
    "VERIFICATION_SCHEMA",
    "FileVerification",
    "Status",
    "Verification",
    "is_weights",
]

VERIFICATION_SCHEMA = "kimi-inspect/verify/1"

HEADER_SHA256, HEADER_BYTES = "header-sha256", "header-bytes"
"""The algorithm where headers alone were compared: SHA-256 of the first `header_bytes` bytes, or how many those are."""

_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")


def is_weights(path: str) -> bool:
    """Whether a file holds weights, by its name: one whose digest nobody knows is then not verified."""
    return path.endswith(_WEIGHTS)


class Status(StrEnum):
    """What was found of a file."""

    OK = "ok"
    NOT_HASHED = "not-hashed"
    MISMATCH = "mismatch"
    SIZE_DIFFERS = "size-differs"
    MISSING = "missing"
    EXTRA = "extra"
    UNFINISHED = "unfinished"
    DIGEST_UNKNOWN = "digest-unknown"
    UNREADABLE = "unreadable"


_GOOD = frozenset({Status.OK, Status.NOT_HASHED, Status.EXTRA})
"""Nothing is wrong; of a status that a later version has added that is not known."""


@frozen(kw_only=True)
class FileVerification:
    """One file, as it was found. It is true where nothing is wrong.

    Attributes:
        path: from the root of the folder, with `/` between folders.
        status: what was found.
        algorithm: ``sha256``, ``git-sha1``, or ``header-sha256`` where headers differ already; None where no digest
            was compared.
        expected: the digest as it should be, or None; where sizes differ, the size in bytes.
        actual: the digest as it is, or None; where sizes differ, the size in bytes.
        bytes: size of the file that is there, or None.
        remembered: its digest is one that an earlier call found.
        note: more of what was seen, for people, or None.
        command: what fetches the file again, or None.
    """

    path: str
    status: str
    algorithm: str | None = None
    expected: str | int | None = None
    actual: str | int | None = None
    bytes: int | None = None
    remembered: bool = False
    note: str | None = None
    command: str | None = None

    @property
    def ok(self) -> bool:
        """Nothing is wrong with it: also of an extra file, and of one that was not hashed on purpose."""
        return self.status in _GOOD or (self.status == Status.DIGEST_UNKNOWN and not is_weights(self.path))

    def __bool__(self) -> bool:
        return self.ok


@frozen(kw_only=True)
class Verification:
    """A folder held against digests. It is true where every file is as expected.

    Attributes:
        folder: what was looked at.
        against: what it was held against.
        commit: the commit of that, 40 hex digits, or None.
        quick: sizes and headers were compared, and no file was hashed.
        bytes_hashed: bytes that this call has hashed in the folder.
        files: every file that is expected or there, by path.
        bytes_remembered: bytes of files whose digests an earlier call found.
        notes: what holds for the whole, for people.
    """

    folder: str
    against: str
    commit: str | None
    quick: bool
    bytes_hashed: int
    files: tuple[FileVerification, ...]
    bytes_remembered: int = 0
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Nothing is wrong with any file."""
        return all(file.ok for file in self.files)

    def __bool__(self) -> bool:
        return self.ok

    def having(self, *statuses: str) -> tuple[FileVerification, ...]:
        """Return the files of these statuses."""
        return tuple(file for file in self.files if file.status in statuses)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values, schema `kimi-inspect/verify/1`."""
        values = attrs.asdict(self, recurse=False)
        files = [attrs.asdict(file) | {"status": str(file.status)} for file in self.files]
        return {
            "schema": VERIFICATION_SCHEMA,
            **values,
            "ok": self.ok,
            "files": files,
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Verification:
        """Read what `to_dict` wrote; keys that are not known are passed over, those beside the contract's may lack.

        Raises:
            InvalidSourceError: it is no such document.
        """
        try:
            values = _known(cls, document)
            files = tuple(FileVerification(**_known(FileVerification, file)) for file in document["files"])
            return cls(**values | {"files": files, "notes": tuple(values.get("notes", ()))})
        except (KeyError, TypeError) as error:
            problem = f"no result of verify, or a damaged one: {type(error).__name__}, {error}"
        raise InvalidSourceError(problem, expected=VERIFICATION_SCHEMA)


def _known(kind: type[attrs.AttrsInstance], document: Mapping[str, Any]) -> dict[str, Any]:
    names: Iterable[str] = (each.name for each in attrs.fields(kind))
    return {name: document[name] for name in names if name in document}
