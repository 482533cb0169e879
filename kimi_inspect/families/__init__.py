"""What is known of each family of models: one module a family, its rules as data."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kimi_inspect.components import Component
from kimi_inspect.families import decoders, gguf_names, kimi_k2, kimi_linear
from kimi_inspect.inventory import Template
from kimi_inspect.rules import Rule

__all__ = ["ALIASES", "ATTENTION_OF", "EXPECTATIONS", "PARTS_OF", "RULES", "SHOWN_BY", "family_of", "rules_of"]

RULES: dict[str, tuple[Rule, ...]] = {"safetensors": kimi_linear.RULES + decoders.RULES, "gguf": gguf_names.RULES}
"""For each format the rules for its names, in the order they are tried."""


def rules_of(weights_format: str, texts: Sequence[str]) -> Sequence[Rule]:
    """Return the rules for the names of a checkpoint: those of its format, and what some names say of others.

    Args:
        weights_format: ``safetensors`` or ``gguf``.
        texts: all its names, each number in them written as one 0.
    """
    rules = RULES[weights_format]
    return (*decoders.SPEECH, *rules) if weights_format == "safetensors" and decoders.hears(texts) else rules


EXPECTATIONS: dict[str, Callable[[Mapping[str, Any]], Iterator[Template]]] = {
    "kimi-k2": kimi_k2.expected_of_k2,
    "kimi-linear": kimi_linear.expected_of_linear,
    "kimi-k3": kimi_linear.expected_of_k3,
    "kimi-k31": kimi_linear.expected_of_k3,
}
"""For each family, by its normalised name, what turns a config into the names it promises."""

_KIMI_LINEAR = frozenset({Component.KDA_ATTENTION, Component.MLA_ATTENTION})
_MLA = frozenset({Component.MLA_ATTENTION})
_HYBRID = frozenset({Component.LINEAR_ATTENTION})
_PLAIN: frozenset[Component] = frozenset()

ATTENTION_OF: dict[str, frozenset[Component]] = {
    **dict.fromkeys(("kimi-k3", "kimi-k31", "kimi-linear"), _KIMI_LINEAR),
    **dict.fromkeys(
        ("kimi-k2", "kimi-k25", "kimi-vl", "deepseek-v2", "deepseek-v3", "deepseek-v32", "deepseek2"), _MLA
    ),
    **dict.fromkeys(("qwen3-next", "qwen3next", "mamba2", "nemotron-h", "jamba", "falcon-h1"), _HYBRID),
    **dict.fromkeys(("llama", "llama4", "mistral", "mixtral", "qwen2", "qwen3", "qwen2-moe", "qwen3-moe"), _PLAIN),
    **dict.fromkeys(("qwen2moe", "qwen3moe", "gpt-oss", "gemma", "gemma2", "gemma3", "gemma3-text"), _PLAIN),
    **dict.fromkeys(("glm4-moe", "glm4moe", "minimax-m2", "phi3"), _PLAIN),
}
"""The special kinds of attention that models of a family have, besides the common one."""

SHOWN_BY: dict[str, Component] = {
    family: Component.KDA_ATTENTION if Component.KDA_ATTENTION in kinds else next(iter(kinds))
    for family, kinds in ATTENTION_OF.items()
    if kinds
}
"""The kind of attention that every whole model of a family has, from its first layers on."""

PARTS_OF: dict[str, frozenset[Component]] = {
    "kimi-k3": frozenset({Component.LATENT_PROJECTION, Component.ATTENTION_RESIDUAL}),
    "kimi-k31": frozenset({Component.LATENT_PROJECTION, Component.ATTENTION_RESIDUAL, Component.SPARSE_INDEXER}),
}
"""What tells a family from others with the same attention: a model with experts and full attention has all of it."""

ALIASES: dict[str, tuple[str, ...]] = {
    "deepseek2": ("kimi-k2", "kimi-k25", "kimi-vl", "deepseek-v2", "deepseek-v3", "deepseek-v32"),
    "llama": ("mistral", "mistral3", "mixtral", "ministral", "smollm", "yi"),
    "qwen2vl": ("qwen2-vl", "qwen2-5-vl", "qwen2"),
    "qwen3vl": ("qwen3-vl", "qwen3"),
    "gemma3": ("gemma3-text",),
    "command-r": ("cohere",),
    "gptneox": ("gpt-neox", "pythia"),
    "kimi-linear": ("kimi-linear",),
}
"""GGUF architectures, and families that are converted to each under other names than its own: llama.cpp's
`convert_hf_to_gguf.py` registers them by class."""

_CLASS_ENDING = re.compile(r"(For[A-Z]\w*|Model|LMHeadModel)$")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def family_of(architecture: str | None) -> str | None:
    """Return one spelling for the names that a family goes by in configs, classes and GGUF files.

    >>> family_of("KimiK31ForConditionalGeneration"), family_of("kimi_k31"), family_of("kimi-k31")
    ('kimi-k31', 'kimi-k31', 'kimi-k31')
    """
    if not architecture:
        return None
    return _HUMP.sub("-", _CLASS_ENDING.sub("", architecture)).replace("_", "-").lower() or None
