"""Decoders of other houses: gpt-oss, Qwen3, Qwen3-Next, Llama, Mixtral, GLM-4.5, MiniMax-M2, Gemma 3."""

from __future__ import annotations

from kimi_inspect.testing.hollow import TensorSpec
from layouts.deepseek import globals_of
from layouts.parts import (
    Config,
    Layout,
    Row,
    bf16,
    biased,
    each,
    fp8,
    gated_mlp,
    gqa,
    layer_norm,
    numbered,
    split,
    stack,
    vector,
)

__all__ = [
    "GEMMA_3_4B",
    "GLM_45_AIR",
    "GPT_OSS_20B",
    "GPT_OSS_120B",
    "LLAMA_31_8B",
    "MINIMAX_M27",
    "MIXTRAL_8X7B",
    "QWEN3_30B",
    "QWEN3_NEXT",
]

Shards = dict[str, list[TensorSpec]]

MXFP4_GROUP = 32


def _norms(hidden: int, *names: str) -> list[Row]:
    return [row for name in names for row in vector(f"{name}.weight", hidden)]


def _two_norms(hidden: int) -> list[Row]:
    return _norms(hidden, "input_layernorm", "post_attention_layernorm")


def _head_norms(width: int) -> list[Row]:
    return _norms(width, "self_attn.q_norm", "self_attn.k_norm")


def _mxfp4(name: str, experts: int, rows: int, columns: int) -> list[Row]:
    """Lay out a matrix of all experts: blocks of 16 bytes, each 32 codes; an E8M0 scale, written as U8, to each."""
    groups = columns // MXFP4_GROUP
    return [
        (f"{name}_blocks", "U8", (experts, rows, groups, MXFP4_GROUP // 2)),
        (f"{name}_scales", "U8", (experts, rows, groups)),
        (f"{name}_bias", "BF16", (experts, rows)),
    ]


def _gpt_oss(config: Config) -> Shards:
    hidden, experts, width = config["hidden_size"], config["num_local_experts"], config["intermediate_size"]
    layer = [
        *_two_norms(hidden),
        *gqa(config, biased),
        *vector("self_attn.sinks", config["num_attention_heads"]),
        *biased("mlp.router", experts, hidden),
        *_mxfp4("mlp.experts.gate_up_proj", experts, 2 * width, hidden),
        *_mxfp4("mlp.experts.down_proj", experts, hidden, width),
    ]
    layers = config["num_hidden_layers"]
    count = {24: 3, 36: 15}[layers]  # the files count from 0, and the last one's number stands for their number
    paths = numbered(count, first=0, of=count - 1)
    return split([*stack("model.layers.", range(layers), layer), *globals_of(config)], paths)


def _qwen3(config: Config) -> Shards:
    hidden, experts, width = config["hidden_size"], config["num_experts"], config["moe_intermediate_size"]
    layer = [
        *_two_norms(hidden),
        *gqa(config, bf16),
        *_head_norms(config["head_dim"]),
        *bf16("mlp.gate", experts, hidden),
        *each("mlp.experts.", experts, gated_mlp("", hidden, width, bf16)),
    ]
    layers = stack("model.layers.", range(config["num_hidden_layers"]), layer)
    return split([*globals_of(config), *layers], numbered(16))


def _delta_net(config: Config) -> list[Row]:
    hidden, heads = config["hidden_size"], config["linear_num_value_heads"]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = heads * config["linear_value_head_dim"]
    return [
        *bf16("linear_attn.in_proj_qkvz", 2 * keys + 2 * values, hidden),
        *bf16("linear_attn.in_proj_ba", 2 * heads, hidden),
        ("linear_attn.conv1d.weight", "BF16", (2 * keys + values, 1, config["linear_conv_kernel_dim"])),
        *vector("linear_attn.A_log", heads),
        *vector("linear_attn.dt_bias", heads),
        *vector("linear_attn.norm.weight", config["linear_value_head_dim"]),
        *bf16("linear_attn.out_proj", hidden, values),
    ]


def _qwen3_next(config: Config) -> Shards:
    hidden, experts, width = config["hidden_size"], config["num_experts"], config["moe_intermediate_size"]
    # The output is gated, and the gates are made beside the queries: twice the heads.
    attention = gqa(config, bf16)
    name, dtype, (rows, columns) = attention[0]
    attention = [(name, dtype, (2 * rows, columns)), *attention[1:], *_head_norms(config["head_dim"])]
    moe = [
        *_two_norms(hidden),
        *bf16("mlp.gate", experts, hidden),
        *gated_mlp("mlp.shared_expert", hidden, config["shared_expert_intermediate_size"], bf16),
        *bf16("mlp.shared_expert_gate", 1, hidden),
        *each("mlp.experts.", experts, gated_mlp("", hidden, width, bf16)),
    ]
    draft = [
        *bf16("fc", hidden, 2 * hidden),
        *_norms(hidden, "norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"),
    ]
    tensors = globals_of(config)
    for layer in range(config["num_hidden_layers"]):
        is_full = (layer + 1) % config["full_attention_interval"] == 0
        tensors += stack("model.layers.", [layer], [*(attention if is_full else _delta_net(config)), *moe])
    tensors += stack("mtp.layers.", [0], [*attention, *moe])
    tensors += [TensorSpec(f"mtp.{leaf}", kind, shape) for leaf, kind, shape in draft]
    return split(tensors, numbered(41))


def _llama(config: Config) -> Shards:
    hidden = config["hidden_size"]
    layer = [
        *_two_norms(hidden),
        *gqa(config, bf16),
        *gated_mlp("mlp", hidden, config["intermediate_size"], bf16),
    ]
    layers = stack("model.layers.", range(config["num_hidden_layers"]), layer)
    return split([*globals_of(config), *layers], numbered(4))


def _mixtral(config: Config) -> Shards:
    hidden, experts = config["hidden_size"], config["num_local_experts"]
    expert = gated_mlp("", hidden, config["intermediate_size"], bf16, ("w1", "w3", "w2"))
    layer = [
        *_two_norms(hidden),
        *gqa(config, bf16),
        *bf16("block_sparse_moe.gate", experts, hidden),
        *each("block_sparse_moe.experts.", experts, expert),
    ]
    layers = stack("model.layers.", range(config["num_hidden_layers"]), layer)
    return split([*globals_of(config), *layers], numbered(19))


def _glm(config: Config) -> Shards:
    hidden, vocabulary, width = config["hidden_size"], config["vocab_size"], config["moe_intermediate_size"]
    experts, layers = config["n_routed_experts"], config["num_hidden_layers"]
    common = [*_two_norms(hidden), *gqa(config, biased, last=bf16)]
    dense = [*common, *gated_mlp("mlp", hidden, config["intermediate_size"], bf16)]
    moe = [
        *common,
        *bf16("mlp.gate", experts, hidden),
        *vector("mlp.gate.e_score_correction_bias", experts, "F32"),
        *gated_mlp("mlp.shared_experts", hidden, config["n_shared_experts"] * width, bf16),
        *each("mlp.experts.", experts, gated_mlp("", hidden, width, bf16)),
    ]
    draft = [
        *moe,
        *bf16("embed_tokens", vocabulary, hidden),
        *bf16("eh_proj", hidden, 2 * hidden),
        *_norms(hidden, "enorm", "hnorm", "shared_head.norm"),
        *bf16("shared_head.head", vocabulary, hidden),
    ]
    first = config["first_k_dense_replace"]
    tensors = [
        *globals_of(config),
        *stack("model.layers.", range(first), dense),
        *stack("model.layers.", range(first, layers), moe),
        *stack("model.layers.", [layers], draft),
    ]
    return split(tensors, numbered(47))


def _minimax(config: Config) -> Shards:
    hidden, experts, width = config["hidden_size"], config["num_local_experts"], config["head_dim"]
    expert = gated_mlp("", hidden, config["intermediate_size"], fp8, ("w1", "w3", "w2"))
    layer = [
        *_two_norms(hidden),
        *gqa(config, fp8),
        *_norms(config["num_attention_heads"] * width, "self_attn.q_norm"),
        *_norms(config["num_key_value_heads"] * width, "self_attn.k_norm"),
        ("block_sparse_moe.gate.weight", "F32", (experts, hidden)),
        *vector("block_sparse_moe.e_score_correction_bias", experts, "F32"),
        *each("block_sparse_moe.experts.", experts, expert),
    ]
    layers = stack("model.layers.", range(config["num_hidden_layers"]), layer)
    # 125 files, numbered 0 to 124, and yet named as though they were 130: so they are published.
    return split([*globals_of(config), *layers], numbered(125, first=0, of=130))


def _gemma(config: Config) -> Shards:
    text, vision = config["text_config"], config["vision_config"]
    # What the published config leaves to the defaults of the modeling code.
    text = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208, **text}
    hidden, width, inner = text["hidden_size"], vision["hidden_size"], vision["intermediate_size"]
    layer = [
        *_two_norms(hidden),
        *_norms(hidden, "pre_feedforward_layernorm", "post_feedforward_layernorm"),
        *gqa(text, bf16),
        *_head_norms(text["head_dim"]),
        *gated_mlp("mlp", hidden, text["intermediate_size"], bf16),
    ]
    block = [
        *layer_norm("layer_norm1", width),
        *layer_norm("layer_norm2", width),
        *(row for name in ("q", "k", "v", "out") for row in biased(f"self_attn.{name}_proj", width, width)),
        *biased("mlp.fc1", inner, width),
        *biased("mlp.fc2", width, inner),
    ]
    patch, tower = vision["patch_size"], "vision_tower.vision_model."
    around = [
        ("embeddings.patch_embedding.weight", "BF16", (width, 3, patch, patch)),
        *vector("embeddings.patch_embedding.bias", width),
        *bf16("embeddings.position_embedding", (vision["image_size"] // patch) ** 2, width),
        *layer_norm("post_layernorm", width),
    ]
    tensors = [
        *globals_of(text, "language_model.")[:2],  # the head is the embeddings
        *stack("language_model.model.layers.", range(text["num_hidden_layers"]), layer),
        TensorSpec("multi_modal_projector.mm_input_projection_weight", "BF16", (width, hidden)),
        TensorSpec("multi_modal_projector.mm_soft_emb_norm.weight", "BF16", (width,)),
        *stack(f"{tower}encoder.layers.", range(vision["num_hidden_layers"]), block),
        *(TensorSpec(tower + name, dtype, shape) for name, dtype, shape in around),
    ]
    return split(tensors, numbered(2))


_GPT_OSS = """"architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
    "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
    "initial_context_length": 4096, "intermediate_size": 2880, "max_position_embeddings": 131072,
    "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4, "num_key_value_heads": 8,
    "pad_token_id": 199999, "quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn",
    "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"], "quant_method": "mxfp4"}, "rms_norm_eps": 1e-05,
    "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": false,
    "vocab_size": 201088"""
GPT_OSS_20B = Layout(f"""{{"num_hidden_layers": 24, "num_local_experts": 32, {_GPT_OSS}}}""", _gpt_oss)
GPT_OSS_120B = Layout(f"""{{"num_hidden_layers": 36, "num_local_experts": 128, {_GPT_OSS}}}""", _gpt_oss)
QWEN3_30B = Layout(
    """{"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "decoder_sparse_step": 1,
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144,
    "max_position_embeddings": 40960, "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
    "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 48, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 151936}""",
    _qwen3,
)
QWEN3_NEXT = Layout(
    """{"architectures": ["Qwen3NextForCausalLM"], "attention_bias": false, "decoder_sparse_step": 1,
    "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048,
    "intermediate_size": 5120, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_value_head_dim": 128, "max_position_embeddings": 262144,
    "mlp_only_layers": [], "model_type": "qwen3_next", "moe_intermediate_size": 512, "num_attention_heads": 16,
    "num_experts": 512, "num_experts_per_tok": 10, "num_hidden_layers": 48, "num_key_value_heads": 2,
    "partial_rotary_factor": 0.25, "rope_theta": 10000000, "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 151936}""",
    _qwen3_next,
)
LLAMA_31_8B = Layout(
    """{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 128000,
    "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 128256}""",
    _llama,
)
MIXTRAL_8X7B = Layout(
    """{"architectures": ["MixtralForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32,
    "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
    "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "vocab_size": 32000}""",
    _mixtral,
)
GLM_45_AIR = Layout(
    """{"architectures": ["Glm4MoeForCausalLM"], "attention_bias": true, "first_k_dense_replace": 1,
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 10944,
    "max_position_embeddings": 131072, "model_type": "glm4_moe", "moe_intermediate_size": 1408, "n_group": 1,
    "n_routed_experts": 128, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 96,
    "num_experts_per_tok": 8, "num_hidden_layers": 46, "num_key_value_heads": 8, "num_nextn_predict_layers": 1,
    "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_theta": 1000000, "routed_scaling_factor": 1.0,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_qk_norm": false, "vocab_size": 151552}""",
    _glm,
)
MINIMAX_M27 = Layout(
    """{"architectures": ["MiniMaxM2ForCausalLM"], "dtype": "bfloat16", "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 3072, "intermediate_size": 1536, "max_position_embeddings": 204800, "model_type": "minimax_m2",
    "mtp_transformer_layers": 1, "num_attention_heads": 48, "num_experts_per_tok": 8, "num_hidden_layers": 62,
    "num_key_value_heads": 8, "num_local_experts": 256, "num_mtp_modules": 3, "qk_norm_type": "per_layer",
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "float8_e4m3fn", "quant_method": "fp8",
    "weight_block_size": [128, 128], "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]},
    "rms_norm_eps": 1e-06, "rotary_dim": 64, "scoring_func": "sigmoid", "shared_intermediate_size": 0,
    "tie_word_embeddings": false, "use_mtp": true, "use_qk_norm": true, "use_routing_bias": true,
    "vocab_size": 200064}""",
    _minimax,
)
GEMMA_3_4B = Layout(
    """{"architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999, "eoi_token_index": 256000,
    "image_token_index": 262144, "mm_tokens_per_image": 256, "model_type": "gemma3", "text_config": {
    "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}, "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304,
    "model_type": "siglip_vision_model", "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14,
    "vision_use_head": false}}""",
    _gemma,
)
