"""Units of checkpoints: they add up to the whole, nothing is lost, nothing counts twice, experts are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import ARCHITECTURES, small, small_tensors, twin
from strategies import Built, shard_sets, usual

from kimi_inspect import Checkpoint, Component, Role, open_checkpoint
from kimi_inspect.holdings import Unit, holdings_of
from kimi_inspect.testing import (
    BUILDS,
    ENCODINGS,
    GgufTensor,
    HollowFile,
    TensorSpec,
    hollow_gguf,
    hollow_safetensors,
    kimi_gguf,
    kimi_k3,
    kimi_k31_pro,
    kimi_reap,
    packed_model,
)

Units = Mapping[tuple[str, int], Unit]

KIMI_EXPERTS = 4


def held(files: Mapping[str, HollowFile], architecture: str | None = None, **options: bool) -> tuple[Checkpoint, Units]:
    checkpoint = open_checkpoint(files, **options)  # type: ignore[arg-type]
    return checkpoint, holdings_of(checkpoint.tensors, checkpoint.format, architecture=architecture)


def check_totals(checkpoint: Checkpoint, units: Units) -> None:
    """All bytes are in the units, and all parameters of every tensor that is not there for a second time."""
    seen, tensors = set(), Counter[Role]()
    known, unknown = 0, 0
    for tensor, repeated in zip(checkpoint.tensors, checkpoint.tensors.columns.repeated, strict=True):
        if not repeated:
            seen.add(tensor.name)
            tensors[tensor.role] += 1
            known += tensor.parameters or 0
            unknown += tensor.parameters is None
    assert sum(unit.stored_bytes for unit in units.values()) == int(checkpoint.tensors.stored_bytes.sum())
    assert sum(unit.tensors for unit in units.values()) == tensors[Role.WEIGHT]
    assert any(unit.parameters is None for unit in units.values()) == (unknown > 0)
    if not unknown:
        assert sum(unit.parameters or 0 for unit in units.values()) == known
    for key, unit in units.items():
        assert key == (unit.place, unit.number)
        assert unit.example in seen
        assert unit.stored_bytes >= 0
        assert unit.shape is None or not unit.uneven


# ---- totals of all that is laid out


@pytest.mark.parametrize("seed", [0, 143])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_packed_model(encoding: str, seed: int) -> None:
    model = packed_model(encoding, seed=seed)
    checkpoint, units = held(model.files)
    check_totals(checkpoint, units)
    assert sum(unit.parameters or 0 for unit in units.values()) == model.parameters
    experts = {unit.experts for unit in units.values() if unit.component is Component.ROUTED_EXPERTS}
    assert experts == {4}
    # Two layers; three globals; gpt-oss has a matrix less.
    assert len(units) == 3 + (8 + 3) + (8 + 1 + 3) - ("gpt-oss" in encoding)
    assert {unit.uneven for unit in units.values()} == {False}
    known = {unit.shape for unit in units.values() if not encoding.startswith(("bnb-nf4", "bnb-fp4"))}
    assert None not in known


@pytest.mark.parametrize("known", [True, False], ids=["with gguf's table", "without"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_layout(name: str, known: bool) -> None:
    checkpoint, units = held(small(name), ARCHITECTURES[name] if known else None)
    check_totals(checkpoint, units)
    experts = {unit.experts for unit in units.values() if unit.component is Component.ROUTED_EXPERTS}
    assert experts == (set() if name in ("Llama-3.1-8B", "gemma-3-4b") else {4})
    assert all(unit.experts is None for unit in units.values() if unit.component is Component.DENSE_MLP)
    assert len(units) <= len(small_tensors(name))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_layout_in_gguf(name: str) -> None:
    check_totals(*held(twin(name), companions=True))


@pytest.mark.parametrize("repo_id", BUILDS)
def test_a_stand_in(repo_id: str) -> None:
    checkpoint, units = held(BUILDS[repo_id](layers=5, experts=KIMI_EXPERTS))
    check_totals(checkpoint, units)
    experts = {key: unit.experts for key, unit in units.items() if unit.component is Component.ROUTED_EXPERTS}
    assert experts == {(f"ffn_{part}_exps", layer): 4 for part in ("gate", "up", "down") for layer in range(1, 5)}


def test_other_stand_ins() -> None:
    check_totals(*held(kimi_k3(layers=5, experts=KIMI_EXPERTS)))
    check_totals(*held(kimi_gguf("Q2_K", layers=5, experts=KIMI_EXPERTS, tokens=64, parts=4)))


# ---- what a unit says


def test_experts_apart() -> None:
    _, units = held(kimi_k31_pro(layers=5, experts=KIMI_EXPERTS))
    unit = units["ffn_gate_exps", 3]
    assert (unit.tensors, unit.experts, unit.shape, unit.encodings) == (4, 4, (3072, 3584), ("mxfp4",))
    assert unit.parameters == 4 * 3072 * 3584
    assert unit.stored_bytes == 4 * 3072 * (1792 + 112)
    assert (unit.each, unit.layer, unit.component) == (3072 * 3584, 3, Component.ROUTED_EXPERTS)
    assert unit.example.startswith("language_model.model.layers.3.block_sparse_moe.experts.0.w1.weight")


def test_experts_stacked() -> None:
    _, units = held(kimi_gguf("MXFP4_MOE", layers=5, experts=KIMI_EXPERTS, tokens=64, parts=4))
    unit = units["ffn_gate_exps", 3]
    assert (unit.tensors, unit.experts, unit.shape, unit.encodings) == (1, 4, (3072, 3584), ("mxfp4",))
    assert unit.stored_bytes == 4 * 3072 * (1792 + 112)
    assert units["ssm_conv1d_q", 0].shape == (12288, 4)


def test_experts_that_are_not_as_many_in_each_layer() -> None:
    _, units = held(kimi_reap(4, layers=4, expert_counts=[3, 1, 2]))
    assert [units["ffn_up_exps", layer].experts for layer in (1, 2, 3)] == [3, 1, 2]
    assert [units["ffn_gate_inp", layer].shape for layer in (1, 2, 3)] == [(3, 7168), (7168,), (2, 7168)]


def one_file(tensors: Sequence[TensorSpec]) -> dict[str, HollowFile]:
    return {"model.safetensors": hollow_safetensors(tensors)}


def test_weights_of_several_shapes_and_encodings() -> None:
    experts = "model.layers.1.mlp.experts"
    tensors = [
        TensorSpec(f"{experts}.0.up_proj.weight", "BF16", (8, 4)),
        TensorSpec(f"{experts}.1.up_proj.weight", "BF16", (4, 8)),
        TensorSpec(f"{experts}.2.up_proj.weight", "F32", (8, 4)),
        TensorSpec(f"{experts}.3.up_proj.weight", "Q9", (8, 4)),
    ]
    (unit,) = held(one_file(tensors[:2]))[1].values()
    assert (unit.shape, unit.uneven, unit.parameters, unit.experts) == (None, True, 64, 2)
    (unit,) = held(one_file([tensors[0], tensors[2]]))[1].values()
    assert (unit.shape, unit.uneven, unit.encodings, unit.encoding) == ((8, 4), False, ("bf16", "f32"), "bf16+f32")


def test_scales_that_have_lost_their_weights_keep_their_bytes() -> None:
    tensors = [
        TensorSpec("model.layers.1.self_attn.q_proj.weight_scale", "F32", (4,)),
        TensorSpec("model.layers.1.self_attn.k_scale", "F32", (1,)),
        TensorSpec("model.layers.1.mlp.experts.7.up_proj.weight_scale", "F32", (2,)),
        TensorSpec("model.layers.1.mlp.down_proj.weight", "BF16", (2, 0)),
    ]
    checkpoint, units = held(one_file(tensors))
    check_totals(checkpoint, units)
    found = {key: (unit.tensors, unit.parameters, unit.stored_bytes, unit.encodings) for key, unit in units.items()}
    assert found == {
        ("attn_q", 1): (0, 0, 16, ()),
        ("layers.{}.self_attn", 1): (0, 0, 4, ()),
        ("ffn_up_exps", 1): (0, 0, 8, ()),
        ("ffn_down", 1): (1, 0, 0, ("bf16",)),
    }
    assert units["ffn_up_exps", 1].experts is None


def test_a_convolution_over_two_frames_is_one() -> None:
    frames = [GgufTensor(name, "F32", (14, 14, 3, 1280)) for name in ("v.patch_embd.weight", "v.patch_embd.weight.1")]
    checkpoint, units = held({"mmproj.gguf": hollow_gguf(frames, {"general.architecture": "clip"})})
    check_totals(checkpoint, units)
    unit = units["v.patch_embd", -1]
    assert (unit.tensors, unit.parameters, unit.shape, unit.uneven) == (2, 2 * 14 * 14 * 3 * 1280, None, False)


def test_a_tensor_in_two_shards_counts_once_and_takes_its_bytes_twice() -> None:
    name = "model.layers.1.self_attn.q_proj.weight"
    shard = hollow_safetensors([TensorSpec(name, "BF16", (8, 4))])
    files = {f"model-0000{number}-of-00002.safetensors": shard for number in (1, 2)}
    checkpoint, units = held(files)
    check_totals(checkpoint, units)
    unit = units["attn_q", 1]
    assert (unit.tensors, unit.parameters, unit.stored_bytes, unit.shape) == (1, 32, 128, (8, 4))


def test_the_second_of_two_that_differ_shows() -> None:
    name = "model.layers.1.self_attn.q_proj.weight"
    pair = (("BF16", (8, 4)), ("F32", (4, 8)))
    files = {
        f"model-0000{number}-of-00002.safetensors": hollow_safetensors([TensorSpec(name, dtype, shape)])
        for number, (dtype, shape) in enumerate(pair, 1)
    }
    unit = held(files)[1]["attn_q", 1]
    assert (unit.tensors, unit.parameters, unit.stored_bytes, unit.uneven) == (1, 32, 192, True)
    assert unit.encodings == ("bf16", "f32")


def test_nothing() -> None:
    assert held(one_file([]))[1] == {}
    assert held({"model.gguf": hollow_gguf([], {"general.architecture": "llama"})})[1] == {}


# ---- any names


@usual
@given(built=shard_sets(max_shards=3), architecture=st.sampled_from([None, "llama", "no such"]))
def test_nothing_is_lost_and_nothing_is_there_twice(built: dict[str, Built], architecture: str | None) -> None:
    checkpoint = open_checkpoint({path: one.cut() for path, one in built.items()})
    units = holdings_of(checkpoint.tensors, checkpoint.format, architecture=architecture)
    check_totals(checkpoint, units)
    assert sum(unit.stored_bytes for unit in units.values()) == sum(
        tensor.end - tensor.begin for one in built.values() for tensor in one.tensors
    )


def numbered(layer: int, expert: int, part: str, shape: tuple[int, ...]) -> TensorSpec:
    return TensorSpec(f"model.layers.{layer}.mlp.experts.{expert}.{part}.weight", "BF16", shape)


# A layer of more than six digits is none.
layers = st.sampled_from([0, 1, 2, 10, 61, 999_999])
specs = st.builds(numbered, layers, st.integers(0, 5), st.sampled_from(["gate_proj", "up_proj", "w2"]), st.just((2, 3)))


@usual
@given(st.lists(specs, max_size=40, unique_by=lambda one: one.name))
def test_experts_are_counted(tensors: list[TensorSpec]) -> None:
    checkpoint, units = held(one_file(tensors))
    check_totals(checkpoint, units)
    places = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "w2": "ffn_down_exps"}
    expected = Counter((places[one.name.split(".")[-2]], int(one.name.split(".")[2])) for one in tensors)
    assert {key: unit.experts for key, unit in units.items()} == expected
    assert {unit.each for unit in units.values()} <= {prod((2, 3))}
