"""The identities of the byte counts, held against counts of single bytes taken from the layout.

For every shard and in sum: file and missing bytes are header, tensor, padding and unread bytes together; and the rows
of components, encodings and layers add up to the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import Built, Laid, few, framed, kimi_names, shard_paths, shard_sets

import kimi_inspect as ki
from kimi_inspect.errors import FormatError
from kimi_inspect.report import EncodingRow
from kimi_inspect.testing import HollowFile, TensorSpec, hollow_safetensors

BYTES = ("file_bytes", "header_bytes", "tensor_bytes", "padding_bytes", "missing_bytes", "unread_bytes")


def counted(built: Built, size: int) -> dict[str, int]:
    """Say byte by byte what the first `size` bytes of a file are, and what is not there."""
    if size < len(built.head):
        return dict.fromkeys(BYTES, 0) | {"file_bytes": size, "unread_bytes": size}
    marks = ["header"] * len(built.head) + ["padding"] * built.data_bytes
    for tensor in built.tensors:
        for at in range(len(built.head) + tensor.begin, len(built.head) + tensor.end):
            assert marks[at] == "padding"
            marks[at] = "tensor"
    return {
        "file_bytes": size,
        "header_bytes": marks.count("header"),
        "tensor_bytes": marks.count("tensor"),
        "padding_bytes": marks[:size].count("padding"),
        "missing_bytes": marks[size:].count("tensor"),
        "unread_bytes": 0,
    }


def sizes_of(part: object) -> dict[str, int]:
    return {name: getattr(part, name) for name in BYTES}


def balanced(sizes: Mapping[str, int]) -> bool:
    owned = sum(sizes[name] for name in ("header_bytes", "tensor_bytes", "padding_bytes", "unread_bytes"))
    return sizes["file_bytes"] + sizes["missing_bytes"] == owned


def check(shards: Mapping[str, Built], sizes: Mapping[str, int]) -> ki.Report:
    """Hold the report on `shards`, each cut to its size, against the layout."""
    checkpoint = ki.open_checkpoint({path: built.cut(sizes[path]) for path, built in shards.items()})
    report = ki.summarize(checkpoint)
    expected = {path: counted(built, sizes[path]) for path, built in shards.items()}
    whole = {name: sum(part[name] for part in expected.values()) for name in BYTES}

    assert {shard.path: sizes_of(shard) for shard in checkpoint.shards} == expected
    assert report.by_file() == checkpoint.shards
    assert sizes_of(report) == whole
    assert all(map(balanced, [whole, *expected.values()]))
    assert all(value >= 0 for part in expected.values() for value in part.values())

    read = [tensor for path, built in shards.items() if sizes[path] >= len(built.head) for tensor in built.tensors]
    assert report.tensor_count == len(checkpoint.tensors) == len(read)
    check_rows(report, read)
    unread = [path for path, built in shards.items() if sizes[path] < len(built.head)]
    assert report.complete == (not unread and not whole["missing_bytes"])
    assert report.shard_count == len(shards)
    return report


def added(rows: Iterable[Any]) -> tuple[int, int]:
    listed = list(rows)
    return sum(row.tensor_count for row in listed), sum(row.stored_bytes for row in listed)


def check_rows(report: ki.Report, tensors: list[Laid]) -> None:
    """Hold every table of rows against the tensors as they were laid out."""
    whole = len(tensors), sum(tensor.end - tensor.begin for tensor in tensors)
    assert added(report.components) == whole
    assert added(report.by_encoding()) == whole
    assert added(report.by_layer()) == whole
    parts = [*report.components, *(row for layer in report.by_layer() for row in layer.components)]
    for part in parts:
        assert added(part.encodings) == added([part])
        assert all(0 <= row.scale_bytes <= row.stored_bytes for row in part.encodings)
    for layer in report.by_layer():
        assert added(layer.components) == added([layer])
    for component in ki.Component:
        in_layers = [row for layer in report.by_layer() for row in layer.components if row.component == component]
        assert added(in_layers) == added([report[component]])
        assert encodings(in_layers) == encodings([report[component]])
    assert len({row.component for row in report.components}) == len(report.components)
    assert len({layer.layer for layer in report.by_layer()}) == len(report.by_layer())
    assert all(row.tensor_count > 0 for row in parts)


def encodings(rows: Iterable[ki.ComponentRow]) -> dict[str, tuple[int, int, int]]:
    """Tensors, bytes and scale bytes of each encoding."""
    sums: dict[str, tuple[int, int, int]] = {}
    for row in (encoding for part in rows for encoding in part.encodings):
        before = sums.get(row.encoding, (0, 0, 0))
        sums[row.encoding] = (
            before[0] + row.tensor_count,
            before[1] + row.stored_bytes,
            before[2] + row.scale_bytes,
        )
    return sums


any_shards = shard_sets(max_tensors=5) | shard_sets(max_tensors=6, names=kimi_names)
holey_shards = shard_sets(max_tensors=5, holes=True)


@few
@given(any_shards | holey_shards)
def test_whole_files_balance(shards: dict[str, Built]) -> None:
    report = check(shards, {path: built.size for path, built in shards.items()})
    assert report.missing_bytes == report.unread_bytes == 0


@few
@given(any_shards | holey_shards, st.data())
def test_files_cut_at_any_byte_balance(shards: dict[str, Built], data: st.DataObject) -> None:
    sizes = {}
    for path, built in shards.items():
        cut_in_data = st.integers(len(built.head), built.size)
        sizes[path] = data.draw(cut_in_data | cut_in_data | st.integers(0, built.size), label=path)
    unread = [path for path, built in shards.items() if sizes[path] < len(built.head)]
    if len(unread) == len(shards):
        with pytest.raises(FormatError):
            check(shards, sizes)
        return
    report = check(shards, sizes)
    reported = {finding.file for finding in report.findings if finding.code == "shard-unreadable"}
    assert reported == set(unread)
    cut = {path for path, built in shards.items() if counted(built, sizes[path])["missing_bytes"]}
    assert {finding.file for finding in report.findings if finding.code == "truncated"} == cut


def holey(*ranges: tuple[int, int], data_bytes: int) -> Built:
    """A file of byte tensors at these ranges."""
    tensors = [Laid(f"t{at}", "U8", (end - begin,), begin, end) for at, (begin, end) in enumerate(ranges)]
    text = ",".join(
        f'"{t.name}":{{"dtype":"U8","shape":[{t.end - t.begin}],"data_offsets":[{t.begin},{t.end}]}}' for t in tensors
    )
    return Built(framed(f"{{{text}}}".encode()), tuple(tensors), data_bytes)


@pytest.mark.parametrize(
    "built",
    [
        holey((0, 4), (4, 4), (4, 9), data_bytes=9),
        holey((3, 5), (5, 6), (9, 12), data_bytes=12),
        holey((0, 4), (20, 24), data_bytes=30),
        holey((0, 4), (8, 8), data_bytes=8),
        holey(data_bytes=3),
        holey(data_bytes=0),
    ],
    ids=["dense", "holes", "hole and tail", "hole before nothing", "tail alone", "empty"],
)
def test_every_cut_of_a_file_balances(built: Built) -> None:
    beside = holey((0, 1), data_bytes=1)
    paths = shard_paths(2)
    for size in range(built.size + 1):
        check(dict(zip(paths, [built, beside], strict=True)), dict(zip(paths, [size, beside.size], strict=True)))


plain_names = kimi_names.filter(lambda name: "weight_" not in name)


@few
@given(shard_sets(names=plain_names, max_tensors=6))
@example(dict(zip(shard_paths(2), [holey((0, 4), data_bytes=4), holey((0, 9), data_bytes=9)], strict=True)))
def test_parameters_are_counted_once_a_name_and_bytes_every_time(shards: dict[str, Built]) -> None:
    report = ki.inspect({path: built.cut() for path, built in shards.items()})
    shapes: dict[str, tuple[int, ...]] = {}
    for tensor in (tensor for built in shards.values() for tensor in built.tensors):
        shapes.setdefault(tensor.name, tensor.shape)
    parameters = sum(map(prod, shapes.values()))
    assert (report.parameters, report.known_parameters, report.unknown_tensors) == (parameters, parameters, 0)
    assert sum(row.parameters or 0 for row in report.components) == parameters
    assert sum(layer.parameters or 0 for layer in report.by_layer()) == parameters
    assert report.tensor_bytes == sum(built.data_bytes for built in shards.values())
    again = report.tensor_count - len(shapes)
    assert [found.count for found in report.findings if found.code == "duplicate-tensor"] == ([again] if again else [])


def test_a_type_nobody_knows_makes_parameters_unknown_and_leaves_bytes_exact() -> None:
    text = b'{"a":{"dtype":"Q9","shape":[7],"data_offsets":[0,5]},"b":{"dtype":"U8","shape":[3],"data_offsets":[5,8]}}'
    report = ki.inspect({"model.safetensors": HollowFile(framed(text) + bytes(8))})
    assert (report.parameters, report.known_parameters, report.unknown_tensors) == (None, 3, 1)
    assert report.tensor_bytes == 8
    assert report.by_encoding() == (
        EncodingRow(encoding="unknown:Q9", tensor_count=1, stored_bytes=5, scale_bytes=0, parameters=None),
        EncodingRow(encoding="u8", tensor_count=1, stored_bytes=3, scale_bytes=0, parameters=3),
    )


def test_giants_are_counted_exactly() -> None:
    odd = 2**53 + 1
    files = {
        path: hollow_safetensors([TensorSpec(f"model.layers.{layer}.mlp.w", "U8", (odd,))])
        for layer, path in enumerate(shard_paths(90))
    }
    report = ki.inspect(files)
    assert (report.tensor_bytes, report.parameters) == (90 * odd, 90 * odd)
    assert report[ki.Component.DENSE_MLP].stored_bytes == 90 * odd
    assert report.file_bytes == 90 * odd + report.header_bytes
