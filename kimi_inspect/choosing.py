"""Which files of a source are read: the set, its side files, and the config beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

from attrs import frozen

from kimi_inspect.caching import HeaderCache
from kimi_inspect.companions import IMATRIX, SideFile, look_into, side_files
from kimi_inspect.errors import AmbiguousCheckpointError, SourceError
from kimi_inspect.findings import finding
from kimi_inspect.index_file import WeightMap
from kimi_inspect.locating import Location
from kimi_inspect.pipelines import Pipeline, read_pipeline
from kimi_inspect.reading import ReadOptions
from kimi_inspect.set_names import is_imatrix
from kimi_inspect.sets import FileSet, Shelves, choose_set, matching, sort_out
from kimi_inspect.sidecars import MAX_CONFIG_BYTES, ShardName, parse_config
from kimi_inspect.sources import FileStore, ListedFile
from kimi_inspect.values import Finding
from kimi_inspect.weight_maps import weight_maps

__all__ = ["Found", "find_files", "named_set", "read_config", "sorted_listing"]


class _Bonds(TypedDict):
    """What joins files that names do not: the folders of a pipeline, and indexes."""

    folders: Sequence[str]
    maps: Sequence[WeightMap]


@frozen(kw_only=True)
class Found:
    """What is to be opened.

    Attributes:
        listing: all files there are.
        shelves: all sets there are.
        chosen: the one to open.
        sides: its side files.
        partial: it is a part of a set, chosen on purpose.
        unread: indexes that cannot be read, and may say that other files belong to it.
        pipeline: what it is made of, where that is several parts.
    """

    listing: Sequence[ListedFile]
    shelves: Shelves
    chosen: FileSet
    sides: tuple[SideFile, ...]
    partial: bool
    unread: tuple[str, ...] = ()
    pipeline: Pipeline | None = None


def sorted_listing(location: Location, listing: Sequence[ListedFile], globs: Sequence[str]) -> Shelves:
    """Sort the files of a listing, or those of them that globs fit, into sets: by names, and by what joins them.

    Importance matrices are no weights, and in none.
    """
    files = [file for file in matching(_below(listing, location.folder), globs) if not is_imatrix(file.path)]
    return sort_out(files, **_bonds(location.store, listing, read_pipeline(location.store, listing)))


def _bonds(store: FileStore, listing: Sequence[ListedFile], pipeline: Pipeline) -> _Bonds:
    return {"folders": pipeline.folders, "maps": weight_maps(store, listing)}


def named_set(location: Location, listing: Sequence[ListedFile], globs: Sequence[str]) -> FileSet | None:
    """Choose the set to open without a look into weight files; None where several come into question.

    Raises:
        NoCheckpointError: there is none such.
    """
    wanted = {"source": location.store.source, "name": location.set_name, "member": location.member}
    bonds = _bonds(location.store, listing, read_pipeline(location.store, listing))
    return _unless_ambiguous(_below(listing, location.folder), globs, wanted, bonds)


def find_files(location: Location, listing: Sequence[ListedFile], globs: Sequence[str], options: ReadOptions) -> Found:
    """Choose the set to open; files that may be side files are looked into first.

    Raises:
        NoCheckpointError: there is none such.
        AmbiguousCheckpointError: none is asked for, and none of several is the default.
    """
    store = location.store
    pipeline = read_pipeline(store, listing)
    bonds = _bonds(store, listing, pipeline)
    inside = _below(listing, location.folder)
    wanted: dict[str, Any] = {"source": store.source, "name": location.set_name, "member": location.member}
    chosen = _unless_ambiguous(inside, globs, wanted, bonds)
    shelves = sort_out(listing, **bonds)
    roles = look_into(store, shelves, chosen, options) if len(shelves.all) > 1 else {}
    explicit = chosen is not None and bool(location.set_name or location.member)
    asked = {file.path for file in chosen.files} if explicit and chosen else set()
    weights = [file for file in listing if roles.get(file.path) != IMATRIX or file.path in asked]
    known = {path: role is not None for path, role in roles.items() if path not in asked}
    shelves = sort_out(weights, known, **bonds)
    if chosen is None or not explicit:
        inside = _below(weights, location.folder)
        chosen = choose_set(inside, globs=globs, known=known, **bonds, **wanted)
    # What is known now may have given it another name than the listing did.
    chosen = next((one for one in shelves.all if one.files == chosen.files), chosen)
    sides = tuple(side_files(shelves, chosen, roles))
    part = bool(globs or location.folder)
    several = len(chosen.folders) > 1 or bool(chosen.folders and pipeline.bare and not part)
    return Found(
        listing=listing,
        shelves=shelves,
        chosen=chosen,
        sides=sides,
        partial=bool(globs),
        unread=tuple(_unread(chosen, bonds["maps"])),
        pipeline=pipeline if several else None,
    )


def _unread(chosen: FileSet, maps: Sequence[WeightMap]) -> Iterator[str]:
    own = {ShardName.of(file.path).folder for file in chosen.files if chosen.format == "safetensors"}
    yield from (one.path for one in maps if one.files is None and ShardName.of(one.path).folder in own)


def _unless_ambiguous(
    files: Sequence[ListedFile], globs: Sequence[str], wanted: Mapping[str, Any], bonds: _Bonds
) -> FileSet | None:
    try:
        return choose_set(files, globs=globs, **bonds, **wanted)
    except AmbiguousCheckpointError:
        return None


def _below(listing: Sequence[ListedFile], folder: str) -> Sequence[ListedFile]:
    return [file for file in listing if file.path.startswith(folder + "/")] if folder else listing


def read_config(
    store: FileStore, found: Found, cache: HeaderCache | None
) -> tuple[dict[str, Any] | None, list[Finding]]:
    """Read the config.json beside the weights, or in the root; a part's says nothing of a pipeline of several."""
    by_path = {file.path: file for file in found.listing}
    folder = "" if found.pipeline else found.chosen.files[0].path.rpartition("/")[0]
    file = by_path.get(f"{folder}/config.json" if folder else "config.json") or by_path.get("config.json")
    if file is None:
        return None, []
    data = cache.get_blob(file) if cache else None
    if data is None:
        try:
            data = store.read_small(file, MAX_CONFIG_BYTES)
        except SourceError as error:
            return None, [_config_finding(file.path, f"cannot be read: {error.problem}")]
        if cache:
            cache.put_blob(file, data)
    config = parse_config(data)
    return (config, []) if config is not None else (None, [_config_finding(file.path, "is no JSON object")])


def _config_finding(path: str, problem: str) -> Finding:
    return finding("config-unreadable", path, f"{path} {problem}; what it declares is not known", file=path)
