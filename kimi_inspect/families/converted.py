"""What converters call the tensors of a model: one spelling for a place in a block, GGUF's.

Kimi's names come from the public converters (llama.cpp's `conversion/kimi*.py`, mlx-lm's `sanitize`), those of other
families from gguf's own `TensorNameMap`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice

from kimi_inspect.rules import unwrapped

__all__ = ["CUT_TO", "FUSED", "PRODUCTS", "ROUTERS", "SPARE_ROWS", "is_buffer", "place_of"]

FUSED: Mapping[str, tuple[str, ...]] = {
    "attn_kv_b": ("attn_k_b", "attn_v_b"),
    "attn_qkv": ("attn_q", "attn_k", "attn_v"),
    "attn_qkv.bias": ("attn_q.bias", "attn_k.bias", "attn_v.bias"),
    "attn_qkv_a": ("attn_q_a", "attn_kv_a_mqa"),
    "ssm_in": ("attn_qkv", "attn_gate"),
    "ffn_gate_up": ("ffn_gate", "ffn_up"),
    "ffn_gate_up_exps": ("ffn_gate_exps", "ffn_up_exps"),
    "ffn_gate_up_exps.bias": ("ffn_gate_exps.bias", "ffn_up_exps.bias"),
    "v.blk.attn_qkv": ("v.blk.attn_q", "v.blk.attn_k", "v.blk.attn_v"),
    "v.blk.attn_qkv.bias": ("v.blk.attn_q.bias", "v.blk.attn_k.bias", "v.blk.attn_v.bias"),
}
"""What one build keeps in one tensor and another in several: as many values either way."""

PRODUCTS: Mapping[str, tuple[str, str]] = {
    f"{place}_res_score": (f"{place}_res_score.norm", f"{place}_res_score.proj") for place in ("attn", "ffn", "output")
}
"""What GGUF keeps as the product of two vectors of the same length."""

CUT_TO: Mapping[str, str] = {"ssm_a": "ssm_beta"}
"""What loses its zero padding, and the matrix that has a row for each value that stays: one a head."""

SPARE_ROWS: Mapping[str, int] = {"token_embd": 256}
"""What converters cut to the tokens that there are (Gemma 3), and how many rows a padding has less than."""

ROUTERS = frozenset({"mtp.ffn_gate_inp", "mtp.exp_probs_b.bias"})
"""What has a row for each expert of a draft; of the model's own routers the component tells."""

# What one side computes and the other stores: rotary frequencies, numbers of positions, causal masks.
_BUFFERS = re.compile(
    r"^rope_freqs$|^rope_factors_(long|short)$|attn_rot_embd$|inv_freq$|position_ids$|\.masked_bias$|\.(attn|attention)\.bias$"
)

# Below `layers.{}.`, after MLX's own names have been undone.
_OF_LAYER: Mapping[str, str] = {
    **{f"self_attn.{one}_proj": f"attn_{one}" for one in "qkv"},
    "self_attn.o_proj": "attn_output",
    "self_attn.g_proj": "attn_gate",
    **{f"self_attn.{one}_conv1d": f"ssm_conv1d_{one}" for one in "qkv"},
    **{f"self_attn.{one}_proj": f"ssm_{one}" for one in ("f_a", "f_b", "g_a", "g_b")},
    "self_attn.b_proj": "ssm_beta",
    "self_attn.A_log": "ssm_a",
    "self_attn.dt_bias": "ssm_dt.bias",
    "self_attn.o_norm": "ssm_norm",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.fused_qkv_a_proj_with_mqa": "attn_qkv_a",
    "self_attn.k_b_proj": "attn_k_b",
    "self_attn.v_b_proj": "attn_v_b",
    "self_attn.indexer.wq_b": "indexer.attn_q_b",
    "self_attn.indexer.wk": "indexer.attn_k",
    "self_attn.indexer.k_norm": "indexer.k_norm",
    "self_attn.indexer.weights_proj": "indexer.proj",
    "self_attention_res_norm": "attn_res_score.norm",
    "self_attention_res_proj": "attn_res_score.proj",
    "mlp_res_norm": "ffn_res_score.norm",
    "mlp_res_proj": "ffn_res_score.proj",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate": "ffn_gate_inp",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.e_score_correction_bias": "exp_probs_b.bias",
    **{f"mlp.{one}_proj": f"ffn_{one}" for one in ("gate", "up", "down")},
    **{f"mlp.experts.{one}_proj": f"ffn_{one}_exps" for one in ("gate", "up", "down")},
    **{f"mlp.shared_experts.{one}_proj": f"ffn_{one}_shexp" for one in ("gate", "up", "down")},
    **{f"mlp.routed_expert_{one}_proj": f"ffn_routed_{one}" for one in ("up", "down")},
    "mlp.routed_expert_norm": "ffn_routed_norm",
    "mlp.experts.gate_up_proj": "ffn_gate_up_exps",
    "mlp.experts.w1": "ffn_gate_exps",
    "mlp.experts.w2": "ffn_down_exps",
    "mlp.experts.w3": "ffn_up_exps",
    **{name: f"nextn.{name}" for name in ("eh_proj", "enorm", "hnorm", "embed_tokens")},
    "shared_head.head": "nextn.shared_head_head",
    "shared_head.norm": "nextn.shared_head_norm",
}
_OUTSIDE: Mapping[str, str] = {
    "embed_tokens": "token_embd",
    "lm_head": "output",
    "norm": "output_norm",
    "output_attn_res_norm": "output_res_score.norm",
    "output_attn_res_proj": "output_res_score.proj",
    "mm_projector.proj.0": "mm.1",
    "mm_projector.proj.2": "mm.2",
    "mm_projector.post_norm": "mm.post_norm",
    "vision_tower.patch_embed.proj": "v.patch_embd",
    "vision_tower.patch_embed.pos_emb": "v.position_embd",
    "vision_tower.encoder.final_layernorm": "v.post_ln",
    "vision_tower.encoder.blocks.{}.norm0": "v.blk.{}.ln1",
    "vision_tower.encoder.blocks.{}.norm1": "v.blk.{}.ln2",
    "vision_tower.encoder.blocks.{}.wqkv": "v.blk.{}.attn_qkv",
    "vision_tower.encoder.blocks.{}.wo": "v.blk.{}.attn_out",
    "vision_tower.encoder.blocks.{}.mlp.fc0": "v.blk.{}.ffn_up",
    "vision_tower.encoder.blocks.{}.mlp.fc1": "v.blk.{}.ffn_down",
}

_KIMI = {f"layers.{{}}.{module}": f"blk.{{}}.{place}" for module, place in _OF_LAYER.items()} | dict(_OUTSIDE)

# MLX's names, and the one of two spellings that some converters choose, in those of the original.
_UNDONE: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), original)
    for pattern, original in (
        (r"\.block_sparse_moe\.", ".mlp."),
        (r"\.mlp\.switch_(?:mlp|glu)\.", ".mlp.experts."),
        (r"\.self_attn\.([qkv])_conv\.conv$", r".self_attn.\1_conv1d"),
        (r"\.self_attn\.embed_q$", ".self_attn.k_b_proj"),
        (r"\.self_attn\.unembed_out$", ".self_attn.v_b_proj"),
        (r"(self_attention_res|mlp_res|output_attn_res)\.(norm|proj)_weight$", r"\1_\2"),
    )
)

# One place, two names: the gate of KDA is `ssm_g`, that of full attention `attn_gate`; the first files of Mixtral had
# each expert by itself; a convolution over two frames is one for each.
_GGUF_ALIASES: Mapping[str, str] = {
    "ssm_g": "attn_gate",
    "exp_probs_b": "exp_probs_b.bias",
    "v.patch_embd.weight.1": "v.patch_embd",
    **{f"ffn_{one}.{{expert}}": f"ffn_{one}_exps" for one in ("gate", "up", "down")},
}

_NUMBER = re.compile("[0-9]+")


def place_of(module: str, weights_format: str, architecture: str | None = None) -> str:
    """Return the place of a module: GGUF's name for it where one is known, else its own.

    Its layer or block is left open as ``{}``; where it is not, GGUF's name has its number as well.

    >>> place_of("blk.{}.attn_output", "gguf"), place_of("model.layers.{}.self_attn.o_proj", "safetensors")
    ('attn_output', 'attn_output')
    """
    if weights_format != "gguf":
        module = module.replace(".{expert}", "")
        original = module
        for pattern, replacement in _UNDONE:
            original = pattern.sub(replacement, original)
        tables = (gguf_places(architecture), _KIMI) if architecture else (_KIMI,)
        spellings = dict.fromkeys((module, original))
        found = next((name for known in tables for one in spellings if (name := _looked_up(one, known))), None)
        *_, module = unwrapped(original)
        if found is None:
            return module
        module = found
    place = module.removeprefix("blk.{}.").replace("v.blk.{}.", "v.blk.").replace("a.blk.{}.", "a.blk.")
    return _GGUF_ALIASES.get(place, place)


def is_buffer(place: str) -> bool:
    """Whether a place holds no parameters of the model, but what loaders compute."""
    return _BUFFERS.search(place) is not None


def _looked_up(module: str, known: Mapping[str, str]) -> str | None:
    """Look a module up, with as many of its wrappers as the table knows, and where it is a bias, what it is one of."""
    for name in unwrapped(module):
        for stem, ending in _stems(name):
            for opened, number in _opened(stem):
                if opened in known:
                    return known[opened].replace("{}", number) + ending
    return None


def _stems(module: str) -> Iterator[tuple[str, str]]:
    """Yield a module and what has to stand behind GGUF's name for it.

    Converters write `x_bias` as the bias of `x`, `x_weight` as its weight, and `dt_bias` as the bias of `dt_proj`.
    """
    yield module, ""
    if module.endswith("_weight"):
        yield module.removesuffix("_weight"), ""
    elif module.endswith(".dt_bias"):
        yield module.removesuffix("bias") + "proj", ".bias"
    elif module.endswith(("_bias", ".bias")):
        yield module[: -len(".bias")], ".bias"


def _opened(module: str) -> Iterator[tuple[str, str]]:
    """Yield a module as it is, and with one of its first numbers left open, where none is yet."""
    yield module, "{}"
    if "{}" not in module:
        for found in islice(_NUMBER.finditer(module), 2):
            yield f"{module[: found.start()]}{{}}{module[found.end() :]}", found[0]


@lru_cache(maxsize=8)
def gguf_places(architecture: str) -> Mapping[str, str]:
    """Return gguf's names for modules, those of an architecture and of the towers beside it, layer left open.

    A module that stands for two things, one in each of two architectures, is looked up in the one that is meant. Beside
    the names in gguf's table are those without their wrappers, where these stand for one thing alone.
    """
    from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES
    from gguf.tensor_mapping import TensorNameMap

    found: dict[str, str] = {}
    for arch in (MODEL_ARCH.MMPROJ, *(arch for arch, name in MODEL_ARCH_NAMES.items() if name == architecture)):
        blocks = TensorNameMap.block_mappings_cfg | TensorNameMap.arch_block_mappings_cfg.get(arch, {})
        for tensor, names in (*TensorNameMap.mappings_cfg.items(), *blocks.items()):
            if tensor in MODEL_TENSORS[arch]:
                name = TENSOR_NAMES[tensor].replace("{bid}", "{}")
                found.update((module.replace("{bid}", "{}").removesuffix(".weight"), name) for module in names)
    bare: dict[str, str | None] = {}
    for module, name in found.items():
        *_, stripped = unwrapped(module)
        bare[stripped] = name if bare.get(stripped, name) == name else None
    return {module: name for module, name in bare.items() if name is not None} | found
