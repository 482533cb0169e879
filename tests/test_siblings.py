"""What one layer lacks and all its siblings have, where no config tells the names: found, and no false alarm."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest

from kimi_inspect import Checkpoint, open_checkpoint
from kimi_inspect.siblings import find_missing_siblings
from kimi_inspect.testing import (
    GgufTensor,
    HollowFile,
    TensorSpec,
    hollow_gguf,
    hollow_safetensors,
    kimi_gguf_tensors,
)

ATTENTION = [f"self_attn.{one}_proj.weight" for one in "qkvo"]
NORMS = ["input_layernorm.weight", "post_attention_layernorm.weight"]
LAYER = [*NORMS, *ATTENTION, "mlp.up_proj.weight", "mlp.down_proj.weight"]
MOE = [*NORMS, *ATTENTION, "mlp.gate.weight", *(f"mlp.experts.{n}.up_proj.weight" for n in range(2))]
KNOWN = {"model_type": "llama"}
SIX = range(6)


def opened(names: Iterable[str], config: Mapping[str, Any] | None = None) -> Checkpoint:
    tensors = [TensorSpec(name, "BF16", (2, 8)) for name in ["model.embed_tokens.weight", "model.norm.weight", *names]]
    written = HollowFile(json.dumps(config or {}).encode())
    return open_checkpoint({"model.safetensors": hollow_safetensors(tensors), "config.json": written})


def layers(
    parts: Mapping[int, Collection[str]] | Collection[str], *, lost: Collection[str] = (), stack: str = "model.layers"
) -> list[str]:
    """Name the tensors of six layers, all alike or each with its own, but for those that are lost."""
    by_layer = parts if isinstance(parts, Mapping) else dict.fromkeys(SIX, parts)
    names = [f"{stack}.{layer}.{name}" for layer, names in by_layer.items() for name in names]
    assert {f"{stack}.{name}" for name in lost} <= {*names}
    return [name for name in names if name.removeprefix(f"{stack}.") not in lost]


def missing(checkpoint: Checkpoint) -> list[str]:
    found = [item for item in checkpoint.findings if item.code != "unclassified"]
    assert all(item.code == "tensor-missing" and item.count == len(item.examples) for item in found)
    return [name for item in found for name in item.examples]


@pytest.mark.parametrize("name", LAYER)
def test_a_layer_without_a_tensor_that_all_others_have(name: str) -> None:
    found = opened(layers(LAYER, lost=[f"2.{name}"]))
    assert missing(found) == [f"model.layers.2.{name}"]
    assert found.findings[0].layer == 2
    assert missing(opened(layers(LAYER))) == []


def test_several_tensors_and_layers() -> None:
    lost = ["1.mlp.up_proj.weight", "3.self_attn.q_proj.weight", "3.self_attn.k_proj.weight"]
    assert set(missing(opened(layers(LAYER, lost=lost)))) == {f"model.layers.{name}" for name in lost}


@pytest.mark.parametrize("layer", [0, 5])
def test_the_first_and_the_last_layer_are_judged_in_families_that_are_known(layer: int) -> None:
    """ModernBERT's first layer has no norm before its attention, by design."""
    names = layers(LAYER, lost=[f"{layer}.input_layernorm.weight"])
    assert missing(opened(names)) == []
    assert missing(opened(names, {"model_type": "modernbert"})) == []
    assert missing(opened(names, KNOWN)) == [f"model.layers.{layer}.input_layernorm.weight"]


@pytest.mark.parametrize("lost", [["mlp.gate.weight"], NORMS])
def test_a_component_that_a_layer_lacks_outright(lost: list[str]) -> None:
    found = opened(layers(MOE, lost=[f"2.{name}" for name in lost]))
    assert missing(found) == [f"model.layers.2.{name}" for name in lost]


@pytest.mark.parametrize("lost", [ATTENTION, ["mlp.up_proj.weight", "mlp.down_proj.weight"]])
def test_layers_may_be_pruned_of_their_attention_or_mlp(lost: list[str]) -> None:
    assert missing(opened(layers(LAYER, lost=[f"2.{name}" for name in lost]))) == []


def test_too_few_siblings_say_nothing() -> None:
    parts = dict.fromkeys(range(3), LAYER)
    assert missing(opened(layers(parts, lost=["1.mlp.up_proj.weight"]), KNOWN)) == []


FUSED = [*NORMS, "self_attn.qkv_proj.weight", "self_attn.o_proj.weight", *LAYER[-2:]]
CROSS = [*NORMS, "cross_attn.q_proj.weight", "cross_attn.k_proj.weight", *LAYER[-2:]]
DENSE_NORM = [*MOE, "pre_feedforward_layernorm_2.weight"]


@pytest.mark.parametrize(
    "odd",
    [
        {2: FUSED},
        {2: CROSS},
        {0: LAYER, **dict.fromkeys(range(1, 6), DENSE_NORM)},
        {2: LAYER, **dict.fromkeys([0, 1, 3, 4, 5], DENSE_NORM)},
        {2: [*LAYER[:-2], "mlp.down_proj.weight"], 4: [*LAYER[:-2], "mlp.down_proj.weight"]},
        {2: [*LAYER, "extra.weight"]},
        {2: [*NORMS, *(f"{name}_packed" for name in LAYER[2:]), *(f"{name}_scale" for name in LAYER[2:])]},
        {layer: [*LAYER, "self_attn.rotary_emb.inv_freq"] for layer in (0, 1, 3, 4, 5)},
        {layer: [*LAYER, "self_attn.k_scale"] for layer in (0, 1, 3, 4, 5)},
    ],
    ids=["fused", "cross", "dense first", "dense", "two", "more", "packed", "buffers", "scales"],
)
def test_a_layer_of_another_make_lacks_nothing(odd: dict[int, list[str]]) -> None:
    parts = {**dict.fromkeys(SIX, LAYER), **odd}
    tensors = [name.replace("weight_packed", "qweight").replace("weight_scale", "scales") for name in layers(parts)]
    assert missing(opened(tensors, KNOWN)) == []


def test_a_bias_beside_packed_weights_alone_is_the_packers() -> None:
    packed = [*LAYER, "self_attn.q_proj.bias", "self_attn.q_proj.g_idx"]
    parts = {layer: LAYER if layer == 2 else packed for layer in SIX}
    assert missing(opened(layers(parts), KNOWN)) == []
    parts = {layer: LAYER if layer == 2 else [*LAYER, "self_attn.q_proj.bias"] for layer in SIX}
    assert missing(opened(layers(parts), KNOWN)) == ["model.layers.2.self_attn.q_proj.bias"]


PLAIN = [*LAYER, "mlp.gate_proj.weight"]
GGUF_PLAIN = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"]


@pytest.mark.parametrize("name", [name for name in PLAIN if "gate" not in name])
def test_what_belongs_to_others_and_no_layer_has(name: str) -> None:
    found = opened(layers([one for one in PLAIN if one != name]), KNOWN)
    assert missing(found) == [f"model.layers.{layer}.{name}" for layer in SIX]
    assert [item.code for item in found.findings] == ["tensor-missing"]
    assert missing(opened(layers(PLAIN), KNOWN)) == []


def test_of_a_family_that_is_not_known_nothing_belongs_together() -> None:
    for said in ({}, {"model_type": "next_year"}, {**KNOWN, "num_kv_shared_layers": 2}):
        assert missing(opened(layers([one for one in PLAIN if "v_proj" not in one]), said)) == []


def test_a_draft_may_lack_the_norm_of_its_first_layer() -> None:
    assert missing(opened(layers({0: [*ATTENTION, *PLAIN[6:], "post_attention_layernorm.weight"]}), KNOWN)) == []


@pytest.mark.parametrize("lost", [one for one in GGUF_PLAIN if one not in ("ffn_gate", "attn_q")])
def test_what_belongs_to_others_in_gguf(lost: str) -> None:
    names = [f"blk.{layer}.{one}.weight" for layer in SIX for one in GGUF_PLAIN if one != lost]
    tensors = [GgufTensor(one, "F32", (8, 8)) for one in ("token_embd.weight", "output_norm.weight", *names)]
    found = open_checkpoint({"x.gguf": hollow_gguf(tensors, {"general.architecture": "llama"})})
    assert missing(found) == [f"blk.{layer}.{lost}.weight" for layer in SIX]


def test_two_stacks_are_told_apart() -> None:
    """BART's decoder has layers of the same numbers, and more in each."""
    encoder = layers(LAYER, stack="model.encoder.layers")
    decoder = layers([*LAYER, "encoder_attn.q_proj.weight"], stack="model.decoder.layers")
    assert missing(opened([*encoder, *decoder])) == []
    lost = layers(LAYER, lost=["2.self_attn.q_proj.weight"], stack="model.encoder.layers")
    assert missing(opened([*lost, *decoder])) == ["model.encoder.layers.2.self_attn.q_proj.weight"]


def test_a_layer_that_is_missing_is_told_once() -> None:
    parts = {layer: LAYER for layer in SIX if layer != 2}
    assert [item.code for item in opened(layers(parts), KNOWN).findings] == ["layer-missing"]


@pytest.mark.parametrize(
    "name", ["blk.2.attn_norm.weight", "blk.1.ssm_a", "blk.2.ssm_dt.bias", "blk.3.ffn_norm.weight"]
)
def test_in_gguf_where_the_number_of_tensors_was_made_to_fit(name: str) -> None:
    tensors = [one for one in kimi_gguf_tensors("MXFP4_MOE", layers=9, experts=2) if one.name != name]
    found = open_checkpoint({"x.gguf": hollow_gguf(tensors, {"general.architecture": "kimi-k31"})})
    assert missing(found) == [name]


def test_nvfp4_in_gguf_may_leave_a_layer_in_another_type() -> None:
    tensors = [GgufTensor(f"blk.{layer}.attn_q.weight", "F32", (8, 8)) for layer in SIX]
    tensors += [GgufTensor(f"blk.{layer}.attn_q.scale", "F32", (1,)) for layer in SIX if layer != 2]
    assert missing(open_checkpoint({"x.gguf": hollow_gguf(tensors, {"general.architecture": "llama"})})) == []


@pytest.mark.parametrize(("names", "count"), [(300, 100), (8, 20_000), (20_000, 8)])
def test_strange_stacks_cost_no_time(names: int, count: int) -> None:
    words = ["".join(chr(97 + int(digit)) for digit in str(number)) for number in range(names)]
    tensors = [f"model.layers.{layer}.self_attn.{word}.weight" for layer in range(count) for word in words]
    table = opened(tensors).tensors
    began = time.process_time()
    assert list(find_missing_siblings(table, edges=True)) == []
    assert time.process_time() - began < 5
