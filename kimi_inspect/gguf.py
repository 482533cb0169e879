"""The header of a GGUF file: a pure parser from bytes to columns.

Layout (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): magic, version, the counts of tensors and of
key-values, the key-values, the tensor table, padding to the alignment, the data. Versions 2 and 3 count in 64 bits,
version 1 in 32. A file may be big-endian, which shows in its version number. Offsets of tensors are counted from the
start of the data; dimensions are written contiguous one first.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from attrs import evolve, frozen

from kimi_inspect.errors import UnsupportedVersionError
from kimi_inspect.findings import finding
from kimi_inspect.gguf_findings import gguf_findings
from kimi_inspect.gguf_types import FORKED_TYPES, TENSOR_TYPES, ValueType
from kimi_inspect.gguf_window import PAIR_WORK, ROW_WORK, Step, Window
from kimi_inspect.header import (
    MAX_HEADER_BYTES,
    MAX_OFFSET,
    Header,
    Kind,
    check_overlap,
    malformed,
)
from kimi_inspect.names import Names
from kimi_inspect.planning import Plan
from kimi_inspect.sidecars import refuse_other_formats
from kimi_inspect.text import quoted
from kimi_inspect.values import Finding, LongArray

__all__ = ["FIRST_READ", "MAX_READ", "GgufHeader", "read_gguf_header", "read_gguf_kind"]

MAGIC = b"GGUF"
VERSIONS = (1, 2, 3)
DEFAULT_ALIGNMENT = 32
FIRST_READ = 64 * 1024
"""First read, in bytes: enough for a part without a tokenizer."""

MAX_READ = 8 * 1024 * 1024
"""Each further read is twice as long, up to this."""

MAX_DIMENSIONS = 8
"""Twice what ggml has; a tensor with more is damage."""

MAX_NESTING = 4
MAX_SHOWN = 100
"""Characters of a value in a message."""

LONG_ARRAY = 1024
"""Arrays longer than this are kept as their type and length, unless they are asked for."""


@frozen(eq=False, kw_only=True)
class GgufHeader(Header):
    """One parsed GGUF header. `begin` and `end` are counted from the aligned start of the data.

    Attributes:
        metadata: the key-values; a long array as its type and length.
        version: 1, 2 or 3.
        byte_order: ``little`` or ``big``.
        alignment: in bytes, of the data and of each tensor in it.
    """

    version: int
    byte_order: str
    alignment: int


@frozen(eq=False, kw_only=True)
class _Row:
    """One line of the tensor table."""

    name: str
    dimensions: tuple[int, ...]
    type: int
    offset: int


def read_gguf_header(
    file_bytes: int,
    *,
    file: str,
    first_read: int = FIRST_READ,
    max_read: int = MAX_READ,
    max_header_bytes: int = MAX_HEADER_BYTES,
    arrays: bool = False,
) -> Plan[GgufHeader]:
    """Ask for the header of a file of `file_bytes` bytes, piece by piece and never twice, and parse it.

    Args:
        file_bytes: size of the whole file.
        file: its path, for messages.
        first_read: bytes to ask for at first.
        max_read: bytes to ask for at once later on, unless one value is longer; reads grow up to it.
        max_header_bytes: longest header that is read, in bytes.
        arrays: keep long arrays, the tokenizer's among them, instead of their type and length.

    Raises:
        NotWeightsError: it is something else.
        UnsupportedVersionError: a version that nobody has specified.
        TruncatedError: the file ends inside its header, or the header declares more than the file holds.
        HeaderTooLargeError: it is longer than `max_header_bytes`.
        MalformedHeaderError: the header contradicts the format or itself: no alignment, a name twice, offsets that
            collide. All else that is wrong is a finding.
    """
    window = Window(file, file_bytes, first_read=first_read, max_read=max_read, max_header_bytes=max_header_bytes)
    version = yield from _version(window)
    tensor_count, pair_count = yield from _counts(window)
    pairs: list[tuple[str, Any]] = []
    for _ in range(pair_count):
        pairs.append((yield from _pair(window, arrays)))
    metadata, findings = _metadata(pairs, file)
    alignment = _alignment(metadata, file)
    rows: list[_Row] = []
    for _ in range(tensor_count):
        rows.append((yield from _row(window)))
    header = _columns(rows, window, alignment, metadata)
    return evolve(header, version=version, findings=(*findings, *gguf_findings(header, file, alignment)))


def read_gguf_kind(file_bytes: int, *, file: str, max_header_bytes: int = MAX_HEADER_BYTES) -> Plan[dict[str, Any]]:
    """Ask for the key-values of a file that stand before its tokenizer's: they say what the file is.

    Raises:
        FormatError: as `read_gguf_header`.
    """
    window = Window(file, file_bytes, first_read=FIRST_READ, max_read=MAX_READ, max_header_bytes=max_header_bytes)
    yield from _version(window)
    _, pair_count = yield from _counts(window)
    metadata: dict[str, Any] = {}
    for _ in range(pair_count):
        key = yield from window.name("a key")
        if key.startswith("tokenizer."):
            break
        kind = yield from _value_type(window)
        metadata.setdefault(key, (yield from _value(window, kind, arrays=False, depth=0)))
    return metadata


def _counts(window: Window) -> Step[tuple[int, int]]:
    """Read how many tensors and key-values there are."""
    tensors = yield from window.count("the count of tensors")
    pairs = yield from window.count("the count of key-values")
    # A tensor is a name's length, a count of dimensions, a type and an offset at the least; a pair a length and a type.
    size = 8 if window.wide else 4
    window.expect(tensors * (size + 16) + pairs * (size + 5), "its table of contents")
    window.spend(ROW_WORK * tensors + PAIR_WORK * pairs)
    return tensors, pairs


def _version(window: Window) -> Step[int]:
    yield from window.need(min(8, max(window.file_bytes, 1)), "its first bytes")
    if bytes(window.data[:4]) != MAGIC[: len(window.data)]:
        refuse_other_formats(bytes(window.data), window.file)
        malformed("no GGUF file", window.file, offset=0, expected=MAGIC, actual=repr(bytes(window.data[:4])))
    window.at = 4
    version: int = yield from window.number("I", "the version")
    if version not in VERSIONS:
        window.order, window.at = ">", 4
        swapped: int = yield from window.number("I", "the version")
        if swapped not in VERSIONS:
            raise UnsupportedVersionError(
                "a GGUF version that is not known; update this package",
                file=window.file,
                offset=4,
                expected="1, 2 or 3",
                actual=version,
            )
        version = swapped
    window.wide = version > 1
    return version


def _pair(window: Window, arrays: bool) -> Step[tuple[str, Any]]:
    key = yield from window.name("a key")
    kind = yield from _value_type(window)
    value = yield from _value(window, kind, arrays=arrays, depth=0)
    return key, value


def _value_type(window: Window) -> Step[ValueType]:
    number: int = yield from window.number("I", "a value type")
    if number not in set(ValueType):
        malformed("a value of no known type", window.file, offset=window.at - 4, expected="0 to 12", actual=number)
    return ValueType(number)


def _value(window: Window, kind: ValueType, *, arrays: bool, depth: int) -> Step[Any]:
    if kind is ValueType.STRING:
        return (yield from window.text("a string"))
    if kind is not ValueType.ARRAY:
        return (yield from window.number(kind.form, "a value"))
    if depth >= MAX_NESTING:
        malformed("arrays nest deeper than any do", window.file, offset=window.at, expected=f"{MAX_NESTING} levels")
    return (yield from _array(window, arrays, depth))


def _array(window: Window, arrays: bool, depth: int) -> Step[Any]:
    kind = yield from _value_type(window)
    length: int = yield from window.count("the length of an array")
    window.expect(length * kind.smallest(window.wide), "an array")
    keep = arrays or length <= LONG_ARRAY
    if kind is ValueType.ARRAY:
        window.spend(PAIR_WORK * length)
        items = []
        for _ in range(length):
            items.append((yield from _value(window, kind, arrays=arrays, depth=depth + 1)))
        return items if keep else LongArray(kind.name.lower(), length)
    if kind is ValueType.STRING:
        strings = yield from window.strings(length, keep=keep)
        return strings if keep else LongArray(kind.name.lower(), length)
    if keep:
        return (yield from window.numbers(kind.form, length))
    yield from window.skip(length * kind.smallest(window.wide), "an array")
    return LongArray(kind.name.lower(), length)


def _row(window: Window) -> Step[_Row]:
    begin = window.at
    name = yield from window.name("a tensor's name")
    count: int = yield from window.number("I", "a tensor's dimensions")
    if count > MAX_DIMENSIONS:
        malformed(
            f"tensor {quoted(name)} has too many dimensions",
            window.file,
            offset=begin,
            expected=f"at most {MAX_DIMENSIONS}",
            actual=count,
        )
    dimensions = yield from window.numbers("Q" if window.wide else "I", count)
    number: int = yield from window.number("I", "a tensor's type")
    offset: int = yield from window.number("Q", "a tensor's offset")
    if offset > MAX_OFFSET or prod(dimensions) > MAX_OFFSET:
        malformed(f"tensor {quoted(name)} is larger than any file", window.file, offset=begin, actual=dimensions)
    return _Row(name=name, dimensions=tuple(dimensions), type=number, offset=offset)


def _metadata(pairs: list[tuple[str, Any]], file: str) -> tuple[dict[str, Any], list[Finding]]:
    """Keep the first value of each key; a key written twice is a finding with both values."""
    metadata: dict[str, Any] = {}
    findings = []
    for key, value in pairs:
        if key in metadata:
            message = f"the key {quoted(key)} is written twice; llama.cpp refuses the file"
            findings.append(
                finding(
                    "duplicate-key",
                    file,
                    message,
                    file=file,
                    expected=_brief(metadata[key]),
                    actual=_brief(value),
                    examples=[key],
                )
            )
        metadata.setdefault(key, value)
    return metadata, findings


def _brief(value: Any) -> Any:
    """Return a value for a message: one that is long only in part."""
    if isinstance(value, LongArray):
        return f"{value.type}[{value.length}]"
    if isinstance(value, str | list) and len(repr(value)) > MAX_SHOWN:
        return repr(value)[:MAX_SHOWN] + "…"
    return value


def _alignment(metadata: dict[str, Any], file: str) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 0 < alignment < 2**32:
        malformed("an alignment that is none", file, expected="a number from 1 on", actual=repr(alignment))
    return alignment


def _columns(rows: list[_Row], window: Window, alignment: int, metadata: dict[str, Any]) -> GgufHeader:
    """Order the tensors by offset and size each: by its type, or by the gap to the next where that says nothing."""
    names: set[str] = set()
    for row in rows:
        if row.name in names:
            problem = f"the tensor name {quoted(row.name)} is written twice"
            malformed(problem, window.file, contradictory=True, expected="one entry a name")
        names.add(row.name)
    rows.sort(key=lambda row: row.offset)
    data_start = _aligned(window.at, alignment)
    nexts = [row.offset for row in rows[1:]] + [max(window.file_bytes - data_start, rows[-1].offset)] if rows else []
    sizes = [
        _sized(row, until, alignment, cut=row is rows[-1], file=window.file)
        for row, until in zip(rows, nexts, strict=True)
    ]
    kinds: dict[Kind, int] = {}
    kind = [kinds.setdefault(look, len(kinds)) for look, _ in sizes]
    begin = np.array([row.offset for row in rows], np.int64)
    header = GgufHeader(
        file_bytes=window.file_bytes,
        data_start=data_start,
        names=Names.of([row.name for row in rows]),
        kinds=tuple(kinds),
        kind=np.array(kind, np.int32),
        begin=begin,
        end=begin + np.array([nbytes for _, nbytes in sizes], np.int64),
        metadata=metadata,
        version=0,
        byte_order="little" if window.order == "<" else "big",
        alignment=alignment,
    )
    check_overlap(header, window.file)
    return header


def _aligned(place: int, alignment: int) -> int:
    return -(-place // alignment) * alignment


def _sized(row: _Row, until: int, alignment: int, *, cut: bool, file: str) -> tuple[Kind, int]:
    """Return what a tensor looks like, and its bytes.

    Args:
        row: its line of the table.
        until: where the next one starts, or the data ends.
        alignment: of the file, in bytes.
        cut: it is the last one, and may go on beyond the end of a file that has been cut.
        file: path, for messages.
    """
    span = until - row.offset
    known = TENSOR_TYPES.get(row.type)
    if known is None:
        return Kind(str(row.type), row.dimensions, None), span
    first = row.dimensions[0] if row.dimensions else 1
    blocks, rest = divmod(first, known.elements)
    nbytes = blocks * known.nbytes * prod(row.dimensions[1:])
    if row.type in FORKED_TYPES and (rest or _aligned(nbytes, alignment) < span or (not cut and nbytes > span)):
        return Kind(str(row.type), row.dimensions, None), span
    if rest:
        malformed(
            f"tensor {quoted(row.name)} does not fill whole blocks of {known.name}",
            file,
            contradictory=True,
            expected=f"a first dimension divisible by {known.elements}",
            actual=first,
        )
    return Kind(known.name, row.dimensions, nbytes), nbytes
