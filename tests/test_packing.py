"""Packing is read from tensors that stand together, held against the config, and doubts are findings."""

from __future__ import annotations

from typing import Any

import pytest

import kimi_inspect as ki
from kimi_inspect.declared import declaration_of
from kimi_inspect.testing import TensorSpec, hollow_safetensors

MXFP4 = {"quantization_config": {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}}
NVFP4 = {"quantization_config": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}}
EXPERT = "language_model.model.layers.1.block_sparse_moe.experts.{}.w1."
PACKED, SCALE = EXPERT + "weight_packed", EXPERT + "weight_scale"


def pair(
    number: int,
    weight: tuple[int, ...] = (8, 32),
    scale: tuple[int, ...] = (8, 2),
    dtypes: tuple[str, str] = ("U8", "U8"),
) -> list[TensorSpec]:
    return [
        TensorSpec(PACKED.format(number), dtypes[0], weight),
        TensorSpec(SCALE.format(number), dtypes[1], scale),
    ]


def checkpoint(*shards: list[TensorSpec], config: dict[str, Any] | None = None) -> ki.Checkpoint:
    count = len(shards)
    files: dict[str, ki.ByteSource] = {
        f"model-{number:05d}-of-{count:05d}.safetensors": hollow_safetensors(tensors)
        for number, tensors in enumerate(shards, 1)
    }
    if config is not None:
        files["config.json"] = Json(config)
    return ki.open_checkpoint(files)


class Json:
    """A config.json as a byte source."""

    def __init__(self, value: object) -> None:
        import json

        self._data = json.dumps(value).encode()

    @property
    def size(self) -> int:
        return len(self._data)

    def read(self, begin: int, end: int) -> bytes:
        return self._data[begin:end]


def codes(opened: ki.Checkpoint) -> list[str]:
    return [item.code for item in opened.findings if item.code != "unclassified"]


@pytest.mark.parametrize("config", [None, MXFP4, {"text_config": MXFP4}], ids=["no config", "top", "nested"])
def test_a_pair_of_the_right_shapes_is_mxfp4_whatever_the_config(config: dict[str, Any] | None) -> None:
    opened = checkpoint(pair(0), config=config)
    weight, scale = opened.tensors[PACKED.format(0)], opened.tensors[SCALE.format(0)]
    assert (weight.encoding, weight.shape, weight.stored_shape) == ("mxfp4", (8, 64), (8, 32))
    assert (weight.parameters, weight.group_size, weight.role) == (512, 32, ki.Role.WEIGHT)
    assert (scale.encoding, scale.parameters, scale.role) == ("mxfp4", 0, ki.Role.SCALE)
    assert codes(opened) == []


def test_scales_may_be_of_the_type_that_is_made_for_them() -> None:
    assert checkpoint(pair(0, dtypes=("U8", "F8_E8M0"))).tensors[PACKED.format(0)].encoding == "mxfp4"


def test_fused_experts_are_mxfp4_too() -> None:
    opened = checkpoint(pair(0, weight=(4, 8, 32), scale=(4, 8, 2)))
    assert opened.tensors[PACKED.format(0)].parameters == 4 * 8 * 64


@pytest.mark.parametrize(
    ("weight", "scale", "dtypes"),
    [
        ((8, 32), (8, 3), ("U8", "U8")),
        ((8, 32), (2, 8), ("U8", "U8")),
        ((8, 32), (16,), ("U8", "U8")),
        ((8, 24), (8, 1), ("U8", "U8")),
        ((8, 32), (8, 2), ("I32", "U8")),
        ((8, 32), (8, 2), ("U8", "BF16")),
    ],
    ids=["one too many", "turned", "flat", "no whole groups", "container", "scale type"],
)
def test_what_does_not_determine_a_packing_has_unknown_parameters(
    weight: tuple[int, ...], scale: tuple[int, ...], dtypes: tuple[str, str]
) -> None:
    opened = checkpoint(pair(0, weight, scale, dtypes))
    tensor = opened.tensors[PACKED.format(0)]
    assert (tensor.encoding, tensor.parameters, tensor.shape) == (f"unknown:{dtypes[0].lower()}", None, None)
    report = ki.summarize(opened)
    assert (report.parameters, report.known_parameters, report.unknown_tensors) == (None, 0, 1)
    assert report.tensor_bytes == sum(row.stored_bytes for row in report.components)


def test_a_scale_of_the_wrong_shape_is_found_where_the_config_says_what_it_should_be() -> None:
    opened = checkpoint([*pair(0), *pair(1, scale=(8, 1)), *pair(2)], config=MXFP4)
    assert codes(opened) == ["scale-shape"]
    found = opened.findings[0]
    assert (found.tensor, found.expected, found.actual) == (SCALE.format(1), [8, 2], [8, 1])
    assert opened.tensors[PACKED.format(1)].parameters == 512


@pytest.mark.parametrize("config", [MXFP4, None])
def test_a_weight_without_its_scale_is_found(config: dict[str, Any] | None) -> None:
    opened = checkpoint([*pair(0), pair(1)[0], *pair(2)], config=config)
    assert codes(opened) == ["scale-missing"]
    assert opened.findings[0].tensor == SCALE.format(1)
    assert opened.tensors[PACKED.format(1)].parameters == (512 if config else None)


def test_a_scale_in_another_shard_is_found() -> None:
    opened = checkpoint([pair(0)[0], pair(1)[0]], [pair(1)[1], pair(0)[1]], config=MXFP4)
    assert codes(opened) == []
    assert opened.tensors[PACKED.format(0)].encoding == opened.tensors[PACKED.format(1)].encoding == "mxfp4"


def test_a_scale_of_another_layer_does_not_serve() -> None:
    other = TensorSpec(SCALE.format(0).replace("layers.1", "layers.2"), "U8", (8, 2))
    assert codes(checkpoint([pair(0)[0], other], config=MXFP4)) == ["scale-missing"]


def test_many_weights_without_scales_are_one_finding_with_ten_examples() -> None:
    opened = checkpoint([pair(number)[0] for number in range(25)], config=MXFP4)
    assert [(item.code, item.count, len(item.examples)) for item in opened.findings] == [("scale-missing", 25, 10)]


def test_tensors_that_contradict_the_config_are_found_and_win() -> None:
    opened = checkpoint(pair(0), config=NVFP4)
    assert codes(opened) == ["packing-disagrees"]
    assert (opened.findings[0].expected, opened.findings[0].actual) == ("nvfp4", "mxfp4")
    assert opened.tensors[PACKED.format(0)].encoding == "mxfp4"


def test_a_target_of_the_config_that_is_stored_unpacked_is_no_finding() -> None:
    plain = TensorSpec("language_model.model.layers.1.block_sparse_moe.routed_expert_up_proj.weight", "BF16", (8, 8))
    assert codes(checkpoint([plain, *pair(0)], config=MXFP4)) == []


@pytest.mark.parametrize(
    ("config", "packing"),
    [
        (MXFP4, "mxfp4"),
        ({"text_config": NVFP4}, "nvfp4"),
        ({"quantization_config": {"config_groups": {"group_0": {"format": "mxfp4-pack-quantized"}}}}, "mxfp4"),
        ({"quantization_config": {"format": "pack-quantized"}}, None),
        ({"quantization_config": {"format": ["mxfp4-pack-quantized"]}}, None),
        ({"quantization_config": "mxfp4-pack-quantized"}, None),
        ({"quantization_config": {"config_groups": ["group_0"]}}, None),
        ({"text_config": "text"}, None),
        ({}, None),
        (None, None),
    ],
)
def test_what_a_config_declares(config: dict[str, Any] | None, packing: str | None) -> None:
    assert declaration_of(config).sole == packing
