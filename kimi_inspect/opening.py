"""Opens a checkpoint: from a source to the table of its tensors, from headers alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, cast

from attrs import evolve, frozen

from kimi_inspect.caching import HeaderCache, cache_folder
from kimi_inspect.checkpoint import Checkpoint, put_together
from kimi_inspect.choosing import Found, find_files, read_config, sorted_listing
from kimi_inspect.companions import chosen_sides
from kimi_inspect.copies import find_copies
from kimi_inspect.errors import SourceError
from kimi_inspect.findings import finding, in_order
from kimi_inspect.header import MAX_HEADER_BYTES
from kimi_inspect.indexes import index_findings, indexes_of, promised_files
from kimi_inspect.locating import Location, Source, at_one_site, locate
from kimi_inspect.reading import ReadOptions, ReadShard, read_shards, workers
from kimi_inspect.sets import FileSet, as_globs
from kimi_inspect.sources import FileStore, ListedFile
from kimi_inspect.transport import DEFAULT_TIMEOUT
from kimi_inspect.values import Finding, Progress, ProgressCallback
from kimi_inspect.wholeness import missing_parts, missing_shards

__all__ = [
    "Listing",
    "OpenOptions",
    "list_sets",
    "listed",
    "located",
    "open_checkpoint",
    "open_listed",
    "options_for",
]

HUB_TOKEN = "hf_"  # noqa: S105 - what all of them begin with

MAX_WORKERS = 16
"""Requests under way at a time."""


@frozen(kw_only=True)
class Listing:
    """What a folder or repository holds, by its listing alone: `sets` are the checkpoints in it, the default first.

    `side` are files that go by the names of side files.
    """

    source: str
    commit: str | None
    sets: tuple[FileSet, ...]
    side: tuple[FileSet, ...] = ()


class OpenOptions(TypedDict, total=False):
    """The options of `open_checkpoint`, for those that pass them on."""

    revision: str | None
    files: str | Sequence[str] | None
    companions: bool | str | Sequence[str]
    token: str | bool | None
    endpoint: str | None
    max_workers: int
    cache: bool
    check_index: bool
    arrays: bool
    max_header_bytes: int
    timeout: float
    progress: ProgressCallback | None


def open_checkpoint(
    source: Source,
    *,
    revision: str | None = None,
    files: str | Sequence[str] | None = None,
    companions: bool | str | Sequence[str] = False,
    token: str | bool | None = None,
    endpoint: str | None = None,
    max_workers: int = MAX_WORKERS,
    cache: bool = True,
    check_index: bool = False,
    arrays: bool = False,
    max_header_bytes: int = MAX_HEADER_BYTES,
    timeout: float = DEFAULT_TIMEOUT,
    progress: ProgressCallback | None = None,
) -> Checkpoint:
    """Read the headers of a checkpoint, and no weight.

    Args:
        source: a Hub repository `owner/name[@revision][:SET]`, a Hub address, a folder, a file, an http(s) address of a
            file; or a mapping of paths to byte sources.
        revision: branch, tag or commit; the same as after `@`.
        files: globs on the paths, as `allow_patterns` in huggingface_hub.
        companions: count side files too: True for all, or globs on their paths. Of the same one in several precisions
            only one is counted.
        token: a token, True for the saved one, False for none, None for the saved one if there is one.
        endpoint: address of the Hub; huggingface_hub's setting if None.
        max_workers: requests under way at a time.
        cache: keep parsed headers of files with a known digest, and use those that are kept.
        check_index: hold the index of a sharded safetensors checkpoint against its headers; always done for files at
            hand, where it costs no request.
        arrays: keep long arrays of GGUF metadata, a tokenizer's among them.
        max_header_bytes: longest header that is read, in bytes.
        timeout: seconds without a byte before a connection counts as dead.
        progress: called from this thread; what it raises cancels the call.

    Raises:
        SourceError: the bytes cannot be had.
        FormatError: no shard has a header that gives right numbers.
        CheckpointError: there is no such checkpoint, or several and none is the default.
        InvalidSourceError: the string names none.
    """
    location = locate(source, revision=revision, token=token, endpoint=endpoint, timeout=timeout)
    options: OpenOptions = {"max_workers": max_workers, "max_header_bytes": max_header_bytes}
    options |= {"arrays": arrays, "cache": cache, "companions": companions, "files": files}
    return open_listed(
        location, listed(location, progress), {**options, "check_index": check_index, "progress": progress}
    )


def located(source: Source, options: OpenOptions) -> Location:
    """Find the store that a source names, with the options that a caller gave to open it."""
    return locate(
        source,
        revision=options.get("revision"),
        token=options.get("token"),
        endpoint=options.get("endpoint"),
        timeout=options.get("timeout", DEFAULT_TIMEOUT),
    )


def options_for(source: object, options: OpenOptions, *, among: Sequence[object]) -> OpenOptions:
    """Return what of the options that a caller gave for several sources serves one of them.

    An endpoint is the Hub's, if any of them is there. A token goes to one site: one of the Hub's, by its first letters,
    to the Hub; any other to the first source's.
    """
    named = _named(source)
    sites = [site for site in map(_named, among) if site]
    if all(at_one_site(site, named) for site in sites):
        return options
    token, left_out = options.get("token"), set()
    is_of_hub = at_one_site(named, "")
    if isinstance(token, str) and not (is_of_hub if token.startswith(HUB_TOKEN) else at_one_site(named, sites[0])):
        left_out.add("token")
    if not is_of_hub:
        left_out.add("endpoint")
    return cast("OpenOptions", {key: value for key, value in options.items() if key not in left_out})


def _named(source: object) -> str:
    """Return a source as it is written; what is no source string is at no site."""
    return source.source if isinstance(source, Checkpoint) else source if isinstance(source, str) else ""


def listed(location: Location, progress: ProgressCallback | None = None) -> Sequence[ListedFile]:
    """List the files of a source."""
    notify = progress or (lambda _: None)
    notify(Progress(phase="listing", done=0, total=1, unit="listings"))
    listing = location.store.list_files()
    notify(Progress(phase="listing", done=1, total=1, unit="listings"))
    return listing


def open_listed(
    location: Location, listing: Sequence[ListedFile], asked: OpenOptions, *, sure: bool = False
) -> Checkpoint:
    """Open a checkpoint of a source whose listing is known; options and errors as of `open_checkpoint`.

    Args:
        location: where it is.
        listing: all files there.
        asked: the options.
        sure: raise what may pass, as a server that is down: no verdict shall rest on it.
    """
    store = location.store
    options = ReadOptions(
        max_workers=asked.get("max_workers", MAX_WORKERS),
        max_header_bytes=asked.get("max_header_bytes", MAX_HEADER_BYTES),
        arrays=asked.get("arrays", False),
        cache=_cache(store) if asked.get("cache", True) else None,
    )
    found = find_files(location, listing, as_globs(asked.get("files")), options)
    counted = chosen_sides(found.sides, asked.get("companions", False))
    with workers(store, 1) as beside:
        reading_config = beside.submit(read_config, store, found, options.cache)
        wanted = [*found.chosen.files, *(file for side in counted for file in side.files.files)]
        read = read_shards(store, wanted, options, progress=asked.get("progress"))
        config, findings = reading_config.result()
    if sure:
        _refuse_passing(read)
    own = read[: found.chosen.file_count]
    findings += [] if found.partial else _missing(store, found, [side.files for side in counted], own)
    findings += [] if found.partial else find_copies(store, found.shelves.sets, found.chosen, own, options)
    if options.cache:
        options.cache.trim()
    checkpoint = put_together(store, found, counted, read, config, findings)
    if found.partial or not (asked.get("check_index") or store.origin is None):
        return checkpoint
    stale = index_findings(store, found.chosen, own, checkpoint.tensors, listing, checkpoint.findings)
    return evolve(checkpoint, findings=in_order([*checkpoint.findings, *stale]), traffic=store.traffic)


def _refuse_passing(read: Sequence[ReadShard]) -> None:
    """Raise the error of a shard that the same call may well read a little later."""
    for shard in read:
        if isinstance(shard.error, SourceError) and shard.error.retryable:
            raise shard.error


def _missing(store: FileStore, found: Found, counted: Sequence[FileSet], own: Sequence[ReadShard]) -> list[Finding]:
    """Find missing shards: by the names, unless the index names just those that are there."""
    paths = {file.path for file in found.listing}
    told = {shard.file.path: (shard.header.metadata or {}).get("split.no") for shard in own if shard.header}
    places = {path: place for path, place in told.items() if type(place) is int}
    missing = list(missing_shards(found.chosen, paths, places=places))
    promised = promised_files(store, found.chosen, found.listing) if missing else None
    if promised and promised <= paths:
        missing = []
    message = "the index cannot be read; which files belong together is told by their names alone"
    own_indexes = {index.path for index in indexes_of(found.chosen, found.listing)}  # those are checked as such
    unread = [path for path in found.unread if path not in own_indexes]
    missing += missing_parts(found.pipeline) if found.pipeline else ()
    missing += [finding("index-unreadable", path, message, file=path) for path in unread]
    return [*missing, *(item for side in counted for item in missing_shards(side, paths))]


def _cache(store: FileStore) -> HeaderCache | None:
    folder = cache_folder() if store.origin is not None else None
    return HeaderCache(folder, store.origin) if folder and store.origin else None


def list_sets(
    source: Source,
    *,
    revision: str | None = None,
    files: str | Sequence[str] | None = None,
    token: str | bool | None = None,
    endpoint: str | None = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> Listing:
    """List the checkpoints in a folder or repository and read no header; arguments as for `open_checkpoint`."""
    location = locate(source, revision=revision, token=token, endpoint=endpoint, timeout=timeout)
    shelves = sorted_listing(location, location.store.list_files(), as_globs(files))
    return Listing(source=location.store.source, commit=location.store.commit, sets=shelves.sets, side=shelves.side)
