"""Kimi Linear and what is built on it: Kimi K3 and Kimi K3.1 Pro, in safetensors names.

Layers alternate between Kimi Delta Attention (KDA, arXiv:2510.26692) and multi-head latent attention (MLA); K3.1 adds
a sparse indexer to the latter. Experts of K3 work in a narrower latent space (`routed_expert_*`). Each row can be held
against the `self.` names in the published modeling code. No row takes more than these: what other models keep in the
same modules, the rules for decoders in general say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from kimi_inspect.components import Component
from kimi_inspect.declared import declaration_of
from kimi_inspect.inventory import Template, Unsaid, said
from kimi_inspect.rules import Rule

__all__ = ["RULES", "expected_of_k3", "expected_of_linear"]

KINDS = (Component.KDA_ATTENTION, Component.MLA_ATTENTION)

RULES: tuple[Rule, ...] = (
    Rule("layers.{layer}.self_attn.indexer", Component.SPARSE_INDEXER),
    Rule("layers.{layer}.self_attn.A_log|dt_bias|q_conv1d|k_conv1d|v_conv1d", Component.KDA_ATTENTION),
    Rule("layers.{layer}.self_attn.f_a_proj|f_b_proj|b_proj|g_a_proj|g_b_proj|o_norm", Component.KDA_ATTENTION),
    Rule("layers.{layer}.self_attn.q_a_proj|q_a_layernorm|q_b_proj", Component.MLA_ATTENTION),
    Rule("layers.{layer}.self_attn.kv_a_proj_with_mqa|kv_a_layernorm|kv_b_proj", Component.MLA_ATTENTION),
    Rule("layers.{layer}.self_attn.q_proj|k_proj|v_proj|o_proj|g_proj", Component.ATTENTION, kinds=KINDS),
    Rule("layers.{layer}.self_attention_res_norm|self_attention_res_proj", Component.ATTENTION_RESIDUAL),
    Rule("layers.{layer}.mlp_res_norm|mlp_res_proj", Component.ATTENTION_RESIDUAL),
    Rule("output_attn_res_norm|output_attn_res_proj", Component.ATTENTION_RESIDUAL),
    Rule("layers.{layer}.block_sparse_moe.experts.{expert}", Component.ROUTED_EXPERTS),
    Rule("layers.{layer}.block_sparse_moe.shared_experts", Component.SHARED_EXPERTS),
    Rule("layers.{layer}.block_sparse_moe.gate", Component.ROUTER),
    Rule(
        "layers.{layer}.block_sparse_moe.routed_expert_down_proj|routed_expert_up_proj|routed_expert_norm",
        Component.LATENT_PROJECTION,
    ),
    Rule("layers.{layer}.mlp.gate_proj|up_proj|down_proj", Component.DENSE_MLP),
    Rule("layers.{layer}.input_layernorm|post_attention_layernorm", Component.NORMS),
    Rule("norm", Component.NORMS),
    Rule("embed_tokens", Component.EMBEDDINGS),
    Rule("lm_head", Component.LM_HEAD),
    Rule("vision_tower.encoder.blocks.{block}", Component.VISION_TOWER),
    Rule("vision_tower.patch_embed", Component.VISION_TOWER),
    Rule("vision_tower.encoder.final_layernorm", Component.VISION_TOWER),
    Rule("mm_projector", Component.PROJECTOR),
)
"""By name, first match wins."""


@frozen(kw_only=True)
class _Form:
    """How a member of the family spells and gates: what its modeling code fixes and its config does not say.

    Attributes:
        prefix: what stands before `model.`.
        gate: projections of KDA's output gate.
        mla_gate: full attention has an output gate too.
        correction: routers have a correction bias.
    """

    prefix: str
    gate: tuple[str, ...]
    mla_gate: bool
    correction: bool


def expected_of_k3(config: Mapping[str, Any]) -> Iterator[Template]:
    """Yield the tensors of a Kimi K3 or K3.1 checkpoint, by what its config says and the modeling code makes of it.

    Raises:
        Unsaid: the config leaves something open.
    """
    text, vision = said(config, "text_config", dict), said(config, "vision_config", dict)
    full_rank = said(said(text, "linear_attn_config", dict), "use_full_rank_gate", bool)
    form = _Form(
        prefix="language_model.",
        gate=("g",) if full_rank else ("g_a", "g_b"),
        mla_gate=said(text, "mla_use_output_gate", bool),
        correction=said(text, "topk_method", str) == "noaux_tc",
    )
    said(text, "q_lora_rank", int)
    yield from _language_model(text, form, packed=declaration_of(config).sole)
    yield from _vision(vision)


def expected_of_linear(config: Mapping[str, Any]) -> Iterator[Template]:
    """Yield the tensors of a Kimi-Linear checkpoint, likewise.

    Raises:
        Unsaid: the config leaves something open.
    """
    form = _Form(prefix="", gate=("g_a", "g_b"), mla_gate=False, correction=True)
    yield from _language_model(config, form, packed=declaration_of(config).sole)


def _language_model(text: Mapping[str, Any], form: _Form, *, packed: str | None) -> Iterator[Template]:
    if text.get("num_nextn_predict_layers"):
        raise Unsaid("num_nextn_predict_layers: no such layer of this family has been published")
    layers = range(said(text, "num_hidden_layers", int))
    for template in (*_globals(text), *_attention(text, layers, form), *_mlp(text, layers, form, packed)):
        yield evolve(template, text=form.prefix + template.text)


def _globals(text: Mapping[str, Any]) -> Iterator[Template]:
    yield Template("model.embed_tokens.weight")
    yield Template("model.norm.weight")
    if not said(text, "tie_word_embeddings", bool):
        yield Template("lm_head.weight")
    if text.get("attn_res_block_size") is not None:
        yield Template("model.output_attn_res_norm.weight")
        yield Template("model.output_attn_res_proj.weight")


def _of_layers(layers: Sequence[int], *names: str) -> Iterator[Template]:
    for name in names:
        yield Template(f"model.layers.{{layer}}.{name}", layer=layers)


def _attention(text: Mapping[str, Any], layers: Sequence[int], form: _Form) -> Iterator[Template]:
    linear = said(text, "linear_attn_config", dict)
    # The config counts layers from 1, the names from 0.
    kda = [number - 1 for number in said(linear, "kda_layers", list)]
    full = [number - 1 for number in said(linear, "full_attn_layers", list)]
    if sorted([*kda, *full]) != list(layers):
        raise Unsaid("kda_layers and full_attn_layers: each layer must be in one of them")
    yield from _of_layers(layers, "self_attn.o_proj.weight")
    yield from _of_layers(kda, *(f"self_attn.{name}_proj.weight" for name in ("q", "k", "v", "f_a", "f_b", "b")))
    yield from _of_layers(kda, *(f"self_attn.{name}_conv1d.weight" for name in "qkv"))
    yield from _of_layers(kda, "self_attn.A_log", "self_attn.dt_bias", "self_attn.o_norm.weight")
    yield from _of_layers(kda, *(f"self_attn.{name}_proj.weight" for name in form.gate))
    if "q_lora_rank" not in text:
        raise Unsaid("q_lora_rank")
    queries = ("q_proj",) if text["q_lora_rank"] is None else ("q_a_proj", "q_a_layernorm", "q_b_proj")
    latent = ("kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj")
    yield from _of_layers(full, *(f"self_attn.{name}.weight" for name in (*queries, *latent)))
    if form.mla_gate:
        yield from _of_layers(full, "self_attn.g_proj.weight")
    if text.get("dsa_config") is not None:
        weights = ("wq_b.weight", "wk.weight", "k_norm.weight", "k_norm.bias", "weights_proj.weight")
        yield from _of_layers(full, *(f"self_attn.indexer.{name}" for name in weights))


def _mlp(text: Mapping[str, Any], layers: Sequence[int], form: _Form, packed: str | None) -> Iterator[Template]:
    dense_until, frequency = said(text, "first_k_dense_replace", int), said(text, "moe_layer_freq", int)
    moe = [layer for layer in layers if layer >= dense_until and frequency > 0 and layer % frequency == 0]
    dense = [layer for layer in layers if layer not in set(moe)]
    yield from _of_layers(layers, "input_layernorm.weight", "post_attention_layernorm.weight")
    if text.get("attn_res_block_size") is not None:
        residuals = ("self_attention_res", "mlp_res")
        yield from _of_layers(layers, *(f"{name}_{part}.weight" for name in residuals for part in ("norm", "proj")))
    projections = [f"{name}_proj.weight" for name in ("gate", "up", "down")]
    yield from _of_layers(dense, *(f"mlp.{name}" for name in projections))
    yield from _of_layers(moe, "block_sparse_moe.gate.weight")
    if form.correction:
        yield from _of_layers(moe, "block_sparse_moe.gate.e_score_correction_bias")
    if said(text, "num_shared_experts", int):
        yield from _of_layers(moe, *(f"block_sparse_moe.shared_experts.{name}" for name in projections))
    if text.get("routed_expert_hidden_size") is not None:
        parts = (
            ("down_proj", "up_proj", "norm") if said(text, "latent_moe_use_norm", bool) else ("down_proj", "up_proj")
        )
        yield from _of_layers(moe, *(f"block_sparse_moe.routed_expert_{part}.weight" for part in parts))
    experts = range(said(text, "num_experts", int))
    if packed != "mxfp4" and (packed or text.get("quantization_config")):
        raise Unsaid("quantization_config: how its format names the tensors of an expert is not known")
    leaves = ("weight_packed", "weight_scale") if packed else ("weight",)
    for name in (f"{matrix}.{leaf}" for matrix in ("w1", "w2", "w3") for leaf in leaves):
        text_of = f"model.layers.{{layer}}.block_sparse_moe.experts.{{expert}}.{name}"
        yield Template(text_of, layer=moe, expert=experts)


def _vision(vision: Mapping[str, Any]) -> Iterator[Template]:
    if any(said(vision, key, bool) for key in ("attn_bias", "linear_bias", "patch_embed_proj_bias")):
        raise Unsaid("biases in the vision tower: how they are named has not been published")
    if said(vision, "mm_projector_type", str) != "patchmergerv2":
        raise Unsaid("mm_projector_type")
    yield from (Template(f"mm_projector.{name}.weight") for name in ("proj.0", "proj.2", "post_norm"))
    yield Template("vision_tower.patch_embed.proj.weight")
    yield Template("vision_tower.patch_embed.pos_emb.weight")
    yield Template("vision_tower.encoder.final_layernorm.weight")
    blocks = range(said(vision, "vt_num_hidden_layers", int))
    for name in ("norm0", "norm1", "wqkv", "wo", "mlp.fc0", "mlp.fc1"):
        yield Template(f"vision_tower.encoder.blocks.{{block}}.{name}.weight", block=blocks)
