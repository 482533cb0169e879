"""From names to components: each pattern judged once, then columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from kimi_inspect.components import Component
from kimi_inspect.patterns import MAX_NUMBER, Patterns
from kimi_inspect.rules import Judgement, Rule, judged
from kimi_inspect.sums import present
from kimi_inspect.table import COMPONENTS

__all__ = ["Classes", "classify"]

_CODES = {component: code for code, component in enumerate(COMPONENTS)}


@frozen(eq=False, kw_only=True)
class Classes:
    """Columns of n tensors: what each is part of. See `Columns` for the fields.

    `fused` tells whose first dimension counts experts.
    """

    component: NDArray[np.uint8]
    layer: NDArray[np.int32]
    block: NDArray[np.int32]
    expert: NDArray[np.int32]
    fused: NDArray[np.bool_]


def classify(patterns: Patterns, rules: Sequence[Rule], scope: NDArray[np.int32] | None = None) -> Classes:
    """Classify the names behind `patterns`.

    Args:
        patterns: the patterns of n names.
        rules: tried in order.
        scope: int32 [n], which model each is of; only tensors of one model say something of each other.
    """
    judgements = judged(patterns.texts, rules)
    component = np.array([_CODES[it.component] for it in judgements] or [0], np.uint8)[patterns.code]
    layer = patterns.number([it.layer for it in judgements])
    place = layer if scope is None else np.where(layer < 0, np.int64(-1), layer + scope.astype(np.int64) * MAX_NUMBER)
    _settle(component, place, judgements, patterns.code)
    drafts = present(place[component == _CODES[Component.MTP]])
    if len(drafts):
        component[np.isin(place, drafts)] = _CODES[Component.MTP]
    return Classes(
        component=component,
        layer=layer,
        block=patterns.number([it.block for it in judgements]),
        expert=patterns.number([it.expert for it in judgements]),
        fused=np.array([it.fused for it in judgements] or [False])[patterns.code],
    )


def _settle(
    component: NDArray[np.uint8], layer: NDArray[np.integer], judgements: Sequence[Judgement], code: NDArray[np.int32]
) -> None:
    """Say what tensors are whose names leave it open: the one of their kinds that certain tensors show of their layer.

    Where these show none of them, or two, it stays what the rule says.
    """
    certain = np.array([not it.kinds for it in judgements] or [True])[code]
    open_kinds = dict.fromkeys(it.kinds for it in judgements if it.kinds)
    shown = {
        kind: present(layer[certain & (component == _CODES[kind])])
        for kind in dict.fromkeys(kind for kinds in open_kinds for kind in kinds)
    }
    for kinds in open_kinds:
        rows = np.flatnonzero(np.array([it.kinds == kinds for it in judgements])[code])
        has = np.array([np.isin(layer[rows], shown[kind]) for kind in kinds])
        one = has.sum(axis=0) == 1
        codes = np.array([_CODES[kind] for kind in kinds], np.uint8)
        component[rows[one]] = codes[has.argmax(axis=0)[one]]
