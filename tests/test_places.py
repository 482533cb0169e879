"""Places of tensors, held against gguf's own table of names for every architecture, and the ways names are written."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

import pytest
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES
from gguf.tensor_mapping import TensorNameMap
from hypothesis import given
from hypothesis import strategies as st
from small_models import ARCHITECTURES, small
from strategies import tensor_names, usual

from kimi_inspect import TensorTable, open_checkpoint, places
from kimi_inspect.families import converted
from kimi_inspect.families.converted import is_buffer, place_of
from kimi_inspect.places import module_of, places_of
from kimi_inspect.rules import NOTHING
from kimi_inspect.testing import (
    ENCODINGS,
    GgufTensor,
    HollowFile,
    TensorSpec,
    hollow_gguf,
    hollow_safetensors,
    kimi_gguf_tensors,
    kimi_k31_pro,
    kimi_mlx,
    kimi_mmproj,
    packed_model,
)

Spot = tuple[str, int]

BLOCK = 7


def spots(table: TensorTable, weights_format: str, architecture: str | None = None) -> list[Spot]:
    found = places_of(table, weights_format, architecture=architecture)
    return [(found.texts[place], int(number)) for place, number in zip(found.place, found.number, strict=True)]


def table_of(names: Iterable[str], weights_format: str) -> TensorTable:
    if weights_format == "gguf":
        gguf = hollow_gguf([GgufTensor(name, "F32", (8,)) for name in names], {"general.architecture": "llama"})
        return open_checkpoint({"model.gguf": gguf}).tensors
    file = hollow_safetensors([TensorSpec(name, "BF16", (8,)) for name in names])
    return open_checkpoint({"model.safetensors": file}).tensors


def spelled(names: Sequence[str], weights_format: str = "safetensors", architecture: str | None = None) -> list[Spot]:
    """Return the place of each name of one model."""
    table = table_of(names, weights_format)
    found = dict(zip(table.name, spots(table, weights_format, architecture), strict=True))
    return [found[name] for name in names]


# ---- gguf's own table

# The first block's, but of none in GGUF: what pairs it with a build in GGUF is that both are left over.
OF_NO_BLOCK = {"rwkv.blocks.0.pre_ln", "model.layers.0.pre_norm"}


@pytest.fixture
def name_map(monkeypatch: pytest.MonkeyPatch) -> type[TensorNameMap]:
    """Gguf's class, which writes what is peculiar to one architecture into the table of all: into a copy here."""
    monkeypatch.setattr(TensorNameMap, "block_mappings_cfg", dict(TensorNameMap.block_mappings_cfg))
    return TensorNameMap


@pytest.mark.parametrize("arch", MODEL_ARCH_NAMES, ids=MODEL_ARCH_NAMES.get)
def test_every_name_that_gguf_knows_has_the_place_of_what_it_makes_of_it(
    arch: MODEL_ARCH, name_map: type[TensorNameMap]
) -> None:
    names = name_map(arch, BLOCK + 1)
    other_blocks = name_map(arch, BLOCK).mapping.keys() - name_map(arch, 0).mapping.keys()
    pairs = {}
    for module in names.mapping.keys() - other_blocks - OF_NO_BLOCK - {text for _, text in names.mapping.values()}:
        for leaf in (".weight", ".bias"):
            name = module.removesuffix(".weight") + leaf
            pairs[name] = f"{names.get_name(module)}{leaf}"
    written, expected = list(pairs), list(dict.fromkeys(pairs.values()))
    spots_of = dict(zip(expected, spelled(expected, "gguf"), strict=True))
    found = dict(zip(written, spelled(written, architecture=MODEL_ARCH_NAMES[arch]), strict=True))
    # All names at once are a model of one layer that drafts as well.
    plain = {name: (place.removeprefix("mtp."), number) for name, (place, number) in found.items()}
    wanted = {name: (spots_of[text][0].removeprefix("mtp."), spots_of[text][1]) for name, text in pairs.items()}
    differing = {name for name in pairs if plain[name] != wanted[name]}
    assert {name for name in differing if not is_buffer(plain[name][0].removesuffix(".bias"))} == set()
    assert {plain[name][0] for name in differing} == {wanted[name][0] for name in differing}


def test_what_is_peculiar_to_one_architecture_does_not_reach_another(name_map: type[TensorNameMap]) -> None:
    assert name_map.arch_block_mappings_cfg
    names = ["model.layers.1.residual_layernorm.weight", "model.layers.1.post_attention_layernorm.weight"]
    assert spelled(names, architecture="arctic") == [("ffn_norm", 1), ("ffn_norm_exps", 1)]
    assert spelled(names[1:], architecture="llama") == [("ffn_norm", 1)]


# ---- Kimi, which gguf's table does not have yet


def kimi_spots(files: dict[str, HollowFile], *, companions: bool = False) -> set[Spot]:
    checkpoint = open_checkpoint(files, companions=companions)
    return set(spots(checkpoint.tensors, checkpoint.format))


FULL = (3,)
HALVES = {(half, layer) for half in ("attn_k_b", "attn_v_b") for layer in FULL}
WHOLE = {("attn_kv_b", layer) for layer in FULL}
LAYERS = range(5)
SCORES = {(f"{where}_res_score", layer) for where in ("attn", "ffn") for layer in LAYERS} | {("output_res_score", -1)}


def test_kimi_in_gguf_has_the_places_of_the_official_one(kimi: dict[str, HollowFile]) -> None:
    tensors = kimi_gguf_tensors("MXFP4_MOE", layers=5, experts=4)
    text = hollow_gguf(tensors, {"general.architecture": "kimi-k3"})
    found = kimi_spots({"model.gguf": text, "mmproj-F32.gguf": kimi_mmproj("F32")}, companions=True)
    factors = {(f"{place}.{factor}", number) for place, number in SCORES for factor in ("norm", "proj")}
    official = kimi_spots(kimi)
    assert found - official == HALVES | SCORES
    assert official - found == WHOLE | factors


def test_kimi_in_mlx_has_the_places_of_the_official_one(kimi: dict[str, HollowFile]) -> None:
    found, official = kimi_spots(kimi_mlx(layers=5, experts=4)), kimi_spots(kimi)
    assert (found - official, official - found) == (HALVES, WHOLE)


def test_all_of_kimi_has_a_name_in_gguf(kimi: dict[str, HollowFile]) -> None:
    assert {place for place, _ in kimi_spots(kimi) if re.search("proj$|norm_|layers|weight|[A-Z]", place)} == {
        "attn_res_score.proj",
        "ffn_res_score.proj",
        "output_res_score.proj",
        "indexer.proj",
    }


# ---- how names are written

WRITTEN = """
    safetensors - model.layers.3.mlp.experts.17.gate_proj.weight = ffn_gate_exps 3
    safetensors - model.layers.3.mlp.experts.17.gate_proj.weight_scale_inv = ffn_gate_exps 3
    safetensors - model.layers.3.block_sparse_moe.experts.17.w2.weight_packed = ffn_down_exps 3
    safetensors - model.layers.3.mlp.switch_mlp.up_proj.scales = ffn_up_exps 3
    safetensors - model.layers.3.block_sparse_moe.switch_mlp.up_proj.biases = ffn_up_exps 3
    safetensors - model.layers.3.mlp.experts.gate_up_proj_blocks = ffn_gate_up_exps 3
    safetensors - model.layers.3.mlp.experts.gate_up_proj_scales = ffn_gate_up_exps 3
    safetensors - model.layers.3.mlp.experts.gate_up_proj_bias = ffn_gate_up_exps.bias 3
    safetensors - model.layers.3.mlp.experts.gate_proj.bias = ffn_gate_exps.bias 3
    safetensors gpt-oss model.layers.3.mlp.experts.down_proj_bias = ffn_down_exps.bias 3
    safetensors gpt-oss model.layers.3.mlp.router.bias = ffn_gate_inp.bias 3
    safetensors gpt-oss model.layers.3.self_attn.sinks = attn_sinks 3
    safetensors - model.layers.3.mlp.gate.e_score_correction_bias = exp_probs_b.bias 3
    safetensors deepseek2 model.layers.3.mlp.gate.e_score_correction_bias = exp_probs_b.bias 3
    safetensors minimax-m2 model.layers.3.block_sparse_moe.e_score_correction_bias = exp_probs_b.bias 3
    safetensors - model.layers.3.self_attn.dt_bias = ssm_dt.bias 3
    safetensors kimi-linear model.layers.3.self_attn.dt_bias = ssm_dt.bias 3
    safetensors qwen3next model.layers.3.linear_attn.dt_bias = ssm_dt.bias 3
    safetensors qwen3next model.layers.3.linear_attn.A_log = ssm_a 3
    safetensors qwen2 model.layers.3.self_attn.q_proj.bias = attn_q.bias 3
    safetensors gemma3 language_model.model.layers.3.post_attention_layernorm.weight = post_attention_norm 3
    safetensors llama language_model.model.layers.3.post_attention_layernorm.weight = ffn_norm 3
    safetensors llama model.language_model.layers.3.input_layernorm.weight = attn_norm 3
    safetensors llama _orig_mod.model.layers.3.input_layernorm.weight = attn_norm 3
    safetensors bert bert.encoder.layer.3.attention.self.query.weight = attn_q 3
    safetensors bert bert.embeddings.token_type_embeddings.weight = token_types -1
    safetensors t5 encoder.block.3.layer.0.SelfAttention.q.weight = enc.blk.{}.attn_q 3
    safetensors t5 decoder.block.3.layer.0.SelfAttention.q.weight = dec.blk.{}.attn_q 3
    safetensors plamo2 model.layers.layers.3.mixer.in_proj.weight = ssm_in 3
    safetensors plamo2 model.layers.layers.3.post_mixer_norm.weight = post_attention_norm 3
    safetensors wavtokenizer-dec backbone.posnet.3.conv1.weight = posnet.{}.conv1 3
    safetensors gemma3 vision_tower.vision_model.encoder.layers.3.mlp.fc1.bias = v.blk.ffn_up.bias 3
    safetensors gemma3 multi_modal_projector.mm_input_projection_weight = mm.input_projection -1
    safetensors qwen2vl visual.patch_embed.proj.weight = v.patch_embd -1
    safetensors qwen2vl visual.merger.mlp.2.weight = mm.2 -1
    safetensors - vision_tower.encoder.blocks.3.wqkv.bias = v.blk.attn_qkv.bias 3
    safetensors - mm_projector.proj.2.weight = mm.2 -1
    safetensors phi3 model.layers.3.mlp.gate_up_proj.weight = ffn_up 3
    safetensors - lm_head.weight = output -1
    safetensors - something.of.its.own.weight = something.of.its.own -1
    safetensors - model.decoder.layers.3.fc1.weight = decoder.layers.{}.fc1 3
    gguf - blk.3.ffn_gate.7.weight = ffn_gate_exps 3
    gguf - blk.3.ffn_down_exps.scale = ffn_down_exps 3
    gguf - blk.3.exp_probs_b.bias = exp_probs_b.bias 3
    gguf - blk.3.exp_probs_b = exp_probs_b.bias 3
    gguf - blk.3.ssm_g.weight = attn_gate 3
    gguf - blk.3.ssm_a = ssm_a 3
    gguf - v.blk.3.attn_q.bias = v.blk.attn_q.bias 3
    gguf - v.patch_embd.weight = v.patch_embd -1
    gguf - v.patch_embd.weight.1 = v.patch_embd -1
    gguf - enc.blk.3.attn_q.weight = enc.blk.{}.attn_q 3
    gguf - mm.2.weight = mm.2 -1
    gguf - token_embd.weight = token_embd -1
"""


@pytest.mark.parametrize("line", WRITTEN.strip().splitlines(), ids=str.strip)
def test_a_name(line: str) -> None:
    weights_format, architecture, name, _, place, number = line.split()
    asked = None if architecture == "-" else architecture
    assert spelled([name], weights_format, asked) == [(place, int(number))]


def test_the_two_stacks_of_a_model_do_not_fall_together() -> None:
    names = [
        f"model.{side}.layers.{layer}.self_attn.k_proj.weight" for side in ("encoder", "decoder") for layer in (0, 1)
    ]
    assert len(set(spelled(names))) == len(names)
    assert spelled([name.replace("model.", "") for name in names]) == spelled(names)


def test_a_draft_that_numbers_its_layers_like_the_model_stands_apart() -> None:
    names = ["model.layers.3.self_attn.q_proj.weight", "model.layers.4.self_attn.q_proj.weight"]
    names.append("model.layers.4.eh_proj.weight")
    assert spelled(names) == [("attn_q", 3), ("mtp.attn_q", 4), ("mtp.nextn.eh_proj", 4)]


def test_a_draft_in_a_file_of_its_own_has_its_own_numbers() -> None:
    def file(*names: str) -> HollowFile:
        return hollow_safetensors([TensorSpec(name, "BF16", (8,)) for name in names])

    query = "model.layers.3.self_attn.q_proj.weight"
    files = {"model.safetensors": file(query), "mtp.safetensors": file(query, "model.norm.weight")}
    found = spots(open_checkpoint(files, companions=True).tensors, "safetensors")
    assert found == [("attn_q", 3), ("mtp.attn_q", 3), ("mtp.output_norm", -1)]


# ---- numbers in odd places, and names of a stranger's

LONG = ("1000000000000000000", "1000000000000000001", "1" * 5000)
BEYOND = ("1000000", "1000001", *LONG)
UNNUMBERED = [
    ("model.layers.{}.self_attn.q_proj.weight", BEYOND),
    ("model.layers.{}.mlp.experts.5.w1.1234567890123456789.weight", ("3", "4", "5")),
    ("model.layers.0.mlp.experts.{}.w1.weight", BEYOND),
    ("vision_tower.encoder.blocks.{}.wqkv.weight", BEYOND),
    ("model.layers.layers.{}.mixer.in_proj.weight", BEYOND),
]


@pytest.mark.parametrize("architecture", [None, "plamo2"])
@pytest.mark.parametrize(("pattern", "numbers"), UNNUMBERED)
def test_numbers_that_no_column_holds_stay_in_the_place(
    pattern: str, numbers: Sequence[str], architecture: str | None
) -> None:
    found = spelled([pattern.replace("{}", number) for number in numbers], architecture=architecture)
    assert len(set(found)) == len(numbers)
    assert {number for _, number in found} <= {-1, 0}


def test_small_numbers_beside_large_ones() -> None:
    names = [f"model.layers.{layer}.self_attn.q_proj.weight" for layer in (0, 999_999, *BEYOND)]
    first, last, *others = spelled(names)
    assert (first, last) == (("attn_q", 0), ("attn_q", 999_999))
    assert len({*others, first, last}) == len(names)


def test_what_looks_like_a_place_left_open() -> None:
    odd = ["model.layers.{}.self_attn.q_proj.weight", "{}", "{expert}", "", "weight", ".weight", "a.{expert}.b", "{0}"]
    for weights_format in ("safetensors", "gguf"):
        for architecture in (None, "llama"):
            assert [number for _, number in spelled(odd, weights_format, architecture)] == [-1] * len(odd)


@pytest.mark.parametrize("part", ["1.", "model.", "{}.", "x_bias."])
def test_a_name_of_a_million_letters_costs_little(part: str) -> None:
    name = f"visual.blocks.{part * (1_000_000 // len(part))}weight"
    assert spelled([name, "lm_head.weight"], architecture="llama")[1] == ("output", -1)


def test_no_tensors() -> None:
    for table in (table_of([], "safetensors"), table_of([], "gguf")):
        found = places_of(table, "safetensors", architecture="llama")
        assert (found.texts, len(found.place), len(found.number)) == ((), 0, 0)


@usual
@given(
    names=st.lists(tensor_names, max_size=8, unique=True),
    weights_format=st.sampled_from(["safetensors", "gguf"]),
    architecture=st.sampled_from([None, "llama", "gpt-oss", "no such"]),
)
def test_any_names(names: list[str], weights_format: str, architecture: str | None) -> None:
    table = table_of(names, weights_format)
    found = places_of(table, weights_format, architecture=architecture)
    for name, place, number in zip(table.name, found.place, found.number, strict=True):
        assert number == -1 or int(number) in {
            int(digits) for digits in re.findall("[0-9]+", name) if len(digits) <= 18
        }
        # Whatever it is called, one alone has the same place as among others.
        assert spelled([name], weights_format, architecture) == [(found.texts[place], number)]


def test_few_places_are_looked_for_however_many_names_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    table = open_checkpoint(kimi_k31_pro(layers=9, experts=896)).tensors
    asked = []

    def counting(*arguments: object) -> str:
        asked.append(arguments)
        return place_of(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(places, "place_of", counting)
    assert len(table) > 40_000
    assert len(places_of(table, "safetensors").texts) <= len(asked) < 200


def test_a_module_is_a_name_without_its_leaf_and_numbers() -> None:
    assert module_of("a.1.b_blocks", NOTHING) == "a.1.b"
    assert module_of("a.weight.quant_state.bitsandbytes__nf4", NOTHING) == "a"
    assert module_of("a.bias", NOTHING) == "a.bias"
    assert module_of("weight", NOTHING) == "weight"


# ---- collisions: two modules of one model at one place


def module(name: str) -> str:
    """The module of a name by hand, with the experts of a layer as one."""
    name = re.sub(r"\.experts\.\d+\.", ".experts.", name)
    packed = r"\.(weight|qweight)?(_packed|_scale|_scale_inv|_scale_2|_shape|_zero_point)?$"
    beside = r"\.(weight\.\w+(\.\w+)?|scales?|biases|qzeros|g_idx|SCB|weight_format|(input|weight)(_global)?_scale)$"
    return re.sub(r"(_blocks|_scales)$", "", re.sub(packed, "", re.sub(beside, "", name)))


def collisions(table: TensorTable, weights_format: str, architecture: str | None) -> list[set[str]]:
    modules: dict[Spot, set[str]] = defaultdict(set)
    for name, spot in zip(table.name, spots(table, weights_format, architecture), strict=True):
        modules[spot].add(module(name))
    return [there for there in modules.values() if len(there) > 1]


@pytest.mark.parametrize("known", [True, False], ids=["with gguf's table", "without"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_each_place_of_a_layout_is_one_module(name: str, known: bool) -> None:
    table = open_checkpoint(small(name)).tensors
    assert collisions(table, "safetensors", ARCHITECTURES[name] if known else None) == []


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_each_place_of_a_packed_model_is_one_module(encoding: str) -> None:
    checkpoint = open_checkpoint(packed_model(encoding).files)
    assert collisions(checkpoint.tensors, checkpoint.format, None) == []
    assert collisions(checkpoint.tensors, checkpoint.format, "qwen3moe") == []


def test_kimi_has_no_two_modules_at_one_place(kimi: dict[str, HollowFile]) -> None:
    assert collisions(open_checkpoint(kimi).tensors, "safetensors", None) == []
    assert collisions(open_checkpoint(kimi_mlx(layers=5, experts=4)).tensors, "safetensors", "kimi-k3") == []


def test_the_tables_of_what_converters_do_name_places_that_there_are() -> None:
    known = set(converted.FUSED) | {part for parts in converted.FUSED.values() for part in parts}
    plain = {place.removesuffix(".bias") for place in known | set(converted.CUT_TO) | set(converted.SPARE_ROWS)}
    gguf = {
        place_of(name, "gguf") for arch in MODEL_ARCH_NAMES.values() for name in converted.gguf_places(arch).values()
    }
    assert plain - gguf == {"attn_qkv_a", "ffn_gate_up"}
