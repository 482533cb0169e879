"""What one layer lacks and all others like it have: told where no config says which tensors there are.

Layers are alike as far as their components tell: a layer with KDA has siblings in the layers with KDA, a layer of
experts in the layers of experts. What a layer lacks that is of another make, or that stands first or last and may be
made otherwise on purpose, is not told.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

import numpy as np
from attrs import define, field

from kimi_inspect.components import Component
from kimi_inspect.findings import finding
from kimi_inspect.leaves import LEAVES, MAINS
from kimi_inspect.sums import distinct
from kimi_inspect.table import COMPONENTS, TensorTable
from kimi_inspect.values import Finding, Role

__all__ = ["BUFFERS", "MIN_SIBLINGS", "find_missing_siblings", "modules_of", "stack_of"]

MIN_SIBLINGS = 3
"""Layers that have to agree."""

MAX_COMPARED = 1_000_000
"""More layers, times names of tensors in a layer, than any model has are not compared."""

OUTRIGHT = frozenset(
    {
        *(Component.ROUTER, Component.SHARED_EXPERTS, Component.LATENT_PROJECTION, Component.SPARSE_INDEXER),
        *(Component.ATTENTION_RESIDUAL, Component.NORMS),
    }
)
"""Components that a layer does not lack by itself: pruning takes whole attentions and MLPs out of single layers."""

TOGETHER: Mapping[str, tuple[str, ...]] = {
    "self_attn.q_proj": (
        *("self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
        *("input_layernorm", "post_attention_layernorm"),
    ),
    "self_attn.k_proj": ("self_attn.q_proj",),
    "self_attn.qkv_proj": ("self_attn.o_proj", "input_layernorm", "post_attention_layernorm"),
    "mlp.gate_proj": ("mlp.up_proj", "mlp.down_proj"),
    "mlp.up_proj": ("mlp.down_proj",),
    "mlp.gate_up_proj": ("mlp.down_proj",),
    "attn_q": ("attn_k", "attn_v", "attn_output", "attn_norm", "ffn_norm|post_attention_norm"),
    "attn_k": ("attn_q",),
    "attn_qkv": ("attn_output", "attn_norm", "ffn_norm|post_attention_norm"),
    "ffn_gate": ("ffn_up", "ffn_down"),
    "ffn_up": ("ffn_down",),
}
"""What a layer of a plain decoder has besides a tensor, in the names of transformers and of GGUF; any of several."""

BUFFERS = ("rotary_emb.inv_freq",)
"""Last parts of names of tensors that some tools save with the weights and that loaders compute."""

_LAYER = re.compile(r"(.*?\b(?:layers|layer|blocks|block|blk|h)\.)([0-9]+)(?=\.)")
_ENDINGS = tuple(leaf if leaf.startswith("_") else f".{leaf}" for leaf in sorted(LEAVES, key=len, reverse=True))


@define(eq=False)
class _Stack:
    """The layers under one prefix.

    Attributes:
        components: by layer, those that it has.
        holders: by what a tensor is called in its layer, however it is packed: by layer, its component and row.
    """

    components: dict[int, set[Component]] = field(factory=dict)
    holders: dict[str, dict[int, tuple[Component, int]]] = field(factory=dict)

    def add(self, name: str, layer: int, component: Component, row: int) -> None:
        self.components.setdefault(layer, set()).add(component)
        self.holders.setdefault(name, {})[layer] = (component, row)

    @property
    def size(self) -> int:
        """How much there is to compare."""
        return len(self.components) * len(self.holders)

    def lacks(self, *, edges: bool) -> Iterator[tuple[str, int]]:
        """Yield the tensors that all layers but one have which should, and that layer."""
        own: dict[int, set[Component]] = {}
        for holders in self.holders.values():
            if len(holders) == 1:
                ((layer, (component, _)),) = holders.items()
                own.setdefault(layer, set()).add(component)
        for name, holders in self.holders.items():
            kinds = {component for component, _ in holders.values()}
            alike = self._alike(holders.keys(), kinds) if len(holders) >= MIN_SIBLINGS else []
            # A layer that has something in its place which none of the others has is of another make.
            if len(alike) == 1 and not own.get(alike[0], set()) & kinds:
                (layer,) = alike
                if edges or min(holders) < layer < max(holders):
                    yield name, layer

    def _alike(self, holders: AbstractSet[int], kinds: set[Component]) -> list[int]:
        """Return the layers that are like those which have a tensor, and have it not."""
        common = set.intersection(*(self.components[layer] for layer in holders))
        others = self.components.keys() - holders
        alike = [layer for layer in others if common <= self.components[layer]]
        if not alike and kinds <= OUTRIGHT:
            alike = [layer for layer in others if common - kinds <= self.components[layer]]
        return alike


def find_missing_siblings(table: TensorTable, *, edges: bool, plain: bool = False) -> Iterator[Finding]:
    """Yield what single layers lack and all their siblings have, and what lacks a part in however many layers.

    Args:
        table: all tensors.
        edges: the first and the last layer of a kind are like the others, as in families that are known.
        plain: attentions and MLPs are those that `TOGETHER` knows.
    """
    missing: dict[str, int] = {}
    stacks = _stacks(table)
    for stack in stacks:
        for name, layer in stack.lacks(edges=edges) if stack.size <= MAX_COMPARED else ():
            _, row = next(iter(stack.holders[name].values()))
            missing[_LAYER.sub(rf"\g<1>{layer}", table.name_of(row), count=1)] = layer
    if missing:
        yield _missing(missing, "that all other layers of its kind have")
    torn = {name: layer for name, layer in (_torn(table, stacks) if plain else ()) if name not in missing}
    if torn:
        yield _missing(torn, "that belongs to others of it")


def _missing(layers: Mapping[str, int], which: str) -> Finding:
    """Make the finding of missing tensors, by name with the layer of each."""
    first, *_ = names = list(layers)
    message = f"layer {layers[first]} lacks a tensor {which}; loaders fail"
    return finding(
        "tensor-missing", first, message, tensor=first, layer=layers[first], count=len(names), examples=names
    )


def _torn(table: TensorTable, stacks: Iterable[_Stack]) -> Iterator[tuple[str, int]]:
    """Yield the tensors that are not there though what they belong to is, and their layers."""
    for stack in stacks:
        for module, others in TOGETHER.items():
            for layer, (_, row) in stack.holders.get(f".{module}", {}).items():
                for other in others:
                    if not any(layer in stack.holders.get(f".{one}", ()) for one in other.split("|")):
                        name = table.name_of(row)
                        yield name.replace(f".{module}", f".{other.split('|')[0]}", 1), layer


def stack_of(name: str) -> str | None:
    """Return what stands before the number of its layer in a name, if it has one."""
    match = _LAYER.match(name)
    return match[1] if match else None


def modules_of(texts: Sequence[str]) -> list[tuple[str, str] | None]:
    """Return for each name what stands before its layer, and its module in there, or as a whole.

    None for a tensor beside a weight, or for an empty name.
    """
    found: list[tuple[str, str] | None] = []
    for text in texts:
        match = _LAYER.match(text)
        stack, name = (match[1], text[match.end() + 1 :]) if match else ("", text)
        leaf = _leaf(name)
        is_main = not leaf or leaf.removeprefix(".") in MAINS
        found.append((stack, name.removesuffix(leaf)) if name and is_main else None)
    return found


def _stacks(table: TensorTable) -> Collection[_Stack]:
    """Sort the weights of the language stack by prefix, layer, name in the layer and component."""
    columns = table.columns
    sorts = _sorts(columns.patterns.texts)
    numbers = {sort: number for number, sort in enumerate(dict.fromkeys(filter(None, sorts)))}
    sort_of = np.array([-1 if sort is None else numbers[sort] for sort in sorts] or [-1], np.int64)
    weights = np.array([look.role is Role.WEIGHT for look in columns.looks] or [False])[columns.look]
    sort = sort_of[columns.patterns.code]
    rows = np.flatnonzero((columns.layer >= 0) & (sort >= 0) & weights & (columns.component != _MTP))
    keys = (columns.layer[rows].astype(np.int64) * max(len(numbers), 1) + sort[rows]) * len(COMPONENTS)
    keys += columns.component[rows]
    found, index = distinct(keys)
    first = np.zeros(len(found), np.int64)
    first[index[::-1]] = rows[::-1]
    stacks: dict[str, _Stack] = {}
    names = list(numbers)
    for key, row in zip(found.tolist(), first.tolist(), strict=True):
        rest, component = divmod(key, len(COMPONENTS))
        layer, number = divmod(rest, len(names))
        prefix, name = names[number]
        stacks.setdefault(prefix, _Stack()).add(name, layer, COMPONENTS[component], row)
    return stacks.values()


_MTP = COMPONENTS.index(Component.MTP)


def _sorts(texts: Sequence[str]) -> list[tuple[str, str] | None]:
    """Return for each pattern what stands before its layer and what it is called in there, however it is packed.

    None for a tensor that stands in no layer, or beside a weight.
    """
    cut = [(match[1], text[match.end() :]) if (match := _LAYER.match(text)) else None for text in texts]
    leaves = [_leaf(place[1]) if place else "" for place in cut]
    packed = {
        (place[0], place[1].removesuffix(leaf))
        for place, leaf in zip(cut, leaves, strict=True)
        if place and leaf not in ("", ".weight")
    }
    sorts: list[tuple[str, str] | None] = []
    for place, leaf in zip(cut, leaves, strict=True):
        if place is None or place[1].endswith(BUFFERS):
            sorts.append(None)
        elif leaf:
            is_main = leaf.removeprefix(".") in MAINS
            sorts.append((place[0], place[1].removesuffix(leaf)) if is_main else None)
        else:
            # Some tools write a bias of zeros beside each matrix that they pack.
            beside_packed = place[1].endswith(".bias") and (place[0], place[1].removesuffix(".bias")) in packed
            sorts.append(None if beside_packed else place)
    return sorts


def _leaf(name: str) -> str:
    """Return the ending of a name that says what of its module a tensor is."""
    return next((ending for ending in _ENDINGS if name.endswith(ending)), "")
