"""Hashes many files at once: on threads here, or on whatever an executor reaches."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from attrs import field, frozen

from kimi_inspect.errors import InvalidSourceError
from kimi_inspect.hashing import Digested, DigestTask, Mark, digest_file
from kimi_inspect.journal import Memory
from kimi_inspect.tree import look_at
from kimi_inspect.values import Progress, ProgressCallback

__all__ = ["Answer", "Job", "Means", "digest_all"]

TRIES = 2
"""Times that an executor is given a file; after that it is hashed here."""

SMALL_BYTES = 16 * 1024 * 1024

GLANCE = 0.2
"""Seconds between two reports of progress while no file is finished."""


@frozen(kw_only=True)
class Job:
    """A file that is to be hashed.

    Attributes:
        path: what to call it.
        file: where it is.
        mark: what it was when it was looked at.
        algorithms: which digests are wanted.
    """

    path: str
    file: Path
    mark: Mark
    algorithms: tuple[str, ...]

    def task(self) -> DigestTask:
        """Make the unit of work, unlike any made before."""
        return DigestTask(path=str(self.file.absolute()), algorithms=self.algorithms, nonce=uuid.uuid4().hex)

    def done_by(self, result: object) -> bool:
        """Whether a result is the whole answer."""
        if not isinstance(result, Digested) or result.problem is not None:
            return False
        return tuple(algorithm for algorithm, _ in result.digests) == self.algorithms and result.bytes == self.mark.size


@frozen(kw_only=True)
class Answer:
    """What is known of a file now.

    Attributes:
        digests: by algorithm; none if there is a problem.
        hashed: bytes that were hashed for it; 0 if its digests were remembered.
        problem: why there is no digest, or None.
        changed: the problem is that somebody writes to the file.
    """

    digests: Mapping[str, str] = field(factory=dict)
    hashed: int = 0
    problem: str | None = None
    changed: bool = False


@frozen(kw_only=True)
class Means:
    """How files are hashed.

    Attributes:
        memory: digests that are known, and where new ones are kept.
        max_workers: files at a time on this machine; None for as many as there are processors.
        executor: who hashes instead of threads here; the files have to be there under the same paths. One that it
            cannot do, because a worker died or does not see it, is done here in the end.
        notify: is told of progress, in bytes, in the caller's thread.
    """

    memory: Memory
    max_workers: int | None = field(default=None)
    executor: Executor | None = None
    notify: ProgressCallback = lambda _: None

    @max_workers.validator
    def _some(self, _attribute: object, value: object) -> None:
        if value is not None and (type(value) is not int or value < 1):
            raise InvalidSourceError("no number of workers", expected="a number from 1 on, or None", actual=repr(value))


class _StoppedError(Exception):
    """The caller wants no more."""


class _Meter:
    """Counts hashed bytes over threads, and tells the caller of them in the caller's own thread."""

    def __init__(self, total: int, notify: ProgressCallback) -> None:
        self._total = total
        self._notify = notify
        self._done = 0
        self._lock = threading.Lock()
        self.stopped = False

    def add(self, count: int) -> None:
        """Count more bytes; called by those who hash."""
        if self.stopped:
            raise _StoppedError
        with self._lock:
            self._done += count

    def report(self, path: str | None = None) -> None:
        """Tell how far it is."""
        self._notify(Progress(phase="hashing", done=self._done, total=self._total, unit="bytes", path=path))


def digest_all(jobs: Sequence[Job], means: Means) -> Iterator[tuple[Job, Answer]]:
    """Find the digests of files; give each as soon as it is known, remembered ones first.

    Small files are hashed first, then the largest, so that none of those is left for the end.
    """
    unknown: list[Job] = []
    for job in jobs:
        known = {name: means.memory.recall(job.path, job.mark, name) for name in job.algorithms}
        digests = {name: digest for name, digest in known.items() if digest is not None}
        if len(digests) == len(job.algorithms):
            yield job, Answer(digests=digests)
        else:
            unknown.append(job)
    left: Sequence[Job] = sorted(unknown, key=lambda job: (job.mark.size > SMALL_BYTES, -job.mark.size))
    meter = _Meter(sum(job.mark.size for job in left), means.notify)
    if left:
        meter.report()
    if means.executor is not None:
        left = yield from _elsewhere(left, means, means.executor, meter)
    yield from _here(left, means, meter)


def _answer(job: Job, result: Digested, memory: Memory) -> Answer:
    """Take a result, and remember it, unless the file is no longer the one that was looked at."""
    if result.problem is not None:
        return Answer(problem=result.problem, changed=result.changed)
    if not job.done_by(result) or look_at(job.file).mark != job.mark:
        return Answer(problem="it changed while it was read", changed=True)
    for algorithm, digest in result.digests:
        memory.remember(job.path, job.mark, algorithm, digest)
    return Answer(digests=dict(result.digests), hashed=result.bytes)


class _Finished:
    """Futures that are done, in the order in which they came to be: however many wait, none is looked at twice."""

    def __init__(self) -> None:
        self._done: SimpleQueue[Future[Digested]] = SimpleQueue()

    def follow(self, future: Future[Digested]) -> Future[Digested]:
        """Give a future back when it is done."""
        future.add_done_callback(self._done.put)
        return future

    def some(self, seconds: float | None) -> list[Future[Digested]]:
        """Return those that are done since the last call; wait for one, for ever if `seconds` is None."""
        found: list[Future[Digested]] = []
        with suppress(Empty):
            found.append(self._done.get(timeout=seconds))
            while True:
                found.append(self._done.get_nowait())
        return found


def _processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _here(jobs: Sequence[Job], means: Means, meter: _Meter) -> Iterator[tuple[Job, Answer]]:
    pool = ThreadPoolExecutor(means.max_workers or _processors(), thread_name_prefix="kimi-inspect")
    try:
        finished = _Finished()
        pending = {finished.follow(pool.submit(digest_file, job.task(), meter.add)): job for job in jobs}
        while pending:
            futures = finished.some(GLANCE)
            if not futures:
                meter.report()
            # All of them are remembered before anybody is told, who may end it all.
            done = [(pending.pop(future), future.result()) for future in futures]
            for job, answer in [(job, _answer(job, result, means.memory)) for job, result in done]:
                meter.report(job.path)
                yield job, answer
    finally:
        meter.stopped = True
        pool.shutdown(cancel_futures=True)


def _elsewhere(
    jobs: Sequence[Job], means: Means, executor: Executor, meter: _Meter
) -> Generator[tuple[Job, Answer], None, Sequence[Job]]:
    """Let an executor hash; return what it could not do."""
    left: list[Job] = []
    finished = _Finished()
    pending: dict[Future[Digested], tuple[Job, int]] = {}

    def give(job: Job, tries: int) -> None:
        try:
            future = executor.submit(digest_file, job.task())
        except Exception:  # noqa: BLE001 - a pool that is broken or closed says so in words of its own
            left.append(job)
        else:
            pending[future] = (job, tries)
            finished.follow(future)

    try:
        for job in jobs:
            give(job, 1)
        while pending:
            for future in finished.some(None):
                job, tries = pending.pop(future)
                result = _result(future, job)
                if result is None and tries < TRIES:
                    give(job, tries + 1)
                elif result is None:
                    left.append(job)
                else:
                    answer = _answer(job, result, means.memory)
                    meter.add(job.mark.size)
                    meter.report(job.path)
                    yield job, answer
    finally:
        for future in pending:
            future.cancel()
    return left


def _result(future: Future[Digested], job: Job) -> Digested | None:
    """Return what a worker found; None where it was lost, or does not see the file: then it is done again."""
    try:
        result = future.result()
    except Exception:  # noqa: BLE001 - a worker may be lost in as many ways as there are executors
        return None
    return result if job.done_by(result) else None
