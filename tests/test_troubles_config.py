"""Configs that contradict the tensors, and parts that are gone as a whole: one cause, one finding, no wrong total."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import kimi_inspect as ki
from kimi_inspect import Report, Severity
from kimi_inspect.testing import (
    HollowFile,
    TensorSpec,
    hollow_checkpoint,
    kimi_config,
    kimi_tensors,
    packed_model,
)

Change = Callable[[dict[str, Any]], None]


def look(encoding: str, change: Change) -> Report:
    """Look at a packed model whose config was changed."""
    files = dict(packed_model(encoding, seed=1).files)
    config = json.loads(files["config.json"].read())
    change(config)
    return ki.inspect({**files, "config.json": HollowFile(json.dumps(config).encode())})


def wrong(report: Report) -> list[str]:
    return [item.code for item in report.findings if item.severity is not Severity.INFO]


def weights(config: dict[str, Any]) -> dict[str, Any]:
    said: dict[str, Any] = config["quantization_config"]["config_groups"]["group_0"]["weights"]
    return said


def in_mlx(config: dict[str, Any], **values: int) -> None:
    for key in ("quantization", "quantization_config"):
        config.get(key, {}).update(values)


@pytest.mark.parametrize(
    ("encoding", "change"),
    [
        ("compressed-int4-32", lambda config: weights(config).update(num_bits=8)),
        ("compressed-int4-32", lambda config: weights(config).update(group_size=128)),
        ("compressed-int4-32", lambda config: config.update(quantization_config={"quant_method": "gptq", "bits": 3})),
        ("mlx-affine4-64", lambda config: in_mlx(config, bits=8)),
        ("mlx-affine4-64", lambda config: in_mlx(config, group_size=32)),
        ("gptq-4", lambda config: config["quantization_config"].update(group_size=32)),
    ],
)
def test_a_config_that_the_shapes_contradict_is_not_believed(encoding: str, change: Change) -> None:
    report = look(encoding, change)
    assert report.parameters in (None, packed_model(encoding, seed=1).parameters)
    assert set(wrong(report)) <= {"packing-disagrees"}
    assert report.unknown_tensors or wrong(report)


def without(encoding: str, ending: str) -> Report:
    """Look at a packed model all of whose tensors of one kind are gone."""
    files = packed_model(encoding, seed=1).files
    shards = {}
    for path, file in files.items():
        if path.endswith(".safetensors"):
            header = json.loads(file.head[8:])
            shards[path] = [
                TensorSpec(name, entry["dtype"], tuple(entry["shape"]))
                for name, entry in header.items()
                if name != "__metadata__" and not name.endswith(ending)
            ]
    return ki.inspect(hollow_checkpoint(shards, json.loads(files["config.json"].read())))


@pytest.mark.parametrize(
    ("encoding", "ending"),
    [
        ("fp8-block", "weight_scale_inv"),
        ("deepseek-v4-fp4", ".scale"),
        ("modelopt-nvfp4", "weight_scale"),
        ("compressed-int8-rows", "weight_scale"),
        ("compressed-mxfp4", "weight_scale"),
        ("bnb-nf4", "absmax"),
        ("bnb-int8", "SCB"),
        ("mlx-mxfp4", "scales"),
        ("gptq-4", "scales"),
    ],
)
def test_scales_that_are_all_gone_are_missed(encoding: str, ending: str) -> None:
    assert wrong(without(encoding, ending)) == ["scale-missing"]


@pytest.mark.parametrize(
    ("lost", "severity"), [("vision_tower", "warning"), ("shared_experts", "error"), ("lm_head", "error")]
)
def test_a_component_that_is_gone_is_one_finding(lost: str, severity: str) -> None:
    config = kimi_config("kimi-k3.1-pro", layers=5, experts=4)
    shards = {
        path: [tensor for tensor in tensors if lost not in tensor.name]
        for path, tensors in kimi_tensors(config).items()
    }
    report = ki.inspect(hollow_checkpoint({path: rest for path, rest in shards.items() if rest}, config))
    missing = [item for item in report.findings if item.code != "shard-missing"]
    assert [(item.code, str(item.severity)) for item in missing] in ([("component-missing", severity)], [])


def test_a_fused_scale_of_a_wrong_shape_takes_no_expert_away() -> None:
    files = packed_model("gpt-oss-mxfp4", seed=1).files
    shards: dict[str, list[TensorSpec]] = {}
    left = 1  # to be cut short
    for path, file in files.items():
        for name, entry in json.loads(file.head[8:]).items() if path.endswith(".safetensors") else ():
            if name != "__metadata__":
                cut = left if name.endswith("down_proj_scales") else 0
                left -= cut
                experts, *rest = entry["shape"] or (0,)
                shape = (experts - cut, *rest) if entry["shape"] else ()
                shards.setdefault(path, []).append(TensorSpec(name, entry["dtype"], shape))
    report = ki.inspect(hollow_checkpoint(shards, json.loads(files["config.json"].read())))
    assert wrong(report) == ["scale-shape"]
    assert report.experts is not None
    assert report.experts.per_layer_min == report.experts.per_layer_max
