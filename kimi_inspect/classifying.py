"""From names to components: each pattern judged once, then columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from kimi_inspect.components import Component
from kimi_inspect.patterns import Patterns
from kimi_inspect.rules import Rule, judge
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


def classify(patterns: Patterns, rules: Sequence[Rule]) -> Classes:
    """Classify the names behind `patterns`."""
    texts = patterns.texts
    once = {text: judge(text, rules) for text in dict.fromkeys(texts)}
    judgements = [once[text] for text in texts]

    component = np.array([_CODES[it.component] for it in judgements] or [0], np.uint8)[patterns.code]
    layer = patterns.number([it.layer for it in judgements])
    by_layer = np.array([it.by_layer for it in judgements] or [False])[patterns.code]
    component[by_layer] = _attention_of(component, layer, layer[by_layer], ~by_layer)
    return Classes(
        component=component,
        layer=layer,
        block=patterns.number([it.block for it in judgements]),
        expert=patterns.number([it.expert for it in judgements]),
        fused=np.array([it.fused for it in judgements] or [False])[patterns.code],
    )


_KINDS_OF_ATTENTION = (Component.KDA_ATTENTION, Component.MLA_ATTENTION, Component.LINEAR_ATTENTION)


def _attention_of(
    component: NDArray[np.uint8], layer: NDArray[np.int32], wanted: NDArray[np.int32], certain: NDArray[np.bool_]
) -> NDArray[np.uint8]:
    """Say for each layer wanted what kind of attention its certain tensors show; two kinds or none: `attention`."""
    result = np.full(len(wanted), _CODES[Component.ATTENTION], np.uint8)
    found = np.zeros(len(wanted), np.int64)
    for kind in _KINDS_OF_ATTENTION:
        has = np.isin(wanted, np.unique(layer[certain & (component == _CODES[kind])]))
        result[has] = _CODES[kind]
        found += has
    result[found > 1] = _CODES[Component.ATTENTION]
    return result
