"""A checkpoint as its headers show it, and how it is put together from what was read of its files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from kimi_inspect.causes import apart
from kimi_inspect.choosing import Found
from kimi_inspect.companions import IMATRIX, SideFile, companions_of, role_of
from kimi_inspect.completeness import find_lacks
from kimi_inspect.errors import MalformedHeaderError, NotWeightsError
from kimi_inspect.families import family_of
from kimi_inspect.findings import finding, in_order
from kimi_inspect.labels import find_wrong_labels
from kimi_inspect.meaning import Meaning, understand
from kimi_inspect.reading import ReadShard
from kimi_inspect.sources import FileStore
from kimi_inspect.table import TensorTable
from kimi_inspect.values import Companion, Finding, Shard, Traffic
from kimi_inspect.wholeness import split_findings

__all__ = ["UNREAD", "Checkpoint", "put_together"]

UNREAD = frozenset({"shard-missing", "shard-unreadable"})
"""Findings of a checkpoint of which not every header was read: what else it lacks is not known then."""

INCOMPLETE = UNREAD | {"truncated"}
"""Findings that mean that not all of the checkpoint is there."""


@frozen(kw_only=True, eq=False, repr=False)
class Checkpoint:
    """A checkpoint as its headers show it. It holds no connection and no token.

    Attributes:
        source: what was opened.
        commit: the commit that every read was pinned to, 40 hex digits, or None.
        format: ``safetensors`` or ``gguf``.
        set_name: which set of the folder or repository it is.
        shards: its files, in order.
        tensors: its tensors, in the order of shard and offset.
        config: the parsed config.json, or None.
        metadata: the `__metadata__` of the shards, or the GGUF key-values, merged: a long array as its type and length.
        architecture: GGUF's `general.architecture`, the class of a pipeline, else `model_type` of the config, or None.
        family: the architecture in one spelling for all formats, or None.
        companions: side files of the checkpoint.
        other_sets: what else can be opened there, by name.
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
    other_sets: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    complete: bool
    traffic: Traffic

    def __repr__(self) -> str:
        return f"<Checkpoint {self.source} {self.format}, {len(self.shards)} files, {len(self.tensors):,} tensors>"


def put_together(
    store: FileStore,
    found: Found,
    counted: Sequence[SideFile],
    read: Sequence[ReadShard],
    config: dict[str, Any] | None,
    findings: Sequence[Finding],
) -> Checkpoint:
    """Make a checkpoint of what was read.

    Args:
        store: where its files are.
        found: which they are.
        counted: the side files that count.
        read: all of them, side files last.
        config: the parsed config.json, or None.
        findings: what was found before.

    Raises:
        KimiInspectError: no header can be read, or one contradicts itself.
    """
    chosen = found.chosen
    own = read[: chosen.file_count]
    _refuse_unusable(read, own)
    headers = [(shard.file.path, shard.header) for shard in read if shard.header is not None]
    sides = {file.path: side.role for side in counted for file in side.files.files}
    meaning = understand(headers, config, weights_format=chosen.format, sides=sides)
    metadata: dict[str, Any] = {}
    for shard in own:
        for key, value in (shard.header.metadata or {} if shard.header else {}).items():
            metadata.setdefault(key, value)
    architecture = _architecture(found, metadata, config)
    told = [*findings, *meaning.findings, *(item for shard in read for item in _shard_findings(shard))]
    told = apart([*told, *_set_findings(found, own, meaning, config, metadata, told)])
    return Checkpoint(
        source=store.source,
        commit=store.commit,
        format=chosen.format,
        set_name=chosen.name,
        shards=tuple(map(_shard, read)),
        tensors=meaning.table,
        config=config,
        metadata=metadata,
        architecture=architecture,
        family=family_of(architecture),
        companions=companions_of(found.sides, counted),
        other_sets=tuple(one.name for one in found.shelves.sets if one.name != chosen.name),
        findings=in_order(told),
        complete=not any(item.code in INCOMPLETE for item in told),
        traffic=store.traffic,
    )


def _set_findings(
    found: Found,
    own: Sequence[ReadShard],
    meaning: Meaning,
    config: Mapping[str, Any] | None,
    metadata: Mapping[str, Any],
    told: Sequence[Finding],
) -> list[Finding]:
    """Return what the set as a whole says of itself that is not so; of a part of one nothing is said."""
    more: list[Finding] = []
    if found.chosen.format == "gguf":
        whole = not found.partial and not any(item.code in UNREAD for item in told)
        more += _gguf_findings(own, meaning.table, metadata, whole=whole)
    if found.partial or any(item.code in UNREAD for item in [*told, *more]):
        return more
    lacks = find_lacks(
        meaning,
        config,
        metadata,
        architecture=_architecture(found, metadata, config),
        weights_format=found.chosen.format,
        side_roles=[side.role for side in found.sides],
    )
    return [*more, *lacks]


def _refuse_unusable(read: Sequence[ReadShard], own: Sequence[ReadShard]) -> None:
    """Raise where right numbers cannot be given: no header of the set can be read, or one contradicts itself."""
    readable = [shard for shard in own if shard.header]
    for shard in read:
        contradictory = isinstance(shard.error, MalformedHeaderError) and shard.error.contradictory
        if shard.error and (contradictory or not readable):
            raise shard.error
    for shard in readable:
        if shard.header and role_of(shard.header.metadata or {}) == IMATRIX:
            what = "statistics for quantization (an importance matrix), not weights"
            raise NotWeightsError(what, file=shard.file.path)


def _gguf_findings(
    own: Sequence[ReadShard], table: TensorTable, metadata: Mapping[str, Any], *, whole: bool
) -> Iterator[Finding]:
    """Yield where the parts of a set disagree, and where its label is wrong."""
    parts = [(part.file.path, part.header.metadata or {}, len(part.header.names)) for part in own if part.header]
    yield from split_findings(parts, whole=whole)
    if whole:
        encodings = set(table.of_shards([path for path, _, _ in parts]).encoding.tolist())
        yield from find_wrong_labels(parts[0][0], metadata, encodings)


def _architecture(found: Found, metadata: Mapping[str, Any], config: Mapping[str, Any] | None) -> str | None:
    named = metadata.get("general.architecture") if found.chosen.format == "gguf" else None
    named = named or (found.pipeline.class_name if found.pipeline else None)
    named = named or (config or {}).get("model_type")
    return named if isinstance(named, str) else None


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
