"""DeepSeek V3, and the text models that took its architecture over: all of Kimi K2, Kimi-VL."""

from __future__ import annotations

from kimi_inspect.testing.hollow import TensorSpec
from layouts.parts import Config, Layout, Row, Store, bf16, each, fp8, gated_mlp, numbered, split, stack, vector

__all__ = ["DEEPSEEK_V3", "globals_of", "layers_of", "mla"]


def mla(config: Config, store: Store) -> list[Row]:
    """Lay out multi-head latent attention; with no `q_lora_rank` queries come of one matrix."""
    hidden, heads, q_rank = config["hidden_size"], config["num_attention_heads"], config["q_lora_rank"]
    rank, rope, value = config["kv_lora_rank"], config["qk_rope_head_dim"], config["v_head_dim"]
    plain = config["qk_nope_head_dim"]
    queries = store("self_attn.q_proj", heads * (plain + rope), hidden)
    if q_rank:
        queries = [
            *store("self_attn.q_a_proj", q_rank, hidden),
            *vector("self_attn.q_a_layernorm.weight", q_rank),
            *store("self_attn.q_b_proj", heads * (plain + rope), q_rank),
        ]
    return [
        *queries,
        *store("self_attn.kv_a_proj_with_mqa", rank + rope, hidden),
        *vector("self_attn.kv_a_layernorm.weight", rank),
        *store("self_attn.kv_b_proj", heads * (plain + value), rank),
        *store("self_attn.o_proj", hidden, heads * value),
    ]


def layers_of(
    config: Config, prefix: str, *, store: Store = bf16, routed: Store | None = None, inv_freq: int = 0
) -> list[list[TensorSpec]]:
    """Lay out the layers, the drafting ones (`num_nextn_predict_layers`) but for what only these have.

    Args:
        config: of the text model.
        prefix: what stands before the layer's number.
        store: how matrices are stored.
        routed: how those of routed experts are, where it differs.
        inv_freq: elements of the buffer of rotary frequencies, where one was saved with the weights.
    """
    hidden, width = config["hidden_size"], config["moe_intermediate_size"]
    experts, shared = config["n_routed_experts"], config["n_shared_experts"]
    common = [
        *vector("input_layernorm.weight", hidden),
        *vector("post_attention_layernorm.weight", hidden),
        *mla(config, store),
        *(vector("self_attn.rotary_emb.inv_freq", inv_freq) if inv_freq else ()),
    ]
    dense = [*common, *gated_mlp("mlp", hidden, config["intermediate_size"], store)]
    moe = [
        *common,
        *bf16("mlp.gate", experts, hidden),
        *vector("mlp.gate.e_score_correction_bias", experts, "F32"),
        *gated_mlp("mlp.shared_experts", hidden, shared * width, store),
        *each("mlp.experts.", experts, gated_mlp("", hidden, width, routed or store)),
    ]
    count = config["num_hidden_layers"] + (config.get("num_nextn_predict_layers") or 0)
    first = config["first_k_dense_replace"]
    return [stack(prefix, [layer], dense if layer < first else moe) for layer in range(count)]


def globals_of(config: Config, prefix: str = "") -> list[TensorSpec]:
    """Lay out embeddings, last norm and head."""
    shape = (config["vocab_size"], config["hidden_size"])
    return [
        TensorSpec(f"{prefix}model.embed_tokens.weight", "BF16", shape),
        TensorSpec(f"{prefix}model.norm.weight", "BF16", shape[1:]),
        TensorSpec(f"{prefix}lm_head.weight", "BF16", shape),
    ]


def _deepseek_v3(config: Config) -> dict[str, list[TensorSpec]]:
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    # The drafting layer brings copies of embeddings and head, which its loader shares with the model's own.
    draft = [
        *bf16("embed_tokens", vocabulary, hidden),
        *bf16("eh_proj", hidden, 2 * hidden),
        *(row for name in ("enorm", "hnorm", "shared_head.norm") for row in vector(f"{name}.weight", hidden)),
        *bf16("shared_head.head", vocabulary, hidden),
    ]
    layers = layers_of(config, "model.layers.", store=fp8)
    drafting = stack("model.layers.", [config["num_hidden_layers"]], draft)
    tensors = [*globals_of(config), *(tensor for layer in layers for tensor in layer), *drafting]
    return split(tensors, numbered(163, form="06d"))


DEEPSEEK_V3 = Layout(
    """{"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu",
    "hidden_size": 7168, "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "model_type": "deepseek_v3", "moe_intermediate_size": 2048,
    "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true,
    "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
    "weight_block_size": [128, 128]}, "rms_norm_eps": 1e-06, "rope_theta": 10000, "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid", "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 129280}""",
    _deepseek_v3,
)
