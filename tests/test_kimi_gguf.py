"""Kimi K3.1 Pro in GGUF at full size: its published bytes, and the same parameters as in safetensors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

import kimi_inspect as ki
from kimi_inspect import Checkpoint, Component, Report, TensorInfo
from kimi_inspect.testing import (
    HollowFile,
    KimiRecipe,
    Precision,
    danielhanchen_gguf,
    devquasar_gguf,
    karlexai_gguf,
    kimi_gguf,
    kimi_k31_pro,
    kimi_mmproj,
    midagedev_gguf,
)
from kimi_inspect.values import LongArray

TENSOR_BYTES: dict[KimiRecipe, int] = {
    "MXFP4_MOE": 1_508_890_182_016,
    "Q2_K": 1_009_307_929_472,
    "UD-Q4_K_XL": 1_509_013_485_952,
    "UD-Q8_K_XL": 1_561_518_856_576,
}
FILE_BYTES: dict[KimiRecipe, int] = {
    "MXFP4_MOE": 1_508_897_280_480,
    "Q2_K": 1_009_315_027_936,
    "UD-Q4_K_XL": 1_509_020_584_672,
    "UD-Q8_K_XL": 1_561_525_956_960,
}
EXPERT_BYTES = 1_446_456_066_048
TENSORS = 2693
LAYERS, EXPERTS = 93, 896
FULL_ATTENTION = (*range(3, 92, 4), 92)

COUNTS = {
    Component.ROUTED_EXPERTS: 3 * 92,
    Component.SHARED_EXPERTS: 3 * 92,
    Component.ROUTER: 2 * 92,
    Component.LATENT_PROJECTION: 3 * 92,
    Component.DENSE_MLP: 3,
    Component.KDA_ATTENTION: 14 * 69,
    Component.MLA_ATTENTION: 216,
    Component.SPARSE_INDEXER: 5 * 24,
    Component.ATTENTION_RESIDUAL: 2 * 93 + 1,
    Component.NORMS: 2 * 93 + 1,
    Component.EMBEDDINGS: 1,
    Component.LM_HEAD: 1,
}
"""Tensors, from the table of names: 69 layers of KDA and 24 of full attention, 92 of experts and 1 dense."""

FEWER = {Component.ATTENTION_RESIDUAL: 1_340_416, Component.KDA_ATTENTION: 2_208}
"""Parameters that the converter leaves out: two factors become one vector, and padding of A_log is cut."""

ENCODINGS: dict[KimiRecipe, set[str]] = {
    "MXFP4_MOE": {"mxfp4", "q8_0", "bf16", "f32"},
    "Q2_K": {"q2_k", "q3_k", "q4_0", "q6_k", "bf16", "f32"},
    "UD-Q4_K_XL": {"mxfp4", "q8_0", "bf16", "f32"},
    "UD-Q8_K_XL": {"mxfp4", "bf16", "f32"},
}

Files = dict[str, HollowFile]


@pytest.fixture(scope="module")
def official() -> Report:
    """The report of the safetensors form."""
    return ki.inspect(kimi_k31_pro())


@pytest.fixture(scope="module", params=TENSOR_BYTES)
def recipe(request: pytest.FixtureRequest) -> KimiRecipe:
    name: KimiRecipe = request.param
    return name


@pytest.fixture(scope="module")
def checkpoint(recipe: KimiRecipe) -> Checkpoint:
    return ki.open_checkpoint(kimi_gguf(recipe))


@pytest.fixture(scope="module")
def report(checkpoint: Checkpoint) -> Report:
    return ki.summarize(checkpoint)


@pytest.fixture(scope="module")
def mxfp4() -> Checkpoint:
    return ki.open_checkpoint(kimi_gguf("MXFP4_MOE"))


def test_it_is_what_was_published(recipe: KimiRecipe, checkpoint: Checkpoint, report: Report) -> None:
    assert (report.tensor_bytes, report.file_bytes) == (TENSOR_BYTES[recipe], FILE_BYTES[recipe])
    assert (report.tensor_count, report.unknown_tensors) == (TENSORS, 0)
    assert report.missing_bytes == report.unread_bytes == 0
    assert report.file_bytes == report.header_bytes + report.tensor_bytes + report.padding_bytes
    assert [item.code for item in report.findings] == (["label-disagrees"] if recipe.startswith("UD-") else [])
    assert report.complete
    assert (report.format, report.architecture, report.family) == ("gguf", "kimi-k31", "kimi-k31")
    assert recipe in report.set_name
    assert report.shard_count == (34 if recipe.startswith("UD") else 33)
    assert checkpoint.config is None
    assert checkpoint.metadata["tokenizer.ggml.tokens"] == LongArray("string", 163_840)
    assert len(checkpoint.metadata["kimi-k31.attention.head_count_kv"]) == LAYERS


def test_its_experts(recipe: KimiRecipe, report: Report) -> None:
    census = report.experts
    assert census is not None
    assert (census.layers, census.per_layer_min, census.per_layer_max, census.declared) == (92, 896, 896, 896)
    if recipe != "Q2_K":
        assert report[Component.ROUTED_EXPERTS].stored_bytes == EXPERT_BYTES
        assert report[Component.ROUTED_EXPERTS].bits_per_weight == 4.25


def test_every_tensor_has_its_component(report: Report) -> None:
    assert {row.component: row.tensor_count for row in report.components} == COUNTS
    assert report[Component.OTHER].tensor_count == report[Component.OTHER].stored_bytes == 0


def test_the_parameters_are_those_of_the_safetensors_form(report: Report, official: Report) -> None:
    beside = {Component.VISION_TOWER, Component.PROJECTOR}
    expected = {row.component: row.parameters for row in official.components if row.component not in beside}
    for component, fewer in FEWER.items():
        parameters = expected[component]
        assert parameters is not None
        expected[component] = parameters - fewer
    assert {row.component: row.parameters for row in report.components} == expected
    assert report.parameters == report.known_parameters == sum(number or 0 for number in expected.values())


def test_rows_add_up_whichever_way_they_are_cut(recipe: KimiRecipe, report: Report) -> None:
    whole = (report.tensor_count, report.tensor_bytes, report.parameters)
    for rows in (report.components, report.by_layer(), report.by_encoding()):
        counts, nbytes, parameters = zip(
            *((row.tensor_count, row.stored_bytes, row.parameters) for row in rows), strict=True
        )
        assert (sum(counts), sum(nbytes), sum(parameters)) == whole
    for row in report.components:
        assert sum(part.tensor_count for part in row.encodings) == row.tensor_count
        assert sum(part.stored_bytes for part in row.encodings) == row.stored_bytes
        assert all(part.scale_bytes == 0 for part in row.encodings)
    assert {row.encoding for row in report.by_encoding()} == ENCODINGS[recipe]
    assert [row.layer for row in report.by_layer()] == [None, *range(LAYERS)]
    files = report.by_file()
    assert sum(shard.file_bytes for shard in files) == report.file_bytes
    for shard in files:
        assert shard.file_bytes == shard.header_bytes + shard.tensor_bytes + shard.padding_bytes
        assert shard.missing_bytes == shard.unread_bytes == 0


def test_columns_of_every_tensor(checkpoint: Checkpoint) -> None:
    tensors = checkpoint.tensors
    named = [re.match(r"blk\.(\d+)\.", name) for name in tensors.name]
    assert tensors.layer.tolist() == [int(found[1]) if found else -1 for found in named]
    assert set(tensors.block.tolist()) == {-1}
    assert tensors.shape.tolist() == [shape[::-1] for shape in tensors.stored_shape]
    assert tensors.encoding.tolist() == [dtype.lower() for dtype in tensors.dtype]
    assert set(tensors.role.tolist()) == {ki.Role.WEIGHT}
    assert set(tensors.expert.tolist()) == {-1}
    fused = np.array(["_exps." in name for name in tensors.name])
    assert set(tensors.experts[fused].tolist()) == {EXPERTS}
    assert set(tensors.experts[~fused].tolist()) == {-1}
    kda = set(range(LAYERS)) - set(FULL_ATTENTION)
    for component, layers in ((Component.KDA_ATTENTION, kda), (Component.MLA_ATTENTION, set(FULL_ATTENTION))):
        assert set(tensors.select(component=component).layer.tolist()) == layers
    assert set(tensors.select(component=Component.SPARSE_INDEXER).layer.tolist()) == set(FULL_ATTENTION)


def test_places_are_counted_from_the_start_of_the_file(checkpoint: Checkpoint) -> None:
    for shard in checkpoint.shards:
        tensors = checkpoint.tensors.select(shard=shard.path)
        if not len(tensors):
            assert shard.tensor_bytes == 0
            continue
        assert tensors.offset[0] == shard.header_bytes
        assert (np.diff(tensors.offset) >= tensors.stored_bytes[:-1]).all()
        assert tensors[-1].byte_range.end <= shard.file_bytes < tensors[-1].byte_range.end + 32


@pytest.mark.parametrize(
    ("name", "written", "dtype", "component", "experts"),
    [
        ("token_embd.weight", (7168, 163840), "Q8_0", Component.EMBEDDINGS, None),
        ("blk.1.ffn_down_exps.weight", (3072, 3584, 896), "MXFP4", Component.ROUTED_EXPERTS, 896),
        ("blk.3.attn_k_b.weight", (128, 512, 96), "Q8_0", Component.MLA_ATTENTION, None),
        ("blk.3.indexer.k_norm.bias", (128,), "F32", Component.SPARSE_INDEXER, None),
        ("blk.4.ssm_conv1d_q.weight", (4, 1, 12288, 1), "F32", Component.KDA_ATTENTION, None),
        ("blk.4.ssm_a", (96,), "F32", Component.KDA_ATTENTION, None),
        ("blk.92.exp_probs_b.bias", (896,), "F32", Component.ROUTER, None),
        ("output_res_score.weight", (7168,), "F32", Component.ATTENTION_RESIDUAL, None),
    ],
)
def test_single_tensors(
    mxfp4: Checkpoint, name: str, written: tuple[int, ...], dtype: str, component: Component, experts: int | None
) -> None:
    info = mxfp4.tensors[name]
    assert (info.stored_shape, info.shape, info.dtype) == (written, written[::-1], dtype)
    assert (info.component, info.experts, info.expert) == (component, experts, None)
    assert info.parameters == int(np.prod(written, dtype=np.int64))


MMPROJ: dict[Precision, int] = {"BF16": 904_437_760, "F16": 904_437_760, "F32": 1_789_435_904}


@pytest.mark.parametrize(("precision", "nbytes"), MMPROJ.items())
def test_the_vision_tower_alone(precision: Precision, nbytes: int, official: Report) -> None:
    checkpoint = ki.open_checkpoint({"mmproj.gguf": kimi_mmproj(precision)})
    report = ki.summarize(checkpoint)
    assert (report.tensor_count, report.tensor_bytes, report.findings) == (168, nbytes, ())
    assert report.architecture == "clip"
    parts = (Component.VISION_TOWER, Component.PROJECTOR)
    assert [row.component for row in report.components] == list(parts)
    for part in parts:
        assert report[part].parameters == official[part].parameters
    blocks = checkpoint.tensors.block.tolist()
    assert Counter(blocks) == {-1: 6, **dict.fromkeys(range(27), 6)}
    assert set(checkpoint.tensors.layer.tolist()) == {-1}


@pytest.mark.parametrize("companions", [False, True])
def test_the_tower_beside_the_text_is_counted_when_asked_for(companions: bool, official: Report) -> None:
    files = kimi_gguf("Q2_K") | {f"mmproj-{one}.gguf": kimi_mmproj(one) for one in MMPROJ}
    report = ki.inspect(files, companions=companions)
    counted = {item.path for item in report.companions if item.counted}
    assert len(report.companions) == len(MMPROJ)
    assert {item.role for item in report.companions} == {"vision"}
    assert report.findings == ()
    assert report.tensor_bytes == TENSOR_BYTES["Q2_K"] + companions * MMPROJ["BF16"]
    assert report.tensor_count == TENSORS + companions * 168
    for part in (Component.VISION_TOWER, Component.PROJECTOR):
        assert report[part].parameters == (official[part].parameters if companions else 0)
    assert counted == ({"mmproj-BF16.gguf"} if companions else set())


def intact() -> Iterator[tuple[str, Files, str | None]]:
    for recipe in TENSOR_BYTES:
        for layers, experts, parts in ((1, 1, 1), (2, 3, 2), (4, 2, 1), (5, 4, 3), (8, 16, 12)):
            yield f"{recipe} {layers}", kimi_gguf(recipe, layers=layers, experts=experts, tokens=50, parts=parts), None
    small = {"layers": 5, "experts": 4, "tokens": 50, "parts": 3}
    for glob in ("*MXFP4_MOE*", "*Q2_K*"):
        yield f"devquasar {glob}", devquasar_gguf(**small), glob
    for glob in ("UD-Q4_K_XL/*", "UD-Q8_K_XL/*"):
        yield f"danielhanchen {glob}", danielhanchen_gguf(**small), glob


@pytest.mark.parametrize(("files", "glob"), [pytest.param(files, glob, id=name) for name, files, glob in intact()])
def test_nothing_is_wrong_with_an_intact_one_of_any_size(files: Files, glob: str | None) -> None:
    checkpoint = ki.open_checkpoint(files, files=glob)
    # No tensor of these builds has a type that their names tell. Of a part chosen on purpose that is no matter.
    has_experts = len(checkpoint.tensors.select(component=Component.ROUTED_EXPERTS)) > 0
    says_more = glob is None and (
        checkpoint.set_name.startswith("UD-") or ("MXFP4" in checkpoint.set_name and not has_experts)
    )
    assert [item.code for item in checkpoint.findings] == (["label-disagrees"] if says_more else [])
    assert checkpoint.complete
    assert checkpoint.family == "kimi-k31"
    assert len(checkpoint.tensors.select(component=Component.OTHER)) == 0
    declared = {info.experts for info in checkpoint.tensors if info.component is Component.ROUTED_EXPERTS}
    census = ki.summarize(checkpoint).experts
    assert census is None or {census.per_layer_min, census.per_layer_max, census.declared} == declared
    assert (census is None) == (not declared)


def test_an_expert_holds_what_the_packed_weight_and_its_scales_do(mxfp4: Checkpoint) -> None:
    def sizes(info: TensorInfo) -> tuple[int, int]:
        return info.stored_bytes, (info.parameters or 0) * 17 // 32

    experts = mxfp4.tensors.select(component=Component.ROUTED_EXPERTS)
    assert len({sizes(info) for info in experts}) == 1
    assert all(stored == packed for stored, packed in map(sizes, experts))


# ---- builds of which files and bytes are published, and nothing of the tensors

KLX = {
    "KLX-IQ2_XXS": (17, 709_876_827_040, {"iq2_xxs": 52, "iq1_m": 40}),
    "KLX-IQ1_M": (15, 647_869_832_960, {"iq1_m": 90, "iq1_s": 2}),
    "KLX-IQ1_S": (14, 592_677_343_328, {"iq1_m": 10, "iq1_s": 82}),
}
"""Published files and bytes, and the layers that our layout gives each type of experts."""
LAYOUT_TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def klx() -> Files:
    return karlexai_gguf()


@pytest.mark.parametrize(("label", "published"), KLX.items())
def test_klx_comes_near_what_was_published(klx: Files, label: str, published: tuple[int, int, dict[str, int]]) -> None:
    files, nbytes, layers = published
    report = ki.inspect(klx, files=f"{label}/*")
    assert report.findings == ()
    assert (report.set_name, report.architecture, report.family) == (label, "kimi-k31", "kimi-k31")
    assert (report.shard_count, report.tensor_count, report.complete) == (files, TENSORS, True)
    assert report.file_bytes == pytest.approx(nbytes, rel=LAYOUT_TOLERANCE)
    assert {row.component: row.tensor_count for row in report.components} == COUNTS
    rows = report[Component.ROUTED_EXPERTS].encodings
    assert {row.encoding: row.tensor_count for row in rows} == {kind: 3 * count for kind, count in layers.items()}
    assert {row.encoding for row in report.by_encoding()} == {"q6_k", "q8_0", "bf16", "f32", *layers}


def test_klx_is_three_sets_without_a_tower(klx: Files) -> None:
    with pytest.raises(ki.KimiInspectError, match="3 checkpoints"):
        ki.inspect(klx)
    report = ki.inspect(klx, files="KLX-IQ1_S/*")
    assert report.other_sets == ("KLX-IQ1_M", "KLX-IQ2_XXS")
    assert report.companions == ()


def test_klx_has_the_parameters_of_every_gguf_build(klx: Files, mxfp4: Checkpoint) -> None:
    parameters = {ki.inspect(klx, files=f"{label}/*").parameters for label in KLX}
    assert parameters == {ki.summarize(mxfp4).parameters}


def test_a_build_for_an_engine_of_its_own(mxfp4: Checkpoint) -> None:
    checkpoint = ki.open_checkpoint(midagedev_gguf())
    report = ki.summarize(checkpoint)
    assert report.findings == ()
    assert (report.set_name, report.architecture, report.complete) == ("IQ1_S", "kimi-k31-bloomery", True)
    assert report.shard_count == 31
    assert report.file_bytes == pytest.approx(580_345_966_528, rel=LAYOUT_TOLERANCE)
    assert checkpoint.metadata["kimi-k31-bloomery.block_count"] == 91
    assert not [key for key in checkpoint.metadata if key.startswith("kimi-k31.")]
    assert [row.layer for row in report.by_layer()] == [None, *range(91)]
    # The two layers that it lacks are one of KDA and one of full attention.
    lost = mxfp4.tensors.select(layer=91), mxfp4.tensors.select(layer=92)
    assert report.tensor_count == TENSORS - sum(map(len, lost))
    less = sum(info.parameters or 0 for layer in lost for info in layer)
    assert report.parameters == (ki.summarize(mxfp4).parameters or 0) - less


@pytest.mark.parametrize(("layers", "experts", "parts"), [(2, 3, 2), (4, 2, 1), (5, 4, 3), (8, 16, 12)])
def test_small_ones_of_them_are_whole_too(layers: int, experts: int, parts: int) -> None:
    files = karlexai_gguf(layers=layers, experts=experts, tokens=50, parts=parts)
    for label in KLX:
        assert ki.inspect(files, files=f"{label}/*").findings == ()
    assert ki.inspect(midagedev_gguf(layers=layers, experts=experts, tokens=50, parts=parts)).findings == ()
