"""What tensors of packed weights are called: last parts of their names, and what each is for."""

from __future__ import annotations

import re

from kimi_inspect.values import Role

__all__ = ["CONTAINERS", "FOREIGN", "HANGING", "LEAVES", "MAINS", "MATRICES", "OWN", "ROLES", "SCALES", "TABLES"]

FOREIGN: dict[str, Role] = {
    # ExLlamaV3: a trellis of codes, and signs for what goes in and out
    "trellis": Role.WEIGHT,
    **dict.fromkeys(("suh", "svh", "su", "sv", "mcg", "mul1"), Role.BOOKKEEPING),
    # ExLlamaV2: rows of several widths in an order of their own
    "q_weight": Role.WEIGHT,
    **dict.fromkeys(("q_scale", "q_scale_max"), Role.SCALE),
    **dict.fromkeys(("q_groups", "q_group_map", "q_perm", "q_invperm"), Role.BOOKKEEPING),
    # HQQ; its scale is called `scale`
    "W_q": Role.WEIGHT,
    "zero": Role.ZERO_POINT,
    # AQLM; its scales are called `scales`
    "codes": Role.WEIGHT,
    "codebooks": Role.BOOKKEEPING,
    # QuIP#
    "Qidxs": Role.WEIGHT,
    "Wscale": Role.SCALE,
    **dict.fromkeys(("SU", "SV", "codebook_id"), Role.BOOKKEEPING),
    # quanto, by values or by words of several
    **dict.fromkeys(("weight._data", "weight._data._data"), Role.WEIGHT),
    "weight._scale": Role.SCALE,
    "weight._shift": Role.ZERO_POINT,
    # VPTQ beside its indices, whose name says too little
    **dict.fromkeys(("centroids.weight", "res_centroids.weight"), Role.BOOKKEEPING),
    **dict.fromkeys(("weight_bias", "perm"), Role.BOOKKEEPING),
}
"""Leaves of packings whose widths no shape tells: what they hold is unknown, but it is known what belongs together."""

LEAVES: dict[str, Role] = {
    "weight_packed": Role.WEIGHT,
    "weight": Role.WEIGHT,
    "qweight": Role.WEIGHT,
    "_blocks": Role.WEIGHT,
    "weight_scale": Role.SCALE,
    "weight_scale_inv": Role.SCALE,
    "weight_scale_2": Role.SCALE,
    "weight_global_scale": Role.SCALE,
    "input_scale": Role.SCALE,
    "input_scale_ub": Role.SCALE,
    "input_global_scale": Role.SCALE,
    "k_scale": Role.SCALE,
    "v_scale": Role.SCALE,
    "scales": Role.SCALE,
    "scale": Role.SCALE,
    "_scales": Role.SCALE,
    "SCB": Role.SCALE,
    "weight.absmax": Role.SCALE,
    "weight.nested_absmax": Role.SCALE,
    "weight_zero_point": Role.ZERO_POINT,
    "input_zero_point": Role.ZERO_POINT,
    "qzeros": Role.ZERO_POINT,
    "biases": Role.ZERO_POINT,
    "weight_shape": Role.BOOKKEEPING,
    "weight_g_idx": Role.BOOKKEEPING,
    "g_idx": Role.BOOKKEEPING,
    "weight_format": Role.BOOKKEEPING,
    "weight.quant_map": Role.BOOKKEEPING,
    "weight.nested_quant_map": Role.BOOKKEEPING,
    "weight.quant_state.bitsandbytes__nf4": Role.BOOKKEEPING,
    "weight.quant_state.bitsandbytes__fp4": Role.BOOKKEEPING,
    **FOREIGN,
}
"""Last parts of names, and what the tensors are for. One that starts with `_` hangs on the module's own last part."""

HANGING: dict[str, Role] = {"_scale_inv": Role.SCALE, "_scale": Role.SCALE}
"""Likewise, of scales that hang on the name of a weight itself: experts in one tensor. Others end so that are none."""

ROLES: dict[str, Role] = {**LEAVES, **HANGING}

OWN = ""
"""Last part of a weight that has the name of its module."""

MAINS = (
    "weight_packed",
    "_blocks",
    "qweight",
    "weight",
    OWN,
    *(leaf for leaf in FOREIGN if FOREIGN[leaf] is Role.WEIGHT),
)
"""Those that hold the values."""

SCALES: dict[str, tuple[str, ...]] = {
    "weight_packed": ("weight_scale",),
    "_blocks": ("_scales",),
    "qweight": ("scales",),
    "weight": ("weight_scale", "weight_scale_inv", "scales", "scale", "SCB", "weight.absmax"),
    OWN: tuple(HANGING),
}
"""For each of them what its scale may be called, in the forms that are understood."""

CONTAINERS = frozenset({"U8", "I8", "U16", "I16", "U32", "I32"})
"""Types that hold packed values where they are the type of a weight."""

MATRICES = (
    b"proj",
    b"qkv",
    b"dense",
    b"linear",
    b"lm_head",
    b"c_attn",
    b"c_fc",
    b".fc0",
    b".w0",
    b".wq",
    b".wk",
    b".wv",
    b".wo",
)
"""How names of modules end, each digit as 0, that have a matrix whatever it is packed in."""

TABLES = re.compile(rb"(position_ids|tid0eid|d0t|t0d|_index|mask|bias)$")
"""Integers, each digit of their names as 0, that are what they are: numbers of positions, experts and tokens, masks."""
