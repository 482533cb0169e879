"""Safetensors files for property tests, whole and damaged, each with the layout it was made from.

The JSON is written here, token by token, so that a file knows where its bytes are from its making alone: nothing is
asked of the package under test, or of its hollow writers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open

from kimi_inspect.errors import FormatError
from kimi_inspect.header import Header
from kimi_inspect.planning import run
from kimi_inspect.safetensors import read_header
from kimi_inspect.testing import DTYPE_BITS, HollowFile
from kimi_inspect.values import Severity

usual = settings(deadline=None, max_examples=60)
few = settings(deadline=None, max_examples=40)
"""For tests that open a checkpoint at each example. No deadlines: a busy machine is no defect."""

Draw = st.DrawFn

BLANKS = ["", "", " ", "\n", "\r\n\t "]

WORDS = [
    *("model", "layers", "experts", "weight", "weight_packed", "weight_scale", "0", "7"),
    *("__metadata__", "x__metadata__", "dtype", "shape", "data_offsets", "null", "[0,4]", "{", "}"),
    *(":", "::", '"', "\\", '\\"', "\n", "\n\n", "\t", "\0", "/", ""),
    *("é", "模型", "😀", "٣", "²", "\u2028", "\ufeff", "\x7f"),
]

KIMI_NAMES = [
    "language_model.model.embed_tokens.weight",
    "model.layers.{layer}.self_attn.q_proj.weight",
    "model.layers.{layer}.self_attn.A_log",
    "model.layers.{layer}.self_attn.q_a_proj.weight",
    "language_model.model.layers.{layer}.mlp.up_proj.weight",
    "language_model.model.layers.{layer}.block_sparse_moe.experts.{expert}.w1.weight_packed",
    "language_model.model.layers.{layer}.block_sparse_moe.experts.{expert}.w1.weight_scale",
    "language_model.model.layers.{layer}.block_sparse_moe.experts.{expert}.w2.weight",
    "language_model.model.layers.{layer}.block_sparse_moe.gate.weight",
    "vision_tower.encoder.blocks.{expert}.wqkv.weight",
    "lm_head.weight",
]

digits = st.text("0123456789", min_size=1, max_size=25)
_parts = st.lists(st.sampled_from(WORDS) | digits, max_size=7)
odd_names = st.one_of(st.text(max_size=10), _parts.map(".".join), _parts.map("".join))
kimi_names = st.builds(
    lambda name, layer, expert: name.format(layer=layer, expert=expert),
    st.sampled_from(KIMI_NAMES),
    st.sampled_from([0, 1, 2, 92, 999_999, 1_000_000]),
    st.integers(0, 3),
)
tensor_names = (odd_names | kimi_names).filter(lambda name: name != "__metadata__")
"""Any name that a tensor may bear."""


@dataclass(frozen=True)
class Laid:
    """A tensor as it was laid out; `begin` and `end` count bytes from the start of the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Built:
    """A safetensors file: length word and JSON, the tensors in the order of their bytes, and the length of the data."""

    head: bytes
    tensors: tuple[Laid, ...]
    data_bytes: int
    metadata: dict[str, str] | None = None

    @property
    def size(self) -> int:
        return len(self.head) + self.data_bytes

    def cut(self, size: int | None = None) -> HollowFile:
        """The first `size` bytes of it, or all of it."""
        size = self.size if size is None else size
        return HollowFile(self.head[:size], size)

    def with_body(self, body: bytes) -> Built:
        """The same data behind other JSON."""
        return replace(self, head=framed(body))


def framed(body: bytes) -> bytes:
    return struct.pack("<Q", len(body)) + body


Fields = list[tuple[str, str]]
"""Keys and values of a JSON object, each as raw JSON."""


@dataclass
class Member:
    """One member of a header: an object, or any raw JSON in its place."""

    key: str
    fields: Fields
    instead: str = ""


@dataclass
class Draft:
    """A header before it is written, as raw JSON and in order, so that anything can be broken."""

    members: list[Member]
    blank: str = ""
    tail: str = ""
    tensors: list[Laid] = field(default_factory=list)
    data_bytes: int = 0

    def body(self) -> bytes:
        members = [(member.key, member.instead or self._object(member.fields)) for member in self.members]
        return (self._object(members) + self.tail).encode()

    def _object(self, fields: Fields) -> str:
        gap = self.blank
        return "{" + gap + f"{gap},{gap}".join(f"{key}{gap}:{gap}{value}" for key, value in fields) + gap + "}"


def spelled(text: str, style: int) -> str:
    """A JSON string: as short as may be, in ASCII alone, or every character escaped."""
    if style == 2:
        units = text.encode("utf-16-be")
        return '"' + "".join(f"\\u{units[at]:02x}{units[at + 1]:02X}" for at in range(0, len(units), 2)) + '"'
    return json.dumps(text, ensure_ascii=style == 1)


styles = st.sampled_from([0, 0, 1, 2])


@st.composite
def shapes(draw: Draw, dtype: str, longest: int) -> tuple[int, ...]:
    """A shape that fills whole bytes: now and then no dimension, an empty one, or an empty one beside a giant."""
    shape = tuple(draw(st.lists(st.integers(0, longest), max_size=3)))
    if draw(st.integers(0, 19)) == 0:
        shape = (0, draw(st.sampled_from([1, 2**31, 2**63, 2**64 - 1])))
    while prod(shape) * DTYPE_BITS[dtype] % 8:
        shape = (*shape, 2)
    return shape


@st.composite
def drafts(
    draw: Draw,
    *,
    names: st.SearchStrategy[str] = tensor_names,
    min_tensors: int = 0,
    max_tensors: int = 6,
    longest: int = 5,
    holes: bool = False,
) -> tuple[Draft, dict[str, str] | None]:
    """A header that every reader takes, and its metadata; with `holes` there may be bytes that no tensor owns."""
    draft = Draft([], draw(st.sampled_from(BLANKS)), draw(st.sampled_from(["", " " * 7, "\n \t"])))
    space = st.integers(0, 5) if holes else st.just(0)
    for name in draw(st.lists(names, min_size=min_tensors, max_size=max_tensors, unique=True)):
        dtype = draw(st.sampled_from(sorted(DTYPE_BITS)))
        shape = draw(shapes(dtype, longest))
        begin = draft.data_bytes + draw(space)
        draft.data_bytes = begin + prod(shape) * DTYPE_BITS[dtype] // 8
        draft.tensors.append(Laid(name, dtype, shape, begin, draft.data_bytes))
    draft.data_bytes += draw(space)
    for tensor in draw(st.permutations(draft.tensors)):
        fields = [
            (spelled("dtype", draw(styles)), spelled(tensor.dtype, 0)),
            (spelled("shape", 0), f"[{', '.join(map(str, tensor.shape))}]"),
            (spelled("data_offsets", 0), f"[{tensor.begin},{draft.blank}{tensor.end}]"),
        ]
        draft.members.append(Member(spelled(tensor.name, draw(styles)), draw(st.permutations(fields))))
    metadata = draw(st.none() | st.dictionaries(odd_names, odd_names, max_size=4))
    if metadata is not None:
        value = [(spelled(key, draw(styles)), spelled(text, draw(styles))) for key, text in metadata.items()]
        member = Member(spelled("__metadata__", draw(styles)), value)
        draft.members.insert(draw(st.integers(0, len(draft.members))), member)
    return draft, metadata


@st.composite
def safetensors_files(draw: Draw, /, **options: Any) -> Built:
    """A file that every reader takes (see `drafts` for the options)."""
    draft, metadata = draw(drafts(**options))
    return Built(framed(draft.body()), tuple(draft.tensors), draft.data_bytes, metadata)


def shard_paths(count: int) -> list[str]:
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


@st.composite
def shard_sets(draw: Draw, /, *, max_shards: int = 3, **options: Any) -> dict[str, Built]:
    """The shards of a checkpoint; a name may stand in two of them."""
    built = draw(st.lists(safetensors_files(**options), min_size=1, max_size=max_shards))
    return dict(zip(shard_paths(len(built)), built, strict=True))


# ---- damage


@dataclass(frozen=True)
class Damaged:
    """A file with one named damage.

    `says` is what must be said of it: the name of an error, or the code of a finding.
    """

    damage: str
    file: HollowFile
    says: str


Change = Callable[[Draft, Member, int], object]
"""Breaks a draft at a member that owns bytes; the number chooses where there is a choice."""


def _put(name: str, value: str) -> Change:
    def change(_draft: Draft, member: Member, _pick: int) -> None:
        member.fields = [(key, value if json.loads(key) == name else old) for key, old in member.fields]

    return change


def _add(key: str, value: str) -> Change:
    return lambda _draft, member, pick: member.fields.insert(pick % 4, (key, value))


def _drop(_draft: Draft, member: Member, pick: int) -> None:
    del member.fields[pick % 3]


def _double(_draft: Draft, member: Member, pick: int) -> None:
    member.fields.append(member.fields[pick % 3])


def _repeat(draft: Draft, member: Member, pick: int) -> None:
    draft.members.insert(pick % (len(draft.members) + 1), member)


def _shift(_draft: Draft, member: Member, pick: int) -> None:
    """Move the tensor onto its neighbour, or off it."""
    text = next(value for key, value in member.fields if json.loads(key) == "data_offsets")
    begin, end = (offset + 1 + pick % 9 for offset in json.loads(text))
    _put("data_offsets", f"[{begin},{end}]")(_draft, member, pick)


def _pretend(metadata: str) -> Change:
    def change(draft: Draft, _member: Member, pick: int) -> None:
        draft.members = [member for member in draft.members if json.loads(member.key) != "__metadata__"]
        draft.members.insert(pick % (len(draft.members) + 1), Member('"__metadata__"', [], metadata))

    return change


def _tail(text: str) -> Change:
    return lambda draft, _member, _pick: setattr(draft, "tail", draft.tail + text)


MALFORMED = "MalformedHeaderError"

DAMAGES: Mapping[str, tuple[Change, str]] = {
    "type nobody knows": (_put("dtype", '"Q9"'), "unknown-type"),
    "type that is a number": (_put("dtype", "32"), MALFORMED),
    "shape of another size": (_put("shape", "[1000003]"), MALFORMED),
    "shape that is text": (_put("shape", '"[1]"'), MALFORMED),
    "negative dimension": (_put("shape", "[-1, -8]"), MALFORMED),
    "dimension of 77 bits": (_put("shape", f"[{2**77}]"), MALFORMED),
    "dimension that is a float": (_put("shape", "[1.0]"), MALFORMED),
    "dimension that is a boolean": (_put("shape", "[true]"), MALFORMED),
    "dimension that is text": (_put("shape", '["1"]'), MALFORMED),
    "negative offset": (_put("data_offsets", "[-1, 3]"), MALFORMED),
    "offsets the wrong way round": (_put("data_offsets", "[4, 0]"), MALFORMED),
    "offset of 77 bits": (_put("data_offsets", f"[0, {2**77}]"), MALFORMED),
    "offset that is a float": (_put("data_offsets", "[0, 4.0]"), MALFORMED),
    "offset that is null": (_put("data_offsets", "[null, 4]"), MALFORMED),
    "three offsets": (_put("data_offsets", "[0, 4, 8]"), MALFORMED),
    "one offset": (_put("data_offsets", "[4]"), MALFORMED),
    "field missing": (_drop, MALFORMED),
    "field twice": (_double, "duplicate-key"),
    "tensor twice": (_repeat, MALFORMED),
    "range moved": (_shift, "either"),
    "metadata that is a list": (_pretend("[]"), "metadata-not-string"),
    "metadata that is text": (_pretend('"format"'), "metadata-not-string"),
    "metadata with a number": (_pretend('{"a":"b","n":1}'), "metadata-not-string"),
    "metadata with a null": (_pretend('{"n":null}'), "metadata-not-string"),
    "lone surrogate in an extra field": (_add('"x"', '"\\ud800"'), MALFORMED),
    "bare word in an extra field": (_add('"x"', "nul"), MALFORMED),
    "NUL padding": (_tail("\0\0\0"), "bad-padding"),
    "second value behind the first": (_tail("{}"), MALFORMED),
    "letter behind the JSON": (_tail("x"), MALFORMED),
}
"""What is done to a header, and what must be said of it then; "either" is any error or any finding above info."""

LAST_OF_TWO = frozenset({"tensor twice"})
"""Damages that the reference reads all the same: it keeps the last of two."""


@st.composite
def damaged_files(draw: Draw, damage: str) -> Damaged:
    """A file that was whole before `damage`, one of `DAMAGES`, was done to it."""
    change, says = DAMAGES[damage]
    draft, _ = draw(drafts(min_tensors=1).filter(lambda made: made[0].data_bytes > 0))
    owners = {tensor.name for tensor in draft.tensors if tensor.begin < tensor.end}
    members = [member for member in draft.members if json.loads(member.key) in owners]
    change(draft, draw(st.sampled_from(members)), draw(st.integers(0, 999)))
    head = framed(draft.body())
    return Damaged(damage, HollowFile(head, len(head) + draft.data_bytes), says)


# ---- readers


def read(file: HollowFile, **options: Any) -> Header:
    """What the package makes of a file."""
    return run(read_header(file.size, file="model.safetensors", **options), file.read)


def said(file: HollowFile, **options: Any) -> list[str]:
    """The name of the error that a file is refused with, or the codes of its findings above info."""
    try:
        header = read(file, **options)
    except FormatError as error:
        return [type(error).__name__ if "model.safetensors" in str(error) else "an error that names no file"]
    return [found.code for found in header.findings if found.severity is not Severity.INFO]


def reference(file: HollowFile) -> dict[str, tuple[str, tuple[int, ...]]] | None:
    """Type and shape of each tensor as safetensors itself reads them; None for a file that it refuses."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        file.write_to(path)
        try:
            with safe_open(path, framework="numpy") as reader:
                names: list[str] = reader.keys()
                slices = {name: reader.get_slice(name) for name in names}
                return {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
        except SafetensorError:
            return None


def contents(header: Header) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The same of a header that the package has read."""
    kinds = [header.kinds[code] for code in header.kind.tolist()]
    return {name: (kind.dtype, kind.shape) for name, kind in zip(header.names, kinds, strict=True)}
