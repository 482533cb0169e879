"""Two checkpoints held against each other: what converters do is no difference, and each single damage is one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import ARCHITECTURES, DRAFTS, small, twin
from strategies import few

from kimi_inspect import Component, open_checkpoint
from kimi_inspect.differences import Differences, Pair, differences_of
from kimi_inspect.families.converted import FUSED, PRODUCTS
from kimi_inspect.holdings import Unit, holdings_of
from kimi_inspect.places import places_of
from kimi_inspect.testing import (
    BUILDS,
    ENCODINGS,
    GgufTensor,
    HollowFile,
    KimiRecipe,
    TensorSpec,
    hollow_gguf,
    hollow_safetensors,
    kimi_2bit,
    kimi_gguf,
    kimi_k3,
    kimi_k31_pro,
    kimi_mlx,
    kimi_mmproj,
    kimi_nf12,
    kimi_pruned,
    kimi_reap,
    packed_model,
)
from kimi_inspect.testing.parts import take_apart, weight_paths

Key = tuple[str, int]
Units = Mapping[Key, Unit]
Files = Mapping[str, HollowFile]

SMALL = {"layers": 5, "experts": 4}
RECIPES: tuple[KimiRecipe, ...] = ("MXFP4_MOE", "Q2_K", "UD-Q4_K_XL", "UD-Q8_K_XL")


def held(files: Files, architecture: str | None = None, **options: Any) -> Units:
    checkpoint = open_checkpoint(files, **options)
    return holdings_of(checkpoint.tensors, checkpoint.format, architecture=architecture)


def keys(units: Iterable[Unit]) -> set[Key]:
    return {(unit.place, unit.number) for unit in units}


def key(pair: Pair) -> Key:
    return pair.reference.place, pair.reference.number


def check_intact(differences: Differences) -> None:
    assert (differences.misfits, differences.missing, differences.added, differences.pruned) == ((), (), (), {})


def check_same(units: Units, **options: bool) -> None:
    """Hold a checkpoint against itself."""
    differences = differences_of(units, units, **options)
    check_intact(differences)
    assert {key(pair) for pair in differences.pairs if not pair.is_stored_alike} == set()
    assert not any(pair.recomputed for pair in differences.pairs)
    assert sum(pair.candidate.parameters or 0 for pair in differences.pairs) <= sum(
        unit.parameters or 0 for unit in units.values()
    )


@cache
def official() -> Units:
    return held(kimi_k31_pro(**SMALL))


# ---- a build against itself


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_packed_model_against_itself(encoding: str) -> None:
    check_same(held(packed_model(encoding).files))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_layout_against_itself(name: str) -> None:
    for architecture in (None, ARCHITECTURES[name]):
        units = held(small(name), architecture)
        check_same(units)
        check_same(units, tied=True, converted=True)
    check_same(held(twin(name), companions=True))


@pytest.mark.parametrize("repo_id", BUILDS)
def test_a_stand_in_against_itself(repo_id: str) -> None:
    check_same(held(BUILDS[repo_id](**SMALL)))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_gguf_against_itself(recipe: KimiRecipe) -> None:
    check_same(held(kimi_gguf(recipe, **SMALL, tokens=64, parts=4)))


# DeepSeek V4 has names of its own, which no converter has turned into others.
@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if "deepseek" not in name])
def test_one_model_in_two_encodings_is_the_same_model(encoding: str) -> None:
    """Against BF16 in each format: nothing is missing, whatever the names and the packing."""
    candidate = packed_model(encoding)
    mine = held(candidate.files, "gpt-oss" if "gpt-oss" in encoding else "qwen3moe")
    for other in ("bf16", "gguf-bf16"):
        its = held(packed_model(other).files, "qwen3moe")
        check_intact(differences_of(its, mine, converted=True))
        check_intact(differences_of(mine, its, converted=True))


# ---- the official Kimi K3.1 Pro against its builds


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_gguf_lacks_the_vision_parts_alone(recipe: KimiRecipe) -> None:
    mine = held(kimi_gguf(recipe, **SMALL, tokens=64, parts=4))
    differences = differences_of(official(), mine, converted=True)
    check_intact(replace_missing(differences))
    assert {unit.component for unit in differences.missing} == {Component.VISION_TOWER, Component.PROJECTOR}
    vision = {unit_key for unit_key, unit in official().items() if unit.component.group == "multimodal"}
    assert keys(differences.missing) == vision
    experts = [pair for pair in differences.pairs if pair.reference.component is Component.ROUTED_EXPERTS]
    assert len(experts) == 3 * 4
    assert {pair.is_stored_alike for pair in experts} == {recipe != "Q2_K"}
    assert {key(pair)[0] for pair in differences.pairs if pair.recomputed} == {
        *("attn_res_score", "ffn_res_score", "output_res_score", "ssm_a")
    }
    check_intact(replace_missing(differences_of(mine, official(), converted=True)))


def replace_missing(differences: Differences) -> Differences:
    """Leave out what one side has of vision."""

    def text(units: Sequence[Unit]) -> tuple[Unit, ...]:
        return tuple(unit for unit in units if unit.component.group != "multimodal")

    return Differences(
        pairs=differences.pairs,
        misfits=differences.misfits,
        missing=text(differences.missing),
        added=text(differences.added),
        pruned=differences.pruned,
    )


def test_a_gguf_with_its_vision_projector_lacks_nothing() -> None:
    files = {**kimi_gguf("MXFP4_MOE", **SMALL, tokens=64, parts=4), "mmproj-BF16.gguf": kimi_mmproj("BF16")}
    differences = differences_of(official(), held(files, companions=True), converted=True)
    check_intact(differences)
    tower = [pair for pair in differences.pairs if pair.reference.place == "v.blk.attn_qkv"]
    assert (len(tower), {pair.is_stored_alike for pair in tower}) == (27, {True})


def test_only_encodings_differ_in_mxfp4_moe() -> None:
    differences = differences_of(official(), held(kimi_gguf("MXFP4_MOE", **SMALL, tokens=64, parts=4)), converted=True)
    changed = {
        (pair.reference.encoding, pair.candidate.encoding) for pair in differences.pairs if not pair.is_stored_alike
    }
    assert changed == {("bf16", "q8_0"), ("bf16", "f32"), ("f32", "f32")}
    same = {pair.reference.place for pair in differences.pairs if not pair.is_stored_alike} & {"ssm_a"}
    assert same == {"ssm_a"}


def test_the_mlx_repack_stores_all_alike() -> None:
    differences = differences_of(official(), held(kimi_mlx(**SMALL)))
    check_intact(differences)
    assert {pair.is_stored_alike for pair in differences.pairs} == {True}
    assert len(differences.pairs) == len(official())


def test_two_bits_are_other_encodings_alone() -> None:
    differences = differences_of(official(), held(kimi_2bit(**SMALL)))
    check_intact(differences)
    experts = [pair for pair in differences.pairs if pair.reference.component is Component.ROUTED_EXPERTS]
    assert {(pair.reference.encoding, pair.candidate.encoding) for pair in experts} == {("mxfp4", "affine2")}


@pytest.mark.parametrize("bits", [4, 6, 8])
@pytest.mark.parametrize("kept", [1, 2, 3])
def test_reap_leaves_experts_out(bits: Any, kept: int) -> None:
    differences = differences_of(official(), held(kimi_reap(bits, layers=5, experts=kept)))
    assert differences.pruned == dict.fromkeys(range(1, 5), (4, kept))
    assert (differences.misfits, differences.missing, differences.added) == ((), (), ())
    experts = [pair for pair in differences.pairs if pair.reference.component is Component.ROUTED_EXPERTS]
    assert {pair.is_stored_alike for pair in experts} == {True}


def test_reap_leaves_out_more_in_some_layers() -> None:
    differences = differences_of(official(), held(kimi_reap(4, layers=5, expert_counts=[3, 4, 2, 1])))
    assert differences.pruned == {1: (4, 3), 3: (4, 2), 4: (4, 1)}
    assert (differences.misfits, differences.missing, differences.added) == ((), (), ())


def test_pruned_and_all_else_alike() -> None:
    differences = differences_of(official(), held(kimi_pruned(layers=5, experts=3)))
    assert differences.pruned == dict.fromkeys(range(1, 5), (4, 3))
    assert (differences.misfits, differences.missing, differences.added) == ((), (), ())
    assert {pair.is_stored_alike for pair in differences.pairs} == {True}


def test_more_experts_are_no_pruning() -> None:
    differences = differences_of(held(kimi_pruned(layers=2, experts=3)), held(kimi_k31_pro(layers=2, experts=4)))
    assert differences.pruned == {}
    places = {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_inp", "exp_probs_b.bias"}
    assert {key(pair) for pair in differences.misfits} == {(place, 1) for place in places}


def test_nf12_is_unknown() -> None:
    files = kimi_nf12(**SMALL)
    differences = differences_of(official(), held(files))
    assert (differences.misfits, differences.missing, differences.pruned) == ((), (), {})
    # What no rule knows holds no parameters: a codebook is nothing that is there besides.
    assert differences.added == ()
    unknown = [pair for pair in differences.pairs if pair.candidate.parameters is None]
    names = [tensor.name for path in weight_paths(files) for tensor in take_apart(files[path]).tensors]
    assert len(unknown) == sum(name.endswith("nf12_codebook") for name in names) > 0
    assert {pair.candidate.encoding for pair in unknown} == {"unknown:u8"}
    assert not any(pair.is_stored_alike for pair in unknown)
    assert all(pair.is_stored_alike for pair in differences.pairs if pair not in unknown)


def test_k3_lacks_the_indexer() -> None:
    differences = differences_of(official(), held(kimi_k3(**SMALL)))
    assert {unit.component for unit in differences.missing} == {Component.SPARSE_INDEXER}
    places = {"attn_q_b", "attn_k", "k_norm", "k_norm.bias", "proj"}
    assert keys(differences.missing) == {(f"indexer.{place}", 3) for place in places}
    check_intact(replace_missing(Differences(pairs=differences.pairs, misfits=differences.misfits)))
    assert (differences.added, differences.pruned) == ((), {})
    assert {pair.is_stored_alike for pair in differences.pairs} == {True}
    assert keys(differences_of(held(kimi_k3(**SMALL)), official()).added) == keys(differences.missing)


# ---- other families, converted by gguf's table


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_conversion_is_no_difference(name: str) -> None:
    its, mine = held(small(name), ARCHITECTURES[name]), held(twin(name), companions=True)
    differences = differences_of(its, mine, tied=name.startswith("gemma"), converted=True)
    assert (differences.misfits, differences.added, differences.pruned) == ((), (), {})
    drafts = re.compile(DRAFTS.get(name, "$^"))
    assert keys(differences.missing) == keys(unit for unit in its.values() if drafts.search(unit.example))
    # It is no guess: nothing had to be paired for being left over.
    assert differences_of(its, mine, tied=name.startswith("gemma")) == differences
    assert {pair.candidate.encoding for pair in differences.pairs} <= {"bf16", "f32", "mxfp4"}
    back = differences_of(mine, its, tied=name.startswith("gemma"), converted=True)
    assert (back.misfits, back.missing, keys(back.added)) == ((), (), keys(differences.missing))


def test_gpt_oss_keeps_its_experts_as_they_were() -> None:
    differences = differences_of(held(small("gpt-oss-20b"), "gpt-oss"), held(twin("gpt-oss-20b")), converted=True)
    experts = [pair for pair in differences.pairs if pair.reference.encoding == "mxfp4"]
    assert {pair.reference.place for pair in experts} == {"ffn_gate_up_exps", "ffn_down_exps"}
    assert {pair.is_stored_alike for pair in experts} == {True}


def safetensors(tensors: Mapping[str, tuple[int, ...]]) -> Files:
    return {"model.safetensors": hollow_safetensors([TensorSpec(*one) for one in as_rows(tensors, "BF16")])}


def gguf(tensors: Mapping[str, tuple[int, ...]]) -> Files:
    rows = [GgufTensor(name, kind, shape[::-1]) for name, kind, shape in as_rows(tensors, "F32")]
    return {"model.gguf": hollow_gguf(rows, {"general.architecture": "llama"})}


def as_rows(tensors: Mapping[str, tuple[int, ...]], dtype: str) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(name, dtype, shape) for name, shape in tensors.items()]


FACTS: Mapping[str, tuple[str, str, str]] = {
    "phi3 keeps two matrices in one": (
        "phi3",
        "model.layers.3.self_attn.qkv_proj.weight 24 8, model.layers.3.mlp.gate_up_proj.weight 32 8",
        "blk.3.attn_qkv.weight 24 8, blk.3.ffn_up.weight 32 8, rope_factors_long.weight 4",
    ),
    "matrices that GGUF has in one": (
        "falcon",
        *(
            ", ".join(f"model.layers.3.self_attn.{one}_proj.weight 8 8" for one in "qkv"),
            "blk.3.attn_qkv.weight 24 8",
        ),
    ),
    "older DeepSeek files": (
        "deepseek2",
        "model.layers.3.self_attn.kv_b_proj.weight 64 8",
        "blk.3.attn_kv_b.weight 64 8",
    ),
    "newer DeepSeek files": (
        "deepseek2",
        "model.layers.3.self_attn.kv_b_proj.weight 64 8",
        "blk.3.attn_k_b.weight 4 8 8, blk.3.attn_v_b.weight 4 8 8",
    ),
    "queries and keys fused": (
        "deepseek2",
        "model.layers.3.self_attn.fused_qkv_a_proj_with_mqa.weight 20 8",
        "blk.3.attn_q_a.weight 12 8, blk.3.attn_kv_a_mqa.weight 8 8",
    ),
    "the first files of Mixtral": (
        "llama",
        ", ".join(f"model.layers.3.block_sparse_moe.experts.{expert}.w1.weight 8 4" for expert in (0, 1)),
        ", ".join(f"blk.3.ffn_gate.{expert}.weight 8 4" for expert in (0, 1)),
    ),
    "a convolution over two frames": (
        "qwen2vl",
        "visual.patch_embed.proj.weight 12 3 2 14 14",
        "v.patch_embd.weight 12 3 14 14, v.patch_embd.weight.1 12 3 14 14",
    ),
    "BERT": (
        "bert",
        """bert.embeddings.word_embeddings.weight 32 8, bert.embeddings.token_type_embeddings.weight 2 8,
        bert.embeddings.position_ids 1 16, bert.encoder.layer.3.attention.self.query.bias 8,
        bert.encoder.layer.3.output.LayerNorm.weight 8""",
        "token_embd.weight 32 8, token_types.weight 2 8, blk.3.attn_q.bias 8, blk.3.layer_output_norm.weight 8",
    ),
    "GPT-2 brings its masks": (
        "gpt2",
        "h.3.attn.c_attn.weight 8 24, h.3.attn.bias 1 1 16 16, h.3.attn.masked_bias 1, h.3.attn.c_attn.bias 24",
        "blk.3.attn_qkv.weight 24 8, blk.3.attn_qkv.bias 24",
    ),
    "rotary frequencies": (
        "llama",
        "model.layers.3.self_attn.o_proj.weight 8 8, model.layers.3.self_attn.rotary_emb.inv_freq 4",
        "blk.3.attn_output.weight 8 8, rope_freqs.weight 4",
    ),
    "rows that stand for no token": (
        "gemma3",
        "language_model.model.embed_tokens.weight 320 8",
        "token_embd.weight 256 8",
    ),
    "experts turned, two matrices in one": (
        "llama4",
        """language_model.model.layers.3.feed_forward.experts.gate_up_proj 4 8 32,
        language_model.model.layers.3.feed_forward.experts.down_proj 4 16 8""",
        "blk.3.ffn_gate_exps.weight 4 16 8, blk.3.ffn_up_exps.weight 4 16 8, blk.3.ffn_down_exps.weight 4 8 16",
    ),
    "experts one below another": (
        "dbrx",
        "transformer.blocks.3.ffn.experts.mlp.w1 64 8",
        "blk.3.ffn_gate_exps.weight 4 16 8",
    ),
    "the first norm of RWKV is of no block": (
        "rwkv6",
        "rwkv.blocks.0.pre_ln.weight 8, rwkv.blocks.0.ln1.weight 8",
        "token_embd_norm.weight 8, blk.0.attn_norm.weight 8",
    ),
    "a name that gguf does not know": (
        "llama",
        "model.layers.3.self_attn.wqkv.weight 24 8, model.layers.3.self_attn.o_proj.weight 8 8",
        "blk.3.attn_q.weight 8 8, blk.3.attn_k.weight 8 8, blk.3.attn_v.weight 8 8, blk.3.attn_output.weight 8 8",
    ),
}


def shapes(text: str) -> dict[str, tuple[int, ...]]:
    rows = (row.split() for row in text.split(","))
    return {name: tuple(map(int, sides)) for name, *sides in rows}


@pytest.mark.parametrize("fact", FACTS)
def test_what_converters_do(fact: str) -> None:
    architecture, original, made = FACTS[fact]
    its, mine = held(safetensors(shapes(original)), architecture), held(gguf(shapes(made)))
    check_intact(differences_of(its, mine, converted=True))


def test_a_head_that_is_the_embeddings() -> None:
    embedding, head = {"model.embed_tokens.weight": (32, 8)}, {"lm_head.weight": (32, 8)}
    its, mine = held(safetensors({**embedding, **head}), "llama"), held(gguf({"token_embd.weight": (32, 8)}))
    check_intact(differences_of(its, mine, tied=True, converted=True))
    assert keys(differences_of(its, mine, converted=True).missing) == {("output", -1)}
    assert keys(differences_of(mine, its, tied=True, converted=True).added) == {("output", -1)}


def test_what_is_left_over_is_paired_only_where_it_holds_as_much() -> None:
    its = held(safetensors({"model.layers.3.self_attn.wqkv.weight": (24, 8)}), "llama")
    mine = held(gguf({"blk.3.attn_q.weight": (8, 8), "blk.3.attn_k.weight": (8, 8)}))
    differences = differences_of(its, mine, converted=True)
    assert keys(differences.missing) == {("layers.{}.self_attn.wqkv", 3)}
    assert keys(differences.added) == {("attn_q", 3), ("attn_k", 3)}
    whole = held(gguf({"blk.3.attn_q.weight": (8, 8), "blk.3.attn_k.weight": (16, 8)}))
    check_intact(differences_of(its, whole, converted=True))
    assert differences_of(its, whole).missing


def test_a_layer_under_another_number_is_not_left_over() -> None:
    its = held(safetensors({f"model.layers.{layer}.self_attn.o_proj.weight": (8, 8) for layer in (2, 3)}), "llama")
    mine = held(gguf({f"blk.{layer}.attn_output.weight": (8, 8) for layer in (2, 7)}))
    differences = differences_of(its, mine, converted=True)
    assert (keys(differences.missing), keys(differences.added)) == ({("attn_output", 3)}, {("attn_output", 7)})


def test_a_tower_under_names_that_gguf_does_not_know_is_paired_as_a_whole() -> None:
    its = held(safetensors({f"vision_tower.body.{block}.mix.weight": (8, 8) for block in (0, 1)}), "llama")
    mine = held(gguf({f"v.blk.{block}.attn_out.weight": (8, 8) for block in (0, 1)}))
    check_intact(differences_of(its, mine, converted=True))


def test_a_gguf_of_a_pruned_model() -> None:
    mine = held(kimi_gguf("MXFP4_MOE", layers=5, experts=3, tokens=64, parts=4))
    differences = differences_of(official(), mine, converted=True)
    assert differences.pruned == dict.fromkeys(range(1, 5), (4, 3))
    assert (differences.misfits, differences.added) == ((), ())


def test_a_draft_is_pruned_with_the_model() -> None:
    def model(experts: int) -> Units:
        names = {f"model.layers.4.mlp.experts.{expert}.up_proj.weight": (8, 4) for expert in range(experts)}
        router = {"model.layers.4.mlp.gate.weight": (experts, 4), "model.layers.4.eh_proj.weight": (4, 8)}
        return held(safetensors(names | router))

    differences = differences_of(model(4), model(3))
    assert differences.pruned == {4: (4, 3)}
    assert (differences.misfits, differences.missing, differences.added) == ((), (), ())


# ---- one thing damaged

Told = dict[Key, object]
Damage = Callable[[TensorSpec], TensorSpec | None]


def told(differences: Differences) -> Told:
    """What is said of each unit, where something is."""
    found: Told = {key(pair): ("misfit", pair.candidate.encodings) for pair in differences.misfits}
    found |= {
        key(pair): ("other", pair.candidate.encodings, pair.candidate.stored_bytes)
        for pair in differences.pairs
        if not pair.is_stored_alike
    }
    found |= dict.fromkeys(keys(differences.missing), "missing") | dict.fromkeys(keys(differences.added), "added")
    return found | {("pruned", layer): counts for layer, counts in differences.pruned.items()}


def changed(one: Told, other: Told) -> set[Key]:
    return {place for place in one.keys() | other.keys() if one.get(place) != other.get(place)}


def drop(_: TensorSpec) -> None:
    return None


def widen(tensor: TensorSpec) -> TensorSpec:
    """Give it one row more."""
    return replace(tensor, shape=(tensor.shape[0] + 1, *tensor.shape[1:]) if tensor.shape else (2,))


def turn(tensor: TensorSpec) -> TensorSpec:
    """Swap its rows and columns; where that changes nothing, widen it."""
    is_turned = len(tensor.shape) == 2 and 1 not in tensor.shape and tensor.shape[0] != tensor.shape[1]
    return replace(tensor, shape=tensor.shape[::-1]) if is_turned else widen(tensor)


def retype(tensor: TensorSpec) -> TensorSpec:
    return replace(tensor, dtype={"F32": "F64", "BF16": "F32", "F16": "F32"}.get(tensor.dtype, "F16"))


def edited(files: Files, name: str, damage: Damage) -> Files:
    """Return the files with one tensor damaged, and no index to say so."""
    made = {path: file for path, file in files.items() if not path.endswith(".index.json")}
    for path in weight_paths(files):
        part = take_apart(files[path])
        if any(tensor.name == name for tensor in part.tensors):
            left = (damage(tensor) if tensor.name == name else tensor for tensor in part.tensors)
            made[path] = replace(part, tensors=tuple(tensor for tensor in left if tensor is not None)).file()
    return made


@cache
def can_be_turned(which: str) -> frozenset[str]:
    """Weights that are no less themselves with their sides swapped: blocks may not be whole then, packings others."""
    checkpoint = open_checkpoint(built(which))
    plain = [tensor.name for tensor in checkpoint.tensors if tensor.encoding in ("bf16", "f16", "f32")]
    return frozenset(plain) if checkpoint.format == "safetensors" else frozenset()


@cache
def spots(which: str) -> dict[str, Key]:
    """The place of each tensor of a build."""
    checkpoint = open_checkpoint(built(which))
    found = places_of(checkpoint.tensors, checkpoint.format)
    numbers = zip(found.place.tolist(), found.number.tolist(), strict=True)
    return dict(zip(checkpoint.tensors.name, ((found.texts[place], number) for place, number in numbers), strict=True))


def packed(encoding: str) -> Files:
    return packed_model(encoding).files


OTHERS: Mapping[str, Callable[[], Files]] = {
    "mlx": partial(kimi_mlx, **SMALL),
    "2bit": partial(kimi_2bit, **SMALL),
    "MXFP4_MOE": partial(kimi_gguf, "MXFP4_MOE", **SMALL, tokens=64, parts=4),
    "UD-Q8_K_XL": partial(kimi_gguf, "UD-Q8_K_XL", **SMALL, tokens=64, parts=4),
}
"""Kimi's builds with names of their own."""
BUILT: Mapping[str, Callable[[], Files]] = {
    **OTHERS,
    "official": partial(kimi_k31_pro, **SMALL),
    **{f"packed {encoding}": partial(packed, encoding) for encoding in ENCODINGS},
    **{f"layout {name}": partial(small, name) for name in ARCHITECTURES},
}


@cache
def built(which: str) -> Files:
    return BUILT[which]()


@cache
def units_of(which: str) -> Units:
    return held(built(which))


def damaged(builds: Iterable[str], damages: Sequence[Damage]) -> st.SearchStrategy[tuple[str, str, Damage]]:
    """A build, one of its tensors, and what is done to it."""
    return st.sampled_from(sorted(builds)).flatmap(
        lambda which: st.tuples(st.just(which), st.sampled_from(sorted(spots(which))), st.sampled_from(damages))
    )


@few
@given(damaged(BUILT, (drop, widen, turn, retype)))
def test_in_the_same_format_a_damage_is_one_unit(found: tuple[str, str, Damage]) -> None:
    which, name, damage = found
    if damage is turn and name not in can_be_turned(which):
        damage = widen
    differences = differences_of(units_of(which), held(edited(built(which), name, damage)))
    expected = set() if name.endswith(".inv_freq") else {spots(which)[name]}  # loaders compute it
    assert changed({}, told(differences)) == expected


def places_in(its: Units, place: Key, damage: Damage) -> set[Key]:
    """What a damage to a place of another format shows as: a part as the whole, a product that is gone as factors."""
    text, number = place
    if text in PRODUCTS:
        return {place} | ({(factor, number) for factor in PRODUCTS[text]} if damage is drop else set())
    return {(whole, number) for whole, parts in FUSED.items() if text in parts} & its.keys() or {place}


@few
@given(damaged(OTHERS, (drop, widen, retype)), st.booleans())
def test_in_another_format_a_damage_is_one_unit(found: tuple[str, str, Damage], converted: bool) -> None:
    which, name, damage = found
    intact = differences_of(official(), units_of(which), converted=converted)
    differences = differences_of(official(), held(edited(built(which), name, damage)), converted=converted)
    expected = places_in(official(), spots(which)[name], damage)
    assert changed(told(intact), told(differences)) == expected
