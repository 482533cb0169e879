"""Rules that say what a tensor is by its name, and the one place that applies them.

A rule's pattern is compared with the leading parts of a name, parted at the dots:

- ``{layer}``, ``{block}`` and ``{expert}`` stand for a number, and say what it is; ``{}`` for any other number;
- ``a|b`` stands for either, ``*`` for any run of characters inside a part;
- any other digit matches any number (``w1`` is as good as ``w2``): names are judged by their pattern, once for all.

Parts that only say what a model is wrapped in (`model.`, `language_model.`, …) may stand before any rule's first part.
The first rule that fits decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from attrs import frozen

from kimi_inspect.components import Component

__all__ = ["NOTHING", "Judgement", "Rule", "any_of", "judge", "judged", "unwrapped"]

MANY = 1000

SIDES = ("enc", "dec", "encoder", "decoder")
"""Which of a model's two stacks a tensor stands in, where it has two."""
WRAPPERS = (
    *("model", "language_model", "text_model", "base_model", "transformer", "backbone", "gpt_neox"),
    *("llm", "thinker", *SIDES),
    *("bert", "roberta", "distilbert", "electra", "deberta", "mpnet", "rwkv", "module", "_orig_mod", "language", "new"),
)
"""First parts of a name that say nothing about the tensor."""

_PREFIX = rf"(?:(?:{'|'.join(WRAPPERS)})\.){{0,4}}"
_WRAPPER = re.compile(rf"(?!(?:{'|'.join(SIDES)})\.)(?:{'|'.join(WRAPPERS)})\.")
_TOKEN = re.compile(r"\{(\w*)\}|([0-9]+)|([*|])|([^{}0-9*|]+)")


@frozen
class Rule:
    """Tensors whose name starts with `pattern` are part of `component`.

    Attributes:
        kinds: the name is spelled alike in these kinds of attention too; if the layer's other tensors are of just one
            of them, so is this one.
        fused: the first dimension of the tensor counts experts.
    """

    pattern: str
    component: Component
    kinds: tuple[Component, ...] = ()
    fused: bool = False


@frozen
class Judgement:
    """What a pattern's rule says. Places count the numbers in the name from 0; -1 where there is none such."""

    component: Component
    kinds: tuple[Component, ...] = ()
    fused: bool = False
    layer: int = -1
    block: int = -1
    expert: int = -1


NOTHING = Judgement(Component.OTHER)
"""What is said of a name that no rule fits."""


def judge(text: str, rules: Sequence[Rule]) -> Judgement:
    """Judge a name in which each number is written as one 0."""
    for rule in rules:
        match = _compiled(rule.pattern).match(text)
        if match:
            places = {
                what: text.count("0", 0, match.start(what))
                for what, found in match.groupdict().items()
                if found is not None
            }
            return Judgement(rule.component, rule.kinds, rule.fused, **places)
    return NOTHING


def judged(texts: Sequence[str], rules: Sequence[Rule]) -> list[Judgement]:
    """Judge many names, each number in them written as one 0; of those that are equal one."""
    distinct = dict.fromkeys(texts)
    # Compiling what fits any rule pays where a stranger's file has names by the thousand.
    known = any_of(rules).match if len(distinct) > MANY else bool
    once = {text: judge(text, rules) if known(text) else NOTHING for text in distinct}
    return [once[text] for text in texts]


def any_of(rules: Sequence[Rule]) -> re.Pattern[str]:
    """Compile what fits if any rule does: names that none knows, which may be many, cost one comparison."""
    bodies = "|".join(re.sub(r"\?P<\w+>", "?:", _body(rule.pattern)) for rule in rules)
    return re.compile(rf"{_PREFIX}(?:{bodies})(?=\.|$)")


def unwrapped(name: str) -> Iterator[str]:
    """Yield a name with ever fewer of the first parts that only say what the model is wrapped in, up to four."""
    yield name
    for _ in range(4):
        wrapper = _WRAPPER.match(name)
        if not wrapper:
            return
        name = name[wrapper.end() :]
        yield name


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"{_PREFIX}{_body(pattern)}(?=\.|$)")


def _body(pattern: str) -> str:
    return r"\.".join(f"(?:{''.join(map(_translated, _TOKEN.finditer(part)))})" for part in pattern.split("."))


def _translated(token: re.Match[str]) -> str:
    number, digits, sign, text = token.groups()
    if number is not None:
        return f"(?P<{number}>0)" if number else "0"
    if digits:
        return "0"
    if sign:
        return r"[^.]*" if sign == "*" else "|"
    return re.escape(text)
