from __future__ import annotations

import gzip
import itertools
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from contracts.checks import answering, moved

from kimi_inspect import Traffic
from kimi_inspect.errors import (
    RangeNotSupportedError,
    SourceFileNotFoundError,
    TransportError,
)
from kimi_inspect.http_status import MAX_SKIP, UnsatisfiableRangeError
from kimi_inspect.testing import Fault, HollowFile, LoopbackHub, faults
from kimi_inspect.testing.wire import Answer, bytes_body
from kimi_inspect.transport import MAX_ASIDE, MAX_TRIES, Transport

DATA = bytes(range(256)) * 20
X = "x.safetensors"
PIECE = 1 << 20
"""More than the HTTP library takes from a socket at once; what it has taken is counted as read."""


class Watched(HollowFile):
    """A file that says when the server has stopped sending it, and how much it sent."""

    def __init__(self, head: bytes, size: int) -> None:
        super().__init__(head, size)
        self.sent = 0
        self.ended = threading.Event()

    def pieces(self, begin: int, end: int, piece_bytes: int = PIECE) -> Iterator[memoryview]:
        try:
            for piece in super().pieces(begin, end, piece_bytes):
                self.sent += len(piece)
                yield piece
        finally:
            self.ended.set()


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    files = {X: DATA, "small.json": b'{"a": [1, 2]}', "empty": b""}
    with LoopbackHub(plain_files=files) as hub:
        yield hub


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def transport(waits: list[float]) -> Transport:
    def pause(seconds: float) -> bool:
        waits.append(seconds)
        return False

    return Transport(pause=pause)


@pytest.mark.parametrize(("begin", "end"), [(0, 1), (0, len(DATA)), (1000, 2000), (len(DATA) - 1, len(DATA))])
def test_a_part(hub: LoopbackHub, transport: Transport, begin: int, end: int) -> None:
    answer = transport.read_range(hub.plain_url(X), begin, end, file=X)
    assert (answer.data, answer.file_bytes) == (DATA[begin:end], len(DATA))
    assert [(one.range, one.accept_encoding) for one in hub.log] == [(f"bytes={begin}-{end - 1}", "identity")]
    assert transport.traffic == Traffic(requests=1, bytes_read=end - begin)


def test_a_part_that_ends_beyond_the_file(hub: LoopbackHub, transport: Transport) -> None:
    answer = transport.read_range(hub.plain_url(X), 5000, 9000, file=X)
    assert (answer.data, answer.file_bytes) == (DATA[5000:], len(DATA))
    assert len(hub.log) == 1


def test_a_server_that_refuses_such_a_part_is_asked_for_less(hub: LoopbackHub, transport: Transport) -> None:
    hub.play(faults.refuse_overlong(), times=None)
    answer = transport.read_range(hub.plain_url(X), 5000, 9000, file=X)
    assert (answer.data, answer.file_bytes) == (DATA[5000:], len(DATA))
    assert [(one.range, one.status) for one in hub.log] == [("bytes=5000-8999", 416), ("bytes=5000-5119", 206)]


@pytest.mark.parametrize(("begin", "end", "requests"), [(0, 9000, 2), (0, 100, 1), (5120, 6000, 1)])
def test_a_server_that_refuses_every_part(
    hub: LoopbackHub, transport: Transport, waits: list[float], begin: int, end: int, requests: int
) -> None:
    hub.play(faults.unsatisfiable(), times=None)
    with pytest.raises(UnsatisfiableRangeError) as caught:
        transport.read_range(hub.plain_url(X), begin, end, file=X)
    assert caught.value.file_bytes == len(DATA)
    assert len(hub.log) == requests
    assert waits == []


@pytest.mark.parametrize("label", ["bytes */x", "bytes 0-1/5", "", "items */5"])
def test_a_refusal_that_tells_no_size(hub: LoopbackHub, transport: Transport, label: str) -> None:
    hub.play(answering(lambda _: Answer(416, (("Content-Range", label),))), times=None)
    with pytest.raises(UnsatisfiableRangeError) as caught:
        transport.read_range(hub.plain_url(X), 0, 9000, file=X)
    assert caught.value.file_bytes is None
    assert len(hub.log) == 1


class TestWholeFileInsteadOfAPart:
    def test_a_small_one(self, hub: LoopbackHub, transport: Transport) -> None:
        hub.play(faults.ignore_range())
        answer = transport.read_range(hub.plain_url(X), 100, 200, file=X)
        assert (answer.data, answer.file_bytes) == (DATA[100:200], len(DATA))
        assert len(hub.log) == 1

    def test_a_small_one_that_is_shorter_than_asked_for(self, hub: LoopbackHub, transport: Transport) -> None:
        hub.play(faults.ignore_range())
        answer = transport.read_range(hub.plain_url(X), 5000, 9000, file=X)
        assert (answer.data, answer.file_bytes) == (DATA[5000:], len(DATA))

    def test_a_huge_one_is_left_where_the_part_ends(self, transport: Transport) -> None:
        file = Watched(DATA, 15_000_000_000)
        with LoopbackHub(plain_files={X: file}) as hub:
            hub.play(faults.ignore_range())
            answer = transport.read_range(hub.plain_url(X), 0, 5000, file=X)
            assert (answer.data, answer.file_bytes) == (DATA[:5000], file.size)
            assert 5000 <= transport.traffic.bytes_read <= 5000 + PIECE
            # The server can send no more: nobody holds the other end.
            assert file.ended.wait(30)
            assert file.sent < 64 * PIECE
            # And the next part does not come over the rest of this one.
            assert transport.read_range(hub.plain_url(X), 256, 512, file=X).data == DATA[:256]

    @pytest.mark.parametrize(("begin", "fits"), [(MAX_SKIP, True), (MAX_SKIP + 1, False)])
    def test_so_much_is_passed_over_and_no_more(self, transport: Transport, begin: int, fits: bool) -> None:
        file = Watched(DATA, 15_000_000_000)
        with LoopbackHub(plain_files={X: file}) as hub:
            hub.play(faults.ignore_range())
            if fits:
                answer = transport.read_range(hub.plain_url(X), begin, begin + 10, file=X)
                assert answer.data == bytes(10)
                assert transport.traffic.bytes_read <= begin + 10 + PIECE
            else:
                with pytest.raises(RangeNotSupportedError, match="whole files") as caught:
                    transport.read_range(hub.plain_url(X), begin, begin + 10, file=X)
                assert caught.value.file == X
                assert transport.traffic == Traffic(requests=1, bytes_read=0)
            assert file.ended.wait(30)
            assert len(hub.log) == 1

    def test_one_that_does_not_say_how_long_it_is(self, hub: LoopbackHub, transport: Transport) -> None:
        hub.play(answering(lambda _: Answer(200, chunked=True, body=bytes_body(DATA))))
        with pytest.raises(RangeNotSupportedError):
            transport.read_range(hub.plain_url(X), 0, 10, file=X)
        assert transport.traffic.bytes_read <= PIECE


@pytest.mark.parametrize(
    ("fault", "actual"),
    [
        (faults.no_content_range(), None),
        (faults.shifted_content_range(1), "bytes 101-200/5120"),
        (faults.shifted_content_range(-1), "bytes 99-198/5120"),
        (faults.with_header("Content-Range", "bytes 100-199/*"), "bytes 100-199/*"),
        (faults.with_header("Content-Range", "bytes 100-198/5120"), "bytes 100-198/5120"),
        (faults.with_header("Content-Range", "bytes 100-200/5120"), "bytes 100-200/5120"),
        (faults.with_header("Content-Range", "bytes 100-199/150"), "bytes 100-199/150"),
        (faults.with_header("Content-Range", "bytes=100-199/5120"), "bytes=100-199/5120"),
        (faults.with_header("Content-Range", f"bytes 100-199/{'9' * 5000}"), f"bytes 100-199/{'9' * 5000}"),
    ],
    ids=itertools.count(),
)
def test_a_part_that_is_not_the_one(
    hub: LoopbackHub, transport: Transport, waits: list[float], fault: Fault, actual: str | None
) -> None:
    hub.play(fault, times=None)
    with pytest.raises(RangeNotSupportedError) as caught:
        transport.read_range(hub.plain_url(X), 100, 200, file=X)
    assert (caught.value.file, caught.value.actual, caught.value.retryable) == (X, actual, False)
    assert (len(hub.log), waits) == (1, [])
    assert transport.traffic.bytes_read <= PIECE


def test_another_total_is_what_the_server_says(hub: LoopbackHub, transport: Transport) -> None:
    hub.play(faults.wrong_total(by=7))
    assert transport.read_range(hub.plain_url(X), 0, 10, file=X).file_bytes == len(DATA) + 7


@pytest.mark.parametrize(
    ("encoding", "fits"), [("gzip", False), ("deflate", False), ("br", False), ("identity", True), (None, True)]
)
def test_a_part_must_not_be_compressed(
    hub: LoopbackHub, transport: Transport, encoding: str | None, fits: bool
) -> None:
    hub.play(faults.with_header("Content-Encoding", encoding))
    if fits:
        assert transport.read_range(hub.plain_url(X), 0, 10, file=X).data == DATA[:10]
        return
    with pytest.raises(RangeNotSupportedError, match="compress"):
        transport.read_range(hub.plain_url(X), 0, 10, file=X)
    assert len(hub.log) == 1


PASSING = [
    faults.short_body(),
    faults.short_body(missing=100),
    faults.cut_connection(),
    faults.cut_connection(after=0),
    faults.cut_connection(after=60),
    faults.unavailable(408),
    faults.unavailable(500),
    faults.unavailable(502),
    faults.unavailable(503),
    faults.unavailable(504),
]


@pytest.mark.parametrize("fault", PASSING, ids=itertools.count())
class TestFailuresThatPass:
    def test_once(self, hub: LoopbackHub, transport: Transport, waits: list[float], fault: Fault) -> None:
        hub.play(fault)
        assert transport.read_range(hub.plain_url(X), 100, 200, file=X).data == DATA[100:200]
        assert (len(hub.log), len(waits)) == (2, 1)
        assert transport.traffic.requests == 2

    def test_for_ever(self, hub: LoopbackHub, transport: Transport, waits: list[float], fault: Fault) -> None:
        hub.play(fault, times=None)
        with pytest.raises(TransportError) as caught:
            transport.read_range(hub.plain_url(X), 100, 200, file=X)
        assert (caught.value.file, caught.value.retryable) == (X, True)
        assert (len(hub.log), len(waits)) == (MAX_TRIES, MAX_TRIES - 1)
        # Each pause is longer than the last, and all are short.
        assert waits == sorted(set(waits))
        assert 0 < waits[0] <= waits[-1] <= 8

    def test_not_tried_again_without_patience(self, hub: LoopbackHub, transport: Transport, fault: Fault) -> None:
        hub.play(fault)
        with pytest.raises(TransportError):
            transport.read_range(hub.plain_url(X), 100, 200, file=X, patient=False)
        assert len(hub.log) == 1


def test_a_long_error_page_is_not_read_to_its_end(transport: Transport) -> None:
    page = Watched(b"Not found", 1_000_000_000)
    with LoopbackHub(plain_files={X: page}) as hub:
        hub.play(answering(lambda answer: replace(answer, status=404, body=replace(answer.body, end=page.size))))
        with pytest.raises(SourceFileNotFoundError):
            transport.read_range(hub.plain_url(X), 0, 10, file=X)
        assert transport.traffic.bytes_read <= MAX_ASIDE + PIECE
        assert page.ended.wait(30)


class TestSmallFiles:
    def test_whole_and_unpacked(self, hub: LoopbackHub, transport: Transport) -> None:
        packed = gzip.compress(DATA)
        hub.play(answering(lambda _: Answer(200, (("Content-Encoding", "gzip"),), bytes_body(packed))))
        assert transport.read_file(hub.plain_url(X), limit=len(DATA), file=X).data == DATA
        assert transport.traffic == Traffic(requests=1, bytes_read=len(packed))

    @pytest.mark.parametrize("packed", [False, True])
    def test_longer_than_the_limit(
        self, hub: LoopbackHub, transport: Transport, waits: list[float], packed: bool
    ) -> None:
        if packed:
            bomb = gzip.compress(bytes(50_000_000))
            hub.play(answering(lambda _: Answer(200, (("Content-Encoding", "gzip"),), bytes_body(bomb))))
        with pytest.raises(TransportError, match="longer") as caught:
            transport.read_file(hub.plain_url(X), limit=len(DATA) - 1, file=X)
        assert (caught.value.file, caught.value.retryable) == (X, False)
        assert (len(hub.log), waits) == (1, [])
        assert transport.traffic.bytes_read <= len(DATA) + PIECE

    def test_broken_compression(self, hub: LoopbackHub, transport: Transport) -> None:
        hub.play(answering(lambda _: Answer(200, (("Content-Encoding", "gzip"),), bytes_body(b"<html>"))), times=None)
        with pytest.raises(TransportError):
            transport.read_file(hub.plain_url(X), limit=100, file=X)
        assert len(hub.log) <= MAX_TRIES

    def test_json(self, hub: LoopbackHub, transport: Transport) -> None:
        assert transport.read_json(hub.plain_url("small.json"), limit=100, file=X)[0] == {"a": [1, 2]}

    @pytest.mark.parametrize("body", [b"<html>", b"", b"\xff", b"{", b"[" * 100_000, b'"\\ud800'])
    def test_no_json(self, hub: LoopbackHub, transport: Transport, body: bytes) -> None:
        hub.play(answering(lambda _: Answer(200, body=bytes_body(body))))
        with pytest.raises(TransportError, match="JSON") as caught:
            transport.read_json(hub.plain_url(X), limit=1_000_000, file=X)
        assert caught.value.file == X


def test_a_transfer_that_is_cancelled_ends_at_its_next_piece() -> None:
    file = Watched(DATA, 1_000_000_000)
    transport = Transport()

    def cancel(_: float) -> None:
        transport.cancel()

    with LoopbackHub(plain_files={X: file}, sleep=cancel) as hub:
        hub.play(faults.slow_drip(piece_bytes=PIECE // 4, pause=1))
        with pytest.raises(TransportError, match="cancelled"):
            transport.read_range(hub.plain_url(X), 0, 500_000_000, file=X)
        assert file.ended.wait(30)
        assert file.sent < 64 * PIECE
        assert len(hub.log) == 1


@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
def test_a_request_that_is_cancelled_while_the_server_is_silent(used: bool) -> None:
    asked, released = threading.Event(), threading.Event()
    transport = Transport(timeout=10, pause=lambda _: False)
    with LoopbackHub(plain_files={X: DATA}) as hub:
        if used:
            # A connection that another call has opened is as good as a new one.
            Transport().read_range(hub.plain_url(X), 0, 10, file=X)

        def hold(answer: Answer) -> Answer:
            asked.set()
            released.wait(30)
            return answer

        hub.play(answering(hold), times=None)
        errors: list[Exception] = []

        def read() -> None:
            try:
                transport.read_range(hub.plain_url(X), 0, 10, file=X)
            except TransportError as error:
                errors.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        assert asked.wait(30)
        transport.cancel()
        reader.join(5)
        ended = not reader.is_alive()
        released.set()
        reader.join(30)
    assert ended
    assert len(errors) == 1


def test_cancelling_one_call_leaves_another_alone() -> None:
    asked, released = threading.Event(), threading.Event()
    first, second = Transport(), Transport()
    with LoopbackHub(plain_files={X: DATA}) as hub, ThreadPoolExecutor(1) as pool:
        first.read_range(hub.plain_url(X), 0, 10, file=X)

        def hold(answer: Answer) -> Answer:
            asked.set()
            released.wait(30)
            return answer

        hub.play(answering(hold))
        # On the connection that the first call has opened and is done with.
        reading = pool.submit(second.read_range, hub.plain_url(X), 10, 20, file=X)
        assert asked.wait(30)
        first.cancel()
        released.set()
        assert reading.result(30).data == DATA[10:20]
        assert len(hub.log) == 2


@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
def test_a_head_without_end(used: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                if used:
                    connection.recv(65536)
                    connection.sendall(b"HTTP/1.1 206 Part\r\nContent-Range: bytes 0-0/1\r\nContent-Length: 1\r\n\r\nx")
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\n")
                # A byte now and then, so that no read ever times out.
                connection.settimeout(0.02)
                for letter in itertools.cycle(b"X-More: and more\r\n"):
                    with suppress(TimeoutError):
                        if not connection.recv(65536):
                            return
                    connection.sendall(bytes([letter]))
                    sent.append(letter)
                    if len(sent) > 150:
                        return

        sent: list[int] = []
        server = threading.Thread(target=drip)
        server.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/{X}"
        if used:
            Transport().read_range(url, 0, 1, file=X)
        with pytest.raises(TransportError):
            Transport(timeout=0.2).read_range(url, 0, 10, file=X, patient=False)
        server.join(30)
    # The client has left before the server lost interest.
    assert len(sent) <= 150


@pytest.mark.parametrize(
    "fault",
    [None, moved(f"/files/{X}?again"), faults.rate_limited(retry_after=0), answering(lambda _: Answer(404))],
    ids=["part", "redirect", "wait", "refusal"],
)
def test_a_connection_serves_again(
    hub: LoopbackHub, transport: Transport, monkeypatch: pytest.MonkeyPatch, fault: Fault | None
) -> None:
    made: list[object] = []
    connect = socket.create_connection

    def count(*arguments: Any, **options: Any) -> socket.socket:
        made.append(arguments)
        return connect(*arguments, **options)

    monkeypatch.setattr(socket, "create_connection", count)
    for _ in range(5):
        if fault:
            hub.play(fault)
        with suppress(SourceFileNotFoundError):
            transport.read_range(hub.plain_url(X), 0, 10, file=X)
    assert len(hub.log) >= 5
    assert len(made) == 1


def test_a_server_that_says_nothing() -> None:
    released = threading.Event()
    transport = Transport(timeout=0.05, pause=lambda _: False)

    def sleep(_: float) -> None:
        released.wait(30)

    with LoopbackHub(plain_files={X: DATA}, latency=1, sleep=sleep) as hub:
        with pytest.raises(TransportError, match="timeout") as caught:
            transport.read_range(hub.plain_url(X), 0, 10, file=X)
        released.set()
    assert (caught.value.file, caught.value.retryable) == (X, True)
    assert transport.traffic.requests == MAX_TRIES


def test_a_server_that_is_not_there() -> None:
    with LoopbackHub() as hub:
        address = hub.plain_url(X)
    with pytest.raises(TransportError, match="refused"):
        Transport(pause=lambda _: False).read_range(address, 0, 10, file=X)
