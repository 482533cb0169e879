"""Opens a checkpoint: from a source to the table of its tensors, from headers alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

from attrs import field, frozen

from kimi_inspect.errors import MalformedHeaderError, SourceError
from kimi_inspect.families import family_of
from kimi_inspect.findings import finding, in_order
from kimi_inspect.locating import Source, locate
from kimi_inspect.meaning import understand
from kimi_inspect.reading import ReadShard, read_shards, workers
from kimi_inspect.safetensors import MAX_HEADER_BYTES
from kimi_inspect.sets import FileSet, choose_set, find_sets, matching, missing_shards
from kimi_inspect.sidecars import MAX_CONFIG_BYTES, parse_config
from kimi_inspect.sources import FileStore, ListedFile
from kimi_inspect.table import TensorTable
from kimi_inspect.transport import DEFAULT_TIMEOUT
from kimi_inspect.values import Companion, Finding, Progress, ProgressCallback, Shard, Traffic

__all__ = ["Checkpoint", "Listing", "OpenOptions", "list_sets", "open_checkpoint"]

INCOMPLETE = frozenset({"shard-missing", "shard-unreadable", "truncated"})
"""Findings that mean that not all of the checkpoint is there."""


@frozen(kw_only=True, eq=False, repr=False)
class Checkpoint:
    """A checkpoint as its headers show it. It holds no connection and no token.

    Attributes:
        source: what was opened.
        commit: the commit that every read was pinned to, 40 hex digits, or None.
        format: ``safetensors``.
        set_name: which set of the folder or repository it is.
        shards: its files, in order.
        tensors: its tensors, in the order of shard and offset.
        config: the parsed config.json, or None.
        metadata: the `__metadata__` of the shards, merged.
        architecture: `model_type` of the config, or None.
        family: the architecture in one spelling for all formats, or None.
        companions: side files.
        findings: what is worth knowing, gravest first.
        complete: every file is there and was read.
        traffic: what opening it cost.
    """

    source: str
    commit: str | None
    format: str
    set_name: str
    shards: tuple[Shard, ...]
    tensors: TensorTable
    config: dict[str, Any] | None = field(hash=False)
    metadata: dict[str, Any] = field(hash=False)
    architecture: str | None
    family: str | None
    companions: tuple[Companion, ...] = ()
    findings: tuple[Finding, ...] = ()
    complete: bool
    traffic: Traffic

    def __repr__(self) -> str:
        return f"<Checkpoint {self.source} {self.format}, {len(self.shards)} files, {len(self.tensors):,} tensors>"


@frozen(kw_only=True)
class Listing:
    """What a folder or repository holds, by its listing alone: `sets` are the checkpoints in it, the default first."""

    source: str
    commit: str | None
    sets: tuple[FileSet, ...]


class OpenOptions(TypedDict, total=False):
    """The options of `open_checkpoint`, for those that pass them on."""

    revision: str | None
    files: str | Sequence[str] | None
    token: str | bool | None
    endpoint: str | None
    max_workers: int
    max_header_bytes: int
    timeout: float
    progress: ProgressCallback | None


def open_checkpoint(
    source: Source,
    *,
    revision: str | None = None,
    files: str | Sequence[str] | None = None,
    token: str | bool | None = None,
    endpoint: str | None = None,
    max_workers: int = 16,
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
        token: a token, True for the saved one, False for none, None for the saved one if there is one.
        endpoint: address of the Hub; huggingface_hub's setting if None.
        max_workers: requests under way at a time.
        max_header_bytes: longest header that is read, in bytes.
        timeout: seconds without a byte before a connection counts as dead.
        progress: called from this thread; what it raises cancels the call.

    Raises:
        SourceError: the bytes cannot be had.
        FormatError: no shard has a header that gives right numbers.
        CheckpointError: there is no such checkpoint.
        InvalidSourceError: the string names none.
    """
    location = locate(source, revision=revision, token=token, endpoint=endpoint, timeout=timeout)
    store = location.store
    notify = progress or (lambda _: None)
    notify(Progress(phase="listing", done=0, total=1, unit="listings"))
    listing = store.list_files()
    notify(Progress(phase="listing", done=1, total=1, unit="listings"))
    globs = _globs(files)
    chosen = choose_set(listing, source=store.source, name=location.set_name, member=location.member, globs=globs)
    with workers(store, 1) as beside:
        reading_config = beside.submit(_read_config, store, listing, chosen)
        read = read_shards(
            store, chosen.files, max_workers=max_workers, max_header_bytes=max_header_bytes, progress=progress
        )
        config, config_findings = reading_config.result()
    return _checkpoint(store, chosen, read, config, [*config_findings, *([] if globs else missing_shards(chosen))])


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
    listing = matching(location.store.list_files(), _globs(files))
    return Listing(source=location.store.source, commit=location.store.commit, sets=find_sets(listing))


def _globs(files: str | Sequence[str] | None) -> list[str]:
    return [files] if isinstance(files, str) else list(files or ())


def _read_config(
    store: FileStore, listing: Sequence[ListedFile], chosen: FileSet
) -> tuple[dict[str, Any] | None, list[Finding]]:
    """Read the config.json beside the weights, or in the root."""
    by_path = {file.path: file for file in listing}
    folder = chosen.files[0].path.rpartition("/")[0]
    file = by_path.get(f"{folder}/config.json" if folder else "config.json") or by_path.get("config.json")
    if file is None:
        return None, []
    try:
        config = parse_config(store.read_small(file, MAX_CONFIG_BYTES))
    except SourceError as error:
        return None, [_config_finding(file.path, f"cannot be read: {error.problem}")]
    return (config, []) if config is not None else (None, [_config_finding(file.path, "is no JSON object")])


def _config_finding(path: str, problem: str) -> Finding:
    return finding("config-unreadable", path, f"{path} {problem}; what it declares is not known", file=path)


def _checkpoint(
    store: FileStore,
    chosen: FileSet,
    read: Sequence[ReadShard],
    config: dict[str, Any] | None,
    findings: Sequence[Finding],
) -> Checkpoint:
    headers = [(shard.file.path, shard.header) for shard in read if shard.header is not None]
    for shard in read:
        contradictory = isinstance(shard.error, MalformedHeaderError) and shard.error.contradictory
        if shard.error and (contradictory or not headers):
            raise shard.error
    table, meaning = understand(headers, config)
    found = [*findings, *meaning, *(item for shard in read for item in _shard_findings(shard))]
    architecture = _architecture(config)
    return Checkpoint(
        source=store.source,
        commit=store.commit,
        format=chosen.format,
        set_name=chosen.name,
        shards=tuple(map(_shard, read)),
        tensors=table,
        config=config,
        metadata={key: value for _, header in headers for key, value in (header.metadata or {}).items()},
        architecture=architecture,
        family=family_of(architecture),
        findings=in_order(found),
        complete=not any(item.code in INCOMPLETE for item in found),
        traffic=store.traffic,
    )


def _architecture(config: Mapping[str, Any] | None) -> str | None:
    model_type = (config or {}).get("model_type")
    return model_type if isinstance(model_type, str) else None


def _shard(read: ReadShard) -> Shard:
    file, header = read.file, read.header
    if header is None:
        return Shard(
            path=file.path, file_bytes=read.file_bytes, unread_bytes=read.file_bytes, sha256=file.sha256, url=file.url
        )
    return Shard(
        path=file.path,
        file_bytes=header.file_bytes,
        header_bytes=header.header_bytes,
        tensor_bytes=header.tensor_bytes,
        padding_bytes=header.padding_bytes,
        missing_bytes=header.missing_bytes,
        sha256=file.sha256,
        url=file.url,
        metadata=header.metadata,
    )


def _shard_findings(read: ReadShard) -> Iterator[Finding]:
    file = read.file
    if read.error is not None:
        yield finding(
            "shard-unreadable",
            file.path,
            f"its header cannot be read: {read.error.problem}",
            file=file.path,
            expected=read.error.expected,
            actual=read.error.actual,
        )
    if file.size is not None and file.size != read.file_bytes:
        yield finding(
            "size-differs-from-listing",
            file.path,
            "the file has another size than the listing says",
            file=file.path,
            expected=file.size,
            actual=read.file_bytes,
        )
    yield from read.header.findings if read.header else ()
