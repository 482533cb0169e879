"""GGUF headers over HTTP: what they cost, and right numbers or the right error whatever the servers do."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest
from contracts.checks import LOOKS, REPO, TOKEN, asked_for, check_secret, check_sums, check_token
from test_caching import seen

import kimi_inspect as ki
from kimi_inspect import Checkpoint, Finding, Progress, Severity
from kimi_inspect.errors import (
    GatedRepositoryError,
    HeaderTooLargeError,
    KimiInspectError,
    NotWeightsError,
    RangeNotSupportedError,
    RateLimitedError,
    SourceFileNotFoundError,
    TransportError,
    TruncatedError,
)
from kimi_inspect.gguf import FIRST_READ
from kimi_inspect.testing import (
    Fault,
    GgufTensor,
    HollowFile,
    LoopbackHub,
    Repository,
    danielhanchen_gguf,
    faults,
    hollow_gguf,
    kimi_gguf,
)
from kimi_inspect.transport import MAX_TRIES, MAX_WAIT

NAME = "model.gguf"
SLACK = 512 * 1024
"""Bytes that may have come of a stream before it was closed."""

PARTS: dict[str, HollowFile] = kimi_gguf("UD-Q8_K_XL", layers=5, experts=4, tokens=60_000, parts=3)
PART_1, PART_2, PART_3 = PARTS


@pytest.fixture(scope="module")
def large() -> HollowFile:
    """A file of one part, whose tokenizer takes 6.9 MB."""
    (file,) = kimi_gguf("UD-Q8_K_XL", layers=4, experts=4, parts=1).values()
    return file


@pytest.fixture(scope="module")
def expected() -> Checkpoint:
    """The checkpoint of three parts, read from memory."""
    return ki.open_checkpoint(PARTS)


@pytest.fixture
def hub() -> Any:
    with LoopbackHub([Repository(REPO, PARTS)], tokens=[TOKEN], plain_files=PARTS) as hub:
        yield hub


def look(hub: LoopbackHub, source: str = REPO, **options: Any) -> Checkpoint:
    return ki.open_checkpoint(source, endpoint=hub.endpoint, token=TOKEN, **options)


def troubles(checkpoint: Checkpoint) -> list[Finding]:
    """Return what was found but for the label, which no tensor of the builds played here bears out."""
    return [finding for finding in checkpoint.findings if finding.code != "label-disagrees"]


def numbers(checkpoint: Checkpoint) -> Any:
    """Return all that does not tell where a checkpoint was read from."""
    fields, columns = seen(checkpoint)
    shards = [
        (one.path, one.file_bytes, one.header_bytes, one.tensor_bytes, one.padding_bytes, one.missing_bytes)
        for one in checkpoint.shards
    ]
    return shards, fields["metadata"], fields["findings"], columns


def header_bytes(checkpoint: Checkpoint) -> int:
    return sum(shard.header_bytes for shard in checkpoint.shards)


# ---- what it costs


def test_a_file_with_a_tokenizer_takes_one_stream(large: HollowFile) -> None:
    with LoopbackHub([Repository(REPO, {NAME: large})], tokens=[TOKEN]) as hub:
        checkpoint = look(hub)
        assert checkpoint.traffic.requests == len(hub.log) == LOOKS + 2
        assert numbers(checkpoint) == numbers(ki.open_checkpoint({NAME: large}))
        check_token(hub)
    assert header_bytes(checkpoint) > 6_900_000
    assert header_bytes(checkpoint) <= checkpoint.traffic.bytes_read <= header_bytes(checkpoint) + SLACK


def test_a_file_behind_a_plain_address_takes_one_request_more_for_its_size(large: HollowFile) -> None:
    with LoopbackHub(plain_files={NAME: large}) as hub:
        checkpoint = ki.open_checkpoint(hub.plain_url(NAME))
        assert hub.log[0].range == f"bytes=0-{FIRST_READ - 1}"
        assert checkpoint.traffic.requests == len(hub.log) == 2
        assert numbers(checkpoint) == numbers(ki.open_checkpoint({NAME: large}))
    assert header_bytes(checkpoint) <= checkpoint.traffic.bytes_read <= header_bytes(checkpoint) + SLACK


def test_a_set_of_34_parts_in_a_repository_of_much_else() -> None:
    files = danielhanchen_gguf()
    with LoopbackHub([Repository(REPO, files)], tokens=[TOKEN]) as hub:
        checkpoint = look(hub, f"{REPO}:UD-Q8_K_XL")
        assert len(checkpoint.shards) == 34
        assert troubles(checkpoint) == []
        assert checkpoint.traffic.requests == len(hub.log) <= 76
        assert checkpoint.traffic.bytes_read <= header_bytes(checkpoint) + SLACK + 36 * FIRST_READ
        for path in [shard.path for shard in checkpoint.shards][1:]:
            (read,) = asked_for(hub.log, path.rpartition("/")[2], "cdn")
            assert read.range == f"bytes=0-{FIRST_READ - 1}"
        check_token(hub)


def test_a_part_of_many_tensors_is_read_on_in_one_stream() -> None:
    tensors = [GgufTensor(f"blk.{number}.attn_q.weight", "F32", (8, 8)) for number in range(9000)]
    files = {"x-00001-of-00002.gguf": hollow_gguf([], {"general.architecture": "llama"})}
    files["x-00002-of-00002.gguf"] = hollow_gguf(tensors, {})
    with LoopbackHub([Repository(REPO, files)], tokens=[TOKEN]) as hub:
        checkpoint = look(hub)
        reads = asked_for(hub.log, "x-00002", "cdn")
        assert len(asked_for(hub.log, "x-00002")) == 3
    assert reads[0].range == f"bytes=0-{FIRST_READ - 1}"
    assert len(reads) == 2
    assert len(checkpoint.tensors) == 9000
    assert numbers(checkpoint) == numbers(ki.open_checkpoint(files))


@pytest.mark.parametrize("max_workers", [1, 3])
def test_connections(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch, max_workers: int) -> None:
    made: list[object] = []
    connect = socket.create_connection

    def count(*arguments: Any, **options: Any) -> socket.socket:
        made.append(arguments)
        return connect(*arguments, **options)

    monkeypatch.setattr(socket, "create_connection", count)
    look(hub, max_workers=max_workers)
    # One of each server for each worker; what a stream was left on cannot serve again.
    assert len(made) <= 2 * max_workers + 1


@pytest.mark.parametrize("limit", [100_000, 1_000_000])
def test_no_more_is_read_than_a_header_may_have(large: HollowFile, limit: int) -> None:
    with LoopbackHub([Repository(REPO, {NAME: large})], plain_files={NAME: large}, tokens=[TOKEN]) as hub:
        for source in (REPO, hub.plain_url(NAME)):
            hub.clear_log()
            with pytest.raises(HeaderTooLargeError) as caught:
                look(hub, source, max_header_bytes=limit)
            assert caught.value.file == NAME
            ends = [int(one.range.rpartition("-")[2]) for one in hub.log if one.range]
            assert max(ends) < limit
        assert numbers(look(hub, max_header_bytes=8_000_000)) == numbers(ki.open_checkpoint({NAME: large}))


# ---- forms of files and addresses


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("order", ["<", ">"])
def test_versions_and_byte_orders(version: int, order: Any) -> None:
    tensors = [GgufTensor("token_embd.weight", "Q8_0", (64, 4)), GgufTensor("blk.0.attn_q.weight", "F16", (7, 3))]
    metadata = {"general.architecture": "llama", "tokens": [f"{number:050}" for number in range(5000)], "last": 7}
    file = hollow_gguf(tensors, metadata, version=version, byte_order=order)
    with LoopbackHub([Repository(REPO, {NAME: file})], plain_files={NAME: file}, tokens=[TOKEN]) as hub:
        for source in (REPO, hub.plain_url(NAME)):
            checkpoint = look(hub, source)
            assert troubles(checkpoint) == []
            assert [(info.name, info.stored_bytes) for info in checkpoint.tensors] == [
                ("token_embd.weight", 272),
                ("blk.0.attn_q.weight", 42),
            ]
            assert checkpoint.metadata["last"] == 7
            assert checkpoint.shards[0].header_bytes == len(file.head)


@pytest.mark.parametrize("path", PARTS)
def test_any_part_of_a_set_by_its_plain_address(hub: LoopbackHub, expected: Checkpoint, path: str) -> None:
    checkpoint = ki.open_checkpoint(hub.plain_url(path))
    folder = PART_1.rpartition("/")[0] + "/"
    assert [folder + shard.path for shard in checkpoint.shards] == list(PARTS)
    assert troubles(checkpoint) == []
    assert checkpoint.metadata == expected.metadata
    assert [info.name for info in checkpoint.tensors] == [info.name for info in expected.tensors]
    assert checkpoint.tensors.offset.tolist() == expected.tensors.offset.tolist()
    assert len(hub.log) == len(PARTS) + 1


def test_a_sibling_that_is_not_there(expected: Checkpoint) -> None:
    files = {path: file for path, file in PARTS.items() if path != PART_3}
    with LoopbackHub(plain_files=files) as hub:
        checkpoint = ki.open_checkpoint(hub.plain_url(PART_2))
        assert {finding.code for finding in troubles(checkpoint)} == {"shard-unreadable"}
        assert not checkpoint.complete
        assert len(checkpoint.tensors) == len(expected.tensors.select(shard=PART_1)) + len(
            expected.tensors.select(shard=PART_2)
        )
        with pytest.raises(SourceFileNotFoundError):
            ki.open_checkpoint(hub.plain_url(PART_3))


def test_a_file_that_ends_inside_its_tokenizer(large: HollowFile) -> None:
    file = large.resized(3_000_000)
    with LoopbackHub([Repository(REPO, {NAME: file})], plain_files={NAME: file}, tokens=[TOKEN]) as hub:
        for source in (REPO, hub.plain_url(NAME)):
            with pytest.raises(TruncatedError) as caught:
                look(hub, source)
            assert caught.value.file == NAME


# ---- what servers do wrong

ONCE: dict[str, tuple[Fault, Any]] = {
    "ignored range": (faults.ignore_range(), None),
    "cut before": (faults.cut_connection(), "cdn"),
    "cut at the Hub": (faults.cut_connection(), "hub"),
    **{f"cut after {after}": (faults.cut_connection(after=after), "cdn") for after in (0, 1, 24, 65536, 500_000)},
    "short": (faults.short_body(), "cdn"),
    "expired": (faults.expired_signature(), None),
    "down": (faults.unavailable(), None),
    "wait, from the Hub": (faults.rate_limited(retry_after=3), "hub"),
    "wait, from the CDN": (faults.rate_limited(retry_after=3), "cdn"),
    "shifted": (faults.shifted_content_range(), None),
    "unlabelled": (faults.no_content_range(), None),
    "compressed": (faults.gzip_range(), None),
    "other total": (faults.wrong_total(), None),
    "refused": (faults.unsatisfiable(), None),
    "refused overlong": (faults.refuse_overlong(), None),
}


@pytest.mark.parametrize(("fault", "origin"), ONCE.values(), ids=ONCE)
@pytest.mark.usefixtures("pauses")
def test_a_fault_of_a_moment_in_the_stream(hub: LoopbackHub, expected: Checkpoint, fault: Fault, origin: Any) -> None:
    hub.play(fault, path="00001-of", origin=origin)
    checkpoint = look(hub)
    assert numbers(checkpoint) == numbers(expected)
    assert len(hub.log) <= LOOKS + 2 * len(PARTS) + 4
    assert [one for one in hub.log if one.fault]
    check_token(hub)
    check_secret(checkpoint)


@pytest.mark.parametrize("after", [300_000, 700_000])
def test_a_server_that_never_sends_more_than_so_much_at_once(
    hub: LoopbackHub, expected: Checkpoint, pauses: list[float], after: int
) -> None:
    hub.play(faults.cut_connection(after=after), path="00001-of", origin="cdn", times=None)
    checkpoint = look(hub)
    assert numbers(checkpoint) == numbers(expected)
    header = checkpoint.shards[0].header_bytes
    assert len(asked_for(hub.log, "00001-of")) <= 4 * (header // after + 1)
    assert pauses == []


def test_a_stream_that_is_cut_and_whose_address_has_expired_meanwhile(hub: LoopbackHub, expected: Checkpoint) -> None:
    hub.play(faults.cut_connection(after=300_000), path="00001-of", origin="cdn")
    hub.play(faults.expired_signature(), path="00001-of", origin="cdn")
    assert numbers(look(hub)) == numbers(expected)
    check_token(hub)


GOING_ON: dict[str, tuple[Fault, Any, type[KimiInspectError]]] = {
    "cut": (faults.cut_connection(), None, TransportError),
    "cut amid": (faults.cut_connection(after=10), "cdn", TransportError),
    "down": (faults.unavailable(), None, TransportError),
    "expired": (faults.expired_signature(), None, TransportError),
    "waits": (faults.rate_limited(retry_after=1), None, RateLimitedError),
    "long wait": (faults.rate_limited(retry_after=int(MAX_WAIT) + 1), None, RateLimitedError),
    "gated": (faults.refused("gated-anonymous"), "hub", GatedRepositoryError),
    "gone": (faults.refused("entry-missing"), "hub", SourceFileNotFoundError),
    "shifted": (faults.shifted_content_range(), None, RangeNotSupportedError),
    "unlabelled": (faults.no_content_range(), None, RangeNotSupportedError),
    "other commit": (faults.wrong_commit(), None, TransportError),
    "web page": (faults.html_page(), None, NotWeightsError),
    "web page, whole": (faults.html_page(200), None, NotWeightsError),
    "redirected in a circle": (faults.redirect_loop(), None, TransportError),
}


@pytest.mark.parametrize(("fault", "origin", "kind"), GOING_ON.values(), ids=GOING_ON)
@pytest.mark.usefixtures("pauses")
class TestFaultsThatGoOn:
    @pytest.mark.parametrize("path", [PART_1, PART_2])
    def test_one_part(
        self, hub: LoopbackHub, expected: Checkpoint, path: str, fault: Fault, origin: Any, kind: type[KimiInspectError]
    ) -> None:
        del kind
        hub.play(fault, path=path.rpartition("/")[2], origin=origin, times=None)
        checkpoint = look(hub)
        found = {finding.code: finding for finding in troubles(checkpoint)}
        assert (found["shard-unreadable"].severity, found["shard-unreadable"].file) == (Severity.ERROR, path)
        assert not checkpoint.complete
        for shard, whole in zip(checkpoint.shards, expected.shards, strict=True):
            read = 0 if shard.path == path else whole.tensor_bytes
            assert (shard.tensor_bytes, shard.unread_bytes > 0) == (read, shard.path == path)
        check_sums(checkpoint)
        check_token(hub)
        check_secret(checkpoint)

    def test_all_parts(self, hub: LoopbackHub, fault: Fault, origin: Any, kind: type[KimiInspectError]) -> None:
        hub.play(fault, path="-of-0000", origin=origin, times=None)
        with pytest.raises(kind) as caught:
            look(hub)
        assert caught.value.file == PART_1
        assert len(hub.log) <= LOOKS + 2 * len(PARTS) * (MAX_TRIES + 4)
        check_token(hub)
        check_secret(caught.value)


@pytest.mark.parametrize("by", [7, -7])
def test_another_size_than_was_listed(hub: LoopbackHub, expected: Checkpoint, by: int) -> None:
    hub.play(faults.wrong_listed_size(PART_1, by=by))
    checkpoint = look(hub)
    (finding,) = troubles(checkpoint)
    size = PARTS[PART_1].size
    assert (finding.code, finding.expected, finding.actual) == ("size-differs-from-listing", size + by, size)
    assert numbers(checkpoint)[3] == numbers(expected)[3]
    assert checkpoint.shards[0].file_bytes == size
    assert len(asked_for(hub.log, "00001-of")) <= 4


def test_a_total_that_the_server_sticks_to(hub: LoopbackHub) -> None:
    hub.play(faults.wrong_total(by=4096), path="00001-of", times=None)
    checkpoint = look(hub)
    assert {finding.code for finding in troubles(checkpoint)} == {"size-differs-from-listing", "trailing-bytes"}
    check_sums(checkpoint)


@pytest.mark.parametrize("token", [False, TOKEN])
def test_a_gated_repository(token: str | bool, expected: Checkpoint) -> None:
    with LoopbackHub([Repository(REPO, PARTS, gated="manual")], tokens=[TOKEN]) as hub:
        if token:
            assert numbers(look(hub)) == numbers(expected)
            return
        with pytest.raises(GatedRepositoryError):
            ki.open_checkpoint(REPO, endpoint=hub.endpoint, token=False)


# ---- leaving early


class _EnoughError(Exception):
    pass


def test_what_progress_raises_ends_a_stream_under_way() -> None:
    asked, released = threading.Event(), threading.Event()
    late: list[bool] = []

    def hold(_: float) -> None:
        asked.set()
        late.append(not released.wait(30))

    def progress(one: Progress) -> None:
        if one.phase == "headers" and one.done >= 2:
            assert asked.wait(30)
            raise _EnoughError

    with LoopbackHub([Repository(REPO, PARTS)], tokens=[TOKEN], sleep=hold) as hub:
        hub.play(faults.slow_drip(piece_bytes=100_000, pause=1), path="00001-of", origin="cdn")
        with pytest.raises(_EnoughError):
            look(hub, progress=progress)
        ended_first = not late
        released.set()
        assert len(asked_for(hub.log, "00001-of")) == 2
    assert ended_first
