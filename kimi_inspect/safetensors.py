"""The header of a safetensors file: a pure parser from bytes to columns.

Layout (https://github.com/huggingface/safetensors, "Format"): an unsigned little-endian 64-bit length N, N bytes
of JSON, then the data. Each entry of the JSON gives a tensor's dtype, shape and `data_offsets`, a half-open range
counted from the start of the data; the ranges must fill the data without hole or overlap.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from math import isinf
from typing import Any

import msgspec
import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from kimi_inspect.dtypes import SAFETENSORS_BITS
from kimi_inspect.errors import HeaderTooLargeError, TruncatedError
from kimi_inspect.findings import finding
from kimi_inspect.header import (
    MAX_HEADER_BYTES,
    MAX_OFFSET,
    Header,
    Kind,
    check_overlap,
    check_sizes,
    malformed,
    place_findings,
    type_findings,
)
from kimi_inspect.names import Names
from kimi_inspect.planning import Plan
from kimi_inspect.sidecars import refuse_other_formats
from kimi_inspect.text import quoted
from kimi_inspect.values import ByteRange, Finding

__all__ = ["LENGTH_BYTES", "Layout", "header_length", "layout_of", "parse_header", "read_header"]

LENGTH_BYTES = 8

MAX_DEPTH = 127
"""Levels of nesting that the reference reader takes."""

MIN_READ_BYTES = 1024
"""A first read of at least this much tells a Git LFS pointer or a web page from weights."""

NO_LENGTH = 2**32
"""Beyond this a length word is none, but the first bytes of a text or of another format."""


class _Entry(msgspec.Struct, gc=False):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


_ENTRY = msgspec.json.Decoder(_Entry)
_ENTRIES = msgspec.json.Decoder(list[_Entry])
_RAW_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_MINUS_ZERO = re.compile(rb'"(?:shape|data_offsets)"\s*:\s*\[[^\]]*-0\s*[,\]]')
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_TOP = msgspec.json.Decoder(dict[str, msgspec.Raw])


@frozen(eq=False, kw_only=True)
class Layout:
    """What the entries of a header say, names apart, in the order of the bytes.

    Attributes:
        order: int64 [n], where each stood in the header.
        kinds, kind: the distinct looks, and int32 [n] into them.
        begin, end: int64 [n], from the start of the data.
    """

    order: NDArray[np.int64]
    kinds: tuple[Kind, ...]
    kind: NDArray[np.int32]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]


class _EntryError(Exception):
    """Entry `index` of a header cannot be right."""

    def __init__(self, index: int, problem: str, **details: Any) -> None:
        super().__init__(problem)
        self.index = index
        self.details = details


def layout_of(entries: bytes) -> Layout:
    """Read entries, joined by commas. A cache before it spares work on shards that repeat the entries of another."""
    values = _decoded(entries)
    if b"-" in entries and _MINUS_ZERO.search(entries):
        index = next(i for i, raw in enumerate(_RAW_LIST.decode(b"[" + entries + b"]")) if _MINUS_ZERO.search(raw))
        raise _EntryError(index, "a number is written -0, which loaders do not take for an integer")
    begin, end = _offsets(values)
    kinds: dict[tuple[str, tuple[int, ...]], int] = {}
    kind = np.fromiter([kinds.setdefault((v.dtype, v.shape), len(kinds)) for v in values], np.int32, len(values))
    order = np.lexsort((end, begin))
    return Layout(
        order=order,
        kinds=tuple(Kind(dtype, shape, _kind_bytes(dtype, shape)) for dtype, shape in kinds),
        kind=kind[order],
        begin=begin[order],
        end=end[order],
    )


def read_header(
    file_bytes: int,
    *,
    file: str,
    first_read: int = 1 << 20,
    max_header_bytes: int = MAX_HEADER_BYTES,
    layout: Callable[[bytes], Layout] = layout_of,
) -> Plan[Header]:
    """Ask for the header of a file of `file_bytes` bytes and parse it: one range, or two if `first_read` was short.

    Raises:
        NotWeightsError, TruncatedError, HeaderTooLargeError, MalformedHeaderError: see `parse_header`.
    """
    data = b""
    if file_bytes:
        data = yield ByteRange(0, min(max(first_read, MIN_READ_BYTES), file_bytes))
    header_bytes = header_length(data, file_bytes, file, max_header_bytes)
    if len(data) < header_bytes:
        data += yield ByteRange(len(data), header_bytes)
    return parse_header(memoryview(data)[:header_bytes], file_bytes, file=file, layout=layout)


def header_length(data: bytes, file_bytes: int, file: str, limit: int) -> int:
    """Return the length of header and length word together, checked before anything of that length is read.

    Raises:
        NotWeightsError, TruncatedError, HeaderTooLargeError: see `parse_header`.
    """
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    if length > NO_LENGTH:
        refuse_other_formats(data, file)
    if len(data) < LENGTH_BYTES:
        raise TruncatedError(
            "the file ends inside the length word; download it again", file=file, expected=8, actual=file_bytes
        )
    if length > limit:
        fits = length <= file_bytes - LENGTH_BYTES
        advice = "raise max_header_bytes if that is right" if fits else "longer than the file; download it again"
        raise HeaderTooLargeError(
            f"the header says it is {length:,} bytes long; {advice}",
            file=file,
            offset=0,
            expected=f"at most {limit:,} bytes",
            actual=length,
        )
    if length > file_bytes - LENGTH_BYTES:
        raise TruncatedError(
            "the file ends inside its header; download it again",
            file=file,
            offset=file_bytes,
            expected=f"a file of at least {LENGTH_BYTES + length:,} bytes",
            actual=f"{file_bytes:,} bytes",
        )
    return LENGTH_BYTES + length


def parse_header(
    data: bytes | memoryview, file_bytes: int, *, file: str, layout: Callable[[bytes], Layout] = layout_of
) -> Header:
    """Parse and check a whole header.

    Args:
        data: the length word and the JSON, nothing after it.
        file_bytes: size of the whole file.
        file: its path, for messages.
        layout: reads the entries: `layout_of`, or a cache before it.

    Raises:
        MalformedHeaderError: it is no JSON of the form above, or it contradicts itself: a name twice, ranges that
            overlap, a range that disagrees with shape and dtype. All else that is wrong is a finding.
    """
    body, findings = _unpadded(memoryview(data)[LENGTH_BYTES:], file)
    entries = _entries(body, file)
    raw_metadata = bytes(entries.pop("__metadata__", b""))
    metadata = _metadata(raw_metadata, file)
    findings += [*_metadata_findings(metadata, file), *_repeat_findings(body, raw_metadata, len(entries), file)]
    names = list(entries)
    try:
        found = layout(b",".join(entries.values()))
    except _EntryError as error:
        malformed(f"tensor {quoted(names[error.index])}: {error}", file, **error.details)
    except RecursionError:
        malformed("the header nests deeper than any header does", file)
    in_order = np.array_equal(found.order, np.arange(len(names)))
    header = Header(
        file_bytes=file_bytes,
        data_start=len(data),
        names=Names.of(names if in_order else [names[index] for index in found.order.tolist()]),
        kinds=found.kinds,
        kind=found.kind,
        begin=found.begin,
        end=found.end,
        metadata=_strings(metadata),
    )
    check_sizes(header, file)
    check_overlap(header, file)
    return evolve(header, findings=(*findings, *type_findings(header, file), *place_findings(header, file)))


def _unpadded(body: memoryview, file: str) -> tuple[memoryview, list[Finding]]:
    """Cut padding off that is no JSON, and say so."""
    findings = []
    if bytes(body[-1:]) == b"\0":
        padding = len(body) - len(bytes(body).rstrip(b"\0"))
        body = body[: len(body) - padding]
        message = f"{padding} NUL bytes pad the header where the format has spaces; loaders refuse it"
        findings.append(finding("bad-padding", file, message, file=file, expected="spaces", actual="NUL bytes"))
    if bytes(body[:1]) != b"{":
        if not bytes(body).lstrip(b" \t\r\n").startswith(b"{"):
            malformed(
                "the header is no JSON object", file, offset=LENGTH_BYTES, expected="{", actual=repr(bytes(body[:16]))
            )
        message = "the header starts with white space; the format has it start with {"
        findings.append(finding("leading-space", file, message, file=file, expected="{", actual=repr(bytes(body[:1]))))
    return body, findings


def _entries(body: memoryview, file: str) -> dict[str, msgspec.Raw]:
    """Cut the header into names and undecoded entries."""
    try:
        if np.frombuffer(body, np.uint8).max(initial=0) > 127:
            str(body, "utf-8")  # the decoder passes over bad UTF-8 in what it skips
        return _TOP.decode(body)
    except UnicodeDecodeError as error:
        wrong = repr(error.object[error.start : error.end])
        malformed("the header is not UTF-8", file, offset=LENGTH_BYTES + error.start, actual=wrong)
    except RecursionError:
        malformed("the header nests deeper than any header does", file)
    except (msgspec.DecodeError, ValueError) as error:
        malformed(f"the header is no valid JSON: {error}", file)


def _decoded(entries: bytes) -> list[_Entry]:
    try:
        return _ENTRIES.decode(b"[" + entries + b"]")
    except (msgspec.DecodeError, ValueError):  # the latter for numbers of thousands of digits
        for index, raw in enumerate(_RAW_LIST.decode(b"[" + entries + b"]")):
            try:
                _ENTRY.decode(raw)
            except (msgspec.DecodeError, ValueError) as error:
                raise _EntryError(index, str(error)) from None
        raise


def _in_range(number: str) -> str:
    """Pass over a number in a field that nobody reads; the reference reader refuses one that no float64 holds."""
    if isinf(float(number)):
        raise ValueError("a number out of range")
    return number


def _depth(text: bytes) -> int:
    """Return how deep lists and objects nest."""
    marks = np.frombuffer(_STRING.sub(b"", text), np.uint8)
    opening, closing = np.isin(marks, [*b"[{"]), np.isin(marks, [*b"]}"])
    return int(np.cumsum(opening.astype(np.int64) - closing).max(initial=0))


def _offsets(entries: Sequence[_Entry]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return begin and end of each tensor, from the start of the data."""
    try:
        flat = np.array(list(chain.from_iterable([entry.data_offsets for entry in entries])), np.int64)
        pairs = flat.reshape(-1, 2)
        wrong = (pairs[:, 0] < 0) | (pairs[:, 1] < pairs[:, 0]) | (pairs[:, 1] > MAX_OFFSET)
    except OverflowError:  # one of them does not fit an int64, and so is no offset
        pairs = np.zeros((0, 2), np.int64)
        wrong = np.array([not 0 <= min(e.data_offsets) <= max(e.data_offsets) <= MAX_OFFSET for e in entries])
    if wrong.any():
        index = int(np.argmax(wrong))
        actual = [_number(offset) for offset in entries[index].data_offsets]
        raise _EntryError(index, "an impossible range", expected="0 <= begin <= end <= 2^60", actual=actual)
    return pairs[:, 0], pairs[:, 1]


def _number(value: int) -> int | str:
    """Return a number for a message: one of thousands of digits would not be written out."""
    return value if value.bit_length() <= 128 else f"a number of {value.bit_length():,} bits"


def _kind_bytes(dtype: str, shape: tuple[int, ...]) -> int | None:
    """Return the bytes of such a tensor, None if the dtype is unknown, -1 if there can be no such tensor.

    That is so where a dimension is negative, where the bytes are no whole number, and where the dimensions, multiplied
    from the first on, leave 64 bits, even if a later one is zero: the reference reader multiplies so.
    """
    elements = 1
    for dimension in shape:
        elements *= dimension
        if not 0 <= dimension < 2**64 or elements >= 2**64:
            return -1
    if dtype not in SAFETENSORS_BITS:
        return None
    nbytes, rest = divmod(elements * SAFETENSORS_BITS[dtype], 8)
    return -1 if rest else nbytes


def _metadata(raw: bytes, file: str) -> Any:
    try:
        return msgspec.json.decode(raw) if raw else None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        malformed(f"__metadata__ is no valid JSON: {error}", file)


def _strings(metadata: Any) -> dict[str, str] | None:
    if not isinstance(metadata, dict):
        return None
    return {key: value for key, value in metadata.items() if isinstance(value, str)}


def _metadata_findings(metadata: Any, file: str) -> list[Finding]:
    if metadata is None:
        return []
    if not isinstance(metadata, dict):
        wrong = ["__metadata__"]
    else:
        wrong = [key for key, value in metadata.items() if not isinstance(value, str)]
    if not wrong:
        return []
    message = f"__metadata__ holds no string under {quoted(wrong[0])}; the official loaders refuse the file"
    actual = type(metadata[wrong[0]] if isinstance(metadata, dict) else metadata).__name__
    return [
        finding(
            "metadata-not-string",
            file,
            message,
            file=file,
            expected="a string",
            actual=actual,
            count=len(wrong),
            examples=wrong,
        )
    ]


def _repeat_findings(body: memoryview, raw_metadata: bytes, entries: int, file: str) -> list[Finding]:
    """Find keys written twice, of which the decoder has kept the last: a doubled tensor name is an error.

    An entry is its name and three keys that must be there, so four colons. Where the count is just that, no key
    can stand twice, and the slow search is spared.
    """
    colons = int(np.count_nonzero(np.frombuffer(body, np.uint8) == ord(":"))) - (
        raw_metadata.count(b":") + 1 if raw_metadata else 0
    )
    if colons != 4 * entries:
        outer, inner = _repeated_keys(bytes(body), file)
    else:
        outer, inner = [], list(chain(*_repeated_keys(raw_metadata, file))) if raw_metadata else []
    names = [key for key in outer if key != "__metadata__"]
    if names:
        malformed(
            f"the tensor name {quoted(names[0])} is written twice",
            file,
            contradictory=True,
            expected="one entry a name",
        )
    if not (outer or inner):
        return []
    keys = list(dict.fromkeys([*outer, *inner]))
    message = f"the key {quoted(keys[0])} is written twice; which of the two a loader takes is chance"
    return [finding("duplicate-key", file, message, file=file, count=len(keys), examples=keys)]


def _repeated_keys(text: bytes, file: str) -> tuple[list[str], list[str]]:
    """Return the keys that stand twice in the outermost object of `text`, and those in any other."""
    repeated: list[list[str]] = [[]]  # one list an object, in the order they end: the outermost is the last

    def note(pairs: list[tuple[str, object]]) -> None:
        keys = [key for key, _ in pairs]
        repeated.append([] if len(set(keys)) == len(keys) else [key for key, n in Counter(keys).items() if n > 1])

    try:
        json.loads(text, object_pairs_hook=note, parse_int=_in_range, parse_float=_in_range)
    except RecursionError:
        malformed("the header nests deeper than any header does", file)
    except ValueError as error:
        malformed(f"the header holds {error}", file)
    if _depth(text) > MAX_DEPTH:
        malformed("the header nests deeper than loaders read", file, expected=f"at most {MAX_DEPTH} levels")
    return repeated[-1], list(chain(*repeated[:-1]))
