"""Every fault of the Hub and its CDN, seen by who opens a checkpoint: right numbers, or the right error."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from contracts.checks import (
    CONFIG,
    LOOKS,
    REPO,
    SHARD,
    TOKEN,
    asked_for,
    check_numbers,
    check_secret,
    check_shard,
    check_sums,
    check_token,
    usual_requests,
    weights,
)

import kimi_inspect.transport
from kimi_inspect import Severity, open_checkpoint
from kimi_inspect.errors import (
    AuthenticationError,
    GatedRepositoryError,
    KimiInspectError,
    NotWeightsError,
    RangeNotSupportedError,
    RateLimitedError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    SourceFileNotFoundError,
    TransportError,
)
from kimi_inspect.testing import Fault, HollowFile, LoopbackHub, Repository, faults
from kimi_inspect.transport import MAX_HOPS, MAX_TRIES, MAX_WAIT, MIN_RATE, Transport

Files = dict[str, HollowFile]

SHARD_2 = "model-00002-of-000008.safetensors"
OTHER_TOKEN = "hf_ValidButNotApproved"


@pytest.fixture(autouse=True)
def nothing_in_our_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """See after every test here that no record of ours holds the token."""
    caplog.set_level(logging.DEBUG, logger="kimi_inspect")
    yield
    ours = [record for record in caplog.get_records("call") if record.name.startswith("kimi_inspect")]
    assert not [record for record in ours if TOKEN in record.getMessage() or TOKEN in repr(record.args)]


def relocated(*addresses: str) -> Fault:
    """Let the resolver redirect to these addresses in turn, over and over."""
    turns = itertools.cycle(addresses)
    return Fault(
        "relocated",
        lambda exchange: exchange.answer.with_header("Location", next(turns)),
        lambda answer: answer.status == 302,
    )


def test_no_fault(hub: LoopbackHub, kimi: Files) -> None:
    checkpoint = open_checkpoint(REPO, endpoint=hub.endpoint, token=TOKEN)
    check_numbers(checkpoint, kimi)
    assert checkpoint.findings == ()
    assert len(hub.log) == checkpoint.traffic.requests == usual_requests(kimi)
    assert {one.method for one in hub.log} == {"GET"}
    check_token(hub)
    check_secret(checkpoint)


PASSING: list[tuple[Fault, list[float] | None]] = [
    (faults.unavailable(), None),
    (faults.cut_connection(), None),
    (faults.cut_connection(after=10), None),
    (faults.rate_limited(retry_after=0), [0.0]),
    (faults.rate_limited(retry_after=3), [3.0]),
    (faults.rate_limited(reset=3), None),
    (faults.rate_limited_until(3), None),
]


@pytest.mark.parametrize(
    ("path", "origin", "extra"),
    [
        ("?expand=sha", "hub", 1),
        ("/tree/", "hub", 1),
        ("config.json", "hub", 1),
        (SHARD_2, "hub", 1),
        (SHARD_2, "cdn", 2),
    ],
    ids=["commit", "listing", "config", "resolver", "cdn"],
)
@pytest.mark.parametrize(("fault", "waits"), PASSING, ids=itertools.count())
def test_a_failure_that_passes(
    hub: LoopbackHub,
    kimi: Files,
    pauses: list[float],
    fault: Fault,
    waits: list[float] | None,
    path: str,
    origin: Any,
    extra: int,
) -> None:
    hub.play(fault, path=path, origin=origin)
    checkpoint = open_checkpoint(REPO, endpoint=hub.endpoint, token=TOKEN)
    check_numbers(checkpoint, kimi)
    assert checkpoint.findings == ()
    assert len(hub.log) == checkpoint.traffic.requests == usual_requests(kimi) + extra
    assert len(pauses) == 1
    assert 0 <= pauses[0] <= 8
    assert waits is None or pauses == waits
    check_token(hub)


@pytest.mark.parametrize(
    ("fault", "extra"),
    [
        (faults.ignore_range(), 0),
        (faults.refuse_overlong(), 0),
        (faults.short_body(), 2),
        # A total that the next answer takes back: the header is read again to see which is right.
        (faults.wrong_total(), 2),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_fault_that_does_no_harm(
    hub: LoopbackHub, kimi: Files, pauses: list[float], fault: Fault, extra: int
) -> None:
    hub.play(fault, path=SHARD_2)
    checkpoint = open_checkpoint(REPO, endpoint=hub.endpoint, token=TOKEN)
    check_numbers(checkpoint, kimi)
    assert checkpoint.findings == ()
    assert len(hub.log) == checkpoint.traffic.requests <= usual_requests(kimi) + extra
    assert len(pauses) == (1 if fault.name == "short_body" else 0)
    check_token(hub)


@dataclass(frozen=True)
class Row:
    """A fault that goes on: what it raises when no shard can be read, and how many requests a shard may cost.

    Only that it is an error of ours matters where `retryable` is None.
    """

    fault: Fault
    kind: type[KimiInspectError]
    most: int
    origin: Any = None
    retryable: bool | None = False
    details: dict[str, object] = field(default_factory=dict)


ROWS = {
    "shifted range": Row(faults.shifted_content_range(), RangeNotSupportedError, 2),
    "unlabelled range": Row(faults.no_content_range(), RangeNotSupportedError, 2),
    "label of another form": Row(
        faults.with_header("Content-Range", "bytes 0-9/*"), RangeNotSupportedError, 2, origin="cdn"
    ),
    "compressed range": Row(faults.gzip_range(), RangeNotSupportedError, 2),
    "refused range": Row(faults.unsatisfiable(), TransportError, 4),
    "short body": Row(faults.short_body(), TransportError, 2 * MAX_TRIES, retryable=True),
    "cut at the Hub": Row(faults.cut_connection(), TransportError, MAX_TRIES, "hub", retryable=True),
    "cut at the CDN": Row(faults.cut_connection(), TransportError, 2 * MAX_TRIES, "cdn", retryable=True),
    "cut amid": Row(faults.cut_connection(after=10), TransportError, 2 * MAX_TRIES, "cdn", retryable=True),
    "Hub down": Row(faults.unavailable(), TransportError, MAX_TRIES, "hub", retryable=True),
    "CDN down": Row(faults.unavailable(), TransportError, 2 * MAX_TRIES, "cdn", retryable=True),
    "long wait": Row(
        faults.rate_limited(retry_after=int(MAX_WAIT) + 1),
        RateLimitedError,
        1,
        retryable=True,
        details={"retry_after": MAX_WAIT + 1},
    ),
    "no end of waits": Row(
        faults.rate_limited(retry_after=1), RateLimitedError, MAX_TRIES, retryable=True, details={"retry_after": 1.0}
    ),
    "expired addresses": Row(faults.expired_signature(), TransportError, 2 * MAX_TRIES, retryable=True),
    "gated, anonymous": Row(faults.refused("gated-anonymous"), GatedRepositoryError, 1, "hub"),
    "gated, not approved": Row(faults.refused("gated-unapproved"), GatedRepositoryError, 1, "hub"),
    "bad token": Row(faults.refused("bad-token"), AuthenticationError, 1, "hub"),
    "gone file": Row(faults.refused("entry-missing"), SourceFileNotFoundError, 1, "hub"),
    "gone revision": Row(faults.refused("revision-missing"), RevisionNotFoundError, 1, "hub"),
    "gone repository": Row(faults.refused("repo-missing"), RepositoryNotFoundError, 1, "hub"),
    "hidden repository": Row(faults.refused("repo-missing-anonymous"), RepositoryNotFoundError, 1, "hub"),
    "disabled": Row(faults.refused("disabled"), RepositoryNotFoundError, 1, "hub"),
    "other commit": Row(faults.wrong_commit("e" * 40), TransportError, 2, retryable=True, details={"actual": "e" * 40}),
    "other content": Row(
        faults.with_header("X-Linked-ETag", f'"{"e" * 64}"'),
        TransportError,
        2,
        "hub",
        retryable=True,
        details={"actual": "e" * 64},
    ),
    "web page": Row(faults.html_page(), NotWeightsError, 2, details={"offset": 0}),
    "redirect to itself": Row(faults.redirect_loop(), TransportError, MAX_HOPS, "hub"),
    "redirect to nowhere": Row(relocated(""), TransportError, 1),
    "redirect to a file": Row(relocated("file:///etc/passwd"), TransportError, 1),
    "redirect to no host": Row(relocated("http://"), TransportError, 1),
    "redirect to a broken host": Row(relocated("http://[::1"), TransportError, MAX_TRIES, retryable=None),
    "redirect to a name of no form": Row(relocated("http://a..b/x"), TransportError, MAX_TRIES, retryable=None),
    "redirect to a broken port": Row(relocated("http://127.0.0.1:port/x"), TransportError, MAX_TRIES, retryable=None),
    "redirect to no port": Row(relocated("http://127.0.0.1:99999/x"), TransportError, MAX_TRIES, retryable=None),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
class TestFaultsThatGoOn:
    def test_one_shard(self, hub: LoopbackHub, kimi: Files, pauses: list[float], row: Row) -> None:
        hub.play(row.fault, path=SHARD_2, origin=row.origin, times=None)
        checkpoint = open_checkpoint(REPO, endpoint=hub.endpoint, token=TOKEN)
        expected = weights(kimi)
        assert [shard.path for shard in checkpoint.shards] == list(expected)
        for shard in checkpoint.shards:
            if shard.path == SHARD_2:
                assert shard.unread_bytes == shard.file_bytes == expected[SHARD_2].size
                assert shard.header_bytes == shard.tensor_bytes == 0
            else:
                check_shard(shard, expected[shard.path])
        check_sums(checkpoint)
        (finding,) = checkpoint.findings
        assert (finding.code, finding.severity, finding.file) == ("shard-unreadable", Severity.ERROR, SHARD_2)
        assert not checkpoint.complete
        assert len(hub.log) <= usual_requests(kimi) - SHARD + row.most
        assert 1 <= len(asked_for(hub.log, SHARD_2)) <= row.most
        assert len(pauses) <= MAX_TRIES - 1
        check_token(hub)
        check_secret(checkpoint)

    def test_all_shards(self, hub: LoopbackHub, kimi: Files, pauses: list[float], row: Row) -> None:
        hub.play(row.fault, path="model-0", origin=row.origin, times=None)
        with pytest.raises(row.kind) as caught:
            open_checkpoint(REPO, endpoint=hub.endpoint, token=TOKEN)
        error = caught.value
        assert error.file == next(iter(weights(kimi)))
        assert row.retryable in (None, error.retryable)
        assert {name: getattr(error, name) for name in row.details} == row.details
        assert len(hub.log) <= LOOKS + CONFIG + len(weights(kimi)) * row.most
        assert len(pauses) <= (MAX_TRIES - 1) * len(weights(kimi))
        check_token(hub)
        check_secret(error)


def test_a_web_page_for_a_whole_shard(hub: LoopbackHub) -> None:
    hub.play(faults.html_page(200), path=SHARD_2, times=None)
    checkpoint = open_checkpoint(REPO, endpoint=hub.endpoint)
    assert "shard-unreadable" in {finding.code for finding in checkpoint.findings}
    check_sums(checkpoint)
    assert len(asked_for(hub.log, SHARD_2)) <= 4
    hub.play(faults.html_page(200), path="model-0", times=None)
    with pytest.raises(NotWeightsError, match="web page"):
        open_checkpoint(REPO, endpoint=hub.endpoint)


@pytest.mark.parametrize("addresses", [("/a", "/b"), tuple(f"/{number}" for number in range(100))], ids=["two", "many"])
def test_redirects_without_end(hub: LoopbackHub, addresses: tuple[str, ...]) -> None:
    turns = itertools.cycle(addresses)
    loop = Fault(
        "loop",
        lambda exchange: faults.redirect_loop().change(exchange).with_header("Location", next(turns)),
        lambda _: True,
    )
    hub.play(loop, times=None)
    with pytest.raises(TransportError, match="circle") as caught:
        open_checkpoint(REPO, endpoint=hub.endpoint, token=TOKEN)
    assert not caught.value.retryable
    assert len(hub.log) == MAX_HOPS
    check_token(hub)


def test_totals_that_never_agree(hub: LoopbackHub) -> None:
    for by in range(1, 60):
        hub.play(faults.wrong_total(by=by), path=SHARD_2)
    checkpoint = open_checkpoint(REPO, endpoint=hub.endpoint)
    assert [(finding.code, finding.file) for finding in checkpoint.findings] == [("shard-unreadable", SHARD_2)]
    assert len(asked_for(hub.log, SHARD_2)) <= 2 * MAX_TRIES


def test_a_total_that_the_server_sticks_to(hub: LoopbackHub, kimi: Files) -> None:
    hub.play(faults.wrong_total(by=7), path=SHARD_2, times=None)
    checkpoint = open_checkpoint(REPO, endpoint=hub.endpoint)
    size = kimi[SHARD_2].size
    found = {finding.code: finding for finding in checkpoint.findings}
    assert set(found) == {"size-differs-from-listing", "trailing-bytes"}
    assert (found["size-differs-from-listing"].expected, found["size-differs-from-listing"].actual) == (size, size + 7)
    assert len(asked_for(hub.log, SHARD_2)) <= 4
    check_sums(checkpoint)


def test_an_address_that_expires(hub: LoopbackHub, kimi: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kimi_inspect.reading.FIRST_READ", 1024)
    hub.play(Fault("first part", lambda exchange: exchange.answer, lambda answer: answer.kind == "cdn"), path=SHARD_2)
    hub.play(faults.expired_signature(), path=SHARD_2)
    checkpoint = open_checkpoint(REPO, endpoint=hub.endpoint, token=TOKEN)
    check_numbers(checkpoint, kimi)
    assert [(one.origin, one.status) for one in asked_for(hub.log, SHARD_2)] == [
        ("hub", 302),
        ("cdn", 206),
        ("cdn", 403),
        ("hub", 302),
        ("cdn", 206),
    ]
    check_token(hub)


@pytest.mark.parametrize(("path", "before"), [("?expand=sha", 0), ("/tree/", 1)])
@pytest.mark.parametrize("fault", [faults.unavailable(), faults.cut_connection(), faults.rate_limited(retry_after=0)])
def test_a_hub_that_is_down_for_good(
    hub: LoopbackHub, pauses: list[float], path: str, before: int, fault: Fault
) -> None:
    hub.play(fault, path=path, times=None)
    with pytest.raises((TransportError, RateLimitedError)) as caught:
        open_checkpoint(REPO, endpoint=hub.endpoint, token=TOKEN)
    assert caught.value.retryable
    assert caught.value.file == REPO
    assert len(hub.log) == before + MAX_TRIES
    assert len(pauses) == MAX_TRIES - 1
    check_secret(caught.value)


PRIVATE, GATED, DISABLED = "acme/private", "acme/gated", "acme/disabled"


@pytest.fixture
def guarded(kimi: Files) -> Iterator[LoopbackHub]:
    repositories = [
        Repository(REPO, kimi),
        Repository(PRIVATE, kimi, private=True),
        Repository(GATED, kimi, gated="manual"),
        Repository(DISABLED, kimi, disabled=True),
    ]
    with LoopbackHub(repositories, tokens=[TOKEN], unapproved_tokens=[OTHER_TOKEN]) as hub:
        yield hub


@pytest.mark.parametrize(
    ("source", "token", "kind", "words", "requests"),
    [
        ("acme/none", False, RepositoryNotFoundError, "private", 1),
        ("acme/none", TOKEN, RepositoryNotFoundError, "private", 1),
        (PRIVATE, False, RepositoryNotFoundError, "token", 1),
        (PRIVATE, OTHER_TOKEN, RepositoryNotFoundError, "token", 1),
        (DISABLED, TOKEN, RepositoryNotFoundError, "disabled", 1),
        (REPO, "hf_expired", AuthenticationError, "token", 1),
        (f"{REPO}@nothing", False, RevisionNotFoundError, "branch", 1),
        (f"{REPO}@{'f' * 40}", TOKEN, RevisionNotFoundError, "commit", 1),
        (GATED, False, GatedRepositoryError, "access", LOOKS + 1 + 8),
        (GATED, OTHER_TOKEN, GatedRepositoryError, "access", LOOKS + 1 + 8),
    ],
    ids=itertools.count(),
)
def test_refusals(
    guarded: LoopbackHub, source: str, token: str | bool, kind: type[KimiInspectError], words: str, requests: int
) -> None:
    with pytest.raises(kind, match=words) as caught:
        open_checkpoint(source, endpoint=guarded.endpoint, token=token)
    assert type(caught.value) is kind
    assert not caught.value.retryable
    assert len(guarded.log) == requests
    if isinstance(token, str):
        check_token(guarded, token)
        check_secret(caught.value, token)


@pytest.mark.parametrize("source", [REPO, PRIVATE, GATED])
def test_no_refusal(guarded: LoopbackHub, kimi: Files, source: str) -> None:
    checkpoint = open_checkpoint(source, endpoint=guarded.endpoint, token=TOKEN)
    check_numbers(checkpoint, kimi)
    assert all(shard.sha256 == kimi[shard.path].sha256 for shard in checkpoint.shards)
    assert len(guarded.log) == usual_requests(kimi)
    check_token(guarded)


class Clock:
    """Time that passes only where the server makes a pause, and not before the client has looked at the clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.looks = 0
        self.looked = threading.Condition()

    def monotonic(self) -> float:
        with self.looked:
            self.looks += 1
            self.looked.notify_all()
            return self.now

    def pass_by(self, seconds: float) -> None:
        with self.looked:
            assert self.looked.wait_for(lambda: self.looks, timeout=30)
            self.now += seconds

    def pause(self, _: float) -> bool:
        """Begin another attempt."""
        with self.looked:
            self.looks = 0
        return False


@pytest.mark.parametrize("small", [False, True], ids=["part", "small file"])
@pytest.mark.parametrize(("rate", "fits"), [(MIN_RATE // 100, False), (MIN_RATE * 4, True)], ids=["slow", "fast"])
def test_a_slow_drip(monkeypatch: pytest.MonkeyPatch, rate: int, fits: bool, small: bool) -> None:
    clock = Clock()
    monkeypatch.setattr(kimi_inspect.transport, "time", clock)
    transport = Transport(timeout=5, pause=clock.pause)
    data = bytes(range(256)) * 20
    with LoopbackHub(plain_files={"x": data}, sleep=clock.pass_by) as hub:
        url = hub.plain_url("x")
        hub.play(faults.slow_drip(piece_bytes=64, pause=64 / rate), times=None)

        def read() -> bytes:
            if small:
                return transport.read_file(url, limit=16_000_000, file=url).data
            return transport.read_range(url, 0, len(data), file=url).data

        if fits:
            assert read() == data
            assert len(hub.log) == 1
            return
        with pytest.raises(TransportError, match="slow") as caught:
            read()
        assert (caught.value.file, caught.value.retryable) == (url, True)
        assert len(hub.log) == MAX_TRIES
