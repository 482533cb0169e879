"""The types of safetensors 0.8.0, by name.

Source: `safetensors/src/tensor.rs`, enum `Dtype` and its `bitsize`. F4 holds two values a byte, the F6 types
four values in three bytes; a tensor of theirs fills whole bytes or is refused.
"""

from __future__ import annotations

__all__ = ["SAFETENSORS_BITS"]

SAFETENSORS_BITS: dict[str, int] = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
"""Bits of one value of each type."""
