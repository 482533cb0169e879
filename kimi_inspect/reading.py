"""Reads the headers of many shards at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock

from attrs import frozen

from kimi_inspect.errors import FormatError, KimiInspectError, SourceError, TransportError
from kimi_inspect.header import Header
from kimi_inspect.planning import Plan, run
from kimi_inspect.safetensors import layout_of, read_header
from kimi_inspect.sources import ByteSource, FileStore, ListedFile
from kimi_inspect.values import Progress, ProgressCallback

__all__ = ["ReadShard", "read_shards", "workers"]

FIRST_READ = 1 << 20
"""Bytes of the first read while few headers have been seen."""

ENOUGH_SEEN = 8
"""Headers after which the longest of them sets the first read; one alone may be a small one."""

LAYOUTS_KEPT = 4
SIZES_TRIED = 3


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


class _HeaderReader:
    """Reads one shard's header at a call, from any thread."""

    def __init__(self, store: FileStore, max_header_bytes: int) -> None:
        self._store = store
        self._max_header_bytes = max_header_bytes
        self._ahead = _ReadAhead()
        # Layers of one kind have the same entries under other names: a few layouts serve all shards.
        self._layout = lru_cache(maxsize=LAYOUTS_KEPT)(layout_of)
        # The interpreter runs one parser at a time anyway; taking turns keeps memory small and the readers going.
        self._turn = Lock()

    def read(self, file: ListedFile) -> ReadShard:
        """Read a header, or say why it cannot be read."""
        try:
            source = self._store.open(file)
            for _ in range(SIZES_TRIED):
                size = source.size
                header, error = self._try(file, source, size)
                # An answer may tell another size than the listing did; the header is then judged by the true one.
                if source.size == size:
                    return ReadShard(file=file, file_bytes=size, header=header, error=error)
            raise TransportError("the server tells another size at every answer", file=file.path)
        except SourceError as failure:
            return ReadShard(file=file, file_bytes=file.size or 0, error=failure)

    def _try(self, file: ListedFile, source: ByteSource, size: int) -> tuple[Header | None, KimiInspectError | None]:
        """Read the header, taking the file to be of that size."""
        try:
            header = run(self._plan(file, size), source.read, turn=self._turn)
        except (SourceError, FormatError) as error:
            return None, error
        self._ahead.saw(header)
        return header, None

    def _plan(self, file: ListedFile, size: int) -> Plan[Header]:
        return read_header(
            size,
            file=file.path,
            first_read=self._ahead.bytes,
            max_header_bytes=self._max_header_bytes,
            layout=self._layout,
        )


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
    reader = _HeaderReader(store, max_header_bytes)
    notify = progress or (lambda _: None)
    with workers(store, max_workers) as pool:
        futures = {pool.submit(reader.read, file): file for file in files}
        notify(Progress(phase="headers", done=0, total=len(files), unit="files"))
        for done, future in enumerate(as_completed(futures), 1):
            future.result()
            notify(Progress(phase="headers", done=done, total=len(files), unit="files", path=futures[future].path))
        return [future.result() for future in futures]


@contextmanager
def workers(store: FileStore, max_workers: int) -> Iterator[ThreadPoolExecutor]:
    """Give a pool of threads that ends soon, and tells the store so, when the caller's thread is interrupted."""
    pool = ThreadPoolExecutor(max_workers, thread_name_prefix="kimi-inspect")
    try:
        yield pool
    except BaseException:
        store.cancel()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
