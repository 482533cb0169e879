"""Experts counted in each layer and held against the router's rows and the config: what is found, and nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pytest

from kimi_inspect import Checkpoint, Finding, Severity, open_checkpoint
from kimi_inspect.census import expert_findings, experts_by_layer
from kimi_inspect.facts import Facts
from kimi_inspect.testing import (
    GgufTensor,
    HollowFile,
    TensorSpec,
    hollow_gguf,
    hollow_safetensors,
    kimi_config,
    kimi_reap,
    kimi_tensors,
)

Layers = Sequence[Collection[int]]
"""For each layer the numbers of its experts."""

PROJECTIONS = ("gate", "up", "down")
FOUR = range(4)


def numbered(layer: int, experts: Collection[int]) -> Iterator[TensorSpec]:
    for expert in experts:
        for name in PROJECTIONS:
            yield TensorSpec(f"model.layers.{layer}.mlp.experts.{expert}.{name}_proj.weight", "BF16", (8, 8))


def fused(layer: int, experts: Collection[int]) -> Iterator[TensorSpec]:
    if experts:
        yield TensorSpec(f"model.layers.{layer}.mlp.experts.gate_up_proj", "BF16", (len(experts), 16, 8))
        yield TensorSpec(f"model.layers.{layer}.mlp.experts.down_proj", "BF16", (len(experts), 8, 8))


def mlx(layer: int, experts: Collection[int]) -> Iterator[TensorSpec]:
    for name in PROJECTIONS if experts else ():
        yield TensorSpec(f"model.layers.{layer}.mlp.switch_mlp.{name}_proj.weight", "BF16", (len(experts), 8, 8))


def gguf(layer: int, experts: Collection[int]) -> Iterator[GgufTensor]:
    for name in PROJECTIONS if experts else ():
        yield GgufTensor(f"blk.{layer}.ffn_{name}_exps.weight", "F32", (8, 8, len(experts)))


LAYOUTS = {"numbered": numbered, "fused": fused, "mlx": mlx, "gguf": gguf}
everywhere = pytest.mark.parametrize("layout", LAYOUTS)


def model(
    layout: str, layers: Layers, *, rows: Sequence[int | None] | int | None = 4, declared: Any = None
) -> Checkpoint:
    """Open a model of these experts; `rows` are those of each layer's router, None for one without a router."""
    routers = list(rows) if isinstance(rows, Sequence) else [rows] * len(layers)
    if layout == "gguf":
        metadata = {"general.architecture": "qwen3moe"} | ({"qwen3moe.expert_count": declared} if declared else {})
        parts = [GgufTensor(f"blk.{number}.attn_norm.weight", "F32", (8,)) for number in range(len(layers))]
        parts += [one for number, experts in enumerate(layers) for one in gguf(number, experts)]
        parts += [
            GgufTensor(f"blk.{layer}.ffn_gate_inp.weight", "F32", (8, count))
            for layer, count in enumerate(routers)
            if count is not None
        ]
        return open_checkpoint({"x.gguf": hollow_gguf(parts, metadata)})
    make = {"numbered": numbered, "fused": fused, "mlx": mlx}[layout]
    tensors = [
        TensorSpec(f"model.layers.{number}.input_layernorm.weight", "BF16", (8,)) for number in range(len(layers))
    ]
    tensors += [one for number, experts in enumerate(layers) for one in make(number, experts)]
    tensors += [
        TensorSpec(f"model.layers.{layer}.mlp.gate.weight", "BF16", (count, 8))
        for layer, count in enumerate(routers)
        if count is not None
    ]
    return opened(tensors, {"num_experts": declared} if declared else {})


def opened(tensors: Sequence[TensorSpec], config: Mapping[str, Any]) -> Checkpoint:
    written = HollowFile(json.dumps(config).encode())
    return open_checkpoint({"model.safetensors": hollow_safetensors(tensors), "config.json": written})


def told(checkpoint: Checkpoint) -> list[tuple[Any, ...]]:
    assert all(item.severity is Severity.ERROR for item in checkpoint.findings)
    return [brief(item) for item in checkpoint.findings]


def brief(item: Finding) -> tuple[Any, ...]:
    return (item.code, item.layer, item.expected, item.actual, item.count, item.examples)


@everywhere
@pytest.mark.parametrize("rows", [4, None])
@pytest.mark.parametrize("declared", [4, None, [4, 4, 4]])
def test_all_witnesses_agree(layout: str, rows: int | None, declared: Any) -> None:
    assert told(model(layout, [FOUR] * 3, rows=rows, declared=declared)) == []


@everywhere
@pytest.mark.parametrize("declared", [None, 4])
def test_dense_layers_have_none(layout: str, declared: int | None) -> None:
    assert told(model(layout, [(), FOUR, (), FOUR], rows=[None, 4, None, 4], declared=declared)) == []


@everywhere
@pytest.mark.parametrize("declared", [None, 9, 5])
def test_a_router_that_chooses_among_more_than_there_are_in_all_layers(layout: str, declared: int | None) -> None:
    found = model(layout, [FOUR] * 3, rows=9, declared=declared)
    assert told(found) == [("expert-count-disagrees", 0, 9, 4, 3, ())]
    assert found.findings[0].where == "layer 0, router"


@everywhere
def test_a_router_that_chooses_among_fewer(layout: str) -> None:
    assert told(model(layout, [FOUR] * 3, rows=[4, 3, 3])) == [("expert-count-disagrees", 1, 3, 4, 2, ())]


@everywhere
@pytest.mark.parametrize("rows", [4, None])
def test_a_pruning_that_the_config_does_not_tell_of(layout: str, rows: int | None) -> None:
    found = model(layout, [FOUR] * 3, rows=rows, declared=9)
    assert told(found) == [("expert-count-disagrees", None, 9, 4, 1, ())]
    assert found.findings[0].where == "config"


@everywhere
@pytest.mark.parametrize("declared", [None, 4, 9])
def test_layers_that_differ(layout: str, declared: Any) -> None:
    found = model(layout, [FOUR, range(2), FOUR, FOUR], rows=[4, 2, 4, 4], declared=declared)
    assert told(found) == [("experts-uneven", 1, 4, 2, 1, ("layer 1: 2",))]


@everywhere
def test_layers_that_differ_on_purpose(layout: str) -> None:
    found = model(layout, [FOUR, range(2), range(3), FOUR], rows=[4, 2, 3, 4], declared=[4, 2, 3, 4])
    assert [brief(item) for item in found.findings] == [
        ("experts-uneven", 1, 4, 2, 2, ("layer 1: 2", "layer 2: 3")),
    ]
    assert found.findings[0].severity is Severity.WARNING


@everywhere
def test_a_layer_with_a_router_and_no_expert(layout: str) -> None:
    names = tuple(f"layer 1, expert {number}" for number in FOUR)
    assert told(model(layout, [FOUR, (), FOUR])) == [("expert-missing", 1, 4, 0, 4, names)]


@everywhere
def test_the_last_expert_of_one_layer_is_missing(layout: str) -> None:
    found = model(layout, [FOUR, FOUR, range(3)])
    assert told(found) == [("expert-missing", 2, 4, 3, 1, ("layer 2, expert 3",))]


@pytest.mark.parametrize("rows", [4, None])
@pytest.mark.parametrize(
    ("layers", "first", "count", "examples"),
    [
        ([FOUR, (0, 1, 3), FOUR], 1, 1, ["layer 1, expert 2"]),
        ([FOUR, (1, 2, 3), FOUR], 1, 1, ["layer 1, expert 0"]),
        ([(0, 3), (0, 1, 3), FOUR], 0, 3, ["layer 0, expert 1", "layer 0, expert 2", "layer 1, expert 2"]),
        ([(0, 1, 3)] * 2, 0, 2, ["layer 0, expert 2", "layer 1, expert 2"]),
        ([(0, 2, 3), range(3), FOUR], 0, 2, ["layer 0, expert 1", "layer 1, expert 3"]),
    ],
)
def test_holes(layers: Layers, first: int, count: int, examples: list[str], rows: int | None) -> None:
    found = model("numbered", layers, rows=rows, declared=4)
    assert told(found) == [("expert-missing", first, 4, len(layers[first]), count, tuple(examples))]
    assert found.findings[0].where == examples[0]


@pytest.mark.parametrize("rows", [16, None])
def test_no_more_than_ten_examples(rows: int | None) -> None:
    found = model("numbered", [range(16), range(0, 16, 5)], rows=rows)
    ((_, _, _, actual, count, examples),) = told(found)
    assert (actual, count, len(examples)) == (4, 12, 10)


STRAY = (*FOUR, 1000)


@pytest.mark.parametrize(
    ("rows", "declared", "expected"),
    [
        (4, 4, ("expert-count-disagrees", 1, 4, 5, 1, ())),
        (4, None, ("expert-count-disagrees", 1, 4, 5, 1, ())),
        (None, 4, ("experts-uneven", 1, 4, 5, 1, ("layer 1: 5",))),
        (None, None, ("experts-uneven", 1, 4, 5, 1, ("layer 1: 5",))),
    ],
)
def test_a_stray_expert_of_a_high_number_is_one_finding(
    rows: int | None, declared: int | None, expected: tuple[Any, ...]
) -> None:
    assert told(model("numbered", [FOUR, STRAY, FOUR], rows=rows, declared=declared)) == [expected]


def test_of_a_known_family_too() -> None:
    config = kimi_config("kimi-k3.1-pro", layers=5, experts=4)
    tensors = [one for part in kimi_tensors(config).values() for one in part]
    stray = [
        TensorSpec(one.name.replace("experts.3", "experts.800"), one.dtype, one.shape)
        for one in tensors
        if "layers.2.block_sparse_moe.experts.3." in one.name
    ]
    assert len(stray) == 6
    assert told(opened([*tensors, *stray], config)) == [("expert-count-disagrees", 2, 4, 5, 1, ())]


def test_an_expert_that_is_there_in_part() -> None:
    tensors = [*numbered(0, FOUR), *numbered(1, FOUR), TensorSpec("model.layers.0.mlp.gate.weight", "BF16", (4, 8))]
    found = opened([one for one in tensors if ".1.mlp.experts.2.down" not in one.name], {})
    assert told(found) == [("expert-missing", 1, 4, 3, 1, ("layer 1, expert 2",))]
    assert "in part" in found.findings[0].message


def test_joined_matrices_of_different_numbers() -> None:
    tensors = [*fused(0, FOUR), TensorSpec("model.layers.1.mlp.experts.gate_up_proj", "BF16", (4, 16, 8))]
    tensors.append(TensorSpec("model.layers.1.mlp.experts.down_proj", "BF16", (3, 8, 8)))
    assert told(opened(tensors, {})) == [("expert-missing", 1, 4, 3, 1, ("layer 1, expert 3",))]


def test_what_a_config_lists_for_each_layer_is_what_should_be_there() -> None:
    found = model("numbered", [FOUR, (0,)], rows=None, declared=[4, 2])
    assert told(found) == [("expert-missing", 1, 2, 1, 1, ("layer 1, expert 1",))]


def test_shared_experts_and_their_gate_are_not_counted() -> None:
    more = ("shared_experts.gate_proj.weight", "shared_expert_gate.weight", "gate.e_score_correction_bias")
    tensors = [*numbered(0, FOUR), TensorSpec("model.layers.0.mlp.gate.weight", "BF16", (4, 8))]
    tensors += [TensorSpec(f"model.layers.0.mlp.{name}", "BF16", (1, 8)) for name in more[:2]]
    tensors.append(TensorSpec(f"model.layers.0.mlp.{more[2]}", "F32", (4,)))
    assert told(opened(tensors, {"num_experts": 4})) == []


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_the_pruned_kimis_are_what_they_say(bits: Any) -> None:
    assert told(open_checkpoint(kimi_reap(bits, layers=5, experts=7))) == []
    found = open_checkpoint(kimi_reap(bits, layers=5, experts=7, declared=16))
    assert told(found) == [("expert-count-disagrees", None, 16, 7, 1, ())]


@pytest.mark.parametrize(
    ("lost", "code"),
    [
        (r"layers.2.block_sparse_moe.experts.3.", "expert-missing"),
        (r"layers.2.block_sparse_moe.experts.1.w1.", "tensor-missing"),
    ],
)
def test_of_a_known_family_single_tensors_are_told(lost: str, code: str) -> None:
    config = kimi_config("kimi-k3.1-pro", layers=5, experts=4)
    tensors = [one for part in kimi_tensors(config).values() for one in part if lost not in one.name]
    found = opened(tensors, config)
    assert [item.code for item in found.findings] == [code]


def test_a_full_size_model_is_counted_at_once() -> None:
    """92 layers of 896 experts, one hole in each."""
    tensors = [
        TensorSpec(f"model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight", "BF16", (1,))
        for layer in range(92)
        for expert in range(896)
        if expert != 5
    ]
    table = opened(tensors, {}).tensors
    began = time.process_time()
    layers = experts_by_layer(table)
    (found,) = expert_findings(layers, Facts(experts=896), partial=True)
    assert time.process_time() - began < 2
    assert [one.count for one in layers] == [895] * 92
    assert brief(found) == ("expert-missing", 0, 896, 895, 92, tuple(f"layer {layer}, expert 5" for layer in range(10)))
