"""Reads the index files of a checkpoint and has them held against its headers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kimi_inspect.errors import SourceError
from kimi_inspect.findings import finding
from kimi_inspect.index_check import check_index
from kimi_inspect.index_file import IndexReader, index_paths
from kimi_inspect.reading import ReadShard
from kimi_inspect.sets import FileSet
from kimi_inspect.sidecars import ShardName
from kimi_inspect.sources import FileStore, ListedFile
from kimi_inspect.table import TensorTable
from kimi_inspect.values import Finding
from kimi_inspect.weight_maps import named_files, pieces_of

__all__ = ["declared_total", "index_findings", "indexes_of", "promised_files"]

HEAD = 1 << 16
"""Bytes of an index that are read for what it declares."""


def index_findings(
    store: FileStore,
    chosen: FileSet,
    read: Sequence[ReadShard],
    table: TensorTable,
    listing: Sequence[ListedFile],
    found: Sequence[Finding] = (),
) -> Iterator[Finding]:
    """Yield what the indexes of a set say and its headers do not, and the other way round.

    Args:
        store: where the files are.
        chosen: the set; a pipeline has an index in each folder.
        read: its shards.
        table: all tensors.
        listing: all files.
        found: what is found without the indexes, and is not told again.
    """
    listed = {file.path for file in listing}
    told = {path for one in chosen.maps for path in one.files or ()}
    for index in indexes_of(chosen, listing):
        path = index.path
        folder = path.rpartition("/")[0]
        there = [one for one in read if one.file.path.rpartition("/")[0] == folder]
        shards = [one.file.path for one in there if one.header]
        tensors = table.of_shards(shards)
        whole = len(shards) == len(there)
        try:
            pieces = pieces_of(store.open(index))
            yield from check_index(
                pieces, path, tensors, listed=listed, shards=shards, whole=whole, promised=told, found=found
            )
        except SourceError as error:
            message = f"the index cannot be read: {error.problem}; what it promises is not known"
            yield finding("index-unreadable", path, message, file=path)


def promised_files(store: FileStore, chosen: FileSet, listing: Sequence[ListedFile]) -> set[str] | None:
    """Return the paths that the indexes of a set name; None where there is none that can be read."""
    known = {one.path: one.files for one in chosen.maps}
    promised: set[str] = set()
    indexes = indexes_of(chosen, listing)
    for index in indexes:
        files = known.get(index.path) or named_files(store, index)
        if files is None:
            return None
        promised |= files
    return promised if indexes else None


def declared_total(store: FileStore, chosen: FileSet, listing: Sequence[ListedFile]) -> int | None:
    """Return the total size that the index of a set declares in its first bytes, where writers put it."""
    indexes = indexes_of(chosen, listing)
    if len(indexes) != 1:
        return None
    reader = IndexReader()
    try:
        source = store.open(indexes[0])
        for _ in reader.feed(source.read(0, min(source.size, HEAD))):
            pass
    except (SourceError, ValueError):
        return None
    declared = (reader.metadata or {}).get("total_size")
    return declared if type(declared) is int else None


def indexes_of(chosen: FileSet, listing: Sequence[ListedFile]) -> list[ListedFile]:
    """Return the index files of a set; beside a single file an index is a left-over that loaders do not look at."""
    by_path = {file.path: file for file in listing}
    numbered = [file.path for file in chosen.files if ShardName.of(file.path).count is not None]
    maps = [one.path for one in chosen.maps]
    wanted = dict.fromkeys([*maps, *(path for shard in numbered for path in index_paths(shard))])
    return [by_path[path] for path in wanted if path in by_path] if chosen.format == "safetensors" else []
