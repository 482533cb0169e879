"""The label of a GGUF build, in its name and in its metadata, against the types that its tensors have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kimi_inspect.findings import finding
from kimi_inspect.set_names import PUBLISHERS, quant_label
from kimi_inspect.values import Finding

__all__ = ["FILE_TYPES", "find_wrong_labels"]

FILE_TYPES: dict[int, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
    39: "NVFP4",
    40: "Q1_0",
}
"""The values of `general.file_type`: llama.cpp's enum `llama_ftype`."""

GUESSED = 1024
"""llama.cpp adds this to a file type that no metadata told it."""


def find_wrong_labels(path: str, metadata: Mapping[str, Any], encodings: set[str]) -> Iterator[Finding]:
    """Yield the labels whose type no tensor has.

    Args:
        path: the first file of the set.
        metadata: its key-values.
        encodings: those that its tensors have.
    """
    labels = {"name": quant_label(path)}
    told = metadata.get("general.file_type")
    if type(told) is int:
        labels["general.file_type"] = FILE_TYPES.get(told & ~GUESSED)
    wrong = {where: label for where, label in labels.items() if label and encodings and not _holds(label, encodings)}
    if wrong:
        label = next(iter(wrong.values()))
        said = " and ".join(f"its {place} says {name}" for place, name in wrong.items())
        message = f"{said}, and no tensor has that type"
        there = sorted(encodings)
        yield finding("label-disagrees", path, message, file=path, expected=label, actual=there, count=len(wrong))


def _holds(label: str, encodings: set[str]) -> bool:
    """Whether a tensor has the type that a label says; of a label that is not understood, yes."""
    bare = label.lower()
    for mark in PUBLISHERS:
        bare = bare.removeprefix(mark.lower() + "-")
    wanted = _prefix(bare)
    return wanted is None or any(encoding.startswith(wanted) for encoding in encodings)


def _prefix(label: str) -> tuple[str, ...] | None:
    """Return what the encodings begin with that a label means.

    A K label means K types; an IQ label any IQ type of so many bits, since recipes mix them; Q8_K is none that files
    have, and stands for Q8_0.
    """
    kind = re.match(r"iq[0-9]_|tq[0-9]_0|q[0-9]_[k01]|bf16|fp?16|fp?32|mxfp4|nvfp4", label)
    if kind is None:
        return None
    return {"q8_k": ("q8_",), "fp16": ("f16",), "fp32": ("f32",)}.get(kind[0], (kind[0],))
