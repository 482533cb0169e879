"""How tools lay out one packed matrix in safetensors: from its module and shape to the tensors that are stored.

Each function follows the public description, or the writer, of its format, and returns a `Pack`. Shapes are outermost
first; a matrix is rows (what goes out) by columns (what comes in), with the experts before them where they are stacked.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod

from kimi_inspect.testing.hollow import TensorSpec

__all__ = [
    "Pack",
    "awq",
    "bnb_4bit",
    "bnb_int8",
    "fp4_bytes",
    "fp8_block",
    "gpt_oss_blocks",
    "gptq",
    "mlx_affine",
    "mlx_float",
    "modelopt_fp8",
    "modelopt_nvfp4",
    "mxfp4",
    "nvfp4",
    "one_scale_a_row",
    "pack_quantized",
    "plain",
]

Pack = Callable[[str, tuple[int, ...]], list[TensorSpec]]
"""Lays out a matrix: the path of its module and its shape in, the stored tensors out."""

_WORD = 32
_MX_GROUP = 32
_NV_GROUP = 16
_FP8_BLOCK = 128
_BNB_BLOCK = 64
_BNB_NESTED_BLOCK = 256


def plain(dtype: str) -> Pack:
    """One element a value: no packing at all."""
    return lambda module, shape: [TensorSpec(f"{module}.weight", dtype, shape)]


def mlx_affine(bits: int, group: int) -> Pack:
    """MLX, mode affine: values bit by bit in words of 32, so 3, 5 and 6 bits straddle them; scale and bias a group."""

    def pack(module: str, shape: tuple[int, ...]) -> list[TensorSpec]:
        *rows, columns = shape
        groups = (*rows, _exact(columns, group))
        return [
            TensorSpec(f"{module}.weight", "U32", (*rows, _exact(columns * bits, _WORD))),
            TensorSpec(f"{module}.scales", "BF16", groups),
            TensorSpec(f"{module}.biases", "BF16", groups),
        ]

    return pack


def mlx_float(bits: int, group: int) -> Pack:
    """MLX, modes mxfp4, mxfp8 and nvfp4: codes in words of 32 bits, a scale of one byte a group, no bias."""

    def pack(module: str, shape: tuple[int, ...]) -> list[TensorSpec]:
        *rows, columns = shape
        return [
            TensorSpec(f"{module}.weight", "U32", (*rows, _exact(columns * bits, _WORD))),
            TensorSpec(f"{module}.scales", "U8", (*rows, _exact(columns, group))),
        ]

    return pack


def mxfp4(module: str, shape: tuple[int, ...]) -> list[TensorSpec]:
    """compressed-tensors, mxfp4-pack-quantized: two codes a byte, an E8M0 scale of one byte for 32 values."""
    *rows, columns = shape
    return [
        TensorSpec(f"{module}.weight_packed", "U8", (*rows, _exact(columns, 2))),
        TensorSpec(f"{module}.weight_scale", "U8", (*rows, _exact(columns, _MX_GROUP))),
    ]


def nvfp4(module: str, shape: tuple[int, ...]) -> list[TensorSpec]:
    """compressed-tensors, nvfp4-pack-quantized: an E4M3 scale for 16 values, one more for the matrix, one for input."""
    *rows, columns = shape
    return [
        TensorSpec(f"{module}.weight_packed", "U8", (*rows, _exact(columns, 2))),
        TensorSpec(f"{module}.weight_scale", "F8_E4M3", (*rows, _exact(columns, _NV_GROUP))),
        TensorSpec(f"{module}.weight_global_scale", "F32", (1,)),
        TensorSpec(f"{module}.input_global_scale", "F32", (1,)),
    ]


def pack_quantized(bits: int, group: int, *, zero_points: bool) -> Pack:
    """compressed-tensors, pack-quantized: whole integers in words of 32 bits; zero points are packed down the rows."""

    def pack(module: str, shape: tuple[int, ...]) -> list[TensorSpec]:
        rows, columns = shape
        groups = _exact(columns, group)
        tensors = [
            TensorSpec(f"{module}.weight_packed", "I32", (rows, _exact(columns * bits, _WORD))),
            TensorSpec(f"{module}.weight_scale", "BF16", (rows, groups)),
            TensorSpec(f"{module}.weight_shape", "I64", (2,)),
        ]
        if zero_points:
            tensors.append(TensorSpec(f"{module}.weight_zero_point", "I32", (_exact(rows * bits, _WORD), groups)))
        return tensors

    return pack


def one_scale_a_row(dtype: str) -> Pack:
    """compressed-tensors, int-quantized and float-quantized: one element a value, of `dtype`, and a scale a row."""

    def pack(module: str, shape: tuple[int, ...]) -> list[TensorSpec]:
        return [
            TensorSpec(f"{module}.weight", dtype, shape),
            TensorSpec(f"{module}.weight_scale", "BF16", (shape[0], 1)),
        ]

    return pack


def fp8_block(scale: str, scale_dtype: str) -> Pack:
    """DeepSeek's FP8: a scale, its last name being `scale`, for each 128 x 128 block; the last ones may be cut."""

    def pack(module: str, shape: tuple[int, ...]) -> list[TensorSpec]:
        blocks = tuple(-(-extent // _FP8_BLOCK) for extent in shape)
        return [
            TensorSpec(f"{module}.weight", "F8_E4M3", shape),
            TensorSpec(f"{module}.{scale}", scale_dtype, blocks),
        ]

    return pack


def fp4_bytes(module: str, shape: tuple[int, ...]) -> list[TensorSpec]:
    """DeepSeek-V4's experts: two FP4 codes in a signed byte, an E8M0 scale for 32 of them."""
    rows, columns = shape
    return [
        TensorSpec(f"{module}.weight", "I8", (rows, _exact(columns, 2))),
        TensorSpec(f"{module}.scale", "F8_E8M0", (rows, _exact(columns, _MX_GROUP))),
    ]


def gpt_oss_blocks(module: str, shape: tuple[int, ...]) -> list[TensorSpec]:
    """gpt-oss: blocks of 32 codes in 16 bytes along an axis of their own, and their scales."""
    *rows, columns = shape
    blocks = _exact(columns, _MX_GROUP)
    return [
        TensorSpec(f"{module}_blocks", "U8", (*rows, blocks, _MX_GROUP // 2)),
        TensorSpec(f"{module}_scales", "U8", (*rows, blocks)),
    ]


def gptq(bits: int, group: int) -> Pack:
    """GPTQ: transposed, packed down the columns; which group a column is in stands there in any order of them."""

    def pack(module: str, shape: tuple[int, ...]) -> list[TensorSpec]:
        rows, columns = shape
        groups = _exact(columns, group)
        return [
            TensorSpec(f"{module}.qweight", "I32", (_exact(columns * bits, _WORD), rows)),
            TensorSpec(f"{module}.qzeros", "I32", (groups, _exact(rows * bits, _WORD))),
            TensorSpec(f"{module}.scales", "F16", (groups, rows)),
            TensorSpec(f"{module}.g_idx", "I32", (columns,)),
        ]

    return pack


def awq(module: str, shape: tuple[int, ...]) -> list[TensorSpec]:
    """AWQ, version GEMM: transposed like GPTQ, but packed down the rows, four bits, groups of 128."""
    rows, columns = shape
    words, groups = _exact(rows * 4, _WORD), _exact(columns, 128)
    return [
        TensorSpec(f"{module}.qweight", "I32", (columns, words)),
        TensorSpec(f"{module}.qzeros", "I32", (groups, words)),
        TensorSpec(f"{module}.scales", "F16", (groups, rows)),
    ]


def bnb_4bit(kind: str, *, nested: bool) -> Pack:
    """Bitsandbytes in four bits, `kind` nf4 or fp4: a flat column of bytes, and a state that tells the shape as JSON.

    The maxima of the blocks are F32, or `nested`: bytes with maxima and a map of their own.
    """

    def pack(module: str, shape: tuple[int, ...]) -> list[TensorSpec]:
        blocks = _exact(prod(shape), _BNB_BLOCK)
        state = {"quant_type": kind, "blocksize": _BNB_BLOCK, "dtype": "bfloat16", "shape": shape}
        weight = f"{module}.weight"
        tensors = [
            TensorSpec(weight, "U8", (_exact(prod(shape), 2), 1)),
            TensorSpec(f"{weight}.absmax", "U8" if nested else "F32", (blocks,)),
            TensorSpec(f"{weight}.quant_map", "F32", (16,)),
        ]
        if nested:
            tensors.append(TensorSpec(f"{weight}.nested_absmax", "F32", (-(-blocks // _BNB_NESTED_BLOCK),)))
            tensors.append(TensorSpec(f"{weight}.nested_quant_map", "F32", (256,)))
            state |= {"nested_blocksize": _BNB_NESTED_BLOCK, "nested_dtype": "float32", "nested_offset": 0.0625}
        tensors.append(TensorSpec(f"{weight}.quant_state.bitsandbytes__{kind}", "U8", (len(json.dumps(state)),)))
        return tensors

    return pack


def bnb_int8(module: str, shape: tuple[int, ...]) -> list[TensorSpec]:
    """Bitsandbytes LLM.int8(): a scale a row beside the weight, under the module, and the number of a format."""
    return [
        TensorSpec(f"{module}.weight", "I8", shape),
        TensorSpec(f"{module}.SCB", "F32", (shape[0],)),
        TensorSpec(f"{module}.weight_format", "U8", ()),
    ]


def modelopt_nvfp4(module: str, shape: tuple[int, ...]) -> list[TensorSpec]:
    """ModelOpt NVFP4: as in compressed-tensors, under other names and with scalars of no dimension."""
    *rows, columns = shape
    return [
        TensorSpec(f"{module}.weight", "U8", (*rows, _exact(columns, 2))),
        TensorSpec(f"{module}.weight_scale", "F8_E4M3", (*rows, _exact(columns, _NV_GROUP))),
        TensorSpec(f"{module}.weight_scale_2", "F32", ()),
        TensorSpec(f"{module}.input_scale", "F32", ()),
    ]


def modelopt_fp8(module: str, shape: tuple[int, ...]) -> list[TensorSpec]:
    """ModelOpt FP8: one scale for the matrix, one for its input."""
    return [
        TensorSpec(f"{module}.weight", "F8_E4M3", shape),
        TensorSpec(f"{module}.weight_scale", "F32", ()),
        TensorSpec(f"{module}.input_scale", "F32", ()),
    ]


def _exact(dividend: int, divisor: int) -> int:
    """Divide without rest: what does not fill whole words or groups is in no such file."""
    quotient, rest = divmod(dividend, divisor)
    if rest:
        raise ValueError(f"{dividend} is no multiple of {divisor}")
    return quotient
