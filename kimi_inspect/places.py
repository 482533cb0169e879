"""Where in its block each tensor stands, in one spelling for all formats: the names that GGUF gives.

A converter renames: `layers.3.self_attn.o_proj.weight` becomes `blk.3.attn_output.weight`, an expert's `w1` a slice of
`ffn_gate_exps`. Two builds are compared by place and number, so that neither names nor shards matter.
"""

from __future__ import annotations

import re

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from kimi_inspect.components import Component
from kimi_inspect.families import rules_of
from kimi_inspect.families.converted import place_of
from kimi_inspect.leaves import HANGING, LEAVES
from kimi_inspect.patterns import MAX_DIGITS, MAX_NUMBER, Patterns
from kimi_inspect.rules import Judgement, judged
from kimi_inspect.table import COMPONENTS, TensorTable
from kimi_inspect.values import Role

__all__ = ["Places", "module_of", "places_of"]

_NUMBER = re.compile("[0-9]+")
_BLOCK = re.compile(r"\b(?:blk|convnext|posnet)\.([0-9]{1,6})\.")
"""Number of a block in GGUF's names."""
_ENDINGS = tuple(leaf if leaf.startswith("_") else f".{leaf}" for leaf in sorted(LEAVES, key=len, reverse=True))


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
    judgements = judged(patterns.texts, rules_of(weights_format, patterns.texts))
    first, sort = _sorts(patterns, judgements)
    is_draft = columns.component == COMPONENTS.index(Component.MTP)
    has_drafts = np.bincount(sort[is_draft], minlength=len(first)) > 0
    texts: dict[str, int] = {}
    place, draft_place, told = (np.full(len(first), -1, np.int32) for _ in range(3))
    for index, row in enumerate(first.tolist()):
        judgement = judgements[patterns.code[row]]
        text, told[index] = _spelled(_name(table, row), judgement, weights_format, architecture)
        place[index] = texts.setdefault(text, len(texts))
        if has_drafts[index]:  # its own layers may bear the numbers of the model's
            draft_place[index] = texts.setdefault(f"mtp.{text}", len(texts))
    number = np.where(columns.layer >= 0, columns.layer, columns.block)
    # The layers of a draft in a file of its own are none of the model's, but have their numbers.
    for column in (patterns.number([it.layer for it in judgements]), told[sort]):
        number = np.where(number >= 0, number, column)
    return Places(tuple(texts), np.where(is_draft, draft_place[sort], place[sort]), number)


def _name(table: TensorTable, row: int) -> str:
    """Return the name of a tensor, that of its weight for a scale which hangs on it."""
    name, look = table.name_of(row), table.columns.looks[table.columns.look[row]]
    if look.role is Role.WEIGHT or name.rpartition(".")[2] in LEAVES:
        return name
    return next((name.removesuffix(ending) for ending in HANGING if name.endswith(ending)), name)


def _sorts(patterns: Patterns, judgements: list[Judgement]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sort names that differ in layer, block and expert alone: the first row of each sort, and for each name its sort.

    A stranger's names may all be sorts of their own: nothing is done for each but what is needed once.
    """
    rest = patterns.key.copy()
    for places in ([it.layer for it in judgements], [it.block for it in judgements], [it.expert for it in judgements]):
        patterns.cut_out(places, rest)
    order = np.lexsort((rest, patterns.code))
    rest, code = rest[order], patterns.code[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = (rest[1:] != rest[:-1]) | (code[1:] != code[:-1])
    sort = np.empty(len(order), np.int64)
    sort[order] = np.cumsum(is_first) - 1
    return order[is_first], sort


def _spelled(name: str, judgement: Judgement, weights_format: str, architecture: str | None) -> tuple[str, int]:
    """Return the place of a tensor, and its number where the rules for its own name do not find it; else -1."""
    module = module_of(name, judgement)
    text = place_of(module, weights_format, architecture)
    block = _BLOCK.search(text) if weights_format != "gguf" and "{}" not in module else None
    if not block:
        return text, -1
    return place_of(f"{text[: block.start(1)]}{{}}{text[block.end(1) :]}", "gguf"), int(block[1])


def module_of(name: str, judgement: Judgement) -> str:
    """Return a tensor's module with its layer, block and expert left open, and ``.bias`` where it is one.

    >>> module_of("model.layers.3.mlp.experts.17.w1.weight_scale", Judgement(Component.OTHER, layer=0, expert=1))
    'model.layers.{}.mlp.experts.{expert}.w1'
    """
    open_places = {judgement.layer: "{}", judgement.block: "{}", judgement.expert: "{expert}"}
    if max(open_places) < 0 or sum(map(len, _NUMBER.findall(name))) > MAX_DIGITS:
        return _without_leaf(name)
    numbers = iter(range(MAX_DIGITS))

    def opened(found: re.Match[str]) -> str:
        sign = open_places.get(next(numbers))
        return sign if sign and int(found[0]) <= MAX_NUMBER else found[0]

    return _without_leaf(_NUMBER.sub(opened, name))


def _without_leaf(name: str) -> str:
    stem, _, leaf = name.rpartition(".")
    if stem and leaf in LEAVES:
        return stem
    return next((name.removesuffix(ending) for ending in _ENDINGS if name.endswith(ending)), name)
