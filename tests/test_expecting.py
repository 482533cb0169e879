"""The names that a config promises, against the layouts of the hollow Kimis, which were written from another source."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest

import kimi_inspect as ki
from kimi_inspect.inventory import Inventory, Template
from kimi_inspect.testing import HollowFile, kimi_config, kimi_k3, kimi_k31_pro


def stored_names(files: Mapping[str, HollowFile]) -> set[str]:
    shards = (file for path, file in files.items() if path.endswith(".safetensors"))
    return {name for file in shards for name in json.loads(file.head[8:])}


@pytest.mark.parametrize(("make", "model"), [(kimi_k31_pro, "kimi-k3.1-pro"), (kimi_k3, "kimi-k3")])
@pytest.mark.parametrize("size", [{"layers": 5, "experts": 4}, {"layers": 9, "experts": 12}])
def test_a_small_kimi_has_just_the_tensors_that_its_config_promises(
    make: Any, model: Any, size: dict[str, int]
) -> None:
    expected = ki.expected_tensors(kimi_config(model, **size))
    assert expected == stored_names(make(**size))


@pytest.mark.parametrize(
    ("make", "model", "count"), [(kimi_k31_pro, "kimi-k3.1-pro", 497_340), (kimi_k3, "kimi-k3", 497_220)]
)
def test_the_full_size_kimis(make: Any, model: Any, count: int) -> None:
    expected = ki.expected_tensors(kimi_config(model))
    assert expected is not None
    assert len(expected) == count
    assert expected == stored_names(make())


CONFIG = kimi_config("kimi-k3.1-pro", layers=5, experts=4)


def changed(path: str, value: Any) -> dict[str, Any]:
    config = copy.deepcopy(CONFIG)
    *parents, key = path.split(".")
    level = config
    for parent in parents:
        level = level[parent]
    if value is KeyError:
        del level[key]
    else:
        level[key] = value
    return config


@pytest.mark.parametrize(
    ("path", "value", "missing"),
    [
        ("text_config.tie_word_embeddings", True, {"language_model.lm_head.weight"}),
        (
            "text_config.mla_use_output_gate",
            False,
            {f"language_model.model.layers.{n}.self_attn.g_proj.weight" for n in (3,)},
        ),
        (
            "text_config.topk_method",
            "greedy",
            {f"language_model.model.layers.{n}.block_sparse_moe.gate.e_score_correction_bias" for n in range(1, 5)},
        ),
        (
            "text_config.num_experts",
            3,
            {
                f"language_model.model.layers.{n}.block_sparse_moe.experts.3.{w}.weight_{kind}"
                for n in range(1, 5)
                for w in ("w1", "w2", "w3")
                for kind in ("packed", "scale")
            },
        ),
        (
            "vision_config.vt_num_hidden_layers",
            26,
            {
                f"vision_tower.encoder.blocks.26.{part}.weight"
                for part in ("norm0", "norm1", "wqkv", "wo", "mlp.fc0", "mlp.fc1")
            },
        ),
        (
            "text_config.dsa_config",
            KeyError,
            {
                f"language_model.model.layers.{n}.self_attn.indexer.{part}"
                for n in (3,)
                for part in ("wq_b.weight", "wk.weight", "k_norm.weight", "k_norm.bias", "weights_proj.weight")
            },
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_statement_of_the_config_counts(path: str, value: Any, missing: set[str]) -> None:
    before, after = ki.expected_tensors(CONFIG), ki.expected_tensors(changed(path, value))
    assert before is not None
    assert after is not None
    assert (before - after, after - before) == (missing, set())


def test_unquantized_experts_have_one_tensor_a_matrix() -> None:
    expected = ki.expected_tensors(changed("text_config.quantization_config", KeyError))
    assert expected is not None
    assert "language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight" in expected
    assert "language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight_packed" not in expected


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model_type", "deepseek_v3"),
        ("model_type", 3),
        ("model_type", KeyError),
        ("text_config", KeyError),
        ("text_config", "text"),
        ("vision_config", None),
        ("text_config.num_hidden_layers", KeyError),
        ("text_config.num_hidden_layers", "5"),
        ("text_config.num_hidden_layers", True),
        ("text_config.num_hidden_layers", 6),
        ("text_config.num_experts", KeyError),
        ("text_config.linear_attn_config.kda_layers", [1, 2]),
        ("text_config.linear_attn_config.use_full_rank_gate", KeyError),
        ("text_config.q_lora_rank", None),
        ("text_config.num_nextn_predict_layers", 1),
        ("text_config.quantization_config.format", "pack-quantized"),
        ("vision_config.mm_projector_type", "mlp"),
        ("vision_config.linear_bias", True),
    ],
)
def test_a_config_that_leaves_something_open_promises_nothing(path: str, value: Any) -> None:
    config = changed(path, value)
    if path.endswith("quantization_config.format"):
        for group in config["text_config"]["quantization_config"]["config_groups"].values():
            group["format"] = value
    assert ki.expected_tensors(config) is None


def test_the_inventory_is_a_set() -> None:
    inventory = Inventory([Template("a.{layer}.b.{expert}", layer=(1, 3), expert=range(12)), Template("c1.weight")])
    names = {f"a.{layer}.b.{expert}" for layer in (1, 3) for expert in range(12)} | {"c1.weight"}
    assert inventory == names
    assert (len(inventory), set(inventory)) == (25, names)
    assert inventory - {"c1.weight"} == names - {"c1.weight"}
    assert inventory & {"c1.weight", "x"} == {"c1.weight"}


@pytest.mark.parametrize("name", ["a.2.b.0", "a.1.b.12", "a.01.b.0", "a.1.b.-1", "a.1.b.0.c", "c2.weight", "", 7, None])
def test_what_is_not_in_an_inventory(name: object) -> None:
    inventory = Inventory([Template("a.{layer}.b.{expert}", layer=(1, 3), expert=range(12)), Template("c1.weight")])
    assert name not in inventory
