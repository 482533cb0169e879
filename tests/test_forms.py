"""What a weight and the tensors beside it determine: form by form, fitting, not fitting, and not enough to tell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import usual

from kimi_inspect import Checkpoint, Role, open_checkpoint
from kimi_inspect.declared import Spec
from kimi_inspect.forms import Verdict, decide
from kimi_inspect.header import Kind
from kimi_inspect.leaves import LEAVES, MAINS
from kimi_inspect.testing import DTYPE_BITS, HollowFile, TensorSpec, hollow_safetensors

Tensors = Mapping[str, Kind]
Misfit = tuple[str, tuple[int, ...]]

MXFP4 = Spec(encoding="mxfp4", bits=4, group_size=32)
NVFP4 = Spec(encoding="nvfp4", bits=4, group_size=16)
NF4 = "weight U8 2048 1, weight.quant_state.bitsandbytes__nf4 U8 90"
GPTQ_WORDS = "qweight I32 8 96"
GPTQ_SPEC = Spec(encoding="int4", bits=4, group_size=32, leaf="qweight", method="gptq")
MODULE = "model.layers.{}.self_attn.q_proj"


def kinds(text: str) -> dict[str, Kind]:
    """Parse "leaf DTYPE extent extent, leaf DTYPE"."""
    items = (item.split() for item in text.split(", "))
    return {leaf: kind(dtype, *map(int, extents)) for leaf, dtype, *extents in items}


def kind(dtype: str, *shape: int) -> Kind:
    return Kind(dtype, shape, DTYPE_BITS[dtype] * prod(shape) // 8)


def judged(text: str, spec: Spec | None = None) -> Verdict | None:
    tensors = kinds(text)
    return decide(next(main for main in MAINS if main in tensors), tensors, spec)


def ints(bits: int | None, group: int | None = None) -> Spec:
    return Spec(encoding=f"int{bits}", bits=bits, group_size=group)


def affine(bits: int | None, group: int | None) -> Spec:
    return Spec(encoding=f"affine{bits}", bits=bits, group_size=group)


def blocks(rows: int, columns: int) -> Spec:
    return Spec(encoding="fp8_block", bits=8, block=(rows, columns))


@pytest.mark.parametrize(
    ("text", "spec", "encoding", "shape", "group"),
    [
        ("weight_packed U8 8 32, weight_scale U8 8 2", None, "mxfp4", (8, 64), 32),
        ("weight_packed U8 8 32, weight_scale F8_E8M0 8 2", NVFP4, "mxfp4", (8, 64), 32),
        ("weight_packed U8 3 8 32, weight_scale U8 3 8 2", None, "mxfp4", (3, 8, 64), 32),
        ("weight_packed U8 8 32, weight_scale F8_E4M3 8 4, weight_global_scale F32 1", None, "nvfp4", (8, 64), 16),
        ("weight U8 8 32, weight_scale F8_E4M3 8 4, weight_scale_2 F32", MXFP4, "nvfp4", (8, 64), 16),
        ("weight U8 8 32, weight_scale U8 8 2", None, "mxfp4", (8, 64), 32),
        ("weight I8 8 32, scale F8_E8M0 8 2", None, "mxfp4", (8, 64), 32),
        ("_blocks U8 3 8 2 16, _scales U8 3 8 2", None, "mxfp4", (3, 8, 64), 32),
        ("qweight I32 8 96, qzeros I32 2 12, scales F16 2 96, g_idx I32 64", None, "int4", (96, 64), 32),
        ("qweight I32 6 96, qzeros I32 2 9, scales F16 2 96, g_idx I32 64", None, "int3", (96, 64), 32),
        ("qweight I32 6 96, scales F16 2 96, g_idx I32 64", None, "int3", (96, 64), 32),
        ("qweight I32 16 96, qzeros I32 1 24, scales F16 1 96", ints(4), "int8", (96, 64), 64),
        ("qweight I32 64 12, qzeros I32 2 12, scales F16 2 96", None, "int4", (96, 64), 32),
        ("qweight I32 64 24, scales F16 2 96", ints(4), "int8", (96, 64), 32),
        ("weight U32 8 8, scales U8 8 2", None, "mxfp4", (8, 64), 32),
        ("weight U32 8 16, scales U8 8 2", None, "mxfp8", (8, 64), 32),
        ("weight U32 8 8, scales U8 8 4", None, "nvfp4", (8, 64), 16),
        ("weight U32 3 8 8, scales U8 3 8 2", affine(4, 64), "mxfp4", (3, 8, 64), 32),
        ("weight F8_E4M3 300 256, weight_scale_inv F32 3 2", None, "fp8_block", (300, 256), 128),
        ("weight F8_E4M3 300 256, weight_scale BF16 3 2", None, "fp8_block", (300, 256), 128),
        ("weight F8_E4M3 300 256, scale F8_E8M0 3 2", None, "fp8_block", (300, 256), 128),
        ("weight F8_E4M3 4 300 256, weight_scale_inv F32 4 3 2", None, "fp8_block", (4, 300, 256), 128),
        ("weight F8_E5M2 128 96, weight_scale_inv F32 2 3", blocks(64, 32), "fp8_block", (128, 96), 32),
        ("weight F8_E4M3 8 64, weight_scale U8 8 2", None, "mxfp8", (8, 64), 32),
        ("weight I8 8 64, weight_scale BF16 8 1", None, "int8", (8, 64), None),
        ("weight I8 8 64, weight_scale BF16", None, "int8", (8, 64), None),
        ("weight I8 8 64, weight_scale BF16 8 2", None, "int8", (8, 64), None),
        ("weight I8 8 64, SCB F32 8, weight_format U8", None, "bnb_int8", (8, 64), None),
        ("weight F8_E4M3 8 64, weight_scale BF16 8 1", None, "f8_e4m3", (8, 64), None),
        ("weight F8_E4M3 8 64, weight_scale BF16 8", blocks(128, 128), "f8_e4m3", (8, 64), None),
        ("weight F8_E5M2 8 64, weight_scale F32", ints(4, 32), "f8_e5m2", (8, 64), None),
        ("weight F8_E4M3 8 64, weight_scale_inv F32 1", None, "f8_e4m3", (8, 64), None),
        ("weight F8_E4M3 100 64, weight_scale_inv F32 1 1", None, "fp8_block", (100, 64), 128),
    ],
)
def test_tensors_alone_determine_a_form(
    text: str, spec: Spec | None, encoding: str, shape: tuple[int, ...], group: int | None
) -> None:
    verdict = judged(text, spec)
    assert verdict == Verdict(encoding=encoding, shape=shape, parameters=prod(shape), group_size=group)


@pytest.mark.parametrize("state", ["nf4", "fp4"])
def test_a_state_of_bitsandbytes_tells_the_number_and_no_shape(state: str) -> None:
    encoding = {"nf4": "nf4", "fp4": "bnb_fp4"}[state]
    text = f"weight U8 2048 1, weight.absmax F32 64, weight.quant_state.bitsandbytes__{state} U8 90"
    assert judged(text) == Verdict(encoding=encoding, shape=None, parameters=4096, group_size=64)
    without = judged(text.replace("weight.absmax F32 64, ", ""))
    assert without == Verdict(encoding=encoding, shape=None, parameters=4096, group_size=None)


@pytest.mark.parametrize(
    ("text", "spec", "encoding", "shape", "group"),
    [
        ("weight_packed U8 8 32", MXFP4, "mxfp4", (8, 64), 32),
        ("weight_packed U8 8 32", NVFP4, "nvfp4", (8, 64), 16),
        ("weight_packed I32 8 8, weight_scale BF16 8 2", ints(4, 32), "int4", (8, 64), 32),
        ("weight_packed I32 8 4, weight_scale BF16 8 2", ints(2, 32), "int2", (8, 64), 32),
        ("weight_packed I32 8 7, weight_scale BF16 8 2", ints(3, 32), "int3", (8, 64), 32),
        ("weight_packed I32 8 8, weight_scale BF16 8 1", ints(4), "int4", (8, 64), None),
        ("weight_packed I32 8 8", ints(4, 32), "int4", (8, 64), None),
        ("_blocks U8 3 8 2 16", None, "mxfp4", (3, 8, 64), 32),
        ("qweight I32 8 96", ints(4, 32), "int4", (96, 64), None),
        ("qweight I32 8 96, scales F16 2 96", ints(4, 32), "int4", (96, 64), 32),
        ("weight U32 8 8, scales BF16 8 2, biases BF16 8 2", affine(4, 32), "affine4", (8, 64), 32),
        ("weight U32 8 10, scales BF16 8 1, biases BF16 8 1", affine(5, 64), "affine5", (8, 64), 64),
        ("weight U32 8 8, scales BF16 8 1, biases BF16 8 1", affine(4, 64), "affine4", (8, 64), 64),
    ],
)
def test_a_config_is_believed_where_the_tensors_leave_it_open(
    text: str, spec: Spec | None, encoding: str, shape: tuple[int, ...], group: int | None
) -> None:
    verdict = Verdict(encoding=encoding, shape=shape, parameters=prod(shape), group_size=group, by_tensors=False)
    assert judged(text, spec) == verdict
    if spec is not None and "qzeros" not in text:
        assert judged(text) is None


@pytest.mark.parametrize(
    ("text", "spec", "encoding", "misfit"),
    [
        ("weight_packed U8 8 32, weight_scale U8 8 3", None, "mxfp4", ("weight_scale", (8, 2))),
        ("weight_packed U8 8 32, weight_scale U8 16", None, "mxfp4", ("weight_scale", (8, 2))),
        ("weight_packed U8 8 24, weight_scale U8 8 1", None, "mxfp4", ("weight_scale", (8, 2))),
        ("weight_packed U8 8 32, weight_scale F8_E4M3 8 2", None, "nvfp4", ("weight_scale", (8, 4))),
        ("weight_packed I32 8 8, weight_scale BF16 8 1", ints(4, 32), "int4", ("weight_scale", (8, 2))),
        ("weight_packed I32 8 8, weight_scale BF16 7 2", ints(4, 32), "int4", ("weight_scale", (8, 2))),
        ("_blocks U8 3 8 2 16, _scales U8 3 8 1", None, "mxfp4", ("_scales", (3, 8, 2))),
        ("weight I8 8 32, scale U8 8 1", None, "mxfp4", ("scale", (8, 2))),
        (
            "weight F8_E4M3 300 256, weight_scale_inv F32 3 1",
            blocks(128, 128),
            "fp8_block",
            ("weight_scale_inv", (3, 2)),
        ),
        ("weight F8_E4M3 300 256, weight_scale_inv F32 3 2", blocks(64, 64), "fp8_block", ("weight_scale_inv", (5, 4))),
        ("weight F8_E4M3 300 256, weight_scale_inv F32 3 1", None, "fp8_block", ("weight_scale_inv", (3, 2))),
        ("weight F8_E4M3 8 7168, weight_scale BF16 8 2", None, "f8_e4m3", ("weight_scale", (8, 1))),
        ("weight F8_E4M3 8 64, weight_scale BF16 7 1", None, "f8_e4m3", ("weight_scale", (8, 1))),
        ("weight F8_E4M3 8 64, weight_scale BF16 8 2", Spec(encoding=None), "f8_e4m3", ("weight_scale", (8, 1))),
        ("weight F8_E4M3 8 64, weight_scale BF16 8 2", GPTQ_SPEC, "f8_e4m3", ("weight_scale", (8, 1))),
        ("weight I8 8 64, weight_scale BF16 7 1", None, "int8", ("weight_scale", (8, 1))),
        ("weight I8 8 64, weight_scale BF16 8 2", Spec(encoding="int8"), "int8", ("weight_scale", (8, 1))),
        ("weight I8 8 64, SCB F32 9", None, "bnb_int8", ("SCB", (8,))),
        (f"{NF4}, weight.absmax F32 65", None, "nf4", ("weight.absmax", (64,))),
        (f"{NF4}, weight.absmax U8 64, weight.nested_absmax F32 2", None, "nf4", ("weight.nested_absmax", (1,))),
        ("weight U32 8 8, scales BF16 8 3, biases BF16 8 3", affine(4, 32), "affine4", ("scales", (8, 2))),
        ("weight U32 8 8, scales BF16 7 2, biases BF16 7 2", affine(4, 32), "affine4", ("scales", (8, 2))),
        ("weight U32 8 8, scales U8 8 3", MXFP4, "mxfp4", ("scales", (8, 2))),
        ("weight U32 8 8, scales U8 7 2", MXFP4, "mxfp4", ("scales", (8, 2))),
        (f"{GPTQ_WORDS}, qzeros I32 2 12, scales F16 2 97, g_idx I32 64", None, "int4", ("scales", (2, 96))),
        (f"{GPTQ_WORDS}, scales F16 2 97", ints(4, 32), "int4", ("scales", (2, 96))),
        (f"{GPTQ_WORDS}, qzeros I32 2 12, scales F16 3 96", ints(4, 32), "int4", ("scales", (2, 96))),
        ("qweight I32 64 12, qzeros I32 2 12, scales F16 2 97", ints(4, 32), "int4", ("scales", (2, 96))),
    ],
)
def test_a_scale_of_another_shape_is_a_misfit(text: str, spec: Spec | None, encoding: str, misfit: Misfit) -> None:
    verdict = judged(text, spec)
    assert verdict is not None
    assert (verdict.encoding, verdict.misfit) == (encoding, misfit)


def test_an_affine_weight_of_mlx_has_biases() -> None:
    verdict = judged("weight U32 8 8, scales BF16 8 1", affine(4, 64))
    assert verdict is not None
    assert (verdict.encoding, verdict.shape, verdict.lacks) == ("affine4", (8, 64), "biases")


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("weight_packed U8 8 32", None),
        ("weight_packed U8 8 32", ints(4, 32)),
        ("weight_packed U8 8 32, weight_scale BF16 8 2", MXFP4),
        ("weight_packed I32 8 8, weight_scale BF16 8 2", None),
        ("weight_packed I32 8 8, weight_scale BF16 8 2", ints(None, 32)),
        ("weight_packed I32 8 8, weight_scale BF16 8 2", ints(33, 32)),
        ("weight_packed I64 8 8, weight_scale BF16 8 2", ints(4, 32)),
        ("weight_packed U8", MXFP4),
        ("_blocks U8 3 8 2 8, _scales U8 3 8 2", None),
        ("_blocks I8 3 8 2 16, _scales U8 3 8 2", None),
        ("_blocks U8 16, _scales U8", None),
        ("qweight I32 8 96", None),
        ("qweight I32 8 96, scales F16 2 96", None),
        ("qweight I32 8 96 2, scales F16 2 96", ints(4)),
        ("qweight U8 8 96, scales F16 2 96", ints(4)),
        ("qweight I32 64 12, scales F16 2 97", None),
        ("qweight I32 64 12, scales F16 2 0", None),
        ("qweight I32 7 96, qzeros I32 2 9, scales F16 2 96", None),
        ("qweight I32 6 96, scales F16 2 96, g_idx I32 65", None),
        ("weight U32 8 8", affine(4, 32)),
        ("weight U32 8 8, scales BF16 8 1, biases BF16 8 1", None),
        ("weight U32 8 8, scales BF16 8 1, biases BF16 8 1", affine(4, None)),
        ("weight U32 8 8, scales BF16 8 1, biases BF16 8 1", affine(None, 64)),
        ("weight U32 8 8, scales U8 8 3", None),
        ("weight U32 8 8, scales U8 7 2", None),
        ("weight U32 8 8, scales U8", None),
        ("weight U8 8 32", MXFP4),
        ("weight U8 2048 1, weight.absmax F32 64", Spec(encoding="nf4", bits=4)),
        ("weight I8 8 32", None),
        ("weight F8_E4M3 8 64", blocks(128, 128)),
        ("weight F8_E4M3 64, weight_scale_inv F32 1", None),
        ("weight F8_E4M3 8 64, weight_scale BF16 8 2", None),
        ("weight F8_E4M3 8 64, weight_scale BF16 8 2", Spec(encoding=None, bits=8, group_size=32)),
        ("weight U32 8 8, scales BF16 8 1", affine(None, 64)),
        ("weight U32 8 8, scales BF16 8 1", MXFP4),
        ("qweight I32 512 512, scales F16 512 32, qzeros I32 512 4", ints(4, 128)),
        ("weight BF16 8 64, weight_scale BF16 8 1", blocks(128, 128)),
        ("weight F32 8 64", None),
    ],
)
def test_what_does_not_determine_a_form_is_none(text: str, spec: Spec | None) -> None:
    assert judged(text, spec) is None


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_the_same_words_of_mlx_are_what_the_config_says(bits: int, group: int) -> None:
    """4 bits in groups of 64 and 8 bits in groups of 32 are the same tensors: only the config tells them apart."""
    columns = 384
    words, groups = columns * bits // 32, columns // group
    text = f"weight U32 8 {words}, scales BF16 8 {groups}, biases BF16 8 {groups}"
    verdict = judged(text, affine(bits, group))
    assert verdict is not None
    assert (verdict.encoding, verdict.shape, verdict.misfit) == (f"affine{bits}", (8, columns), None)
    assert judged(text) is None


dtypes = st.sampled_from(["U8", "I8", "I32", "U32", "F8_E4M3", "F8_E8M0", "F16", "BF16", "F32", "I64"])
extents = st.one_of(st.integers(0, 5), st.sampled_from([8, 16, 32, 64, 128, 256]), st.integers(0, 2**64))
shapes = st.lists(extents, max_size=4).map(tuple)
odd_kinds = st.builds(lambda dtype, shape: Kind(dtype, shape, None), dtypes, shapes)
numbers = st.one_of(st.none(), st.integers(1, 64), st.integers(1, 2**70))
specs = st.builds(
    lambda encoding, bits, group, block: Spec(encoding=encoding, bits=bits, group_size=group, block=block),
    st.sampled_from([None, "mxfp4", "nvfp4", "int4", "affine4", "fp8_block"]),
    numbers,
    numbers,
    st.none() | st.tuples(st.integers(1, 10**7), st.integers(1, 10**7)),
)


@usual
@given(st.sampled_from(MAINS), odd_kinds, st.dictionaries(st.sampled_from(list(LEAVES)), odd_kinds), st.none() | specs)
def test_no_shapes_raise(main: str, weight: Kind, beside: dict[str, Kind], spec: Spec | None) -> None:
    verdict = decide(main, {**beside, main: weight}, spec)
    if verdict is not None:
        assert verdict.parameters >= 0
        assert verdict.shape is None or verdict.parameters == prod(verdict.shape)
        assert verdict.misfit is None or verdict.misfit[0] in beside
        assert (verdict.group_size or 1) > 0


# ---- through a whole checkpoint


def opened(modules: Mapping[str, str], config: dict[str, Any] | None = None) -> Checkpoint:
    """Open a file of these modules, each with its tensors as in `kinds`."""
    tensors = [
        TensorSpec(f"{module}{'' if leaf.startswith('_') else '.'}{leaf}", one.dtype, one.shape)
        for module, text in modules.items()
        for leaf, one in kinds(text).items()
    ]
    files = {"model.safetensors": hollow_safetensors(tensors)}
    if config is not None:
        files["config.json"] = HollowFile(json.dumps({"quantization_config": config}).encode())
    return open_checkpoint(files)


def told(checkpoint: Checkpoint) -> list[tuple[str, int]]:
    return [(item.code, item.count) for item in checkpoint.findings if item.code != "unclassified"]


FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
FP8_GROUPS = {"num_bits": 8, "type": "float", "block_structure": [128, 128]}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
MLX = {"bits": 4, "group_size": 32}
WHOLE: list[tuple[str, dict[str, Any] | None]] = [
    ("weight_packed U8 8 32, weight_scale U8 8 2", {"format": "mxfp4-pack-quantized"}),
    ("_blocks U8 3 8 2 16, _scales U8 3 8 2", {"quant_method": "mxfp4"}),
    ("qweight I32 8 96, qzeros I32 2 12, scales F16 2 96, g_idx I32 64", GPTQ),
    ("weight F8_E4M3 256 256, weight_scale_inv F32 2 2", FP8),
    ("weight U32 8 8, scales BF16 8 2, biases BF16 8 2", MLX),
    (
        "weight U8 8 32, weight_scale F8_E4M3 8 4, weight_scale_2 F32",
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    ),
]


@pytest.mark.parametrize("with_config", [True, False])
@pytest.mark.parametrize(("text", "config"), WHOLE)
def test_a_lost_scale_is_found_and_a_whole_set_is_not(
    text: str, config: dict[str, Any] | None, *, with_config: bool
) -> None:
    modules = {MODULE.format(number): text for number in range(4)}
    config = config if with_config else None
    assert told(opened(modules, config)) == []
    lost = [
        item
        for item in text.split(", ")
        if not item.startswith(("weight_scale ", "weight_scale_inv", "_scales", "scales"))
    ]
    modules[MODULE.format(2)] = ", ".join(lost)
    checkpoint = opened(modules, config)
    assert told(checkpoint) == [("scale-missing", 1)]
    assert str(checkpoint.findings[0].tensor).startswith(MODULE.format(2))


def test_scales_that_lack_in_all_are_found_by_the_names_alone() -> None:
    modules = {MODULE.format(number): "weight_packed U8 8 32" for number in range(30)}
    checkpoint = opened(modules)
    assert told(checkpoint) == [("scale-missing", 30)]
    assert len(checkpoint.findings[0].examples) == 10


@pytest.mark.parametrize(
    ("config", "leaf"),
    [
        (FP8, "weight_scale_inv"),
        ({"format": "float-quantized", "config_groups": {"a": {"weights": FP8_GROUPS}}}, "weight_scale"),
    ],
)
def test_a_lost_scale_has_the_name_that_its_form_gives(config: dict[str, Any], leaf: str) -> None:
    checkpoint = opened({MODULE.format(0): "weight F8_E4M3 256 256"}, config)
    assert told(checkpoint) == [("scale-missing", 1)]
    assert checkpoint.findings[0].tensor == f"{MODULE.format(0)}.{leaf}"


@pytest.mark.parametrize(
    ("right", "wrong", "expected", "actual"),
    [
        ("weight_packed U8 8 32, weight_scale U8 8 2", "weight_packed U8 8 32, weight_scale U8 8 1", [8, 2], [8, 1]),
        ("_blocks U8 3 8 2 16, _scales U8 3 8 2", "_blocks U8 3 8 2 16, _scales U8 3 2 8", [3, 8, 2], [3, 2, 8]),
        ("weight I8 8 32, scale U8 8 2", "weight I8 8 32, scale U8 8 4", [8, 2], [8, 4]),
    ],
)
def test_a_scale_of_the_wrong_shape_is_told_where_others_are_right(
    right: str, wrong: str, expected: list[int], actual: list[int]
) -> None:
    modules = {MODULE.format(number): right for number in range(4)} | {MODULE.format(5): wrong, MODULE.format(6): wrong}
    checkpoint = opened(modules)
    assert told(checkpoint) == [("scale-shape", 2)]
    found = checkpoint.findings[0]
    assert (found.expected, found.actual) == (expected, actual)
    assert str(found.tensor).startswith(MODULE.format(5))


@pytest.mark.parametrize(
    ("text", "config", "declared", "found"),
    [
        (WHOLE[0][0], {"format": "nvfp4-pack-quantized"}, "nvfp4", "mxfp4"),
        (WHOLE[2][0], GPTQ | {"bits": 8}, "int8", "int4"),
        (WHOLE[3][0], GPTQ, "int4", "fp8_block"),
        ("weight U32 8 8, scales U8 8 2", MLX, "affine4", "mxfp4"),
        ("weight F8_E4M3 8 64, weight_scale BF16 8 1", GPTQ, "int4", "f8_e4m3"),
    ],
)
def test_a_config_that_says_another_form_is_one_finding(
    text: str, config: dict[str, Any], declared: str, found: str
) -> None:
    checkpoint = opened({MODULE.format(number): text for number in range(12)}, config)
    assert told(checkpoint) == [("packing-disagrees", 12)]
    assert (checkpoint.findings[0].expected, checkpoint.findings[0].actual) == (declared, found)
    assert str(checkpoint.findings[0].tensor).startswith(MODULE.format(0))
    assert checkpoint.tensors[0].encoding == found


@pytest.mark.parametrize(
    ("text", "method", "layout"),
    [
        (WHOLE[2][0], "awq", "gptq"),
        ("qweight I32 64 12, qzeros I32 2 12, scales F16 2 96", "gptq", "awq"),
    ],
)
def test_two_methods_of_the_same_names_are_told_apart_by_their_layout(text: str, method: str, layout: str) -> None:
    modules = {MODULE.format(number): text for number in range(5)}
    assert told(opened(modules, {**GPTQ, "quant_method": layout})) == []
    assert told(opened(modules, {**GPTQ, "quant_method": "auto-round"})) == []
    checkpoint = opened(modules, {**GPTQ, "quant_method": method})
    assert told(checkpoint) == [("packing-disagrees", 5)]
    assert (checkpoint.findings[0].expected, checkpoint.findings[0].actual) == (method, layout)
    assert checkpoint.tensors[0].encoding == "int4"


BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
ROWS = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": {}}}


@pytest.mark.parametrize(
    ("text", "right", "wrong", "config"),
    [
        (f"{NF4}, weight.absmax", "F32 64", "F32 65", BNB),
        ("weight I8 8 64, SCB", "F32 8", "F32 9", {"quant_method": "bitsandbytes", "load_in_8bit": True}),
        ("weight F8_E4M3 8 64, weight_scale", "BF16 8 1", "BF16 8 2", ROWS),
        ("weight I8 8 64, weight_scale", "BF16 8 1", "BF16 7 1", None),
        (f"{GPTQ_WORDS}, qzeros I32 2 12, g_idx I32 64, scales", "F16 2 96", "F16 2 97", GPTQ),
        (
            "qweight I32 64 12, qzeros I32 2 12, scales",
            "F16 2 96",
            "F16 2 97",
            {**GPTQ, "quant_method": "awq"},
        ),
        ("weight U32 8 8, scales", "U8 8 2", "U8 8 3", MLX | {"mode": "mxfp4"}),
        ("weight U32 8 8, biases BF16 8 2, scales", "BF16 8 2", "BF16 7 2", MLX),
    ],
)
def test_scales_of_every_form_are_held_against_the_weight(
    text: str, right: str, wrong: str, config: dict[str, Any] | None
) -> None:
    modules = {MODULE.format(number): f"{text} {right}" for number in range(5)}
    assert told(opened(modules, config)) == []
    modules[MODULE.format(3)] = f"{text} {wrong}"
    checkpoint = opened(modules, config)
    assert told(checkpoint) == [("scale-shape", 1)]
    assert str(checkpoint.findings[0].tensor).startswith(MODULE.format(3))


def test_scales_by_groups_in_some_layers_and_by_row_in_others_are_no_contradiction() -> None:
    by_row, by_group = (f"weight F8_E4M3 8 64, weight_scale BF16 8 {groups}" for groups in (1, 2))
    assert told(opened({MODULE.format(0): by_row, MODULE.format(1): by_group, MODULE.format(2): by_row})) == []


def test_biases_that_lack_are_told_by_name() -> None:
    whole = "weight U32 8 8, scales BF16 8 2, biases BF16 8 2"
    modules = {MODULE.format(number): whole for number in range(5)}
    modules[MODULE.format(2)] = whole.removesuffix(", biases BF16 8 2")
    checkpoint = opened(modules, MLX)
    assert told(checkpoint) == [("tensor-missing", 1)]
    assert checkpoint.findings[0].tensor == f"{MODULE.format(2)}.biases"
    assert {item.encoding for item in checkpoint.tensors} == {"affine4"}


@pytest.mark.parametrize("scale", ["weight_scale BF16 8 1", "weight_scale F32", "weight_scale F32 1"])
def test_fp8_by_row_or_by_matrix_is_a_plain_type_and_its_scale_a_scale(scale: str) -> None:
    checkpoint = opened({MODULE.format(0): f"weight F8_E4M3 8 64, {scale}"})
    weight, beside = checkpoint.tensors
    assert (weight.encoding, weight.parameters, weight.group_size) == ("f8_e4m3", 512, None)
    assert (beside.encoding, beside.parameters, beside.role) == ("f8_e4m3", 0, Role.SCALE)
    assert told(checkpoint) == []
