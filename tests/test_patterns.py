"""`Patterns` agrees with regular expressions applied to one name at a time."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import digits, tensor_names, usual

from kimi_inspect.names import Names
from kimi_inspect.patterns import MAX_DIGITS, MAX_NUMBER, Patterns

NUMBER = re.compile("[0-9]+")

near = st.builds(
    "{}layers.{}.w{}{}".format,
    st.sampled_from(["", "model.", "é\n"]),
    digits | st.integers(0, MAX_NUMBER + 1).map(str),
    st.integers(0, 11),
    st.sampled_from(["", ".weight", ".00"]),
)
"""Names that differ in their numbers, so that patterns are shared."""

parts = st.lists(st.lists(near | tensor_names, max_size=8), max_size=4)


def repeated_with_other_digits(lists: list[list[str]]) -> list[list[str]]:
    """Add a part that looks like the first, digits aside."""
    turned = str.maketrans("0123456789", "1234567890")
    return [*lists, *([[name.translate(turned) for name in lists[0]]] if lists else [])]


def packed(lists: list[list[str]]) -> tuple[list[str], Patterns]:
    return [name for part in lists for name in part], Patterns.of([Names.of(part) for part in lists])


def naive_number(name: str, place: int) -> int:
    """The number at `place`; -1 where there is none, and for what is too long to be a layer or an expert."""
    numbers = NUMBER.findall(name)
    if not 0 <= place < len(numbers) or sum(map(len, numbers)) > MAX_DIGITS:
        return -1
    return int(numbers[place]) if int(numbers[place]) <= MAX_NUMBER else -1


@usual
@given(parts.map(repeated_with_other_digits))
@example([["w999999", "w1000000", "w000000001"], ["w000000", "w0000001", "w999999999"]])
@example([["1" * MAX_DIGITS, "1" * (MAX_DIGITS + 1)], ["2" * MAX_DIGITS, "2" * (MAX_DIGITS + 1)]])
@example([["a.1.b.23.c.456"], ["a.7.b.89.c.012"]])
@example([[""], [], ["\n", "1\n2"], ["٣", "²", "1²"]])
def test_each_number_is_the_one_a_regular_expression_finds(lists: list[list[str]]) -> None:
    names, patterns = packed(lists)
    counts = [len(NUMBER.findall(mask.decode())) for mask in patterns.masks]
    for place in range(-1, max(counts, default=0) + 1):
        found = patterns.number([place if place < count else -1 for count in counts])
        assert found.tolist() == [naive_number(name, place) for name in names]
        assert found.dtype == np.int32


@usual
@given(parts.map(repeated_with_other_digits))
@example([["a1b2", "a12b", "a1b2"], ["a2b1"]])
@example([["1" * 19, "1" * 19, "2" * 19, "0" * 19, "0" * 18]])
@example([["a01", "a1", "a001"]])
def test_code_and_key_are_equal_just_where_names_are(lists: list[list[str]]) -> None:
    names, patterns = packed(lists)
    pairs = list(zip(patterns.code.tolist(), patterns.key.tolist(), strict=True))
    firsts = {name: pairs[at] for at, name in reversed(list(enumerate(names)))}
    assert pairs == [firsts[name] for name in names]
    assert len(set(firsts.values())) == len(firsts)


@usual
@given(parts.map(repeated_with_other_digits))
def test_a_text_is_its_names_with_each_number_as_one_zero(lists: list[list[str]]) -> None:
    names, patterns = packed(lists)
    texts = patterns.texts
    assert [texts[code] for code in patterns.code.tolist()] == [NUMBER.sub("0", name) for name in names]
    assert len(patterns.masks) == len(set(patterns.masks))
    assert set(patterns.code.tolist()) == set(range(len(patterns.masks)))


@usual
@given(parts)
def test_a_mask_has_the_letters_and_the_length_of_its_names(lists: list[list[str]]) -> None:
    names, patterns = packed(lists)
    masks = [patterns.masks[code].decode() for code in patterns.code.tolist()]
    expected = [
        name if len("".join(NUMBER.findall(name))) > MAX_DIGITS else re.sub("[0-9]", "0", name) for name in names
    ]
    assert masks == expected


@usual
@given(parts)
def test_how_names_are_split_over_shards_changes_no_column(lists: list[list[str]]) -> None:
    names, patterns = packed(lists)
    together = Patterns.of([Names.of(names)])
    assert patterns.masks == together.masks
    assert patterns.code.tolist() == together.code.tolist()
    assert patterns.key.tolist() == together.key.tolist()


def test_no_names_have_no_pattern() -> None:
    for shards in range(3):
        _, patterns = packed([[]] * shards)
        assert (patterns.masks, patterns.texts, patterns.number([]).tolist()) == ([], [], [])
