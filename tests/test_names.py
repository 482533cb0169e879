"""`Names` behaves like the list it was made of."""

from __future__ import annotations

import pickle
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import tensor_names, usual

from kimi_inspect.names import Names

lists = st.lists(tensor_names, max_size=12)
edge = st.none() | st.integers(-15, 15)


@usual
@given(lists)
@example([])
@example([""])
@example(["", ""])
@example(["\n"])
@example(["a\nb", "", "é\n", "\n\n"])
@example(["a", "a"])
def test_what_goes_in_comes_out(names: list[str]) -> None:
    packed = Names.of(names)
    assert list(packed) == names
    assert len(packed) == len(names)
    assert [packed[index] for index in range(len(names))] == names
    assert [packed[index] for index in range(-len(names), 0)] == names
    assert [packed.raw(index) for index in range(len(names))] == [name.encode() for name in names]
    assert list(reversed(packed)) == names[::-1]
    assert list(pickle.loads(pickle.dumps(packed))) == names  # noqa: S301


@usual
@given(lists, edge, edge, edge.filter(lambda step: step != 0))
def test_slices_are_those_of_a_list(names: list[str], start: int | None, stop: int | None, step: int | None) -> None:
    assert Names.of(names)[start:stop:step] == names[start:stop:step]


@usual
@given(lists, tensor_names)
def test_search_is_that_of_a_list(names: list[str], wanted: str) -> None:
    packed = Names.of(names)
    for name in [*names, wanted]:
        assert (name in packed, packed.count(name)) == (name in names, names.count(name))
    assert [packed.index(name) for name in names] == [names.index(name) for name in names]


@usual
@given(lists, st.integers(0, 3))
def test_a_place_outside_is_an_index_error(names: list[str], beyond: int) -> None:
    for index in (len(names) + beyond, -len(names) - 1 - beyond):
        with pytest.raises(IndexError):
            Names.of(names)[index]


@usual
@given(lists)
def test_starts_and_ends_cut_the_bytes_into_the_names(names: list[str]) -> None:
    packed = Names.of(names)
    bounds = list(zip(packed.starts.tolist(), packed.ends.tolist(), strict=True))
    assert [packed.blob[begin:end].decode() for begin, end in bounds] == names
    assert all(end + 1 == begin for (_, end), (begin, _) in pairwise(bounds))


@usual
@given(lists)
@example(["layers.0\n1", "", "2"])
def test_a_blob_with_characters_replaced_is_cut_at_the_same_places(names: list[str]) -> None:
    packed = Names.of(names)
    shouted = packed.blob.replace(b"e", b"E").replace(b".", b"_")
    assert packed.split(shouted) == [name.encode().replace(b"e", b"E").replace(b".", b"_") for name in names]


def test_names_cannot_be_changed() -> None:
    packed = Names.of(["a", "b"])
    with pytest.raises(ValueError, match="read-only"):
        packed.ends[0] = 5
    with pytest.raises(AttributeError):
        packed.blob = b""  # type: ignore[misc]
