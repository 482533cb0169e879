"""The cache among troubles and rivals: full disks, killed processes, many at once; its bound, place and secrets."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn, Self

import attrs
import pytest
from contracts.checks import REPO, TOKEN, check_numbers, usual_requests
from test_caching import HEADERS, check_cheap, kept, listed, look, parsed, seen, told

import kimi_inspect as ki
from kimi_inspect.caching import MAGIC, MAX_CACHE_BYTES, HeaderCache
from kimi_inspect.cli import main
from kimi_inspect.testing import HollowFile, LoopbackHub, Repository, kimi_gguf


@pytest.fixture(autouse=True)
def no_cache(clean_environment: Path) -> Path:
    """Keep headers, in the home that the test has of its own; return where."""
    return clean_environment / "assets" / "kimi_inspect" / "headers" / "v1"


@pytest.fixture
def folder(no_cache: Path) -> Path:
    return no_cache


@pytest.fixture
def cache(tmp_path: Path) -> HeaderCache:
    (tmp_path / "kept").mkdir()
    return HeaderCache(tmp_path / "kept", "https://hub.example")


def fails(*_arguments: Any, **_options: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, "No space left on device")


def a_file_for_the_folder(folder: Path, _: pytest.MonkeyPatch) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_bytes(b"")


def a_file_for_the_home(folder: Path, _: pytest.MonkeyPatch) -> None:
    folder.parents[3].write_bytes(b"")


def no_new_folder(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "mkdir", fails)


def no_new_file(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "mkstemp", fails)


def no_place_for_it(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "replace", fails)


def no_reading(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_bytes", fails)


def no_listing(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "scandir", fails)


def full_disk(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a write to a full disk fail after some bytes."""
    open_handle = os.fdopen

    class Full:
        def __init__(self, handle: int) -> None:
            self._file = open_handle(handle, "wb")

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

        def write(self, data: bytes) -> int:
            self._file.write(data[:10])
            fails()

    monkeypatch.setattr(os, "fdopen", lambda handle, _mode: Full(handle))


TROUBLES = [
    a_file_for_the_folder,
    a_file_for_the_home,
    no_new_folder,
    no_new_file,
    no_place_for_it,
    no_reading,
    no_listing,
    full_disk,
]


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.__name__)
def test_no_trouble_with_it_reaches_the_caller(
    hub: LoopbackHub,
    kimi: dict[str, HollowFile],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    trouble: Callable[[Path, pytest.MonkeyPatch], None],
) -> None:
    expected = seen(look(hub, cache=False))
    with monkeypatch.context() as troubled:
        trouble(folder, troubled)
        for _ in range(2):
            again = look(hub)
            assert seen(again) == expected
            check_numbers(again, kimi)
        assert main(["cache"]) == 0
    # Nothing half-written stays behind.
    left = kept(folder) if folder.is_dir() else {}
    assert all(data.startswith(MAGIC) for data in left.values())
    assert all(len(name) == 64 for name in left)


def test_an_interrupt_while_writing_leaves_nothing(cache: HeaderCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    path, data = HEADERS["gguf"]
    with monkeypatch.context() as interrupted:
        interrupted.setattr(Path, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            cache.put(listed(data), parsed(path, data))
    assert kept(cache.folder) == {}


# ---- many at once

LOOK = f"""
import sys
import kimi_inspect as ki

def look(endpoint):
    return ki.open_checkpoint("{REPO}", endpoint=endpoint, token=False)
"""

MANY_LOOKS = (
    LOOK
    + """
import shutil
from kimi_inspect.caching import cache_folder
for turn in range(12):
    if turn % 4 == 3:
        shutil.rmtree(cache_folder(), ignore_errors=True)
    checkpoint = look(sys.argv[1])
    assert len(checkpoint.tensors) == int(sys.argv[2]), len(checkpoint.tensors)
    assert sum(shard.tensor_bytes for shard in checkpoint.shards) == int(sys.argv[3])
    assert checkpoint.complete and not checkpoint.findings, checkpoint.findings
"""
)

DYING = (
    LOOK
    + """
import os, signal

class Dying:
    def __init__(self, handle):
        self.handle = handle
    def __enter__(self):
        return self
    def __exit__(self, *_):
        pass
    def write(self, data):
        os.write(self.handle, bytes(data)[: max(1, len(data) // 2)])
        if len(data) > 100:
            os.kill(os.getpid(), signal.SIGKILL)

open_handle = os.fdopen
os.fdopen = lambda handle, mode="r", *more, **options: (
    Dying(handle) if mode == "wb" else open_handle(handle, mode, *more, **options)
)
look(sys.argv[1])
"""
)


def start(script: str, *arguments: object) -> subprocess.Popen[bytes]:
    """Start a process with this environment and these settings."""
    return subprocess.Popen([sys.executable, "-W", "error", "-c", script, *map(str, arguments)], stderr=subprocess.PIPE)


def test_processes_that_fill_empty_and_read_it_at_once(hub: LoopbackHub, folder: Path) -> None:
    first = look(hub, cache=False)
    total = sum(shard.tensor_bytes for shard in first.shards)
    processes = [start(MANY_LOOKS, hub.endpoint, len(first.tensors), total) for _ in range(4)]
    assert [process.communicate(timeout=100)[1] for process in processes] == [b""] * 4
    assert [process.returncode for process in processes] == [0] * 4
    look(hub)
    assert seen(look(hub)) == seen(first)
    check_cheap(hub, look(hub))
    assert {len(name) for name in kept(folder)} == {64}


def test_a_process_that_is_killed_while_it_writes(hub: LoopbackHub, kimi: dict[str, HollowFile], folder: Path) -> None:
    dying = start(DYING, hub.endpoint)
    dying.communicate(timeout=100)
    assert dying.returncode == -signal.SIGKILL
    assert kept(folder)
    assert {len(name) for name in kept(folder)} != {64}, "it has left no half-written file"
    again = look(hub)
    assert again.traffic.requests == usual_requests(kimi)
    check_numbers(again, kimi)
    check_cheap(hub, look(hub))


@pytest.mark.parametrize("max_bytes", [0, 1500, MAX_CACHE_BYTES])
def test_threads(cache: HeaderCache, max_bytes: int) -> None:
    bounded = attrs.evolve(cache, max_bytes=max_bytes)
    samples = [
        (listed(data, sha256=f"{number:064x}"), parsed(path, data))
        for number, (path, data) in enumerate(HEADERS.values())
    ]
    expected = [told(header) for _, header in samples]

    def work(turn: int) -> None:
        for step in range(30):
            number = (turn + step) % len(samples)
            file, header = samples[number]
            bounded.put(file, header)
            bounded.trim()
            again = bounded.get(file, max_header_bytes=10**6)
            assert again is None or told(again) == expected[number]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    bounded.trim()
    assert sum(map(len, kept(cache.folder).values())) <= max_bytes


# ---- its bound


def test_what_was_longest_unused_goes_first(cache: HeaderCache) -> None:
    path, data = HEADERS["gguf"]
    files = [listed(data, sha256=letter * 64) for letter in "abcd"]
    names: list[str] = []
    for age, file in enumerate(files):
        cache.put(file, parsed(path, data))
        (name,) = {*kept(cache.folder)} - {*names}
        names.append(name)
        os.utime(cache.folder / name, (1000 + age, 1000 + age))
    (cache.folder / "tmphalf").write_bytes(bytes(10))
    os.utime(cache.folder / "tmphalf", (1, 1))
    size = len(kept(cache.folder)[names[0]])
    attrs.evolve(cache, max_bytes=4 * size).trim()
    assert {*kept(cache.folder)} == {*names}
    # One that was used is younger than those that were not.
    assert cache.get(files[0], max_header_bytes=10**6) is not None
    attrs.evolve(cache, max_bytes=2 * size).trim()
    assert {*kept(cache.folder)} == {names[0], names[3]}
    attrs.evolve(cache, max_bytes=size - 1).trim()
    assert kept(cache.folder) == {}


def test_a_call_leaves_no_more_than_the_bound(hub: LoopbackHub, folder: Path) -> None:
    look(hub)
    whole = {*kept(folder)}
    for name in ("a" * 64, "tmpdead"):
        with (folder / name).open("wb") as file:
            file.truncate(MAX_CACHE_BYTES)
        os.utime(folder / name, (5, 5))
    look(hub)
    assert {item.name for item in folder.iterdir()} == whole


# ---- its place, and what is in it


def test_the_command_that_shows_and_clears_it(
    hub: LoopbackHub, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    look(hub)
    size = sum(map(len, kept(folder).values()))
    assert main(["cache"]) == 0
    assert capsys.readouterr().out == f"{size:,} bytes in {folder}\n"
    assert main(["cache", "--clear"]) == 0
    assert capsys.readouterr().out == f"{size:,} bytes removed\n"
    assert kept(folder) == {}
    assert main(["cache", "--clear"]) == 0
    assert capsys.readouterr().out == "0 bytes removed\n"
    assert look(hub).traffic.requests > 2
    check_cheap(hub, look(hub))


@pytest.mark.parametrize(
    ("variable", "below"), [("HF_HOME", "assets/kimi_inspect"), ("HF_ASSETS_CACHE", "kimi_inspect")]
)
def test_it_lies_where_the_settings_say(tmp_path: Path, variable: str, below: str) -> None:
    place = tmp_path / "elsewhere"
    told = subprocess.run(
        [sys.executable, "-m", "kimi_inspect", "cache"],
        env={**os.environ, variable: str(place)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.startswith("0 bytes in ")
    assert (place / below / "headers") in Path(told.stdout.strip().removeprefix("0 bytes in ")).parents
    assert (place / below).is_dir()


def test_files_that_nobody_vouches_for_are_not_kept(folder: Path, tmp_path: Path) -> None:
    files = kimi_gguf("Q2_K", layers=2, experts=2, tokens=50, parts=2)
    (tmp_path / "local").mkdir()
    for path, file in files.items():
        file.write_to(tmp_path / "local" / path)
    with LoopbackHub(plain_files=files) as hub:
        for source in (tmp_path / "local", hub.plain_url(next(iter(files))), files):
            ki.open_checkpoint(source)
    assert not folder.exists()


def test_no_secret_is_kept(kimi: dict[str, HollowFile], clean_environment: Path) -> None:
    with LoopbackHub([Repository(REPO, kimi, private=True)], tokens=[TOKEN]) as hub:
        look(hub, token=TOKEN)
        check_cheap(hub, look(hub, token=TOKEN))
        cdn = hub.cdn_origin
    content = b"".join(
        item.read_bytes() + item.name.encode() for item in clean_environment.rglob("*") if item.is_file()
    )
    assert len(content) > 1000
    assert hub.endpoint.encode() in content
    for secret in (TOKEN, "Signature", "Bearer", "xet-bridge", cdn):
        assert secret.encode() not in content
