"""The SHA-256 of headers: it tells files of one layout from others without a look at their weights.

Headers are hashed as they are read and not kept: those of a Kimi take 80 MB. One read a file does, as for opening.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import as_completed
from threading import Lock

from attrs import evolve, frozen

from kimi_inspect.errors import FormatError, KimiInspectError, SourceError, TransportError
from kimi_inspect.header import malformed
from kimi_inspect.planning import Plan, run
from kimi_inspect.reading import SIZES_TRIED, ReadAhead, ReadOptions, reading_gguf, workers
from kimi_inspect.safetensors import LENGTH_BYTES, header_length
from kimi_inspect.sources import ByteSource, FileStore, ListedFile
from kimi_inspect.values import ByteRange, Progress, ProgressCallback

__all__ = ["Front", "has_header", "read_fronts"]


@frozen(kw_only=True)
class Front:
    """The part of a weight file before its data.

    Attributes:
        header_bytes: how long it is; 0 if it cannot be read.
        file_bytes: the size of the file by the answers, or None if it cannot be read.
        sha256: its digest, or None.
        error: why it cannot be read, or None.
    """

    header_bytes: int = 0
    file_bytes: int | None = None
    sha256: str | None = None
    error: KimiInspectError | None = None


def has_header(path: str) -> bool:
    """Whether a file is of a format whose headers we read, by its name."""
    return path.endswith((".safetensors", ".gguf"))


def read_fronts(
    store: FileStore, files: Sequence[ListedFile], options: ReadOptions, *, progress: ProgressCallback | None = None
) -> Mapping[str, Front]:
    """Hash the header of each file; one that cannot be read is told with its error.

    A safetensors header is taken to be as long as it says, if it begins as one, and not parsed.
    """
    reader = _Reader(store, options)
    notify = progress or (lambda _: None)
    found: dict[str, Front] = {}
    with workers(store, options.max_workers) as pool:
        futures = {pool.submit(reader.read, file): file.path for file in files}
        for done, future in enumerate(as_completed(futures), 1):
            path = futures[future]
            found[path] = future.result()
            notify(Progress(phase="headers", done=done, total=len(files), unit="files", path=path))
    return found


class _Reader:
    """Hashes one header at a call, from any thread."""

    def __init__(self, store: FileStore, options: ReadOptions) -> None:
        self._store = store
        self._options = options
        self._ahead = ReadAhead()
        self._turn = Lock()

    def read(self, file: ListedFile) -> Front:
        """Hash a header, or say why it cannot be read."""
        try:
            source = self._store.open(file)
            for _ in range(SIZES_TRIED):
                size = source.size
                front = self._try(file, source, size)
                # An answer may tell another size than the listing did.
                if source.size == size:
                    return evolve(front, file_bytes=size)
            raise TransportError("the server tells another size at every answer", file=file.path)
        except SourceError as error:
            return Front(error=error)

    def _try(self, file: ListedFile, source: ByteSource, size: int) -> Front:
        try:
            if file.path.endswith(".gguf"):
                return self._gguf(file, source, size)
            plan = _safetensors(size, file.path, self._ahead.bytes, self._options.max_header_bytes)
            front = run(plan, source.read)
        except (SourceError, FormatError) as error:
            return Front(error=error)
        self._ahead.saw(front.header_bytes)
        return front

    def _gguf(self, file: ListedFile, source: ByteSource, size: int) -> Front:
        with reading_gguf(file, source, size, self._options) as (plan, read):
            tap = _Tap(read)
            header_bytes = run(plan, tap.read, turn=self._turn).header_bytes
            return Front(header_bytes=header_bytes, sha256=tap.digest(header_bytes))


def _safetensors(file_bytes: int, file: str, first_read: int, limit: int) -> Plan[Front]:
    """Ask for a header by its length word, and hash it."""
    data = b""
    if file_bytes:
        data = yield ByteRange(0, min(first_read, file_bytes))
    header_bytes = header_length(data, file_bytes, file, limit)
    if data[LENGTH_BYTES:header_bytes].lstrip()[:1] != b"{":
        malformed("the header is no JSON object", file, offset=LENGTH_BYTES)
    state = hashlib.sha256(memoryview(data)[:header_bytes])
    if len(data) < header_bytes:
        state.update((yield ByteRange(len(data), header_bytes)))
    return Front(header_bytes=header_bytes, sha256=state.hexdigest())


class _Tap:
    """Hashes what a parser reads from the front of a file, without reading it twice or keeping it."""

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read = read
        self._state = hashlib.sha256()
        self._last = b""
        self._end = 0

    def read(self, begin: int, end: int) -> bytes:
        """Read on. A parser that asks for more needs all that it has: that is header."""
        data = self._read(begin, end)
        self._state.update(self._last)
        self._last, self._end = data, end
        return data

    def digest(self, header_bytes: int) -> str:
        """Return the digest of the first bytes; what the parser had no need of, padding, is read now."""
        self._state.update(self._last[: header_bytes - (self._end - len(self._last))])
        if header_bytes > self._end:
            self._state.update(self._read(self._end, header_bytes))
        return self._state.hexdigest()
