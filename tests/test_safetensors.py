"""One invariant, from several sides.

A file that is read without a finding above info is one that safetensors itself reads, with the same names, types and
shapes; any other is refused with a typed error or reported; and what safetensors reads is refused only where a name
stands twice.
"""

from __future__ import annotations

import struct
import tracemalloc
from random import Random
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors import deserialize
from strategies import (
    DAMAGES,
    LAST_OF_TWO,
    Built,
    contents,
    damaged_files,
    framed,
    read,
    reference,
    safetensors_files,
    said,
    usual,
)

from kimi_inspect.errors import HeaderTooLargeError, NotWeightsError
from kimi_inspect.header import MAX_HEADER_BYTES
from kimi_inspect.testing import DTYPE_BITS, HollowFile


@settings(deadline=None, max_examples=100)
@given(safetensors_files() | safetensors_files(longest=2**14, max_tensors=3))
def test_a_whole_file_is_read_as_safetensors_reads_it(built: Built) -> None:
    file = built.cut()
    header = read(file)
    assert contents(header) == reference(file)
    assert contents(header) == {tensor.name: (tensor.dtype, tensor.shape) for tensor in built.tensors}
    places = zip(header.names, header.begin.tolist(), header.end.tolist(), strict=True)
    assert {name: (begin, end) for name, begin, end in places} == {t.name: (t.begin, t.end) for t in built.tensors}
    assert header.begin.tolist() == sorted(header.begin.tolist())
    assert header.metadata == built.metadata
    assert (header.header_bytes, header.file_bytes, header.findings) == (len(built.head), built.size, ())


@usual
@given(safetensors_files(min_tensors=1), st.randoms(use_true_random=False))
def test_ranges_hold_the_bytes_that_safetensors_gives_out(built: Built, random: Random) -> None:
    file = built.head + random.randbytes(built.data_bytes)
    header = read(HollowFile(file))
    found = {
        name: file[header.header_bytes + begin : header.header_bytes + end]
        for name, begin, end in zip(header.names, header.begin.tolist(), header.end.tolist(), strict=True)
    }
    assert found == {name: bytes(tensor["data"]) for name, tensor in deserialize(file)}  # type: ignore[no-untyped-call]


@usual
@given(safetensors_files(holes=True))
def test_bytes_that_no_tensor_owns_are_reported_by_number_and_place(built: Built) -> None:
    owned = {at for tensor in built.tensors for at in range(tensor.begin, tensor.end)}
    end = max((tensor.end for tensor in built.tensors), default=0)
    inside, behind = (
        [len(built.head) + at for at in part if at not in owned] for part in (range(end), range(end, built.data_bytes))
    )
    findings = {finding.code: finding for finding in read(built.cut()).findings}
    assert set(findings) == {code for code, part in (("gap", inside), ("trailing-bytes", behind)) if part}
    if inside:
        assert findings["gap"].expected == inside[0]
        assert findings["gap"].actual in range(inside[0] + 1, inside[-1] + 2)
        assert f"{len(inside)} bytes" in findings["gap"].message
    if behind:
        assert (findings["trailing-bytes"].expected, findings["trailing-bytes"].actual) == (behind[0], built.size)
        assert f"{len(behind)} bytes" in findings["trailing-bytes"].message
    assert (reference(built.cut()) is None) == bool(findings)


@pytest.mark.parametrize("dtype", sorted(DTYPE_BITS))
def test_every_type_is_sized_in_bits_as_safetensors_sizes_it(dtype: str) -> None:
    nbytes = 24 * DTYPE_BITS[dtype] // 8
    text = '{"a":{"dtype":"%s","shape":[3,8],"data_offsets":[0,%d]}}'
    exact, long = (HollowFile(framed((text % (dtype, size)).encode()) + bytes(size)) for size in (nbytes, nbytes + 1))
    assert (said(exact), reference(exact)) == ([], {"a": (dtype, (3, 8))})
    assert (said(long), reference(long)) == (["MalformedHeaderError"], None)


@pytest.mark.parametrize("damage", DAMAGES)
@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_each_damage_is_refused_or_reported(damage: str, data: st.DataObject) -> None:
    damaged = data.draw(damaged_files(damage))
    words = said(damaged.file)
    assert damaged.says in words or (damaged.says == "either" and words)
    assert (reference(damaged.file) is not None) == (damage in LAST_OF_TWO)


TOKENS = [
    *b"\"\\:,{}[]0129-+.eE tnu/'\t\n\0\x7f\x80\xc3\xff",
    b"\\u",
    b"\\ud83d",
    b"null",
    b'"":',
    b"1" * 25,
    b"[[",
    b"]]",
]


@settings(deadline=None, max_examples=400)
@given(
    safetensors_files(max_tensors=2),
    st.integers(0),
    st.integers(0, 3),
    st.sampled_from([token if isinstance(token, bytes) else bytes([token]) for token in TOKENS]),
)
def test_whatever_is_written_over_a_header_silence_means_that_safetensors_agrees(
    built: Built, at: int, over: int, token: bytes
) -> None:
    body = bytearray(built.head[8:])
    at %= len(body)
    body[at : at + over] = token
    file = built.with_body(bytes(body)).cut()
    words, theirs = said(file), reference(file)
    if not words:
        assert contents(read(file)) == theirs
    if theirs is not None and "MalformedHeaderError" in words:
        with pytest.raises(ValueError, match="is written twice"):
            read(file)


FIELDS = '"dtype":"F32","shape":[],"data_offsets":[0,4]'


def entry(shape: str = "", offsets: str = "0,4", extra: str = "") -> str:
    return f'{{"a":{{"dtype":"F32","shape":[{shape}],"data_offsets":[{offsets}]{extra}}}}}'


def beside(member: str) -> str:
    """A good entry behind another member."""
    return f"{{{member},{entry()[1:]}"


def nested(opening: str, closing: str, depth: int) -> str:
    return entry(extra=f',"x":{opening * depth}1{closing * depth}')


class Trap(NamedTuple):
    """A header that a fast decoder takes for good, what must be said of it, and the like of it that is good.

    `says` is an error or a finding, "either" for any. The data is of four bytes, `payload` if there are others.
    """

    name: str
    bad: str | bytes
    says: str
    good: str | bytes
    payload: int = 4
    reference_refuses: bool = True


MALFORMED = "MalformedHeaderError"
E4 = entry(offsets="4,8")[1:]
TRAPS = [
    Trap("equal names", f'{{"a":{{{FIELDS}}},{E4}', MALFORMED, f'{{"A":{{{FIELDS}}},{E4}', 8),
    Trap("equal by escape", f'{{"\\u0061":{{{FIELDS}}},{E4}', MALFORMED, f'{{"\\u0041":{{{FIELDS}}},{E4}', 8),
    Trap("equal, first is no entry", f'{{"a":0,"a":{{{FIELDS}}}}}', MALFORMED, f'{{"a":{{{FIELDS}}}}}'),
    Trap("equal, last holds", f'{{"a":{{{FIELDS}}},{entry()[1:]}', MALFORMED, entry(), reference_refuses=False),
    Trap("field twice", entry(extra=',"dtype":"F32"'), "duplicate-key", entry(extra=',"dtypes":"F32"')),
    Trap("field twice, escaped", entry(extra=',"dtyp\\u0065":"F32"'), "duplicate-key", entry(extra=',"e":"F32"')),
    Trap(
        "metadata key twice",
        beside('"__metadata__":{"k":"1","k":"2"}'),
        "duplicate-key",
        beside('"__metadata__":{"k":"1","K":"2"}'),
        reference_refuses=False,
    ),
    Trap(
        "metadata twice",
        beside('"__metadata__":{},"__metadata__":{}'),
        "duplicate-key",
        beside('"__metadata__":{"__metadata__":""}'),
    ),
    Trap(
        "metadata twice, once escaped",
        beside('"__metadat\\u0061__":{"k":":"},"__metadata__":{}'),
        "duplicate-key",
        beside('"__metadat\\u0061__":{"k":":"}'),
    ),
    Trap("metadata as a tensor", f'{{"__metadata__":{{{FIELDS}}}}}', "metadata-not-string", '{"__metadata__":{}}', 0),
    Trap("an entry that is null", beside('"b":null'), MALFORMED, beside('"__metadata__":null')),
    Trap("bad UTF-8 in a name", entry().encode().replace(b"a", b"\xff", 1), MALFORMED, entry().replace('"a"', '"ÿ"')),
    Trap("bad UTF-8 skipped", entry(extra=',"x":"é"').encode("latin-1"), MALFORMED, entry(extra=',"x":"é"')),
    Trap("bad UTF-8 skipped in a key", entry(extra=',"é":0').encode("latin-1"), MALFORMED, entry(extra=',"é":0')),
    Trap(
        "bad UTF-8 in metadata",
        beside('"__metadata__":{"k":"é"}').encode("latin-1"),
        MALFORMED,
        beside('"__metadata__":{"k":"é"}'),
    ),
    Trap("surrogate as UTF-8", b'{"a\xed\xa0\x80":{%s}}' % FIELDS.encode(), MALFORMED, entry()),
    Trap("lone surrogate", entry().replace('"a"', '"\\udc00"'), MALFORMED, entry().replace('"a"', '"\\ud800\\udc00"')),
    Trap("lone surrogate skipped", entry(extra=',"x":"\\ud800"'), MALFORMED, entry(extra=',"x":"\\uD83D\\uDE00"')),
    Trap("control character", entry().replace('"a"', '"a\n"'), MALFORMED, entry().replace('"a"', '"a\\n"')),
    Trap("control character skipped", entry(extra=',"x":"\t"'), MALFORMED, entry(extra=',"x":"\\t"')),
    Trap("minus zero for a dimension", entry("-0", "0,0"), "either", entry("0", "0,0"), 0),
    Trap("minus zero for an offset", entry("", "-0,4"), "either", entry("", "0,4", ',"x":-0')),
    Trap("minus zero in the shape", entry("1,-0", "0,0"), "either", entry("1,0", "0,0", ',"x":[1,-0],"y":"[-0]"'), 0),
    Trap("a float for an offset", entry("", "0,4.0"), MALFORMED, entry("", "0 , 4")),
    Trap("an exponent for a dimension", entry("1e0"), MALFORMED, entry("1")),
    Trap("leading zero", entry("01"), MALFORMED, entry("1")),
    Trap("true for a dimension", entry("true"), MALFORMED, entry("1")),
    Trap("text for a dimension", entry('"1"'), MALFORMED, entry("1")),
    Trap("dimension beyond 64 bits", entry(f"0,{2**64}", "0,0"), "either", entry(f"0,{2**64 - 1}", "0,0"), 0),
    Trap("product beyond 64 bits", entry(f"{2**63},2,0", "0,0"), "either", entry(f"0,{2**63},2", "0,0"), 0),
    Trap("20,000 dimensions", entry(",".join(["9" * 18] * 20_000)), MALFORMED, entry(",".join(["1"] * 20_000))),
    Trap("product of 8,000 digits", entry(f"{'9' * 4000},{'9' * 4000}"), MALFORMED, entry("1,1")),
    Trap("offset of 77 bits", entry("", f"0,{2**77}"), MALFORMED, entry()),
    Trap("offset of 5,000 digits", entry("", f"0,{'4' * 5000}"), MALFORMED, entry()),
    Trap("three offsets", entry("", "0,4,4"), MALFORMED, entry()),
    Trap("type spelled small", entry().replace("F32", "f32"), "unknown-type", entry().replace("F32", "I32")),
    Trap("unknown type, range backwards", entry("", "4,0").replace("F32", "Q9"), MALFORMED, entry("", "0,4")),
    Trap("half a byte", entry("9").replace("F32", "F4"), MALFORMED, entry("8").replace("F32", "F4")),
    Trap("number that no float holds", entry(extra=',"x":1e999'), "either", entry(extra=',"x":1e99')),
    Trap("number of 5,000 digits skipped", entry(extra=f',"x":{"1" * 5000}'), "either", entry(extra=',"x":-1e-5000')),
    Trap("number cut short", entry(extra=',"x":1.'), MALFORMED, entry(extra=',"x":1.0E+0')),
    Trap("NaN", entry(extra=',"x":NaN'), MALFORMED, entry(extra=',"x":null')),
    Trap("comma before the end", entry(extra=","), MALFORMED, entry()),
    Trap("two values", entry() + "{}", MALFORMED, entry() + "  "),
    Trap("trailing form feed", entry() + "\f", MALFORMED, entry() + "\r\n\t "),
    Trap("NUL padding", entry() + "\0\0\0", "bad-padding", entry() + "   "),
    Trap("NUL before a space", entry() + "\0 ", MALFORMED, entry() + "  "),
    Trap("byte order mark", "\ufeff" + entry(), MALFORMED, entry().replace('"a"', '"\ufeff"')),
    Trap("leading space", " " + entry(), "leading-space", entry() + " ", reference_refuses=False),
    Trap("UTF-16", entry().encode("utf-16-le"), MALFORMED, entry()),
    Trap("a list", "[]", MALFORMED, "{}", 0),
    Trap("blanks alone", "   ", MALFORMED, "{ }", 0),
    Trap("nothing, but data", "{}", "trailing-bytes", entry()),
    Trap("lists 100,000 deep", nested("[", "]", 100_000), MALFORMED, nested("[", "]", 100)),
    Trap("objects 100,000 deep", nested('{"x":', "}", 100_000), MALFORMED, nested('{"x":', "}", 100)),
    Trap("lists 200 deep", nested("[", "]", 200), "either", nested("[", "]", 125)),
]


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.name)
def test_each_trap_is_seen_and_its_neighbour_passes(trap: Trap) -> None:
    bad, good = (
        HollowFile(framed(text) + bytes(trap.payload))
        for text in (body if isinstance(body, bytes) else body.encode() for body in (trap.bad, trap.good))
    )
    words = said(bad)
    assert trap.says in words or (trap.says == "either" and words)
    assert (reference(bad) is None) == trap.reference_refuses
    assert said(good) == []
    assert contents(read(good)) == reference(good)


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"x":', "}")])
@pytest.mark.parametrize("where", ["extra field", "metadata"])
def test_no_depth_of_nesting_ends_in_a_bare_error(opening: str, closing: str, where: str) -> None:
    """Some depths are near the interpreter's own limit, which several decoders meet at several depths."""
    for depth in [*range(110, 140), *range(850, 1050)]:
        value = opening * depth + "1" + closing * depth
        extra, metadata = (f',"x":{value}', "null") if where == "extra field" else ("", f'{{"x":{value}}}')
        file = HollowFile(framed(f'{{"__metadata__":{metadata},{entry(extra=extra)[1:]}'.encode()) + bytes(4))
        assert said(file) or (reference(file) is not None)


def test_a_shape_without_end_is_refused_in_little_memory() -> None:
    file = HollowFile(framed(entry(",".join(["9" * 18] * 5000)).encode()) + bytes(4))
    tracemalloc.start()
    try:
        assert said(file) == [MALFORMED]
        assert tracemalloc.get_traced_memory()[1] < 50 * file.size
    finally:
        tracemalloc.stop()


def test_a_decoded_name_is_the_one_that_was_written() -> None:
    name = '"__metadata__":{}\n\\u0061\x7f😀'
    text = msgspec.json.encode({name: {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}})
    header = read(HollowFile(framed(text) + b"x"))
    assert (list(header.names), header.metadata) == ([name], None)


@pytest.mark.parametrize("name", ["__metadata__ ", " __metadata__", "x.__metadata__", "__Metadata__", "__metadata__.0"])
def test_only_the_very_key_is_metadata(name: str) -> None:
    file = HollowFile(framed(entry().replace('"a"', f'"{name}"').encode()) + bytes(4))
    assert (said(file), list(read(file).names), read(file).metadata) == ([], [name], None)
    assert contents(read(file)) == reference(file)


@pytest.mark.parametrize("first", [0x00, 0x02, 0x20, 0x3C, 0x7B, 0x80, 0xFF])
@pytest.mark.parametrize("size", [2, 7, 8])
def test_files_too_short_for_a_header_are_refused(first: int, size: int) -> None:
    file = HollowFile(bytes([first]), size)
    assert said(file) == ["MalformedHeaderError" if first == 0 and size == 8 else "TruncatedError"]
    assert reference(file) is None


@pytest.mark.parametrize("head", [b"", b"\0", b"\xff"])
def test_hardly_a_file_is_refused(head: bytes) -> None:
    assert said(HollowFile(head)) == ["TruncatedError"]


@usual
@given(st.integers(0, 2**64 - 1), st.binary(max_size=40))
@example(2**64 - 1, b"{}")
@example(2**63, b"{}")
@example(MAX_HEADER_BYTES + 1, b"{}")
def test_any_length_word_is_met_with_a_typed_error_or_a_header(length: int, rest: bytes) -> None:
    file = HollowFile(struct.pack("<Q", length) + rest)
    assert said(file) or reference(file) is not None


@pytest.mark.parametrize("length", [MAX_HEADER_BYTES + 1, 2**63, 2**64 - 1])
def test_a_header_beyond_the_cap_is_refused_with_its_length_before_it_is_read(length: int) -> None:
    file = HollowFile(struct.pack("<Q", length) + b"{}", 2**62)
    with pytest.raises(HeaderTooLargeError) as caught:
        read(file)
    assert caught.value.actual == length
    assert f"{MAX_HEADER_BYTES:,}" in str(caught.value)


@usual
@given(safetensors_files(min_tensors=1))
def test_the_cap_is_inclusive_and_settable(built: Built) -> None:
    length = len(built.head) - 8
    assert said(built.cut(), max_header_bytes=length) == []
    assert said(built.cut(), max_header_bytes=length - 1) == ["HeaderTooLargeError"]


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 16900000000\n" % ("4d7c5a28" * 8)


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (POINTER.encode(), "Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b'{"error":"Repository not found"}', "JSON"),
        (b"PK\x03\x04\x00\x00\x08\x08" + bytes(22), "zip archive"),
        (b"\x80\x02}q\x00(X\x05\x00\x00\x00", "pickle"),
        (b"GGUF\x03\x00\x00\x00" + bytes(16), "GGUF"),
    ],
)
def test_another_format_under_the_name_is_named(head: bytes, what: str) -> None:
    with pytest.raises(NotWeightsError, match=what):
        read(HollowFile(head))
