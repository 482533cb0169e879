from __future__ import annotations

import re
from itertools import product

import pytest

from kimi_inspect.components import GROUPS, Component, Group
from kimi_inspect.families import EXPECTATIONS, RULES, family_of
from kimi_inspect.rules import NOTHING, Judgement, Rule, judge

KINDS = (Component.KDA_ATTENTION, Component.MLA_ATTENTION)
EXPERTS = Rule("layers.{layer}.moe.experts.{expert}", Component.ROUTED_EXPERTS)
RULES_TRIED = (
    EXPERTS,
    Rule("blocks.{block}.conv1d|fc*", Component.VISION_TOWER),
    Rule("layers.{layer}.stack.{}.attn", Component.ATTENTION, kinds=KINDS),
    Rule("layers.{layer}", Component.NORMS),
)


@pytest.mark.parametrize(
    ("text", "judgement"),
    [
        ("layers.0.moe.experts.0.w0.weight", Judgement(Component.ROUTED_EXPERTS, layer=0, expert=1)),
        ("model.layers.0.moe.experts.0", Judgement(Component.ROUTED_EXPERTS, layer=0, expert=1)),
        ("language_model.model.layers.0.moe.experts.0.x", Judgement(Component.ROUTED_EXPERTS, layer=0, expert=1)),
        ("blocks.0.conv0d.weight", Judgement(Component.VISION_TOWER, block=0)),
        ("blocks.0.fc0.weight", Judgement(Component.VISION_TOWER, block=0)),
        ("blocks.0.fc.weight", Judgement(Component.VISION_TOWER, block=0)),
        ("layers.0.stack.0.attn.q", Judgement(Component.ATTENTION, KINDS, layer=0)),
        ("layers.0.moe.expertsx.0", Judgement(Component.NORMS, layer=0)),
        ("layers.0", Judgement(Component.NORMS, layer=0)),
        ("layersx.0.norm", NOTHING),
        ("other.layers.0.norm", NOTHING),
        ("blocks.0.conv0dx.weight", NOTHING),
        ("blocks.x.fc0.weight", NOTHING),
        ("", NOTHING),
    ],
)
def test_a_rule_fits_leading_parts_and_says_which_number_is_what(text: str, judgement: Judgement) -> None:
    assert judge(text, RULES_TRIED) == judgement


def test_the_first_rule_that_fits_decides() -> None:
    assert judge("layers.0.moe.experts.0.w0", RULES_TRIED[::-1]).component is Component.NORMS


def test_a_pattern_is_no_regular_expression() -> None:
    assert judge("axb", (Rule("a.b", Component.NORMS),)) == NOTHING
    assert judge("a+.b", (Rule("a+.b", Component.NORMS),)).component is Component.NORMS


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("KimiK31ForConditionalGeneration", "kimi-k31"),
        ("kimi_k31", "kimi-k31"),
        ("kimi-k31", "kimi-k31"),
        ("KimiK3ForConditionalGeneration", "kimi-k3"),
        ("kimi_k3", "kimi-k3"),
        ("KimiLinearForCausalLM", "kimi-linear"),
        ("DeepseekV3ForCausalLM", "deepseek-v3"),
        ("deepseek_v3", "deepseek-v3"),
        ("LlamaForCausalLM", "llama"),
        ("GPT2LMHeadModel", "gpt2"),
        ("BertModel", "bert"),
        ("", None),
        (None, None),
    ],
)
def test_a_family_has_one_spelling(name: str | None, family: str | None) -> None:
    assert family_of(name) == family


def test_families_with_an_inventory_are_spelt_as_normalised() -> None:
    assert all(family_of(family) == family for family in EXPECTATIONS)


def test_every_component_has_a_group_and_every_group_a_component() -> None:
    assert set(GROUPS) == set(Component)
    assert set(GROUPS.values()) == set(Group)
    assert Component("kda_attention").group is Group.ATTENTION


def made_from(pattern: str) -> list[str]:
    """Every name that can be read off a pattern."""
    alternatives = [part.split("|") for part in pattern.split(".")]
    names = [".".join(parts) for parts in product(*alternatives)]
    return [re.sub(r"\{\w*\}|[0-9]+", "0", name).replace("*", "any") for name in names]


@pytest.mark.parametrize("form", RULES)
def test_no_rule_is_shadowed(form: str) -> None:
    """For all that can be read off a rule the table says what the rule says, and for some of it no rule before does."""
    for number, rule in enumerate(RULES[form]):
        texts = made_from(rule.pattern)
        for text in texts:
            assert judge(text, RULES[form]) == judge(text, (rule,)), (rule.pattern, text)
        assert any(judge(text, RULES[form][:number]) == NOTHING for text in texts), rule.pattern


@pytest.mark.parametrize("form", RULES)
def test_kinds_are_of_attention_and_shown_by_certain_rules(form: str) -> None:
    certain = {rule.component for rule in RULES[form] if not rule.kinds}
    for rule in RULES[form]:
        assert {kind.group for kind in rule.kinds} <= {Group.ATTENTION}, rule.pattern
        assert set(rule.kinds) <= certain, rule.pattern
        assert not rule.kinds or "{layer}" in rule.pattern, rule.pattern


@pytest.mark.parametrize("form", RULES)
def test_whatever_is_fused_is_an_expert_and_has_no_number_of_one(form: str) -> None:
    fused = [rule for rule in RULES[form] if rule.fused]
    assert fused
    assert {rule.component for rule in fused} == {Component.ROUTED_EXPERTS}
    assert not [rule for rule in fused if "{expert}" in rule.pattern]
