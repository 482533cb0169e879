"""From names to components: each pattern judged once, then columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from kimi_inspect.components import Component
from kimi_inspect.patterns import Patterns
from kimi_inspect.rules import Judgement, Rule, judge
from kimi_inspect.table import COMPONENTS

__all__ = ["Classes", "classify"]

_CODES = {component: code for code, component in enumerate(COMPONENTS)}


@frozen(eq=False, kw_only=True)
class Classes:
    """Columns of n tensors: what each is part of. See `Columns` for the fields.

    `fused` tells whose first dimension counts experts.
    """

    component: NDArray[np.uint8]
    layer: NDArray[np.int64]
    block: NDArray[np.int64]
    expert: NDArray[np.int64]
    fused: NDArray[np.bool_]


def classify(patterns: Patterns, rules: Sequence[Rule]) -> Classes:
    """Classify the names behind `patterns`."""
    texts = patterns.texts
    once = {text: judge(text, rules) for text in dict.fromkeys(texts)}
    judgements = [once[text] for text in texts]

    def by_pattern(pick: Callable[[Judgement], int], dtype: type = np.int32) -> NDArray[Any]:
        return np.array([pick(judgement) for judgement in judgements] or [-1], dtype)

    component = by_pattern(lambda it: _CODES[it.component], np.uint8)[patterns.code]
    layer = patterns.number(by_pattern(lambda it: it.layer))
    by_layer = by_pattern(lambda it: it.by_layer, np.bool_)[patterns.code]
    component[by_layer] = _attention_of(component, layer, layer[by_layer], ~by_layer)
    return Classes(
        component=component,
        layer=layer,
        block=patterns.number(by_pattern(lambda it: it.block)),
        expert=patterns.number(by_pattern(lambda it: it.expert)),
        fused=by_pattern(lambda it: it.fused, np.bool_)[patterns.code],
    )


_KINDS_OF_ATTENTION = (Component.KDA_ATTENTION, Component.MLA_ATTENTION, Component.LINEAR_ATTENTION)


def _attention_of(
    component: NDArray[np.uint8], layer: NDArray[np.int64], wanted: NDArray[np.int64], certain: NDArray[np.bool_]
) -> NDArray[np.uint8]:
    """Say for each layer in `wanted` what kind of attention its certain tensors show; two kinds or none: `attention`."""
    result = np.full(len(wanted), _CODES[Component.ATTENTION], np.uint8)
    found = np.zeros(len(wanted), np.int64)
    for kind in _KINDS_OF_ATTENTION:
        has = np.isin(wanted, np.unique(layer[certain & (component == _CODES[kind])]))
        result[has] = _CODES[kind]
        found += has
    result[found > 1] = _CODES[Component.ATTENTION]
    return result
