"""The GGUF parser, against files made byte by byte and against gguf's own reader."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf_files import ARRAY, BLOCKS, FORMATS, STRING, Tensor, Value, gguf_file
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_inspect.errors import (
    FormatError,
    KimiInspectError,
    MalformedHeaderError,
    NotWeightsError,
    TruncatedError,
    UnsupportedVersionError,
)
from kimi_inspect.gguf import GgufHeader, read_gguf_header
from kimi_inspect.gguf_types import TENSOR_TYPES, ValueType
from kimi_inspect.planning import run
from kimi_inspect.values import ByteRange, LongArray

TWO = (Tensor("token_embd.weight", (8, 4)), Tensor("blk.0.attn_q.weight", (32, 2), "Q8_0"))
ARCHITECTURE = ("general.architecture", Value(STRING, "llama"))


def parse(data: bytes, **options: Any) -> GgufHeader:
    return run(read_gguf_header(len(data), file="x.gguf", **options), lambda begin, end: data[begin:end])


def codes(data: bytes) -> list[str]:
    return [item.code for item in parse(data).findings]


def looks(header: GgufHeader) -> list[tuple[str, str, tuple[int, ...], int, int]]:
    kinds = [header.kinds[code] for code in header.kind]
    places = zip(header.begin.tolist(), (header.end - header.begin).tolist(), strict=True)
    return [
        (name, kind.dtype, kind.shape, begin, size)
        for name, kind, (begin, size) in zip(header.names, kinds, places, strict=True)
    ]


# ---- the type tables


def test_the_types_are_those_of_the_gguf_package_but_for_what_it_lacks_and_has_wrong() -> None:
    theirs = {int(kind): (kind.name, *gguf.GGML_QUANT_SIZES[kind]) for kind in gguf.GGMLQuantizationType}
    # ggml.h: block_q8_1 is two halves and 32 bytes; Q2_0 is newer than the package.
    assert {number: tuple(kind) for number, kind in TENSOR_TYPES.items()} == {
        **theirs,
        9: ("Q8_1", 32, 36),
        42: ("Q2_0", 64, 18),
    }
    assert {(kind.name, kind.value) for kind in ValueType} == {(kind.name, kind.value) for kind in gguf.GGUFValueType}


# ---- valid files

FITTING = {
    1: st.integers(0, 40),
    32: st.integers(0, 3).map(lambda blocks: blocks * 32),
    256: st.integers(0, 2).map(lambda blocks: blocks * 256),
}


@st.composite
def tensors(draw: st.DrawFn) -> list[Tensor]:
    made = []
    for name in draw(st.lists(st.text(min_size=1, max_size=12), max_size=5, unique=True)):
        kind = draw(st.sampled_from(sorted(BLOCKS)))
        first = draw(FITTING[BLOCKS[kind][1]])
        rest = draw(st.lists(st.integers(1, 3), max_size=3))
        made.append(Tensor(name, (first, *rest), kind))
    return made


SCALARS = {
    0: st.integers(0, 255),
    5: st.integers(-(2**31), 2**31 - 1),
    7: st.booleans(),
    10: st.integers(0, 2**64 - 1),
    STRING: st.text(max_size=20),
}


@st.composite
def values(draw: st.DrawFn) -> Value:
    kind = draw(st.sampled_from([*SCALARS, ARRAY]))
    if kind != ARRAY:
        return Value(kind, draw(SCALARS[kind]))
    element = draw(st.sampled_from(sorted(SCALARS)))
    return Value(ARRAY, (element, draw(st.lists(SCALARS[element], max_size=6))))


PAIRS = st.dictionaries(st.text(min_size=1, max_size=12).map("x.".__add__), values(), max_size=4).map(
    lambda pairs: [ARCHITECTURE, *pairs.items()]
)


def plain(value: Value) -> Any:
    return list(value.value[1]) if value.type == ARRAY else value.value


@given(
    tensors(),
    PAIRS,
    st.sampled_from([1, 2, 3]),
    st.sampled_from("<>"),
    st.sampled_from([1, 8, 32, 64]),
    st.integers(1, 99),
)
def test_what_is_written_is_read(
    tensors: list[Tensor], pairs: list[tuple[str, Value]], version: int, order: str, alignment: int, first_read: int
) -> None:
    pairs = [*pairs, ("general.alignment", Value(4, alignment))]
    data = gguf_file(tensors, pairs, version=version, order=order, alignment=alignment)
    header = parse(data, first_read=first_read)
    assert header.metadata == {key: plain(value) for key, value in pairs}
    assert (header.version, header.alignment) == (version, alignment)
    assert header.byte_order == {"<": "little", ">": "big"}[order]
    place, expected = 0, []
    for tensor in tensors:
        expected.append((tensor.name, tensor.type, tensor.dimensions, place, tensor.size))
        place += tensor.size + -tensor.size % alignment
    assert sorted(looks(header)) == sorted(expected)
    assert header.file_bytes + header.missing_bytes == header.header_bytes + header.tensor_bytes + header.padding_bytes
    assert {item.code for item in header.findings} <= {"name-too-long"}


@settings(max_examples=60)
@given(tensors(), PAIRS, st.sampled_from([2, 3]), st.sampled_from("<>"))
def test_the_gguf_package_reads_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    tensors: list[Tensor],
    pairs: list[tuple[str, Value]],
    version: int,
    order: str,
) -> None:
    data = gguf_file([t for t in tensors if t.size], pairs, version=version, order=order)
    path = tmp_path_factory.mktemp("gguf") / "x.gguf"
    path.write_bytes(data)
    theirs = gguf.GGUFReader(path)
    header = parse(data)
    assert sorted(looks(header)) == sorted(
        (
            tensor.name,
            tensor.tensor_type.name,
            tuple(int(n) for n in tensor.shape),
            int(tensor.data_offset) - header.header_bytes,
            int(tensor.n_bytes),
        )
        for tensor in theirs.tensors
    )


# ---- reading in pieces

SAMPLE = gguf_file(TWO, [ARCHITECTURE, ("t", Value(ARRAY, (STRING, ["ab", "", "c" * 40]))), ("n", Value(4, 7))])


@pytest.mark.parametrize("first_read", [1, 2, 7, 24, 100, len(SAMPLE), 10**6])
def test_every_cut_gives_the_same_answer_or_says_that_the_file_is_cut(first_read: int) -> None:
    whole = parse(SAMPLE)
    for length in range(len(SAMPLE)):
        try:
            header = parse(SAMPLE[:length], first_read=first_read)
        except TruncatedError:
            assert length < whole.header_bytes
            continue
        assert list(header.names) == list(whole.names)
        assert header.tensor_bytes == whole.tensor_bytes
        sums = header.header_bytes + header.tensor_bytes + header.padding_bytes
        assert header.file_bytes + header.missing_bytes == sums
        there = length - whole.header_bytes
        lost = [min(size, max(0, begin + size - there)) for _, _, _, begin, size in looks(whole)]
        assert header.missing_bytes == sum(lost)


@pytest.mark.parametrize("first_read", [1, 10, 64, 1000])
def test_no_byte_is_asked_for_twice_and_none_beyond_the_end(first_read: int) -> None:
    asked: list[ByteRange] = []

    def read(begin: int, end: int) -> bytes:
        asked.append(ByteRange(begin, end))
        return SAMPLE[begin:end]

    run(read_gguf_header(len(SAMPLE), file="x", first_read=first_read), read)
    assert [wanted.begin for wanted in asked] == [0, *(wanted.end for wanted in asked[:-1])]
    assert asked[-1].end <= len(SAMPLE)
    assert len(asked) <= 12


def test_long_arrays_are_stepped_over_unless_asked_for() -> None:
    tokens = [f"token {number}" for number in range(2000)]
    numbers = list(range(1500))
    pairs = [
        ("tokens", Value(ARRAY, (STRING, tokens))),
        ("types", Value(ARRAY, (5, numbers))),
        ("last", Value(4, 1)),
    ]
    data = gguf_file(TWO, pairs)
    assert parse(data, first_read=50).metadata == {
        "tokens": LongArray("string", 2000),
        "types": LongArray("int32", 1500),
        "last": 1,
    }
    assert parse(data, arrays=True).metadata == {"tokens": tokens, "types": numbers, "last": 1}


# ---- odd and broken files


@pytest.mark.parametrize(
    ("tensor", "elements"),
    [(Tensor("placeholder", (0,)), 0), (Tensor("scalar", ()), 1), (Tensor("empty", (0, 5)), 0)],
)
def test_tensors_of_nothing_and_of_one_element(tensor: Tensor, elements: int) -> None:
    scalar = tensor._replace(nbytes=4) if tensor.dimensions == () else tensor
    header = parse(gguf_file([*TWO, scalar]))
    assert header.tensor_bytes == 196 + 4 * elements
    assert header.findings == ()


@pytest.mark.parametrize("tail", [True, False])
def test_the_last_tensor_needs_no_padding(tail: bool) -> None:
    assert codes(gguf_file(TWO, tail=tail)) == []


@pytest.mark.parametrize(("extra", "found"), [(0, []), (1, ["trailing-bytes"]), (32, ["trailing-bytes"])])
def test_bytes_after_the_data_are_found(extra: int, found: list[str]) -> None:
    assert codes(gguf_file(TWO) + bytes(extra)) == found


def test_a_gap_and_a_misaligned_tensor_are_found() -> None:
    moved = [Tensor("a", (8,)), Tensor("b", (8,), offset=64)]
    assert codes(gguf_file(moved) + bytes(32)) == ["gap"]
    assert codes(gguf_file([Tensor("a", (8,)), Tensor("b", (8,), offset=33)]) + bytes(1)) == ["misaligned"]


@pytest.mark.parametrize(("alignment", "found"), [(32, []), (64, []), (8, []), (24, ["misaligned"])])
def test_an_alignment_that_some_loaders_refuse_is_a_warning(alignment: int, found: list[str]) -> None:
    data = gguf_file(TWO, [("general.alignment", Value(4, alignment))], alignment=alignment)
    assert [(item.code, item.severity) for item in parse(data).findings] == [(code, "warning") for code in found]


@pytest.mark.parametrize(("length", "found"), [(63, []), (64, ["name-too-long"])])
def test_a_name_longer_than_llama_cpp_takes_is_found(length: int, found: list[str]) -> None:
    assert codes(gguf_file([Tensor("n" * length, (8,))])) == found


def test_a_key_written_twice_is_found_with_both_values() -> None:
    header = parse(gguf_file(TWO, [ARCHITECTURE, ("general.architecture", Value(STRING, "qwen3"))]))
    (found,) = header.findings
    assert (found.code, found.expected, found.actual) == ("duplicate-key", "llama", "qwen3")
    assert header.metadata is not None
    assert header.metadata["general.architecture"] == "llama"


@pytest.mark.parametrize(
    ("number", "nbytes", "found", "dtype"),
    [
        (57, 96, ["unknown-type"], "57"),
        (42, 36, [], "Q2_0"),
        (42, 128, ["foreign-type"], "42"),
        (41, 18, [], "Q1_0"),
        (41, 300, ["foreign-type"], "41"),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_new_types_are_sized_by_their_span_and_those_of_forks_are_told(
    number: int, nbytes: int, found: list[str], dtype: str, last: bool
) -> None:
    tensor = Tensor("new", (128,), number=number, nbytes=nbytes)
    order = [Tensor("a", (8,)), tensor] if last else [tensor, Tensor("a", (8,))]
    header = parse(gguf_file(order))
    assert [item.code for item in header.findings] == found
    (look,) = (look for look in looks(header) if look[0] == "new")
    assert look[1] == dtype
    padded = nbytes + -nbytes % 32
    assert look[4] == (nbytes if not found else padded)


GOOD = gguf_file(TWO, [ARCHITECTURE])


ODD_TYPE = gguf_file(TWO, [("x", Value(ARRAY, (ARRAY, [])))]).replace(b"\x09\0\0\0\x09\0\0\0", b"\x09\0\0\0\x21\0\0\0")
"""An array of elements of type 33."""


def counts(tensor_count: int, pair_count: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensor_count, pair_count)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", TruncatedError),
        (b"GG", TruncatedError),
        (b"GGUF\x03\0\0\0", TruncatedError),
        (b"GGML\x03\0\0\0" + bytes(40), MalformedHeaderError),
        (b"<!DOCTYPE html><html>" + bytes(40), NotWeightsError),
        (b"GGUF\x04\0\0\0" + bytes(40), UnsupportedVersionError),
        (b"GGUF\x00\0\0\0" + bytes(40), UnsupportedVersionError),
        (counts(0, 500_000_000), TruncatedError),
        (counts(2**63, 0), TruncatedError),
        (counts(0, 1) + struct.pack("<Q", 2**48 - 1) + bytes(20), TruncatedError),
        (gguf_file(TWO, [("general.alignment", Value(4, 0))]), MalformedHeaderError),
        (gguf_file(TWO, [("general.alignment", Value(STRING, "32"))]), MalformedHeaderError),
        (gguf_file([TWO[0], TWO[0]]), MalformedHeaderError),
        (gguf_file([TWO[0], TWO[1]._replace(offset=64)]), MalformedHeaderError),
        (gguf_file([Tensor("a", (31,), "Q8_0", nbytes=34)]), MalformedHeaderError),
        (gguf_file([Tensor("a", (1,) * 9, nbytes=4)]), MalformedHeaderError),
        (gguf_file([Tensor("a", (2**40, 2**40), nbytes=4)]), MalformedHeaderError),
        (ODD_TYPE, MalformedHeaderError),
        (GOOD.replace(b"token_embd", b"token_emb\xff"), MalformedHeaderError),
    ],
)
def test_hopeless_files_are_refused_at_once(data: bytes, error: type[KimiInspectError]) -> None:
    with pytest.raises(error) as caught:
        parse(data)
    assert caught.value.file == "x.gguf"


def test_arrays_nested_without_end_are_refused() -> None:
    nested: Value = Value(ARRAY, (4, []))
    for _ in range(50):
        nested = Value(ARRAY, (ARRAY, [nested.value]))
    with pytest.raises(MalformedHeaderError, match="nest"):
        parse(gguf_file(TWO, [("x", nested)]))


@settings(max_examples=300)
@given(st.data())
def test_whatever_is_written_over_a_header_it_is_read_or_refused_by_our_errors(data: st.DataObject) -> None:
    broken = bytearray(SAMPLE)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(4, 230))
        broken[place : place + 1] = data.draw(st.binary(min_size=1, max_size=1))
    try:
        header = parse(bytes(broken), first_read=data.draw(st.integers(1, 400)))
    except FormatError:
        return
    assert header.file_bytes + header.missing_bytes == header.header_bytes + header.tensor_bytes + header.padding_bytes


def test_every_number_format_is_read() -> None:
    limits = {
        0: 255,
        1: -128,
        2: 65535,
        3: -32768,
        4: 2**32 - 1,
        5: -(2**31),
        6: 0.5,
        7: True,
        10: 2**64 - 1,
        11: -(2**63),
        12: 0.1,
    }
    assert set(limits) == set(FORMATS)
    pairs = [(str(kind), Value(kind, value)) for kind, value in limits.items()]
    for order in "<>":
        assert parse(gguf_file(TWO, pairs, order=order)).metadata == {
            str(kind): value for kind, value in limits.items()
        }


def test_a_file_on_disk(tmp_path: Path) -> None:
    from kimi_inspect.sources import LocalFile

    (tmp_path / "x.gguf").write_bytes(GOOD)
    source = LocalFile(tmp_path / "x.gguf")
    assert list(run(read_gguf_header(source.size, file="x.gguf"), source.read).names) == [tensor.name for tensor in TWO]
