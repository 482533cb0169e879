"""Names held against templates by pattern and number, against the same done with Python's own sets of strings."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Draw, usual

from kimi_inspect.inventory import Inventory, Template
from kimi_inspect.names import Names
from kimi_inspect.patterns import Patterns
from kimi_inspect.promises import Comparison, compare

WORDS = ["layers", "experts", "w", "w1.", "b2", "norm.weight", "é", "12", "0", "", ".", "weight_scale_2", "\n"]
PLACES = ["layer", "expert", "block"]
EXPERT = "model.layers.{layer}.mlp.experts.{expert}.w1.weight"


def compared(templates: Sequence[Template], *shards: Sequence[str]) -> Comparison:
    names = [name for shard in shards for name in shard]
    unique = len(set(names)) == len(names)
    return compare(Inventory(templates), Patterns.of([Names.of(shard) for shard in shards]), unique=unique)


def check(templates: Sequence[Template], *shards: Sequence[str]) -> None:
    """Hold the comparison of names in some shards against sets."""
    found = compared(templates, *shards)
    names = [name for shard in shards for name in shard]
    expected = {name for template in templates for name in template}
    assert found.unexpected.tolist() == [row for row, name in enumerate(names) if name not in expected]
    lacks = [(one, [at for at, name in enumerate(one) if name not in names]) for one in templates]
    assert [(lack.template, lack.missing.tolist()) for lack in found.lacks] == [lack for lack in lacks if lack[1]]
    for lack in found.lacks:
        missing = [lack.template.name(at) for at in lack.missing.tolist()]
        assert not {*missing} & {*names}
        for place in PLACES:
            filled = f"{{{place}}}" in lack.template.text
            for name, number in zip(missing, lack.numbers(place).tolist(), strict=True):
                assert (str(number) in name and number in getattr(lack.template, place)) if filled else number == -1


@pytest.mark.parametrize(
    "names",
    [
        [],
        [EXPERT.format(layer=layer, expert=expert) for layer in (1, 2, 3) for expert in range(12)],
        [EXPERT.format(layer=layer, expert=expert) for layer in (0, 1, 4) for expert in (0, 11, 12, 100)],
        [
            EXPERT.format(layer="01", expert=0),
            EXPERT.format(layer=1, expert="00"),
            EXPERT.format(layer=1, expert="011"),
        ],
        [EXPERT.format(layer=1, expert=f"{number}") for number in (10**17, 10**18, 10**30, 2**63, 2**64 + 1)],
        [EXPERT.format(layer=1, expert=3)] * 3,
        [EXPERT.format(layer=1, expert=3).replace("w1", one) for one in ("w0", "w2", "w11", "w", "w01")],
        [
            EXPERT.format(layer="\u0661", expert=3),
            EXPERT.format(layer="", expert=3),
            EXPERT.format(layer="-1", expert=3),
        ],
        ["", "model", "1", "model.layers.1.mlp.experts.3.w1.weight.", ".model.layers.1.mlp.experts.3.w1.weight"],
    ],
    ids=["none", "all", "beyond", "leading zeros", "long", "again", "other digits", "odd digits", "other names"],
)
@pytest.mark.parametrize("layers", [range(1, 4), (3, 1, 2), range(4), (), (7,)])
def test_one_template(names: list[str], layers: Sequence[int]) -> None:
    check([Template(EXPERT, layer=layers, expert=range(12))], names)


def test_numbers_of_the_text_have_to_be_those() -> None:
    templates = [Template(f"a.{{layer}}.w{number}", layer=range(12)) for number in (1, 2, 10)]
    check(templates, [f"a.{layer}.w{number}" for layer in (0, 5, 11) for number in (0, 1, 2, 3, 10, 20)])


def test_templates_of_one_shape_share_names_or_not() -> None:
    templates = [
        Template("a.{layer}.w", layer=(0, 2, 4)),
        Template("a.{layer}.w", layer=(1, 2)),
        Template("a.{block}.w", block=range(1)),
    ]
    check(templates, ["a.0.w", "a.2.w", "a.3.w"], ["a.1.w"])


def test_an_empty_inventory_expects_nothing() -> None:
    check([], ["a", "b.1"])
    check([Template("a")], [], ["a"], [])
    check([Template("a"), Template("b")], ["b"])


def test_half_a_million_names_take_no_time() -> None:
    template = Template(EXPERT, layer=range(1, 93), expert=range(896))
    names = [name for name in template if ".experts.77." not in name]
    patterns = Patterns.of([Names.of(names), Names.of(["model.layers.93.mlp.experts.0.w1.weight"])])
    began = time.process_time()
    found = compare(Inventory([template] * 6), patterns, unique=True)
    assert time.process_time() - began < 2
    assert found.unexpected.tolist() == [92 * 895]
    assert [len(lack.missing) for lack in found.lacks] == [92] * 6
    assert np.array_equal(found.lacks[0].numbers("layer"), np.arange(1, 93))
    assert {*found.lacks[0].numbers("expert").tolist()} == {77}


some = st.one_of(
    st.integers(0, 12).map(range),
    st.tuples(st.integers(0, 12), st.integers(0, 130)).map(lambda ends: range(*ends)),
    st.lists(st.one_of(st.integers(0, 12), st.integers(0, 10**6)), unique=True, max_size=5).map(tuple),
)


@st.composite
def templates(draw: Draw) -> Template:
    """A template of any text, its places apart from each other and from other digits."""
    text = draw(st.sampled_from(WORDS))
    for place in draw(st.lists(st.sampled_from(PLACES), unique=True)):
        text += f".{{{place}}}." + draw(st.sampled_from(WORDS))
    return Template(text, layer=draw(some), expert=draw(some), block=draw(some))


@st.composite
def names_like(draw: Draw, made: Sequence[Template]) -> str:
    """A name of one of these templates, or one that nearly is."""
    template = draw(st.sampled_from(made))
    number = st.one_of(
        st.integers(0, 13).map(str),
        st.text("0123456789", min_size=1, max_size=25),
        st.sampled_from(["00", "01", "012", "007"]),
    )
    if len(template) and draw(st.booleans()):
        return template.name(draw(st.integers(0, len(template) - 1)))
    return template.text.format(**{place: draw(number) for place in PLACES})


@usual
@given(st.data())
def test_as_sets_of_strings_do(data: st.DataObject) -> None:
    made = data.draw(st.lists(templates(), min_size=1, max_size=4))
    shards = st.lists(st.lists(names_like(made), max_size=12), max_size=3)
    check(made, *data.draw(shards))
