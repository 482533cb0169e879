"""One finding for one cause: what follows from a narrower one is left out, and what does not is kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from kimi_inspect import Component, Finding, Severity, open_checkpoint
from kimi_inspect.causes import Told, apart
from kimi_inspect.findings import finding
from kimi_inspect.index_check import check_index
from kimi_inspect.table import TensorTable
from kimi_inspect.testing import TensorSpec, hollow_safetensors

SHARDS = [f"model-{number:05d}-of-00002.safetensors" for number in (1, 2)]
LAYER = "model.layers.{}.mlp.experts.0.up_proj.weight"
NAMES = ["model.norm.weight", *map(LAYER.format, range(3))]


def made(code: str, count: int = 1, examples: Sequence[str] = (), **details: Any) -> Finding:
    return finding(code, "there", "so it is", count=count, examples=examples, **details)


def total(declared: object, stored: object) -> Finding:
    return made("tensor-total-wrong", expected=declared, actual=stored)


def codes(findings: Sequence[Finding]) -> list[str]:
    return [item.code for item in findings]


# ---- a total that is wrong


@pytest.mark.parametrize(
    ("others", "is_told"),
    [
        ([], True),
        ([made("tensor-missing", 2)], False),
        ([made("tensor-missing", 1)], True),
        ([made("tensor-missing", 1), made("tensor-missing", 1)], False),
        ([made("layer-missing")], False),
        ([made("component-missing")], False),
        ([made("expert-missing", actual=0)], False),
        ([made("expert-missing", actual=3)], True),
        ([made("scale-shape")], True),
        ([made("architecture-mismatch")], False),
    ],
)
def test_a_number_of_tensors_that_others_explain(others: list[Finding], *, is_told: bool) -> None:
    found = [total(12, 10), *others]
    assert codes(apart(found)) == codes(found)[not is_told :]


@pytest.mark.parametrize(("declared", "stored"), [(10, 12), ("12", 10), (None, None)])
def test_more_tensors_or_no_number_are_not_explained_by_missing_ones(declared: object, stored: object) -> None:
    assert codes(apart([total(declared, stored), made("tensor-missing", 5)])) == [
        "tensor-total-wrong",
        "tensor-missing",
    ]


def test_of_another_model_config_and_label_say_nothing() -> None:
    found = ["packing-disagrees", "architecture-mismatch", "label-disagrees", "truncated", "duplicate-tensor"]
    assert codes(apart(map(made, found))) == ["architecture-mismatch", "truncated", "duplicate-tensor"]


# ---- an index


def table(names: Sequence[str]) -> TensorTable:
    """The tensors of the first shard; the second has none."""
    files = {
        SHARDS[0]: hollow_safetensors([TensorSpec(name, "BF16", (8,)) for name in names]),
        SHARDS[1]: hollow_safetensors([]),
    }
    return open_checkpoint(files).tensors


def checked(promised: Sequence[str], found: Sequence[Finding], *, size: int | None = None) -> list[tuple[str, int]]:
    index: dict[str, Any] = {"weight_map": dict.fromkeys(promised, SHARDS[0])}
    if size is not None:
        index["metadata"] = {"total_size": size}
    said = check_index(
        [json.dumps(index).encode()], "index.json", table(NAMES), listed=SHARDS, shards=SHARDS, whole=True, found=found
    )
    return [(item.code, item.count) for item in said]


ABSENT = [("index-tensor-absent", 1)]


@pytest.mark.parametrize(
    ("name", "found", "explained"),
    [
        ("lm_head.weight", [], False),
        ("lm_head.weight", [made("tensor-missing", 1, ["lm_head.weight"])], True),
        ("lm_head.weight", [made("tensor-missing", 1, ["model.layers.0.mlp.gate.weight"])], False),
        ("lm_head.weight", [made("tensor-missing", 20, ["model.layers.0.mlp.gate.weight"])], True),
        ("lm_head.weight", [made("component-missing", expected="lm_head")], True),
        ("lm_head.weight", [made("component-missing", expected="lm_head, embeddings")], True),
        ("lm_head.weight", [made("component-missing", expected="embeddings")], False),
        ("mm_projector.proj.weight", [made("component-missing", expected="vision_tower")], True),
        ("model.layers.0.self_attn.o_proj.weight", [made("component-missing", expected="kda_attention")], True),
        (LAYER.format(7), [made("layer-missing")], True),
        (LAYER.format(10**12), [made("layer-missing")], True),
        ("model.layers.1.self_attn.q_proj.weight", [made("layer-missing")], False),
        (LAYER.format(1).replace("experts.0", "experts.3"), [made("expert-missing")], True),
        ("model.layers.1.mlp.switch_mlp.up_proj.weight", [made("expert-missing")], False),
        ("model.layers.5.mlp.switch_mlp.up_proj.weight", [made("expert-missing")], True),
        ("mtp.fc.weight", [made("mtp-missing")], True),
        ("model.layers.9.self_attn.q_proj.weight", [made("mtp-missing")], True),
        ("lm_head.weight_scale", [made("scale-missing", 1, ["lm_head.weight_scale"])], True),
        ("lm_head.weight_scale", [made("scale-missing", 1, ["x.weight_scale"])], False),
        ("lm_head.weight_scale", [made("scale-missing", 99, ["x.weight_scale"])], True),
        ("lm_head.weight", [made("scale-missing", 99, ["x.weight_scale"])], False),
        ("lm_head.weight", [made("scale-shape"), made("truncated")], False),
    ],
)
def test_an_absent_tensor_that_is_told_already(name: str, found: list[Finding], *, explained: bool) -> None:
    assert checked([*NAMES, name], found, size=999) == ([] if explained else ABSENT)


@pytest.mark.parametrize(
    ("found", "count"),
    [
        ([], 1),
        ([made("unexpected-tensor", 1, [LAYER.format(2)])], 0),
        ([made("unexpected-tensor", 1, ["x"])], 1),
        ([made("expert-count-disagrees")], 0),
        ([made("scale-missing")], 1),
    ],
)
def test_a_tensor_too_many_that_is_told_already(found: list[Finding], count: int) -> None:
    assert checked(NAMES[:-1], found) == [("unindexed-tensors", 1)] * count


@pytest.mark.parametrize(
    ("found", "is_told"),
    [
        ([], True),
        ([made("truncated")], True),
        ([made("packing-disagrees")], True),
        ([made("experts-uneven", severity=Severity.WARNING)], True),
        ([made("experts-uneven")], False),
        ([made("scale-shape")], False),
        ([made("expert-count-disagrees")], False),
        ([made("component-missing", expected="vision_tower", severity=Severity.WARNING)], False),
    ],
)
def test_a_total_that_others_explain(found: list[Finding], *, is_told: bool) -> None:
    assert checked(NAMES, found, size=999) == [("declared-total-wrong", 1)] * is_told
    assert checked(NAMES, found, size=64) == []


def test_the_index_of_another_model_says_nothing() -> None:
    assert checked(["a", "b"], [made("architecture-mismatch")], size=1) == []


def test_half_a_million_absent_names_are_judged_by_their_pattern() -> None:
    told = Told([made("component-missing", expected=str(Component.ROUTED_EXPERTS))], table(NAMES))
    names = (LAYER.format(layer).replace("experts.0", f"experts.{one}") for layer in range(92) for one in range(896))
    assert all(map(told.is_missing, names))
