"""A manifest: the files of a checkpoint with their sizes and digests, as JSON to be kept beside other locks."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import attrs
from attrs import frozen

from kimi_inspect.errors import InvalidSourceError, UnsafePathError
from kimi_inspect.header import MAX_OFFSET
from kimi_inspect.sources import leads_outside

__all__ = ["MANIFEST_SCHEMA", "Manifest", "ManifestFile"]

MANIFEST_SCHEMA = "kimi-inspect/manifest/1"

_SHA256 = re.compile("[0-9a-f]{64}")
_SHA1 = re.compile("[0-9a-f]{40}")


@frozen(kw_only=True)
class ManifestFile:
    """One file as it should be.

    Attributes:
        path: from the root, with `/` between folders.
        bytes: its size.
        sha256: of its content, 64 hex digits, or None.
        git_sha1: git's id of its content, 40 hex digits, or None.
        header_sha256: of its first `header_bytes` bytes; None for what is no weight file, or was not read.
    """

    path: str
    bytes: int
    sha256: str | None = None
    git_sha1: str | None = None
    header_sha256: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the file as JSON values."""
        return attrs.asdict(self)


@frozen(kw_only=True)
class Manifest:
    """The files of a checkpoint.

    Attributes:
        source: where they were.
        commit: 40 hex digits, or None.
        created: when it was written, in ISO 8601, or None.
    """

    source: str
    files: tuple[ManifestFile, ...]
    commit: str | None = None
    created: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest as JSON values, schema `kimi-inspect/manifest/1`."""
        return {
            "schema": MANIFEST_SCHEMA,
            "source": self.source,
            "commit": self.commit,
            "created": self.created,
            "files": [file.to_dict() for file in self.files],
        }

    def to_json(self) -> str:
        """Return the same as JSON text, to be written to a file."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def checksums(self) -> list[tuple[str, str]]:
        """Return path and SHA-256 of every file, for a list as sha256sum writes it.

        Raises:
            InvalidSourceError: it is not known of a file, and a list without that file would say less than it seems to.
        """
        unknown = [file.path for file in self.files if file.sha256 is None]
        if unknown:
            files = "1 file" if len(unknown) == 1 else f"{len(unknown):,} files"
            problem = f"no SHA-256 is known of {files}; write a manifest, or choose others with --files"
            raise InvalidSourceError(problem, file=unknown[0])
        return [(file.path, file.sha256 or "") for file in self.files]

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Manifest:
        """Read a document of the schema `kimi-inspect/manifest/1`; keys that are not known are passed over.

        Raises:
            InvalidSourceError: it is a document of another schema, or says of a file what cannot be.
            UnsafePathError: a path leads out of the folder.
        """
        given: object = document
        schema = document.get("schema") if isinstance(given, Mapping) else None
        if schema != MANIFEST_SCHEMA:
            raise InvalidSourceError("no manifest", expected=MANIFEST_SCHEMA, actual=repr(schema))
        files = document.get("files")
        if not isinstance(files, list):
            raise InvalidSourceError("the manifest lists no files", actual=type(files).__name__)
        listed = tuple(map(_file, files))
        if len({file.path for file in listed}) != len(listed):
            raise InvalidSourceError("the manifest lists a path twice")
        return cls(
            source=_text(document, "source") or "manifest",
            commit=_hex(document, "commit", _SHA1),
            created=_text(document, "created"),
            files=listed,
        )

    @classmethod
    def from_json(cls, data: bytes | str) -> Manifest:
        """Read the same from JSON text.

        Raises:
            InvalidSourceError: it is no such document.
            UnsafePathError: a path leads out of the folder.
        """
        try:
            document = json.loads(data.removeprefix("\ufeff") if isinstance(data, str) else data)
        except (ValueError, RecursionError):
            raise InvalidSourceError("no manifest: the file is no JSON") from None
        return cls.from_dict(document)


def _file(document: object) -> ManifestFile:
    if not isinstance(document, dict):
        raise InvalidSourceError("the manifest has an entry of no known form", actual=type(document).__name__)
    path, size = document.get("path"), document.get("bytes")
    if not isinstance(path, str) or type(size) is not int or not 0 <= size <= MAX_OFFSET:
        raise InvalidSourceError("the manifest has an entry without a path, or a size in bytes", actual=repr(path))
    if leads_outside(path):
        raise UnsafePathError("a path in the manifest is no plain path below the folder", actual=repr(path))
    return ManifestFile(
        path=path,
        bytes=size,
        sha256=_hex(document, "sha256", _SHA256),
        git_sha1=_hex(document, "git_sha1", _SHA1),
        header_sha256=_hex(document, "header_sha256", _SHA256),
    )


def _text(document: Mapping[str, Any], key: str) -> str | None:
    value = document.get(key)
    return value if isinstance(value, str) else None


def _hex(document: Mapping[str, Any], key: str, form: re.Pattern[str]) -> str | None:
    """Return a digest; one of another form is refused, since nothing could be held against it."""
    value = document.get(key)
    if value is None:
        return None
    lowered = value.lower() if isinstance(value, str) else ""
    if not form.fullmatch(lowered):
        raise InvalidSourceError(f"the manifest has a {key} of no known form", actual=repr(value)[:100])
    return lowered
