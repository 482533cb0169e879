"""Other machines and processes: any executor hashes, and what a lost worker had is done again."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from verified import flipped, sha256, shard_name, small_kimi, statuses, write

import kimi_inspect as ki
from kimi_inspect.hashing import Digested, DigestTask, digest_file

FILES = small_kimi()
TOTAL = sum(map(len, FILES.values()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "model", FILES)


@pytest.fixture
def manifest(tmp_path: Path) -> ki.Manifest:
    return ki.lock(write(tmp_path / "copy", FILES), journal=False)


class Played(Executor):
    """An executor that does what it is told to, in the caller's own thread; tasks and results are pickled."""

    def __init__(self, play: Callable[[DigestTask, int], Digested]) -> None:
        self._play = play
        self.given: list[DigestTask] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        assert (fn, kwargs) == (digest_file, {})
        (task,) = pickle.loads(pickle.dumps(args))  # noqa: S301
        self.given.append(task)
        future: Future[Any] = Future()
        try:
            future.set_result(pickle.loads(pickle.dumps(self._play(task, len(self.given)))))  # noqa: S301
        except BaseException as error:  # noqa: BLE001
            future.set_exception(error)
        return future


def well(task: DigestTask, _: int) -> Digested:
    return digest_file(task)


def test_any_executor_does_the_work(folder: Path, manifest: ki.Manifest) -> None:
    executor = Played(well)
    (folder / shard_name(2)).write_bytes(flipped(FILES[shard_name(2)], -2))
    seen: list[ki.Progress] = []
    found = ki.verify(folder, manifest, executor=executor, progress=seen.append)
    assert statuses(found.files) == dict.fromkeys(FILES, "ok") | {shard_name(2): "mismatch"}
    assert found.bytes_hashed == TOTAL
    assert len(executor.given) == len(FILES)
    assert len({task.nonce for task in executor.given}) == len(FILES)
    assert all(Path(task.path).is_absolute() for task in executor.given)
    assert seen[-1].done == seen[-1].total == TOTAL
    # What others have found is remembered as well.
    again = ki.verify(folder, manifest, executor=executor)
    assert (again.bytes_hashed, len(executor.given)) == (0, len(FILES))


@pytest.mark.parametrize("error", [RuntimeError("worker lost"), CancelledError(), MemoryError(), ModuleNotFoundError()])
def test_what_fails_once_is_given_again(error: Exception, folder: Path, manifest: ki.Manifest) -> None:
    def second_try(task: DigestTask, count: int) -> Digested:
        if count <= len(FILES):
            raise error
        return digest_file(task)

    executor = Played(second_try)
    assert ki.verify(folder, manifest, executor=executor).ok
    assert len(executor.given) == 2 * len(FILES)


def test_what_fails_always_is_done_here(folder: Path, manifest: ki.Manifest) -> None:
    def never(_: DigestTask, __: int) -> Digested:
        raise RuntimeError

    executor = Played(never)
    found = ki.verify(folder, manifest, executor=executor)
    assert (found.ok, found.bytes_hashed) == (True, TOTAL)
    assert len(executor.given) == 2 * len(FILES)


ANSWERS: list[Any] = [
    Digested(problem="No such file or directory"),
    Digested(digests=(("sha256", "0" * 64),), bytes=3),
    Digested(digests=(("git-sha1", "0" * 40),), bytes=len(FILES[shard_name(1)])),
    Digested(),
    None,
    "done",
]


@pytest.mark.parametrize("answer", ANSWERS, ids=repr)
def test_an_answer_that_is_none_is_not_believed(answer: Any, folder: Path, manifest: ki.Manifest) -> None:
    """The worker does not see the folder, or sees another file there."""
    assert ki.verify(folder, manifest, executor=Played(lambda *_: answer)).ok


def test_a_closed_pool(folder: Path, manifest: ki.Manifest) -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    assert ki.verify(folder, manifest, executor=pool).ok


def test_lock_with_an_executor(folder: Path, manifest: ki.Manifest) -> None:
    executor = Played(well)
    assert ki.lock(folder, executor=executor).files == manifest.files
    assert len(executor.given) == len(FILES)


def test_an_interrupt_cancels_what_waits(folder: Path, manifest: ki.Manifest) -> None:
    futures: list[Future[Any]] = []

    class Slow(Executor):
        """Finishes the first task when it has all of them, and no other."""

        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            futures.append(Future())
            if len(futures) == len(FILES):
                futures[-1].set_result(fn(*args, **kwargs))
            return futures[-1]

    def stop(progress: ki.Progress) -> None:
        if progress.phase == "hashing" and progress.path:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ki.verify(folder, manifest, executor=Slow(), progress=stop)
    assert [future.cancelled() for future in futures] == [True] * (len(FILES) - 1) + [False]


@pytest.fixture
def processes() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        yield pool


def test_processes(folder: Path, manifest: ki.Manifest, processes: ProcessPoolExecutor) -> None:
    (folder / shard_name(1)).unlink()
    found = ki.verify(folder, manifest, executor=processes)
    assert statuses(found.files) == dict.fromkeys(FILES, "ok") | {shard_name(1): "missing"}
    assert {file.actual for file in found.having("ok")} == {sha256(FILES[file.path]) for file in found.having("ok")}


def test_a_process_that_dies(folder: Path, manifest: ki.Manifest, processes: ProcessPoolExecutor) -> None:
    """The pool is broken then for good: what it has not done is done here."""
    processes.submit(os.kill, processes.submit(os.getpid).result(), signal.SIGKILL)
    found = ki.verify(folder, manifest, executor=processes)
    assert (found.ok, found.bytes_hashed) == (True, TOTAL)
