"""What the files of a checkpoint's own set hold, counted, and where names stand that say something of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import PurePath

import numpy as np
from attrs import frozen

from kimi_inspect.causes import Told
from kimi_inspect.checkpoint import Checkpoint
from kimi_inspect.components import Component, Group
from kimi_inspect.published import repository_of
from kimi_inspect.report import Report
from kimi_inspect.sidecars import ShardName
from kimi_inspect.sums import exact_sum, exact_sums, present
from kimi_inspect.table import COMPONENTS, TensorTable
from kimi_inspect.values import Role, Shard

__all__ = ["FOLDER", "REPOSITORY", "Counted", "all_opened"]

REPOSITORY, FOLDER = "repository name", "folder name"
"""Places of names; that of a folder is the reader's own, and often says what lay in it once."""

UNNAMED = frozenset({Component.EMBEDDINGS, Component.LM_HEAD}) | {
    component for component in Component if component.group in (Group.MULTIMODAL, Group.DRAFT)
}
"""What names of sizes may leave out."""

_INTEGERS = re.compile(r"[iu]\d+")
"""Encodings of weights that are plain integers: a packing that no rule knows, of which each may hold several values."""


_MODELSCOPE = "ms://"
"""What the sources of ModelScope's repositories begin with."""


@frozen(kw_only=True)
class Counted:
    """The set's own files, counted.

    Attributes:
        whole: all of the set was opened and read.
        parameters: None if those of some tensors are not known.
        unnamed: of these, those of components that names of sizes may leave out.
        routed: of these, those of routed experts.
        experts: in each layer; None where there are none, or not the same number everywhere.
        encodings: of weights, most bytes first.
        places: where names stand, and the names.
        sole: nothing else can be opened there, so that the repository's name speaks of this set.
        comparable: no finding tells of tensors that are missing or too many, so that totals can be held against it.
        is_model: it holds a model, not what goes beside one, and all its values are counted one by one.
    """

    checkpoint: Checkpoint
    shards: tuple[Shard, ...]
    whole: bool
    parameters: int | None
    unnamed: int
    routed: int
    experts: int | None
    encodings: tuple[str, ...]
    places: tuple[tuple[str, str], ...]
    sole: bool
    comparable: bool
    is_model: bool

    @classmethod
    def of(cls, checkpoint: Checkpoint, report: Report) -> Counted:
        """Count."""
        sides = {item.path for item in checkpoint.companions if item.counted}
        shards = tuple(shard for shard in checkpoint.shards if shard.path not in sides)
        tensors = checkpoint.tensors.of_shards({shard.path for shard in shards})
        census, encodings = report.experts, _encodings(tensors)
        told = Told(checkpoint.findings, checkpoint.tensors)
        return cls(
            checkpoint=checkpoint,
            shards=shards,
            whole=checkpoint.complete and all_opened([shard.path for shard in shards]),
            parameters=_parameters(tensors, COMPONENTS),
            unnamed=_parameters(tensors, UNNAMED) or 0,
            routed=_parameters(tensors, {Component.ROUTED_EXPERTS}) or 0,
            experts=census.per_layer_min if census and census.per_layer_min == census.per_layer_max else None,
            encodings=encodings,
            places=tuple(_places(checkpoint, shards)),
            sole=not checkpoint.other_sets,
            comparable=not (told.changes_size or told.other_model),
            is_model=bool(_parameters(tensors, {Component.EMBEDDINGS}))
            and not any(map(_INTEGERS.fullmatch, encodings)),
        )

    @property
    def is_gguf(self) -> bool:
        """Whether it is a GGUF set."""
        return self.checkpoint.format == "gguf"

    @property
    def tensor_bytes(self) -> int:
        """What the headers declare."""
        return sum(shard.tensor_bytes for shard in self.shards)

    def equal(self, said: int, counted: int | None) -> bool | None:
        """Compare a total; None where it is not known, or not that of the whole set."""
        return said == counted if self.whole and counted is not None else None


def all_opened(paths: Sequence[str]) -> bool:
    """Whether these are as many files as their names say that there are: globs may have chosen a part."""
    numbers: dict[tuple[str, int], set[int]] = {}
    for name in map(ShardName.of, paths):
        if name.count is not None:
            numbers.setdefault((name.set_name, name.count), set()).add(name.number or 0)
    # Some sets are numbered from 0, and a few of these end with the number that they say is that of all.
    return all(len(found) == count + ({0, count} <= found) for (_, count), found in numbers.items())


def _parameters(tensors: TensorTable, components: Collection[Component]) -> int | None:
    """Count the values of some components, those of a name that came before once; None if some are not known."""
    columns, rows = tensors.columns, tensors.rows
    wanted = np.array([component in components for component in COMPONENTS])[columns.component[rows]]
    counts = tensors.parameters[wanted & ~columns.repeated[rows]]
    return None if (counts < 0).any() else exact_sum(counts)


def _encodings(tensors: TensorTable) -> tuple[str, ...]:
    """Return the encodings of weights, most bytes first."""
    columns, rows = tensors.columns, tensors.rows
    sizes: Counter[str] = Counter()
    nbytes = exact_sums(columns.look[rows], (columns.end - columns.begin)[rows], len(columns.looks))
    for code in present(columns.look[rows]).tolist():
        if columns.looks[code].role is Role.WEIGHT:
            sizes[columns.looks[code].encoding] += nbytes[code]
    return tuple(encoding for encoding, _ in sizes.most_common())


def _places(checkpoint: Checkpoint, shards: Sequence[Shard]) -> Iterator[tuple[str, str]]:
    """Yield where names stand that may say something, and these; that of a folder last, as it says the least."""
    source = checkpoint.source
    repository = repository_of(source, checkpoint.commit)
    if repository is None and source.startswith(_MODELSCOPE):
        repository = source.removeprefix(_MODELSCOPE).partition("@")[0]
    if repository is not None:
        yield REPOSITORY, repository.partition("/")[2]
    yield "set name", checkpoint.set_name
    if shards:
        yield "file name", ShardName.of(shards[0].path).stem
    if repository is None and not source.endswith((".safetensors", ".gguf")) and not source.startswith("<"):
        yield FOLDER, PurePath(source).name
