"""From parsed headers to the tensor table: what each tensor is, and what does not add up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from kimi_inspect.classifying import Classes, classify
from kimi_inspect.components import Component, Group
from kimi_inspect.facts import MAX_COUNT
from kimi_inspect.families import rules_of
from kimi_inspect.findings import finding
from kimi_inspect.header import Header, Kind
from kimi_inspect.names import Names
from kimi_inspect.packing import block_packing, find_packing
from kimi_inspect.patterns import Patterns
from kimi_inspect.rules import Rule
from kimi_inspect.sums import exact_sum
from kimi_inspect.table import COMPONENTS, Columns, TensorTable
from kimi_inspect.values import Finding

__all__ = ["Meaning", "understand"]

UNCLASSIFIED_SHARE = 0.001
"""Share of the bytes that may be `other` without a finding."""


@frozen(eq=False, kw_only=True)
class Meaning:
    """What the tensors are: the table, the patterns of their names, and what does not add up."""

    table: TensorTable
    patterns: Patterns
    findings: tuple[Finding, ...]


def understand(
    headers: Sequence[tuple[str, Header]],
    config: Mapping[str, Any] | None,
    *,
    weights_format: str,
    sides: Mapping[str, str] | None = None,
) -> Meaning:
    """Make the table of all tensors.

    Args:
        headers: path and header of each shard, in order.
        config: the parsed config.json, or None.
        weights_format: ``safetensors`` or ``gguf``.
        sides: by path, the roles of those that are side files: models of their own, with names of their own.
    """
    is_gguf = weights_format == "gguf"
    parts = [header for _, header in headers]
    names = tuple(header.names for header in parts)
    shard = np.repeat(np.arange(len(names), dtype=np.int32), list(map(len, names)))
    kinds, kind = _merged_kinds(parts)
    patterns = Patterns.of(names)
    classes = _classes(
        patterns, [path for path, _ in headers], shard, sides or {}, rules_of(weights_format, patterns.texts)
    )
    if is_gguf:
        packing = block_packing(patterns, kinds, kind)
    else:
        packing = find_packing(patterns, kinds, kind, config=config, name_of=_namer(names))
    owners = [_owner(path, (sides or {}).get(path), headers[0][0]) for path, _ in headers]
    columns = Columns(
        names=names,
        patterns=patterns,
        paths=tuple(path for path, _ in headers),
        kinds=kinds,
        looks=tuple(packing.looks),
        kind=kind,
        look=packing.look,
        shard=shard,
        component=classes.component,
        layer=classes.layer,
        block=classes.block,
        expert=classes.expert,
        experts=_experts(classes, kinds, kind, outermost=-1 if is_gguf else 0),
        begin=_joined([header.begin + header.data_start for header in parts]),
        end=_joined([header.end + header.data_start for header in parts]),
        repeated=_repeated(patterns, _numbered(owners)[shard]),
    )
    table = TensorTable(columns)
    findings = (*packing.findings, *_repeat_findings(table, columns.repeated), *_unclassified(table))
    return Meaning(table=table, patterns=patterns, findings=findings)


def _namer(names: Sequence[Names]) -> Callable[[int], str]:
    """Return what gives the name of a row, counted over all shards."""
    first = np.cumsum([0, *map(len, names)])

    def name_of(row: int) -> str:
        shard = int(np.searchsorted(first, row, side="right")) - 1
        return names[shard][row - int(first[shard])]

    return name_of


def _classes(
    patterns: Patterns,
    paths: Sequence[str],
    shard: NDArray[np.int32],
    sides: Mapping[str, str],
    rules: Sequence[Rule],
) -> Classes:
    """Classify all tensors, each side file for itself."""
    if not sides:
        return classify(patterns, rules)
    scopes = _numbered([path if path in sides else "" for path in paths])
    classes = classify(patterns, rules, scopes[shard])
    for number, path in enumerate(paths):
        if path in sides:
            _as_side(classes, shard == number, sides[path])
    return classes


def _joined(columns: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(columns) if columns else np.zeros(0, np.int64)


def _merged_kinds(headers: Sequence[Header]) -> tuple[tuple[Kind, ...], NDArray[np.int32]]:
    """Renumber the kinds of each header into one list."""
    merged: dict[Kind, int] = {}
    columns = [np.zeros(0, np.int32)]
    for header in headers:
        codes = np.array([merged.setdefault(kind, len(merged)) for kind in header.kinds] or [0], np.int32)
        columns.append(codes[header.kind])
    return tuple(merged), np.concatenate(columns)


def _experts(classes: Classes, kinds: Sequence[Kind], kind: NDArray[np.int32], *, outermost: int) -> NDArray[np.int32]:
    """Say how many experts each tensor holds: one of its own number, or its outermost dimension if they are fused."""
    routed = classes.component == COMPONENTS.index(Component.ROUTED_EXPERTS)
    counts = [kind.shape[outermost] if kind.shape else -1 for kind in kinds] or [-1]
    experts = np.array([count if count <= MAX_COUNT else -1 for count in counts], np.int32)[kind]
    experts[~(routed & classes.fused)] = -1
    experts[routed & (classes.expert >= 0)] = 1
    return experts


def _owner(path: str, role: str | None, first: str) -> str:
    """Say whose name a tensor's is: a folder's; the model's for its vision encoder; another side file's own."""
    if role is None or role == "vision":
        return (path if role is None else first).rpartition("/")[0] + "/"
    return path


def _numbered(owners: Sequence[str]) -> NDArray[np.int32]:
    """Number what names belong to: folders, or side files."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(owner, len(numbers)) for owner in owners], np.int32)


_MULTIMODAL = [code for code, component in enumerate(COMPONENTS) if component.group is Group.MULTIMODAL]


def _as_side(classes: Classes, rows: NDArray[np.bool_], role: str) -> None:
    """Count a draft model as such, whatever its tensors are called, and an adapter as nothing of the model."""
    if role == "vision":
        return
    if role == "other":
        rows = rows & ~np.isin(classes.component, _MULTIMODAL)
    classes.component[rows] = COMPONENTS.index(Component.MTP if role == "draft" else Component.OTHER)
    classes.layer[rows] = -1


def _repeated(patterns: Patterns, folder: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Mark the tensors whose name has come before in another shard of the folder; twice in a file it is an error."""
    repeated = np.zeros(len(patterns.code), bool)
    # Equal names mix to equal numbers; unequal ones may too, so those few are compared in full.
    mixed = patterns.key.astype(np.uint64)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed += patterns.code.astype(np.uint64)
    mixed ^= folder.astype(np.uint64) << np.uint64(40)
    ordered = np.sort(mixed)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    seen: set[tuple[int, int, int]] = set()
    for row in np.flatnonzero(np.isin(mixed, twice)).tolist() if len(twice) else []:
        name = int(folder[row]), int(patterns.code[row]), int(patterns.key[row])
        repeated[row] = name in seen
        seen.add(name)
    return repeated


def _repeat_findings(table: TensorTable, repeated: NDArray[np.bool_]) -> list[Finding]:
    rows = np.flatnonzero(repeated).tolist()
    if not rows:
        return []
    examples = [table[row] for row in rows[:10]]
    message = "a tensor of this name stands in another shard too; which one a loader takes is chance"
    return [
        finding(
            "duplicate-tensor",
            examples[0].shard,
            message,
            file=examples[0].shard,
            tensor=examples[0].name,
            count=len(rows),
            examples=[item.name for item in examples],
        )
    ]


def _unclassified(table: TensorTable) -> list[Finding]:
    other = table.select(component=Component.OTHER)
    nbytes, total = exact_sum(other.stored_bytes), exact_sum(table.stored_bytes)
    if nbytes <= total * UNCLASSIFIED_SHARE:
        return []
    message = f"{nbytes:,} bytes in {len(other):,} tensors are of no component that our rules know"
    names = [other[row].name for row in range(min(len(other), 10))]
    return [
        finding("unclassified", "tensors", message, tensor=names[0], count=len(other), examples=names, actual=nbytes)
    ]
