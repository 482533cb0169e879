"""`TensorTable` is a list of `TensorInfo`, and its columns and selections are those of the list."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Built, few, kimi_names, shard_paths, shard_sets, tensor_names

import kimi_inspect as ki
import kimi_inspect.table
from kimi_inspect.testing import TensorSpec, hollow_safetensors

FIELDS = [field.name for field in attrs.fields(ki.TensorInfo)]
COLUMNS = [*FIELDS, "byte_range", "group"]
INTEGERS = {"group_size", "layer", "block", "expert", "experts", "stored_bytes", "parameters", "offset", "byte_range"}
ARGUMENTS = ["component", "group", "layer", "role", "encoding", "shard"]

sets_of_shards = shard_sets() | shard_sets(names=kimi_names, max_tensors=8)


def table_of(shards: Mapping[str, Built]) -> ki.TensorTable:
    return ki.open_checkpoint({path: built.cut() for path, built in shards.items()}).tensors


@st.composite
def tables(draw: st.DrawFn) -> ki.TensorTable:
    """A table of a whole checkpoint, or a part of one."""
    table = table_of(draw(sets_of_shards))
    if draw(st.booleans()):
        table = table[draw(st.integers(0, 3)) : draw(st.none() | st.integers(0, 9)) : draw(st.sampled_from([1, 2, -1]))]
    return table.select(role=draw(st.sampled_from([None, None, ki.Role.WEIGHT])))


def column_value(column: Any, index: int) -> Any:
    """What a column holds at one place, in the terms of `TensorInfo`."""
    value = column[index].tolist() if isinstance(column, np.ndarray) and column.dtype != object else column[index]
    return tuple(value) if isinstance(value, list) else value


@few
@given(tables())
def test_every_column_is_that_field_of_every_tensor(table: ki.TensorTable) -> None:
    infos = list(table)
    for name in COLUMNS:
        column = getattr(table, name)
        assert len(column) == len(infos) == len(table)
        expected = [getattr(info, name) for info in infos]
        if name in INTEGERS:
            assert column.dtype.kind == "i"
            expected = [-1 if value is None else value for value in expected]
        assert [column_value(column, index) for index in range(len(infos))] == expected


@few
@given(tables())
def test_columns_are_read_only(table: ki.TensorTable) -> None:
    for name in COLUMNS:
        assert not getattr(table, name).flags.writeable
    if len(table):
        with pytest.raises(ValueError, match="read-only"):
            table.offset[0] = 0


@few
@given(sets_of_shards)
def test_rows_are_what_was_laid_out_by_shard_then_offset(shards: dict[str, Built]) -> None:
    infos = list(table_of(shards))
    places = [(list(shards).index(info.shard), info.offset) for info in infos]
    assert places == sorted(places)
    found = {(info.shard, info.name, info.dtype, info.stored_shape, *info.byte_range) for info in infos}
    assert found == {
        (path, t.name, t.dtype, t.shape, len(built.head) + t.begin, len(built.head) + t.end)
        for path, built in shards.items()
        for t in built.tensors
    }
    assert len(infos) == sum(len(built.tensors) for built in shards.values())


def test_shards_are_ordered_by_number_not_by_text() -> None:
    paths = [f"model-{number}-of-11.safetensors" for number in (10, 2, 1, 11, 9, 3, 8, 4, 7, 5, 6)]
    files = {path: hollow_safetensors([TensorSpec(path, "U8", (1,))]) for path in paths}
    table = ki.open_checkpoint(files).tensors
    assert [int(info.shard.split("-")[1]) for info in table] == list(range(1, 12))
    assert all(info.name == info.shard for info in table)


@few
@given(tables(), tensor_names)
def test_every_name_is_found_and_no_other(table: ki.TensorTable, other: str) -> None:
    names = [info.name for info in table]
    assert table.name.tolist() == names
    for name in [*names, other, "", "\ud800", f"{other}\n", *[name[:-1] for name in names], *[f"{n} " for n in names]]:
        assert (name in table) == (name in names)
        if name in names:
            assert table[name] == table[names.index(name)]
        else:
            with pytest.raises(KeyError):
                table[name]
    assert 0 not in table
    assert None not in table


def test_of_a_name_in_many_shards_the_first_is_found_and_each_in_its_own() -> None:
    specs = [[TensorSpec(name, "U8", (size,)) for name in ("a", f"b{size}", "c")] for size in range(40)]
    files = dict(zip(shard_paths(40), map(hollow_safetensors, specs), strict=True))
    table = ki.open_checkpoint(files).tensors
    assert table["a"].shape == table["c"].shape == (0,)
    assert [table.select(shard=path)["a"].shape for path in files] == [(size,) for size in range(40)]
    assert table[::-1]["a"].shape == table[::-1]["c"].shape == (39,)


def test_names_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kimi_inspect.table, "hash", len, raising=False)
    names = ["ab", "ba", "c", "bb"]
    table = ki.open_checkpoint({"m.safetensors": hollow_safetensors([TensorSpec(name, "U8", (1,)) for name in names])})
    assert [table.tensors[name].name for name in names] == names
    assert "aa" not in table.tensors


@few
@given(tables())
def test_places_are_those_of_a_list(table: ki.TensorTable) -> None:
    infos = list(table)
    assert [table[index] for index in range(len(infos))] == infos
    assert [table[index] for index in range(-len(infos), 0)] == infos
    for index in (len(infos), -len(infos) - 1):
        with pytest.raises(IndexError):
            table[index]


@few
@given(tables(), st.slices(20))
def test_a_slice_is_a_table_of_that_slice(table: ki.TensorTable, part: slice) -> None:
    expected = list(table)[part]
    chosen = table[part]
    assert isinstance(chosen, ki.TensorTable)
    assert list(chosen) == expected
    assert chosen.offset.tolist() == [info.offset for info in expected]
    assert chosen.columns is table.columns


def values_to_ask(infos: list[ki.TensorInfo], argument: str) -> list[Any]:
    """Every value there is, and some that no tensor has."""
    foreign = {"layer": [93, 2**40]}.get(argument, ["nothing", ""])
    present = {getattr(info, argument) for info in infos} - {None}
    return [*sorted(present), *map(str, present if argument in ("component", "group", "role") else ()), *foreign]


def naive(infos: list[ki.TensorInfo], wanted: Mapping[str, Any]) -> list[ki.TensorInfo]:
    return [info for info in infos if all(getattr(info, key) == value for key, value in wanted.items())]


@few
@given(tables())
def test_select_is_a_filter(table: ki.TensorTable) -> None:
    infos = list(table)
    for argument in ARGUMENTS:
        for value in values_to_ask(infos, argument):
            assert list(table.select(**{argument: value})) == naive(infos, {argument: value})
    assert list(table.select()) == infos


@few
@given(tables(), st.permutations(ARGUMENTS), st.randoms(use_true_random=False))
def test_select_by_two_arguments_holds_both(table: ki.TensorTable, arguments: list[str], random: Random) -> None:
    infos = list(table)
    first, second = ({argument: random.choice(values_to_ask(infos, argument))} for argument in arguments[:2])
    chosen = table.select(**first, **second)
    assert list(chosen) == naive(infos, first | second)
    assert list(table.select(**first).select(**second)) == list(chosen)
    assert chosen.columns is table.columns


@pytest.mark.parametrize("layer", [-1, -2, 1, 93, 2**31, 2**40, -(2**40)])
def test_no_tensor_is_in_a_layer_that_there_is_not(layer: int) -> None:
    file = hollow_safetensors([TensorSpec(name, "U8", (1,)) for name in ("lm_head.weight", "model.layers.0.mlp.w")])
    table = ki.open_checkpoint({"model.safetensors": file}).tensors
    assert [info.layer for info in table] == [None, 0]
    assert list(table.select(layer=layer)) == []


@few
@given(shard_sets(names=kimi_names, max_tensors=8))
def test_selections_by_component_part_the_table(shards: dict[str, Built]) -> None:
    table = table_of(shards)
    parts = [table.select(component=component) for component in ki.Component]
    assert sum(map(len, parts)) == len(table)
    assert {info for part in parts for info in part} == set(table)
