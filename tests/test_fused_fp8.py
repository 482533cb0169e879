"""FP8 experts in one tensor: scales hang on the name of the weight, and are no parameters."""

from __future__ import annotations

import json
from typing import Any

import pytest

import kimi_inspect as ki
from kimi_inspect import Checkpoint, Role
from kimi_inspect.testing import HollowFile, TensorSpec, hollow_safetensors

EXPERTS = "model.layers.{}.mlp.experts."
BLOCKS = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
Shape = tuple[int, ...]


def layer(number: int, ending: str, gate_up: Shape = (4, 2, 3), down: Shape = (4, 2, 2)) -> list[TensorSpec]:
    module = EXPERTS.format(number)
    return [
        TensorSpec(f"{module}gate_up_proj", "F8_E4M3", (4, 256, 384)),
        TensorSpec(f"{module}gate_up_proj{ending}", "F32", gate_up),
        TensorSpec(f"{module}down_proj", "F8_E4M3", (4, 192, 256)),
        TensorSpec(f"{module}down_proj{ending}", "F32", down),
    ]


def opened(*specs: TensorSpec, config: dict[str, Any] | None = None) -> Checkpoint:
    config = {"model_type": "qwen3_moe", **(config or {})}
    return ki.open_checkpoint(
        {"model.safetensors": hollow_safetensors(specs), "config.json": HollowFile(json.dumps(config).encode())}
    )


def codes(found: Checkpoint) -> list[str]:
    return [item.code for item in found.findings if "scale" in item.code or "packing" in item.code]


@pytest.mark.parametrize("config", [BLOCKS, None], ids=["declared", "not declared"])
@pytest.mark.parametrize("ending", ["_scale_inv", "_scale"])
def test_blocks(ending: str, config: dict[str, Any] | None) -> None:
    found = opened(*layer(0, ending), config=config)
    assert codes(found) == []
    weight, scale = (found.tensors[EXPERTS.format(0) + name] for name in ("gate_up_proj", f"gate_up_proj{ending}"))
    assert (weight.encoding, weight.shape, weight.group_size) == ("fp8_block", (4, 256, 384), 128)
    assert (weight.parameters, weight.experts, weight.role) == (4 * 256 * 384, 4, Role.WEIGHT)
    assert (scale.encoding, scale.role, scale.parameters) == ("fp8_block", Role.SCALE, 0)
    report = ki.summarize(found)
    assert report.parameters == 4 * (256 * 384 + 192 * 256)
    (row,) = report.by_encoding()
    assert (row.encoding, row.scale_bytes) == ("fp8_block", 4 * (4 * 2 * 3 + 4 * 2 * 2))


@pytest.mark.parametrize("config", [BLOCKS, None], ids=["declared", "not declared"])
@pytest.mark.parametrize("ending", ["_scale_inv", "_scale"])
@pytest.mark.parametrize(
    ("gate_up", "down"),
    [
        ((4, 1, 384), (4, 1, 256)),
        ((4, 384), (4, 256)),
        ((4, 256, 1), (4, 192, 1)),
        ((4, 1, 1), (4, 1, 1)),
        ((4,), (4,)),
        ((1,), (1,)),
    ],
    ids=["columns", "flat columns", "rows", "experts", "flat experts", "one"],
)
def test_fewer_scales_make_a_plain_type(
    gate_up: Shape, down: Shape, ending: str, config: dict[str, Any] | None
) -> None:
    found = opened(*layer(0, ending, gate_up, down), config=config)
    assert [(one.encoding, one.role) for one in found.tensors] == [
        ("f8_e4m3", Role.WEIGHT),
        ("f8_e4m3", Role.SCALE),
    ] * 2
    assert ki.summarize(found).parameters == 4 * (256 * 384 + 192 * 256)
    assert codes(found) == (["packing-disagrees"] if config else [])


def test_a_scale_of_another_shape_is_found() -> None:
    found = opened(
        *layer(0, "_scale_inv"), *layer(1, "_scale_inv", gate_up=(4, 2, 2)), *layer(2, "_scale_inv"), config=BLOCKS
    )
    (item,) = [item for item in found.findings if item.code == "scale-shape"]
    assert (item.tensor, item.expected, item.actual) == (
        EXPERTS.format(1) + "gate_up_proj_scale_inv",
        [4, 2, 3],
        [4, 2, 2],
    )


def test_a_scale_that_is_missing_is_found() -> None:
    found = opened(*layer(0, "_scale_inv"), *layer(1, "_scale_inv")[:3], *layer(2, "_scale_inv")[::2], config=BLOCKS)
    (item,) = [item for item in found.findings if item.code == "scale-missing"]
    assert (item.count, item.tensor) == (3, EXPERTS.format(1) + "down_proj_scale_inv")


def test_the_same_experts_apart_and_in_one_have_scales_of_their_own_places() -> None:
    plain = [TensorSpec(one.name, "BF16", one.shape) for one in layer(0, "_scale_inv")[::2]]
    audit = ki.audit(opened(*layer(0, "_scale_inv"), config=BLOCKS), opened(*plain))
    assert audit.verdict == "requantized"
    (change,) = audit.requantizations
    assert (change.before, change.after) == ("bf16", "fp8_block")
    assert change.bytes_after == 4 * (256 * 384 + 192 * 256) + 4 * (4 * 2 * 3 + 4 * 2 * 2)


def test_whole_numbers_with_a_scale_for_a_column() -> None:
    module = EXPERTS.format(0)
    found = opened(
        TensorSpec(f"{module}down_proj", "I8", (4, 192, 256)),
        TensorSpec(f"{module}down_proj_scale", "F32", (4, 1, 256)),
    )
    assert [(one.encoding, one.parameters) for one in found.tensors] == [("int8", 4 * 192 * 256), ("int8", 0)]
    assert codes(found) == []


def test_bytes_with_a_scale_that_no_form_fits_are_unknown() -> None:
    module = EXPERTS.format(0)
    found = opened(
        TensorSpec(f"{module}down_proj", "U8", (4, 192, 256)), TensorSpec(f"{module}down_proj_scale", "F32", (7,))
    )
    assert [(one.encoding, one.parameters) for one in found.tensors] == [("unknown:u8", None), ("unknown:u8", 0)]


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_what_only_ends_like_a_scale_is_a_weight(dtype: str) -> None:
    found = opened(
        TensorSpec("model.layers.0.self_attn.per_dim", "BF16", (8, 8)),
        TensorSpec("model.layers.0.self_attn.per_dim_scale", dtype, (8,)),
        TensorSpec("model.layers.0.mlp.layer_scale", "F32", (8,)),
    )
    assert [(one.encoding, one.role) for one in found.tensors] == [
        ("bf16", Role.WEIGHT),
        (dtype.lower(), Role.WEIGHT),
        ("f32", Role.WEIGHT),
    ]


def test_a_bound_for_the_scale_of_what_comes_in_is_no_weight() -> None:
    """Llama 3.1 405B in FP8, by FBGEMM, has one beside each weight and its scale."""
    module = "model.layers.0.mlp.up_proj."
    found = opened(
        TensorSpec(f"{module}weight", "F8_E4M3", (128, 64)),
        TensorSpec(f"{module}weight_scale", "F32", (128, 1)),
        TensorSpec(f"{module}input_scale_ub", "F32", (1,)),
        config={"quantization_config": {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}},
    )
    assert codes(found) == []
    assert [found.tensors[module + name].role for name in ("weight_scale", "input_scale_ub")] == [Role.SCALE] * 2
    assert found.tensors.parameters.sum() == 128 * 64
