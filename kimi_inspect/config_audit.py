"""A checkpoint held against a config.json alone: what that promises, and what the headers have."""

from __future__ import annotations

from collections.abc import Iterator

from kimi_inspect.census import experts_by_layer
from kimi_inspect.checkpoint import UNREAD, Checkpoint
from kimi_inspect.completeness import find_lacks, layers_beyond
from kimi_inspect.components import Component
from kimi_inspect.difference_findings import OF_EXPERTS, pruning_finding
from kimi_inspect.facts import Facts, facts_of
from kimi_inspect.findings import MAX_EXAMPLES, finding
from kimi_inspect.meaning import Meaning
from kimi_inspect.outcome import Outcome
from kimi_inspect.references import Config
from kimi_inspect.sides import families_of, same_family
from kimi_inspect.text import number_ranges
from kimi_inspect.values import Finding, Severity

__all__ = ["compare_with_config"]

DIFFERENT = frozenset({"architecture-mismatch", "shape-differs", "parameters-differ"})

REDUCING = frozenset(
    {"experts-pruned", "layer-missing", "component-missing", "mtp-missing", "tensor-missing", "expert-missing"}
)


def compare_with_config(checkpoint: Checkpoint, reference: Config, *, partial: bool) -> Outcome:
    """Hold an open checkpoint against the config of another; encodings are not compared, as a config has no bytes."""
    own = {(item.code, item.where) for item in checkpoint.findings}
    if partial or any(code in {*UNREAD, "architecture-mismatch"} for code, _ in own):
        return Outcome(known=False)
    shown = list(_lacks(checkpoint, reference))
    # What the candidate shows by itself is told once.
    found = [item for item in shown if (item.code, item.where) not in own]
    codes = {item.code for item in found} | {code for code, _ in own}
    return Outcome(
        findings=tuple(found),
        different="architecture-mismatch" in codes or any(item.code in DIFFERENT for item in shown),
        reduced=bool(codes & REDUCING),
        known=False,
    )


def _lacks(checkpoint: Checkpoint, reference: Config) -> Iterator[Finding]:
    config = reference.config
    named = config.get("model_type")
    architecture = named if isinstance(named, str) else None
    its = families_of(architecture, config)
    mine = families_of(checkpoint.architecture, checkpoint.config)
    facts = facts_of(config, {}, weights_format="safetensors")  # whose form a config.json is
    if its and mine and (not same_family(mine, its) or (mine[0] != its[0] and _is_of_another_mlp(checkpoint, facts))):
        message = f"of the family {mine[0]}; the reference's config is of {its[0]}"
        yield finding("architecture-mismatch", "config", message, expected=its[0], actual=mine[0])
        return
    meaning = Meaning(table=checkpoint.tensors, patterns=checkpoint.tensors.columns.patterns, findings=())
    lacks = find_lacks(
        meaning,
        config,
        {},
        architecture=architecture,
        weights_format="safetensors",
        side_roles=[side.role for side in checkpoint.companions],
    )
    told = any(item.code in OF_EXPERTS and item.severity is Severity.ERROR for item in checkpoint.findings)
    pruned = _pruned(checkpoint, facts)
    yield from () if told else pruning_finding(pruned)
    more = [*_more_layers(checkpoint, facts), *(() if told else _more_experts(checkpoint, facts))]
    yield from more
    passed = OF_EXPERTS if told or pruned or more else frozenset()
    passed |= {"unexpected-tensor"} if more else frozenset()
    yield from (item for item in lacks if item.code not in passed)
    yield from _besides(checkpoint, facts)


def _is_of_another_mlp(checkpoint: Checkpoint, facts: Facts) -> bool:
    """Whether one has routed experts and the other none: Llama and Mixtral, which are one architecture in GGUF."""
    declared = facts.experts or facts.experts_by_layer
    return bool(declared) != bool(len(checkpoint.tensors.select(component=Component.ROUTED_EXPERTS)))


def _more_layers(checkpoint: Checkpoint, facts: Facts) -> Iterator[Finding]:
    beyond = layers_beyond(checkpoint.tensors, facts)
    if beyond:
        message = f"{len(beyond)} layers more than the reference's config says: {number_ranges(beyond)}"
        yield finding(
            "parameters-differ",
            f"layer {beyond[0]}",
            message,
            expected=facts.layers,
            actual=beyond[-1] + 1,
            layer=beyond[0],
            count=len(beyond),
            examples=[f"layer {layer}" for layer in beyond[:MAX_EXAMPLES]],
        )


def _more_experts(checkpoint: Checkpoint, facts: Facts) -> Iterator[Finding]:
    """Tell of more experts than the config has, as the whole model has against that of a pruned one."""
    declared = facts.experts
    more = [one for one in experts_by_layer(checkpoint.tensors) if declared and one.count > declared]
    if more:
        count = max(one.count for one in more)
        yield finding(
            "parameters-differ",
            Component.ROUTED_EXPERTS,
            f"{count} experts a layer, and {declared} in the reference's config",
            expected=declared,
            actual=count,
            layer=more[0].layer,
            count=len(more),
            examples=[f"layer {one.layer}: {one.count}" for one in more[:MAX_EXAMPLES]],
        )


def _besides(checkpoint: Checkpoint, facts: Facts) -> Iterator[Finding]:
    """Tell of components that the config does not declare."""
    for component, declared in ((Component.VISION_TOWER, facts.vision), (Component.SPARSE_INDEXER, facts.indexer)):
        if not declared and len(checkpoint.tensors.select(component=component)):
            message = f"the reference's config declares no {component}"
            yield finding("extra-component", component, message, actual=str(component))


def _pruned(checkpoint: Checkpoint, facts: Facts) -> dict[int, tuple[int, int]]:
    """Return the layers with fewer experts than the config says, and how many of how many."""
    declared = facts.experts
    layers = [one for one in experts_by_layer(checkpoint.tensors) if one.count]
    return {one.layer: (declared, one.count) for one in layers if declared and one.count < declared}
