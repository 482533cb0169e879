"""What the names of weight files say: which quantization, which model, what kind of side file.

Names only choose and label. What a file holds is read from the file.
"""

from __future__ import annotations

import re

from kimi_inspect.sidecars import ShardName

__all__ = ["base_name", "is_copy", "is_draft", "is_imatrix", "is_side", "quant_label", "variant_of"]

PUBLISHERS = ("UD", "KLX", "i1")
"""Marks that publishers put before a quantization of their own recipe: unsloth, KarLexAI, mradermacher."""

_TYPE = r"(?:[IT]?Q\d(?:_\w+)?|I2_S|BF16|FP?16|FP?32|FP?8|MXFP\d(?:_\w+)?|NVFP4(?:_\w+)?)"
_LABEL = re.compile(rf"(?i:(?:^|(?<=[-._ ]))(?P<label>(?:(?:{'|'.join(PUBLISHERS)})-)?{_TYPE})(?:-imat)?)$")
_SIDE = re.compile(r"(?:^|[-._ ])(?:mmproj|imatrix)(?:[-._ ]|$)", re.IGNORECASE)
_IMATRIX = re.compile(r"(?:^|[-._ ])imatrix(?:[-._ ]|$)", re.IGNORECASE)
_DRAFT = re.compile(r"(?:model[-._])?(?:mtp|nextn|draft|eagle\d?|medusa)(?:[-._].*)?", re.IGNORECASE)
_VARIANT = re.compile(r"\.(?P<variant>fp16|bf16|fp32|fp8|int8|non_ema|ema)(?=[.-])")
_COPY = re.compile(r"consolidated(?:[-._].*)?")


def quant_label(path: str) -> str | None:
    """Return the quantization that a GGUF file's name ends in, or else the name of its folder.

    >>> quant_label("UD-Q4_K_XL/Kimi-K3.1-Pro-UD-Q4_K_XL-00001-of-00034.gguf"), quant_label("gemma-3-270m-q4_k_m.gguf")
    ('UD-Q4_K_XL', 'q4_k_m')
    """
    name = ShardName.of(path)
    folder = name.folder.rstrip("/").rpartition("/")[2]
    match = _LABEL.search(name.stem) or _LABEL.search(folder)
    return match["label"] if match else None


def base_name(path: str) -> str:
    """Return what the names of all quantizations of one model share.

    >>> base_name("Q2_K/Kimi-Q2_K-00001-of-00033.gguf"), base_name("mmproj-F16.gguf"), base_name("mmproj.F32.gguf")
    ('Kimi', 'mmproj', 'mmproj')
    """
    stem = ShardName.of(path).stem
    match = _LABEL.search(stem)
    return stem[: match.start()].rstrip("-._ ") if match else stem


def is_side(path: str) -> bool:
    """Whether a GGUF file goes by a name that llama.cpp gives to side files; its metadata have the last word."""
    return _SIDE.search(ShardName.of(path).stem) is not None


def is_imatrix(path: str) -> bool:
    """Whether a GGUF file goes by a name for an importance matrix, and by none for a model that was made with one.

    >>> is_imatrix("x.imatrix.gguf"), is_imatrix("x-imatrix-Q4_K_M.gguf"), is_imatrix("imatrix.safetensors")
    (True, False, False)
    """
    stem = ShardName.of(path).stem
    return path.endswith(".gguf") and _IMATRIX.search(stem) is not None and _LABEL.search(stem) is None


def is_draft(path: str) -> bool:
    """Whether a safetensors file goes by a name for draft heads kept apart; the format itself has no such mark."""
    return _DRAFT.fullmatch(ShardName.of(path).stem) is not None


def variant_of(path: str) -> str | None:
    """Return the variant, in huggingface_hub's sense, of a safetensors file: the same weights in another precision.

    >>> variant_of("unet/model.fp16.safetensors"), variant_of("model-00001-of-00002.fp16.safetensors")
    ('fp16', 'fp16')
    >>> variant_of("unet/model.safetensors") is None
    True
    """
    match = _VARIANT.search(path.rpartition("/")[2])
    return match["variant"] if match else None


def is_copy(set_name: str) -> bool:
    """Whether publishers keep a copy in the layout of the original code under such a name.

    >>> is_copy("original/model"), is_copy("consolidated"), is_copy("model")
    (True, True, False)
    """
    *folders, stem = set_name.split("/")
    return "original" in folders or _COPY.fullmatch(stem) is not None
