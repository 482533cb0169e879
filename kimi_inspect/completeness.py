"""What a model's config promises and its headers lack: layers, components, draft layers, single tensors.

Nothing is said of a part of a checkpoint: what has neither embeddings nor most of the layers is taken for a shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from kimi_inspect.census import expert_findings, experts_by_layer
from kimi_inspect.components import Component
from kimi_inspect.dimensions import find_wrong_shapes
from kimi_inspect.expecting import expected_tensors
from kimi_inspect.facts import Facts, facts_of
from kimi_inspect.families import ATTENTION_OF, PARTS_OF, RULES, SHOWN_BY, family_of
from kimi_inspect.findings import MAX_EXAMPLES, finding
from kimi_inspect.inventory import Inventory, Template
from kimi_inspect.meaning import Meaning
from kimi_inspect.packing import leaf_role
from kimi_inspect.promises import Comparison, Lack, compare
from kimi_inspect.rules import judge
from kimi_inspect.siblings import BUFFERS, find_missing_siblings, stack_of
from kimi_inspect.sums import present
from kimi_inspect.table import COMPONENTS, TensorTable
from kimi_inspect.text import number_ranges
from kimi_inspect.values import Finding, Role, Severity

__all__ = ["OF_EXPERTS", "find_lacks", "layers_beyond"]


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
    whole = Component.EMBEDDINGS in seen.components or len(seen.layers) * 2 > (facts.layers or len(seen.layers) * 2)
    found = [*_mismatch(seen, architecture, whole=whole)]
    if found or not seen.layers:
        return found
    found += [*_disbelieved(facts)]
    family = family_of(architecture)
    names = _compared(expected_tensors(config) if config and weights_format == "safetensors" else None, meaning, seen)
    found += [*expert_findings(experts_by_layer(meaning.table), facts, partial=names is None)]
    if whole:
        lost = names.lost if names else frozenset()
        found += [*_layers(seen, facts), *_components(seen, facts, side_roles, lost)]
    if names is not None:
        found += [*_names(names, meaning, seen, [*found, *meaning.findings], whole=whole)]
    elif whole:
        found += [*_lacks_by_family(meaning.table, seen, facts, family), *_beyond(meaning.table, facts)]
    if whole:
        told = frozenset(item.code for item in [*found, *meaning.findings])
        known = family in ATTENTION_OF and SHOWN_BY.get(family or "") is not Component.LINEAR_ATTENTION
        found += [*find_wrong_shapes(meaning.table, facts, known=known, plain=_is_plain(family), codes=told)]
    return found


def _lacks_by_family(table: TensorTable, seen: _Seen, facts: Facts, family: str | None) -> Iterator[Finding]:
    """Find what layers lack, and what stands around them, where it is not known name by name."""
    # A draft for another model may lack what each of its layers would have.
    plain = _is_plain(family) and Component.NORMS in seen.components and len(seen.layers) > DRAFT_LAYERS
    yield from find_missing_siblings(table, edges=family in ATTENTION_OF, plain=plain and not facts.shares_keys)
    yield from _around(table, seen, facts, family)


def _is_plain(family: str | None) -> bool:
    """Whether a family is known to have the common attention alone."""
    return family is not None and ATTENTION_OF.get(family) == frozenset()


def _disbelieved(facts: Facts) -> Iterator[Finding]:
    """Find a number of layers that is none."""
    if facts.disbelieved:
        key, value = facts.disbelieved
        shown = repr(value)[:MAX_SHOWN]
        message = f"{key} is {shown}, which is no number of layers; how many are declared is not known"
        yield finding("config-unreadable", key, message, expected="a number of layers", actual=shown)


def layers_beyond(table: TensorTable, facts: Facts) -> list[int]:
    """Return the layers behind the last one that is declared, but for draft layers; none where any before is missing.

    A model of several stacks has a number for each, of which one may be greater than is said of another.
    """
    columns = table.columns
    of_stack = (columns.layer >= 0) & (columns.component != COMPONENTS.index(Component.MTP))
    layers = frozenset(present(columns.layer[of_stack]).tolist())
    declared = facts.layers or 0
    if not declared or not layers >= {*range(declared)} or len(layers) == declared:
        return []
    used = np.unique(columns.patterns.code[of_stack]).tolist()
    texts = columns.patterns.texts
    if len({stack_of(texts[code]) for code in used}) > 1:
        return []
    if len(layers) <= facts.other_layers:
        return []
    return sorted(layer for layer in layers if layer >= declared + (facts.draft_layers or 0))


def _beyond(table: TensorTable, facts: Facts) -> Iterator[Finding]:
    """Find layers behind the last one that is declared."""
    beyond = layers_beyond(table, facts)
    if beyond:
        message = f"{facts.layers} layers are declared, and more are stored: {number_ranges(beyond)}; loaders pass over"
        yield finding(
            "unexpected-tensor",
            f"layer {beyond[0]}",
            f"{message} them, or refuse them",
            expected=facts.layers,
            actual=beyond[-1] + 1,
            layer=beyond[0],
            count=len(beyond),
            examples=[f"layer {layer}" for layer in beyond[:MAX_EXAMPLES]],
        )


@frozen(eq=False)
class _Names:
    """Names that are promised against those that are there.

    Attributes:
        comparison: what is missing, and what nobody expects.
        lost: components of which every name is missing, and not for want of their layers alone.
    """

    comparison: Comparison
    lost: frozenset[Component]


def _compared(inventory: Inventory | None, meaning: Meaning, seen: _Seen) -> _Names | None:
    """Compare the names with what is promised; None where that is not known, or the layout is another, as MLX's."""
    if inventory is None or len(inventory) > MAX_NAMES:
        return None
    comparison = compare(inventory, meaning.patterns, unique=not meaning.table.columns.repeated.any())
    of_stack = meaning.table.columns.layer >= 0
    if 2 * np.count_nonzero(of_stack[comparison.unexpected]) > np.count_nonzero(of_stack):
        return None
    promised: Counter[Component] = Counter()
    missing: Counter[Component] = Counter()
    here: set[Component] = set()
    for template in inventory.templates:
        promised[_component_of(template)] += len(template)
    for lack in comparison.lacks:
        component = _component_of(lack.template)
        missing[component] += len(lack.missing)
        if _in_layers(lack, seen).any():
            here.add(component)
    lost = {one for one in here - seen.components if missing[one] == promised[one]}
    # What every kind of attention has is lost with the kinds.
    return _Names(comparison, frozenset(lost if lost & _SPECIAL else lost - {Component.ATTENTION}))


def _in_layers(lack: Lack, seen: _Seen) -> NDArray[np.bool_]:
    """Tell which of the missing names stand in no layer, or in one of which something is there."""
    layers = lack.numbers("layer")
    return (layers < 0) | np.isin(layers, list(seen.layers))


def _component_of(template: Template) -> Component:
    return judge(template.shape, RULES["safetensors"]).component


def _names(names: _Names, meaning: Meaning, seen: _Seen, found: Sequence[Finding], *, whole: bool) -> Iterator[Finding]:
    """Find the names that the config promises and that are not there, but for those that another finding explains."""
    codes = {item.code for item in found}
    missing: list[str] = []
    count = 0
    for lack in names.comparison.lacks:
        component = _component_of(lack.template)
        scale = leaf_role(lack.template.shape) is Role.SCALE and "scale-missing" in codes
        told = (whole and component in names.lost) or not (whole or component in seen.components)
        if scale or told or (component is Component.ROUTED_EXPERTS and codes & OF_EXPERTS):
            continue
        outside = lack.numbers("layer") < 0
        here = np.flatnonzero(_in_layers(lack, seen) & (whole | ~outside))
        missing += [lack.template.name(int(lack.missing[row])) for row in here[:MAX_EXAMPLES]]
        count += len(here)
    if count:
        message = "a tensor that the config promises is not there; loaders fail, or leave what is in memory"
        yield finding("tensor-missing", missing[0], message, tensor=missing[0], count=count, examples=missing)
    yield from _unexpected(names.comparison.unexpected, meaning, codes)


def _unexpected(rows: NDArray[np.int64], meaning: Meaning, codes: Collection[str]) -> Iterator[Finding]:
    """Find the tensors that no config promises, but for experts whose number is told to be wrong."""
    buffers = np.array([text.endswith(BUFFERS) for text in meaning.patterns.texts] or [False])
    rows = rows[~buffers[meaning.patterns.code[rows]]]
    if OF_EXPERTS.intersection(codes):
        rows = rows[meaning.table.columns.component[rows] != COMPONENTS.index(Component.ROUTED_EXPERTS)]
    if len(rows):
        names = [meaning.table[int(row)].name for row in rows[:MAX_EXAMPLES]]
        message = "a tensor that the config's family does not know; loaders pass over it, or refuse it"
        yield finding("unexpected-tensor", names[0], message, tensor=names[0], count=len(rows), examples=names)


MAX_SHOWN = 40
"""Characters of a value in a message."""

MAX_NAMES = 20_000_000
"""More names than any model has are not looked for one by one."""

DRAFT_LAYERS = 2
"""A model of so few layers may draft for another, whose embeddings and last norm it uses."""

OF_EXPERTS = frozenset({"expert-missing", "experts-uneven", "expert-count-disagrees"})
"""Findings that say which routed experts there are."""


def _seen(table: TensorTable) -> _Seen:
    columns = table.columns
    of_stack = columns.component != COMPONENTS.index(Component.MTP)
    components = frozenset(COMPONENTS[code] for code in present(columns.component).tolist())
    return _Seen(
        components=components,
        layers=frozenset(present(columns.layer[of_stack]).tolist()),
        unknown=Component.OTHER in components,
    )


def _mismatch(seen: _Seen, architecture: str | None, *, whole: bool) -> Iterator[Finding]:
    """Find tensors that are of another family: a kind of attention that this one does not have, or parts that it lacks.

    Of a part of a model, which has no norms perhaps, and beside tensors that no rule knows, only what is there counts.
    """
    family = family_of(architecture) or ""
    allowed = ATTENTION_OF.get(family)
    kinds = {*_SPECIAL, Component.ATTENTION} & seen.components
    if allowed is None:
        return
    strange = sorted((kinds & _SPECIAL) - allowed)
    if strange:
        yield _other_family(f"the tensors are of a model with {', '.join(strange)}", architecture, allowed, strange)
    elif whole and 0 in seen.layers and not seen.unknown and kinds and Component.NORMS in seen.components:
        parts = PARTS_OF.get(family, frozenset())
        absent = sorted(parts - seen.components)
        shown = SHOWN_BY.get(family)
        if shown is not None and shown not in kinds:
            yield _other_family(f"no layer has {shown}", architecture, [shown], sorted(kinds))
        # The parts lie in layers of experts and of full attention: a model of a few layers may be without.
        elif {Component.ROUTED_EXPERTS, Component.MLA_ATTENTION} <= seen.components and len(absent) > 1:
            yield _other_family(f"no layer has {' or '.join(absent)}", architecture, absent, sorted(kinds))


_SPECIAL = frozenset({Component.KDA_ATTENTION, Component.MLA_ATTENTION, Component.LINEAR_ATTENTION})


def _other_family(what: str, architecture: str | None, expected: Iterable[str], actual: Sequence[str]) -> Finding:
    message = f"declared as {architecture}, but {what}; it is another model under this name"
    return finding("architecture-mismatch", "config", message, expected=sorted(expected), actual=actual)


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


def _around(table: TensorTable, seen: _Seen, facts: Facts, family: str | None) -> Iterator[Finding]:
    """Find what decoders of known families have before and behind their layers, where all of these are there."""
    known = family in ATTENTION_OF and SHOWN_BY.get(family) is not Component.LINEAR_ATTENTION
    whole = (facts.layers or 0) > DRAFT_LAYERS and seen.layers >= {*range(facts.layers or 0)}
    if not known or not whole or seen.unknown or Component.NORMS not in seen.components:
        return
    if Component.EMBEDDINGS not in seen.components:
        yield _lost([Component.EMBEDDINGS], Severity.ERROR)
    columns = table.columns
    if not np.any((columns.component == COMPONENTS.index(Component.NORMS)) & (columns.layer < 0)):
        stack = stack_of(table.name_of(int(np.argmax(columns.layer >= 0)))) or ""
        name = "output_norm.weight" if stack.endswith("blk.") else f"{stack.removesuffix('layers.')}norm.weight"
        message = "the norm behind the last layer is not there; loaders fail"
        yield finding("tensor-missing", name, message, tensor=name, examples=[name])


def _components(
    seen: _Seen, facts: Facts, side_roles: Sequence[str], lost: AbstractSet[Component]
) -> Iterator[Finding]:
    """Find components that are declared and of which nothing is there; `lost` are those that lack by their names."""
    has_experts = Component.ROUTED_EXPERTS in seen.components
    promised = (
        (facts.vision and "vision" not in side_roles, Component.VISION_TOWER, Severity.WARNING),
        (facts.audio, Component.AUDIO_TOWER, Severity.WARNING),
        (facts.shared_experts and has_experts, Component.SHARED_EXPERTS, Severity.ERROR),
        (facts.indexer and Component.MLA_ATTENTION in seen.components, Component.SPARSE_INDEXER, Severity.ERROR),
        ((facts.experts or 0) > 1 and max(seen.layers) >= facts.dense_layers, Component.ROUTED_EXPERTS, Severity.ERROR),
        (facts.tied is False and Component.EMBEDDINGS in seen.components, Component.LM_HEAD, Severity.ERROR),
    )
    told = {Component.PROJECTOR} if Component.VISION_TOWER not in seen.components else set()
    for declared, component, severity in promised:
        if declared and component not in seen.components and not seen.unknown:
            told.add(component)
            yield _lost([component], severity)
    rest = [component for component in COMPONENTS if component in lost - told - {Component.ATTENTION}]
    if rest:
        yield _lost(rest, Severity.ERROR)
    if facts.draft_layers and "draft" not in side_roles and Component.MTP not in seen.components:
        message = (
            f"{facts.draft_layers} draft layers are declared, and no tensor of one is there; it decodes without them"
        )
        yield finding("mtp-missing", "mtp", message, expected=facts.draft_layers, actual=0)


def _lost(components: Sequence[Component], severity: Severity) -> Finding:
    """Tell what is lost, which is one cause however many components it takes."""
    what = ", ".join(components)
    message = f"the config declares {what}, and no tensor of {'it' if len(components) == 1 else 'them'} is there"
    return finding(
        "component-missing",
        components[0],
        message,
        expected=what,
        count=len(components),
        examples=components if len(components) > 1 else (),
        severity=severity,
    )
