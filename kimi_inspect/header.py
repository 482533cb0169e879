"""A parsed header: its tensors in columns, whatever the format, and the checks that only need columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Any, NoReturn

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from kimi_inspect.errors import MalformedHeaderError
from kimi_inspect.findings import MAX_EXAMPLES, finding
from kimi_inspect.names import Names
from kimi_inspect.sums import exact_sum
from kimi_inspect.text import printable, quoted
from kimi_inspect.values import Finding

__all__ = [
    "MAX_HEADER_BYTES",
    "MAX_OFFSET",
    "Header",
    "Kind",
    "check_overlap",
    "check_sizes",
    "malformed",
    "place_findings",
    "type_findings",
]

MAX_HEADER_BYTES = 256 * 1024 * 1024
"""Longest header read by default, in bytes: a real file of 1.29 million tensors has 132,095,296."""

MAX_OFFSET = 2**60
"""Offsets and file sizes beyond this are refused: no file is so long, and sums of int64 stay exact below it."""


MAX_TYPES = 10
"""Unknown types that are told one by one."""

UNKNOWN = (
    "is in none of our tables: newer than this package, or given up upstream; its tensors are sized by their ranges"
)
FOREIGN = "has another size than upstream gave it: a fork's own, which only that fork loads; sized by its ranges"


@frozen
class Kind:
    """What a tensor looks like, apart from its name and place. A checkpoint has few kinds and many tensors.

    Attributes:
        shape: as written in the file.
        nbytes: size by `shape` and `dtype`; None for a type that is not in our table; -1 for what can have no size.
    """

    dtype: str
    shape: tuple[int, ...]
    nbytes: int | None


@frozen(eq=False, kw_only=True)
class Header:
    """One parsed header, its tensors in the order of their bytes.

    Attributes:
        file_bytes: size of the whole file.
        data_start: where the data section begins; beyond the end of a file that is cut before it.
        kinds: the distinct looks of its tensors.
        kind: int32 [n], index into `kinds`.
        begin, end: int64 [n], the tensor's half-open range, from the start of the data section, in bytes.
        metadata: `__metadata__` with its string values, or None if the header has none.
    """

    file_bytes: int
    data_start: int
    names: Names
    kinds: tuple[Kind, ...]
    kind: NDArray[np.int32]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    metadata: dict[str, Any] | None = None
    findings: tuple[Finding, ...] = ()
    tensor_bytes: int = field(init=False)
    missing_bytes: int = field(init=False)

    @tensor_bytes.default
    def _tensor_bytes(self) -> int:
        return exact_sum(self.end - self.begin)

    @missing_bytes.default
    def _missing_bytes(self) -> int:
        return exact_sum(np.clip(self.end - np.maximum(self.begin, self.data_bytes), 0, None))

    def examples(self, rows: Iterable[int | np.integer[Any]]) -> list[str]:
        """Return the names in the first of these rows, as many as a finding tells."""
        return [self.names[int(row)] for row in islice(rows, MAX_EXAMPLES)]

    @property
    def header_bytes(self) -> int:
        """Bytes before the data section that are there."""
        return min(self.data_start, self.file_bytes)

    @property
    def data_bytes(self) -> int:
        """Bytes of the data section that are there."""
        return self.file_bytes - self.header_bytes

    @property
    def padding_bytes(self) -> int:
        """Bytes of the data section that no tensor owns."""
        return self.data_bytes + self.missing_bytes - self.tensor_bytes

    @property
    def data_end(self) -> int:
        """Where the last tensor ends, from the start of the file."""
        return self.data_start + int(self.end.max(initial=0))


def malformed(problem: str, file: str, *, contradictory: bool = False, **details: Any) -> NoReturn:
    """Raise for a header that contradicts the format, or itself."""
    error = MalformedHeaderError(printable(problem), file=file, **details)
    error.contradictory = contradictory
    raise error from None


def check_sizes(header: Header, file: str) -> None:
    """Hold each range against shape and type."""
    spans = header.end - header.begin
    # Beyond int64 nothing can be equal to a span, so -1 stands for that too; the span itself stands in for unknown.
    sizes = np.array(
        [kind.nbytes if kind.nbytes is not None and kind.nbytes <= MAX_OFFSET else -1 for kind in header.kinds] or [0]
    )
    unknown = np.array([kind.nbytes is None for kind in header.kinds] or [False])
    wrong = (sizes[header.kind] != spans) & ~unknown[header.kind] if len(spans) else np.zeros(0, bool)
    if not wrong.any():
        return
    index = int(np.argmax(wrong))
    kind = header.kinds[int(header.kind[index])]
    malformed(
        f"tensor {quoted(header.names[index])} ({kind.dtype} {_shown(kind.shape)}) has a range of another size",
        file,
        contradictory=True,
        offset=header.data_start + int(header.begin[index]),
        expected="dimensions that make whole bytes" if kind.nbytes == -1 else f"{kind.nbytes:,} bytes",
        actual=f"{int(spans[index]):,} bytes",
    )


def _shown(shape: tuple[int, ...]) -> str:
    """Write a shape; a stranger's may be long, or hold numbers of thousands of digits."""
    return str([n if n.bit_length() <= 128 else "…" for n in shape[:16]]) + ("…" if len(shape) > 16 else "")


def check_overlap(header: Header, file: str) -> None:
    """Refuse tensors that share bytes."""
    reach = np.maximum.accumulate(header.end)
    overlaps = header.begin[1:] < reach[:-1]
    if not overlaps.any():
        return
    index = int(np.argmax(overlaps)) + 1
    other = int(np.argmax(header.end[:index] > header.begin[index]))
    malformed(
        f"tensors {quoted(header.names[other])} and {quoted(header.names[index])} share bytes",
        file,
        contradictory=True,
        offset=header.data_start + int(header.begin[index]),
        expected=f"data from {int(reach[index - 1]):,} on",
        actual=f"{int(header.begin[index]):,}",
    )


def type_findings(header: Header, file: str, *, foreign: Collection[str] = ()) -> list[Finding]:
    """Find the tensors of types that are not in our table: one finding a type, and one for all beyond ten types.

    Args:
        header: the header.
        file: its path.
        foreign: types that we know by another size than these tensors have: forks gave them to types of their own.
    """
    unknown = np.array([kind.nbytes is None for kind in header.kinds] or [False])
    by_type: dict[str, list[int]] = {}
    for row in np.flatnonzero(unknown[header.kind]).tolist():
        by_type.setdefault(header.kinds[header.kind[row]].dtype, []).append(row)
    types = sorted(by_type)
    groups = [(dtype in foreign, quoted(dtype), by_type[dtype]) for dtype in types[:MAX_TYPES]]
    if len(types) > MAX_TYPES:
        rest = [row for name in types[MAX_TYPES:] for row in by_type[name]]
        groups.append((False, f"of {len(types) - MAX_TYPES:,} names more", rest))
    return [
        finding(
            "foreign-type" if of_a_fork else "unknown-type",
            file,
            f"dtype {what} {FOREIGN if of_a_fork else UNKNOWN}",
            file=file,
            tensor=header.names[rows[0]],
            actual=what,
            count=len(rows),
            examples=header.examples(rows),
        )
        for of_a_fork, what, rows in groups
    ]


def place_findings(header: Header, file: str, *, alignment: int = 1) -> Iterator[Finding]:
    """Yield what is wrong with the places: holes, bytes after the last tensor, bytes that are not there.

    `alignment` allows for padding after each tensor, up to the next multiple of it.
    """
    starts = np.append(header.begin, header.end.max(initial=0))
    reach = -(-np.maximum.accumulate(np.append(0, header.end)) // alignment) * alignment
    # A tensor that starts where no alignment allows it is told as such.
    off = np.append(header.begin % alignment, 0)
    holes = np.flatnonzero((starts > reach) & ~((off > 0) & (starts - reach < alignment)))
    if holes.size:
        first = int(holes[0])
        unowned = int((starts - reach)[holes].sum())
        yield finding(
            "gap",
            file,
            f"{unowned:,} bytes between the tensors belong to none; loaders refuse the file",
            file=file,
            expected=header.data_start + int(reach[first]),
            actual=header.data_start + int(starts[first]),
            count=len(holes),
            examples=header.examples(holes),
        )
    beyond = header.data_bytes - int(reach[-1])
    if beyond > 0:
        message = f"{beyond:,} bytes follow the last tensor; loaders refuse the file"
        yield finding("trailing-bytes", file, message, file=file, expected=header.data_end, actual=header.file_bytes)
    if header.missing_bytes:
        cut = np.flatnonzero(header.end > np.maximum(header.begin, header.data_bytes))
        names = header.examples(cut)
        yield finding(
            "truncated",
            file,
            f"the file ends {header.missing_bytes:,} bytes early, in or before {quoted(names[0])}; download it again",
            file=file,
            tensor=names[0],
            expected=header.data_end,
            actual=header.file_bytes,
            count=len(cut),
            examples=names,
        )
