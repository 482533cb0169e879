"""Shapes that contradict what is said of a model, or all siblings: widths, vocabularies, heads.

What a config calls the sizes of a model stands in the shapes of its matrices, packing undone. A size is told where
models of a known family have it otherwise; of others, whose words may mean something else, only where every matrix
that shows it disagrees, two kinds of them at least.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from kimi_inspect.components import Component
from kimi_inspect.facts import TOKENS, Facts, Size
from kimi_inspect.findings import MAX_EXAMPLES, finding
from kimi_inspect.siblings import MIN_SIBLINGS, modules_of
from kimi_inspect.table import COMPONENTS, TensorTable
from kimi_inspect.values import Finding, Role

__all__ = ["find_wrong_shapes"]

Shape = tuple[int, ...]


@frozen
class _Place:
    """Where in a model sizes show: the last two sides of a matrix, or the one of a vector; None for any.

    Attributes:
        module: a pattern of what stands there, numbers written as one 0.
        sides: what each side is.
        turned: it may stand the other way round: `w1` and `w2` are one pattern.
    """

    component: Component
    module: str
    sides: tuple[str | None, ...]
    turned: bool = False


_EXPERT = r"(?:\w+\.)?(?:experts\.0|switch_mlp|switch_glu)\."

PLACES: tuple[_Place, ...] = (
    _Place(Component.EMBEDDINGS, r"(?:.*\.)?embed_tokens|token_embd", ("vocabulary", "hidden")),
    _Place(Component.LM_HEAD, r"(?:.*\.)?lm_head|output", ("vocabulary", "hidden")),
    _Place(Component.NORMS, r"(?:.*\.)?norm|output_norm|input_layernorm|attn_norm|ffn_norm", ("hidden",)),
    _Place(Component.NORMS, r"post_attention_layernorm", ("hidden",)),
    _Place(Component.ATTENTION, r"self_attn\.q_proj|attn_q", ("queries", "hidden")),
    _Place(Component.ATTENTION, r"self_attn\.k_proj|attn_k", ("keys", "hidden")),
    _Place(Component.ATTENTION, r"self_attn\.v_proj|attn_v", (None, "hidden")),
    _Place(Component.ATTENTION, r"self_attn\.o_proj|attn_output", ("hidden", "queries")),
    _Place(Component.DENSE_MLP, r"mlp\.(?:gate|up)_proj|ffn_gate", ("dense", "hidden")),
    _Place(Component.DENSE_MLP, r"mlp\.down_proj|ffn_down", ("hidden", "dense")),
    _Place(Component.ROUTED_EXPERTS, rf"{_EXPERT}(?:gate|up)_proj|ffn_(?:gate|up)_exps", ("expert", "input")),
    _Place(Component.ROUTED_EXPERTS, rf"{_EXPERT}down_proj|ffn_down_exps", ("input", "expert")),
    _Place(Component.ROUTED_EXPERTS, rf"{_EXPERT}w0", ("expert", "input"), turned=True),
)
"""The places where sizes show, by the names of transformers and MLX, and of GGUF."""

SPARE_ROWS = 256
"""Rows of a padding that converters cut off the embeddings are fewer (Gemma 3)."""

OF_VOCABULARY = frozenset({"vocabulary", "head_rows"})

MAX_CELLS = 4_000_000
"""More kinds of tensors, times looks and layers, than any model has are not compared."""

COUNTED = frozenset({Component.ROUTER, Component.OTHER, Component.MTP})
"""Components whose shapes count experts, or that no sibling is known of."""

OF_PACKING = frozenset({"scale-missing", "scale-shape", "packing-disagrees", "unknown-type", "foreign-type"})
"""Findings after which the shape of what is packed is not certain."""

DRAFT_LAYERS = 2
"""A model of so few layers may be a draft, which takes in more than one state."""

_NUMBERS = re.compile("[ui][0-9]+")
"""Encodings of what may be packed in a way that nobody knows."""


class _Cell(NamedTuple):
    """The tensors of one place in one layer that look alike: where, of what shape, how many, and the first row.

    `slack` is by how much less a side may be longer than it should: packed values fill their groups.
    """

    stack: str
    module: str
    layer: int
    component: Component
    shape: Shape
    slack: int
    tensors: int
    row: int


class _Wrong(NamedTuple):
    """A size that the shapes of some tensors contradict: under which key it is said, and what is said and stored."""

    key: str
    expected: int
    actual: int
    cells: Sequence[_Cell]


def find_wrong_shapes(
    table: TensorTable, facts: Facts, *, known: bool, plain: bool, codes: frozenset[str] = frozenset()
) -> Iterator[Finding]:
    """Yield one finding for the layers that differ from all siblings, and one for the sizes that are said otherwise.

    Args:
        table: all tensors.
        facts: what is declared.
        known: the family is known, so that a size means what it is called.
        plain: its attention is the common one: queries have a row for each value of each head.
        codes: what is found already.
    """
    cells = _cells(table, packed=not codes & OF_PACKING)
    odd = [] if facts.uneven or facts.shares_keys else [*_odd_ones(cells, facts, edges=known)]
    if odd:
        yield _odd_finding(table, odd)
    is_draft = any(cell.component is Component.MTP for cell in cells) and (facts.layers or 0) <= DRAFT_LAYERS
    rows = {cell.row for cell, _ in odd}
    if "component-missing" in codes:  # what stands between the layers and their experts, it may be
        cells = [cell for cell in cells if cell.component is not Component.ROUTED_EXPERTS]
    rest = [] if is_draft else [cell for cell in cells if cell.row not in rows]
    wrong = [*_wrong_sizes(rest, facts, known=known, plain=plain)]
    if wrong:
        yield _size_finding(table, wrong)


def _cells(table: TensorTable, *, packed: bool) -> list[_Cell]:
    """Sort weights by what they are called in their layer, and by layer and look.

    Without `packed`, tensors are left out whose shape had to be found out from others.
    """
    columns = table.columns
    modules = modules_of(columns.patterns.texts)
    names = list(dict.fromkeys(one for one in modules if one is not None))
    numbers = {module: number for number, module in enumerate(names)}
    looks, layers = len(columns.looks), int(columns.layer.max(initial=-1)) + 2
    size = len(names) * looks * layers
    if not size or size > MAX_CELLS:
        return []
    start = np.array([-1 if one is None else numbers[one] * looks * layers for one in modules], np.int32)
    keys = start[columns.patterns.code]
    rows = np.flatnonzero(keys >= 0)
    keys = keys[rows] + columns.look[rows] * np.int32(layers) + columns.layer[rows] + 1
    counts, first = np.bincount(keys), np.zeros(size, np.int64)
    first[keys[::-1]] = rows[::-1]
    found = np.flatnonzero(counts)
    found = found[_trusted(table, packed=packed)[found // layers % looks] & (columns.block[first[found]] < 0)]
    return [
        _cell(table, names[key // (looks * layers)], key % layers - 1, count, row)
        for key, count, row in zip(found.tolist(), counts[found].tolist(), first[found].tolist(), strict=True)
    ]


def _cell(table: TensorTable, module: tuple[str, str], layer: int, count: int, row: int) -> _Cell:
    columns = table.columns
    look = columns.looks[columns.look[row]]
    shape = _bare(look.shape or (), stacked=int(columns.experts[row]) >= 0)
    component = COMPONENTS[columns.component[row]]
    return _Cell(*module, layer, component, shape, look.group_size or 0, count, row)


def _trusted(table: TensorTable, *, packed: bool) -> NDArray[np.bool_]:
    """Tell which looks are those of weights whose shape is certain."""
    columns = table.columns
    stored = {kind.shape for kind in columns.kinds}
    certain = [
        look.role is Role.WEIGHT
        and look.shape is not None
        and all(look.shape)
        and not _NUMBERS.fullmatch(look.encoding)
        and (packed or (look.group_size is None and look.shape in stored))
        for look in columns.looks
    ]
    return np.array(certain or [False])


def _bare(shape: Shape, *, stacked: bool) -> Shape:
    """Leave out the side that counts experts."""
    return shape[1:] if stacked and len(shape) > 2 else shape


def _odd_ones(cells: Sequence[_Cell], facts: Facts, *, edges: bool) -> Iterator[tuple[_Cell, Shape]]:
    """Yield what has another shape in one layer than in all others like it, and that shape."""
    parts: dict[tuple[str, int], set[Component]] = {}
    modules: dict[tuple[str, str], dict[int, list[_Cell]]] = {}
    for cell in cells:
        if cell.layer >= 0:
            parts.setdefault((cell.stack, cell.layer), set()).add(cell.component)
            if cell.component not in COUNTED:
                modules.setdefault((cell.stack, cell.module), {}).setdefault(cell.layer, []).append(cell)
    make = {
        place: (frozenset(components), facts.kinds[place[1]] if place[1] < len(facts.kinds) else "")
        for place, components in parts.items()
    }
    for (stack, _), layers in modules.items():
        shapes = {layer: frozenset(cell.shape for cell in found) for layer, found in layers.items()}
        if len({*shapes.values()}) == 1:
            continue
        for layer in _outliers(shapes, {layer: make[stack, layer] for layer in layers}, edges=edges):
            usual = next(shapes[one] for one in shapes if one != layer and make[stack, one] == make[stack, layer])
            yield from ((cell, min(usual)) for cell in layers[layer] if cell.shape not in usual)


def _outliers(shapes: Mapping[int, frozenset[Shape]], make: Mapping[int, object], *, edges: bool) -> Iterator[int]:
    """Yield the layer of each make whose shapes are others than those of all the rest, which agree."""
    for kind in {*make.values()}:
        alike = [layer for layer in shapes if make[layer] == kind]
        groups: dict[frozenset[Shape], list[int]] = {}
        for layer in alike:
            groups.setdefault(shapes[layer], []).append(layer)
        lone = [layers[0] for layers in groups.values() if len(layers) == 1]
        if len(groups) == 2 and len(lone) == 1 and len(alike) > MIN_SIBLINGS:
            (layer,) = lone
            if edges or min(shapes) < layer < max(shapes):
                yield layer


def _odd_finding(table: TensorTable, odd: Sequence[tuple[_Cell, Shape]]) -> Finding:
    cell, usual = odd[0]
    name = table.name_of(cell.row)
    message = f"another shape in layer {cell.layer} than in all other layers of its kind; loaders fail"
    return finding(
        "shape-differs",
        name,
        message,
        expected=usual,
        actual=cell.shape,
        tensor=name,
        layer=cell.layer,
        count=sum(one.tensors for one, _ in odd),
        examples=[table.name_of(one.row) for one, _ in odd],
    )


def _wrong_sizes(cells: Sequence[_Cell], facts: Facts, *, known: bool, plain: bool) -> Iterator[_Wrong]:
    """Yield the sizes that shapes contradict."""
    said = _said(cells, facts, plain=plain)
    shown: dict[str, list[tuple[_Cell, Shape]]] = {}
    for cell in cells:
        for what, sides in _sizes_of(cell):
            shown.setdefault(what, []).append((cell, sides))
    told: set[str] = set()
    for what, size in said.items():
        held = [(cell, sides, size.of(cell.layer)) for cell, sides in shown.get(what, ())]
        wrong = [
            (cell, sides[0], expected)
            for cell, sides, expected in held
            if expected is not None and not _fits(what, size, cell, sides, expected)
        ]
        sure = known or (len(wrong) == len(held) and len({cell.module for cell, _, _ in wrong}) > 1)
        if wrong and sure and not (what == "head_rows" and "vocabulary" in told):
            told.add(what)
            yield _Wrong(size.key, wrong[0][2], wrong[0][1], [cell for cell, _, _ in wrong])


def _said(cells: Sequence[_Cell], facts: Facts, *, plain: bool) -> dict[str, Size]:
    """Return the sizes that shapes show, as far as they are said."""
    said = {what: size for what, size in facts.sizes.items() if what in ("hidden", "vocabulary", "dense", "expert")}
    latent = any(cell.component is Component.LATENT_PROJECTION for cell in cells)
    if "hidden" in said and not latent:
        said["input"] = said["hidden"]
    heads = (("queries", "heads"), ("keys", "key_heads")) if plain and "head" in facts.sizes else ()
    for what, number in heads:
        one, width = facts.sizes.get(number), facts.sizes["head"]
        if one and isinstance(one.value, int) and isinstance(width.value, int):
            said[what] = Size(f"{one.key} times {width.key}", one.value * width.value)
    rows = {cell.shape[0] for cell in cells if cell.component is Component.EMBEDDINGS and _place_of(cell)}
    if len(rows) == 1:
        said["head_rows"] = Size("rows of the embeddings", rows.pop())
    # A head with a vocabulary of its own shows nothing of the model's.
    return said if not facts.own_head else {what: size for what, size in said.items() if what not in OF_VOCABULARY}


def _sizes_of(cell: _Cell) -> Iterator[tuple[str, Shape]]:
    """Yield what sizes the sides of a matrix show, and these sides: both where it may stand the other way round."""
    place = _place_of(cell)
    if place is None:
        return
    for what, side in zip(place.sides, cell.shape, strict=True):
        if what is not None:
            yield what, cell.shape if place.turned else (side,)
    if cell.component is Component.LM_HEAD:
        yield "head_rows", cell.shape


def _place_of(cell: _Cell) -> _Place | None:
    place = _place(cell.component, cell.module)
    return place if place and len(place.sides) == len(cell.shape) and 1 not in cell.shape else None


@lru_cache(maxsize=1024)
def _place(component: Component, module: str) -> _Place | None:
    return next(
        (one for one in PLACES if one.component is component and re.fullmatch(one.module, module) is not None), None
    )


def _fits(what: str, size: Size, cell: _Cell, sides: Shape, expected: int) -> bool:
    """Whether a side is as long as is said: embeddings may have rows to spare, and converters cut those off."""
    if what == "vocabulary":
        spare = SPARE_ROWS - 1 if cell.module == "token_embd" and size.key != TOKENS else 0
        return sides[0] >= expected - spare
    if what == "head_rows":
        return sides[0] == expected
    return any(expected <= side < expected + max(cell.slack, 1) for side in sides)


def _size_finding(table: TensorTable, wrong: Sequence[_Wrong]) -> Finding:
    cells = list(dict.fromkeys(cell for one in wrong for cell in one.cells))
    name = table.name_of(cells[0].row)
    message = "; ".join(f"{one.key}: {one.expected} is said, and {one.actual} is stored" for one in wrong)
    several = len(wrong) > 1
    return finding(
        "shape-differs",
        "config",
        f"{message}; loaders fail",
        expected=[f"{one.key} {one.expected}" for one in wrong] if several else wrong[0].expected,
        actual=[one.actual for one in wrong] if several else wrong[0].actual,
        tensor=name,
        count=sum(cell.tensors for cell in cells),
        examples=[table.name_of(cell.row) for cell in cells[:MAX_EXAMPLES]],
    )
