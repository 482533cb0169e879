"""The tensor and value types of GGUF, by number.

Source: `ggml.h`, enum `ggml_type`, and `ggml-common.h` for the block layouts, of llama.cpp. A block is a number of
elements along a tensor's first dimension, stored together with their scales.
"""

from __future__ import annotations

from enum import IntEnum
from struct import calcsize
from typing import NamedTuple

__all__ = ["FORKED_TYPES", "TENSOR_TYPES", "TensorType", "ValueType"]


class TensorType(NamedTuple):
    """Name, elements a block, bytes a block."""

    name: str
    elements: int
    nbytes: int


TENSOR_TYPES: dict[int, TensorType] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    9: TensorType("Q8_1", 32, 36),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    15: TensorType("Q8_K", 256, 292),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    24: TensorType("I8", 1, 1),
    25: TensorType("I16", 1, 2),
    26: TensorType("I32", 1, 4),
    27: TensorType("I64", 1, 8),
    28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56),
    30: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
    40: TensorType("NVFP4", 64, 36),
    41: TensorType("Q1_0", 128, 18),
    42: TensorType("Q2_0", 64, 18),
}
"""The types of upstream, by number."""

FORKED_TYPES = frozenset({41, 42})
"""Numbers that forks gave to types of their own before upstream took them: believed only where the sizes agree."""


class ValueType(IntEnum):
    """The types of metadata values."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12

    @property
    def form(self) -> str:
        """How the `struct` module writes a number of this type."""
        return _FORMS[self]

    def smallest(self, wide: bool) -> int:
        """Return the fewest bytes that a value takes; lengths have 8 bytes where `wide`, else 4."""
        length = 8 if wide else 4
        return {ValueType.STRING: length, ValueType.ARRAY: 4 + length}.get(self) or calcsize("<" + self.form)


_FORMS: dict[ValueType, str] = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "?",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}
