"""The layout of the Kimi K3.1 Pro and Kimi K3 checkpoints: every tensor, its shape, its shard and its offset.

Both are 96 shards: one a decoder layer, then the globals, the projector and the vision tower. K3.1 Pro is K3 plus a
sparse-attention indexer in the full-attention layers. Shapes follow the public checkpoints; the totals that the tests
add up (1,561,293,160,568 bytes of K3.1 Pro shards, 1,560,936,091,448 of K3) are the published ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Any, Literal

from kimi_inspect.testing.hollow import (
    HollowFile,
    TensorSpec,
    header_json,
    hollow_from_header,
    index_json,
    index_lines,
    small_files,
)

__all__ = [
    "EXPERTS",
    "KIMI_K3_ID",
    "KIMI_K31_PRO_COMMIT",
    "KIMI_K31_PRO_ID",
    "LAYERS",
    "Change",
    "Model",
    "kimi_config",
    "kimi_k3",
    "kimi_k31_pro",
    "kimi_repository",
    "kimi_tensors",
]

KIMI_K31_PRO_ID = "moonshotai/Kimi-K3.1-Pro"
KIMI_K31_PRO_COMMIT = "d9e99b0792a5e93b78ea9bea62a68167e36ddd9e"
KIMI_K3_ID = "moonshotai/Kimi-K3"
LAYERS = 93
EXPERTS = 896

Model = Literal["kimi-k3.1-pro", "kimi-k3"]
Change = Callable[[list[TensorSpec]], list[TensorSpec]]
"""Takes the tensors of a shard and returns what is to be in it."""

_CONFIG_FILES: Mapping[Model, str] = {"kimi-k3.1-pro": "kimi_k31_config.json", "kimi-k3": "kimi_k3_config.json"}

# A row is a tensor's name below its prefix, its dtype and its shape. `{E}` stands for the expert, -1 for their number.
_Row = tuple[str, str, tuple[int, ...]]
_EXPERT_COUNT = -1

_EVERY_LAYER: tuple[_Row, ...] = (
    ("input_layernorm.weight", "BF16", (7168,)),
    ("post_attention_layernorm.weight", "BF16", (7168,)),
    ("self_attention_res_norm.weight", "BF16", (7168,)),
    ("self_attention_res_proj.weight", "BF16", (1, 7168)),
    ("mlp_res_norm.weight", "BF16", (7168,)),
    ("mlp_res_proj.weight", "BF16", (1, 7168)),
    ("self_attn.g_proj.weight", "BF16", (12288, 7168)),
    ("self_attn.o_proj.weight", "BF16", (7168, 12288)),
)
_KDA: tuple[_Row, ...] = (
    ("self_attn.q_proj.weight", "BF16", (12288, 7168)),
    ("self_attn.k_proj.weight", "BF16", (12288, 7168)),
    ("self_attn.v_proj.weight", "BF16", (12288, 7168)),
    ("self_attn.q_conv1d.weight", "F32", (12288, 1, 4)),
    ("self_attn.k_conv1d.weight", "F32", (12288, 1, 4)),
    ("self_attn.v_conv1d.weight", "F32", (12288, 1, 4)),
    ("self_attn.f_a_proj.weight", "BF16", (128, 7168)),
    ("self_attn.f_b_proj.weight", "BF16", (12288, 128)),
    ("self_attn.b_proj.weight", "BF16", (96, 7168)),
    # 96 heads; the rest of the 128 is padding with zeros.
    ("self_attn.A_log", "F32", (128,)),
    ("self_attn.dt_bias", "F32", (12288,)),
    ("self_attn.o_norm.weight", "F32", (128,)),
)
_FULL_ATTENTION: tuple[_Row, ...] = (
    ("self_attn.q_a_proj.weight", "BF16", (1536, 7168)),
    ("self_attn.q_a_layernorm.weight", "BF16", (1536,)),
    ("self_attn.q_b_proj.weight", "BF16", (18432, 1536)),
    ("self_attn.kv_a_proj_with_mqa.weight", "BF16", (576, 7168)),
    ("self_attn.kv_a_layernorm.weight", "BF16", (512,)),
    ("self_attn.kv_b_proj.weight", "BF16", (24576, 512)),
)
_INDEXER: tuple[_Row, ...] = (
    ("self_attn.indexer.wq_b.weight", "BF16", (4096, 1536)),
    ("self_attn.indexer.wk.weight", "BF16", (128, 7168)),
    ("self_attn.indexer.k_norm.weight", "BF16", (128,)),
    ("self_attn.indexer.k_norm.bias", "BF16", (128,)),
    ("self_attn.indexer.weights_proj.weight", "BF16", (32, 7168)),
)
_DENSE_MLP: tuple[_Row, ...] = (
    ("mlp.gate_proj.weight", "BF16", (33792, 7168)),
    ("mlp.up_proj.weight", "BF16", (33792, 7168)),
    ("mlp.down_proj.weight", "BF16", (7168, 33792)),
)
_MOE: tuple[_Row, ...] = (
    ("block_sparse_moe.gate.weight", "BF16", (_EXPERT_COUNT, 7168)),
    ("block_sparse_moe.gate.e_score_correction_bias", "F32", (_EXPERT_COUNT,)),
    ("block_sparse_moe.routed_expert_down_proj.weight", "BF16", (3584, 7168)),
    ("block_sparse_moe.routed_expert_up_proj.weight", "BF16", (7168, 3584)),
    ("block_sparse_moe.routed_expert_norm.weight", "BF16", (3584,)),
    ("block_sparse_moe.shared_experts.gate_proj.weight", "BF16", (6144, 7168)),
    ("block_sparse_moe.shared_experts.up_proj.weight", "BF16", (6144, 7168)),
    ("block_sparse_moe.shared_experts.down_proj.weight", "BF16", (7168, 6144)),
)
# MXFP4: two 4-bit codes a byte, one E8M0 scale byte for 32 of them; w1 is the gate, w3 up, w2 down.
_EXPERT: tuple[_Row, ...] = (
    ("block_sparse_moe.experts.{E}.w1.weight_packed", "U8", (3072, 1792)),
    ("block_sparse_moe.experts.{E}.w1.weight_scale", "U8", (3072, 112)),
    ("block_sparse_moe.experts.{E}.w2.weight_packed", "U8", (3584, 1536)),
    ("block_sparse_moe.experts.{E}.w2.weight_scale", "U8", (3584, 96)),
    ("block_sparse_moe.experts.{E}.w3.weight_packed", "U8", (3072, 1792)),
    ("block_sparse_moe.experts.{E}.w3.weight_scale", "U8", (3072, 112)),
)
_GLOBALS: tuple[_Row, ...] = (
    ("language_model.lm_head.weight", "BF16", (163840, 7168)),
    ("language_model.model.embed_tokens.weight", "BF16", (163840, 7168)),
    ("language_model.model.norm.weight", "BF16", (7168,)),
    ("language_model.model.output_attn_res_norm.weight", "BF16", (7168,)),
    ("language_model.model.output_attn_res_proj.weight", "BF16", (1, 7168)),
)
_PROJECTOR: tuple[_Row, ...] = (
    ("mm_projector.proj.0.weight", "BF16", (4096, 4096)),
    ("mm_projector.proj.2.weight", "BF16", (7168, 4096)),
    ("mm_projector.post_norm.weight", "BF16", (7168,)),
)
_TOWER: tuple[_Row, ...] = (
    ("vision_tower.patch_embed.proj.weight", "BF16", (1024, 3, 14, 14)),
    ("vision_tower.patch_embed.pos_emb.weight", "BF16", (64, 64, 1024)),
    ("vision_tower.encoder.final_layernorm.weight", "BF16", (1024,)),
)
_TOWER_BLOCK: tuple[_Row, ...] = (
    ("norm0.weight", "BF16", (1024,)),
    ("norm1.weight", "BF16", (1024,)),
    ("wqkv.weight", "BF16", (4608, 1024)),
    ("wo.weight", "BF16", (1024, 1536)),
    ("mlp.fc0.weight", "BF16", (4096, 1024)),
    ("mlp.fc1.weight", "BF16", (1024, 4096)),
)

# The standard writer puts wide dtypes first, then sorts by name.
_DATA_ORDER = ("F32", "BF16", "U8")
# Stand for the layer's number and the shard's path in the text shared by all layers of a kind; neither is in any name.
_LAYER_MARK = "#"
_SHARD_MARK = "@"


def _unchanged(tensors: list[TensorSpec]) -> list[TensorSpec]:
    return tensors


def kimi_config(model: Model, *, layers: int = LAYERS, experts: int = EXPERTS) -> dict[str, Any]:
    """Return the config.json of `model`, cut to the first `layers` layers and to `experts` experts a layer.

    The list of layers by kind of attention (1-based, as in the file), the number of layers and of experts all agree.
    """
    if not (1 <= layers <= LAYERS and 1 <= experts <= EXPERTS):
        raise ValueError(f"expected 1 to {LAYERS} layers and 1 to {EXPERTS} experts, got {layers} and {experts}")
    text = resources.files("kimi_inspect.testing").joinpath("data", _CONFIG_FILES[model]).read_text("utf-8")
    config: dict[str, Any] = json.loads(text)
    language = config["text_config"]
    kinds = language["linear_attn_config"]
    for key in ("full_attn_layers", "kda_layers"):
        kinds[key] = [layer for layer in kinds[key] if layer <= layers]
    language["num_hidden_layers"] = layers
    language["num_experts"] = experts
    language["num_experts_per_token"] = min(language["num_experts_per_token"], experts)
    return config


def kimi_tensors(config: Mapping[str, Any]) -> dict[str, list[TensorSpec]]:
    """Return the tensors of every shard, by its path, in the order of their data.

    This makes each tensor one by one; edit the result and hand it to `hollow_checkpoint` for a Kimi that is not whole.
    """
    layers = config["text_config"]["num_hidden_layers"]
    groups = [_layer_tensors(config, layer, str(layer)) for layer in range(layers)]
    groups += _other_shards(config)
    return dict(zip(_shard_paths(len(groups)), groups, strict=True))


def kimi_k31_pro(*, layers: int = LAYERS, experts: int = EXPERTS) -> dict[str, HollowFile]:
    """Return the whole Kimi K3.1 Pro repository, path to file; or a small one of fewer layers and experts."""
    return kimi_repository(kimi_config("kimi-k3.1-pro", layers=layers, experts=experts))


def kimi_k3(*, layers: int = LAYERS, experts: int = EXPERTS) -> dict[str, HollowFile]:
    """Return the whole Kimi K3 repository, path to file; or a small one of fewer layers and experts."""
    return kimi_repository(kimi_config("kimi-k3", layers=layers, experts=experts), values="kimi-k3")


def kimi_repository(
    config: Mapping[str, Any], change: Change = _unchanged, *, values: str = ""
) -> dict[str, HollowFile]:
    """Return the repository of this config, path to file, with each shard's tensors as `change` leaves them.

    Each kind of layer is built once and its copies numbered: the order by name is the same under any number. `change`
    sees a mark where the number of the layer will stand. `values` is as for `HollowFile`.
    """
    shards = list(_numbered_kinds(config, change))
    paths = _shard_paths(len(shards))

    def index() -> bytes:
        numbered = zip(paths, shards, strict=True)
        total = sum(kind.header[1] for kind, _ in shards)
        return index_json((kind.index_lines(layer, path) for path, (kind, layer) in numbered), total)

    files = small_files(config)
    files |= {path: kind.shard(layer, values) for path, (kind, layer) in zip(paths, shards, strict=True)}
    files["model.safetensors.index.json"] = HollowFile(index)
    return files


@dataclass(frozen=True)
class _Kind:
    """What the shards of one kind of layer have in common: all but the layer's number."""

    tensors: tuple[TensorSpec, ...]

    @cached_property
    def header(self) -> tuple[bytes, int]:
        return header_json(self.tensors)

    @cached_property
    def lines(self) -> bytes:
        return index_lines((tensor.name for tensor in self.tensors), _SHARD_MARK)

    def shard(self, layer: str, values: str) -> HollowFile:
        header, payload = self.header
        return hollow_from_header(header.replace(_LAYER_MARK.encode(), layer.encode()), payload, values=values)

    def index_lines(self, layer: str, path: str) -> bytes:
        return self.lines.replace(_LAYER_MARK.encode(), layer.encode()).replace(_SHARD_MARK.encode(), path.encode())


def _numbered_kinds(config: Mapping[str, Any], change: Change) -> Iterator[tuple[_Kind, str]]:
    kinds: dict[tuple[bool, bool], _Kind] = {}
    for layer in range(config["text_config"]["num_hidden_layers"]):
        key = (_is_full_attention(config, layer), _is_dense(config, layer))
        if key not in kinds:
            kinds[key] = _Kind(tuple(change(_layer_tensors(config, layer, _LAYER_MARK))))
        yield kinds[key], str(layer)
    for tensors in _other_shards(config):
        yield _Kind(tuple(change(tensors))), ""


def _layer_tensors(config: Mapping[str, Any], layer: int, number: str) -> list[TensorSpec]:
    rows = [*_EVERY_LAYER]
    if _is_full_attention(config, layer):
        rows += _FULL_ATTENTION
        rows += _INDEXER if "dsa_config" in config["text_config"] else ()
    else:
        rows += _KDA
    rows += _DENSE_MLP if _is_dense(config, layer) else _moe_rows(config["text_config"]["num_experts"])
    return _in_data_order(rows, f"language_model.model.layers.{number}.")


def _moe_rows(experts: int) -> Iterator[_Row]:
    for name, dtype, shape in _MOE:
        yield name, dtype, tuple(experts if extent == _EXPERT_COUNT else extent for extent in shape)
    for expert in map(str, range(experts)):
        for name, dtype, shape in _EXPERT:
            yield name.replace("{E}", expert), dtype, shape


def _other_shards(config: Mapping[str, Any]) -> list[list[TensorSpec]]:
    blocks = range(config["vision_config"]["vt_num_hidden_layers"])
    numbered = [(f"vision_tower.encoder.blocks.{b}.{name}", d, s) for b in blocks for name, d, s in _TOWER_BLOCK]
    return [_in_data_order(rows) for rows in (_GLOBALS, _PROJECTOR, [*_TOWER, *numbered])]


def _in_data_order(rows: Iterable[_Row], prefix: str = "") -> list[TensorSpec]:
    ordered = sorted(rows, key=lambda row: (_DATA_ORDER.index(row[1]), row[0]))
    return [TensorSpec(prefix + name, dtype, shape) for name, dtype, shape in ordered]


def _is_full_attention(config: Mapping[str, Any], layer: int) -> bool:
    return layer + 1 in config["text_config"]["linear_attn_config"]["full_attn_layers"]


def _is_dense(config: Mapping[str, Any], layer: int) -> bool:
    return bool(layer < config["text_config"]["first_k_dense_replace"])


def _shard_paths(count: int) -> list[str]:
    return [f"model-{number:05d}-of-{count:06d}.safetensors" for number in range(1, count + 1)]
