"""Shapes that contradict a config, metadata or all siblings: told once, and nothing of what is so on purpose."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from layouts.published import PUBLISHED
from small_models import ARCHITECTURES, small, small_tensors, twin

from kimi_inspect import Checkpoint, Severity, open_checkpoint
from kimi_inspect.testing import (
    GgufTensor,
    HollowFile,
    TensorSpec,
    hollow_checkpoint,
    hollow_gguf,
    hollow_safetensors,
    packed_model,
)

Shape = tuple[int, ...]
SIZES = {"hidden_size": 16, "intermediate_size": 48, "vocab_size": 64, "head_dim": 4}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 6}
LLAMA: dict[str, Any] = {"model_type": "llama", **SIZES}
LAYER: dict[str, Shape] = {
    "input_layernorm": (16,),
    "post_attention_layernorm": (16,),
    "self_attn.q_proj": (16, 16),
    "self_attn.k_proj": (8, 16),
    "self_attn.v_proj": (8, 16),
    "self_attn.o_proj": (16, 16),
    "mlp.gate_proj": (48, 16),
    "mlp.up_proj": (48, 16),
    "mlp.down_proj": (16, 48),
}
AROUND: dict[str, Shape] = {"model.embed_tokens": (64, 16), "model.norm": (16,), "lm_head": (64, 16)}
SHAPES = AROUND | {f"model.layers.{layer}.{name}": shape for layer in range(6) for name, shape in LAYER.items()}
IN_GGUF = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    **{f"self_attn.{one}_proj": f"attn_{one}" for one in "qkv"},
    "self_attn.o_proj": "attn_output",
    **{f"mlp.{one}_proj": f"ffn_{one}" for one in ("gate", "up", "down")},
}
METADATA = {
    "embedding_length": 16,
    "feed_forward_length": 48,
    "vocab_size": 64,
    "block_count": 6,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 4,
}


def opened(config: Mapping[str, Any], **changes: Shape | None) -> Checkpoint:
    """Open a small Llama; shapes of other tensors by name, None for one that is not there."""
    shapes = {name: shape for name, shape in (SHAPES | changes).items() if shape}
    tensors = [TensorSpec(f"{name}.weight", "BF16", shape) for name, shape in shapes.items()]
    written = HollowFile(json.dumps(config).encode())
    return open_checkpoint({"model.safetensors": hollow_safetensors(tensors), "config.json": written})


def in_gguf(metadata: Mapping[str, Any], **changes: Shape) -> Checkpoint:
    tensors = []
    for name, shape in (SHAPES | changes).items():
        *_, layer, one = ["", *name.removeprefix("model.layers.").split(".", 1)]
        place = f"blk.{layer}.{IN_GGUF[one]}" if name.startswith("model.layers.") else IN_GGUF[name]
        tensors.append(GgufTensor(f"{place}.weight", "F32", shape[::-1]))
    said = {
        "general.architecture": "llama",
        **{key if "." in key and "tok" in key else f"llama.{key}": one for key, one in metadata.items()},
    }
    return open_checkpoint({"x.gguf": hollow_gguf(tensors, said)})


def everywhere(name: str, shape: Shape) -> dict[str, Shape]:
    return {f"model.layers.{layer}.{name}": shape for layer in range(6)}


def told(checkpoint: Checkpoint) -> list[tuple[str, Any, Any, int]]:
    found = [item for item in checkpoint.findings if item.severity is not Severity.INFO]
    return [(item.code, item.expected, item.actual, item.count) for item in found]


def test_of_a_sound_one_nothing_is_said() -> None:
    assert told(opened(LLAMA)) == []
    assert told(in_gguf(METADATA)) == []


# ---- what is said against what is stored


@pytest.mark.parametrize(
    ("key", "value", "actual", "count"),
    [
        ("hidden_size", 32, 16, 57),
        ("intermediate_size", 64, 48, 18),
        ("vocab_size", 65, 64, 2),
        ("head_dim", 8, None, None),
        ("num_attention_heads", 8, 16, 12),
        ("num_key_value_heads", 4, 8, 6),
    ],
)
def test_a_config_that_the_shapes_contradict(key: str, value: int, actual: int | None, count: int | None) -> None:
    (found,) = opened(LLAMA | {key: value}).findings
    assert (found.code, found.severity, found.where) == ("shape-differs", Severity.ERROR, "config")
    assert key in found.message
    if actual is not None:
        assert (found.actual, found.count) == (actual, count)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("embedding_length", 32),
        ("feed_forward_length", 64),
        ("vocab_size", 512),
        ("attention.head_count", 8),
        ("tokenizer.ggml.tokens", ["a"] * 65),
        ("tokenizer.ggml.tokens", ["a"] * 2000),
    ],
)
def test_metadata_that_the_shapes_contradict(key: str, value: Any) -> None:
    (found,) = in_gguf(METADATA | {key: value}).findings
    assert (found.code, found.where) == ("shape-differs", "config")
    assert key in found.message


def test_a_config_of_another_model_is_one_finding() -> None:
    (found,) = opened(LLAMA | {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 128}).findings
    assert (found.code, found.expected) == (
        "shape-differs",
        ["hidden_size 32", "vocab_size 128", "intermediate_size 64"],
    )


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("value", [None, "16", [], {}, True, 0, -1, 1.5, 10**9, [16] * 5, [16, "x"]])
def test_what_is_said_oddly_says_nothing(key: str, value: Any) -> None:
    if key != "num_hidden_layers":
        assert told(opened(LLAMA | {key: value})) == []
        assert told(opened({one: said for one, said in LLAMA.items() if one != key})) == []


def test_sizes_of_each_layer() -> None:
    assert told(opened(LLAMA | {"intermediate_size": [48] * 6})) == []
    wide = {f"model.layers.2.mlp.{one}_proj": (96, 16) for one in ("gate", "up")} | {
        "model.layers.2.mlp.down_proj": (16, 96)
    }
    assert told(opened(LLAMA | {"intermediate_size": [48, 48, 96, 48, 48, 48]}, **wide)) == []
    assert told(opened(LLAMA | {"intermediate_size": [48, 96, 48, 48, 48, 48]}, **wide)) == [
        ("shape-differs", 96, 48, 6)
    ]
    assert told(in_gguf(METADATA | {"feed_forward_length": [48, 48, 96, 48, 48, 48]}, **wide)) == []


def test_embeddings_may_be_padded() -> None:
    padded: dict[str, Shape] = {"model.embed_tokens": (128, 16), "lm_head": (128, 16)}
    assert told(opened(LLAMA, **padded)) == []
    assert told(opened(LLAMA, **(padded | {"lm_head": (64, 16)}))) == [("shape-differs", 128, 64, 1)]
    assert told(opened(LLAMA | {"draft_vocab_size": 64}, **(padded | {"lm_head": (32, 16)}))) == []
    assert told(opened(LLAMA, lm_head=None)) == []
    assert told(opened(LLAMA, **(padded | {"lm_head": (128, 8)}))) == [("shape-differs", 16, 8, 1)]


def test_of_other_families_words_may_mean_something_else() -> None:
    """Some have embeddings of another width, some make an MLP of half the size, and say so under names of their own."""
    other = LLAMA | {"model_type": "next_year"}
    assert told(opened(other | {"vocab_size": 65}, lm_head=None)) == []
    assert told(opened(other, **{"model.embed_tokens": (64, 8)})) == []
    assert told(opened(other | {"num_attention_heads": 8})) == []
    assert [code for code, *_ in told(opened(other | {"hidden_size": 32}))] == ["shape-differs"]


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("key", ["hidden_size", "vocab_size", "moe_intermediate_size"])
def test_configs_of_public_models_that_say_more(name: str, key: str) -> None:
    files = small(name)
    config = json.loads(files["config.json"].head)
    level = config.get("text_config", config)
    if type(level.get(key)) is int:
        level[key] += 64
        found = open_checkpoint({**files, "config.json": HollowFile(json.dumps(config).encode())})
        assert [item.code for item in found.findings if item.code != "mtp-missing"] == ["shape-differs"]


def test_packed_values_are_counted_and_not_their_containers() -> None:
    for encoding in ("gptq-4", "awq-4", "mlx-affine4-64", "compressed-int4-32", "bnb-nf4"):
        files = packed_model(encoding).files
        config = json.loads(files["config.json"].read()) | {"moe_intermediate_size": 512}
        found = open_checkpoint({**files, "config.json": HollowFile(json.dumps(config).encode())})
        expected = [] if encoding == "bnb-nf4" else [("shape-differs", 512, 256)]
        assert [item[:3] for item in told(found)] == expected


# ---- one layer against all others


@pytest.mark.parametrize("name", LAYER)
@pytest.mark.parametrize("layer", [0, 2, 5])
def test_a_layer_of_another_shape(name: str, layer: int) -> None:
    shape = tuple(side + 8 for side in LAYER[name])
    for found in (
        opened(LLAMA, **{f"model.layers.{layer}.{name}": shape}),
        in_gguf(METADATA, **{f"model.layers.{layer}.{name}": shape}),
    ):
        assert told(found) == [("shape-differs", LAYER[name], shape, 1)]
        assert found.findings[0].layer == layer


def test_layers_that_differ_on_purpose() -> None:
    other = {"model_type": "next_year", "num_hidden_layers": 6}
    wide: dict[str, Shape] = {"model.layers.2.mlp.up_proj": (96, 16)}
    assert [code for code, *_ in told(opened(other, **wide))] == ["shape-differs"]
    assert told(opened(other, **{"model.layers.0.mlp.up_proj": (96, 16)})) == []
    assert told(opened(other, **wide, **{"model.layers.3.mlp.up_proj": (96, 16)})) == []
    assert told(opened(other | {"num_kv_heads": [1, 1, 2, 1, 1, 1]}, **wide)) == []
    assert told(opened(other | {"block_configs": [{}] * 6}, **wide)) == []
    assert told(opened(other | {"num_kv_shared_layers": 2}, **wide)) == []
    kinds = ["sliding", "sliding", "full", "sliding", "sliding", "sliding"]
    assert told(opened(other | {"layer_types": kinds}, **wide)) == []


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name in ARCHITECTURES])
def test_public_models_and_what_is_made_of_them_are_sound(name: str) -> None:
    for files in (small(name), twin(name)):
        assert "shape-differs" not in [item.code for item in open_checkpoint(files).findings]
    assert small_tensors(name)


def test_a_total_of_an_index_that_follows_is_not_told_again() -> None:
    def files(tensors: dict[str, Shape]) -> dict[str, HollowFile]:
        specs = [TensorSpec(f"{name}.weight", "BF16", shape) for name, shape in tensors.items()]
        return hollow_checkpoint({"model-00001-of-00001.safetensors": specs}, LLAMA)

    odd = files(SHAPES | {"model.layers.2.mlp.up_proj": (96, 16)})
    index = {path: file for path, file in files(SHAPES).items() if path.endswith(".index.json")}
    assert index
    assert told(open_checkpoint(odd | index, check_index=True)) == [("shape-differs", (48, 16), (96, 16), 1)]
