"""Parsed headers kept on disk, so that a second look at a checkpoint reads none.

An entry is known by who vouches for the digest (the Hub's origin), the file's SHA-256 and its size; a config.json by
its git blob id. Entries are checked when they are read, and written whole or not at all; any number of processes may
share the folder. `kimi-inspect cache --clear` empties it; removing the folder does the same.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from attrs import frozen

from kimi_inspect import __version__
from kimi_inspect.gguf import GgufHeader
from kimi_inspect.header import Header, Kind
from kimi_inspect.names import Names
from kimi_inspect.sources import ListedFile
from kimi_inspect.values import Finding, LongArray

__all__ = ["MAX_CACHE_BYTES", "HeaderCache", "cache_folder", "cache_size", "clear_cache"]

MAX_CACHE_BYTES = 512 * 1024 * 1024
"""Size that the folder is cut down to, the entries longest unused first; Kimi K3.1 Pro takes 52 MB."""

MAGIC = b"kimi-inspect cache 1\n"
LONG_ARRAY = 1
"""Extension type of msgpack that stands for a `LongArray`."""


class _Entry(msgspec.Struct):
    """A header in the form that is stored; columns as little-endian bytes, which are not copied when it is decoded."""

    key: str
    file_bytes: int
    data_start: int
    names: memoryview
    ends: memoryview
    alike: bytes
    kinds: list[tuple[str, tuple[int, ...], int | None]]
    kind: memoryview
    begin: memoryview
    end: memoryview
    metadata: Any
    findings: tuple[Finding, ...]
    gguf: tuple[int, str, int] | None


def _long_array(_: int, data: memoryview) -> LongArray:
    return LongArray(*msgspec.msgpack.decode(data))


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Entry, ext_hook=_long_array)
_KIND_DECODER = msgspec.msgpack.Decoder(dict[str, Any], ext_hook=_long_array)
_KIND = " kind"


@frozen
class HeaderCache:
    """The cache for files that one origin vouches for; nothing it does can fail a call.

    Attributes:
        folder: where entries lie.
        origin: who says what the digests of its files are: the address of the Hub.
        max_bytes: size that the folder is cut down to.
    """

    folder: Path
    origin: str
    max_bytes: int = MAX_CACHE_BYTES

    def get(self, file: ListedFile, *, max_header_bytes: int) -> Header | None:
        """Return the header of a file, or None where it is not known, or longer than is wanted."""
        key = self._key(file)
        payload = self._load(key) if key else None
        if key is None or payload is None:
            return None
        try:
            entry = _DECODER.decode(payload)
            header = _header(entry)
        except (msgspec.DecodeError, ValueError, TypeError):
            self._drop(key)
            return None
        if entry.key != key:
            self._drop(key)
            return None
        return header if header.header_bytes <= max_header_bytes else None

    def put(self, file: ListedFile, header: Header) -> None:
        """Keep a header, unless its file has no digest, another size than listed, or values that do not come back."""
        key = self._key(file)
        if key is None or header.file_bytes != file.size:
            return
        try:
            payload = _ENCODER.encode(_entry(header, key))
            same = _DECODER.decode(payload) if header.findings or header.metadata else header
        except (msgspec.MsgspecError, OverflowError, ValueError, TypeError):
            return
        if (same.findings, same.metadata) == (header.findings, header.metadata):
            self._save(key, payload)

    def get_kind(self, file: ListedFile) -> dict[str, Any] | None:
        """Return the key-values that say what a GGUF file is, or None where they are not known."""
        key = self._key(file)
        payload = self._load(key + _KIND) if key else None
        try:
            return None if payload is None else _KIND_DECODER.decode(payload)
        except (msgspec.DecodeError, ValueError, TypeError):
            return None

    def put_kind(self, file: ListedFile, metadata: dict[str, Any]) -> None:
        """Keep the key-values that say what a GGUF file is."""
        key = self._key(file)
        if key is not None:
            with suppress(msgspec.MsgspecError, OverflowError, ValueError, TypeError):
                self._save(key + _KIND, _ENCODER.encode(_packed(metadata)))

    def get_blob(self, file: ListedFile) -> bytes | None:
        """Return the content of a small file that git keeps, or None."""
        if file.blob_id is None:
            return None
        data = self._load(self._blob_key(file))
        return bytes(data) if data is not None and _git_id(data) == file.blob_id else None

    def put_blob(self, file: ListedFile, data: bytes) -> None:
        """Keep the content of a small file, if it is the one that git knows by that id."""
        if file.blob_id is not None and _git_id(data) == file.blob_id:
            self._save(self._blob_key(file), data)

    def trim(self) -> None:
        """Remove the entries longest unused until the folder is small enough."""
        entries = sorted(_stored(self.folder), key=lambda entry: entry.used)
        left = sum(entry.nbytes for entry in entries)
        for entry in entries:
            if left <= self.max_bytes:
                break
            with suppress(OSError):
                entry.path.unlink()
            left -= entry.nbytes

    def _key(self, file: ListedFile) -> str | None:
        return (
            f"{__version__} {self.origin} {file.sha256} {file.size}" if file.sha256 and file.size is not None else None
        )

    def _blob_key(self, file: ListedFile) -> str:
        return f"{__version__} {self.origin} {file.blob_id}"

    def _path(self, key: str) -> Path:
        return self.folder / hashlib.sha256(key.encode()).hexdigest()

    def _load(self, key: str) -> memoryview | None:
        """Read an entry and note that it was used; a damaged one is dropped."""
        path = self._path(key)
        try:
            data = memoryview(path.read_bytes())
        except OSError:
            return None
        with suppress(OSError):
            os.utime(path)
        frame, payload = data[: len(MAGIC) + 4], data[len(MAGIC) + 4 :]
        if frame != MAGIC + zlib.crc32(payload).to_bytes(4, "little"):
            self._drop(key)
            return None
        return payload

    def _save(self, key: str, payload: bytes) -> None:
        """Write an entry under a name of its own, then give it its place."""
        frame = MAGIC + zlib.crc32(payload).to_bytes(4, "little")
        with suppress(OSError):
            handle, name = tempfile.mkstemp(dir=self.folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(frame)
                    file.write(payload)
                Path(name).replace(self._path(key))
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise

    def _drop(self, key: str) -> None:
        with suppress(OSError):
            self._path(key).unlink()


@frozen
class _Stored:
    path: Path
    nbytes: int
    used: float


def _stored(folder: Path) -> Iterator[_Stored]:
    """Yield what lies in the folder, half-written files among it."""
    with suppress(OSError):
        for item in os.scandir(folder):
            with suppress(OSError):
                status = item.stat(follow_symlinks=False)
                yield _Stored(Path(item.path), status.st_size, status.st_mtime)


def cache_folder() -> Path | None:
    """Return our folder below huggingface_hub's home for assets, made if need be; None where that cannot be."""
    from huggingface_hub import cached_assets_path, constants

    try:
        return cached_assets_path("kimi_inspect", "headers", "v1", assets_dir=constants.HF_ASSETS_CACHE)
    except (OSError, ValueError):
        return None


def cache_size() -> int:
    """Return how many bytes are kept."""
    folder = cache_folder()
    return sum(entry.nbytes for entry in _stored(folder)) if folder else 0


def clear_cache() -> int:
    """Remove all that is kept; return how many bytes that freed."""
    nbytes = cache_size()
    folder = cache_folder()
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    return nbytes - cache_size()


def _git_id(data: bytes | memoryview) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + bytes(data), usedforsecurity=False).hexdigest()


def _entry(header: Header, key: str) -> _Entry:
    gguf = (header.version, header.byte_order, header.alignment) if isinstance(header, GgufHeader) else None
    return _Entry(
        key=key,
        file_bytes=header.file_bytes,
        data_start=header.data_start,
        names=memoryview(header.names.blob),
        ends=header.names.ends.astype("<i8").data.cast("B"),
        alike=header.names.alike or header.names.likeness(),
        kinds=[(kind.dtype, kind.shape, kind.nbytes) for kind in header.kinds],
        kind=header.kind.astype("<i4").data.cast("B"),
        begin=header.begin.astype("<i8").data.cast("B"),
        end=header.end.astype("<i8").data.cast("B"),
        metadata=_packed(header.metadata),
        findings=header.findings,
        gguf=gguf,
    )


def _packed(value: Any) -> Any:
    """Mark long arrays, so that they come back as such."""
    if isinstance(value, LongArray):
        return msgspec.msgpack.Ext(LONG_ARRAY, msgspec.msgpack.encode((value.type, value.length)))
    if isinstance(value, list):
        return [_packed(item) for item in value]
    if isinstance(value, dict):
        return {key: _packed(item) for key, item in value.items()}
    return value


def _header(entry: _Entry) -> Header:
    fields: dict[str, Any] = {
        "file_bytes": entry.file_bytes,
        "data_start": entry.data_start,
        "names": Names(bytes(entry.names), np.frombuffer(entry.ends, "<i8").astype(np.int64), entry.alike),
        "kinds": tuple(Kind(*kind) for kind in entry.kinds),
        "kind": np.frombuffer(entry.kind, "<i4").astype(np.int32),
        "begin": np.frombuffer(entry.begin, "<i8").astype(np.int64),
        "end": np.frombuffer(entry.end, "<i8").astype(np.int64),
        "metadata": entry.metadata,
        "findings": entry.findings,
    }
    if entry.gguf is None:
        return Header(**fields)
    version, byte_order, alignment = entry.gguf
    return GgufHeader(**fields, version=version, byte_order=byte_order, alignment=alignment)
