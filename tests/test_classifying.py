"""Components over the tensors of a small Kimi and of odd mixtures."""

from __future__ import annotations

import pytest

from kimi_inspect.classifying import classify
from kimi_inspect.components import Component
from kimi_inspect.families import RULES
from kimi_inspect.names import Names
from kimi_inspect.patterns import Patterns
from kimi_inspect.rules import Rule
from kimi_inspect.table import COMPONENTS


def components(*shards: list[str]) -> dict[str, Component]:
    classes = classify(Patterns.of([Names.of(names) for names in shards]), RULES["safetensors"])
    names = [name for shard in shards for name in shard]
    return {name: COMPONENTS[code] for name, code in zip(names, classes.component.tolist(), strict=True)}


KDA = "language_model.model.layers.0.self_attn.A_log"
MLA = "language_model.model.layers.1.self_attn.kv_b_proj.weight"
GATES = [f"language_model.model.layers.{layer}.self_attn.g_proj.weight" for layer in (0, 1, 2)]


def test_a_gate_is_of_the_kind_that_its_layers_other_tensors_show() -> None:
    found = components([KDA, *GATES, MLA])
    assert [found[gate] for gate in GATES] == [Component.KDA_ATTENTION, Component.MLA_ATTENTION, Component.ATTENTION]


def test_the_other_tensors_may_be_in_another_shard() -> None:
    found = components(GATES, [KDA, MLA])
    assert [found[gate] for gate in GATES] == [Component.KDA_ATTENTION, Component.MLA_ATTENTION, Component.ATTENTION]


def test_a_layer_that_shows_two_kinds_leaves_the_gate_undecided() -> None:
    found = components([KDA, MLA.replace("layers.1", "layers.0"), GATES[0]])
    assert found[GATES[0]] is Component.ATTENTION
    assert found[KDA] is Component.KDA_ATTENTION


def test_the_indexer_is_no_evidence() -> None:
    indexer = "language_model.model.layers.2.self_attn.indexer.wk.weight"
    found = components([indexer, GATES[2]])
    assert (found[indexer], found[GATES[2]]) == (Component.SPARSE_INDEXER, Component.ATTENTION)


@pytest.mark.parametrize(
    ("name", "layer", "block", "expert"),
    [
        ("language_model.model.layers.17.block_sparse_moe.experts.803.w2.weight_scale", 17, -1, 803),
        ("model.layers.17.block_sparse_moe.experts.803.w2.weight", 17, -1, 803),
        ("vision_tower.encoder.blocks.26.mlp.fc0.weight", -1, 26, -1),
        ("vision_tower.encoder.final_layernorm.weight", -1, -1, -1),
        ("mm_projector.proj.0.weight", -1, -1, -1),
        ("language_model.model.layers.3.self_attn.q_conv1d.weight", 3, -1, -1),
        ("language_model.model.layers.999999.mlp.up_proj.weight", 999_999, -1, -1),
        ("language_model.model.layers.1000000.mlp.up_proj.weight", -1, -1, -1),
        ("language_model.model.layers.1234567890123456789.mlp.up_proj.weight", -1, -1, -1),
        ("something.3.else", -1, -1, -1),
    ],
)
def test_numbers_come_out_as_layer_block_and_expert(name: str, layer: int, block: int, expert: int) -> None:
    classes = classify(Patterns.of([Names.of([name])]), RULES["safetensors"])
    assert (classes.layer[0], classes.block[0], classes.expert[0]) == (layer, block, expert)


EVERYTHING_OF_A_LAYER = ("self_attn.q_proj.weight", "mlp.experts.5.up_proj.weight", "input_layernorm.weight")


def test_a_layer_with_a_tensor_only_drafts_have_is_a_draft_altogether() -> None:
    layers = [[f"model.layers.{layer}.{name}" for name in EVERYTHING_OF_A_LAYER] for layer in (60, 61)]
    found = components(layers[0], ["model.layers.61.eh_proj.weight", "model.embed_tokens.weight"], layers[1])
    assert {name for name, component in found.items() if component is Component.MTP} == {
        *layers[1],
        "model.layers.61.eh_proj.weight",
    }


def test_drafts_beside_the_stack_leave_its_layers_alone() -> None:
    found = components(["mtp.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.q_proj.weight"])
    assert list(found.values()) == [Component.MTP, Component.ATTENTION]


RULES_OF_TWO_KINDS = (
    Rule("a.{layer}.kda", Component.KDA_ATTENTION),
    Rule("a.{layer}.linear", Component.LINEAR_ATTENTION),
    Rule("a.{layer}.mla", Component.MLA_ATTENTION),
    Rule("a.{layer}.narrow", Component.NORMS, kinds=(Component.KDA_ATTENTION,)),
    Rule("a.{layer}.wide", Component.ATTENTION, kinds=(Component.KDA_ATTENTION, Component.LINEAR_ATTENTION)),
    Rule("a.wide", Component.ATTENTION, kinds=(Component.KDA_ATTENTION,)),
)


@pytest.mark.parametrize(
    ("shown", "narrow", "wide"),
    [
        ([], Component.NORMS, Component.ATTENTION),
        (["mla"], Component.NORMS, Component.ATTENTION),
        (["kda"], Component.KDA_ATTENTION, Component.KDA_ATTENTION),
        (["linear"], Component.NORMS, Component.LINEAR_ATTENTION),
        (["kda", "mla"], Component.KDA_ATTENTION, Component.KDA_ATTENTION),
        (["kda", "linear"], Component.KDA_ATTENTION, Component.ATTENTION),
    ],
)
def test_only_the_kinds_a_rule_names_decide(shown: list[str], narrow: Component, wide: Component) -> None:
    names = [*(f"a.1.{kind}" for kind in shown), "a.1.narrow", "a.1.wide", "a.2.wide", "a.wide", "a.2.narrow"]
    classes = classify(Patterns.of([Names.of(names)]), RULES_OF_TWO_KINDS)
    found = dict(zip(names, (COMPONENTS[code] for code in classes.component.tolist()), strict=True))
    assert (found["a.1.narrow"], found["a.1.wide"]) == (narrow, wide)
    assert (found["a.2.narrow"], found["a.2.wide"], found["a.wide"]) == (
        Component.NORMS,
        Component.ATTENTION,
        Component.ATTENTION,
    )


def test_no_names_at_all() -> None:
    classes = classify(Patterns.of([]), RULES["safetensors"])
    assert len(classes.component) == len(classes.layer) == 0
