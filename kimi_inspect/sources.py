"""Where bytes come from: the two small protocols, and files on this machine.

A `ByteSource` is one file: its size, and any part of it. A `FileStore` is a folder or repository: what is in it, and a
`ByteSource` for each file. Other code may bring its own of either.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Protocol, runtime_checkable

from attrs import frozen

from kimi_inspect.errors import KimiInspectError, SourceFileNotFoundError, TransportError
from kimi_inspect.values import Traffic

__all__ = [
    "ByteSource",
    "FileStore",
    "ListedFile",
    "LocalFile",
    "LocalFolder",
    "MappedFiles",
    "Meter",
    "leads_outside",
    "read_whole",
    "translated",
]

MAX_DEPTH = 4
"""Folders below the one given that are searched for weights."""


@runtime_checkable
class ByteSource(Protocol):
    """One file, readable in parts."""

    @property
    def size(self) -> int:
        """Length of the whole file in bytes."""

    def read(self, begin: int, end: int) -> bytes:
        """Return exactly the bytes from `begin` up to `end`, both inside the file, or raise."""


@frozen(kw_only=True)
class ListedFile:
    """What a listing says of a file.

    Attributes:
        path: from the root of the store, with `/` between folders.
        size: in bytes; None where a store cannot list it.
        sha256: of the content, 64 hex digits, or None.
        blob_id: git's SHA-1 of the content, 40 hex digits; None for a file under Git LFS and outside git.
        url: address pinned to the commit, without signature; None for a local file.
    """

    path: str
    size: int | None
    sha256: str | None = None
    blob_id: str | None = None
    url: str | None = None


class FileStore(Protocol):
    """A folder or repository at one commit."""

    @property
    def source(self) -> str:
        """What to call it in results: never with a secret in it."""

    @property
    def commit(self) -> str | None:
        """The commit that all reads are pinned to, 40 hex digits, or None."""

    @property
    def origin(self) -> str | None:
        """Who vouches for the digests of its listing, and takes a request for each read; None for files at hand."""

    @property
    def traffic(self) -> Traffic:
        """What its reads have cost so far."""

    def list_files(self) -> tuple[ListedFile, ...]:
        """Return all files, by path."""

    def open(self, file: ListedFile) -> ByteSource:
        """Return the bytes of one of them; nothing is read yet."""

    def read_small(self, file: ListedFile, limit: int) -> bytes:
        """Return all bytes of a side file of at most `limit` bytes."""

    def cancel(self) -> None:
        """Let reads under way stop soon."""


class Meter:
    """Counts requests and bytes over several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests = 0
        self._bytes_read = 0

    def add(self, *, requests: int = 0, bytes_read: int = 0) -> None:
        """Count something more."""
        with self._lock:
            self._requests += requests
            self._bytes_read += bytes_read

    @property
    def traffic(self) -> Traffic:
        """The counts so far."""
        with self._lock:
            return Traffic(requests=self._requests, bytes_read=self._bytes_read)


class LocalFile:
    """A file on this machine."""

    def __init__(self, path: str | os.PathLike[str], *, meter: Meter | None = None) -> None:
        self._path = Path(path)
        self._meter = meter or Meter()

    @property
    def size(self) -> int:
        """Length of the file in bytes."""
        with translated(self._path):
            status = self._path.stat()
        if not (S_ISREG(status.st_mode) or S_ISDIR(status.st_mode)):
            # Opening a pipe would wait for somebody to write to it. A folder is refused by the system when it is read.
            raise TransportError("no regular file", file=str(self._path), retryable=False)
        return status.st_size

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes from `begin` up to `end`."""
        if end > self.size:
            raise TransportError("the file has shrunk", file=str(self._path), expected=end, actual=self.size)
        with translated(self._path), self._path.open("rb") as file:
            file.seek(begin)
            data = file.read(end - begin)
        self._meter.add(bytes_read=len(data))
        if len(data) != end - begin:
            raise TransportError("the file has shrunk", file=str(self._path), expected=end, actual=begin + len(data))
        return data


def _as_written(path: str) -> str:
    """Return a path as the source string that it is: `pathlib` takes away the `./` that tells it from a repository."""
    plain = path in (".", "..") or path.startswith(("./", "../", "~/", "/")) or Path(path).is_absolute()
    return path if plain else f"./{path}"


class LocalFolder:
    """A folder on this machine, with the folders below it; a snapshot of the Hub's cache is one too."""

    commit: str | None = None
    origin: str | None = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        source: str | None = None,
        commit: str | None = None,
        depth: int = MAX_DEPTH,
    ) -> None:
        self.root = Path(path)
        self._depth = depth
        self._meter = Meter()
        self.source = source or _as_written(str(path))
        self.commit = commit

    @property
    def traffic(self) -> Traffic:
        """No requests; the bytes read."""
        return self._meter.traffic

    def list_files(self) -> tuple[ListedFile, ...]:
        """Return the files at most `depth` folders down.

        Hidden folders and folders that may not be read are left out; a dangling link has no size.
        """
        with translated(self.root):
            if not self.root.is_dir():
                raise SourceFileNotFoundError("there is no such file or folder", file=str(self.root))
            os.scandir(self.root).close()
        return tuple(sorted(self._walk(), key=lambda file: file.path))

    def _walk(self) -> Iterator[ListedFile]:
        for folder, folders, names in os.walk(self.root):
            here = Path(folder).relative_to(self.root)
            deep = len(here.parts) >= self._depth
            folders[:] = [] if deep else [name for name in folders if not name.startswith(".")]
            for name in names:
                path = Path(folder, name)
                try:
                    size = path.stat().st_size
                except OSError:
                    size = None
                yield ListedFile(path=(here / name).as_posix(), size=size)

    def open(self, file: ListedFile) -> LocalFile:
        """Return the bytes of a file."""
        return LocalFile(self.root / file.path, meter=self._meter)

    def read_small(self, file: ListedFile, limit: int) -> bytes:
        """Return all bytes of a side file."""
        return read_whole(self.open(file), limit, file.path)

    def cancel(self) -> None:
        """Local reads are short: nothing to do."""


class MappedFiles:
    """Byte sources of the caller's own, by path."""

    commit: str | None = None
    origin: str | None = None
    source = "<mapping>"

    def __init__(self, files: Mapping[str, ByteSource]) -> None:
        self._files = dict(files)

    @property
    def traffic(self) -> Traffic:
        """Nothing: what such a source costs is its own affair."""
        return Traffic()

    def list_files(self) -> tuple[ListedFile, ...]:
        """Return the files by path."""
        return tuple(ListedFile(path=path, size=self._files[path].size) for path in sorted(self._files))

    def open(self, file: ListedFile) -> ByteSource:
        """Return the caller's source."""
        return self._files[file.path]

    def read_small(self, file: ListedFile, limit: int) -> bytes:
        """Return all bytes of a side file."""
        return read_whole(self.open(file), limit, file.path)

    def cancel(self) -> None:
        """Sources of the caller's own end by themselves."""


def leads_outside(path: str) -> bool:
    """Whether a listed path, joined to a folder or an address, would leave it, or be no path at all."""
    return (
        not path or path.startswith("/") or "\\" in path or "\0" in path or bool({"..", ".", ""} & {*path.split("/")})
    )


def read_whole(source: ByteSource, limit: int, path: str) -> bytes:
    """Read a file of at most `limit` bytes.

    Raises:
        TransportError: it is longer.
    """
    size = source.size
    if size > limit:
        raise TransportError(
            "longer than any file of its kind",
            file=path,
            expected=f"at most {limit:,} bytes",
            actual=size,
            retryable=False,
        )
    return source.read(0, size) if size else b""


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn the system's errors into ours."""
    try:
        yield
    except KimiInspectError:
        raise
    except FileNotFoundError:
        raise SourceFileNotFoundError("there is no such file or folder", file=str(path)) from None
    except OSError as error:
        raise TransportError(f"cannot be read: {error.strerror or error}", file=str(path), retryable=False) from None
