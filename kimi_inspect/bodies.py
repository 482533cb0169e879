"""Bytes of tensors, read on request: the only place that reads what lies behind a header."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from kimi_inspect import modelscope
from kimi_inspect.checkpoint import Checkpoint
from kimi_inspect.errors import InvalidSourceError
from kimi_inspect.locating import locate
from kimi_inspect.remote import reopened
from kimi_inspect.sources import ByteSource, ListedFile
from kimi_inspect.text import printable
from kimi_inspect.values import Shard

__all__ = ["read_ranges"]

MAX_READERS = 16


def read_ranges(
    checkpoint: Checkpoint, ranges: Sequence[tuple[str, int, int]], token: str | bool | None = None
) -> list[bytes]:
    """Read parts of a checkpoint's files, from the commit that it was opened at.

    Args:
        checkpoint: an open checkpoint.
        ranges: path of a shard, first byte, and one past the last, from the start of the file; `TensorInfo.shard` and
            `TensorInfo.byte_range` give them.
        token: as for `open_checkpoint`; it goes to the Hub, or the ModelScope, that the checkpoint came from.

    Returns:
        The bytes of each range, in order.

    Raises:
        InvalidSourceError: there is no such shard, a range leaves it, or the checkpoint came from byte sources of the
            caller's own.
        SourceError: the bytes cannot be had.
    """
    shards = {shard.path: shard for shard in checkpoint.shards}
    for path, begin, end in ranges:
        if path not in shards:
            raise InvalidSourceError("the checkpoint has no such shard", file=printable(path))
        if not 0 <= begin <= end <= shards[path].file_bytes:
            size = shards[path].file_bytes
            raise InvalidSourceError(
                "a range leaves its file", file=path, expected=f"within {size:,} bytes", actual=[begin, end]
            )
    sources = {path: _opened(checkpoint, shards[path], token) for path in dict.fromkeys(path for path, _, _ in ranges)}

    def read(wanted: tuple[str, int, int]) -> bytes:
        path, begin, end = wanted
        return sources[path].read(begin, end) if end > begin else b""

    with ThreadPoolExecutor(min(MAX_READERS, max(len(ranges), 1)), thread_name_prefix="kimi-inspect") as pool:
        return list(pool.map(read, ranges))


def _opened(checkpoint: Checkpoint, shard: Shard, token: str | bool | None) -> ByteSource:
    if shard.url is not None and checkpoint.source.startswith(modelscope.SCHEME):
        return modelscope.reopened(shard, token=token)
    if shard.url is not None:
        return reopened(shard, commit=checkpoint.commit, token=token)
    if checkpoint.source == "<mapping>":
        raise InvalidSourceError("it came from byte sources of the caller's own; read those", file=shard.path)
    return locate(checkpoint.source).store.open(ListedFile(path=shard.path, size=shard.file_bytes))
