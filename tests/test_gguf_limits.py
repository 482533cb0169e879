"""How much of a GGUF file is read, and what is said of one that ends early or holds types that nobody knows."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import pytest
from gguf_files import ARRAY, STRING, Tensor, Value, gguf_file

import kimi_inspect as ki
from kimi_inspect.errors import HeaderTooLargeError, NotWeightsError, TruncatedError, UnsupportedVersionError
from kimi_inspect.gguf import FIRST_READ, GgufHeader, read_gguf_header, read_gguf_kind
from kimi_inspect.planning import Plan, run
from kimi_inspect.testing import HollowFile

TWO = (Tensor("token_embd.weight", (8, 4)), Tensor("blk.0.attn_q.weight", (32, 2), "Q8_0"))
KIND = [("general.architecture", Value(STRING, "clip")), ("general.type", Value(STRING, "mmproj"))]
LONG = ("text", Value(STRING, "t" * 300))
SAMPLE = gguf_file(TWO, [*KIND, LONG, ("t", Value(ARRAY, (STRING, ["ab", "", "c" * 40])))])


class Recorder:
    """Reads from bytes, and knows what was asked for."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.asked: list[tuple[int, int]] = []

    def __call__(self, begin: int, end: int) -> bytes:
        self.asked.append((begin, end))
        return self._data[begin:end]


def used_bytes(data: bytes) -> int:
    """Return where the table of tensors ends, before the padding."""
    return len(data[: parsed(data).data_start].rstrip(b"\0")) + 8


def parsed(data: bytes) -> GgufHeader:
    return run(read_gguf_header(len(data), file="x.gguf"), lambda begin, end: data[begin:end])


@pytest.mark.parametrize("first_read", [1, 50, 10**6])
def test_no_header_longer_than_wanted_is_read(first_read: int) -> None:
    # The last offset is 128: one byte that is not 0, and seven that are.
    needed = used_bytes(SAMPLE) - 1
    for limit in range(needed + 20):
        read = Recorder(SAMPLE)
        plan = read_gguf_header(len(SAMPLE), file="x.gguf", first_read=first_read, max_header_bytes=limit)
        if limit < needed:
            with pytest.raises(HeaderTooLargeError) as caught:
                run(plan, read)
            assert caught.value.file == "x.gguf"
        else:
            assert list(run(plan, read).names) == [tensor.name for tensor in TWO]
        assert all(end <= limit for _, end in read.asked)


@pytest.mark.parametrize(("first_read", "max_read"), [(1, 1), (4, 16), (16, 16), (64, 8), (8, 10**6)])
def test_reads_grow_up_to_a_limit_unless_one_value_is_longer(first_read: int, max_read: int) -> None:
    read = Recorder(SAMPLE)
    header = run(read_gguf_header(len(SAMPLE), file="x", first_read=first_read, max_read=max_read), read)
    assert list(header.names) == [tensor.name for tensor in TWO]
    sizes = [end - begin for begin, end in read.asked]
    most = max(first_read, max_read)
    longer = [size for size in sizes if size > max(most, 48)]
    assert len(longer) <= 1
    assert all(300 - most <= size <= 300 + most for size in longer if max_read < 300)
    for (_, end), (begin, _) in pairwise(read.asked):
        assert begin == end


def kind_of(data: bytes) -> tuple[dict[str, object], list[tuple[int, int]]]:
    read = Recorder(data)
    plan: Plan[dict[str, object]] = read_gguf_kind(len(data), file="x.gguf")
    return run(plan, read), read.asked


MODEL = ("tokenizer.ggml.model", Value(STRING, "gpt2"))
TOKENS = ("tokenizer.ggml.tokens", Value(ARRAY, (STRING, ["token"] * 20_000)))


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("order", ["<", ">"])
def test_the_kind_of_a_file_stands_before_its_tokenizer(version: int, order: str) -> None:
    data = gguf_file(TWO, [*KIND, MODEL, TOKENS, ("last", Value(4, 1))], version=version, order=order)
    expected = {"general.architecture": "clip", "general.type": "mmproj"}
    assert kind_of(data) == (expected, [(0, FIRST_READ)])
    # So it is told even of a file that ends inside its tokenizer.
    assert kind_of(data[:150_000]) == (expected, [(0, FIRST_READ)])


def test_the_kind_of_a_file_without_tokenizer_is_all_its_keys_the_first_of_equal_ones() -> None:
    pairs = [*KIND, ("general.architecture", Value(STRING, "llama")), ("last", Value(4, 1))]
    data = gguf_file(TWO, pairs)
    assert kind_of(data) == (
        {"general.architecture": "clip", "general.type": "mmproj", "last": 1},
        [(0, len(data))],
    )


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", TruncatedError),
        (SAMPLE[:100], TruncatedError),
        (b"<!DOCTYPE html>" + bytes(40), NotWeightsError),
        (b"GGUF\x09\0\0\0" + bytes(40), UnsupportedVersionError),
    ],
    ids=range(4),
)
def test_what_has_no_kind(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        kind_of(data)


@pytest.mark.parametrize("alignment", [32, 4096])
def test_a_file_that_ends_before_its_data_has_places_all_the_same(alignment: int) -> None:
    data = gguf_file(TWO, [*KIND, ("general.alignment", Value(4, alignment))], alignment=alignment)
    whole = ki.open_checkpoint({"x.gguf": HollowFile(data)})
    begin = whole.shards[0].header_bytes
    assert begin % alignment == 0
    for length in (used_bytes(data), begin - 1, begin):
        cut = ki.open_checkpoint({"x.gguf": HollowFile(data[:length])})
        (shard,) = cut.shards
        assert cut.tensors.offset.tolist() == whole.tensors.offset.tolist()
        assert cut.tensors.stored_bytes.tolist() == [tensor.size for tensor in TWO]
        assert (shard.file_bytes, shard.header_bytes, shard.padding_bytes) == (length, length, 0)
        assert shard.tensor_bytes == shard.missing_bytes == sum(tensor.size for tensor in TWO)
        (finding,) = cut.findings
        end = whole.tensors[-1].byte_range.end
        assert (finding.code, finding.expected, finding.actual) == ("truncated", end, length)
        assert not cut.complete


@pytest.mark.parametrize(("number", "code"), [(57, "unknown-type"), (4, "unknown-type"), (42, "foreign-type")])
def test_a_type_that_nobody_knows_is_named_by_its_number(number: int, code: str) -> None:
    dimensions = (128, 3)
    tensor = Tensor("blk.0.ffn_up.weight", dimensions, number=number, nbytes=320)
    checkpoint = ki.open_checkpoint({"x.gguf": HollowFile(gguf_file([tensor, *TWO]))})
    info = checkpoint.tensors[tensor.name]
    assert (info.dtype, info.encoding) == (str(number), f"unknown:{number}")
    assert (info.stored_shape, info.shape) == (dimensions, dimensions[::-1])
    assert (info.stored_bytes, info.parameters) == (320, prod(dimensions))
    (finding,) = checkpoint.findings
    assert (finding.code, finding.tensor, finding.count) == (code, tensor.name, 1)
    assert str(number) in str(finding.actual)
    report = ki.summarize(checkpoint)
    assert (report.unknown_tensors, report.parameters) == (0, prod(dimensions) + 32 + 64)
    assert [row.encoding for row in report.by_encoding() if row.encoding.startswith("unknown")] == [f"unknown:{number}"]
