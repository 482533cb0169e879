"""One small model of dense and expert layers in every encoding that tools write, with the parameters that it has.

Its shapes are like Qwen3-MoE's. However it is packed it stays the same model, so the number of its parameters, which is
added up from those shapes alone, has to come out of each file again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from kimi_inspect.testing.gguf import GGML_TYPES, GgufTensor, hollow_gguf
from kimi_inspect.testing.hollow import HollowFile, TensorSpec, hollow_checkpoint, in_data_order
from kimi_inspect.testing.packed_layouts import LAYOUTS, Kind, Layout, Style
from kimi_inspect.testing.packings import plain

__all__ = ["ENCODINGS", "PackedModel", "packed_model"]

# What no tool writes as weights: whole numbers, and blocks of activations.
_GGUF_TYPES = [name for name in GGML_TYPES if not re.fullmatch(r"I\d+|F64|Q8_1|Q8_K", name)]

ENCODINGS: tuple[str, ...] = (*LAYOUTS, *(f"gguf-{name.lower()}" for name in _GGUF_TYPES))
"""All that `packed_model` takes."""

_EXPERT = "{E}"
# Patterns in the paths of modules, and what each style of names has in their place.
_NAMES: Mapping[Style | Literal["gguf"], tuple[tuple[str, str], ...]] = {
    "transformers": (),
    "mlx": ((r"mlp\.experts\.{E}", "mlp.switch_mlp"),),
    "gpt-oss": ((r"mlp\.experts\.{E}", "mlp.experts"), (r"mlp\.gate$", "mlp.router")),
    "deepseek-v4": (
        (r"^model\.", ""),
        ("^embed_tokens", "embed"),
        ("^lm_head", "head"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn", "attn"),
        (r"\b([qkvo])_proj", r"w\1"),
        ("mlp", "ffn"),
        ("gate_proj", "w1"),
        ("down_proj", "w2"),
        ("up_proj", "w3"),
    ),
    "gguf": (
        (r"^model\.layers", "blk"),
        (r"^model\.embed_tokens", "token_embd"),
        ("^lm_head", "output"),
        (r"^model\.norm", "output_norm"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        (r"self_attn\.o_proj", "attn_output"),
        (r"self_attn\.([qkv])_proj", r"attn_\1"),
        (r"self_attn\.([qk]_norm)", r"attn_\1"),
        (r"mlp\.experts\.{E}\.(gate|up|down)_proj", r"ffn_\1_exps"),
        (r"mlp\.(gate|up|down)_proj", r"ffn_\1"),
        (r"mlp\.gate", "ffn_gate_inp"),
    ),
}
_MODELS: Mapping[Style, tuple[str, str, str]] = {
    "transformers": ("Qwen3MoeForCausalLM", "qwen3_moe", "num_experts"),
    "mlx": ("Qwen3MoeForCausalLM", "qwen3_moe", "num_experts"),
    "gpt-oss": ("GptOssForCausalLM", "gpt_oss", "num_local_experts"),
    "deepseek-v4": ("DeepseekV4ForCausalLM", "deepseek_v4", "n_routed_experts"),
}


@dataclass(frozen=True)
class PackedModel:
    """A model in one encoding.

    `parameters` are those of all matrices and norms, whatever the encoding; `packed_parameters` those of the matrices
    that it packs (in GGUF: that have its type).
    """

    files: dict[str, HollowFile]
    parameters: int
    packed_parameters: int


@dataclass(frozen=True)
class _Sizes:
    """The extents of a model. Columns are multiples of 256, so that every group and block divides them."""

    layers: int
    experts: int
    hidden: int
    dense: int
    expert: int
    heads: int
    kv_heads: int
    head: int
    tokens: int

    @classmethod
    def of(cls, seed: int, layers: int, experts: int) -> _Sizes:
        """Choose by the digits of `seed`: any number gives a model, 0 to 143 all that there are."""

        def choose(*choices: int) -> int:
            nonlocal seed
            seed, digit = divmod(seed, len(choices))
            return choices[digit]

        heads, kv_heads, head = (4, choose(1, 2), 64) if choose(0, 1) else (4, choose(2, 4), 128)
        return cls(
            layers=layers,
            experts=experts,
            hidden=choose(256, 512, 768),
            dense=choose(512, 1280),
            expert=choose(256, 512),
            heads=heads,
            kv_heads=kv_heads,
            head=head,
            tokens=choose(320, 1000, 2048),
        )


@dataclass(frozen=True)
class _Part:
    """A matrix or norm: the path of its module in the names of transformers, and its logical shape.

    The matrices of a layer's experts are one part; `{E}` in the path stands for the number of each.
    """

    kind: Kind
    module: str
    shape: tuple[int, ...]

    @property
    def parameters(self) -> int:
        return prod(self.shape)

    def called(self, style: Style | Literal["gguf"]) -> _Part:
        module = self.module
        for pattern, name in _NAMES[style]:
            module = re.sub(pattern, name, module)
        return _Part(self.kind, module, self.shape)


def packed_model(encoding: str, *, layers: int = 2, experts: int = 4, seed: int = 0) -> PackedModel:
    """Return the model of these sizes in one of `ENCODINGS`; the first of its layers is dense.

    `seed` chooses widths, heads and the number of tokens. The same arguments but for the encoding give the same model.
    """
    if encoding not in ENCODINGS:
        raise ValueError(f"encoding: expected one of ENCODINGS, got {encoding!r}")
    sizes = _Sizes.of(seed, layers, experts)
    if encoding not in LAYOUTS:
        return _in_gguf(sizes, encoding.removeprefix("gguf-").upper())
    return _in_safetensors(sizes, LAYOUTS[encoding])


def _in_safetensors(sizes: _Sizes, layout: Layout) -> PackedModel:
    sections = list(_sections(sizes, fused=layout.style == "gpt-oss"))
    shards = {}
    for number, section in enumerate(sections, 1):
        tensors = [tensor for part in section for tensor in _stored(layout, part.called(layout.style))]
        shards[f"model-{number:05d}-of-{len(sections):05d}.safetensors"] = in_data_order(tensors)
    metadata = {"format": "mlx" if layout.style == "mlx" else "pt"}
    files = hollow_checkpoint(shards, _config(sizes, layout), metadata=metadata)
    if layout.file:
        name, content = layout.file
        files[name] = HollowFile(json.dumps(content, indent=2).encode())
    parts = [part for section in sections for part in section]
    packed = sum(part.parameters for part in parts if part.kind in layout.packs)
    return PackedModel(files, sum(part.parameters for part in parts), packed)


def _in_gguf(sizes: _Sizes, name: str) -> PackedModel:
    """Norms and routers stay F32; where the matrices are packed, embedding and head are Q8_0."""
    kept: dict[Kind, str] = {"norm": "F32", "router": "F32"}
    if GGML_TYPES[name][1] > 1:
        kept |= {"embedding": "Q8_0", "head": "Q8_0"}
    parts = [part for section in _sections(sizes, fused=False) for part in section]
    tensors = []
    for part in parts:
        kind, stem = kept.get(part.kind, name), part.called("gguf").module
        tensors.append(GgufTensor(f"{stem}.weight", kind, part.shape[::-1]))
        if kind == "NVFP4":
            # A second scale, one for each matrix.
            tensors.append(GgufTensor(f"{stem}.scale", "F32", part.shape[:-2] or (1,)))
    files = {f"model-{name}.gguf": hollow_gguf(tensors, _metadata(sizes))}
    packed = sum(part.parameters for part in parts if kept.get(part.kind, name) == name)
    return PackedModel(files, sum(part.parameters for part in parts), packed)


def _stored(layout: Layout, part: _Part) -> Iterator[TensorSpec]:
    pack = layout.packs.get(part.kind, plain(layout.dtype))
    if _EXPERT not in part.module:
        yield from pack(part.module, part.shape)
        return
    for expert in range(part.shape[0]):
        yield from pack(part.module.replace(_EXPERT, str(expert)), part.shape[1:])


def _sections(sizes: _Sizes, *, fused: bool) -> Iterator[list[_Part]]:
    """Yield what goes into each shard: what no layer has, then a layer each."""
    yield [
        _Part("embedding", "model.embed_tokens", (sizes.tokens, sizes.hidden)),
        _Part("norm", "model.norm", (sizes.hidden,)),
        _Part("head", "lm_head", (sizes.tokens, sizes.hidden)),
    ]
    for layer in range(sizes.layers):
        parts = [*_attention(sizes), *(_experts(sizes, fused=fused) if layer else _dense(sizes))]
        yield [_Part(part.kind, f"model.layers.{layer}.{part.module}", part.shape) for part in parts]


def _attention(sizes: _Sizes) -> Iterator[_Part]:
    queries, keys = sizes.heads * sizes.head, sizes.kv_heads * sizes.head
    yield _Part("attention", "self_attn.q_proj", (queries, sizes.hidden))
    yield _Part("attention", "self_attn.k_proj", (keys, sizes.hidden))
    yield _Part("attention", "self_attn.v_proj", (keys, sizes.hidden))
    yield _Part("attention", "self_attn.o_proj", (sizes.hidden, queries))
    yield _Part("norm", "self_attn.q_norm", (sizes.head,))
    yield _Part("norm", "self_attn.k_norm", (sizes.head,))
    yield _Part("norm", "input_layernorm", (sizes.hidden,))
    yield _Part("norm", "post_attention_layernorm", (sizes.hidden,))


def _dense(sizes: _Sizes) -> Iterator[_Part]:
    yield _Part("mlp", "mlp.gate_proj", (sizes.dense, sizes.hidden))
    yield _Part("mlp", "mlp.up_proj", (sizes.dense, sizes.hidden))
    yield _Part("mlp", "mlp.down_proj", (sizes.hidden, sizes.dense))


def _experts(sizes: _Sizes, *, fused: bool) -> Iterator[_Part]:
    """Yield the router and the experts; `fused` has gate and up in one matrix, their rows in turn."""
    yield _Part("router", "mlp.gate", (sizes.experts, sizes.hidden))
    if fused:
        yield _Part("experts", "mlp.experts.{E}.gate_up_proj", (sizes.experts, 2 * sizes.expert, sizes.hidden))
    else:
        yield _Part("experts", "mlp.experts.{E}.gate_proj", (sizes.experts, sizes.expert, sizes.hidden))
        yield _Part("experts", "mlp.experts.{E}.up_proj", (sizes.experts, sizes.expert, sizes.hidden))
    yield _Part("experts", "mlp.experts.{E}.down_proj", (sizes.experts, sizes.hidden, sizes.expert))


def _config(sizes: _Sizes, layout: Layout) -> dict[str, Any]:
    architecture, model_type, experts = _MODELS[layout.style]
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": model_type,
        "dtype": {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}[layout.dtype],
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.dense,
        "moe_intermediate_size": sizes.expert,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head,
        "vocab_size": sizes.tokens,
        experts: sizes.experts,
        "num_experts_per_tok": min(2, sizes.experts),
        "mlp_only_layers": [0],
        "decoder_sparse_step": 1,
        "tie_word_embeddings": False,
        **layout.config,
    }
    if layout.router:
        routers = {f"model.layers.{layer}.mlp.gate": dict(layout.router) for layer in range(1, sizes.layers)}
        # Written twice: loaders of either library look for their own key.
        config["quantization"] = config["quantization_config"] = config["quantization"] | routers
    return config


def _metadata(sizes: _Sizes) -> dict[str, Any]:
    numbers = {
        "block_count": sizes.layers,
        "embedding_length": sizes.hidden,
        "feed_forward_length": sizes.dense,
        "expert_feed_forward_length": sizes.expert,
        "expert_count": sizes.experts,
        "expert_used_count": min(2, sizes.experts),
        "attention.head_count": sizes.heads,
        "attention.head_count_kv": sizes.kv_heads,
        "attention.key_length": sizes.head,
        "attention.value_length": sizes.head,
    }
    return {
        "general.architecture": "qwen3moe",
        "general.type": "model",
        **{f"qwen3moe.{key}": value for key, value in numbers.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [f"token{number}" for number in range(sizes.tokens)],
    }
