from __future__ import annotations

import gzip
import re
import socket
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from http.client import IncompleteRead, RemoteDisconnected
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from testing.raw_client import Reply, ask

from kimi_inspect.testing import Fault, Files, HollowFile, LoopbackHub, Repository, faults
from kimi_inspect.testing.refusals import REFUSALS, Case

COMMIT = "1" * 40
HEAD = bytes(range(256))
WEIGHTS = HollowFile(HEAD, 1000)


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    files: Files = {"a.safetensors": WEIGHTS, "b.safetensors": WEIGHTS, "config.json": b"{}" * 50}
    with LoopbackHub([Repository("acme/tiny", files, commit=COMMIT)], plain_files={"x.bin": WEIGHTS}) as hub:
        yield hub


def resolve(hub: LoopbackHub, path: str = "a.safetensors") -> Reply:
    return ask(f"{hub.endpoint}/acme/tiny/resolve/main/{path}")


def part(hub: LoopbackHub, wanted: str = "bytes=10-19") -> Reply:
    return ask(resolve(hub).headers["location"], Range=wanted)


def info(hub: LoopbackHub) -> Reply:
    return ask(f"{hub.endpoint}/api/models/acme/tiny")


def tree(hub: LoopbackHub) -> Reply:
    return ask(f"{hub.endpoint}/api/models/acme/tiny/tree/main?recursive=true")


@pytest.mark.parametrize(
    ("fault", "status", "label", "body"),
    [
        (faults.ignore_range(), 200, None, WEIGHTS.read()),
        (faults.shifted_content_range(), 206, "bytes 11-20/1000", HEAD[10:20]),
        (faults.shifted_content_range(by=-10), 206, "bytes 0-9/1000", HEAD[10:20]),
        (faults.wrong_total(), 206, "bytes 10-19/1001", HEAD[10:20]),
        (faults.no_content_range(), 206, None, HEAD[10:20]),
        (faults.unsatisfiable(), 416, "bytes */1000", b"Range Not Satisfiable\n"),
        (faults.with_header("Content-Range", "bytes 1-2"), 206, "bytes 1-2", HEAD[10:20]),
    ],
)
def test_ranges(hub: LoopbackHub, fault: Fault, status: int, label: str | None, body: bytes) -> None:
    hub.play(fault, origin="cdn")
    reply = part(hub)
    assert (reply.status, reply.headers.get("content-range"), reply.body) == (status, label, body)
    assert hub.log[-1].fault == fault.name
    assert part(hub).body == HEAD[10:20]
    assert hub.log[-1].fault is None


@pytest.mark.parametrize(("wanted", "status"), [("bytes=0-999", 206), ("bytes=0-1000", 416), ("bytes=0-", 206)])
def test_refuse_overlong(hub: LoopbackHub, wanted: str, status: int) -> None:
    hub.play(faults.refuse_overlong())
    assert part(hub, wanted).status == status


def test_gzip_range(hub: LoopbackHub) -> None:
    hub.play(faults.gzip_range())
    reply = part(hub)
    assert (reply.status, reply.headers["content-range"]) == (206, "bytes 10-19/1000")
    assert reply.headers["content-encoding"] == "gzip"
    assert gzip.decompress(reply.body) == HEAD[10:20]


def test_short_body(hub: LoopbackHub) -> None:
    hub.play(faults.short_body(missing=3))
    with pytest.raises(IncompleteRead) as caught:
        part(hub)
    assert (caught.value.partial, caught.value.expected) == (HEAD[10:17], 3)


def test_cut_connection(hub: LoopbackHub) -> None:
    hub.play(faults.cut_connection(), origin="cdn")
    hub.play(faults.cut_connection(after=4), origin="cdn")
    with pytest.raises(RemoteDisconnected):
        part(hub)
    assert hub.log[-1].status == 0
    with pytest.raises(IncompleteRead) as caught:
        part(hub)
    assert caught.value.partial == HEAD[10:14]


def test_a_chunked_body_is_cut_too(hub: LoopbackHub) -> None:
    hub.play(faults.cut_connection(after=5))
    with pytest.raises(IncompleteRead):
        ask(f"{hub.endpoint}/api/resolve-cache/models/acme/tiny/{COMMIT}/config.json", Accept_Encoding="gzip")


def test_slow_drip() -> None:
    pauses: list[float] = []
    with LoopbackHub(plain_files={"x.bin": WEIGHTS}, sleep=pauses.append) as hub:
        hub.play(faults.slow_drip(piece_bytes=300, pause=0.5))
        assert ask(hub.plain_url("x.bin")).body == WEIGHTS.read()
    # Four pieces of the head and of the holes: 256, 300, 300, 144.
    assert pauses == [0.5, 0.5, 0.5]


def test_html_page(hub: LoopbackHub) -> None:
    hub.play(faults.html_page(), origin="cdn")
    hub.play(faults.html_page(status=200), origin="cdn")
    reply = part(hub, "bytes=0-99")
    assert (reply.status, reply.headers["content-range"], len(reply.body)) == (206, "bytes 0-99/1000", 100)
    assert reply.headers["content-type"].startswith("text/html")
    assert reply.body.startswith(b"<!DOCTYPE html>")
    reply = part(hub, "bytes=0-99")
    assert (reply.status, "content-range" in reply.headers) == (200, False)
    assert reply.body.endswith(b"</html>\n")


@pytest.mark.parametrize(
    ("fault", "retry_after", "rate"),
    [
        (faults.rate_limited(), None, None),
        (faults.rate_limited(retry_after=3), "3", None),
        (faults.rate_limited(retry_after="soon"), "soon", None),
        (faults.rate_limited(reset=7), None, '"api";r=0;t=7'),
    ],
)
def test_rate_limited(hub: LoopbackHub, fault: Fault, retry_after: str | None, rate: str | None) -> None:
    hub.play(fault, times=2)
    for _ in range(2):
        reply = info(hub)
        assert (reply.status, reply.headers.get("retry-after"), reply.headers.get("ratelimit")) == (
            429,
            retry_after,
            rate,
        )
    assert info(hub).status == 200


def test_rate_limited_until(hub: LoopbackHub) -> None:
    hub.play(faults.rate_limited_until(60))
    reply = info(hub)
    assert reply.status == 429
    assert 50 < parsedate_to_datetime(reply.headers["retry-after"]).timestamp() - time.time() <= 61


def test_unavailable(hub: LoopbackHub) -> None:
    hub.play(faults.unavailable())
    hub.play(faults.unavailable(502))
    assert [info(hub).status for _ in range(3)] == [503, 502, 200]


@pytest.mark.parametrize("case", REFUSALS)
def test_refused(hub: LoopbackHub, case: Case) -> None:
    hub.play(faults.refused(case))
    reply = info(hub)
    assert (reply.status, reply.headers.get("x-error-code")) == (REFUSALS[case].status, REFUSALS[case].code)
    assert reply.json["error"] == REFUSALS[case].message.format(repo="acme/tiny", rev="main")


def test_expired_signature(hub: LoopbackHub) -> None:
    hub.play(faults.expired_signature())
    assert ask(hub.plain_url("x.bin")).status == 200
    assert part(hub).status == 403
    assert part(hub).status == 206


def test_moved_branch(hub: LoopbackHub) -> None:
    hub.play(faults.moved_branch())
    shas = [info(hub).json["sha"] for _ in range(3)]
    assert shas[0] == COMMIT != shas[1] == shas[2]
    assert resolve(hub).headers["x-repo-commit"] == shas[1]
    pinned = ask(f"{hub.endpoint}/acme/tiny/resolve/{COMMIT}/a.safetensors")
    assert pinned.headers["x-repo-commit"] == COMMIT


def test_moved_branch_to_other_files(hub: LoopbackHub) -> None:
    hub.play(faults.moved_branch({"c.safetensors": b"c"}))
    info(hub)
    assert [entry["path"] for entry in tree(hub).json] == ["c.safetensors"]


def test_wrong_commit(hub: LoopbackHub) -> None:
    hub.play(faults.wrong_commit(), times=None)
    assert resolve(hub).headers["x-repo-commit"] == "f" * 40
    assert resolve(hub, "config.json").headers["x-repo-commit"] == "f" * 40


def test_wrong_listed_size(hub: LoopbackHub) -> None:
    hub.play(faults.wrong_listed_size("a.safetensors", by=8), times=None)
    hub.play(faults.wrong_listed_size("config.json", by=-1))
    sizes = [(entry["size"], entry.get("lfs", {}).get("size")) for entry in tree(hub).json]
    assert sizes == [(1008, 1008), (1000, 1000), (100, None)]
    hub.clear_faults()
    hub.play(faults.wrong_listed_size("config.json", by=-1))
    assert tree(hub).json[-1]["size"] == 99


def test_foreign_next_link(hub: LoopbackHub) -> None:
    hub.play(faults.foreign_next_link())
    assert tree(hub).headers["link"].startswith(f"<{hub.cdn_origin}/api/models/acme/tiny/tree/main?")


def test_endless_next_link(hub: LoopbackHub) -> None:
    hub.play(faults.endless_next_link(), times=None)
    link = re.fullmatch('<(.*)>; rel="next"', tree(hub).headers["link"])
    assert link
    assert ask(link[1]).headers["link"] == link[0]


def test_redirect_loop(hub: LoopbackHub) -> None:
    hub.play(faults.redirect_loop())
    reply = resolve(hub)
    assert (reply.status, reply.headers["location"]) == (302, "/acme/tiny/resolve/main/a.safetensors")


def test_redirected(hub: LoopbackHub) -> None:
    with LoopbackHub([Repository("acme/tiny", {})]) as other:
        hub.play(faults.redirected(other.endpoint))
        reply = info(hub)
        assert (reply.status, "ratelimit" in reply.headers) == (308, False)
        assert ask(reply.headers["location"]).status == 200


def test_with_header(hub: LoopbackHub) -> None:
    hub.play(faults.with_header("x-linked-etag", 'W/"0"'))
    hub.play(faults.with_header("X-Linked-ETag", None))
    assert [resolve(hub).headers.get("x-linked-etag") for _ in range(2)] == ['W/"0"', None]


def test_a_path_is_known_at_the_cdn_too(hub: LoopbackHub) -> None:
    hub.play(faults.unavailable(), path="b.safetensors", times=None, origin="cdn")
    statuses = [ask(resolve(hub, path).headers["location"]).status for path in ("a.safetensors", "b.safetensors")]
    assert statuses == [200, 503]


def test_a_fault_passes_what_it_does_not_apply_to(hub: LoopbackHub) -> None:
    hub.play(faults.short_body())
    assert tree(hub).status == info(hub).status == 200
    hub.clear_faults()
    assert part(hub).status == 206


def test_a_client_may_leave_early() -> None:
    giant = HollowFile(HEAD, 10**12)
    with LoopbackHub(plain_files={"giant.bin": giant}) as hub:
        parts = urlsplit(hub.plain_url("giant.bin"))
        with socket.create_connection(("127.0.0.1", parts.port or 0)) as connection:
            connection.sendall(f"GET {parts.path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert connection.recv(8) == b"HTTP/1.1"
        assert ask(hub.plain_url("giant.bin"), Range="bytes=0-1").body == HEAD[:2]


def test_every_fault_is_told_here() -> None:
    told = set(re.findall(r"faults\.(\w+)\(", Path(__file__).read_text()))
    assert told == set(faults.__all__) - {"Exchange", "Fault"}
