"""Opening a checkpoint: what it costs, how it goes on, how it ends early, and what is left when the Hub is gone."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import unquote

import pytest
from attrs.exceptions import FrozenInstanceError
from contracts.checks import (
    CONFIG,
    LOOKS,
    REPO,
    SHARD,
    TOKEN,
    asked_for,
    check_numbers,
    check_secret,
    check_sums,
    check_token,
    expected_shard,
    usual_requests,
    weights,
)
from testing.raw_client import ask

from kimi_inspect import Checkpoint, Component, Progress, Report, Severity, inspect, open_checkpoint, summarize
from kimi_inspect.errors import (
    InvalidSourceError,
    NotWeightsError,
    SourceFileNotFoundError,
    TransportError,
    TruncatedError,
)
from kimi_inspect.remote import HubRepository
from kimi_inspect.sidecars import MAX_CONFIG_BYTES
from kimi_inspect.testing import (
    KIMI_K3_ID,
    KIMI_K31_PRO_COMMIT,
    KIMI_K31_PRO_ID,
    Fault,
    HollowFile,
    LoopbackHub,
    Repository,
    TensorSpec,
    faults,
    hollow_safetensors,
    kimi_k3,
    kimi_k31_pro,
)
from kimi_inspect.testing.faults import Exchange
from kimi_inspect.testing.wire import Answer

Files = dict[str, HollowFile]

SHARD_1, SHARD_2 = "model-00001-of-000008.safetensors", "model-00002-of-000008.safetensors"


# Tensors, stored bytes and parameters of Kimi K3.1 Pro, as published.
K31_PRO: dict[str, tuple[int, int, int]] = {
    "routed_experts": (494_592, 1_446_456_066_048, 2_722_740_830_208),
    "kda_attention": (966, 61_258_257_408, 30_618_088_704),
    "shared_experts": (276, 24_310_185_984, 12_155_092_992),
    "mla_attention": (192, 11_145_412_608, 5_572_706_304),
    "latent_projection": (276, 9_454_620_672, 4_727_310_336),
    "embeddings": (1, 2_348_810_240, 1_174_405_120),
    "lm_head": (1, 2_348_810_240, 1_174_405_120),
    "dense_mlp": (3, 1_453_326_336, 726_663_168),
    "router": (184, 1_182_074_880, 590_955_008),
    "vision_tower": (165, 802_428_928, 401_214_464),
    "sparse_indexer": (120, 357_052_416, 178_526_208),
    "projector": (3, 92_289_024, 46_144_512),
    "attention_residual": (374, 5_361_664, 2_680_832),
    "norms": (187, 2_680_832, 1_340_416),
}
K3 = {name: row for name, row in K31_PRO.items() if name != "sparse_indexer"}


def opened(
    hub: LoopbackHub, *, token: str | bool = False, progress: Callable[[Progress], object] | None = None
) -> Checkpoint:
    return open_checkpoint(REPO, endpoint=hub.endpoint, token=token, progress=progress)


class TestFullSize:
    def check(self, report: Report, hub: LoopbackHub, table: dict[str, tuple[int, int, int]]) -> None:
        rows = {row.component.value: (row.tensor_count, row.stored_bytes, row.parameters) for row in report.components}
        assert rows == table
        assert report.shard_count == 96
        assert report.complete
        assert [finding for finding in report.findings if finding.severity != Severity.INFO] == []
        assert (report.padding_bytes, report.missing_bytes, report.unread_bytes, report.unknown_tensors) == (0, 0, 0, 0)
        assert report.file_bytes == report.header_bytes + report.tensor_bytes
        experts = report[Component.ROUTED_EXPERTS]
        assert [(row.encoding, row.scale_bytes) for row in experts.encodings] == [("mxfp4", 85_085_650_944)]
        assert report.experts is not None
        assert (report.experts.layers, report.experts.declared) == (92, 896)
        assert (report.experts.per_layer_min, report.experts.per_layer_max) == (896, 896)
        assert 196 <= len(hub.log) <= 200
        assert report.traffic.requests == len(hub.log)

    def test_kimi_k31_pro(self) -> None:
        repository = Repository(KIMI_K31_PRO_ID, kimi_k31_pro(), commit=KIMI_K31_PRO_COMMIT)
        with LoopbackHub([repository]) as hub:
            report = inspect(KIMI_K31_PRO_ID, endpoint=hub.endpoint)
            self.check(report, hub, K31_PRO)
        assert report.commit == KIMI_K31_PRO_COMMIT
        assert report.file_bytes == 1_561_293_160_568
        assert report.header_bytes == 75_783_288
        assert report.tensor_bytes == 1_561_217_377_280
        assert report.tensor_count == 497_340
        assert report.parameters == report.known_parameters == 2_780_110_363_392
        assert {row.encoding: row.parameters for row in report.by_encoding()}["bf16"] == 57_358_410_752
        # Headers are read once, and little beside them.
        assert report.traffic.bytes_read <= 1.2 * report.header_bytes

    def test_kimi_k3(self) -> None:
        with LoopbackHub([Repository(KIMI_K3_ID, kimi_k3())]) as hub:
            report = inspect(KIMI_K3_ID, endpoint=hub.endpoint)
            self.check(report, hub, K3)
        assert report.file_bytes == 1_560_936_091_448
        assert report.tensor_count == 497_220
        assert report.parameters == 2_779_931_837_184
        assert report[Component.SPARSE_INDEXER].tensor_count == 0


class TestTraffic:
    def test_it_is_what_went_over_the_wire(self, hub: LoopbackHub, kimi: Files) -> None:
        checkpoint = open_checkpoint(REPO, endpoint=hub.endpoint)
        log = hub.log
        # Asked again one by one with a client of the standard library's, every answer has the same length.
        received = 0
        for one in log:
            headers = {"range": one.range, "accept-encoding": one.accept_encoding}
            sent = {name: value for name, value in headers.items() if value}
            received += len(ask((hub.endpoint if one.origin == "hub" else hub.cdn_origin) + one.target, **sent).body)
        assert (checkpoint.traffic.requests, checkpoint.traffic.bytes_read) == (len(log), received)
        assert len(log) == usual_requests(kimi)

    def test_the_first_read_adapts(self) -> None:
        files = kimi_k31_pro(layers=20, experts=4)
        with LoopbackHub([Repository(REPO, files)]) as hub:
            checkpoint = open_checkpoint(REPO, endpoint=hub.endpoint, max_workers=1)
            check_numbers(checkpoint, files)
            assert len(hub.log) == usual_requests(files) + 1  # the vision tower's header is longer than those before
            ends = {}
            for one in hub.log:
                if one.origin == "cdn" and one.range and one.range.startswith("bytes=0-"):
                    name = unquote(one.target).partition('filename="')[2].partition('"')[0]
                    ends[name] = int(one.range.rpartition("-")[2]) + 1
        headers = {path: expected_shard(file)[1] for path, file in weights(files).items()}
        first, later = list(headers)[:8], list(headers)[8:]
        assert {ends[path] for path in first} == {1 << 20}
        longest = max(headers[path] for path in first)
        assert all(longest <= ends[path] <= 1.1 * longest for path in later)
        assert checkpoint.traffic.bytes_read < 9 << 20

    def test_the_rest_of_a_long_header_costs_one_request(
        self, hub: LoopbackHub, kimi: Files, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("kimi_inspect.reading.FIRST_READ", 1024)
        checkpoint = open_checkpoint(REPO, endpoint=hub.endpoint, max_workers=1)
        check_numbers(checkpoint, kimi)
        for path, file in weights(kimi).items():
            header = expected_shard(file)[1]
            seen = asked_for(hub.log, path)
            wanted = ["bytes=0-1023", f"bytes=1024-{header - 1}"] if header > 1024 else ["bytes=0-1023"]
            assert [one.range for one in seen] == [wanted[0], *wanted]
            assert [one.origin for one in seen] == ["hub"] + ["cdn"] * len(wanted)
            assert len({one.target for one in seen if one.origin == "cdn"}) == 1


class TestBadShards:
    @pytest.mark.parametrize(
        "bad",
        [
            HollowFile(b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 7264\n"),
            HollowFile(b"<!DOCTYPE html><html>Sign in</html>"),
            HollowFile(b"\x00\x10\x00\x00\x00\x00\x00\x00{}"),
            HollowFile(b"\x02\x00\x00"),
            HollowFile(b""),
        ],
        ids=["pointer", "web page", "cut in the header", "cut in the length", "empty"],
    )
    @pytest.mark.parametrize("where", ["hub", "folder"])
    def test_one_among_several(self, kimi: Files, tmp_path: Path, bad: HollowFile, where: str) -> None:
        files = {**kimi, SHARD_2: bad}
        if where == "hub":
            with LoopbackHub([Repository(REPO, files)]) as hub:
                checkpoint = opened(hub)
        else:
            for path, file in files.items():
                file.write_to(tmp_path / path)
            checkpoint = open_checkpoint(tmp_path)
        (finding,) = checkpoint.findings
        assert (finding.code, finding.severity, finding.file) == ("shard-unreadable", Severity.ERROR, SHARD_2)
        assert not checkpoint.complete
        assert [shard.unread_bytes for shard in checkpoint.shards] == [0, bad.size, 0, 0, 0, 0, 0, 0]
        assert checkpoint.shards[1].file_bytes == bad.size
        report = summarize(checkpoint)
        assert report.unread_bytes == bad.size
        assert report.tensor_count == sum(
            expected_shard(file)[2] for path, file in weights(kimi).items() if path != SHARD_2
        )
        check_sums(checkpoint)

    @pytest.mark.parametrize(
        ("first", "others", "kind"),
        [
            (faults.refused("entry-missing"), faults.unavailable(400), SourceFileNotFoundError),
            (faults.html_page(), faults.refused("entry-missing"), NotWeightsError),
            (faults.unavailable(400), faults.html_page(), TransportError),
        ],
    )
    def test_all_raise_what_the_first_has(
        self, hub: LoopbackHub, kimi: Files, first: Fault, others: Fault, kind: type[Exception]
    ) -> None:
        for path in weights(kimi):
            hub.play(first if path == SHARD_1 else others, path=path, times=None)
        with pytest.raises(kind) as caught:
            opened(hub)
        assert getattr(caught.value, "file", None) == SHARD_1

    def test_a_single_file_that_is_cut(self, tmp_path: Path, kimi: Files) -> None:
        kimi[SHARD_2].resized(1000).write_to(tmp_path / "x.safetensors")
        with pytest.raises(TruncatedError) as caught:
            open_checkpoint(tmp_path / "x.safetensors")
        assert caught.value.file == "x.safetensors"


class TestConfig:
    def test_none(self, kimi: Files) -> None:
        files = {path: file for path, file in kimi.items() if path != "config.json"}
        with LoopbackHub([Repository(REPO, files)]) as hub:
            checkpoint = opened(hub)
            assert len(hub.log) == usual_requests(kimi) - CONFIG
        assert (checkpoint.config, checkpoint.architecture, checkpoint.family) == (None, None, None)
        assert "config-unreadable" not in {finding.code for finding in checkpoint.findings}

    @pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"7", b"\xff", b"[" * 100_000])
    def test_no_object(self, kimi: Files, text: bytes) -> None:
        with LoopbackHub([Repository(REPO, {**kimi, "config.json": HollowFile(text)})]) as hub:
            checkpoint = opened(hub)
        assert checkpoint.config is None
        assert [
            (finding.code, finding.severity) for finding in checkpoint.findings if finding.file == "config.json"
        ] == [("config-unreadable", Severity.WARNING)]
        check_numbers(checkpoint, kimi)

    def test_too_long_to_be_one(self, kimi: Files) -> None:
        config = HollowFile(b"{", MAX_CONFIG_BYTES + 1)
        with LoopbackHub([Repository(REPO, {**kimi, "config.json": config})]) as hub:
            checkpoint = opened(hub)
        assert "config-unreadable" in {finding.code for finding in checkpoint.findings}

    def test_refused(self, hub: LoopbackHub, kimi: Files) -> None:
        hub.play(faults.refused("entry-missing"), path="config.json", times=None)
        checkpoint = opened(hub)
        assert "config-unreadable" in {finding.code for finding in checkpoint.findings}
        assert len(hub.log) == usual_requests(kimi) - CONFIG + 1
        check_numbers(checkpoint, kimi)


class TestProgress:
    def seen(self, hub: LoopbackHub) -> list[Progress]:
        seen: list[tuple[int, Progress]] = []
        opened(hub, progress=lambda event: seen.append((threading.get_ident(), event)))
        assert {thread for thread, _ in seen} == {threading.get_ident()}
        return [event for _, event in seen]

    def test_it_goes_up_to_the_end(self, hub: LoopbackHub, kimi: Files) -> None:
        events = self.seen(hub)
        phases = list(dict.fromkeys(event.phase for event in events))
        assert [event.phase for event in events] == sorted((event.phase for event in events), key=phases.index)
        assert "headers" in phases
        for phase in phases:
            steps = [event for event in events if event.phase == phase]
            assert len({(event.total, event.unit) for event in steps}) == 1
            assert [event.done for event in steps] == sorted({event.done for event in steps})
            assert steps[0].done == 0
            assert steps[-1].done == steps[-1].total
        paths = [event.path for event in events if event.phase == "headers" and event.path]
        assert sorted(paths) == list(weights(kimi))

    def test_bad_shards_count_too(self, hub: LoopbackHub, kimi: Files) -> None:
        hub.play(faults.refused("entry-missing"), path=SHARD_2)
        events = self.seen(hub)
        assert (events[-1].done, events[-1].total) == (len(weights(kimi)), len(weights(kimi)))

    def test_none_is_wanted(self, hub: LoopbackHub, kimi: Files) -> None:
        check_numbers(opened(hub, progress=None), kimi)


class Stop(Exception):  # noqa: N818 - no error
    """What a caller may raise to end a call."""


def our_threads() -> list[threading.Thread]:
    """Return the threads that read; the one that only watches them may take a moment to see that they are gone."""
    ours = [thread for thread in threading.enumerate() if thread.name.startswith(("kimi", "ThreadPool"))]
    for thread in ours:
        if "watch" in thread.name:
            thread.join(30)
    return [thread for thread in ours if thread.is_alive()]


@pytest.fixture
def cancelled(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a repository was told to stop."""
    event = threading.Event()
    cancel = HubRepository.cancel

    def cancel_and_tell(self: HubRepository) -> None:
        cancel(self)
        event.set()

    monkeypatch.setattr(HubRepository, "cancel", cancel_and_tell)
    return event


class TestCancelling:
    @pytest.fixture
    def files(self) -> Files:
        shard = kimi_k31_pro(layers=1)["model-00001-of-000004.safetensors"]
        return {f"model-{number:05d}-of-00100.safetensors": shard for number in range(1, 101)} | {
            "config.json": HollowFile(b"{}")
        }

    @pytest.mark.parametrize("kind", [Stop, KeyboardInterrupt, TransportError])
    def test_soon(self, files: Files, cancelled: threading.Event, kind: type[BaseException]) -> None:
        workers = 4
        answered = iter(range(1_000_000))

        def hold(_: float) -> None:
            # Commit and listing are answered; all else waits until the call is cancelled.
            if next(answered) >= LOOKS:
                assert cancelled.wait(30)

        raised = kind("enough")

        def progress(event: Progress) -> None:
            if event.phase == "headers":
                raise raised

        with LoopbackHub([Repository(REPO, files)], latency=1, sleep=hold) as hub:
            with pytest.raises(kind) as caught:
                open_checkpoint(REPO, endpoint=hub.endpoint, max_workers=workers, progress=progress)
            assert our_threads() == []
            assert len(hub.log) <= LOOKS + CONFIG + SHARD * workers
        assert caught.value is raised

    def test_late(self, files: Files) -> None:
        def progress(event: Progress) -> None:
            if event.phase == "headers" and event.done == event.total:
                raise Stop

        with LoopbackHub([Repository(REPO, files)]) as hub:
            with pytest.raises(Stop):
                opened(hub, progress=progress)
            assert our_threads() == []

    def test_before_the_first_request(self, hub: LoopbackHub) -> None:
        def progress(_: Progress) -> None:
            raise Stop

        with pytest.raises(Stop):
            opened(hub, progress=progress)
        assert hub.log == ()

    @pytest.fixture
    def heeded(self) -> Iterator[None]:
        """Python's own way with an interrupt: what a shell starts in the background may have been told to ignore it."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
        signal.signal(signal.SIGINT, before)

    @pytest.mark.usefixtures("heeded")
    def test_an_interrupt_while_only_the_config_is_awaited(self, hub: LoopbackHub, cancelled: threading.Event) -> None:
        read = threading.Event()
        told: SimpleQueue[bool] = SimpleQueue()

        def change(exchange: Exchange) -> Answer:
            assert read.wait(30)
            os.kill(os.getpid(), signal.SIGINT)
            told.put(cancelled.wait(3))
            return exchange.answer

        def progress(event: Progress) -> None:
            if event.phase == "headers" and event.done == event.total:
                read.set()

        hub.play(Fault("held", change, lambda _: True), path="config.json")
        with pytest.raises(KeyboardInterrupt):
            opened(hub, progress=progress)
        assert told.get(timeout=30)
        # The interrupt may come while the threads are on their way out, and nobody waits for them then.
        for thread in our_threads():
            thread.join(30)
        assert our_threads() == []


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN"])
def test_a_config_may_hold_what_python_writes(tmp_path: Path, number: str) -> None:
    """Mamba-2 has `time_step_limit: [0.0, Infinity]`; JSON has no such number, and all loaders take it."""
    (tmp_path / "model.safetensors").write_bytes(hollow_safetensors([TensorSpec("a", "F32", (2,))]).read())
    (tmp_path / "config.json").write_text(f'{{"model_type": "mamba2", "time_step_limit": [0.0, {number}]}}')
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.family == "mamba2"
    assert "config-unreadable" not in {finding.code for finding in checkpoint.findings}


@pytest.mark.parametrize(
    "options", [{"max_workers": 0}, {"max_workers": 2.5}, {"timeout": 0}, {"timeout": -1}, {"timeout": "soon"}]
)
def test_arguments_that_make_no_sense(options: Any, hub: LoopbackHub) -> None:
    with pytest.raises(InvalidSourceError, match="no "):
        open_checkpoint(REPO, endpoint=hub.endpoint, **options)


def test_a_local_source_is_named_as_it_can_be_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`own/name` would be a repository of the Hub."""
    (tmp_path / "own" / "name").mkdir(parents=True)
    (tmp_path / "own" / "name" / "model.safetensors").write_bytes(
        hollow_safetensors([TensorSpec("a", "F32", (2,))]).read()
    )
    monkeypatch.chdir(tmp_path)
    for written in ("./own/name", Path("own/name"), "own/../own/name/model.safetensors"):
        checkpoint = open_checkpoint(written)
        again = open_checkpoint(checkpoint.source)
        assert again.source == checkpoint.source
        assert len(again.tensors) == 1
    assert open_checkpoint("./own/name").source == "./own/name"


class TestResults:
    @pytest.fixture
    def checkpoint(self, kimi: Files) -> Checkpoint:
        with LoopbackHub([Repository(REPO, kimi)], tokens=[TOKEN]) as hub:
            checkpoint = opened(hub, token=TOKEN)
            check_token(hub)
        return checkpoint

    def test_they_outlive_the_hub(self, checkpoint: Checkpoint, kimi: Files) -> None:
        copy = pickle.loads(pickle.dumps(checkpoint))  # noqa: S301 - our own
        check_numbers(copy, kimi)
        assert list(copy.tensors) == list(checkpoint.tensors)
        assert copy.tensors["language_model.lm_head.weight"] == checkpoint.tensors["language_model.lm_head.weight"]
        assert summarize(copy) == summarize(checkpoint)
        assert (copy.config, copy.findings, copy.traffic) == (
            checkpoint.config,
            checkpoint.findings,
            checkpoint.traffic,
        )
        check_secret(checkpoint)

    def test_values_are_compared_by_value_and_traffic_is_none(self, checkpoint: Checkpoint, hub: LoopbackHub) -> None:
        hub.play(faults.unavailable(), path="/tree/")
        hub.play(faults.rate_limited(retry_after=0), path=SHARD_2)
        other = opened(hub)
        one, two = summarize(checkpoint), summarize(other)
        assert one.traffic != two.traffic
        # Shards hold their address, and this is another Hub.
        assert [shard.path for shard in checkpoint.shards] == [shard.path for shard in other.shards]
        assert one.components == two.components
        assert one.by_layer() == two.by_layer()
        assert one.experts == two.experts
        again = open_checkpoint(REPO, endpoint=hub.endpoint)
        assert summarize(again).traffic != two.traffic
        assert summarize(again) == two
        assert again.shards == other.shards
        assert list(again.tensors) == list(other.tensors)

    def test_a_checkpoint_is_only_itself(self, checkpoint: Checkpoint) -> None:
        copy = pickle.loads(pickle.dumps(checkpoint))  # noqa: S301 - our own
        assert checkpoint != copy
        assert checkpoint.tensors != copy.tensors
        assert len({checkpoint, copy}) == 2

    def test_values_are_frozen(self, checkpoint: Checkpoint) -> None:
        report = summarize(checkpoint)
        for value, name in (
            (checkpoint, "source"),
            (checkpoint.shards[0], "path"),
            (checkpoint.tensors[0], "name"),
            (checkpoint.traffic, "requests"),
            (report, "source"),
            (report.components[0], "encodings"),
        ):
            with pytest.raises(FrozenInstanceError):
                setattr(value, name, "other")
