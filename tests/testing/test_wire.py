from __future__ import annotations

import pytest
from testing.raw_client import exchange

from kimi_inspect.testing import LoopbackHub, Repository
from kimi_inspect.testing.ranges import content_range, requested_range
from kimi_inspect.testing.wire import parse_request

GET = b"GET /api/models/acme/tiny HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=2-5", (2, 6)),
        ("Bytes=2-", (2, 10)),
        ("bytes=5-99", (5, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-99", (0, 10)),
        ("bytes=10-12", (10, 10)),
        ("bytes=50-60", (50, 10)),
        ("bytes=-0", (10, 10)),
        (None, None),
        ("", None),
        ("bytes=5-2", None),
        ("bytes=-", None),
        ("bytes=0--1", None),
        ("bytes=0-1,3-4", None),
        ("lines=0-1", None),
        ("bytes=a-b", None),
    ],
)
def test_range_grammar(value: str | None, expected: tuple[int, int] | None) -> None:
    wanted = requested_range(value, 10)
    if expected is not None and expected[0] >= expected[1]:
        assert wanted is not None
        assert wanted[0] >= wanted[1]
    else:
        assert wanted == expected


def test_content_range_names_the_last_byte() -> None:
    assert content_range(10, 15, 100) == "bytes 10-14/100"


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"GET /",
        b"GET / HTTP/1.0\r\nHost: x",
        b"GET / HTTP/1.1",
        b"GET  / HTTP/1.1\r\nHost: x",
        b"GET / HTTP/1.1\r\nHost: x\r\nno colon",
        b"GET / HTTP/1.1\r\nHost: x\r\nname : value",
        b"GET / HTTP/1.1\r\nHost: x\r\n: value",
    ],
)
def test_heads_that_break_the_grammar(head: bytes) -> None:
    assert parse_request(head) is None


def test_head() -> None:
    request = parse_request(b"\r\nGET http://host/a%2Fb?x=1&x=2&y= HTTP/1.1\r\nHost: host\r\nX-Thing:  v a l \r\n")
    assert request is None  # the empty line after the last header belongs to the framing
    request = parse_request(b"\r\nGET http://host/a%2Fb?x=1&x=2&y= HTTP/1.1\r\nHost: host\r\nX-Thing:  v a l ")
    assert request
    assert (request.method, request.path) == ("GET", "/a%2Fb")
    assert request.query == {"x": ["1", "2"], "y": [""]}
    assert request.headers == {"host": "host", "x-thing": "v a l"}


def test_a_connection_serves_many_requests() -> None:
    with LoopbackHub([Repository("acme/tiny", {"a": b"a"})]) as hub:
        replies = exchange(hub.endpoint, 3 * (GET + b"\r\n"))
        assert replies.count(b"HTTP/1.1 200 OK\r\n") == 3
        assert [one.status for one in hub.log] == [200, 200, 200]


@pytest.mark.parametrize(
    "extra", [b"Connection: close\r\n", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n"]
)
def test_a_connection_ends_when_it_has_to(extra: bytes) -> None:
    with LoopbackHub([Repository("acme/tiny", {"a": b"a"})]) as hub:
        reply = exchange(hub.endpoint, GET + extra + b"\r\n" + GET + b"\r\n")
        assert reply.count(b"HTTP/1.1") == 1
        assert b"\r\nConnection: close\r\n" in reply


def test_nonsense_is_a_bad_request() -> None:
    with LoopbackHub() as hub:
        for data in (b"nonsense\r\n\r\n", b"x" * 100_000):
            assert exchange(hub.endpoint, data).startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert exchange(hub.endpoint, GET) == b""
        assert hub.log == ()


def test_a_closed_hub_answers_no_more_and_leaves_its_port() -> None:
    with LoopbackHub() as hub:
        port = int(hub.endpoint.rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError):
        exchange(hub.endpoint, GET)
    with LoopbackHub(port=port) as again:
        assert again.endpoint == hub.endpoint


def test_a_port_that_is_taken_leaves_nothing_open() -> None:
    with LoopbackHub() as hub, pytest.raises(OSError, match="in use"):
        LoopbackHub(port=int(hub.endpoint.rpartition(":")[2]))
