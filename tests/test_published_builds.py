"""Stand-ins of every community build of Kimi K3.1 Pro that was published, full size, beside the official model."""

from __future__ import annotations

from functools import cache

import pytest

import kimi_inspect as ki
from kimi_inspect import Component, Report
from kimi_inspect.testing import BUILDS, PIPENETWORK_IDS, kimi_k31_pro

OFFICIAL_PARAMETERS = 2_780_110_363_392
EXPERTS = 2_722_740_830_208
MLX, TWO_BIT, NF12, PRUNED = (
    next(name for name in BUILDS if mark in name) for mark in ("Pro-MLX", "2bit", "NF12", "pruned")
)
PUBLISHED_BYTES = {
    "unsloth/Kimi-K3.1-Pro": 1_561_293_160_568,
    MLX: 1_561_243_578_065,
    TWO_BIT: 816_943_261_367,
    NF12: 1_532_965_277_463,
    PIPENETWORK_IDS[4]: 321_897_117_664,
    PIPENETWORK_IDS[6]: 335_960_941_648,
    PIPENETWORK_IDS[8]: 350_024_765_392,
}


@cache
def look(name: str) -> Report:
    return ki.inspect(BUILDS[name]())


@pytest.fixture(scope="module")
def official() -> Report:
    return ki.inspect(kimi_k31_pro())


@pytest.mark.parametrize("name", BUILDS)
def test_every_byte_is_counted_and_every_tensor_is_known(name: str) -> None:
    report = look(name)
    assert report.file_bytes == report.header_bytes + report.tensor_bytes + report.padding_bytes
    assert sum(row.stored_bytes for row in report.components) == report.tensor_bytes
    assert sum(row.stored_bytes for row in report.by_layer()) == report.tensor_bytes
    assert sum(row.stored_bytes for row in report.by_encoding()) == report.tensor_bytes
    assert report[Component.OTHER].tensor_count == 0
    assert report.complete
    assert report.family == "kimi-k31"


@pytest.mark.parametrize(("name", "nbytes"), PUBLISHED_BYTES.items())
def test_sizes_come_out_near_those_that_were_published(name: str, nbytes: int) -> None:
    assert look(name).file_bytes == pytest.approx(nbytes, rel=1e-3)


@pytest.mark.parametrize("name", BUILDS)
def test_nothing_is_said_against_them_but_what_is_true(name: str) -> None:
    codes = [item.code for item in look(name).findings if item.severity is not ki.Severity.INFO]
    # The codebooks of the custom packing are tensors that no loader of the family knows.
    assert codes == (["unexpected-tensor"] if name == NF12 else [])


def test_a_copy_is_the_same(official: Report) -> None:
    copy = look("unsloth/Kimi-K3.1-Pro")
    assert (copy.components, copy.experts, copy.layers) == (official.components, official.experts, official.layers)


@pytest.mark.parametrize("name", [MLX, TWO_BIT])
def test_mlx_regroups_and_loses_no_parameter(name: str, official: Report) -> None:
    report = look(name)
    assert report.parameters == OFFICIAL_PARAMETERS
    for component in Component:
        assert report[component].parameters == official[component].parameters
    assert report.experts == official.experts


def test_the_mlx_repack_keeps_the_experts_byte_for_byte(official: Report) -> None:
    ours, theirs = (each[Component.ROUTED_EXPERTS].encodings for each in (look(MLX), official))
    assert [(row.encoding, row.stored_bytes, row.scale_bytes) for row in ours] == [
        (row.encoding, row.stored_bytes, row.scale_bytes) for row in theirs
    ]


def test_two_bit_experts() -> None:
    (row,) = look(TWO_BIT)[Component.ROUTED_EXPERTS].encodings
    assert (row.encoding, row.parameters) == ("affine2", EXPERTS)


@pytest.mark.parametrize(("bits", "name"), PIPENETWORK_IDS.items())
def test_pruned_to_a_fifth(bits: int, name: str, official: Report) -> None:
    report = look(name)
    assert report.experts == ki.ExpertCensus(layers=92, per_layer_min=179, per_layer_max=179, declared=179)
    (experts,) = report[Component.ROUTED_EXPERTS].encodings
    assert (experts.encoding, experts.stored_bytes) == ("mxfp4", 288_968_343_552)
    assert experts.parameters == EXPERTS * 179 // 896
    kept = (Component.KDA_ATTENTION, Component.MLA_ATTENTION, Component.SPARSE_INDEXER, Component.SHARED_EXPERTS)
    for component in (*kept, Component.LATENT_PROJECTION, Component.EMBEDDINGS, Component.VISION_TOWER):
        assert report[component].parameters == official[component].parameters
    assert f"affine{bits}" in {row.encoding for row in report.by_encoding()}


def test_pruned_to_a_quarter(official: Report) -> None:
    report = look(PRUNED)
    assert report.experts == ki.ExpertCensus(layers=92, per_layer_min=224, per_layer_max=224, declared=224)
    lost = official[Component.ROUTED_EXPERTS].parameters or 0
    assert report[Component.ROUTED_EXPERTS].parameters == lost // 4
    router = (official[Component.ROUTER].parameters or 0) // 4
    assert report[Component.ROUTER].parameters == router
    assert report[Component.ROUTED_EXPERTS].bits_per_weight == 4.25


def test_a_packing_that_no_rule_knows_keeps_its_bytes(official: Report) -> None:
    report = look(NF12)
    assert report.parameters is None
    unknown = [row for row in report.by_encoding() if row.parameters is None]
    assert [row.encoding for row in unknown] == ["unknown:u8"]
    assert report[Component.ROUTED_EXPERTS] == official[Component.ROUTED_EXPERTS]
    assert report[Component.VISION_TOWER] == official[Component.VISION_TOWER]
    # What is not packed is known: norms, biases, the F32 tensors, vision and indexer.
    known = sum(row.parameters or 0 for row in report.by_encoding())
    assert report.known_parameters == known < OFFICIAL_PARAMETERS
