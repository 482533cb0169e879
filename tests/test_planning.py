"""A header is read the same whatever is read first, and a file cut anywhere says exactly what it lacks."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import Built, Laid, contents, few, framed, safetensors_files, usual

from kimi_inspect.errors import FormatError, TruncatedError
from kimi_inspect.header import Header
from kimi_inspect.planning import Plan, run
from kimi_inspect.safetensors import read_header
from kimi_inspect.testing import HollowFile
from kimi_inspect.values import ByteRange


class Watched:
    """A file that keeps the ranges it was asked for."""

    def __init__(self, file: HollowFile) -> None:
        self.file = file
        self.asked: list[ByteRange] = []

    def read(self, begin: int, end: int) -> bytes:
        self.asked.append(ByteRange(begin, end))
        return self.file.read(begin, end)

    def header(self, **options: Any) -> Header:
        return run(read_header(self.file.size, file="f", **options), self.read)


def facts(header: Header) -> tuple[object, ...]:
    """All that a header says."""
    columns = [column.tolist() for column in (header.kind, header.begin, header.end)]
    sizes = header.file_bytes, header.header_bytes, header.tensor_bytes, header.missing_bytes, header.padding_bytes
    return list(header.names), header.kinds, columns, header.metadata, header.findings, sizes


def outcome(file: HollowFile, **options: Any) -> tuple[object, ...]:
    """All that is said of a file: its header, or its error."""
    try:
        return facts(Watched(file).header(**options))
    except FormatError as error:
        return type(error), error.problem, error.offset, error.expected, error.actual


def missing(built: Built, size: int) -> dict[str, int]:
    """How many bytes of each tensor lie beyond `size`, for those of which some do: counted byte by byte."""
    there = size - len(built.head)
    lacks = {t.name: sum(at >= there for at in range(t.begin, t.end)) for t in built.tensors}
    return {name: count for name, count in lacks.items() if count}


def check_cut(built: Built, size: int, **options: Any) -> None:
    """Hold what is said of the first `size` bytes against the layout."""
    watched = Watched(built.cut(size))
    if size < len(built.head):
        with pytest.raises(TruncatedError) as caught:
            watched.header(**options)
        needed = 8 if size < 8 else len(built.head)
        assert f"{needed:,}" in str(caught.value.expected)
        assert f"{size:,}" in str(caught.value.actual)
        return
    header = watched.header(**options)
    lacks = missing(built, size)
    assert contents(header) == {tensor.name: (tensor.dtype, tensor.shape) for tensor in built.tensors}
    assert header.missing_bytes == sum(lacks.values())
    assert header.tensor_bytes == built.data_bytes
    assert header.padding_bytes == 0
    assert [finding.code for finding in header.findings] == (["truncated"] if lacks else [])
    for finding in header.findings:
        assert (finding.expected, finding.actual, finding.count) == (built.size, size, len(lacks))
        assert finding.tensor == next(iter(lacks))
        assert list(finding.examples) == list(lacks)[:10]
        assert f"{header.missing_bytes:,} bytes" in finding.message


def built_of(*sizes: int, blanks: int = 0) -> Built:
    """A file of byte tensors of these sizes, under the names a, b, c, …"""
    tensors, text, end = [], [], 0
    for name, size in zip("abcdefghijklmnop", sizes, strict=False):
        tensors.append(Laid(name, "U8", (size,), end, end + size))
        text.append(f'"{name}":{{"dtype":"U8","shape":[{size}],"data_offsets":[{end},{end + size}]}}')
        end += size
    return Built(framed(("{" + ",".join(text) + "}" + " " * blanks).encode()), tuple(tensors), end)


SMALL = built_of(3, 0, 5, 1, blanks=900)
"""Its header is longer than the least first read, its data shorter."""


@pytest.mark.parametrize("first_read", [0, 1, 8, 1024, 1025, len(SMALL.head) - 1, len(SMALL.head), 1 << 20])
def test_every_prefix_of_a_small_file_says_what_it_lacks(first_read: int) -> None:
    assert 1024 < len(SMALL.head) < 1200
    for size in range(SMALL.size + 1):
        check_cut(SMALL, size, first_read=first_read)


@usual
@given(st.data())
def test_any_file_cut_anywhere_says_what_it_lacks(data: st.DataObject) -> None:
    built = data.draw(safetensors_files(min_tensors=1))
    inside = st.integers(len(built.head), built.size) | st.sampled_from(
        [len(built.head) + t.end for t in built.tensors]
    )
    check_cut(built, data.draw(inside | st.integers(8, built.size)))


@pytest.mark.parametrize("length", [60, 123, 640, 0x0D3C, 0x3C20, 0x8B1F, 66_176])
def test_a_length_word_that_looks_like_text_is_still_a_length(length: int) -> None:
    """Its bytes are those that start a web page, JSON, a pickle, blanks and a web page, or gzip-compressed data."""
    name = "n" * (length - len('{"":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'))
    body = f'{{"{name}":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}}}'.encode()
    built = Built(framed(body), (Laid(name, "U8", (4,), 0, 4),), 4)
    assert len(body) == length
    for size in (8, 9, 40, 8 + length - 1, 8 + length, 8 + length + 3, built.size):
        check_cut(built, size)


def test_a_tensor_of_no_bytes_is_never_what_a_cut_file_lacks() -> None:
    built = built_of(4, 0, 0, 4)
    check_cut(built, built.size - 5)


@few
@given(
    safetensors_files(max_tensors=4),
    st.integers(0, 3000),
    st.lists(st.integers(0, 5000), min_size=2, max_size=4),
    st.integers(0, 10**6),
)
@example(SMALL, 0, [0, 1023, 1024, 1025, 10**6], 10**6)
def test_what_is_read_first_changes_nothing(built: Built, blanks: int, first_reads: list[int], cut: int) -> None:
    longer = built.with_body(built.head[8:] + b" " * blanks)
    file = longer.cut(min(cut, longer.size))
    assert len({repr(outcome(file, first_read=first_read)) for first_read in first_reads}) == 1


@few
@given(safetensors_files(max_tensors=4), st.integers(0, 3000), st.integers(0, 5000), st.integers(0, 10**6))
@example(SMALL, 0, 0, 10**6)
@example(built_of(), 0, 0, 0)
def test_at_most_two_ranges_are_asked_for_and_both_lie_in_the_file(
    built: Built, blanks: int, first_read: int, cut: int
) -> None:
    longer = built.with_body(built.head[8:] + b" " * blanks)
    watched = Watched(longer.cut(min(cut, longer.size)))
    try:
        watched.header(first_read=first_read)
        wanted = len(longer.head)
    except TruncatedError:
        wanted = 0
    assert len(watched.asked) <= 2
    assert all(0 <= begin < end <= watched.file.size for begin, end in watched.asked)
    assert [begin for begin, _ in watched.asked[1:]] == [end for _, end in watched.asked[:-1]]
    assert max((end for _, end in watched.asked), default=0) >= wanted
    if len(watched.asked) == 2:
        assert watched.asked[1].end == wanted


def test_a_first_read_that_holds_the_header_is_the_only_one() -> None:
    for first_read, requests in [(len(SMALL.head) - 1, 2), (len(SMALL.head), 1), (10**9, 1)]:
        watched = Watched(SMALL.cut())
        watched.header(first_read=first_read)
        assert len(watched.asked) == requests


def test_a_giant_is_never_read_beyond_what_was_asked_first() -> None:
    watched = Watched(HollowFile(b"\xff" * 8, 2**62))
    with pytest.raises(FormatError):
        watched.header(first_read=4096)
    assert watched.asked == [(0, 4096)]


# ---- run


def adding(*ranges: ByteRange) -> Plan[bytes]:
    """A plan that asks for `ranges` and returns their bytes together."""
    data = b""
    for wanted in ranges:
        data += yield wanted
    return data


FILE = bytes(range(256))


@usual
@given(st.lists(st.tuples(st.integers(0, 255), st.integers(1, 20)), max_size=5))
def test_a_plan_is_sent_the_bytes_it_asks_for_in_turn(parts: list[tuple[int, int]]) -> None:
    ranges = [ByteRange(begin, min(begin + length, 256)) for begin, length in parts]
    watched = Watched(HollowFile(FILE))
    assert run(adding(*ranges), watched.read) == b"".join(FILE[begin:end] for begin, end in ranges)
    assert watched.asked == ranges
    assert [wanted.length for wanted in ranges] == [end - begin for begin, end in ranges]


class Turn(AbstractContextManager[None]):
    """Counts how often it is taken, and knows whether it is held."""

    taken = 0
    held = False

    def __enter__(self) -> None:
        assert not self.held
        self.taken, self.held = self.taken + 1, True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.held = False


def test_bytes_are_fetched_outside_the_turn_and_parsed_in_it() -> None:
    turn = Turn()

    def fetch(begin: int, end: int) -> bytes:
        assert not turn.held
        return FILE[begin:end]

    def parse() -> Plan[str]:
        for begin in (0, 4):
            yield ByteRange(begin, begin + 4)
            assert turn.held
        return "parsed"

    assert run(parse(), fetch, turn=turn) == "parsed"
    assert (turn.taken, turn.held) == (2, False)


def test_the_turn_is_given_back_when_parsing_fails() -> None:
    turn = Turn()
    broken = HollowFile(framed(b"[]"))
    with pytest.raises(FormatError):
        run(read_header(broken.size, file="f"), broken.read, turn=turn)
    assert (turn.taken, turn.held) == (1, False)


def test_what_a_read_raises_is_not_swallowed() -> None:
    def fail(_begin: int, _end: int) -> bytes:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        run(adding(ByteRange(0, 1)), fail)
