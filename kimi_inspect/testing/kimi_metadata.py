"""The key-values of the GGUF builds of Kimi K3.1 Pro: hyperparameters by the config, a tokenizer, a chat template.

Their lengths are about the real ones. Strings of the tokenizer stand for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from struct import pack
from typing import Any

from kimi_inspect.testing.gguf import Encoded, Typed, encoded

__all__ = ["TOKENS", "mmproj_metadata", "text_metadata"]

TOKENS = 163840
_CONTROL_TOKENS = 256

# Words come in blocks of 256 that are alike but for their number, which stands in the mark's place.
_BLOCK = 256
_MARK = "###"
_STRING, _ARRAY = 8, 9

_TEMPLATE = "{% for message in messages %}<|im_{{ message.role }}|>{{ message.content }}<|im_end|>{% endfor %}\n"


def text_metadata(
    config: Mapping[str, Any],
    tokens: int,
    *,
    parameters: int,
    file_type: int,
    template_bytes: int,
    architecture: str = "kimi-k31",
) -> dict[str, Any]:
    """Return the key-values of a text model of this text config, with a tokenizer of `tokens` tokens."""
    return {
        "general.architecture": architecture,
        "general.type": "model",
        "general.name": "Kimi K3.1 Pro",
        "general.size_label": _size_label(parameters),
        "general.alignment": 32,
        "general.quantization_version": 2,
        "general.file_type": file_type,
        **{f"{architecture}.{key}": value for key, value in _hyperparameters(config)},
        **_tokenizer(tokens),
        "tokenizer.chat_template": (_TEMPLATE * (template_bytes // len(_TEMPLATE) + 1))[:template_bytes],
    }


def _size_label(parameters: int) -> str:
    """Round to two digits at least, as llama.cpp's converter does."""
    power, unit = next(step for step in ((12, "T"), (9, "B"), (6, "M"), (0, "")) if parameters > 10 ** step[0])
    value = parameters / 10**power
    return f"{value:.{1 if value < 9.5 else 0}f}{unit}"


def mmproj_metadata(file_type: int, blocks: int) -> dict[str, Any]:
    """Return the key-values of a vision tower of that many blocks with its projector."""
    vision = {
        "image_size": 896,
        "patch_size": 14,
        "embedding_length": 1024,
        "feed_forward_length": 4096,
        "projection_dim": 7168,
        "block_count": blocks,
        "attention.head_count": 12,
        "attention.layer_norm_epsilon": 1e-5,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "projector.scale_factor": 2,
    }
    return {
        "general.architecture": "clip",
        "general.type": "mmproj",
        "general.name": "Kimi K3.1 Pro",
        "general.basename": "Kimi-K3.1-Pro",
        "general.size_label": "447M",
        "general.license": "other",
        "general.base_model.count": 1,
        "general.base_model.0.name": "Kimi K3.1 Pro",
        "general.base_model.0.organization": "Moonshotai",
        "general.base_model.0.repo_url": "https://huggingface.co/moonshotai/Kimi-K3.1-Pro",
        "general.quantization_version": 2,
        "general.file_type": file_type,
        "clip.has_vision_encoder": True,
        # That of K3, whose tower it is: no other is known.
        "clip.projector_type": "kimik3",
        "clip.use_gelu": True,
        **{f"clip.vision.{key}": value for key, value in vision.items()},
    }


def _hyperparameters(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "block_count", config["num_hidden_layers"]
    yield "context_length", config["max_position_embeddings"]
    yield "embedding_length", config["hidden_size"]
    yield "feed_forward_length", config["intermediate_size"]
    yield "vocab_size", config["vocab_size"]
    yield from ((f"attention.{key}", value) for key, value in _attention(config))
    linear = config["linear_attn_config"]
    yield "rope.dimension_count", config["qk_rope_head_dim"]
    yield "ssm.conv_kernel", linear["short_conv_kernel_size"]
    yield "kda.head_dim", linear["head_dim"]
    yield "kda.gate_lower_bound", linear["gate_lower_bound"]
    yield "expert_count", config["num_experts"]
    yield "expert_used_count", config["num_experts_per_token"]
    yield "expert_shared_count", config["num_shared_experts"]
    yield "expert_feed_forward_length", config["moe_intermediate_size"]
    yield "expert_latent_length", config["routed_expert_hidden_size"]
    yield "expert_weights_scale", config["routed_scaling_factor"]
    yield "expert_weights_norm", config["moe_renormalize"]
    yield "expert_gating_func", 2  # the sigmoid
    yield "leading_dense_block_count", config["first_k_dense_replace"]
    yield "activation.situ_beta", config["activation_situ_beta"]
    yield "activation.situ_linear_beta", config["activation_situ_linear_beta"]
    yield "attn_res.block_size", config["attn_res_block_size"]


def _attention(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    full, latent = config["linear_attn_config"]["full_attn_layers"], config["kv_lora_rank"]
    yield "head_count", config["num_attention_heads"]
    # One number a layer: the latent is one head, and a layer of linear attention has none.
    yield "head_count_kv", Typed("i32", [int(layer + 1 in full) for layer in range(config["num_hidden_layers"])])
    yield "layer_norm_rms_epsilon", config["rms_norm_eps"]
    yield "q_lora_rank", config["q_lora_rank"]
    yield "kv_lora_rank", latent
    yield "key_length", latent + config["qk_rope_head_dim"]
    yield "value_length", latent
    yield "key_length_mla", config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    yield "value_length_mla", config["v_head_dim"]
    yield "indexer.head_count", config["dsa_config"]["index_n_heads"]
    yield "indexer.key_length", config["dsa_config"]["index_head_dim"]
    yield "indexer.top_k", config["dsa_config"]["index_topk"]


@cache
def _tokenizer(tokens: int) -> Mapping[str, Encoded]:
    """Encode the tokenizer once for all sets: words, of which all but the first block have a merge, then controls."""
    controls = min(_CONTROL_TOKENS, tokens)
    words = tokens - controls
    reserved = [_string(f"<|reserved_token_{number}|>") for number in range(words, tokens)]
    values = {
        "model": "gpt2",
        "pre": "kimi-k2",
        "tokens": _strings(tokens, [*_blocks(0, words, ""), *reserved]),
        "token_type": Typed("i32", [1] * words + [3] * controls),
        "merges": _strings(max(0, words - _BLOCK), _blocks(_BLOCK, words, " ")),
        "bos_token_id": words,
        "eos_token_id": words + min(2, controls - 1),
        "padding_token_id": tokens - 1,
        "add_bos_token": False,
    }
    return {f"tokenizer.ggml.{key}": encoded(value) for key, value in values.items()}


def _blocks(begin: int, end: int, gap: str) -> Iterator[bytes]:
    """Yield the words [`begin`, `end`) with `gap` in their middle, a block at a time; a block begins at `begin`."""
    whole = _block(_BLOCK, gap)
    for first in range(begin, end, _BLOCK):
        block = whole if end - first >= _BLOCK else _block(end - first, gap)
        yield block.replace(_MARK.encode(), b"%03x" % (first // _BLOCK))


def _block(count: int, gap: str) -> bytes:
    return b"".join(_string(f"Ġ{_MARK}{gap}{unit:02x}{'n' * (unit % 10 % 9)}") for unit in range(count))


def _string(text: str) -> bytes:
    raw = text.encode()
    return pack("<Q", len(raw)) + raw


def _strings(count: int, pieces: Iterable[bytes]) -> Encoded:
    return Encoded(_ARRAY, pack("<IQ", _STRING, count) + b"".join(pieces))
