"""What a model's config promises and its headers lack: layers, components, draft layers, single tensors.

Nothing is said of a part of a checkpoint: what has neither embeddings nor most of the layers is taken for a shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import frozen

from kimi_inspect.census import expert_findings, experts_by_layer
from kimi_inspect.components import Component
from kimi_inspect.expecting import expected_tensors
from kimi_inspect.facts import Facts, facts_of
from kimi_inspect.families import ATTENTION_OF, RULES, family_of
from kimi_inspect.findings import MAX_EXAMPLES, finding
from kimi_inspect.inventory import Inventory
from kimi_inspect.meaning import Meaning
from kimi_inspect.packing import leaf_role
from kimi_inspect.promises import compare
from kimi_inspect.rules import judge
from kimi_inspect.sums import present
from kimi_inspect.table import COMPONENTS, TensorTable
from kimi_inspect.values import Finding, Role, Severity

__all__ = ["find_lacks"]


@frozen(eq=False, kw_only=True)
class _Seen:
    """What is there.

    Attributes:
        components: those that have tensors.
        layers: numbers of the layers of the language stack.
        unknown: tensors that no rule knows, numbered ones among them.
    """

    components: frozenset[Component]
    layers: frozenset[int]
    unknown: bool


def find_lacks(
    meaning: Meaning,
    config: Mapping[str, Any] | None,
    metadata: Mapping[str, Any],
    *,
    architecture: str | None,
    weights_format: str,
    side_roles: Sequence[str] = (),
) -> list[Finding]:
    """Find what is declared and not there.

    Args:
        meaning: all tensors.
        config: the parsed config.json, or None.
        metadata: GGUF key-values.
        architecture: what the checkpoint calls itself.
        weights_format: ``safetensors`` or ``gguf``.
        side_roles: roles of the side files, whether counted or not.
    """
    facts = facts_of(config, metadata, weights_format=weights_format)
    seen = _seen(meaning.table)
    found = [*_mismatch(seen, architecture)]
    if found or not seen.layers:
        return found
    inventory = expected_tensors(config) if config and weights_format == "safetensors" else None
    experts = experts_by_layer(meaning.table)
    found += [*expert_findings(experts, facts, partial=inventory is None)]
    whole = Component.EMBEDDINGS in seen.components or len(seen.layers) * 2 > (facts.layers or len(seen.layers) * 2)
    if whole:
        found += [*_layers(seen, facts), *_components(seen, facts, side_roles)]
    if inventory is not None:
        found += [*_names(inventory, meaning, seen, [*found, *meaning.findings], whole=whole)]
    return found


def _names(
    inventory: Inventory, meaning: Meaning, seen: _Seen, found: Sequence[Finding], *, whole: bool
) -> Iterator[Finding]:
    """Find the names that the config promises and that are not there, but for those that another finding explains."""
    if len(inventory) > MAX_NAMES:
        return
    comparison = compare(inventory, meaning.patterns, unique=not meaning.table.columns.repeated.any())
    of_stack = meaning.table.columns.layer >= 0
    if 2 * np.count_nonzero(of_stack[comparison.unexpected]) > np.count_nonzero(of_stack):
        return  # the model's layout is another, MLX's for instance
    codes = {item.code for item in found}
    lost = {item.expected for item in found if item.code == "component-missing"}
    lost |= {Component.PROJECTOR} if Component.VISION_TOWER in lost else set()
    missing: list[str] = []
    count = 0
    for lack in comparison.lacks:
        component = judge(lack.template.shape, RULES["safetensors"]).component
        scale = leaf_role(lack.template.shape) is Role.SCALE and "scale-missing" in codes
        told = component in lost or not (whole or component in seen.components)
        if scale or told or (component is Component.ROUTED_EXPERTS and codes & _OF_EXPERTS):
            continue
        layers = lack.numbers("layer")
        here = np.flatnonzero(((layers < 0) & whole) | np.isin(layers, list(seen.layers)))
        missing += [lack.template.name(int(lack.missing[row])) for row in here[:MAX_EXAMPLES]]
        count += len(here)
    if count:
        message = "a tensor that the config promises is not there; loaders fail, or leave what is in memory"
        yield finding("tensor-missing", missing[0], message, tensor=missing[0], count=count, examples=missing)
    rows = comparison.unexpected
    buffers = np.array([text.endswith(BUFFERS) for text in meaning.patterns.texts] or [False])
    rows = rows[~buffers[meaning.patterns.code[rows]]]
    if len(rows):
        names = [meaning.table[int(row)].name for row in rows[:MAX_EXAMPLES]]
        message = "a tensor that the config's family does not know; loaders pass over it, or refuse it"
        yield finding("unexpected-tensor", names[0], message, tensor=names[0], count=len(rows), examples=names)


MAX_NAMES = 20_000_000
"""More names than any model has are not looked for one by one."""

BUFFERS = ("rotary_emb.inv_freq",)
"""Last parts of names of tensors that some tools save with the weights and that loaders compute."""

_OF_EXPERTS = {"expert-missing", "experts-uneven", "expert-count-disagrees"}


def _seen(table: TensorTable) -> _Seen:
    columns = table.columns
    of_stack = columns.component != COMPONENTS.index(Component.MTP)
    components = frozenset(COMPONENTS[code] for code in present(columns.component).tolist())
    return _Seen(
        components=components,
        layers=frozenset(present(columns.layer[of_stack]).tolist()),
        unknown=Component.OTHER in components,
    )


def _mismatch(seen: _Seen, architecture: str | None) -> Iterator[Finding]:
    """Find a kind of attention that the declared family does not have."""
    family = family_of(architecture)
    allowed = ATTENTION_OF.get(family or "")
    kinds = {Component.KDA_ATTENTION, Component.MLA_ATTENTION, Component.LINEAR_ATTENTION} & seen.components
    if allowed is not None and kinds - allowed:
        strange = sorted(kinds - allowed)
        message = f"declared as {architecture}, but the tensors are of a model with {', '.join(strange)}"
        yield finding("architecture-mismatch", "config", message, expected=sorted(allowed), actual=strange)


def _layers(seen: _Seen, facts: Facts) -> Iterator[Finding]:
    """Find layers that are declared, or lie between others, and have no tensor."""
    if seen.unknown and facts.layers is None:
        return
    declared = facts.layers if facts.layers is not None else max(seen.layers) + 1
    missing = sorted(set(range(declared)) - seen.layers)
    if missing and not (seen.unknown and len(missing) == declared):
        message = f"{len(missing)} of {declared} layers have no tensor; loaders fail"
        yield finding(
            "layer-missing",
            f"layer {missing[0]}",
            message,
            expected=declared,
            actual=declared - len(missing),
            layer=missing[0],
            count=len(missing),
            examples=[f"layer {number}" for number in missing[:MAX_EXAMPLES]],
        )


def _components(seen: _Seen, facts: Facts, side_roles: Sequence[str]) -> Iterator[Finding]:
    """Find components that are declared and of which nothing is there."""
    has_experts = Component.ROUTED_EXPERTS in seen.components
    promised = (
        (facts.vision and "vision" not in side_roles, {Component.VISION_TOWER}, Severity.WARNING),
        (facts.audio, {Component.AUDIO_TOWER}, Severity.WARNING),
        (facts.shared_experts and has_experts, {Component.SHARED_EXPERTS}, Severity.ERROR),
        (facts.indexer and Component.MLA_ATTENTION in seen.components, {Component.SPARSE_INDEXER}, Severity.ERROR),
        (
            (facts.experts or 0) > 1 and max(seen.layers) >= facts.dense_layers,
            {Component.ROUTED_EXPERTS},
            Severity.ERROR,
        ),
        (facts.tied is False and Component.EMBEDDINGS in seen.components, {Component.LM_HEAD}, Severity.ERROR),
    )
    for declared, components, severity in promised:
        if declared and not components & seen.components and not seen.unknown:
            name = next(component for component in COMPONENTS if component in components)
            message = f"the config declares {name}, and no tensor of it is there"
            yield finding("component-missing", name, message, expected=str(name), severity=severity)
    if facts.draft_layers and "draft" not in side_roles and Component.MTP not in seen.components:
        message = (
            f"{facts.draft_layers} draft layers are declared, and no tensor of one is there; it decodes without them"
        )
        yield finding("mtp-missing", "mtp", message, expected=facts.draft_layers, actual=0)
