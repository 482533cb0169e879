"""The index of a sharded safetensors checkpoint, read piece by piece: 497,220 entries are some 60 MB.

`model.safetensors.index.json` is `{"metadata": {...}, "weight_map": {name: file, ...}}`, in any order and layout.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from attrs import frozen

from kimi_inspect.sidecars import ShardName

__all__ = ["MAX_ENTRY", "IndexFormatError", "IndexReader", "WeightMap", "index_paths", "indexed_path"]

MAX_ENTRY = 1 << 20
"""Longest entry of the map, and longest other value beside it, in bytes."""

_STRING = rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
_PAIR = re.compile(rb"\s*" + _STRING + rb"\s*:\s*" + _STRING + rb"\s*([,}])")
_OTHER_VALUE = re.compile(rb"\s*" + _STRING + rb"\s*:\s*[^\s\"]")
_NO_ENTRY = re.compile(rb"\s*(?:[^\s\"]|" + _STRING + rb"\s*(?:[^\s:]|:\s*" + _STRING + rb"\s*[^\s,}]))")
_KEY = re.compile(rb"\s*" + _STRING + rb"\s*:\s*")
_DECODER = json.JSONDecoder()
_INDEX = re.compile(r"(?P<stem>.+\.safetensors)\.index(?P<variant>\.[^./]+)?\.json", re.DOTALL)


@frozen
class WeightMap:
    """The files that an index puts together.

    Attributes:
        path: the index.
        files: paths of the files that it names; None if it cannot be read.
    """

    path: str
    files: frozenset[str] | None


class IndexFormatError(ValueError):
    """The bytes are no index."""


class IndexReader:
    """Takes an index apart as its bytes come.

    Attributes:
        metadata: what stands beside the map, once it has come; None if nothing or no object does.
    """

    def __init__(self) -> None:
        self.metadata: dict[str, Any] | None = None
        self._data = b""
        self._step = self._open
        self._mapped = False
        self._done = False

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Take the next bytes; yield the entries of the map that they complete: name and file, as UTF-8.

        Raises:
            IndexFormatError: they are no index.
        """
        self._data += data
        while (found := self._step()) is not None:
            yield from found
        if len(self._data) > 2 * MAX_ENTRY:
            raise IndexFormatError("an entry is longer than any is")

    def finish(self) -> None:
        """Say that no more comes.

        Raises:
            IndexFormatError: something is missing.
        """
        if not self._done:
            raise IndexFormatError("it ends too early")
        if not self._mapped:
            raise IndexFormatError("it has no weight_map")

    # Each step takes something from the front of the data and returns the entries in it, or None if more has to come.

    def _sign(self) -> bytes:
        """Pass over white space; return the character that follows, or nothing if it has not come."""
        self._data = self._data.lstrip(b" \t\r\n")
        return self._data[:1]

    def _open(self) -> list[tuple[bytes, bytes]] | None:
        sign = self._sign()
        if not sign:
            return None
        if sign != b"{":
            raise IndexFormatError("it is no JSON object")
        self._data = self._data[1:]
        self._step = self._first_key
        return []

    def _first_key(self) -> list[tuple[bytes, bytes]] | None:
        return self._close() if self._sign() == b"}" else self._key()

    def _key(self) -> list[tuple[bytes, bytes]] | None:
        match = _KEY.match(self._data)
        if match is None or match.end() == len(self._data):
            return None
        if match[1] == b"weight_map" and self._data[match.end() : match.end() + 1] == b"{":
            self._data = self._data[match.end() + 1 :]
            self._mapped = True
            self._step = self._first_entry
            return []
        value, end = self._value(match.end())
        if end < 0:
            return None
        if match[1] == b"metadata":
            self.metadata = value if isinstance(value, dict) else None
        self._data = self._data[end:]
        self._step = self._after_value
        return []

    def _value(self, begin: int) -> tuple[Any, int]:
        """Decode the value that begins there; return it and where it ends, or -1 if it has not all come."""
        text = self._data[begin : begin + 2 * MAX_ENTRY].decode("utf-8", "surrogateescape")
        try:
            value, length = _DECODER.raw_decode(text)
        except (ValueError, RecursionError):
            return None, -1
        if text[length : length + 1] not in tuple(" \t\r\n,}"):  # a number may go on
            return None, -1
        return value, begin + len(text[:length].encode("utf-8", "surrogateescape"))

    def _after_value(self) -> list[tuple[bytes, bytes]] | None:
        sign = self._sign()
        if sign == b"}":
            return self._close()
        if not sign:
            return None
        if sign != b",":
            raise IndexFormatError("it is no JSON")
        self._data = self._data[1:]
        self._step = self._key
        return []

    def _first_entry(self) -> list[tuple[bytes, bytes]] | None:
        sign = self._sign()
        if not sign:
            return None
        self._step = self._entries
        if sign == b"}":
            self._data = self._data[1:]
            self._step = self._after_value
        return []

    def _entries(self) -> list[tuple[bytes, bytes]] | None:
        found = []
        at = 0
        while match := _PAIR.match(self._data, at):
            found.append((_unescaped(match[1]), _unescaped(match[2])))
            at = match.end()
            if match[3] == b"}":
                self._step = self._after_value
                break
        self._data = self._data[at:]
        if not found:
            self._refuse_entry()
        return found or None

    def _refuse_entry(self) -> None:
        """Say what is wrong where no entry can come any more, whatever follows."""
        if _OTHER_VALUE.match(self._data):
            raise IndexFormatError("its weight_map gives a tensor something that is no file name")
        if _NO_ENTRY.match(self._data):
            raise IndexFormatError("it is no JSON")

    def _close(self) -> list[tuple[bytes, bytes]]:
        self._data = self._data[1:]
        self._done = True
        self._step = self._nothing
        return []

    def _nothing(self) -> list[tuple[bytes, bytes]] | None:
        if self._sign():
            raise IndexFormatError("something follows it")
        return None


def _unescaped(raw: bytes) -> bytes:
    if b"\\" not in raw:
        return raw
    try:
        return str(json.loads(b'"' + raw + b'"')).encode("utf-8", "surrogatepass")
    except ValueError:
        raise IndexFormatError("a string in it is none") from None


def index_paths(shard: str) -> list[str]:
    """Return where the index of a shard's set may lie: beside it, with the variant in either place."""
    name = ShardName.of(shard)
    stem = f"{name.folder}{name.stem}"
    variant = name.suffix.removesuffix(".safetensors")
    plain = f"{stem}.safetensors.index.json"
    return [f"{stem}{name.suffix}.index.json", f"{stem}.safetensors.index{variant}.json"] if variant else [plain]


def indexed_path(path: str) -> str | None:
    """Return what a checkpoint of one file would be called in place of an index and its shards; None if it is no index.

    >>> indexed_path("a/model.safetensors.index.json"), indexed_path("model.safetensors.index.fp16.json")
    ('a/model.safetensors', 'model.fp16.safetensors')
    """
    match = _INDEX.fullmatch(path)
    if match is None:
        return None
    stem = match["stem"].removesuffix(".safetensors")
    return f"{stem}{match['variant'] or ''}.safetensors"
