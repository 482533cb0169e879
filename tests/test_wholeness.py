"""Whether a split of GGUF files is whole: what its names say, what its parts say, and what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from contracts.checks import check_sums

from kimi_inspect import Checkpoint, open_checkpoint
from kimi_inspect.testing import GgufTensor, HollowFile, SplitNumbers, Typed, hollow_gguf, split_gguf

HELD = (1, 2, 3)
"""Tensors in each part."""

TOTAL = sum(HELD)
LLAMA = {"general.architecture": "llama"}
ORDER, COUNT, SUM = "shard-order", "split-count-disagrees", "tensor-total-wrong"

Numbers = Mapping[int, SplitNumbers]
Found = list[tuple[str, str, Any, Any, int]]


def norms(count: int, begin: int = 0) -> list[GgufTensor]:
    return [GgufTensor(f"blk.{layer}.attn_norm.weight", "F32", (8,)) for layer in range(begin, begin + count)]


def parts(
    numbers: Numbers | None = None, *, held: tuple[int, ...] = HELD, base: int = 1, layer: int = 0
) -> dict[str, HollowFile]:
    """Return a split whose names are counted from `base`, and its tensors from `layer`."""
    shares = [norms(count, layer + sum(held[:index])) for index, count in enumerate(held)]
    files = split_gguf("x-F32", shares, LLAMA, numbers=numbers)
    return {name(index, len(held), base): file for index, file in enumerate(files.values())}


def name(index: int, count: int = len(HELD), base: int = 1) -> str:
    return f"x-F32-{index + base:05d}-of-{count:05d}.gguf"


def opened(folder: Path, files: Mapping[str, HollowFile]) -> Checkpoint:
    for path, file in files.items():
        file.write_to(folder / path)
    checkpoint = open_checkpoint(folder)
    check_sums(checkpoint)
    assert [shard.path for shard in checkpoint.shards] == sorted(files)
    assert [shard.file_bytes for shard in checkpoint.shards] == [files[path].size for path in sorted(files)]
    return checkpoint


def found(checkpoint: Checkpoint) -> Found:
    wrong = [item for item in checkpoint.findings if item.code != "label-disagrees"]  # all tensors are F32
    assert {item.severity for item in wrong} <= {"error"}
    return sorted((item.code, item.where, item.expected, item.actual, item.count) for item in wrong)


LIES: list[tuple[Numbers, list[tuple[str, int, int, int, int]]]] = [
    # One number at a time: (code, part, expected, actual, parts that say so).
    ({1: SplitNumbers(2, 3, TOTAL)}, [(ORDER, 1, 1, 2, 1)]),
    ({0: SplitNumbers(1, 3, TOTAL)}, [(ORDER, 0, 0, 1, 1)]),
    ({2: SplitNumbers(3, 3, TOTAL)}, [(ORDER, 2, 2, 3, 1)]),
    ({1: SplitNumbers(2, 3, TOTAL), 2: SplitNumbers(1, 3, TOTAL)}, [(ORDER, 1, 1, 2, 2)]),
    ({index: SplitNumbers(index + 1, 3, TOTAL) for index in range(3)}, [(ORDER, 0, 0, 1, 3)]),
    ({0: SplitNumbers(0, 4, TOTAL)}, [(COUNT, 0, 3, 4, 1)]),
    ({2: SplitNumbers(2, 2, TOTAL)}, [(COUNT, 2, 3, 2, 1)]),
    ({1: SplitNumbers(1, 0, TOTAL)}, [(COUNT, 1, 3, 0, 1)]),
    ({1: SplitNumbers(1, 1, TOTAL)}, [(COUNT, 1, 3, 1, 1)]),
    ({index: SplitNumbers(index, 65535, TOTAL) for index in range(3)}, [(COUNT, 0, 3, 65535, 3)]),
    ({1: SplitNumbers(1, 3, TOTAL - 1)}, [(SUM, 1, TOTAL - 1, TOTAL, 1)]),
    ({index: SplitNumbers(index, 3, TOTAL + 1) for index in range(3)}, [(SUM, 0, TOTAL + 1, TOTAL, 1)]),
    ({0: SplitNumbers(0, 3, 0)}, [(SUM, 0, 0, TOTAL, 1)]),
    ({0: SplitNumbers(0, 3, -1)}, [(SUM, 0, -1, TOTAL, 1)]),
    # In pairs, in one part and in several.
    ({1: SplitNumbers(0, 2, TOTAL)}, [(ORDER, 1, 1, 0, 1), (COUNT, 1, 3, 2, 1)]),
    ({1: SplitNumbers(0, 3, 9)}, [(ORDER, 1, 1, 0, 1), (SUM, 1, 9, TOTAL, 1)]),
    ({1: SplitNumbers(1, 2, 9)}, [(COUNT, 1, 3, 2, 1), (SUM, 1, 9, TOTAL, 1)]),
    ({0: SplitNumbers(0, 2, TOTAL), 2: SplitNumbers(0, 3, TOTAL)}, [(ORDER, 2, 2, 0, 1), (COUNT, 0, 3, 2, 1)]),
    ({0: SplitNumbers(7, 8, 9)}, [(ORDER, 0, 0, 7, 1), (COUNT, 0, 3, 8, 1), (SUM, 0, 9, TOTAL, 1)]),
]


@pytest.mark.parametrize("base", [0, 1])
class TestNumbers:
    """Names of parts are counted from one, and by some tools from zero."""

    @pytest.mark.parametrize(("numbers", "expected"), LIES)
    def test_lies(self, numbers: Numbers, expected: list[Any], base: int, tmp_path: Path) -> None:
        checkpoint = opened(tmp_path, parts(numbers, base=base))
        assert found(checkpoint) == sorted(
            (code, name(index, base=base), *numbers_) for code, index, *numbers_ in expected
        )
        # All is there, whatever it says.
        assert checkpoint.complete
        assert len(checkpoint.tensors) == TOTAL

    def test_the_truth(self, base: int, tmp_path: Path) -> None:
        checkpoint = opened(tmp_path, parts(base=base))
        assert found(checkpoint) == []
        assert checkpoint.complete
        assert checkpoint.architecture == "llama"

    @pytest.mark.parametrize("gone", [1, 2])
    def test_a_part_is_missing(self, gone: int, base: int, tmp_path: Path) -> None:
        files = parts(base=base)
        del files[name(gone, base=base)]
        checkpoint = opened(tmp_path, files)
        # And not that the declared tensors are not there: one finding a cause.
        assert found(checkpoint) == [("shard-missing", name(gone, base=base), 3, 2, 1)]
        assert not checkpoint.complete
        assert len(checkpoint.tensors) == TOTAL - HELD[gone]

    def test_a_first_part_without_tensors(self, base: int, tmp_path: Path) -> None:
        checkpoint = opened(tmp_path, parts(held=(0, 1, 2), base=base))
        assert found(checkpoint) == []
        first, *others = checkpoint.shards
        assert (first.tensor_bytes, first.header_bytes) == (0, first.file_bytes)
        assert all(shard.tensor_bytes for shard in others)
        assert checkpoint.architecture == "llama"
        assert len(checkpoint.tensors) == 3


@pytest.mark.parametrize("gone", [(0,), (0, 1), (0, 2), (1, 2)])
def test_parts_are_missing(gone: tuple[int, ...], tmp_path: Path) -> None:
    files = {path: file for index, (path, file) in enumerate(parts().items()) if index not in gone}
    checkpoint = opened(tmp_path, files)
    assert found(checkpoint) == [("shard-missing", name(gone[0]), 3, 3 - len(gone), len(gone))]
    (finding,) = checkpoint.findings
    assert finding.examples == tuple(map(name, gone))
    assert not checkpoint.complete


def test_a_missing_part_hides_no_lie_of_another(tmp_path: Path) -> None:
    files = parts({2: SplitNumbers(0, 2, 9)})
    del files[name(1)]
    assert found(opened(tmp_path, files)) == [
        ("shard-missing", name(1), 3, 2, 1),
        (ORDER, name(2), 2, 0, 1),
        (COUNT, name(2), 3, 2, 1),
    ]


def test_a_stray_file_of_number_zero_makes_no_other_wrong(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, {name(-1): hollow_gguf([], LLAMA), **parts()})
    assert not set(parts()) & {path for item in checkpoint.findings for path in item.examples}


def test_an_unreadable_part_is_no_wrong_total(tmp_path: Path) -> None:
    files = parts()
    files[name(1)] = HollowFile(b"<html>")
    (finding,) = opened(tmp_path, files).findings
    assert (finding.code, finding.file) == ("shard-unreadable", name(1))


@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [
        # The same numbers, another total; another number of parts; another place.
        ((1, 2, 3), (3, 2, 4), [(SUM, 1, 9, TOTAL, 1)]),
        ((1, 2, 3), (2, 2, 1, 1), [(COUNT, 1, 3, 4, 1)]),
        ((1, 2, 3), (3, 2, 1, 9), [(COUNT, 1, 3, 4, 1), (SUM, 1, 15, TOTAL, 1)]),
        # Nothing in the numbers tells a part of an equal split.
        ((1, 2, 3), (2, 2, 2), []),
    ],
)
def test_a_part_of_another_split_under_the_right_name(
    own: tuple[int, ...], others: tuple[int, ...], expected: list[Any], tmp_path: Path
) -> None:
    stray = list(parts(held=others, layer=50).values())[1]
    checkpoint = opened(tmp_path, parts(held=own) | {name(1): stray})
    assert found(checkpoint) == sorted((code, name(index), *numbers) for code, index, *numbers in expected)


def alone(**numbers: Any) -> HollowFile:
    return hollow_gguf(norms(2), LLAMA | {f"split.{key.replace('_', '.')}": value for key, value in numbers.items()})


@pytest.mark.parametrize(
    ("numbers", "parts_told"),
    [
        ({"no": 0, "count": 3}, 3),
        ({"no": 2, "count": 3}, 3),
        ({"count": 2}, 2),
        ({"count": Typed("u16", 65535)}, 65535),
    ],
)
def test_a_part_renamed_to_a_plain_name(numbers: dict[str, Any], parts_told: int, tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, {"x-F32.gguf": alone(**numbers)})
    assert found(checkpoint) == [("shard-missing", "x-F32.gguf", parts_told, 1, 1)]
    assert not checkpoint.complete


@pytest.mark.parametrize(
    "numbers", [{}, {"no": 0}, {"count": 0}, {"no": 0, "count": 1, "tensors_count": 2}, {"tensors_count": 2}]
)
def test_a_whole_file_under_a_plain_name(numbers: dict[str, Any], tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, {"x-F32.gguf": alone(**numbers)})
    assert found(checkpoint) == []
    assert checkpoint.complete


def test_a_whole_file_with_a_wrong_total(tmp_path: Path) -> None:
    assert found(opened(tmp_path, {"x.gguf": alone(count=1, tensors_count=3)})) == [(SUM, "x.gguf", 3, 2, 1)]


class TestNamesAlone:
    """Parts that say nothing of a split, as the oldest tools wrote them."""

    def test_whole(self, tmp_path: Path) -> None:
        files = {name(index): hollow_gguf(norms(1, index), LLAMA) for index in range(3)}
        checkpoint = opened(tmp_path, files)
        assert found(checkpoint) == []
        assert checkpoint.complete

    def test_two_files_of_one_number(self, tmp_path: Path) -> None:
        paths = ["x-1-of-2.gguf", "x-00001-of-00002.gguf", "x-00002-of-00002.gguf"]
        files = {path: hollow_gguf(norms(1, index), LLAMA) for index, path in enumerate(paths)}
        for path, file in files.items():
            file.write_to(tmp_path / path)
        (finding,) = open_checkpoint(tmp_path).findings
        assert (finding.code, finding.count, set(finding.examples)) == (ORDER, 2, set(paths[:2]))

    def test_the_missing_ones_are_called_as_the_others(self, tmp_path: Path) -> None:
        checkpoint = opened(tmp_path, {"x-2-of-3.gguf": hollow_gguf(norms(1), LLAMA)})
        (finding,) = checkpoint.findings
        assert (finding.code, finding.examples) == ("shard-missing", ("x-1-of-3.gguf", "x-3-of-3.gguf"))

    def test_the_missing_ones_are_called_by_the_shortest_of_them(self, tmp_path: Path) -> None:
        paths = ["x-00001-of-00003.gguf", "x-2-of-3.gguf"]
        checkpoint = opened(tmp_path, {path: hollow_gguf(norms(1, index), LLAMA) for index, path in enumerate(paths)})
        assert [item.examples for item in checkpoint.findings] == [("x-3-of-3.gguf",)]

    def test_a_count_beyond_belief(self, tmp_path: Path) -> None:
        checkpoint = opened(tmp_path, {"x-00001-of-999999999.gguf": hollow_gguf(norms(1), LLAMA)})
        assert found(checkpoint) == []


@pytest.mark.parametrize("value", [Typed("str", "1"), Typed("i64", -1), Typed("f64", 0.5), Typed("f64", float("nan"))])
@pytest.mark.parametrize(("key", "code"), [("no", ORDER), ("count", COUNT), ("tensors_count", SUM)])
def test_numbers_that_are_none(key: str, code: str, value: Typed, tmp_path: Path) -> None:
    files = parts()
    files[name(1)] = hollow_gguf(
        norms(2, 1), SplitNumbers(1, 3, TOTAL).metadata() | {f"split.{key.replace('_', '.')}": value}
    )
    checkpoint = opened(tmp_path, files)
    assert [item.code for item in checkpoint.findings] == [code]
