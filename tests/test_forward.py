"""Reading on in one stream: the right bytes, however they come and wherever the stream fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_inspect.errors import AuthenticationError, RateLimitedError, SourceError, TransportError
from kimi_inspect.forward import Forward, StreamedSource
from kimi_inspect.planning import Plan, run
from kimi_inspect.values import ByteRange

DATA = bytes(number * 7 % 251 for number in range(240))
SIZE = len(DATA)


class Plain:
    """A source that can only be read."""

    def __init__(self, data: bytes = DATA, *, broken: SourceError | None = None) -> None:
        self._data = data
        self._broken = broken
        self.reads: list[tuple[int, int]] = []

    @property
    def size(self) -> int:
        return len(self._data)

    def read(self, begin: int, end: int) -> bytes:
        self.reads.append((begin, end))
        if self._broken:
            raise self._broken
        return self._data[begin:end]


class Streamed(Plain):
    """A source that streams in pieces of the given sizes, over and over, and fails as it is told to.

    Args:
        pieces: sizes of its pieces; a piece may be empty.
        stop: byte of the file at which a stream raises `error`, or simply ends where that is None.
        refusal: what opening a stream raises.
        broken: what a plain read raises.
    """

    def __init__(
        self,
        pieces: Sequence[int] = (16,),
        *,
        stop: int | None = None,
        error: BaseException | None = None,
        refusal: SourceError | None = None,
        broken: SourceError | None = None,
    ) -> None:
        super().__init__(broken=broken)
        self._pieces = pieces
        self._stop = stop
        self._error = error
        self._refusal = refusal
        self.streams: list[tuple[int, int]] = []
        self.open = 0
        self.most_open = 0
        self.sent = 0

    @contextmanager
    def stream(self, begin: int, end: int) -> Iterator[Iterator[bytes]]:
        self.streams.append((begin, end))
        if self._refusal:
            raise self._refusal
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            yield self._send(begin, end)
        finally:
            self.open -= 1

    def _send(self, begin: int, end: int) -> Iterator[bytes]:
        at, turn = begin, 0
        last = end if self._stop is None else min(end, max(self._stop, begin))
        while at < last:
            piece = self._data[at : min(at + self._pieces[turn % len(self._pieces)], last)]
            at, turn = at + len(piece), turn + 1
            self.sent += len(piece)
            yield piece
        if self._error and last < end:
            raise self._error


def read_all(source: Plain, step: int = 10) -> bytes:
    """Read the data from front to end."""
    with Forward(source, since=0, until=SIZE) as forward:
        return b"".join(forward.read(begin, end) for begin, end in ranges([step] * SIZE))


PIECES = st.lists(st.integers(0, 60), min_size=1, max_size=4).filter(any)


def ranges(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return ranges of these sizes, one behind the other, as far as the data go."""
    places = [0]
    for size in sizes:
        places.append(min(places[-1] + size, SIZE))
    return [(begin, end) for begin, end in pairwise(places) if begin < end]


@given(PIECES, st.lists(st.integers(1, 90), max_size=12), st.integers(0, SIZE), st.integers(0, SIZE))
def test_reads_one_behind_the_other_take_one_stream(
    pieces: list[int], sizes: list[int], since: int, until: int
) -> None:
    source = Streamed(pieces)
    with Forward(source, since=since, until=until) as forward:
        for begin, end in ranges(sizes):
            assert forward.read(begin, end) == DATA[begin:end]
    streamed = [part for part in ranges(sizes) if since <= part[0] and part[1] <= until]
    assert source.reads == [part for part in ranges(sizes) if part not in streamed]
    assert source.streams == ([(streamed[0][0], until)] if streamed else [])
    assert source.open == 0


SPANS = st.lists(
    st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(lambda pair: (min(pair), max(pair))), max_size=10
)
STOPS = st.none() | st.integers(0, SIZE)
ERRORS = st.sampled_from([None, TransportError("cut"), RateLimitedError("wait"), AuthenticationError("expired")])


@given(PIECES, SPANS, st.integers(0, SIZE), st.integers(0, SIZE), STOPS, ERRORS, st.booleans())
def test_reads_in_any_order_give_the_right_bytes_whatever_happens_to_the_stream(
    pieces: list[int],
    spans: list[tuple[int, int]],
    since: int,
    until: int,
    stop: int | None,
    error: SourceError | None,
    refused: bool,
) -> None:
    refusal = TransportError("refused") if refused else None
    source = Streamed(pieces, stop=stop, error=error, refusal=refusal)
    with Forward(source, since=since, until=until) as forward:
        for begin, end in spans:
            assert forward.read(begin, end) == DATA[begin:end]
    assert source.open == 0
    assert source.most_open <= 1
    assert len(source.streams) + len(source.reads) <= 2 * len(spans)
    assert all(since <= begin and end == until for begin, end in source.streams)


@pytest.mark.parametrize("error", [TransportError("cut"), None], ids=["fails", "ends"])
@pytest.mark.parametrize("pieces", [(1,), (7,), (5, 0, 11), (SIZE,)], ids=str)
def test_a_stream_that_stops_at_any_place_is_made_good_by_a_plain_read(
    pieces: tuple[int, ...], error: SourceError | None
) -> None:
    for stop in range(SIZE):
        source = Streamed(pieces, stop=stop, error=error)
        assert read_all(source, 9) == DATA
        assert source.reads[0] == (stop // 9 * 9, min(stop // 9 * 9 + 9, SIZE))
        assert source.streams[0] == (0, SIZE)
        assert source.open == 0


def test_a_stream_that_cannot_be_opened() -> None:
    source = Streamed(refusal=TransportError("no"))
    assert read_all(source, 50) == DATA
    assert source.reads == ranges([50] * 5)
    assert source.most_open == 0


def test_a_refusal_that_another_request_would_meet_too_is_told() -> None:
    source = Streamed(refusal=RateLimitedError("wait"))
    with pytest.raises(RateLimitedError):
        read_all(source)
    assert source.reads == []


@pytest.mark.parametrize("stop", [0, 10, 25])
@pytest.mark.parametrize("error", [TransportError("cut"), None], ids=["fails", "ends"])
def test_where_the_plain_read_fails_too_its_error_is_told(stop: int, error: SourceError | None) -> None:
    source = Streamed(stop=stop, error=error, broken=AuthenticationError("no"))
    with pytest.raises(AuthenticationError, match="no"):
        read_all(source)
    assert source.reads == [(stop // 10 * 10, stop // 10 * 10 + 10)]
    assert source.open == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), RuntimeError("a fault of ours")], ids=repr)
def test_what_is_no_failure_of_the_source_is_not_hidden(error: BaseException) -> None:
    source = Streamed(stop=20, error=error)
    with pytest.raises(type(error)):
        read_all(source)
    assert source.reads == []
    assert source.open == 0


def test_a_source_that_cannot_stream_is_read_as_ever() -> None:
    source = Plain()
    assert not isinstance(source, StreamedSource)
    with Forward(source, since=0, until=SIZE) as forward:
        assert [forward.read(0, 10), forward.read(10, SIZE)] == [DATA[:10], DATA[10:]]
    assert source.reads == [(0, 10), (10, SIZE)]


def test_no_more_is_taken_than_the_pieces_that_are_needed() -> None:
    source = Streamed((16,))
    with Forward(source, since=0, until=SIZE) as forward:
        forward.read(0, 40)
        assert source.sent == 48
        forward.read(40, 48)
        assert source.sent == 48
        assert source.open == 1
    assert (source.open, source.sent) == (0, 48)


def test_nothing_is_opened_that_nobody_reads() -> None:
    source = Streamed()
    with Forward(source, since=0, until=SIZE):
        pass
    assert source.streams == source.reads == []


def test_a_jump_ends_the_stream_and_opens_another() -> None:
    source = Streamed()
    with Forward(source, since=0, until=200) as forward:
        for begin, end in [(0, 20), (20, 30), (100, 120), (120, 130), (20, 30)]:
            assert forward.read(begin, end) == DATA[begin:end]
            assert source.open == 1
    assert source.streams == [(0, 200), (100, 200), (20, 200)]


def test_a_stream_that_has_failed_is_not_gone_on_with() -> None:
    source = Streamed(stop=15, error=TransportError("cut"))
    with Forward(source, since=0, until=SIZE) as forward:
        for begin, end in [(0, 10), (10, 20), (10, 20), (10, 14)]:
            assert forward.read(begin, end) == DATA[begin:end]
    assert source.streams == [(0, SIZE), (10, SIZE), (10, SIZE)]
    assert source.reads == [(10, 20), (10, 20)]


@pytest.mark.parametrize(
    ("begin", "end", "streamed"),
    [(50, 100, True), (49, 100, False), (50, 101, False), (50, 51, True), (99, 100, True), (60, 60, False)],
)
def test_the_bounds_of_the_stream(begin: int, end: int, streamed: bool) -> None:
    source = Streamed()
    with Forward(source, since=50, until=100) as forward:
        assert forward.read(begin, end) == DATA[begin:end]
    assert source.streams == ([(begin, 100)] if streamed else [])
    assert source.reads == ([] if streamed else [(begin, end)])


def total(step: int) -> Plan[int]:
    """Ask for all of the data and return their sum."""
    found = 0
    for begin, end in ranges([step] * SIZE):
        found += sum((yield ByteRange(begin, end)))
    return found


@pytest.mark.parametrize("pieces", [(SIZE,), (1,), (13, 0)], ids=str)
@pytest.mark.parametrize("stop", [None, 0, 1, 100, SIZE - 1])
def test_the_end_of_a_stream_is_not_the_end_of_a_plan(pieces: tuple[int, ...], stop: int | None) -> None:
    with Forward(Streamed(pieces, stop=stop), since=0, until=SIZE) as forward:
        assert run(total(17), forward.read) == sum(DATA)


def test_a_stream_longer_than_was_asked_for_gives_the_right_bytes() -> None:
    class Longer(Streamed):
        @contextmanager
        def stream(self, begin: int, end: int) -> Iterator[Iterator[bytes]]:
            with super().stream(begin, min(end + 50, SIZE)) as pieces:
                yield pieces

    source = Longer((64,))
    with Forward(source, since=0, until=100) as forward:
        assert [forward.read(0, 60), forward.read(60, 100), forward.read(100, 120)] == [
            DATA[:60],
            DATA[60:100],
            DATA[100:120],
        ]
    assert source.reads == [(100, 120)]
