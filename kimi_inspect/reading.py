"""Reads the headers of many shards at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager

from attrs import frozen

from kimi_inspect.errors import FormatError, KimiInspectError, SourceError
from kimi_inspect.planning import run
from kimi_inspect.safetensors import Header, read_header
from kimi_inspect.sources import FileStore, ListedFile
from kimi_inspect.values import Progress, ProgressCallback

__all__ = ["ReadShard", "read_shards"]

FIRST_READ = 1 << 20
"""Bytes of the first read while few headers have been seen."""

ENOUGH_SEEN = 8
"""Headers after which the longest of them sets the first read; one alone may be a small one."""


@frozen(kw_only=True)
class ReadShard:
    """A shard as it was found: its header, or why there is none."""

    file: ListedFile
    file_bytes: int
    header: Header | None = None
    error: KimiInspectError | None = None


class _ReadAhead:
    """How much to read at first: the longest header seen so far and a little more, so that one request does.

    For Kimi K3.1 this reads 1.1 times the header bytes; 1 MiB for every shard would read 1.33 times. Threads need no
    lock: a value a moment old costs a few bytes or one request.
    """

    def __init__(self) -> None:
        self._seen = 0
        self._longest = 0

    @property
    def bytes(self) -> int:
        """Length of the next first read."""
        return FIRST_READ if self._seen < ENOUGH_SEEN else self._longest + self._longest // 64

    def saw(self, header: Header) -> None:
        """Learn from a header."""
        self._longest = max(self._longest, header.header_bytes)
        self._seen += 1


def read_shards(
    store: FileStore,
    files: Sequence[ListedFile],
    *,
    max_workers: int,
    max_header_bytes: int,
    progress: ProgressCallback | None = None,
) -> list[ReadShard]:
    """Read the header of each file, `max_workers` at a time; return them in the order of `files`.

    A file that cannot be read is returned with its error. What `progress` raises cancels the rest.
    """
    ahead = _ReadAhead()
    notify = progress or (lambda _: None)
    with _pool(store, max_workers) as pool:
        futures = {pool.submit(_read_shard, store, file, ahead, max_header_bytes): file for file in files}
        notify(Progress(phase="headers", done=0, total=len(files), unit="files"))
        for done, future in enumerate(as_completed(futures), 1):
            future.result()
            notify(Progress(phase="headers", done=done, total=len(files), unit="files", path=futures[future].path))
        return [future.result() for future in futures]


@contextmanager
def _pool(store: FileStore, max_workers: int) -> Iterator[ThreadPoolExecutor]:
    """Give a pool of threads that ends soon, and tells the store so, when the caller's thread is interrupted."""
    pool = ThreadPoolExecutor(max_workers, thread_name_prefix="kimi-inspect")
    try:
        yield pool
    except BaseException:
        store.cancel()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _read_shard(store: FileStore, file: ListedFile, ahead: _ReadAhead, max_header_bytes: int) -> ReadShard:
    size = file.size or 0
    try:
        source = store.open(file)
        while True:
            size = source.size
            plan = read_header(size, file=file.path, first_read=ahead.bytes, max_header_bytes=max_header_bytes)
            header = run(plan, source.read)
            # An answer may tell another size than the listing did; the header is then judged by the true one.
            if source.size == size:
                break
    except (SourceError, FormatError) as error:
        return ReadShard(file=file, file_bytes=size, error=error)
    ahead.saw(header)
    return ReadShard(file=file, file_bytes=size, header=header)
