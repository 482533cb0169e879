"""Kimi Linear and what is built on it: Kimi K3 and Kimi K3.1 Pro, in safetensors names.

Layers alternate between Kimi Delta Attention (KDA, arXiv:2510.26692) and multi-head latent attention (MLA); K3.1 adds
a sparse indexer to the latter. Experts of K3 work in a narrower latent space (`routed_expert_*`). Each row can be held
against the `self.` names in the published modeling code.
"""

from __future__ import annotations

from kimi_inspect.components import Component
from kimi_inspect.rules import Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    Rule("layers.{layer}.self_attn.indexer", Component.SPARSE_INDEXER),
    Rule("layers.{layer}.self_attn.A_log|dt_bias|q_conv1d|k_conv1d|v_conv1d", Component.KDA_ATTENTION),
    Rule("layers.{layer}.self_attn.f_a_proj|f_b_proj|b_proj|g_a_proj|g_b_proj|o_norm", Component.KDA_ATTENTION),
    Rule("layers.{layer}.self_attn.q_a_proj|q_a_layernorm|q_b_proj", Component.MLA_ATTENTION),
    Rule("layers.{layer}.self_attn.kv_a_proj_with_mqa|kv_a_layernorm|kv_b_proj", Component.MLA_ATTENTION),
    Rule("layers.{layer}.self_attn", Component.ATTENTION, by_layer=True),
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
    Rule("layers.{layer}.mlp", Component.DENSE_MLP),
    Rule("layers.{layer}.input_layernorm|post_attention_layernorm", Component.NORMS),
    Rule("norm", Component.NORMS),
    Rule("embed_tokens", Component.EMBEDDINGS),
    Rule("lm_head", Component.LM_HEAD),
    Rule("vision_tower.encoder.blocks.{block}", Component.VISION_TOWER),
    Rule("vision_tower", Component.VISION_TOWER),
    Rule("mm_projector", Component.PROJECTOR),
)
"""By name, first match wins."""
