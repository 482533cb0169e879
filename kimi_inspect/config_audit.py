"""A checkpoint held against a config.json alone: what that promises, and what the headers have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kimi_inspect.census import experts_by_layer
from kimi_inspect.completeness import find_lacks
from kimi_inspect.difference_findings import OF_EXPERTS, pruning_finding
from kimi_inspect.facts import facts_of
from kimi_inspect.findings import finding
from kimi_inspect.meaning import Meaning
from kimi_inspect.opening import UNREAD, Checkpoint
from kimi_inspect.outcome import Outcome
from kimi_inspect.references import Config
from kimi_inspect.sides import families_of, same_family
from kimi_inspect.values import Finding, Severity

__all__ = ["compare_with_config"]

REDUCING = frozenset(
    {"experts-pruned", "layer-missing", "component-missing", "mtp-missing", "tensor-missing", "expert-missing"}
)


def compare_with_config(checkpoint: Checkpoint, reference: Config, *, partial: bool) -> Outcome:
    """Hold an open checkpoint against the config of another; encodings are not compared, as a config has no bytes."""
    own = {(item.code, item.where) for item in checkpoint.findings}
    if partial or any(code in {*UNREAD, "architecture-mismatch"} for code, _ in own):
        return Outcome(known=False)
    found = [item for item in _lacks(checkpoint, reference) if (item.code, item.where) not in own]
    codes = {item.code for item in found} | {code for code, _ in own}
    return Outcome(
        findings=tuple(found),
        different="architecture-mismatch" in codes,
        reduced=bool(codes & REDUCING),
        known=False,
    )


def _lacks(checkpoint: Checkpoint, reference: Config) -> Iterator[Finding]:
    config = reference.config
    named = config.get("model_type")
    architecture = named if isinstance(named, str) else None
    its = families_of(architecture, config)
    mine = families_of(checkpoint.architecture, checkpoint.config)
    if its and mine and not same_family(mine, its):
        message = f"of the family {mine[0]}; the reference's config is of {its[0]}"
        yield finding("architecture-mismatch", "config", message, expected=its[0], actual=mine[0])
        return
    meaning = Meaning(table=checkpoint.tensors, patterns=checkpoint.tensors.columns.patterns, findings=())
    lacks = find_lacks(
        meaning,
        config,
        {},
        architecture=architecture,
        weights_format="safetensors",  # whose form a config.json is
        side_roles=[side.role for side in checkpoint.companions],
    )
    told = any(item.code in OF_EXPERTS and item.severity is Severity.ERROR for item in checkpoint.findings)
    pruned = _pruned(checkpoint, config)
    yield from () if told else pruning_finding(pruned)
    yield from (item for item in lacks if not ((told or pruned) and item.code in OF_EXPERTS))


def _pruned(checkpoint: Checkpoint, config: Mapping[str, Any]) -> dict[int, tuple[int, int]]:
    """Return the layers with fewer experts than the config says, and how many of how many."""
    declared = facts_of(config, {}, weights_format="safetensors").experts
    layers = [one for one in experts_by_layer(checkpoint.tensors) if one.count]
    return {one.layer: (declared, one.count) for one in layers if declared and one.count < declared}
