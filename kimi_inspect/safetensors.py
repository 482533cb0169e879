"""The header of a safetensors file: a pure parser from bytes to columns.

Layout (https://github.com/huggingface/safetensors, "Format"): an unsigned little-endian 64-bit length N, N bytes
of JSON, then the data. Each entry of the JSON gives a tensor's dtype, shape and `data_offsets`, a half-open range
counted from the start of the data; the ranges must fill the data without hole or overlap.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from math import prod
from typing import Any, NoReturn

import msgspec
import numpy as np
from attrs import evolve, field, frozen
from numpy.typing import NDArray

from kimi_inspect.dtypes import SAFETENSORS_BITS
from kimi_inspect.errors import HeaderTooLargeError, MalformedHeaderError, TruncatedError
from kimi_inspect.findings import finding, printable
from kimi_inspect.names import Names
from kimi_inspect.planning import Plan
from kimi_inspect.sidecars import refuse_other_formats
from kimi_inspect.values import ByteRange, Finding

__all__ = ["MAX_HEADER_BYTES", "Header", "Kind", "parse_header", "read_header"]

LENGTH_BYTES = 8
METADATA_KEY = b"__metadata__"

MAX_HEADER_BYTES = 256 * 1024 * 1024
"""Longest header read by default, in bytes: a real file of 1.29 million tensors has 132,095,296."""

MIN_READ_BYTES = 1024
"""A first read of at least this much tells a Git LFS pointer or a web page from weights."""

MAX_OFFSET = 2**60
"""Offsets beyond this are refused: no file is so long, and sums of int64 stay exact below it."""


@frozen
class Kind:
    """What a tensor looks like, apart from its name and place. A checkpoint has few kinds and many tensors.

    Attributes:
        shape: as written in the file.
        nbytes: size by `shape` and `dtype`; None for a dtype that is not in our table.
    """

    dtype: str
    shape: tuple[int, ...]
    nbytes: int | None


@frozen(eq=False, kw_only=True)
class Header:
    """One parsed header, its tensors in the order of their bytes.

    Attributes:
        file_bytes: size of the whole file.
        header_bytes: length word and JSON.
        kinds: the distinct looks of its tensors.
        kind: int32 [n], index into `kinds`.
        begin, end: int64 [n], the tensor's half-open range, from the start of the file, in bytes.
        metadata: `__metadata__` with its string values, or None if the header has none.
    """

    file_bytes: int
    header_bytes: int
    names: Names
    kinds: tuple[Kind, ...]
    kind: NDArray[np.int32]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    metadata: dict[str, str] | None = None
    findings: tuple[Finding, ...] = ()
    tensor_bytes: int = field(init=False)
    missing_bytes: int = field(init=False)

    @tensor_bytes.default
    def _tensor_bytes(self) -> int:
        return int((self.end - self.begin).sum())

    @missing_bytes.default
    def _missing_bytes(self) -> int:
        return int(np.clip(self.end - np.maximum(self.begin, self.file_bytes), 0, None).sum())

    @property
    def padding_bytes(self) -> int:
        """Bytes of the data section that no tensor owns."""
        return self.file_bytes - self.header_bytes + self.missing_bytes - self.tensor_bytes


class _Entry(msgspec.Struct, gc=False):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


_ENTRY = msgspec.json.Decoder(_Entry)
_ENTRIES = msgspec.json.Decoder(dict[str, _Entry])
_TOP = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_header(
    file_bytes: int, *, file: str, first_read: int = 1 << 20, max_header_bytes: int = MAX_HEADER_BYTES
) -> Plan[Header]:
    """Ask for the header of a file of `file_bytes` bytes and parse it: one range, or two if `first_read` was short.

    Raises:
        NotWeightsError, TruncatedError, HeaderTooLargeError, MalformedHeaderError: see `parse_header`.
    """
    data = b""
    if file_bytes:
        data = yield ByteRange(0, min(max(first_read, MIN_READ_BYTES), file_bytes))
    header_bytes = _header_bytes(data, file_bytes, file, max_header_bytes)
    if len(data) < header_bytes:
        data += yield ByteRange(len(data), header_bytes)
    return parse_header(data[:header_bytes], file_bytes, file=file)


def _header_bytes(data: bytes, file_bytes: int, file: str, limit: int) -> int:
    """Return the length of header and length word together, checked before anything of that length is read."""
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    if len(data) < LENGTH_BYTES or length > min(limit, file_bytes - LENGTH_BYTES):
        refuse_other_formats(data, file)
    if len(data) < LENGTH_BYTES:
        raise TruncatedError(
            "the file ends inside the length word; download it again", file=file, expected=8, actual=file_bytes
        )
    if length > limit:
        raise HeaderTooLargeError(
            f"the header says it is {length:,} bytes long; raise max_header_bytes if that is right",
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


def parse_header(data: bytes, file_bytes: int, *, file: str) -> Header:
    """Parse and check a whole header.

    Args:
        data: the length word and the JSON, nothing after it.
        file_bytes: size of the whole file.
        file: its path, for messages.

    Raises:
        MalformedHeaderError: it is no JSON of the form above, or it contradicts itself: a name twice, ranges that
            overlap, a range that disagrees with shape and dtype. All else that is wrong is a finding.
    """
    body, findings = _unpadded(data[LENGTH_BYTES:], file)
    metadata, raw_metadata, entries = _decode(body, file)
    findings += [*_metadata_findings(metadata, file), *_repeat_findings(body, raw_metadata, len(entries), file)]
    names, values = list(entries), list(entries.values())
    begin, end = _offsets(names, values, file)
    kinds: dict[tuple[str, tuple[int, ...]], int] = {}
    kind = np.fromiter([kinds.setdefault((v.dtype, v.shape), len(kinds)) for v in values], np.int32, len(values))
    if np.any(begin[1:] < begin[:-1]) or np.any(end[1:] < end[:-1]):
        order = np.lexsort((end, begin))
        begin, end, kind = begin[order], end[order], kind[order]
        names = [names[index] for index in order.tolist()]
    header = Header(
        file_bytes=file_bytes,
        header_bytes=len(data),
        names=Names.of(names),
        kinds=tuple(Kind(dtype, shape, _kind_bytes(dtype, shape)) for dtype, shape in kinds),
        kind=kind,
        begin=begin + len(data),
        end=end + len(data),
        metadata=_strings(metadata),
        findings=(),
    )
    _check_sizes(header, file)
    _check_overlap(header, file)
    return evolve(header, findings=(*findings, *_type_findings(header, file), *_place_findings(header, file)))


def _malformed(problem: str, file: str, **details: Any) -> NoReturn:
    raise MalformedHeaderError(printable(problem), file=file, **details) from None


def _unpadded(body: bytes, file: str) -> tuple[bytes, list[Finding]]:
    """Cut padding off that is no JSON, and say so."""
    findings = []
    trimmed = body.rstrip(b"\0")
    if len(trimmed) < len(body):
        message = f"{len(body) - len(trimmed)} NUL bytes pad the header where the format has spaces; loaders refuse it"
        findings.append(finding("bad-padding", file, message, file=file, expected="spaces", actual="NUL bytes"))
    if not trimmed.startswith(b"{"):
        if not trimmed.lstrip(b" \t\r\n").startswith(b"{"):
            _malformed("the header is no JSON object", file, offset=LENGTH_BYTES, expected="{", actual=trimmed[:16])
        message = "the header starts with white space; the format has it start with {"
        findings.append(finding("leading-space", file, message, file=file, expected="{", actual=repr(trimmed[:1])))
    return trimmed, findings


def _decode(body: bytes, file: str) -> tuple[Any, bytes, dict[str, _Entry]]:
    """Return the decoded `__metadata__`, its bytes (empty if there is none), and the entries by name."""
    try:
        body.decode()  # the decoder passes over bad UTF-8 in what it skips
        if METADATA_KEY not in body and b"\\" not in body:
            return None, b"", _ENTRIES.decode(body)
    except UnicodeDecodeError as error:
        _malformed(
            "the header is not UTF-8", file, offset=LENGTH_BYTES + error.start, actual=error.object[error.start : error.end]
        )
    except (msgspec.DecodeError, RecursionError):
        pass  # below, entry by entry, the tensor at fault is known
    name = ""
    try:
        raws = _TOP.decode(body)
        metadata = bytes(raws.pop("__metadata__", b""))
        entries = {}
        for name, raw in raws.items():  # noqa: B007
            entries[name] = _ENTRY.decode(raw)
        name = "__metadata__"
        return msgspec.json.decode(metadata) if metadata else None, metadata, entries
    except RecursionError:
        _malformed("the header nests deeper than any header does", file)
    except msgspec.DecodeError as error:
        _malformed(f"entry {name!r}: {error}" if name else f"the header is no valid JSON: {error}", file)


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
    message = f"__metadata__ holds something other than a string under {wrong[0]!r}; the official loaders refuse the file"
    actual = type(metadata[wrong[0]] if isinstance(metadata, dict) else metadata).__name__
    return [
        finding(
            "metadata-not-string", file, message, file=file, expected="a string", actual=actual, count=len(wrong), examples=wrong
        )
    ]


def _repeat_findings(body: bytes, raw_metadata: bytes, entries: int, file: str) -> list[Finding]:
    """Find keys written twice, of which the decoder has kept the last: a doubled tensor name is an error.

    An entry is its name and three keys that must be there, so four colons. Where the count is just that, no key
    can stand twice, and the slow search is spared.
    """
    colons = body.count(b":") - (raw_metadata.count(b":") + 1 if raw_metadata else 0)
    if colons != 4 * entries:
        outer, inner = _repeated_keys(body)
    else:
        outer, inner = [], list(chain(*_repeated_keys(raw_metadata))) if raw_metadata else []
    names = [key for key in outer if key != "__metadata__"]
    if names:
        _malformed(f"the tensor name {names[0]!r} is written twice", file, expected="one entry a name")
    if not (outer or inner):
        return []
    keys = list(dict.fromkeys([*outer, *inner]))
    message = f"the key {keys[0]!r} is written twice; which of the two a loader takes is chance"
    return [finding("duplicate-key", file, message, file=file, count=len(keys), examples=keys)]


def _repeated_keys(text: bytes) -> tuple[list[str], list[str]]:
    """Return the keys that stand twice in the outermost object of `text`, and those in any other."""
    repeated: list[list[str]] = [[]]  # one list an object, in the order they end: the outermost is the last

    def note(pairs: list[tuple[str, object]]) -> None:
        keys = [key for key, _ in pairs]
        repeated.append([] if len(set(keys)) == len(keys) else [key for key, n in Counter(keys).items() if n > 1])

    json.loads(text, object_pairs_hook=note)
    return repeated[-1], list(chain(*repeated[:-1]))


def _offsets(names: list[str], entries: list[_Entry], file: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return begin and end of each tensor, from the start of the data."""
    flat = list(chain.from_iterable([entry.data_offsets for entry in entries]))
    if flat and not 0 <= min(flat) <= max(flat) <= MAX_OFFSET:
        name, entry = next(
            (name, e) for name, e in zip(names, entries, strict=True) if not 0 <= min(e.data_offsets) <= max(e.data_offsets) <= MAX_OFFSET
        )
        _malformed(f"tensor {name!r} has an impossible range", file, expected="0 to 2^60", actual=list(entry.data_offsets))
    pairs = np.array(flat, np.int64).reshape(-1, 2)
    begin, end = pairs[:, 0], pairs[:, 1]
    if np.any(end < begin):
        index = int(np.argmax(end < begin))
        _malformed(
            f"tensor {names[index]!r} ends before it begins",
            file,
            expected="begin <= end",
            actual=list(entries[index].data_offsets),
        )
    return begin, end


def _kind_bytes(dtype: str, shape: tuple[int, ...]) -> int | None:
    """Return the bytes of such a tensor, -1 if it fills no whole bytes or a dimension is negative, None if unknown."""
    if any(dimension < 0 for dimension in shape):
        return -1
    if dtype not in SAFETENSORS_BITS:
        return None
    nbytes, rest = divmod(prod(shape) * SAFETENSORS_BITS[dtype], 8)
    return -1 if rest else nbytes


def _check_sizes(header: Header, file: str) -> None:
    """Hold each range against shape and dtype."""
    spans = header.end - header.begin
    # Beyond int64 nothing can be equal to a span, so -1 stands for that too; the span itself stands in for unknown.
    sizes = np.array([kind.nbytes if kind.nbytes is not None and kind.nbytes <= MAX_OFFSET else -1 for kind in header.kinds] or [0])
    unknown = np.array([kind.nbytes is None for kind in header.kinds] or [False])
    wrong = (sizes[header.kind] != spans) & ~unknown[header.kind] if len(spans) else np.zeros(0, bool)
    if not wrong.any():
        return
    index = int(np.argmax(wrong))
    kind = header.kinds[int(header.kind[index])]
    _malformed(
        f"tensor {header.names[index]!r} of dtype {kind.dtype} and shape {list(kind.shape)} has a range of another size",
        file,
        offset=int(header.begin[index]),
        expected="whole bytes and no negative dimension" if kind.nbytes == -1 else f"{kind.nbytes:,} bytes",
        actual=f"{int(spans[index]):,} bytes",
    )


def _check_overlap(header: Header, file: str) -> None:
    reach = np.maximum.accumulate(header.end)
    overlaps = header.begin[1:] < reach[:-1]
    if not overlaps.any():
        return
    index = int(np.argmax(overlaps)) + 1
    other = int(np.argmax(header.end[:index] > header.begin[index]))
    _malformed(
        f"tensors {header.names[other]!r} and {header.names[index]!r} share bytes",
        file,
        offset=int(header.begin[index]),
        expected=f"a range that begins at {int(reach[index - 1]):,} or later",
        actual=f"{int(header.begin[index]):,}",
    )


def _type_findings(header: Header, file: str) -> Iterator[Finding]:
    """One finding for each dtype that is not in our table."""
    for dtype in sorted({kind.dtype for kind in header.kinds} - SAFETENSORS_BITS.keys()):
        of_type = np.array([kind.dtype == dtype for kind in header.kinds])
        rows = np.flatnonzero(of_type[header.kind])
        names = [header.names[int(row)] for row in rows[:10]]
        message = f"dtype {dtype!r} is newer than this package; its tensors are sized by their ranges"
        yield finding(
            "unknown-type", file, message, file=file, tensor=names[0], actual=dtype, count=len(rows), examples=names
        )


def _place_findings(header: Header, file: str) -> Iterator[Finding]:
    """Holes, bytes after the last tensor, bytes that are not there."""
    starts = np.append(header.begin, header.end.max(initial=header.header_bytes))
    reach = np.maximum.accumulate(np.append(header.header_bytes, header.end))
    holes = np.flatnonzero(starts > reach)
    if holes.size:
        first = int(holes[0])
        message = f"{int((starts - reach)[holes].sum()):,} bytes between the tensors belong to none; loaders refuse the file"
        yield finding(
            "gap", f"{file} at byte {int(reach[first]):,}", message, file=file,
            expected=int(reach[first]), actual=int(starts[first]), count=len(holes), examples=[header.names[int(i)] for i in holes[:10]],
        )
    beyond = header.file_bytes - int(reach[-1])
    if beyond > 0:
        message = f"{beyond:,} bytes follow the last tensor; loaders refuse the file"
        yield finding(
            "trailing-bytes", file, message, file=file, expected=int(reach[-1]), actual=header.file_bytes
        )
    if header.missing_bytes:
        cut = np.flatnonzero(header.end > header.file_bytes)
        names = [header.names[int(i)] for i in cut[:10]]
        message = f"the file ends {header.missing_bytes:,} bytes early, inside or before {names[0]!r}; download it again"
        yield finding(
            "truncated", file, message, file=file, tensor=names[0], expected=int(reach[-1]), actual=header.file_bytes,
            count=len(cut), examples=names,
        )
