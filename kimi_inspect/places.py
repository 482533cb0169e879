"""Where in its block each tensor stands, in one spelling for all formats: the names that GGUF gives.

A converter renames: `layers.3.self_attn.o_proj.weight` becomes `blk.3.attn_output.weight`, an expert's `w1` a slice of
`ffn_gate_exps`. Two builds are compared by place and number, so that neither names nor shards matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from kimi_inspect.components import Component
from kimi_inspect.families import RULES
from kimi_inspect.families.converted import place_of
from kimi_inspect.forms import LEAVES
from kimi_inspect.patterns import Patterns
from kimi_inspect.rules import Judgement, judge
from kimi_inspect.table import COMPONENTS, TensorTable

__all__ = ["Places", "module_of", "places_of"]

_NUMBER = re.compile("[0-9]+")
_LEAVES = sorted(LEAVES, key=len, reverse=True)


@frozen(eq=False)
class Places:
    """The places of n tensors.

    Attributes:
        texts: the distinct places: ``attn_output``, ``ffn_gate_exps``, ``v.blk.attn_qkv``, …
        place: int32 [n], into `texts`; a weight's scales have its own place.
        number: int32 [n], of the layer or block; -1 outside of any.
    """

    texts: tuple[str, ...]
    place: NDArray[np.int32]
    number: NDArray[np.int32]


def places_of(table: TensorTable, weights_format: str, *, architecture: str | None = None) -> Places:
    """Find the places of all tensors of a checkpoint.

    Args:
        table: all of them.
        weights_format: ``safetensors`` or ``gguf``.
        architecture: the GGUF name of the architecture, where one of the builds to be compared is GGUF: names of
            other families than Kimi are looked up under it in gguf's own table.
    """
    columns = table.columns
    patterns = columns.patterns
    judgements = [judge(text, RULES[weights_format]) for text in patterns.texts]
    texts: dict[str, int] = {}
    place = np.zeros(len(patterns.code), np.int32)
    is_draft = columns.component == COMPONENTS.index(Component.MTP)
    for rows, name, judgement in _sorts(patterns, judgements, table.name_of):
        text = place_of(module_of(name, judgement), weights_format, architecture)
        place[rows] = texts.setdefault(text, len(texts))
        drafts = rows[is_draft[rows]]
        if len(drafts):  # its own layers may bear the numbers of the model's
            place[drafts] = texts.setdefault(f"mtp.{text}", len(texts))
    number = np.where(columns.layer >= 0, columns.layer, columns.block)
    named = patterns.number([it.layer for it in judgements])
    return Places(tuple(texts), place, np.where(number >= 0, number, named))


def _sorts(
    patterns: Patterns, judgements: list[Judgement], name_of: Callable[[int], str]
) -> Iterator[tuple[NDArray[np.int64], str, Judgement]]:
    """Yield rows whose names differ in layer, block and expert alone, one of these names, and what its rule says."""
    rest = patterns.key.copy()
    for places in ([it.layer for it in judgements], [it.block for it in judgements], [it.expert for it in judgements]):
        patterns.cut_out(places, rest)
    rows_of = patterns.sorted_rows()
    for code, judgement in enumerate(judgements):
        rows = rows_of(code)
        if not len(rows):
            continue
        values, first, which = np.unique(rest[rows], return_index=True, return_inverse=True)
        for sort in range(len(values)):
            yield rows[which == sort] if len(values) > 1 else rows, name_of(int(rows[first[sort]])), judgement


def module_of(name: str, judgement: Judgement) -> str:
    """Return a tensor's module with its layer, block and expert left open, and ``.bias`` where it is one.

    >>> module_of("model.layers.3.mlp.experts.17.w1.weight_scale", Judgement(Component.OTHER, layer=0, expert=1))
    'model.layers.{}.mlp.experts.w1'
    """
    open_places = {judgement.layer: "{}", judgement.block: "{}", judgement.expert: "{expert}"}
    numbers = iter(range(len(name)))
    text = _NUMBER.sub(lambda found: open_places.get(next(numbers), found[0]), name).replace(".{expert}", "")
    for leaf in _LEAVES:
        ending = leaf if leaf.startswith("_") else f".{leaf}"
        if text.endswith(ending):
            return text.removesuffix(ending)
    # gpt-oss hangs the biases of its stacked experts on the matrix's own name.
    return text.removesuffix("_bias") + ".bias" if text.endswith("_proj_bias") else text
