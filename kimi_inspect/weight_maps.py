"""The indexes that say which files make one checkpoint, where the files' names do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kimi_inspect.errors import SourceError
from kimi_inspect.forward import StreamedSource
from kimi_inspect.index_file import IndexReader, WeightMap, indexed_path
from kimi_inspect.set_names import is_copy, is_draft, variant_of
from kimi_inspect.sidecars import MAX_SHARDS, ShardName
from kimi_inspect.sources import ByteSource, FileStore, ListedFile, leads_outside

__all__ = ["named_files", "pieces_of", "weight_maps"]

PIECE = 1 << 20
"""Bytes of an index that are held at a time."""


def weight_maps(store: FileStore, listing: Sequence[ListedFile]) -> tuple[WeightMap, ...]:
    """Read the indexes of folders where names leave in doubt which files belong together; most listings have none."""
    weights: dict[str, list[str]] = {}
    for file in listing:
        if file.path.endswith(".safetensors"):
            weights.setdefault(ShardName.of(file.path).folder, []).append(file.path)
    return tuple(
        WeightMap(file.path, _believed(named_files(store, file)))
        for file in listing
        if (whole := indexed_path(file.path)) and _in_doubt(whole, weights.get(ShardName.of(whole).folder, []))
    )


def _in_doubt(whole: str, paths: Sequence[str]) -> bool:
    """Whether the index of `whole` may name other files of its folder than those that bear its name with numbers.

    Beside the one file `whole` an index is left over. Other variants and copies in another layout belong to no index
    but their own, and a draft head beside numbered files is a side file.
    """
    names = [(ShardName.of(path), path) for path in paths]
    own = [name for name, _ in names if name.set_name == ShardName.of(whole).set_name]
    if any(name.count is None for name in own):
        return False
    others = {
        (name.set_name, name.count)
        for name, path in names
        if name.set_name != ShardName.of(whole).set_name
        and variant_of(path) in (None, variant_of(whole))
        and not is_copy(name.set_name)
        and not (own and is_draft(path))
    }
    return bool(others) if own else len(others) > 1 or any(count is None for _, count in others)


def _believed(files: set[str] | None) -> frozenset[str] | None:
    if files is None or len(files) > MAX_SHARDS:
        return None
    return frozenset(path for path in files if not leads_outside(path))


def named_files(store: FileStore, index: ListedFile) -> set[str] | None:
    """Return the paths that an index names; None if it cannot be read."""
    folder = ShardName.of(index.path).folder
    reader = IndexReader()
    files: set[bytes] = set()
    try:
        for piece in pieces_of(store.open(index)):
            files.update(file for _, file in reader.feed(piece))
        reader.finish()
        return {folder + file.decode() for file in files}
    except (SourceError, ValueError):
        return None


def pieces_of(source: ByteSource) -> Iterator[bytes]:
    """Yield the bytes of an index in order, by one request where each would cost one."""
    size = source.size
    if isinstance(source, StreamedSource) and size:
        with source.stream(0, size) as pieces:
            yield from pieces
        return
    for begin in range(0, size, PIECE):
        yield source.read(begin, min(begin + PIECE, size))
