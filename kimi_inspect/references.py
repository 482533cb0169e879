"""What is audited, and what it is held against: sources that are listed first and opened when headers are needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from attrs import frozen

from kimi_inspect.bodies import read_ranges
from kimi_inspect.checkpoint import Checkpoint
from kimi_inspect.choosing import named_set
from kimi_inspect.errors import InvalidSourceError, NoCheckpointError
from kimi_inspect.fronts import has_header
from kimi_inspect.hub_card import HubCard
from kimi_inspect.indexes import declared_total, indexes_of
from kimi_inspect.locating import WEIGHT_SUFFIXES, Source
from kimi_inspect.manifest import MANIFEST_SCHEMA, Manifest
from kimi_inspect.opening import OpenOptions, listed, located, open_listed, options_for
from kimi_inspect.remote import HubRepository
from kimi_inspect.sets import FileSet, as_globs
from kimi_inspect.sidecars import MAX_CONFIG_BYTES, parse_config
from kimi_inspect.sources import FileStore, ListedFile, LocalFile, read_whole
from kimi_inspect.values import Shard, Traffic

__all__ = ["Config", "Reference", "Subject", "reference_of", "subject_of"]

MAX_SMALL_INDEX = 8 * 1024 * 1024
"""Bytes of indexes that an audit reads anyway; Kimi K3.1 Pro's has 60 MB, and is left to who asks for it."""

CONFIG_KEYS = frozenset({"model_type", "architectures", "text_config", "num_hidden_layers", "hidden_size"})
"""Keys of which every model's config.json has one."""

MAX_MANIFEST_BYTES = 256 * 1024 * 1024
"""A line of a manifest has some 250 bytes: this is a million files."""


@frozen(kw_only=True, eq=False)
class Subject:
    """A checkpoint whose files are listed.

    Attributes:
        source: what to call it.
        set_name: which set of the source it is, where that holds other weights too; else None.
        digests: SHA-256 by path of its weight files, side files left out; empty where the listing does not say which
            they are.
        open: opens it, unless that has been done.
        listing: all files there; none of an open checkpoint.
        store: where they are; None of an open checkpoint.
        index_bytes: size of its index, if it has any that was not held against its headers; else None.
        index_total: what its index declares, where that stands in the first bytes.
        card: what the Hub says of it.
        front: reads the header of a shard again; None if it cannot.
    """

    source: str
    set_name: str | None = None
    digests: Mapping[str, str | None]
    open: Callable[[], Checkpoint]
    listing: Sequence[ListedFile] = ()
    store: FileStore | None = None
    index_bytes: int | None = None
    index_total: Callable[[], int | None] = lambda: None
    card: Callable[[], HubCard | None] = lambda: None
    front: Callable[[Shard], bytes | None] = lambda _: None

    @property
    def traffic(self) -> Traffic:
        """What it has cost so far, the opening of an open one left out."""
        return self.store.traffic if self.store else Traffic()


@frozen(kw_only=True)
class Config:
    """A parsed config.json, and what to call it."""

    source: str
    config: Mapping[str, Any]


Reference = Subject | Manifest | Config


def subject_of(source: Source | Checkpoint, options: OpenOptions) -> Subject:
    """List a source; an open checkpoint is taken as it is.

    Raises:
        NoCheckpointError: there are no weights.
    """
    if isinstance(source, Checkpoint):
        return _opened(source, options)
    location = located(source, options)
    listing = listed(location, options.get("progress"))
    chosen = named_set(location, listing, as_globs(options.get("files")))
    store = location.store
    indexes = indexes_of(chosen, listing) if chosen else []
    index_bytes = sum(file.size or 0 for file in indexes)
    checked = store.origin is None or options.get("check_index", index_bytes <= MAX_SMALL_INDEX)
    asked: OpenOptions = {**options, "check_index": checked}
    return Subject(
        source=store.source,
        set_name=chosen.name if chosen and _has_others(listing, chosen) else None,
        digests={file.path: file.sha256 for file in chosen.files} if chosen else {},
        open=lambda: open_listed(location, listing, asked, sure=True),
        index_bytes=None if checked else index_bytes,
        listing=listing,
        store=store,
        index_total=lambda: declared_total(store, chosen, listing) if chosen else None,
        card=lambda: store.card if isinstance(store, HubRepository) else None,
        front=lambda shard: _front(store, listing, shard),
    )


def _has_others(listing: Sequence[ListedFile], chosen: FileSet) -> bool:
    return sum(has_header(file.path) for file in listing) > chosen.file_count


def _front(store: FileStore, listing: Sequence[ListedFile], shard: Shard) -> bytes | None:
    file = next((one for one in listing if one.path == shard.path), None)
    return store.open(file).read(0, shard.header_bytes) if file else None


def _opened(checkpoint: Checkpoint, options: OpenOptions) -> Subject:
    sides = {side.path for side in checkpoint.companions}
    digests = {shard.path: shard.sha256 for shard in checkpoint.shards if shard.path not in sides}

    def front(shard: Shard) -> bytes | None:
        try:
            return read_ranges(checkpoint, [(shard.path, 0, shard.header_bytes)], token=options.get("token"))[0]
        except InvalidSourceError:  # byte sources of the caller's own
            return None

    name = checkpoint.set_name if checkpoint.other_sets else None
    return Subject(source=checkpoint.source, set_name=name, digests=digests, open=lambda: checkpoint, front=front)


def reference_of(
    against: Source | Checkpoint | Manifest, options: OpenOptions, *, candidate: Source | Checkpoint
) -> Reference:
    """Find what to audit against: a checkpoint, a manifest, a config.json, or a folder or repository with only one.

    Raises:
        NoCheckpointError: there is none of these.
    """
    if isinstance(against, Manifest):
        return _with_weights(against)
    if isinstance(against, str | os.PathLike) and _is_json(os.fspath(against)):
        return _from_file(Path(os.fspath(against)).expanduser())
    own = _for_reference(options_for(against, options, among=[candidate, against]))
    try:
        return subject_of(against, own)
    except NoCheckpointError:
        config = _only_config(cast("Source", against), own)
        if config is None:
            raise
        return config


def _for_reference(options: OpenOptions) -> OpenOptions:
    """Return the options for the reference: revision and files are the candidate's alone."""
    own = {key: value for key, value in options.items() if key not in ("revision", "files")}
    return cast("OpenOptions", own | {"companions": options.get("companions") is True, "check_index": False})


def _is_json(source: str) -> bool:
    return source.endswith(".json") and "://" not in source


def _from_file(path: Path) -> Manifest | Config:
    data = read_whole(LocalFile(path), MAX_MANIFEST_BYTES, str(path))
    document = parse_config(data)
    if document is not None and (document.get("schema") == MANIFEST_SCHEMA or "files" in document):
        return _with_weights(Manifest.from_dict(document))
    if document is None or not document.keys() & CONFIG_KEYS:
        raise InvalidSourceError(
            "neither a manifest nor a model's config.json",
            file=str(path),
            expected=f"a JSON object with {MANIFEST_SCHEMA} as schema, or with model_type",
        )
    return Config(source=str(path), config=document)


def _with_weights(manifest: Manifest) -> Manifest:
    if not any(file.path.endswith(WEIGHT_SUFFIXES) for file in manifest.files):
        raise InvalidSourceError("the manifest names no weight file; nothing could be held against it")
    return manifest


def _only_config(source: Source, options: OpenOptions) -> Config | None:
    """Read the config.json of a source without weights."""
    location = located(source, options)
    files = {file.path: file for file in location.store.list_files()}
    if "config.json" not in files:
        return None
    config = parse_config(location.store.read_small(files["config.json"], MAX_CONFIG_BYTES))
    if config is None or not config.keys() & CONFIG_KEYS:
        return None
    return Config(source=location.store.source, config=config)
