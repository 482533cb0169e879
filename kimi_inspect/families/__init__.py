"""What is known of each family of models: one module a family, its rules as data."""

from __future__ import annotations

import re

from kimi_inspect.families import kimi_linear
from kimi_inspect.rules import Rule

__all__ = ["RULES", "family_of"]

RULES: tuple[Rule, ...] = kimi_linear.RULES
"""All rules, in the order they are tried."""

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
