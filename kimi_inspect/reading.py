"""Reads the headers of many shards at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock

from attrs import evolve, field, frozen

from kimi_inspect.caching import HeaderCache
from kimi_inspect.embedded import find_embedded
from kimi_inspect.errors import FormatError, InvalidSourceError, KimiInspectError, SourceError, TransportError
from kimi_inspect.forward import Forward, StreamedSource
from kimi_inspect.gguf import FIRST_READ as FIRST_READ_OF_GGUF
from kimi_inspect.gguf import MAX_READ as MAX_READ_OF_GGUF
from kimi_inspect.gguf import GgufHeader, read_gguf_header
from kimi_inspect.header import MAX_HEADER_BYTES, Header
from kimi_inspect.planning import Plan, run
from kimi_inspect.safetensors import layout_of, read_header
from kimi_inspect.sidecars import ShardName
from kimi_inspect.sources import ByteSource, FileStore, ListedFile
from kimi_inspect.values import Progress, ProgressCallback

__all__ = ["SIZES_TRIED", "ReadAhead", "ReadOptions", "ReadShard", "read_shards", "reading_gguf", "workers"]

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


class ReadAhead:
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

    def saw(self, header_bytes: int) -> None:
        """Learn from a header."""
        self._longest = max(self._longest, header_bytes)
        self._seen += 1


@frozen(kw_only=True)
class ReadOptions:
    """How headers are read.

    Attributes:
        max_workers: requests under way at a time.
        max_header_bytes: longest header that is read.
        arrays: keep long arrays of GGUF metadata.
        cache: where headers are kept, or None.
    """

    max_workers: int = field(default=16)
    max_header_bytes: int = MAX_HEADER_BYTES
    arrays: bool = False
    cache: HeaderCache | None = None

    @max_workers.validator
    def _some(self, _attribute: object, value: object) -> None:
        if type(value) is not int or value < 1:
            raise InvalidSourceError("no number of workers", expected="a number from 1 on", actual=repr(value))


class _HeaderReader:
    """Reads one shard's header at a call, from any thread."""

    def __init__(self, store: FileStore, options: ReadOptions) -> None:
        self._store = store
        self._options = options
        # Cached headers lack long arrays.
        self._cache = None if options.arrays else options.cache
        self._ahead = ReadAhead()
        # Layers of one kind have the same entries under other names: a few layouts serve all shards.
        self._layout = lru_cache(maxsize=LAYOUTS_KEPT)(layout_of)
        # The interpreter runs one parser at a time anyway; taking turns keeps memory small and the readers going.
        self._turn = Lock()

    def kept(self, file: ListedFile) -> ReadShard | None:
        """Return what the cache has of a file."""
        header = self._cache.get(file, max_header_bytes=self._options.max_header_bytes) if self._cache else None
        return None if header is None else ReadShard(file=file, file_bytes=header.file_bytes, header=header)

    def read(self, file: ListedFile) -> ReadShard:
        """Read a header, or say why it cannot be read."""
        try:
            source = self._store.open(file)
            for _ in range(SIZES_TRIED):
                size = source.size
                header, error = self._try(file, source, size)
                # An answer may tell another size than the listing did; the header is then judged by the true one.
                if source.size == size:
                    header = _looked_into(file, source, header)
                    if self._cache and header is not None and file.sha256:
                        # What the cache works out of the names is of use to whoever sorts them.
                        names = evolve(header.names, alike=header.names.likeness())
                        header = evolve(header, names=names)
                        self._cache.put(file, header)
                    return ReadShard(file=file, file_bytes=size, header=header, error=error)
            raise TransportError("the server tells another size at every answer", file=file.path)
        except SourceError as failure:
            return ReadShard(file=file, file_bytes=file.size or 0, error=failure)

    def _try(self, file: ListedFile, source: ByteSource, size: int) -> tuple[Header | None, KimiInspectError | None]:
        """Read the header, taking the file to be of that size."""
        try:
            header = (
                self._gguf(file, source, size) if file.path.endswith(".gguf") else self._safetensors(file, source, size)
            )
        except (SourceError, FormatError) as error:
            return None, error
        return header, None

    def _safetensors(self, file: ListedFile, source: ByteSource, size: int) -> Header:
        plan = read_header(
            size,
            file=file.path,
            first_read=self._ahead.bytes,
            max_header_bytes=self._options.max_header_bytes,
            layout=self._layout,
        )
        header = run(plan, source.read, turn=self._turn)
        self._ahead.saw(header.header_bytes)
        return header

    def _gguf(self, file: ListedFile, source: ByteSource, size: int) -> Header:
        with reading_gguf(file, source, size, self._options) as (plan, read):
            return run(plan, read, turn=self._turn)


@contextmanager
def reading_gguf(
    file: ListedFile, source: ByteSource, size: int, options: ReadOptions
) -> Iterator[tuple[Plan[GgufHeader], Callable[[int, int], bytes]]]:
    """Give the plan for a GGUF header and the reads for it: one stream for the part with the tokenizer, else plain."""
    streamed = isinstance(source, StreamedSource)
    plan = read_gguf_header(
        size,
        file=file.path,
        max_read=FIRST_READ_OF_GGUF if streamed else MAX_READ_OF_GGUF,
        max_header_bytes=options.max_header_bytes,
        arrays=options.arrays,
    )
    holds_tokenizer = (ShardName.of(file.path).number or 1) == 1
    since = 0 if holds_tokenizer else FIRST_READ_OF_GGUF
    with Forward(source, since=since, until=min(size, options.max_header_bytes)) as forward:
        yield plan, forward.read


def _looked_into(file: ListedFile, source: ByteSource, header: Header | None) -> Header | None:
    """Say of bytes that no tensor owns whether a file begins in them, unless the size itself is in doubt."""
    if header is None or not header.findings or file.size not in (None, header.file_bytes):
        return header
    return evolve(header, findings=tuple(find_embedded(source.read, header, file.path, header.findings)))


def read_shards(
    store: FileStore, files: Sequence[ListedFile], options: ReadOptions, *, progress: ProgressCallback | None = None
) -> list[ReadShard]:
    """Read the header of each file; return them in the order of `files`.

    A file that cannot be read is returned with its error. What `progress` raises cancels the rest.
    """
    reader = _HeaderReader(store, options)
    notify = progress or (lambda _: None)
    with workers(store, options.max_workers) as pool:
        # What is kept is at hand: threads would only wait for each other.
        found = [reader.kept(file) for file in files]
        futures = {pool.submit(reader.read, file): number for number, file in enumerate(files) if found[number] is None}
        at_hand = len(files) - len(futures)
        notify(Progress(phase="headers", done=at_hand, total=len(files), unit="files"))
        for done, future in enumerate(as_completed(futures), at_hand + 1):
            found[futures[future]] = future.result()
            path = files[futures[future]].path
            notify(Progress(phase="headers", done=done, total=len(files), unit="files", path=path))
        return [shard for shard in found if shard is not None]


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
