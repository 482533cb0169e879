"""What a config promises and the headers lack: layers, components, draft layers, single tensors; and no false alarm."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from layouts.deepseek import globals_of, layers_of

from kimi_inspect import Checkpoint, Severity, open_checkpoint
from kimi_inspect.testing import (
    AINSLEYMARKOV_ID,
    BUILDS,
    DPHN_ID,
    GgufTensor,
    HollowFile,
    TensorSpec,
    hollow_gguf,
    hollow_safetensors,
    kimi_config,
    kimi_gguf,
    kimi_k3,
    kimi_k31_pro,
    kimi_mmproj,
    kimi_tensors,
)

CONFIG = kimi_config("kimi-k3.1-pro", layers=5, experts=4)
ERROR, WARNING = Severity.ERROR, Severity.WARNING
Told = tuple[str, Severity, str, int]

NOTHING: dict[str, Any] = {}
TOWER = r"^(vision_tower|mm_projector)\."


def changed(config: Mapping[str, Any], **values: Any) -> dict[str, Any]:
    """Return a config with other values; those of the text model under `text__`, None takes a key away."""
    made = copy.deepcopy(dict(config))
    for name, value in values.items():
        level = made["text_config"] if name.startswith("text__") else made
        level[name.removeprefix("text__")] = value
        if value is None:
            del level[name.removeprefix("text__")]
    return made


def small(lost: str | None = None, *more: TensorSpec, config: Mapping[str, Any] = CONFIG) -> Checkpoint:
    """Open a small Kimi K3.1 Pro without the tensors whose names the pattern is found in, and with more."""
    tensors = [
        one for part in kimi_tensors(CONFIG).values() for one in part if not (lost and re.search(lost, one.name))
    ]
    return opened([*tensors, *more], config)


def opened(tensors: Sequence[TensorSpec], config: Mapping[str, Any]) -> Checkpoint:
    written = HollowFile(json.dumps(config).encode())
    return open_checkpoint({"model.safetensors": hollow_safetensors(tensors), "config.json": written})


def told(checkpoint: Checkpoint) -> list[Told]:
    return [(item.code, item.severity, item.where, item.count) for item in checkpoint.findings]


def plain(layers: Sequence[int], config: Mapping[str, Any], *more: str) -> Checkpoint:
    """Open a model of the usual kind; more tensors by name."""
    names = [
        "model.embed_tokens.weight",
        *(f"model.layers.{number}.self_attn.q_proj.weight" for number in layers),
        *more,
    ]
    return opened([TensorSpec(name, "BF16", (8, 8)) for name in names], config)


def in_gguf(layers: Sequence[int], *more: str, **metadata: Any) -> Checkpoint:
    names = ["token_embd.weight", *(f"blk.{number}.attn_q.weight" for number in layers), *more]
    said = {"general.architecture": "glm4moe", **{f"glm4moe.{key}": value for key, value in metadata.items()}}
    return open_checkpoint({"x.gguf": hollow_gguf([GgufTensor(name, "F32", (8, 8)) for name in names], said)})


def test_a_whole_model_lacks_nothing() -> None:
    assert told(small()) == []


# ---- layers


@pytest.mark.parametrize(
    ("lost", "config", "layer", "count"),
    [
        (r"\.layers\.2\.", NOTHING, 2, 1),
        (r"\.layers\.4\.", NOTHING, 4, 1),
        (r"\.layers\.0\.", NOTHING, 0, 1),
        (r"\.layers\.[13]\.", NOTHING, 1, 2),
        (None, {"text__num_hidden_layers": 7}, 5, 2),
        (r"\.layers\.2\.", {"text__num_hidden_layers": None}, 2, 1),
    ],
)
def test_layers_without_a_tensor(lost: str | None, config: dict[str, Any], layer: int, count: int) -> None:
    found = small(lost, config=changed(CONFIG, **config))
    assert told(found) == [("layer-missing", ERROR, f"layer {layer}", count)]
    assert found.findings[0].layer == layer
    assert found.findings[0].examples[0] == f"layer {layer}"


def test_what_is_not_declared_is_not_missed_at_the_end() -> None:
    assert told(small(r"\.layers\.4\.", config=changed(CONFIG, text__num_hidden_layers=None))) == []


@pytest.mark.parametrize("key", ["num_hidden_layers", "n_layer", "num_layers"])
def test_layers_of_any_family(key: str) -> None:
    assert told(plain(range(4), {key: 4})) == []
    assert told(plain([0, 2, 3], {key: 4})) == [("layer-missing", ERROR, "layer 1", 1)]
    assert told(plain(range(3), {"text_config": {key: 30}})) == [("layer-missing", ERROR, "layer 3", 27)]
    assert told(plain(range(3), {key: 4, "text_config": {key: 3}})) == []


def test_layers_in_gguf() -> None:
    assert told(in_gguf(range(4), block_count=4)) == []
    assert told(in_gguf([0, 1, 3], block_count=4)) == [("layer-missing", ERROR, "layer 2", 1)]
    assert told(in_gguf(range(3), block_count=5)) == [("layer-missing", ERROR, "layer 3", 2)]


@pytest.mark.parametrize("count", [-1, True, 2.5, 10**9, "four", "4" * 999])
def test_a_number_of_layers_that_is_none_is_not_believed(count: Any) -> None:
    found = plain(range(4), {"num_hidden_layers": count})
    assert told(found) == [("config-unreadable", WARNING, "num_hidden_layers", 1)]
    assert repr(count)[:40] in found.findings[0].message
    assert told(plain(range(4), {"num_hidden_layers": count, "num_layers": 4})) == []


@pytest.mark.parametrize("count", ["four", 10**9])
def test_a_number_of_layers_that_is_none_in_gguf(count: Any) -> None:
    assert told(in_gguf(range(4), block_count=count)) == [("config-unreadable", WARNING, "glm4moe.block_count", 1)]


@pytest.mark.parametrize("count", [[4], None, {}])
def test_a_number_of_layers_that_is_said_otherwise(count: Any) -> None:
    assert told(plain(range(4), {"num_hidden_layers": count})) == []


def test_layers_behind_the_last() -> None:
    found = plain(range(5), {"num_hidden_layers": 3})
    assert told(found) == [("unexpected-tensor", WARNING, "layer 3", 2)]
    assert (found.findings[0].expected, found.findings[0].actual) == (3, 5)
    assert told(plain(range(5), {"num_hidden_layers": 3, "num_nextn_predict_layers": 2})) == [
        ("mtp-missing", WARNING, "mtp", 1)
    ]
    assert told(plain(range(5), {})) == []
    assert told(plain(range(4), {"num_hidden_layers": 3}, "model.layers.3.eh_proj.weight")) == []
    assert told(in_gguf(range(5), block_count=4)) == [("unexpected-tensor", WARNING, "layer 4", 1)]
    assert told(in_gguf(range(5), block_count=5, nextn_predict_layers=1)) == [("mtp-missing", WARNING, "mtp", 1)]


def test_another_part_of_a_config_may_be_of_the_language_model() -> None:
    said = {"num_hidden_layers": 4, "decoder_cfg": {"num_hidden_layers": 6}}
    assert told(plain(range(6), said)) == []
    assert [code for code, *_ in told(plain(range(7), said))] == ["unexpected-tensor"]


def test_of_two_stacks_one_may_be_longer() -> None:
    decoder = [f"model.decoder.layers.{number}.self_attn.q_proj.weight" for number in range(6)]
    assert told(plain(range(4), {"num_hidden_layers": 4}, *decoder)) == []


@pytest.mark.parametrize(
    ("layers", "embeddings", "codes"),
    [
        (range(4), False, []),
        (range(5), False, ["layer-missing", "component-missing"]),
        (range(1), True, ["layer-missing", "component-missing"]),
        (range(8), False, ["component-missing"]),
    ],
)
def test_a_part_has_neither_embeddings_nor_most_of_the_layers(
    layers: Sequence[int], codes: list[str], *, embeddings: bool
) -> None:
    names = [f"model.layers.{number}.self_attn.q_proj.weight" for number in layers]
    names += ["model.embed_tokens.weight"] * embeddings
    found = opened([TensorSpec(name, "BF16", (8, 8)) for name in names], {"num_hidden_layers": 8, "num_experts": 2})
    assert [item.code for item in found.findings] == codes


@pytest.mark.parametrize(
    ("layers", "config", "codes", "codes_beside_others"),
    [
        ([0, 2], {"num_hidden_layers": 3}, ["layer-missing"], ["layer-missing"]),
        ([0, 2], {}, ["layer-missing"], []),
        ([7], {"num_hidden_layers": 3}, ["layer-missing"], []),
        ([0], {"tie_word_embeddings": False}, ["component-missing"], []),
    ],
)
def test_less_is_said_beside_tensors_that_no_rule_knows(
    layers: Sequence[int], config: dict[str, Any], codes: list[str], codes_beside_others: list[str]
) -> None:
    assert [item.code for item in plain(layers, config).findings] == codes
    beside = plain(layers, config, "what.is.this").findings
    assert [item.code for item in beside if item.code != "unclassified"] == codes_beside_others


# ---- components


@pytest.mark.parametrize(
    ("lost", "component", "severity"),
    [
        (TOWER, "vision_tower", WARNING),
        (r"\.indexer\.", "sparse_indexer", ERROR),
        (r"\.experts\.", "routed_experts", ERROR),
        (r"^language_model\.lm_head\.", "lm_head", ERROR),
        (r"^mm_projector\.", "projector", ERROR),
        (r"embed_tokens", "embeddings", ERROR),
        (r"_res_(norm|proj)", "attention_residual", ERROR),
        (r"routed_expert_", "latent_projection", ERROR),
        (r"moe\.gate\.", "router", ERROR),
        (r"layers\.0\.mlp\.", "dense_mlp", ERROR),
    ],
)
def test_components_without_a_tensor(lost: str, component: str, severity: Severity) -> None:
    found = small(lost)
    assert told(found) == [("component-missing", severity, component, 1)]
    assert found.findings[0].expected == component


def test_components_that_are_lost_together_are_one_cause() -> None:
    found = small(r"\.self_attn\.").findings
    assert [(item.code, item.where, item.count) for item in found] == [("component-missing", "kda_attention", 3)]
    assert found[0].examples == ("kda_attention", "mla_attention", "sparse_indexer")
    both = [(item.code, item.where, item.severity) for item in small(f"{TOWER}|embed_tokens").findings]
    assert both == [("component-missing", "embeddings", ERROR), ("component-missing", "vision_tower", WARNING)]


@pytest.mark.parametrize(
    ("lost", "config"),
    [
        (TOWER, {"vision_config": None}),
        (TOWER, {"vision_config": {}}),
        (TOWER, {"vision_config": 5}),
        (r"^language_model\.lm_head\.", {"text__tie_word_embeddings": True, "tie_word_embeddings": True}),
    ],
)
def test_components_that_are_not_declared_are_not_missed(lost: str, config: dict[str, Any]) -> None:
    without = {key for key in config if key in CONFIG or key.removeprefix("text__") in CONFIG["text_config"]}
    assert told(small(lost, config=changed(CONFIG, **{key: config[key] for key in without}))) == []


@pytest.mark.parametrize(
    ("config", "name", "component", "severity"),
    [
        ({"audio_config": {"layers": 4}}, "audio_tower.layers.0.fc1.weight", "audio_tower", WARNING),
        ({"vision_config": {"layers": 4}}, "vision_tower.patch_embed.proj.weight", "vision_tower", WARNING),
        ({"num_experts": 4}, "model.layers.0.mlp.experts.gate_up_proj", "routed_experts", ERROR),
        ({"tie_word_embeddings": False}, "lm_head.weight", "lm_head", ERROR),
    ],
)
def test_components_of_any_family(config: dict[str, Any], name: str, component: str, severity: Severity) -> None:
    config |= {"num_hidden_layers": 3}
    assert told(plain(range(3), config)) == [("component-missing", severity, component, 1)]
    if component != "routed_experts":
        assert told(plain(range(3), config, name)) == []
    assert told(plain(range(3), {"num_hidden_layers": 3})) == []


def test_experts_are_not_missed_where_all_layers_are_dense() -> None:
    assert told(plain(range(3), {"num_experts": 4, "first_k_dense_replace": 3})) == []
    assert told(plain(range(3), {"num_experts": 1})) == []


@pytest.mark.parametrize("tied", [True, None, "no"])
def test_a_tied_head_is_not_missed(tied: Any) -> None:
    assert told(plain(range(3), {"tie_word_embeddings": tied})) == []


# ---- draft layers

DRAFT = {"num_hidden_layers": 3, "num_nextn_predict_layers": 1, "model_type": "glm4_moe"}


def test_draft_layers() -> None:
    assert told(plain(range(3), DRAFT)) == [("mtp-missing", WARNING, "mtp", 1)]
    assert told(plain(range(3), DRAFT | {"num_nextn_predict_layers": 0})) == []
    assert told(plain(range(4), DRAFT, "model.layers.3.eh_proj.weight", "model.layers.3.enorm.weight")) == []


def test_draft_layers_in_gguf() -> None:
    assert told(in_gguf(range(3), block_count=4, nextn_predict_layers=1)) == [("mtp-missing", WARNING, "mtp", 1)]
    assert told(in_gguf(range(4), "blk.3.nextn.eh_proj.weight", block_count=4, nextn_predict_layers=1)) == []


# ---- families


@pytest.mark.parametrize(
    ("family", "actual"),
    [
        ("deepseek_v3", ["kda_attention"]),
        ("qwen3_moe", ["kda_attention", "mla_attention"]),
        ("LlamaForCausalLM", ["kda_attention", "mla_attention"]),
    ],
)
def test_tensors_of_another_family(family: str, actual: list[str]) -> None:
    found = small(config={"model_type": family, "num_hidden_layers": 5})
    assert told(found) == [("architecture-mismatch", ERROR, "config", 1)]
    assert found.findings[0].actual == actual


@pytest.mark.parametrize("family", ["kimi_k31", "kimi_linear", "a_family_of_next_year", None, ""])
def test_tensors_of_the_family_or_of_one_that_is_not_known(family: str | None) -> None:
    assert "architecture-mismatch" not in [item.code for item in small(config={"model_type": family}).findings]


SMALL_MLA = {"hidden_size": 8, "num_attention_heads": 2, "q_lora_rank": 4, "kv_lora_rank": 4, "qk_nope_head_dim": 4}
SMALL_MLA |= {"qk_rope_head_dim": 4, "v_head_dim": 4, "moe_intermediate_size": 8, "intermediate_size": 8}
SMALL_K2 = SMALL_MLA | {"n_routed_experts": 4, "n_shared_experts": 1, "num_hidden_layers": 5, "vocab_size": 16}
SMALL_K2 |= {"first_k_dense_replace": 1}


def stack(*names: str, layers: int = 5) -> list[TensorSpec]:
    """A model of these tensors in each layer, and what stands around them."""
    inside = [f"model.layers.{layer}.{name}.weight" for layer in range(layers) for name in names]
    around = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    return [TensorSpec(name, "BF16", (4, 8)) for name in [*around, *inside]]


PLAIN = ["input_layernorm", "post_attention_layernorm", *(f"self_attn.{one}_proj" for one in "qkvo")]
EXPERTS = [f"mlp.experts.{number}.{one}_proj" for number in range(4) for one in ("gate", "up", "down")]
DENSE = [f"mlp.{one}_proj" for one in ("gate", "up", "down")]
KDA = [f"self_attn.{one}" for one in ("A_log", "f_a_proj", "f_b_proj", "b_proj", "o_norm", "q_conv1d")]
MLA = [f"self_attn.{one}" for one in ("kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "q_proj")]
K2 = [*globals_of(SMALL_K2), *(one for layer in layers_of(SMALL_K2, "model.layers.") for one in layer)]
LINEAR = [
    *stack(*PLAIN, *KDA, "mlp.gate", *EXPERTS),
    *(TensorSpec(f"model.layers.3.{one}", "F32", (4,)) for one in MLA),
]
OTHERS = {
    "llama": stack(*PLAIN, *DENSE),
    "qwen3_moe": stack(*PLAIN, "self_attn.q_norm", "self_attn.k_norm", "mlp.gate", *EXPERTS),
    "kimi_k2": K2,
    "kimi_linear": LINEAR,
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_model_under_this_name_is_one_error(name: str) -> None:
    assert told(opened(OTHERS[name], CONFIG)) == [("architecture-mismatch", ERROR, "config", 1)]
    assert "architecture-mismatch" not in [item.code for item in opened(OTHERS[name], {"model_type": name}).findings]


@pytest.mark.parametrize("family", ["deepseek_v3", "kimi_k2", "kimi_linear", "qwen3_next", "jamba"])
@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_a_plain_attention_is_not_that_of_a_family_with_another(name: str, family: str) -> None:
    found = opened(OTHERS[name], {"model_type": family, "num_hidden_layers": 5})
    assert told(found) == [("architecture-mismatch", ERROR, "config", 1)]
    assert found.findings[0].actual == ["attention"]


@pytest.mark.parametrize(
    "tensors",
    [
        [one for one in OTHERS["llama"] if "layers.0." not in one.name],
        [one for one in OTHERS["llama"] if "layers.4." in one.name],
        [one for one in OTHERS["llama"] if "self_attn" not in one.name],
        [*OTHERS["llama"], TensorSpec("what.is.this", "BF16", (1,))],
    ],
    ids=["no first layer", "a part", "no attention", "unknown tensors"],
)
def test_of_a_part_or_beside_unknown_tensors_no_family_is_missed(tensors: list[TensorSpec]) -> None:
    found = opened(tensors, {"model_type": "kimi_k31", "num_hidden_layers": 5})
    assert "architecture-mismatch" not in [item.code for item in found.findings]


GGUF_LAYERS = {
    "llama": ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"],
    "deepseek2": ["attn_norm", "attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_k_b", "attn_v_b", "ffn_up_exps"],
    "kimi-linear": ["attn_norm", "ssm_f_a", "ssm_f_b", "ssm_conv1d_q", "attn_q", "ffn_up_exps"],
}


@pytest.mark.parametrize("name", GGUF_LAYERS)
def test_another_model_under_this_name_in_gguf(name: str) -> None:
    names = [f"blk.{layer}.{one}.weight" for layer in range(5) for one in GGUF_LAYERS[name]]
    names += ["token_embd.weight", "output_norm.weight"]
    names += ["blk.3.attn_kv_a_mqa.weight"] if name == "kimi-linear" else []
    tensors = [GgufTensor(one, "F32", (8, 8)) for one in names]
    metadata = {
        "general.architecture": "kimi-k31",
        "kimi-k31.block_count": 5,
        "kimi-k31.attention.indexer.head_count": 2,
    }
    found = open_checkpoint({"x.gguf": hollow_gguf(tensors, metadata)})
    assert told(found) == [("architecture-mismatch", ERROR, "config", 1)]
    own = {"general.architecture": name, f"{name}.block_count": 5}
    codes = [item.code for item in open_checkpoint({"x.gguf": hollow_gguf(tensors, own)}).findings]
    assert "architecture-mismatch" not in codes


# ---- single tensors


@pytest.mark.parametrize(
    ("lost", "count", "example"),
    [
        (r"layers\.1\.self_attn\.A_log", 1, "language_model.model.layers.1.self_attn.A_log"),
        (r"\.A_log", 4, "language_model.model.layers.0.self_attn.A_log"),
        (r"layers\.2\.mlp_res_", 2, "language_model.model.layers.2.mlp_res_norm.weight"),
        (r"blocks\.7\.", 6, "vision_tower.encoder.blocks.7.norm0.weight"),
        (r"experts\.3\.w1", 8, "language_model.model.layers.1.block_sparse_moe.experts.3.w1.weight_packed"),
        (r"model\.norm\.weight", 1, "language_model.model.norm.weight"),
    ],
)
def test_single_tensors_that_are_missing(lost: str, count: int, example: str) -> None:
    found = small(lost)
    assert [(item.code, item.severity, item.count) for item in found.findings] == [("tensor-missing", ERROR, count)]
    names = sorted(one.name for part in kimi_tensors(CONFIG).values() for one in part if re.search(lost, one.name))
    assert example in names
    assert {*found.findings[0].examples} <= {*names}
    assert len(found.findings[0].examples) == min(count, 10)


@pytest.mark.parametrize(
    "name",
    [
        "language_model.model.layers.1.self_attn.q_proj.bias",
        "language_model.model.layers.00.self_attn.A_log",
        "language_model.model.layers.1.block_sparse_moe.shared_experts.w9.weight",
        "language_model.model.layers.1.foo.weight",
        "extra",
    ],
)
def test_single_tensors_that_nobody_knows(name: str) -> None:
    found = small(None, TensorSpec(name, "BF16", (8,)))
    assert told(found) == [("unexpected-tensor", WARNING, name, 1)]


def test_what_loaders_compute_and_some_tools_save_is_expected() -> None:
    name = "language_model.model.layers.1.self_attn.rotary_emb.inv_freq"
    assert told(small(None, TensorSpec(name, "F32", (32,)))) == []


def test_a_lost_scale_is_told_once() -> None:
    assert [item.code for item in small(r"experts\.3\.w1\.weight_scale").findings] == ["scale-missing"]


def test_a_layer_that_is_missing_is_told_once() -> None:
    assert [item.code for item in small(r"\.layers\.2\.|blocks\.3\.").findings] == ["layer-missing", "tensor-missing"]


def test_a_draft_for_another_model_uses_its_embeddings_and_last_norm() -> None:
    names = ["fc", *(f"layers.0.{one}" for one in (*PLAIN, *DENSE))]
    config = {"model_type": "llama", "num_hidden_layers": 1}
    assert told(opened([TensorSpec(f"{one}.weight", "BF16", (4, 8)) for one in names], config)) == []


def test_what_stands_around_the_layers_of_a_known_family() -> None:
    config = {"model_type": "llama", "num_hidden_layers": 5}
    whole = OTHERS["llama"]
    assert told(opened(whole, config)) == []
    bare = [one for one in whole if "embed_tokens" not in one.name]
    assert told(opened(bare, config)) == [("component-missing", ERROR, "embeddings", 1)]
    bare = [one for one in whole if one.name != "model.norm.weight"]
    assert told(opened(bare, config)) == [("tensor-missing", ERROR, "model.norm.weight", 1)]
    for said in ({**config, "model_type": "next_year"}, {"model_type": "llama"}, {**config, "num_hidden_layers": 7}):
        assert "model.norm.weight" not in [item.where for item in opened(bare, said).findings]


# ---- no false alarm


@pytest.mark.parametrize("make", [kimi_k31_pro, kimi_k3])
@pytest.mark.parametrize("size", [(1, 1), (2, 1), (4, 2), (5, 4), (9, 12)])
def test_small_kimis_are_whole(make: Any, size: tuple[int, int]) -> None:
    assert told(open_checkpoint(make(layers=size[0], experts=size[1]))) == []


@pytest.mark.parametrize("name", sorted(BUILDS))
def test_builds_of_others_are_whole(name: str) -> None:
    found = open_checkpoint(BUILDS[name](layers=9, experts=8))
    assert [item.code for item in found.findings] == (["unexpected-tensor"] if name == DPHN_ID else [])


def test_a_build_that_is_laid_out_otherwise_is_not_held_against_the_official_names() -> None:
    files = BUILDS[AINSLEYMARKOV_ID](layers=9, experts=8)
    assert all(not name.startswith("language_model.") for name in (one.name for one in open_checkpoint(files).tensors))


@pytest.mark.parametrize("number", range(1, 9))
def test_a_shard_alone_is_taken_for_what_it_is(kimi: dict[str, HollowFile], number: int) -> None:
    path = f"model-{number:05d}-of-000008.safetensors"
    assert told(open_checkpoint(kimi, files=path)) == []


def test_a_missing_shard_is_told_once(kimi: dict[str, HollowFile]) -> None:
    files = {path: file for path, file in kimi.items() if "00003-of" not in path}
    assert [item.code for item in open_checkpoint(files).findings][:1] == ["shard-missing"]
    assert {item.code for item in open_checkpoint(files).findings} <= {"shard-missing", "index-stale"}


@pytest.mark.parametrize("recipe", ["MXFP4_MOE", "Q2_K", "UD-Q4_K_XL", "UD-Q8_K_XL"])
def test_kimis_in_gguf_are_whole(recipe: Any) -> None:
    files = kimi_gguf(recipe, layers=9, experts=4, tokens=100, parts=3)
    assert {item.code for item in open_checkpoint(files).findings} <= {"label-disagrees"}
    assert told(open_checkpoint({"mmproj-BF16.gguf": kimi_mmproj("BF16")})) == []


@pytest.mark.parametrize("config", [b"", b"[]", b"{}", b'{"model_type": "kimi_k31"}', b'{"text_config": 4}', b"\xff"])
def test_a_config_that_says_nothing_promises_nothing(kimi: dict[str, HollowFile], config: bytes) -> None:
    found = open_checkpoint({**kimi, "config.json": HollowFile(config)})
    assert {item.code for item in found.findings} <= {"config-unreadable"}
