"""Sums of columns equal the sums of Python integers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import usual

from kimi_inspect.sums import exact_sum, exact_sums

TOP = 2**63 - 1
values = st.one_of(
    st.integers(0, TOP),
    st.integers(2**60 - 2, 2**60 + 2),
    st.sampled_from([0, 1, 2**21 - 1, 2**21, 2**42 - 1, 2**42, 2**53 - 1, 2**53 + 1, 2**60, TOP]),
)


@usual
@given(st.lists(values, max_size=300))
@example([TOP] * 5000)
@example([2**53 + 1] * 3)
def test_a_sum_is_exact(numbers: list[int]) -> None:
    found = exact_sum(np.array(numbers, np.int64))
    assert found == sum(numbers)
    assert type(found) is int


@usual
@given(
    st.lists(st.tuples(st.integers(0, 6), values), max_size=200), st.integers(7, 9), st.sampled_from(["i4", "i8", "u1"])
)
def test_each_key_has_its_own_sum(pairs: list[tuple[int, int]], count: int, keys_type: str) -> None:
    naive: Counter[int] = Counter()
    for key, value in pairs:
        naive[key] += value
    keys = np.array([key for key, _ in pairs], keys_type)
    found = exact_sums(keys, np.array([value for _, value in pairs], np.int64), count)
    assert found == [naive[key] for key in range(count)]
    assert {type(total) for total in found} == {int}


@pytest.mark.parametrize("value", [1, 2**60, 2**60 - 1, TOP])
def test_a_million_values_are_summed_without_loss(value: int) -> None:
    column = np.full(1_000_000, value, np.int64)
    column[::2] -= 1
    assert exact_sum(column) == 1_000_000 * value - 500_000
    halves = exact_sums(np.arange(1_000_000) % 2, column, 2)
    assert halves == [500_000 * (value - 1), 500_000 * value]


@pytest.mark.parametrize("count", [0, 1, 5])
def test_sums_of_nothing_are_zero(count: int) -> None:
    nothing = np.zeros(0, np.int64)
    assert exact_sums(nothing, nothing, count) == [0] * count
    assert exact_sum(nothing) == 0


def test_millions_of_the_largest_values_are_summed_without_loss() -> None:
    column = np.full(5_000_000, TOP, np.int64)
    column[0] = 0
    assert exact_sum(column) == 4_999_999 * TOP


def test_the_column_is_left_as_it_was() -> None:
    column = np.array([TOP, 2**60, 0], np.int64)
    column.setflags(write=False)
    exact_sum(column)
    assert column.tolist() == [TOP, 2**60, 0]
