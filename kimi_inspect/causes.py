"""One finding for one cause: what follows from a narrower finding is not told again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kimi_inspect.completeness import OF_EXPERTS
from kimi_inspect.components import Component
from kimi_inspect.families import rules_of
from kimi_inspect.inventory import shape_of
from kimi_inspect.leaves import LEAVES
from kimi_inspect.rules import Judgement, judge
from kimi_inspect.sums import present
from kimi_inspect.table import TensorTable
from kimi_inspect.values import Finding, Role, Severity

__all__ = ["Told", "apart", "but_for"]

MISMATCH = "architecture-mismatch"

OF_INDEX = frozenset({"index-tensor-absent", "index-stale", "unindexed-tensors"})

FOLLOWS_MISMATCH = OF_INDEX | {"tensor-total-wrong", "label-disagrees", "packing-disagrees"}
"""What a config, metadata or a label say of the model that is not there says nothing about the one that is."""

OF_PARTS = frozenset({"layer-missing", "component-missing", "mtp-missing", "expert-missing"})
"""Findings of tensors that are missing together; how many is not counted."""

CHANGES_SIZE = frozenset(
    {
        *OF_PARTS,
        *OF_EXPERTS,
        *("tensor-missing", "unexpected-tensor", "scale-missing", "scale-shape", "shape-differs"),
        *("duplicate-tensor", MISMATCH),
    }
)
"""Findings of tensors that are fewer, more, larger or smaller than they were."""

MAX_DIGITS = 9
"""A layer's number of more digits is none that a model has."""

_NUMBER = re.compile("[0-9]+")
_SCALES = tuple(leaf if leaf.startswith("_") else f".{leaf}" for leaf, role in LEAVES.items() if role is Role.SCALE)


def apart(findings: Iterable[Finding]) -> list[Finding]:
    """Leave out what follows from another finding of the same checkpoint."""
    kept = list(findings)
    codes = {item.code for item in kept}
    if MISMATCH in codes:
        return [item for item in kept if item.code not in FOLLOWS_MISMATCH]
    named = sum(item.count for item in kept if item.code == "tensor-missing")
    # Experts that are stacked take a tensor with them only where none of them is left.
    parts = any(item.code in OF_PARTS and (item.code != "expert-missing" or item.actual == 0) for item in kept)
    return [item for item in kept if item.code != "tensor-total-wrong" or not (parts or 0 < _fewer(item) <= named)]


def but_for(own: Iterable[Finding], more: Sequence[Finding], table: TensorTable) -> list[Finding]:
    """Leave out of findings of a checkpoint alone the missing tensors that a reference tells of too, and of more."""
    told = Told(more, table)
    named = sum(item.count for item in more if item.code == "tensor-missing")
    return [
        item
        for item in own
        if not (item.code == "index-tensor-absent" and all(map(told.is_missing, item.examples)))
        and not (item.code == "tensor-missing" and item.count < named)
    ]


def _fewer(total: Finding) -> int:
    """Return how many tensors fewer there are than are declared; 0 where no number is."""
    declared, stored = total.expected, total.actual
    return declared - stored if isinstance(declared, int) and isinstance(stored, int) else 0


class Told:
    """What the findings of a checkpoint say already of tensors that are missing, or too many.

    Args:
        findings: what is found without the index.
        table: the tensors that are there.
    """

    def __init__(self, findings: Sequence[Finding], table: TensorTable) -> None:
        self._codes = {item.code for item in findings}
        self._layers = frozenset(present(table.layer).tolist())
        self._routed = frozenset(present(table.select(component=Component.ROUTED_EXPERTS).layer).tolist())
        self._lost = {
            Component(name)
            for item in findings
            if item.code == "component-missing"
            for name in str(item.expected).split(", ")
        }
        self._lost |= {Component.PROJECTOR} if Component.VISION_TOWER in self._lost else set()
        # What every kind of attention has is lost with the kinds.
        self._lost |= {Component.ATTENTION} if Component.KDA_ATTENTION in self._lost else set()
        self._missing, self._scales, self._unexpected = (
            _Named([item for item in findings if item.code == code])
            for code in ("tensor-missing", "scale-missing", "unexpected-tensor")
        )
        self._rules = rules_of("safetensors", table.columns.patterns.texts)
        self._judged: dict[str, Judgement] = {}
        self.other_model = MISMATCH in self._codes
        self.changes_size = any(
            item.code in CHANGES_SIZE and (item.severity is not Severity.WARNING or item.code not in OF_EXPERTS)
            for item in findings
        )

    def is_missing(self, name: str) -> bool:
        """Whether it is told that a tensor of this name is not there."""
        judgement, codes = self._judgement(name), self._codes
        component = judgement.component
        digits = _NUMBER.findall(name)[judgement.layer] if judgement.layer >= 0 else ""
        layer = int(digits) if 0 < len(digits) <= MAX_DIGITS else None
        # Experts that are stacked lose no tensor when there are fewer of them.
        of_experts = component is Component.ROUTED_EXPERTS and (judgement.expert >= 0 or layer not in self._routed)
        return (
            component in self._lost
            or (of_experts and bool(codes & OF_EXPERTS))
            or (component is Component.MTP and "mtp-missing" in codes)
            or (digits != "" and layer not in self._layers and bool(codes & {"layer-missing", "mtp-missing"}))
            or (name.endswith(_SCALES) and self._scales.holds(name))
            or self._missing.holds(name)
        )

    def is_unexpected(self, name: str) -> bool:
        """Whether it is told that nobody knows a tensor of this name, or that there are too many experts."""
        of_experts = self._judgement(name).component is Component.ROUTED_EXPERTS
        return self._unexpected.holds(name) or (of_experts and "expert-count-disagrees" in self._codes)

    def _judgement(self, name: str) -> Judgement:
        shape = shape_of(name)
        if shape not in self._judged:
            self._judged[shape] = judge(shape, self._rules)
        return self._judged[shape]


class _Named:
    """The names that findings tell; of more than they tell by name, any is taken for one."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self._names = {name for item in findings for name in item.examples}
        self._open = any(item.count > len(item.examples) for item in findings)

    def holds(self, name: str) -> bool:
        return self._open or name in self._names
