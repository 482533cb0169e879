"""The same weights again elsewhere in a folder or repository: named, never added up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kimi_inspect.findings import finding
from kimi_inspect.reading import ReadOptions, ReadShard, read_shards
from kimi_inspect.set_names import is_copy
from kimi_inspect.sets import FileSet
from kimi_inspect.sources import FileStore
from kimi_inspect.values import Finding

__all__ = ["find_copies"]


def find_copies(
    store: FileStore, sets: Sequence[FileSet], chosen: FileSet, read: Sequence[ReadShard], options: ReadOptions
) -> Iterator[Finding]:
    """Yield the sets that hold the weights of the chosen one again.

    Equal digests show it. Where publishers keep a copy in another layout, by the name of it, its headers are read: as
    many tensor bytes show it.

    Args:
        store: where they are.
        sets: all sets.
        chosen: the one that is counted.
        read: its shards.
        options: how to read headers.
    """
    tensor_bytes = _tensor_bytes(read)
    for one in sets:
        if one == chosen or one.format != chosen.format or tensor_bytes is None:
            continue
        by_layout = is_copy(one.name) != is_copy(chosen.name)
        if _same_digests(one, chosen) or (
            by_layout and _tensor_bytes(read_shards(store, one.files, options)) == tensor_bytes
        ):
            paths = [file.path for file in one.files]
            message = f"{one.name} holds the same weights again, {tensor_bytes:,} bytes of tensors, counted once"
            yield finding(
                "duplicate-copy",
                one.name,
                message,
                file=paths[0],
                actual=tensor_bytes,
                count=len(paths),
                examples=paths,
            )


def _same_digests(one: FileSet, other: FileSet) -> bool:
    mine, its = ([file.sha256 for file in files] for files in (one.files, other.files))
    return None not in mine and None not in its and sorted(map(str, mine)) == sorted(map(str, its))


def _tensor_bytes(read: Sequence[ReadShard]) -> int | None:
    """Return the tensor bytes of all shards; None if one could not be read."""
    headers = [shard.header for shard in read]
    return None if None in headers else sum(header.tensor_bytes for header in headers if header)
