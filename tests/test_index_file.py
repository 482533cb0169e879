"""The index of a sharded checkpoint, read piece by piece, against what Python's own JSON makes of the whole."""

from __future__ import annotations

import json
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import usual

from kimi_inspect.index_file import MAX_ENTRY, IndexFormatError, IndexReader, index_paths

Entries = list[tuple[bytes, bytes]]


def read(data: bytes, step: int | None = None) -> tuple[Entries, Any]:
    reader = IndexReader()
    step = step or max(len(data), 1)
    entries = [one for begin in range(0, len(data), step) for one in reader.feed(data[begin : begin + step])]
    reader.finish()
    return entries, reader.metadata


def by_json(data: bytes) -> tuple[Entries, Any]:
    """Read an index with Python's own reader; entries that are written twice come twice."""
    index = dict(json.loads(data, object_pairs_hook=lambda pairs: pairs))
    return [(name.encode(), file.encode()) for name, file in index["weight_map"]], json.loads(data).get("metadata")


TEXTS = {
    "usual": b'{"metadata": {"total_size": 12}, "weight_map": {"a": "x", "b.1": "y"}}',
    "turned": b'{"weight_map":{"a":"x","b":"y"},"metadata":{"total_size":12.5}}',
    "empty map": b'{"weight_map": { } }',
    "spaces": b' \r\n\t{ \n"weight_map"\t:\r { "a" : "x" ,\n "b" : "y" } , "metadata" : { } }\n\n ',
    "escapes": rb'{"weight_map": {"a\"\\\/\u00e9\n": "x\u0041", "\ud83d\ude00": "y\\", "\\": "\""}}',
    "utf-8": '{"weight_map": {"模型": "é😀.safetensors", "{": "}", "[,": ":]"}}'.encode(),
    "others": b'{"a": [1, {"weight_map": {"no": "no"}}], "weight_map": {"a": "x"}, "b": "}", "c": null, "d": -1.5e3}',
    "nested metadata": b'{"metadata": {"weight_map": {"b": "no"}, "x": [[{}]], "s": "\\"{"}, "weight_map": {"a": "x"}}',
    "twice": b'{"weight_map": {"a": "x", "b": "y", "a": "z"}}',
}


@pytest.mark.parametrize("text", TEXTS)
def test_any_piece_size_gives_the_same(text: str) -> None:
    data = TEXTS[text]
    expected = by_json(data)
    for step in range(1, len(data) + 1):
        assert read(data, step) == expected


@pytest.mark.parametrize("text", TEXTS)
def test_cut_anywhere_it_is_none(text: str) -> None:
    data = TEXTS[text].rstrip()
    for end in range(len(data)):
        with pytest.raises(IndexFormatError):
            read(data[:end], 7)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b'"weight_map"',
        b"<!DOCTYPE html>",
        b"version https://git-lfs.github.com/spec/v1\n",
        b"\xef\xbb\xbf{}",
        b"{}",
        b'{"metadata": {"total_size": 1}}',
        b'{"weight_map": []}',
        b'{"weight_map": "model.safetensors"}',
        b'{"weight_map": null}',
        b'{"weight_map": {"a": 1}}',
        b'{"weight_map": {"a": null}}',
        b'{"weight_map": {"a": ["x"]}}',
        b'{"weight_map": {"a": {"b": "x"}}}',
        b'{"weight_map": {"a": "x",}}',
        b'{"weight_map": {,}}',
        b'{"weight_map": {"a" "x"}}',
        b'{"weight_map": {"a": "x" "b": "y"}}',
        b'{"weight_map": {"a": "x"}}}',
        b'{"weight_map": {"a": "x"}} x',
        b'{"weight_map": {"a": "x"}}{"weight_map": {"a": "x"}}',
        b'{"weight_map": {"a": "x"},}',
        b'{"weight_map": {"a": "x"} "metadata": {}}',
        b'{"metadata": {}, "metadata", "weight_map": {"a": "x"}}',
        b'{"metadata": tru, "weight_map": {"a": "x"}}',
        rb'{"weight_map": {"\x": "x"}}',
        rb'{"weight_map": {"\u12": "x"}}',
        b'{weight_map: {"a": "x"}}',
        b"{'weight_map': {'a': 'x'}}",
        b'{"a":' * 100_000,
        b'{"a":' + b"[" * 100_000,
        b'{"weight_map":' * 1000,
        b"\xff\xfe{",
        b"\0" * 1000,
    ],
    ids=range(36),
)
def test_what_is_no_index_is_told_so(data: bytes) -> None:
    for step in (None, 1, 5):
        if step is None or len(data) < 2000:
            with pytest.raises(IndexFormatError):
                read(data, step)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (b'"a":5', "no file name"),
        (b'"a": "x", "b": null', "no file name"),
        (b'"a":["x"]', "no file name"),
        (b'"a" :\n{"b": "x"}', "no file name"),
        (b'"a" "x"', "no JSON"),
        (b'"a": "x" "b": "y"', "no JSON"),
        (b'"a": "x",', "no JSON"),
        (b"a: x", "no JSON"),
        (b"'a': 'x'", "no JSON"),
    ],
)
def test_what_is_wrong_with_an_entry_is_said(entries: bytes, words: str) -> None:
    data = b'{"weight_map":{' + entries + b"}}"
    for step in (None, 1, 3):
        with pytest.raises(IndexFormatError, match=words):
            read(data, step)


@pytest.mark.parametrize("begin", [b'{"weight_map": {"', b'{"weight_map": {"a": "', b'{"metadata": "', b"{", b'{"'])
def test_an_entry_without_end_is_not_kept(begin: bytes) -> None:
    with pytest.raises(IndexFormatError, match=r"longer|too early"):
        read(begin + b" " * (3 * MAX_ENTRY), MAX_ENTRY)


def test_what_is_no_object_beside_the_map_is_no_metadata() -> None:
    for value in ("null", "[1]", '"x"', "12"):
        assert read(f'{{"metadata": {value}, "weight_map": {{}}}}'.encode()) == ([], None)


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), names)
values = st.recursive(leaves, lambda one: st.lists(one, max_size=3) | st.dictionaries(names, one, max_size=3))
blanks = st.sampled_from(["", " ", "\n", "\r\n\t  "])


@usual
@given(
    st.dictionaries(names, names, max_size=6),
    st.dictionaries(names.filter(lambda name: name != "weight_map"), values, max_size=3),
    st.none() | st.dictionaries(names, values, max_size=3),
    st.data(),
)
def test_any_json_is_read_as_json_reads_it(
    weight_map: dict[str, str], others: dict[str, Any], metadata: dict[str, Any] | None, data: st.DataObject
) -> None:
    members = [*others.items(), ("weight_map", weight_map)] + ([("metadata", metadata)] if metadata is not None else [])
    index = dict(data.draw(st.permutations(members)))
    comma, colon = "".join([",", data.draw(blanks)]), "".join([data.draw(blanks), ":", data.draw(blanks)])
    text = json.dumps(index, ensure_ascii=data.draw(st.booleans()), separators=(comma, colon)).encode()
    entries, found = read(text, data.draw(st.integers(1, len(text))))
    assert entries == [(name.encode(), file.encode()) for name, file in weight_map.items()]
    assert found == (index["metadata"] if isinstance(index.get("metadata"), dict) else None)


@usual
@given(st.binary(max_size=60) | st.text('{}[]",:\\weight_map" ', max_size=60).map(str.encode), st.integers(1, 60))
def test_no_bytes_raise_anything_else(data: bytes, step: int) -> None:
    try:
        entries, _ = read(b'{"weight_map": {"a": "x"' + data, step)
    except IndexFormatError:
        return
    assert entries[0] == (b"a", b"x")


@pytest.mark.parametrize(
    ("shard", "paths"),
    [
        ("model-00001-of-00002.safetensors", ["model.safetensors.index.json"]),
        ("unet/x-00001-of-00002.safetensors", ["unet/x.safetensors.index.json"]),
        ("model.safetensors", ["model.safetensors.index.json"]),
        ("x-00001-of-00002.fp16.safetensors", ["x.fp16.safetensors.index.json", "x.safetensors.index.fp16.json"]),
    ],
)
def test_where_an_index_lies(shard: str, paths: list[str]) -> None:
    assert index_paths(shard) == paths


LARGEST = 497_220
"""Entries of the largest index in the world."""


def pieces(count: int) -> list[bytes]:
    name = "language_model.model.layers.{}.block_sparse_moe.experts.{}.w1.weight_packed{}"
    lines = [
        f'    "{name.format(number % 93, number // 93, number)}": "model-{number % 96 + 1:05d}-of-000096.safetensors"'
        for number in range(count)
    ]
    text = '{\n  "metadata": {"total_size": 1},\n  "weight_map": {\n' + ",\n".join(lines) + "\n  }\n}\n"
    data = text.encode()
    return [data[begin : begin + (1 << 20)] for begin in range(0, len(data), 1 << 20)]


def count_entries(data: list[bytes]) -> int:
    reader = IndexReader()
    count = sum(1 for piece in data for _ in reader.feed(piece))
    reader.finish()
    return count


def test_the_largest_index_is_read_in_seconds() -> None:
    data = pieces(LARGEST)
    assert sum(map(len, data)) > 60_000_000
    began = time.process_time()
    assert count_entries(data) == LARGEST
    assert time.process_time() - began < 10


def test_no_more_is_held_than_a_piece() -> None:
    data = pieces(LARGEST // 10)
    tracemalloc.start()
    assert count_entries(data) == LARGEST // 10
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12_000_000
