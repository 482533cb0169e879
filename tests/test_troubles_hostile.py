"""Numbers and texts that no tool writes: what they promise is neither made nor compared in full.

Nothing here is timed: the inputs are so large that whoever makes what they promise runs out of memory or never ends.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from kimi_inspect import Checkpoint, open_checkpoint
from kimi_inspect.declared import Declaration, declaration_of
from kimi_inspect.facts import MAX_COUNT
from kimi_inspect.index_file import IndexFormatError, IndexReader
from kimi_inspect.testing import HollowFile, TensorSpec, hollow_safetensors, kimi_config, kimi_tensors

CONFIG = kimi_config("kimi-k3.1-pro", layers=5, experts=4)
GATE, EXPERT = "model.layers.{}.mlp.gate.weight", "model.layers.{}.mlp.experts.0.up_proj.weight"


def opened(tensors: Sequence[TensorSpec], config: Mapping[str, Any] | None = None) -> Checkpoint:
    files = {"model.safetensors": hollow_safetensors(tensors)}
    if config is not None:
        files["config.json"] = HollowFile(json.dumps(config).encode())
    return open_checkpoint(files)


# ---- numbers


def test_two_billion_experts_in_a_tensor_of_nothing() -> None:
    shape = (2_000_000_000, 0, 8)
    found = opened([TensorSpec("model.layers.0.mlp.experts.gate_up_proj", "BF16", shape)])
    assert [one.shape for one in found.tensors] == [shape]


def test_a_router_with_more_rows_than_any_memory() -> None:
    found = opened([TensorSpec(GATE.format(0), "BF16", (2**60, 0)), TensorSpec(EXPERT.format(0), "BF16", (8, 8))])
    assert {one.stored_bytes for one in found.tensors} == {0, 128}


@pytest.mark.parametrize(
    ("key", "value"), [("num_experts", 10**9), ("num_experts", 10**30), ("num_hidden_layers", 10**9)]
)
def test_a_config_that_promises_more_than_can_be(key: str, value: int) -> None:
    config = copy.deepcopy(CONFIG)
    config["text_config"][key] = value
    tensors = [one for part in kimi_tensors(CONFIG).values() for one in part]
    assert {one.name for one in opened(tensors, config).tensors} == {one.name for one in tensors}


LAYERS = range(200)
PROMISE = {"expert_counts": [MAX_COUNT for _ in LAYERS]}
"""As many experts in each layer as are believed."""


def in_each_layer(name: str, rows: int) -> list[TensorSpec]:
    return [TensorSpec(name.format(layer), "BF16", (rows, 8)) for layer in LAYERS]


def test_routers_against_a_list_of_two_hundred_million_experts() -> None:
    found = opened([*in_each_layer(GATE, 4), *in_each_layer(EXPERT, 8)], PROMISE)
    assert [(item.code, item.count) for item in found.findings] == [("expert-count-disagrees", len(LAYERS))]


def test_two_hundred_million_experts_are_missed_without_listing_them() -> None:
    found = opened(in_each_layer(EXPERT.replace("experts.0", "experts.1"), 8), PROMISE)
    assert [(item.code, item.count) for item in found.findings] == [("expert-missing", len(LAYERS) * (MAX_COUNT - 1))]
    assert len(found.findings[0].examples) < 100


# ---- texts


def declared(*targets: str) -> Declaration:
    """Read a config that declares MXFP4 for the targets and NVFP4 for all else."""
    groups = {
        "a": {"format": "mxfp4-pack-quantized", "targets": list(targets)},
        "b": {"format": "nvfp4-pack-quantized"},
    }
    return declaration_of({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": groups}})


def encoding(declaration: Declaration, module: str) -> str | None:
    spec = declaration.of(module)
    return spec.encoding if spec else None


EITHER = "(a|b|c|d|e|f|g|h)"


@pytest.mark.parametrize(
    ("pattern", "module"),
    [("a" * 1_000_000, "a" * 1_000_000), (EITHER * 2 + "(" + "a|" * 1_000_000 + "a)", "aaa")],
    ids=["letters", "alternatives"],
)
def test_a_pattern_of_a_million_letters_fits_nothing(pattern: str, module: str) -> None:
    assert encoding(declared("re:" + pattern), module) == "nvfp4"
    assert encoding(declared(f"re:{EITHER}aa"), "aaa") == "mxfp4"


def test_as_many_named_targets_as_there_are_modules() -> None:
    names = [f"model.layers.{layer}.mlp.experts.{expert}.w1" for layer in range(60) for expert in range(900)]
    declaration = declared(*names)
    assert {encoding(declaration, name) for name in names} == {"mxfp4"}
    assert {encoding(declaration, name + "_") for name in names} == {"nvfp4"}


def read(data: bytes, step: int) -> list[tuple[bytes, bytes]]:
    reader = IndexReader()
    return [one for begin in range(0, len(data), step) for one in reader.feed(data[begin : begin + step])]


def test_an_entry_without_end_comes_in_small_pieces() -> None:
    with pytest.raises(IndexFormatError, match="longer"):
        read(b'{"weight_map": {"' + b" x" * (3 << 19), 1 << 16)
