"""The Kimis before K3: K2, K2 Thinking, K2.5, Linear, VL.

What K2.5's three published counts leave to be found is its picture part. 1,026,879,376,368 - 1,026,408,232,448 (the
text, which is K2's) = 471,143,920:

    27 blocks, 1152 wide, MLP 4304 wide, all with biases     411,466,608
    patches of 3 x 14 x 14, with a bias                          678,528
    learned positions, 64 x 64                                 4,718,592
    last layer norm                                                2,304
    projector: norm 1152, 4608 -> 4608, 4608 -> 7168, biases  54,277,888

By dtype: F32 are 60 correction biases of 384 (23,040), INT4 60 x 384 x 3 matrices of 2048 x 7168, BF16 the rest but
for the scales.
"""

from __future__ import annotations

from kimi_inspect.testing.hollow import TensorSpec
from layouts.deepseek import globals_of, layers_of, mla
from layouts.parts import (
    Config,
    Layout,
    Row,
    bf16,
    biased,
    each,
    fp8,
    gated_mlp,
    int4,
    layer_norm,
    numbered,
    split,
    stack,
    vector,
)

__all__ = ["KIMI_K2", "KIMI_K2_THINKING", "KIMI_K25", "KIMI_LINEAR", "KIMI_VL"]

POSITIONS = 64
"""Of the learned positions to a side."""


def _kimi_k2(config: Config) -> dict[str, list[TensorSpec]]:
    layers = layers_of(config, "model.layers.", store=fp8, inv_freq=config["hidden_size"] // 64 // 2)
    embeddings, *rest = globals_of(config)
    layers[0].append(embeddings)
    layers[-1] += rest
    return {f"model-{number}-of-{len(layers)}.safetensors": layer for number, layer in enumerate(layers, 1)}


def _kimi_k2_thinking(config: Config) -> dict[str, list[TensorSpec]]:
    groups = [*layers_of(config, "model.layers.", routed=int4, inv_freq=128), globals_of(config)]
    return dict(zip(numbered(len(groups), form="06d"), groups, strict=True))


def _kimi_k25(config: Config) -> dict[str, list[TensorSpec]]:
    text, vision = config["text_config"], config["vision_config"]
    groups = [
        *layers_of(text, "language_model.model.layers.", routed=int4),
        globals_of(text, "language_model."),
        _projector("mm_projector", ("proj.0", "proj.2"), vision["vt_hidden_size"], text["hidden_size"]),
        _tower(vision["vt_hidden_size"], vision["vt_intermediate_size"], vision["vt_num_hidden_layers"]),
    ]
    return dict(zip(numbered(len(groups), form="06d"), groups, strict=True))


def _kimi_vl(config: Config) -> dict[str, list[TensorSpec]]:
    text, vision = config["text_config"], config["vision_config"]
    layers = layers_of(text, "language_model.model.layers.", inv_freq=text["hidden_size"] // 16 // 2)
    tensors = [
        *globals_of(text, "language_model."),
        *(tensor for layer in layers for tensor in layer),
        *_projector("multi_modal_projector", ("linear_1", "linear_2"), vision["hidden_size"], text["hidden_size"]),
        *_tower(vision["hidden_size"], vision["intermediate_size"], vision["num_hidden_layers"]),
    ]
    return split(tensors, numbered(7))


def _tower(width: int, inner: int, blocks: int) -> list[TensorSpec]:
    prefix = "vision_tower."
    block = [
        *layer_norm("norm0", width),
        *layer_norm("norm1", width),
        *biased("wqkv", 3 * width, width),
        *biased("wo", width, width),
        *biased("mlp.fc0", inner, width),
        *biased("mlp.fc1", width, inner),
    ]
    return [
        TensorSpec(f"{prefix}patch_embed.proj.weight", "BF16", (width, 3, 14, 14)),
        TensorSpec(f"{prefix}patch_embed.proj.bias", "BF16", (width,)),
        TensorSpec(f"{prefix}patch_embed.pos_emb.weight", "BF16", (POSITIONS, POSITIONS, width)),
        *stack(f"{prefix}encoder.blocks.", range(blocks), block),
        *(
            TensorSpec(prefix + name, dtype, shape)
            for name, dtype, shape in layer_norm("encoder.final_layernorm", width)
        ),
    ]


def _projector(name: str, linear: tuple[str, str], width: int, hidden: int) -> list[TensorSpec]:
    merged = 4 * width  # patches are taken two by two
    rows = [*layer_norm("pre_norm", width), *biased(linear[0], merged, merged), *biased(linear[1], hidden, merged)]
    return [TensorSpec(f"{name}.{leaf}", dtype, shape) for leaf, dtype, shape in rows]


def _kda(config: Config) -> list[Row]:
    linear, hidden = config["linear_attn_config"], config["hidden_size"]
    heads, width, taps = linear["num_heads"], linear["head_dim"], linear["short_conv_kernel_size"]
    inner = heads * width
    return [
        *(row for name in "qkv" for row in bf16(f"self_attn.{name}_proj", inner, hidden)),
        *((f"self_attn.{name}_conv1d.weight", "BF16", (inner, 1, taps)) for name in "qkv"),
        ("self_attn.A_log", "F32", (1, 1, heads, 1)),
        *vector("self_attn.dt_bias", inner, "F32"),
        *(row for gate in "fg" for row in bf16(f"self_attn.{gate}_a_proj", width, hidden)),
        *(row for gate in "fg" for row in bf16(f"self_attn.{gate}_b_proj", inner, width)),
        *bf16("self_attn.b_proj", heads, hidden),
        *vector("self_attn.o_norm.weight", width),
        *bf16("self_attn.o_proj", hidden, inner),
    ]


def _kimi_linear(config: Config) -> dict[str, list[TensorSpec]]:
    hidden, width, experts = config["hidden_size"], config["moe_intermediate_size"], config["num_experts"]
    norms = [*vector("input_layernorm.weight", hidden), *vector("post_attention_layernorm.weight", hidden)]
    moe = [
        *bf16("block_sparse_moe.gate", experts, hidden),
        *vector("block_sparse_moe.gate.e_score_correction_bias", experts),
        *gated_mlp("block_sparse_moe.shared_experts", hidden, config["num_shared_experts"] * width, bf16),
        *each("block_sparse_moe.experts.", experts, gated_mlp("", hidden, width, bf16, ("w1", "w3", "w2"))),
    ]
    tensors = globals_of(config)
    for layer in range(config["num_hidden_layers"]):
        is_full = layer + 1 in config["linear_attn_config"]["full_attn_layers"]  # counted from 1
        is_dense = layer < config["first_k_dense_replace"]
        mlp = gated_mlp("mlp", hidden, config["intermediate_size"], bf16) if is_dense else moe
        tensors += stack("model.layers.", [layer], [*norms, *(mla(config, bf16) if is_full else _kda(config)), *mlp])
    return split(tensors, numbered(20))


_INT4 = r"""{"config_groups": {"group_0": {"input_activations": null, "output_activations": null, "targets": ["Linear"],
    "weights": {"actorder": null, "block_structure": null, "dynamic": false, "group_size": 32, "num_bits": 4,
    "observer": "minmax", "observer_kwargs": {}, "strategy": "group", "symmetric": true, "type": "int"}}},
    "format": "pack-quantized", "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
    "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"], "kv_cache_scheme": null, "quant_method": "compressed-tensors",
    "quantization_status": "compressed"}"""
_FP8 = """{"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}"""
_K2 = """"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "bos_token_id": 163584,
    "eos_token_id": 163585, "ep_size": 1, "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 7168,
    "intermediate_size": 18432, "kv_lora_rank": 512, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 1,
    "n_routed_experts": 384, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 64,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 64, "num_nextn_predict_layers": 0,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rope_theta": 50000.0,
    "routed_scaling_factor": 2.827, "scoring_func": "sigmoid", "tie_word_embeddings": false, "topk_group": 1,
    "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 163840"""

KIMI_K2 = Layout(
    f"""{{"model_type": "kimi_k2", "max_position_embeddings": 131072, "rms_norm_eps": 1e-06,
    "torch_dtype": "bfloat16", "quantization_config": {_FP8}, {_K2}}}""",
    _kimi_k2,
)
KIMI_K2_THINKING = Layout(
    f"""{{"model_type": "kimi_k2", "max_position_embeddings": 262144, "rms_norm_eps": 1e-05, "dtype": "bfloat16",
    "quantization_config": {_INT4}, {_K2}}}""",
    _kimi_k2_thinking,
)
KIMI_K25 = Layout(
    f"""{{"architectures": ["KimiK25ForConditionalGeneration"], "bos_token_id": 163584, "dtype": "bfloat16",
    "eos_token_id": 163585, "ignore_index": -100, "media_placeholder_token_id": 163605, "model_type": "kimi_k25",
    "pad_token_id": 163839, "quantization_config": {_INT4}, "text_config": {{"model_type": "kimi_k2",
    "max_position_embeddings": 262144, "rms_norm_eps": 1e-05, "quantization_config": {_INT4}, {_K2}}},
    "tie_word_embeddings": false, "use_unified_vision_chunk": true, "vision_config": {{"init_pos_emb_height": 64,
    "init_pos_emb_time": 4, "init_pos_emb_width": 64, "merge_kernel_size": [2, 2], "merge_type": "sd2_tpool",
    "mm_hidden_size": 1152, "mm_projector_type": "patchmerger", "patch_size": 14, "pos_emb_type": "divided_fixed",
    "projector_hidden_act": "gelu", "projector_ln_eps": 1e-05, "text_hidden_size": 7168,
    "video_attn_type": "spatial_temporal", "vt_hidden_size": 1152, "vt_intermediate_size": 4304,
    "vt_num_attention_heads": 16, "vt_num_hidden_layers": 27}}}}""",
    _kimi_k25,
)
KIMI_VL = Layout(
    """{"architectures": ["KimiVLForConditionalGeneration"], "ignore_index": -100,
    "media_placeholder_token_id": 163605, "model_type": "kimi_vl", "torch_dtype": "bfloat16", "vocab_size": 163840,
    "text_config": {"first_k_dense_replace": 1, "hidden_size": 2048, "intermediate_size": 11264, "kv_lora_rank": 512,
    "max_position_embeddings": 131072, "model_type": "deepseek_v3", "moe_intermediate_size": 1408,
    "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2, "num_attention_heads": 16,
    "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16, "q_lora_rank": null,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "routed_scaling_factor": 2.446, "scoring_func": "sigmoid",
    "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 163840},
    "vision_config": {"hidden_size": 1152, "intermediate_size": 4304, "merge_kernel_size": [2, 2],
    "model_type": "moonvit", "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14}}""",
    _kimi_vl,
)
KIMI_LINEAR = Layout(
    """{"architectures": ["KimiLinearForCausalLM"], "bos_token_id": 163584, "dtype": "bfloat16",
    "eos_token_id": 163586, "first_k_dense_replace": 1, "head_dim": 72, "hidden_act": "silu", "hidden_size": 2304,
    "intermediate_size": 9216, "kv_lora_rank": 512, "linear_attn_config": {"full_attn_layers": [4, 8, 12, 16, 20, 24,
    27], "head_dim": 128, "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26],
    "num_heads": 32, "short_conv_kernel_size": 4}, "mla_use_nope": true, "model_max_length": 1048576,
    "model_type": "kimi_linear", "moe_intermediate_size": 1024, "moe_layer_freq": 1, "moe_renormalize": true,
    "moe_router_activation_func": "sigmoid", "num_attention_heads": 32, "num_expert_group": 1, "num_experts": 256,
    "num_experts_per_token": 8, "num_hidden_layers": 27, "num_key_value_heads": 32, "num_nextn_predict_layers": 0,
    "num_shared_experts": 1, "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "routed_scaling_factor": 2.446, "tie_word_embeddings": false,
    "use_grouped_topk": true, "v_head_dim": 128, "vocab_size": 163840}""",
    _kimi_linear,
)
