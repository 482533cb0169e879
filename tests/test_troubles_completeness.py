"""Completeness in odd cases: whole components lost, experts uneven on purpose, parts alone, models without heads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from kimi_inspect import Checkpoint, Severity, open_checkpoint
from kimi_inspect.testing import (
    HollowFile,
    TensorSpec,
    hollow_checkpoint,
    hollow_safetensors,
    kimi_config,
    kimi_k31_pro,
    kimi_mlx,
    kimi_reap,
    kimi_tensors,
)

CONFIG = kimi_config("kimi-k3.1-pro", layers=5, experts=4)
UNEVEN = [("experts-uneven", Severity.WARNING)]


def opened(tensors: Sequence[TensorSpec], config: Mapping[str, Any]) -> Checkpoint:
    written = HollowFile(json.dumps(config).encode())
    return open_checkpoint({"model.safetensors": hollow_safetensors(tensors), "config.json": written})


def plain(*names: str, config: Mapping[str, Any]) -> Checkpoint:
    return opened([TensorSpec(name, "BF16", (8, 8)) for name in names], config)


def told(checkpoint: Checkpoint) -> list[tuple[str, Severity]]:
    return [(item.code, item.severity) for item in checkpoint.findings]


def codes(checkpoint: Checkpoint) -> list[str]:
    return [item.code for item in checkpoint.findings if item.severity is not Severity.INFO]


# ---- whole components


@pytest.mark.parametrize(
    "lost",
    [
        r"moe\.gate\.",
        r"embed_tokens",
        r"_res_(norm|proj)",
        r"shared_experts",
        r"routed_expert_",
        r"mm_projector",
        r"vision_tower",
        r"layers\.0\.mlp\.",
        r"\.self_attn\.",
    ],
)
def test_a_component_that_is_lost_everywhere_is_told_once(lost: str) -> None:
    tensors = [one for part in kimi_tensors(CONFIG).values() for one in part]
    left = [one for one in tensors if not re.search(lost, one.name)]
    assert len(left) < len(tensors)
    assert codes(opened(left, CONFIG)) in (["tensor-missing"], ["component-missing"])


# ---- experts


def routed(layer: int, experts: int) -> Iterator[TensorSpec]:
    """Give a router and as many experts in one tensor."""
    yield TensorSpec(f"model.layers.{layer}.mlp.gate.weight", "BF16", (experts, 8))
    yield TensorSpec(f"model.layers.{layer}.mlp.experts.up_proj", "BF16", (experts, 8, 8))


def test_experts_that_are_uneven_on_purpose_are_a_warning() -> None:
    assert told(open_checkpoint(kimi_reap(4, layers=5, expert_counts=[8, 16, 8, 8]))) == UNEVEN


def test_a_list_of_experts_has_zeros_for_dense_layers() -> None:
    stacked = "model.layers.{}.mlp.switch_mlp.up_proj.weight"
    tensors = [
        TensorSpec("model.layers.0.mlp.up_proj.weight", "BF16", (8, 8)),
        TensorSpec(stacked.format(1), "BF16", (4, 8, 8)),
        TensorSpec(stacked.format(2), "BF16", (2, 8, 8)),
    ]
    assert told(opened(tensors, {"expert_counts": [0, 4, 2]})) == UNEVEN


def test_a_router_is_believed_before_the_list() -> None:
    found = opened([*routed(0, 4), *routed(1, 2)], {"expert_counts": [4, 4]})
    assert "expert-missing" not in codes(found)


# ---- false alarms


def test_a_small_build_for_mlx_is_whole() -> None:
    assert codes(open_checkpoint(kimi_mlx(layers=5, experts=8))) == []


@pytest.mark.parametrize("number", range(1, 6))
def test_a_part_under_a_name_of_its_own_promises_no_more(number: int) -> None:
    files = kimi_k31_pro(layers=5, experts=4)
    part = files[f"model-{number:05d}-of-000008.safetensors"]
    assert codes(open_checkpoint({"part.safetensors": part, "config.json": files["config.json"]})) == []


@pytest.mark.parametrize("architecture", ["T5EncoderModel", "Qwen3Model"])
def test_a_model_without_a_head_lacks_none(architecture: str) -> None:
    config = {"architectures": [architecture], "num_hidden_layers": 1, "tie_word_embeddings": False}
    assert codes(plain("embed_tokens.weight", "layers.0.self_attn.q_proj.weight", config=config)) == []


def test_layers_that_are_dense_by_the_config_lack_no_experts() -> None:
    config = {"num_experts": 4, "num_hidden_layers": 1, "mlp_only_layers": [0]}
    assert codes(plain("model.layers.0.self_attn.q_proj.weight", config=config)) == []


# ---- the repositories of the tests themselves


def test_an_index_may_end_with_a_part_that_holds_nothing() -> None:
    first, last = (f"model-{number:05d}-of-00002.safetensors" for number in (1, 2))
    files = hollow_checkpoint({first: [TensorSpec("a", "BF16", (8,))], last: []}, {})
    index = files["model.safetensors.index.json"]
    assert json.loads(index.read(0, index.size)) == {"metadata": {"total_size": 16}, "weight_map": {"a": first}}
