"""Kimi K2 and K2 Thinking, which have the architecture of DeepSeek V3: what their configs promise.

Instruct is stored in FP8 blocks, with a scale beside each matrix; Thinking has INT4 experts. Its names are those of
many decoder models, and so are its rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kimi_inspect.declared import declaration_of, ignored_modules
from kimi_inspect.inventory import Template, Unsaid, said

__all__ = ["expected_of_k2"]

LEAVES: dict[str | None, tuple[str, ...]] = {
    None: ("weight",),
    "fp8_block": ("weight", "weight_scale_inv"),
    "int4": ("weight_packed", "weight_scale", "weight_shape"),
}
"""By encoding, what a matrix is stored as."""


def expected_of_k2(config: Mapping[str, Any]) -> Iterator[Template]:
    """Yield the tensors of a Kimi K2 checkpoint, by what its config says and the modeling code makes of it.

    Raises:
        Unsaid: the config leaves something open.
    """
    if said(config, "num_nextn_predict_layers", int):
        raise Unsaid("num_nextn_predict_layers: no such layer of this family has been published")
    declaration = declaration_of(config)
    if declaration.packed and declaration.sole not in LEAVES:
        raise Unsaid("quantization_config: how its format names the tensors of a matrix is not known")
    ignored = ignored_modules(config)

    def matrices(layers: Sequence[int], *names: str, experts: Sequence[int] = ()) -> Iterator[Template]:
        for name in names:
            module = f"model.layers.{{layer}}.{name}"
            example = module.replace("{layer}", "1").replace("{expert}", "0")
            for leaf in LEAVES[None if ignored(example) else declaration.sole]:
                yield Template(f"{module}.{leaf}", layer=layers, expert=experts)

    yield from (Template(f"{name}.weight") for name in ("model.embed_tokens", "model.norm"))
    if not said(config, "tie_word_embeddings", bool):
        yield Template("lm_head.weight")
    layers = range(said(config, "num_hidden_layers", int))
    said(config, "q_lora_rank", int)
    norms = ("input_layernorm", "post_attention_layernorm", "self_attn.q_a_layernorm", "self_attn.kv_a_layernorm")
    yield from (Template(f"model.layers.{{layer}}.{name}.weight", layer=layers) for name in norms)
    attention = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
    yield from matrices(layers, *(f"self_attn.{name}" for name in attention))
    dense_until, frequency = said(config, "first_k_dense_replace", int), said(config, "moe_layer_freq", int)
    moe = [layer for layer in layers if layer >= dense_until and frequency > 0 and layer % frequency == 0]
    dense = [layer for layer in layers if layer not in set(moe)]
    projections = ("gate_proj", "up_proj", "down_proj")
    yield from matrices(dense, *(f"mlp.{name}" for name in projections))
    routers = ("gate.weight", "gate.e_score_correction_bias")
    yield from (Template(f"model.layers.{{layer}}.mlp.{name}", layer=moe) for name in routers)
    if said(config, "n_shared_experts", int):
        yield from matrices(moe, *(f"mlp.shared_experts.{name}" for name in projections))
    experts = range(said(config, "n_routed_experts", int))
    yield from matrices(moe, *(f"mlp.experts.{{expert}}.{name}" for name in projections), experts=experts)
