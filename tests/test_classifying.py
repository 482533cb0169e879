"""Components over the tensors of a small Kimi and of odd mixtures."""

from __future__ import annotations

import pytest

from kimi_inspect.classifying import classify
from kimi_inspect.components import Component
from kimi_inspect.families import RULES
from kimi_inspect.names import Names
from kimi_inspect.patterns import Patterns
from kimi_inspect.table import COMPONENTS


def components(*shards: list[str]) -> dict[str, Component]:
    classes = classify(Patterns.of([Names.of(names) for names in shards]), RULES)
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
    classes = classify(Patterns.of([Names.of([name])]), RULES)
    assert (classes.layer[0], classes.block[0], classes.expert[0]) == (layer, block, expert)


def test_no_names_at_all() -> None:
    classes = classify(Patterns.of([]), RULES)
    assert len(classes.component) == len(classes.layer) == 0
