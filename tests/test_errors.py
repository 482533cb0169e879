from __future__ import annotations

import ast
import copy
import inspect
import itertools
import pickle
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from contracts.checks import REPO

import kimi_inspect
import kimi_inspect.http_status
from kimi_inspect import errors, open_checkpoint
from kimi_inspect.addresses import public_url
from kimi_inspect.errors import (
    AuthenticationError,
    CheckpointError,
    FormatError,
    InvalidSourceError,
    KimiInspectError,
    RateLimitedError,
    SourceError,
    SourceFileNotFoundError,
    TransportError,
)
from kimi_inspect.http_status import UnsatisfiableRangeError
from kimi_inspect.testing import Fault, LoopbackHub, faults
from kimi_inspect.testing.wire import Answer
from kimi_inspect.transport import MAX_TRIES, MAX_WAIT, Transport

# From the contract: what callers may write after `except`.
FAMILIES: dict[type[KimiInspectError], tuple[type[Exception], list[str]]] = {
    SourceError: (
        OSError,
        [
            "RepositoryNotFoundError",
            "GatedRepositoryError",
            "AuthenticationError",
            "RevisionNotFoundError",
            "SourceFileNotFoundError",
            "RateLimitedError",
            "RangeNotSupportedError",
            "TransportError",
            "OfflineError",
        ],
    ),
    FormatError: (
        ValueError,
        [
            "NotWeightsError",
            "TruncatedError",
            "MalformedHeaderError",
            "HeaderTooLargeError",
            "UnsupportedVersionError",
        ],
    ),
    CheckpointError: (ValueError, ["AmbiguousCheckpointError", "UnsafePathError", "NoCheckpointError"]),
    InvalidSourceError: (ValueError, []),
}

ALL = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, KimiInspectError)] + [
    UnsatisfiableRangeError
]

PUBLIC: list[str] = vars(kimi_inspect)["__all__"]
X = "x.safetensors"
NEW_YEAR_2027 = 1798761600.0


@pytest.mark.parametrize(
    ("family", "builtin", "name"),
    [(family, builtin, name) for family, (builtin, names) in FAMILIES.items() for name in [family.__name__, *names]],
)
def test_families(family: type[KimiInspectError], builtin: type[Exception], name: str) -> None:
    kind = getattr(kimi_inspect, name)
    assert kind is getattr(errors, name)
    assert issubclass(kind, family)
    assert issubclass(kind, builtin)
    assert issubclass(kind, KimiInspectError)
    other = ValueError if builtin is OSError else OSError
    assert not issubclass(kind, other)


def test_there_is_no_other_error() -> None:
    told = {"KimiInspectError", *(family.__name__ for family in FAMILIES)}
    told |= {name for _, names in FAMILIES.values() for name in names}
    assert set(errors.__all__) == told
    assert {kind.__name__ for kind in ALL} == told | {"UnsatisfiableRangeError"}
    assert told <= set(PUBLIC)


DETAILS: dict[str, Any] = {"file": "a/b.safetensors", "offset": 1234567, "expected": "8 bytes", "actual": b"\x00"}


def make(kind: type[KimiInspectError]) -> KimiInspectError:
    error = kind("it is wrong; mend it", **DETAILS, retryable=not kind.retryable)
    for name in kind._extra:
        setattr(error, name, 7)
    return error


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize(
    "copied",
    [
        *(lambda error, protocol=protocol: pickle.loads(pickle.dumps(error, protocol)) for protocol in range(6)),  # noqa: S301 - our own
        copy.copy,
        copy.deepcopy,
    ],
    ids=[*range(6), "copy", "deepcopy"],
)
def test_copies_are_alike(kind: type[KimiInspectError], copied: Any) -> None:
    error = make(kind)
    other = copied(error)
    assert type(other) is kind
    assert vars(other) == vars(error)
    assert (str(other), other.args) == (str(error), error.args)


@pytest.mark.parametrize("kind", ALL)
def test_what_an_error_carries(kind: type[KimiInspectError]) -> None:
    error = make(kind)
    assert {name: getattr(error, name) for name in DETAILS} == DETAILS
    assert error.problem == "it is wrong; mend it"
    bare = kind("x")
    assert {name: getattr(bare, name) for name in DETAILS} == dict.fromkeys(DETAILS)
    assert bare.retryable is kind.retryable
    assert [getattr(bare, name) for name in kind._extra] == [getattr(kind, name, None) for name in kind._extra]


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([], "it is wrong"),
        (["file"], "a/b.safetensors: it is wrong"),
        (["offset"], "at byte 1,234,567: it is wrong"),
        (["file", "offset"], "a/b.safetensors at byte 1,234,567: it is wrong"),
        (["expected"], "it is wrong (expected 8 bytes)"),
        (["actual"], "it is wrong (got b'\\x00')"),
        (
            ["file", "offset", "expected", "actual"],
            "a/b.safetensors at byte 1,234,567: it is wrong (expected 8 bytes, got b'\\x00')",
        ),
    ],
)
def test_what_an_error_says(kind: type[KimiInspectError], given: list[str], text: str) -> None:
    assert str(kind("it is wrong", **{name: DETAILS[name] for name in given})) == text


def test_nothing_is_something() -> None:
    assert str(TransportError("wrong", offset=0, expected=0, actual="")) == "at byte 0: wrong (expected 0, got )"


def test_only_what_may_pass_is_retryable() -> None:
    assert {kind for kind in ALL if kind.retryable} == {RateLimitedError, TransportError}


@pytest.mark.parametrize("detail", ["file", "expected", "actual"])
def test_an_error_commands_no_terminal(detail: str) -> None:
    # Paths, digests and sizes come from strangers, and errors are printed.
    details: dict[str, Any] = {detail: "a\x1b[2J\x9b2J\nb"}
    text = str(TransportError("wrong", **details))
    assert text.isprintable()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://huggingface.co/a/b", "https://huggingface.co/a/b"),
        ("http://127.0.0.1:80/x?token=word#word", "http://127.0.0.1:80/x"),
        ("https://user:word@example.com/x", "https://example.com/x"),
        ("https://word@example.com:8443/x", "https://example.com:8443/x"),
        ("https://example.com/\x1b[2J", "https://example.com/\\x1b[2J"),
    ],
)
def test_an_address_without_secrets(url: str, shown: str) -> None:
    assert public_url(url) == shown


class TestAnswers:
    """What an answer becomes, and how long it makes us wait."""

    @pytest.fixture
    def hub(self) -> Iterator[LoopbackHub]:
        with LoopbackHub(plain_files={X: b"0123456789"}) as hub:
            yield hub

    @pytest.fixture
    def waits(self) -> list[float]:
        return []

    @pytest.fixture
    def transport(self, waits: list[float], monkeypatch: pytest.MonkeyPatch) -> Transport:
        monkeypatch.setattr(kimi_inspect.http_status, "time", SimpleNamespace(time=lambda: NEW_YEAR_2027))

        def pause(seconds: float) -> bool:
            waits.append(seconds)
            return False

        return Transport(pause=pause)

    @staticmethod
    def answer(status: int, *headers: tuple[str, str]) -> Fault:
        return Fault("answer", lambda _: Answer(status, headers), lambda _: True)

    @pytest.mark.parametrize(
        ("status", "kind"),
        [
            (400, TransportError),
            (401, AuthenticationError),
            (403, AuthenticationError),
            (404, SourceFileNotFoundError),
            (410, SourceFileNotFoundError),
            (418, TransportError),
            (501, TransportError),
            (204, TransportError),
            (304, TransportError),
        ],
    )
    def test_failures_that_do_not_pass(
        self, hub: LoopbackHub, transport: Transport, waits: list[float], status: int, kind: type[SourceError]
    ) -> None:
        hub.play(self.answer(status), times=None)
        with pytest.raises(kind) as caught:
            transport.read_range(hub.plain_url(X), 0, 10, file=X)
        assert type(caught.value) is kind
        assert (caught.value.file, caught.value.actual, caught.value.retryable) == (X, f"status {status}", False)
        assert (len(hub.log), waits) == (1, [])

    @pytest.mark.parametrize(
        ("fault", "least", "most"),
        [
            (faults.rate_limited(retry_after=0), 0, 0),
            (faults.rate_limited(retry_after=3), 3, 3),
            (faults.rate_limited(retry_after=int(MAX_WAIT)), MAX_WAIT, MAX_WAIT),
            (faults.rate_limited(retry_after="Fri, 01 Jan 2027 00:00:10 GMT"), 10, 10),
            (faults.rate_limited(retry_after="Fri, 01 Jan 2027 01:00:10 +0100"), 10, 10),
            (faults.rate_limited(retry_after="Thu, 31 Dec 2026 00:00:00 GMT"), 0, 0),
            (faults.rate_limited(reset=3), 3, 5),
            (faults.rate_limited(retry_after=2, reset=30), 2, 2),
            (faults.rate_limited(retry_after="soon", reset=3), 3, 5),
            # Nothing told, or nothing that can be read: our own patience.
            (faults.rate_limited(), 0.1, 8),
            (faults.rate_limited(retry_after="soon"), 0.1, 8),
            (faults.rate_limited(retry_after="-1"), 0.1, 8),
            (faults.rate_limited(retry_after=""), 0.1, 8),
        ],
        ids=itertools.count(),
    )
    def test_waiting_as_long_as_told(
        self, hub: LoopbackHub, transport: Transport, waits: list[float], fault: Fault, least: float, most: float
    ) -> None:
        hub.play(fault)
        assert transport.read_range(hub.plain_url(X), 0, 10, file=X).data == b"0123456789"
        assert len(hub.log) == 2
        assert len(waits) == 1
        assert least <= waits[0] <= most

    @pytest.mark.parametrize(
        ("fault", "told"),
        [
            (faults.rate_limited(retry_after=int(MAX_WAIT) + 1), MAX_WAIT + 1),
            (faults.rate_limited(retry_after=10**9 - 1), 10**9 - 1),
            (faults.rate_limited(retry_after="Fri, 01 Jan 2027 01:00:00 GMT"), 3600),
            (faults.rate_limited(reset=300), 300),
        ],
        ids=itertools.count(),
    )
    def test_waiting_no_longer_than_a_limit(
        self, hub: LoopbackHub, transport: Transport, waits: list[float], fault: Fault, told: float
    ) -> None:
        hub.play(fault, times=None)
        with pytest.raises(RateLimitedError) as caught:
            transport.read_range(hub.plain_url(X), 0, 10, file=X)
        assert caught.value.retry_after is not None
        assert told <= caught.value.retry_after <= told + 2
        assert caught.value.retryable
        assert (len(hub.log), waits) == (1, [])

    def test_a_server_that_never_has_enough(self, hub: LoopbackHub, transport: Transport, waits: list[float]) -> None:
        hub.play(faults.rate_limited(retry_after=1), times=None)
        with pytest.raises(RateLimitedError) as caught:
            transport.read_range(hub.plain_url(X), 0, 10, file=X)
        assert caught.value.retry_after == 1
        assert (len(hub.log), waits) == (MAX_TRIES, [1.0] * (MAX_TRIES - 1))

    @pytest.mark.parametrize(("headers", "most"), [([("Retry-After", "20")], 20), ([], 8)])
    def test_a_server_that_is_down_may_tell_too(
        self,
        hub: LoopbackHub,
        transport: Transport,
        waits: list[float],
        headers: list[tuple[str, str]],
        most: float,
    ) -> None:
        hub.play(self.answer(503, *headers))
        transport.read_range(hub.plain_url(X), 0, 10, file=X)
        assert len(waits) == 1
        assert (waits[0] == most) if headers else (0 < waits[0] <= most)

    @pytest.mark.parametrize("transport", [Transport(pause=lambda _: True), Transport()], ids=["pause", "event"])
    def test_a_cancelled_wait_is_the_end(self, hub: LoopbackHub, transport: Transport) -> None:
        hub.play(faults.unavailable(), times=None)
        transport.cancel()
        with pytest.raises(TransportError, match="cancelled"):
            transport.read_range(hub.plain_url(X), 0, 10, file=X)
        assert len(hub.log) <= 1


class TestRoot:
    """What stands at the root of the package."""

    def test_every_name_is_there(self) -> None:
        assert [name for name in PUBLIC if getattr(kimi_inspect, name, None) is None] == []
        assert dir(kimi_inspect) == sorted(PUBLIC) == sorted(set(PUBLIC))

    def test_no_other_name(self) -> None:
        with pytest.raises(AttributeError, match="no_such_name"):
            kimi_inspect.no_such_name  # type: ignore[attr-defined]  # noqa: B018 - the access is the test

    def test_the_stub_says_the_same(self) -> None:
        stub = Path(kimi_inspect.__file__).with_suffix(".pyi")
        names: dict[str, str | None] = {}
        for node in ast.parse(stub.read_text("utf-8")).body:
            if isinstance(node, ast.ImportFrom):
                # Without `as` a name in a stub is not for others.
                assert [alias.name for alias in node.names] == [alias.asname for alias in node.names]
                names |= {alias.name: node.module for alias in node.names}
        assert sorted(names) == sorted(PUBLIC)
        at_run_time = {name: getattr(kimi_inspect, name) for name in PUBLIC}
        assert {name: getattr(import_module(str(home)), name) for name, home in names.items()} == at_run_time

    def test_no_module_bears_the_name_of_a_function(self) -> None:
        folder = Path(kimi_inspect.__file__).parent
        modules = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
        assert not modules & set(PUBLIC)

    def test_importing_it_loads_nothing_heavy(self) -> None:
        heavy = [
            "attrs",
            "attr",
            "gguf",
            "httpx",
            "httpx2",
            "huggingface_hub",
            "msgspec",
            "numpy",
            "rich",
            "safetensors",
        ]
        script = f"import sys, kimi_inspect; dir(kimi_inspect); print([n for n in {heavy} if n in sys.modules])"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout == "[]\n"


def test_errors_are_caught_by_their_builtin_kind(hub: LoopbackHub) -> None:
    with pytest.raises(OSError, match="no such repository"):
        open_checkpoint("acme/none", endpoint=hub.endpoint)
    with pytest.raises(ValueError, match="names no checkpoint"):
        open_checkpoint("", endpoint=hub.endpoint)
    with pytest.raises(ValueError, match="no such set"):
        open_checkpoint(f"{REPO}:nothing", endpoint=hub.endpoint)
