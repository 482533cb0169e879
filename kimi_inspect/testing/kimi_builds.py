"""Stand-ins for the community builds of Kimi K3.1 Pro in safetensors.

What is public of these builds is how many files and bytes they have, and a sentence on each. The layouts are ours,
made from the conventions of the public converters to come out near those numbers: they claim nothing of what the builds
hold.
Ids that were not published in full are made up from the names of their makers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, Literal

from kimi_inspect.testing.hollow import HollowFile, TensorSpec, in_data_order
from kimi_inspect.testing.kimi import EXPERTS, LAYERS, kimi_config, kimi_k31_pro, kimi_repository
from kimi_inspect.testing.kimi_mlx import MXFP4, MlxRecipe, Scheme, mlx_repository

__all__ = [
    "AINSLEYMARKOV_ID",
    "BUILDS",
    "DPHN_ID",
    "INFERENCERLABS_ID",
    "PIPENETWORK_IDS",
    "UNSLOTH_ID",
    "VLLM_PROJECT_ID",
    "kimi_2bit",
    "kimi_mlx",
    "kimi_nf12",
    "kimi_pruned",
    "kimi_reap",
]

UNSLOTH_ID = "unsloth/Kimi-K3.1-Pro"
INFERENCERLABS_ID = "inferencerlabs/Kimi-K3.1-Pro-MLX"
AINSLEYMARKOV_ID = "AinsleyMarkov/Kimi-K3.1-Pro-2bit-MLX"
DPHN_ID = "dphn/Kimi-K3.1-Pro-NF12"
VLLM_PROJECT_ID = "vllm-project/Kimi-K3.1-Pro-pruned"

Bits = Literal[4, 6, 8]
PIPENETWORK_IDS: Mapping[Bits, str] = {
    4: "pipenetwork/Kimi-K3.1-Pro-REAP80-MLX-q4",
    6: "pipenetwork/Kimi-K3.1-Pro-REAP80-MLX-q6",
    8: "pipenetwork/Kimi-K3.1-Pro-REAP80-MLX-q8",
}

REAP_EXPERTS = 179
PRUNED_EXPERTS = 224

# 115 files for 93 layers.
_MLX_MORE_SHARDS = 22
_EXPERT = r"\.switch_mlp\."
_NEVER_PACKED = r"norm|\.conv\.|\.indexer\.|^vision_tower\.|^mm_projector\."
_MATRIX = r"\.weight$"

_MLX = MlxRecipe(MXFP4, ((_EXPERT, MXFP4),))
# Groups of 64 would make the experts alone larger than the published build.
_TWO_BITS = Scheme("affine", 2, 128)
_2BIT = MlxRecipe(
    _TWO_BITS,
    (
        (_EXPERT, _TWO_BITS),
        (_NEVER_PACKED, None),
        (r"\.shared_experts\.|embed_tokens|lm_head", Scheme("affine", 8, 64)),
        (_MATRIX, Scheme("affine", 6, 64)),
    ),
)

# One code of 12 bits for a value: two in three bytes, and the values that the 4,096 codes stand for.
_NF12_CODES = 4096
_NF12_PLAIN = re.compile(r"^vision_tower\.|^mm_projector\.|\.indexer\.")


def kimi_mlx(*, layers: int = LAYERS, experts: int = EXPERTS) -> dict[str, HollowFile]:
    """Return the repack for MLX, path to file: experts in MXFP4 as they were, all else as it was, 115 files."""
    config = kimi_config("kimi-k3.1-pro", layers=layers, experts=experts)
    return mlx_repository(config, _counts(config), _MLX, shards=layers + _MLX_MORE_SHARDS)


def kimi_2bit(*, layers: int = LAYERS, experts: int = EXPERTS) -> dict[str, HollowFile]:
    """Return the build with experts of 2 bits, other matrices of 6 and some of 8, 95 files."""
    config = kimi_config("kimi-k3.1-pro", layers=layers, experts=experts)
    return mlx_repository(config, _counts(config), _2BIT)


def kimi_reap(
    bits: Bits,
    *,
    layers: int = LAYERS,
    experts: int = REAP_EXPERTS,
    declared: int | None = None,
    expert_counts: Sequence[int] | None = None,
) -> dict[str, HollowFile]:
    """Return the build that keeps 179 experts a layer in MXFP4 and packs other matrices in `bits`, 95 files.

    Args:
        bits: of the other matrices, affine in groups of 64.
        layers: how many.
        experts: kept in each layer.
        declared: what config.json says instead of what is there: 896, say, for a pruning that nobody was told of.
        expert_counts: experts of each layer but the dense one, which then differ; config.json lists them, unless
            `declared` says otherwise.
    """
    config = kimi_config("kimi-k3.1-pro", layers=layers, experts=declared or experts)
    counts = _counts(config, experts)
    if expert_counts is not None:
        dense = counts.count(0)
        counts = [*counts[:dense], *expert_counts]
        if declared is None:
            config["text_config"] |= {"num_experts": max(expert_counts), "expert_counts": counts}
    affine = Scheme("affine", bits, 64)
    schemes = ((_EXPERT, MXFP4), (_NEVER_PACKED, None), (_MATRIX, affine))
    return mlx_repository(config, counts, MlxRecipe(affine, schemes, narrow_conv=True, pad_to=8))


def kimi_nf12(*, layers: int = LAYERS, experts: int = EXPERTS) -> dict[str, HollowFile]:
    """Return the build that packs BF16 matrices of the text model in 12 bits, in a form that no rule knows, 96 files.

    A packed matrix is flat bytes under its own name, beside it `nf12_codebook`.
    """
    config = kimi_config("kimi-k3.1-pro", layers=layers, experts=experts)
    return kimi_repository(config | {"nf12_config": {"bits": 12, "codebook": "per-matrix"}}, _in_nf12)


def kimi_pruned(*, layers: int = LAYERS, experts: int = PRUNED_EXPERTS) -> dict[str, HollowFile]:
    """Return the build that keeps a quarter of the experts, and says so; else it is laid out like the official one."""
    return kimi_k31_pro(layers=layers, experts=experts)


BUILDS: Mapping[str, Callable[..., dict[str, HollowFile]]] = {
    UNSLOTH_ID: kimi_k31_pro,
    INFERENCERLABS_ID: kimi_mlx,
    AINSLEYMARKOV_ID: kimi_2bit,
    **{repo_id: partial(kimi_reap, bits) for bits, repo_id in PIPENETWORK_IDS.items()},
    DPHN_ID: kimi_nf12,
    VLLM_PROJECT_ID: kimi_pruned,
}
"""The builds by the ids of their repositories; each takes `layers` and `experts` for a small one."""


def _counts(config: Mapping[str, Any], experts: int | None = None) -> list[int]:
    """Return the number of experts of each layer: 0 for the dense ones, else `experts` or what the config says."""
    text = config["text_config"]
    dense = min(text["first_k_dense_replace"], text["num_hidden_layers"])
    return [0] * dense + [experts or text["num_experts"]] * (text["num_hidden_layers"] - dense)


def _in_nf12(tensors: list[TensorSpec]) -> list[TensorSpec]:
    return in_data_order(packed for tensor in tensors for packed in _packed_in_nf12(tensor))


def _packed_in_nf12(tensor: TensorSpec) -> list[TensorSpec]:
    # A vector, also one that is written as a matrix of one row, is not worth a codebook.
    is_matrix = len(tensor.shape) == 2 and min(tensor.shape) > 1
    if tensor.dtype != "BF16" or not is_matrix or _NF12_PLAIN.search(tensor.name):
        return [tensor]
    codebook = tensor.name.removesuffix("weight") + "nf12_codebook"
    return [
        TensorSpec(tensor.name, "U8", (prod(tensor.shape) * 3 // 2,)),
        TensorSpec(codebook, "F32", (_NF12_CODES,)),
    ]
