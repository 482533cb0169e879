"""Small files that people have met in the field, each made here, with what is right to say of it.

Each has neighbours that differ in the one thing that matters. The numbers follow from shapes and types by hand.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from strategies import framed

import kimi_inspect as ki
from kimi_inspect.errors import (
    HeaderTooLargeError,
    KimiInspectError,
    MalformedHeaderError,
    NotWeightsError,
    TruncatedError,
)
from kimi_inspect.testing import HollowFile, TensorSpec, hollow_safetensors

PATH = "model.safetensors"


def entry(name: str, dtype: str, shape: Sequence[int], begin: int, end: int) -> str:
    return f'"{name}":{{"dtype":"{dtype}","shape":{json.dumps(shape)},"data_offsets":[{begin},{end}]}}'


def odd(*entries: str, data: int, pad_to: int = 8, cut: int = 0) -> HollowFile:
    """A file of these entries with `data` bytes behind them, of which the last `cut` are missing."""
    body = "{" + ",".join(entries) + "}"
    head = framed((body + " " * (-len(body) % pad_to)).encode())
    return HollowFile(head, len(head) + data - cut)


A = entry("a.weight", "F32", [2, 2], 0, 16)
B = entry("b.weight", "BF16", [4, 2], 16, 32)


class Whole(NamedTuple):
    """A file to be read without a finding above info: tensors, their bytes, their values (None: not judged)."""

    name: str
    file: HollowFile
    tensors: int
    data_bytes: int
    parameters: int | None


WHOLE = [
    Whole("no metadata", odd(A, B, data=32), 2, 32, 12),
    Whole("metadata", odd('"__metadata__":{"format":"pt"}', A, B, data=32), 2, 32, 12),
    Whole("metadata, empty and last", odd(A, B, '"__metadata__":{}', data=32), 2, 32, 12),
    Whole("header padded to a page with spaces", odd(A, B, data=32, pad_to=4096), 2, 32, 12),
    Whole("data at an odd place", odd(A, B + " " * (len(A + B) % 2), data=32, pad_to=1), 2, 32, 12),
    Whole("data at an even place", odd(A, B + " " * (1 - len(A + B) % 2), data=32, pad_to=1), 2, 32, 12),
    Whole("b before a in the header", odd(B, A, data=32), 2, 32, 12),
    Whole(
        "F4, E8M0 and C64",
        odd(
            entry("w", "F4", [2, 8], 0, 8),
            entry("w.scale", "F8_E8M0", [4], 8, 12),
            entry("c", "C64", [1], 12, 20),
            data=20,
        ),
        3,
        20,
        None,
    ),
    Whole("F6, four values in three bytes", odd(entry("w", "F6_E2M3", [4, 2], 0, 6), data=6), 1, 6, 8),
    Whole(
        "a tensor of no values",
        odd(entry("scaled_fp8", "F8_E4M3", [0], 0, 0), entry("w", "F32", [2, 2], 0, 16), data=16),
        2,
        16,
        4,
    ),
    Whole(
        "no values, between and behind others",
        odd(
            entry("w", "U8", [3], 0, 3),
            entry("x", "F32", [0, 7], 3, 3),
            entry("y", "U8", [1], 3, 4),
            entry("z", "F4", [0], 4, 4),
            data=4,
        ),
        4,
        4,
        4,
    ),
    Whole("a scalar", odd(entry("s", "F64", [], 0, 8), data=8), 1, 8, 1),
    Whole(
        "two names side by side", odd(entry("k", "F32", [2], 0, 8), entry("v", "F32", [2], 8, 16), data=16), 2, 16, 4
    ),
    Whole(
        "shape and range agree",
        odd(entry("t", "F32", [1000, 1000], 0, 4_000_000), data=4_000_000),
        1,
        4_000_000,
        1_000_000,
    ),
]


def graver_than_info(report: ki.Report) -> list[ki.Finding]:
    return [finding for finding in report.findings if finding.severity is not ki.Severity.INFO]


@pytest.mark.parametrize("case", WHOLE, ids=lambda case: case.name)
def test_a_whole_file_is_read_without_a_finding(case: Whole) -> None:
    report = ki.inspect({PATH: case.file})
    assert graver_than_info(report) == []
    assert (report.tensor_count, report.tensor_bytes) == (case.tensors, case.data_bytes)
    assert report.header_bytes == len(case.file.head)
    assert report.file_bytes == len(case.file.head) + case.data_bytes
    assert case.parameters in (None, report.parameters)
    assert report.complete


def test_padding_and_odd_places_are_what_their_names_say() -> None:
    by_name = {case.name: len(case.file.head) for case in WHOLE}
    assert by_name["header padded to a page with spaces"] == 8 + 4096
    assert by_name["data at an odd place"] % 2 == 1
    assert by_name["data at an even place"] % 2 == 0


def test_bytes_of_sub_byte_types_are_counted_in_bits() -> None:
    case = next(case for case in WHOLE if case.name == "F4, E8M0 and C64")
    table = ki.open_checkpoint({PATH: case.file}).tensors
    assert [(info.name, info.stored_bytes, info.shape) for info in table] == [
        ("w", 8, (2, 8)),
        ("w.scale", 4, (4,)),
        ("c", 8, (1,)),
    ]


@pytest.mark.parametrize(
    ("cut", "missing", "tensor", "count"),
    [(0, 0, None, 0), (1, 1, "b.weight", 1), (6, 6, "b.weight", 1), (16, 16, "b.weight", 1), (17, 17, "a.weight", 2)],
)
def test_a_download_cut_in_the_data_says_how_much_is_missing_and_from_where(
    cut: int, missing: int, tensor: str | None, count: int
) -> None:
    file = odd(A, B, data=32, cut=cut)
    report = ki.inspect({PATH: file})
    assert (report.missing_bytes, report.tensor_bytes, report.tensor_count) == (missing, 32, 2)
    found = [(item.code, item.tensor, item.count, item.expected, item.actual) for item in graver_than_info(report)]
    whole = len(file.head) + 32
    assert found == ([("truncated", tensor, count, whole, whole - cut)] if cut else [])
    assert report.complete == (cut == 0)


@pytest.mark.parametrize(
    ("metadata", "keys"),
    [
        ('{"unquoted_int":0}', ["unquoted_int"]),
        ('{"format":"pt","a":1.5,"b":null,"c":true,"d":{}}', ["a", "b", "c", "d"]),
        ('{"unquoted_int":"0"}', []),
        ("null", []),
    ],
)
def test_metadata_that_is_no_text_is_named(metadata: str, keys: list[str]) -> None:
    report = ki.inspect({PATH: odd(f'"__metadata__":{metadata}', A, B, data=32)})
    assert (report.tensor_count, report.tensor_bytes) == (2, 32)
    findings = graver_than_info(report)
    assert [finding.code for finding in findings] == (["metadata-not-string"] if keys else [])
    for finding in findings:
        assert finding.examples == tuple(keys)
        assert finding.count == len(keys)
        assert repr(keys[0]) in finding.message
        assert "loaders refuse" in finding.message


OID = "0123456789abcdef" * 4
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{OID}\nsize 16900000000\n"


class Refused(NamedTuple):
    """A file to be refused, by which errors, and words and values that the error must hold."""

    name: str
    file: HollowFile
    errors: tuple[type[KimiInspectError], ...]
    words: tuple[str, ...]


def declaring(length: int, rest: bytes) -> HollowFile:
    return HollowFile(struct.pack("<Q", length) + rest)


REFUSED = [
    Refused("LFS pointer", HollowFile(POINTER.encode()), (NotWeightsError,), ("Git LFS", OID, "16,900,000,000")),
    Refused(
        "cut in the header", HollowFile(odd(A, B, data=0).head[:40]), (TruncatedError,), ("inside its header", "40")
    ),
    Refused("cut in the length", HollowFile(odd(A, B, data=0).head[:7]), (TruncatedError,), ("length word",)),
    Refused(
        "a length of 126 MB",
        declaring(132_095_296, b'{"t0":{"dtype":"F32"'),
        (TruncatedError, HeaderTooLargeError),
        ("132,095,",),
    ),
    Refused("a server's message", HollowFile(b"Access to model x/y is restricted."), (NotWeightsError,), ("text",)),
    Refused("another message", HollowFile(b"Entry not found"), (NotWeightsError,), ("text", "download it again")),
    Refused("a program", HollowFile(b"\x7fELF\2\1\1" + bytes(99)), (NotWeightsError,), ("a program",)),
    Refused("the largest length", declaring(2**64 - 1, b"{}"), (HeaderTooLargeError,), (str(2**64 - 1),)),
    Refused(
        "a name twice",
        odd(entry("key00", "F32", [2], 0, 8), entry("key00", "F32", [2], 8, 16), data=16),
        (MalformedHeaderError,),
        ("'key00'", "twice"),
    ),
    Refused(
        "two names on one range",
        odd(entry("k_proj", "F32", [2], 0, 8), entry("v_proj", "F32", [2], 0, 8), data=8),
        (MalformedHeaderError,),
        ("'k_proj'", "'v_proj'", "share"),
    ),
    Refused(
        "two names on one byte",
        odd(entry("k_proj", "F32", [2], 0, 8), entry("v_proj", "F32", [2], 7, 15), data=15),
        (MalformedHeaderError,),
        ("'k_proj'", "'v_proj'", "share"),
    ),
    Refused(
        "shape against range",
        odd(entry("t", "F32", [1000, 1000], 0, 4), data=4),
        (MalformedHeaderError,),
        ("'t'", "4,000,000 bytes", "got 4 bytes"),
    ),
    Refused(
        "one byte too few",
        odd(entry("t", "F32", [2], 0, 7), data=7),
        (MalformedHeaderError,),
        ("'t'", "8 bytes", "got 7 bytes"),
    ),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_a_hopeless_file_is_refused_with_the_reason(case: Refused) -> None:
    with pytest.raises(case.errors) as caught:
        ki.inspect({PATH: case.file})
    assert [word for word in case.words if word not in str(caught.value)] == []
    assert caught.value.file == PATH


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_beside_a_good_shard_it_is_a_finding_and_its_size_stands_apart(case: Refused) -> None:
    """Unless its header was read and contradicts itself: any sum that it is part of would be wrong."""
    good = odd(A, B, data=32)
    files = {"model-00001-of-00002.safetensors": case.file, "model-00002-of-00002.safetensors": good}
    if case.errors == (MalformedHeaderError,):
        with pytest.raises(MalformedHeaderError):
            ki.inspect(files)
        return
    report = ki.inspect(files)
    (finding,) = graver_than_info(report)
    assert (finding.code, finding.file) == ("shard-unreadable", "model-00001-of-00002.safetensors")
    assert (report.unread_bytes, report.tensor_bytes, report.tensor_count) == (case.file.size, 32, 2)
    assert not report.complete


def test_a_long_header_is_read_when_the_limit_allows_it() -> None:
    body = ("{" + A + "}").encode()
    long = HollowFile(struct.pack("<Q", 132_095_296) + body + b" " * (132_095_296 - len(body)), 132_095_304 + 16)
    with pytest.raises(HeaderTooLargeError, match="max_header_bytes"):
        ki.inspect({PATH: long}, max_header_bytes=100_000_000)
    report = ki.inspect({PATH: long})
    assert (report.header_bytes, report.tensor_count) == (132_095_304, 1)


# ---- a Kimi K3 in miniature: packed experts, and a config whose quantization stands inside text_config

TEXT = "language_model.model"


def miniature() -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of each tensor: a hidden size of 64, three layers, the last two with four experts of width 32."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {f"{TEXT}.embed_tokens.weight": ("BF16", (16, 64))}
    for layer in (f"{TEXT}.layers.{number}" for number in range(3)):
        tensors[f"{layer}.self_attn.q_proj.weight"] = ("BF16", (64, 64))
        tensors[f"{layer}.self_attn.A_log"] = ("F32", (4,))
        if layer.endswith("0"):
            tensors[f"{layer}.mlp.up_proj.weight"] = ("BF16", (64, 64))
            continue
        moe = f"{layer}.block_sparse_moe"
        tensors[f"{moe}.gate.weight"] = ("BF16", (4, 64))
        tensors[f"{moe}.shared_experts.up_proj.weight"] = ("BF16", (64, 64))
        for expert in (f"{moe}.experts.{number}" for number in range(4)):
            for name, rows, columns in (("w1", 32, 64), ("w2", 64, 32), ("w3", 32, 64)):
                tensors[f"{expert}.{name}.weight_packed"] = ("U8", (rows, columns // 2))
                tensors[f"{expert}.{name}.weight_scale"] = ("U8", (rows, columns // 32))
    return tensors | {
        f"{TEXT}.norm.weight": ("BF16", (64,)),
        "language_model.lm_head.weight": ("BF16", (16, 64)),
        "vision_tower.patch_embed.proj.weight": ("BF16", (8, 12)),
        "vision_tower.encoder.blocks.0.wqkv.weight": ("BF16", (24, 8)),
        "mm_projector.linear_1.weight": ("BF16", (16, 8)),
    }


CONFIG = {
    "model_type": "kimi_k3",
    "architectures": ["KimiK3ForConditionalGeneration"],
    "text_config": {
        "model_type": "kimi_linear",
        "num_hidden_layers": 3,
        "hidden_size": 64,
        "num_experts": 4,
        "quantization_config": {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"},
    },
    "vision_config": {"num_hidden_layers": 1, "hidden_size": 8},
}


def inspect_miniature(tensors: dict[str, tuple[str, tuple[int, ...]]], config: object = CONFIG) -> ki.Report:
    specs = [TensorSpec(name, dtype, shape) for name, (dtype, shape) in tensors.items()]
    files = {PATH: hollow_safetensors(specs)}
    return ki.inspect(files if config is None else files | {"config.json": HollowFile(json.dumps(config).encode())})


EXPERT = f"{TEXT}.layers.2.block_sparse_moe.experts.3.w2"

# Each expert has three matrices of 32 x 64 values; a byte holds two, and 32 share a scale of one byte.
EXPERT_VALUES = 2 * 4 * 3 * 32 * 64
EXPERT_BYTES = EXPERT_VALUES // 2 + EXPERT_VALUES // 32
OTHER_VALUES = 16 * 64 + 3 * (64 * 64 + 4) + 64 * 64 + 2 * (4 * 64 + 64 * 64) + 64 + 16 * 64
VISION_VALUES = 8 * 12 + 24 * 8 + 16 * 8


@pytest.mark.parametrize("config", [CONFIG, None, CONFIG["text_config"]], ids=["nested config", "none", "flat config"])
def test_packed_experts_count_two_values_a_byte_and_scales_none(config: object) -> None:
    report = inspect_miniature(miniature(), config)
    experts, vision = report[ki.Component.ROUTED_EXPERTS], report[ki.Component.VISION_TOWER]
    assert (EXPERT_VALUES, EXPERT_BYTES, OTHER_VALUES, VISION_VALUES) == (49_152, 26_112, 27_212, 416)
    assert (experts.parameters, experts.stored_bytes) == (EXPERT_VALUES, EXPERT_BYTES)
    assert (vision.parameters or 0) + (report[ki.Component.PROJECTOR].parameters or 0) == VISION_VALUES
    assert report.parameters == EXPERT_VALUES + OTHER_VALUES + VISION_VALUES == 76_780
    assert [row.encoding for row in experts.encodings] == ["mxfp4"]
    assert experts.encodings[0].scale_bytes == EXPERT_VALUES // 32
    assert report.experts is not None
    assert (report.experts.layers, report.experts.per_layer_min, report.experts.per_layer_max) == (2, 4, 4)
    assert graver_than_info(report) == []


def test_the_same_weights_unpacked_have_as_many_values() -> None:
    plain = {
        name.replace("_packed", ""): ("BF16", (shape[0], 2 * shape[1])) if name.endswith("_packed") else (dtype, shape)
        for name, (dtype, shape) in miniature().items()
        if not name.endswith("weight_scale")
    }
    report = inspect_miniature(plain, None)
    assert report.parameters == 76_780
    assert report[ki.Component.ROUTED_EXPERTS].stored_bytes == 2 * EXPERT_VALUES


@pytest.mark.parametrize(
    ("change", "code", "tensor"),
    [
        ({f"{EXPERT}.weight_scale": None}, "scale-missing", f"{EXPERT}.weight_scale"),
        ({f"{EXPERT}.weight_scale": ("U8", (64, 2))}, "scale-shape", f"{EXPERT}.weight_scale"),
        ({f"{EXPERT}.weight_scale": ("U8", (32, 1))}, "scale-shape", f"{EXPERT}.weight_scale"),
        ({f"{EXPERT}.weight_scale": ("F8_E8M0", (64, 1))}, None, None),
    ],
    ids=["no scale", "two groups a row", "too few rows", "scale of another type"],
)
def test_one_scale_that_does_not_fit_is_named_alone(
    change: dict[str, tuple[str, tuple[int, ...]] | None], code: str | None, tensor: str | None
) -> None:
    tensors = {name: look for name, look in (miniature() | change).items() if look is not None}
    report = inspect_miniature(tensors)
    found = [(finding.code, finding.tensor, finding.count) for finding in graver_than_info(report)]
    assert found == ([(code, tensor, 1)] if code else [])
    assert report[ki.Component.ROUTED_EXPERTS].parameters == EXPERT_VALUES
