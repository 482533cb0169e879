"""Packings that are put together oddly: layers left plain, scales of other shapes, encodings that nobody writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from kimi_inspect import Checkpoint, Severity, open_checkpoint
from kimi_inspect.declared import declaration_of
from kimi_inspect.forms import decide
from kimi_inspect.header import Kind
from kimi_inspect.testing import HollowFile, TensorSpec, hollow_safetensors

MODULE = "model.layers.{}.self_attn.q_proj"
PLAIN = "weight BF16 8 64"
FP8 = "weight F8_E4M3 256 256, weight_scale_inv F32 2 2"
NVFP4 = "weight U8 8 32, weight_scale F8_E4M3 8 4, weight_scale_2 F32"
BNB = "weight I8 8 64, SCB F32 8"
MLX = "weight U32 8 8, scales BF16 8 2, biases BF16 8 2"
GPTQ = "qweight I32 8 96, qzeros I32 2 12, scales F16 2 96, g_idx I32 64"

FP8_BUT_ONE = {
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["model.layers.0"],
}
FOUR_BITS = {"bits": 4, "group_size": 32}


def tensor(module: str, text: str) -> TensorSpec:
    """Parse "leaf DTYPE extent extent"."""
    leaf, dtype, *extents = text.split()
    return TensorSpec(f"{module}.{leaf}", dtype, tuple(map(int, extents)))


def opened(*layers: str, config: Mapping[str, Any] | None = None) -> Checkpoint:
    """Open a model of one module a layer; each is "leaf DTYPE extent extent, leaf DTYPE"."""
    tensors = [tensor(MODULE.format(number), item) for number, text in enumerate(layers) for item in text.split(", ")]
    files = {"model.safetensors": hollow_safetensors(tensors)}
    if config is not None:
        files["config.json"] = HollowFile(json.dumps(config).encode())
    return open_checkpoint(files)


def codes(checkpoint: Checkpoint) -> list[str]:
    return [item.code for item in checkpoint.findings if item.severity is not Severity.INFO]


@pytest.mark.parametrize(
    ("text", "config"),
    [
        (FP8, {"quantization_config": FP8_BUT_ONE}),
        (MLX, {"quantization": {**FOUR_BITS, MODULE.format(0): False}}),
        (NVFP4, {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}),
        (BNB, None),
    ],
    ids=["fp8", "mlx", "modelopt", "bitsandbytes"],
)
def test_a_layer_may_be_left_plain(text: str, config: dict[str, Any] | None) -> None:
    assert codes(opened(PLAIN, text, text, config=config)) == []


# ---- scales and biases


def test_scales_of_gptq_in_another_shape() -> None:
    config = {"quantization_config": {"quant_method": "gptq", **FOUR_BITS}}
    wrong = GPTQ.replace("scales F16 2 96", "scales F16 3 96")
    assert codes(opened(GPTQ, GPTQ, GPTQ, config=config)) == []
    assert codes(opened(GPTQ, wrong, GPTQ, config=config)) == ["scale-shape"]


def test_biases_of_mlx_in_another_shape() -> None:
    config = {"quantization": FOUR_BITS}
    wrong = MLX.replace("biases BF16 8 2", "biases BF16 8 1")
    assert codes(opened(MLX, MLX, config=config)) == []
    assert codes(opened(MLX, wrong, config=config)) == ["scale-shape"]


# ---- encodings that are none


@pytest.mark.parametrize(
    ("weight", "scales"),
    [
        (Kind("I32", (8, 100), 3200), Kind("F16", (1, 1), 2)),
        (Kind("I32", (8, 96), 3072), Kind("F16", (2, 192), 768)),
    ],
    ids=["3200 bits", "16 bits"],
)
def test_no_integers_of_a_width_that_nobody_packs(weight: Kind, scales: Kind) -> None:
    assert decide("qweight", {"qweight": weight, "scales": scales}, None) is None


def test_a_width_that_no_word_holds_is_not_believed() -> None:
    text = "weight U32 8 8, scales BF16 8 1, biases BF16 8 1"
    found = opened(text, config={"quantization": {"bits": 64, "group_size": 64}})
    assert found.tensors[0].encoding == "unknown:u32"


@pytest.mark.parametrize(("bits", "columns"), [(8, 32), (4, 32), (2, 96)])
def test_rows_that_are_no_whole_groups_contradict_mlx(bits: int, columns: int) -> None:
    config = {"quantization": {"bits": bits, "group_size": 64}}
    text = f"weight U32 8 {columns * bits // 32}, scales BF16 8 {-(-columns // 64)}, biases BF16 8 {-(-columns // 64)}"
    found = opened(text, text, config=config)
    assert {one.encoding for one in found.tensors} == {"unknown:u32"}
    assert codes(found) == ["packing-disagrees"]


def test_one_row_that_is_no_whole_groups_is_found_among_others() -> None:
    sound, short = MLX, "weight U32 8 2, scales BF16 8 1, biases BF16 8 1"
    assert codes(opened(sound, short, sound, config={"quantization": FOUR_BITS})) == ["scale-shape"]


def test_a_mode_that_is_no_text_declares_nothing() -> None:
    assert declaration_of({"quantization": {"bits": 4, "mode": {"a": 1}}}).encodings == set()


def test_a_name_that_ends_like_a_packed_weight_is_none() -> None:
    assert codes(opened("num_blocks I32 4")) == []
