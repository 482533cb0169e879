"""Every published build of Kimi K3.1 Pro, its stand-in in full size, held against the official model."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

import kimi_inspect as ki
from kimi_inspect import Audit, Checkpoint, Component, Severity
from kimi_inspect.testing import (
    AINSLEYMARKOV_ID,
    BUILDS,
    DPHN_ID,
    INFERENCERLABS_ID,
    PIPENETWORK_IDS,
    UNSLOTH_ID,
    VLLM_PROJECT_ID,
    HollowFile,
    danielhanchen_gguf,
    devquasar_gguf,
    karlexai_gguf,
    kimi_k31_pro,
    midagedev_gguf,
)

EXPERTS = 2_722_740_830_208
EXPERT_BYTES = 1_446_456_066_048
LAYERS = tuple(range(1, 93))
TOWER = 802_428_928


@pytest.fixture(scope="module")
def official() -> Checkpoint:
    return ki.open_checkpoint(kimi_k31_pro())


def parts(files: Mapping[str, HollowFile], name: str) -> dict[str, HollowFile]:
    """Return the files of one set, and the vision file that is counted on request."""
    return {path: file for path, file in files.items() if name in path or path == "mmproj-BF16.gguf"}


def above_info(audit: Audit) -> list[str]:
    return [item.code for item in audit.findings if item.severity is not Severity.INFO]


def experts_of(audit: Audit) -> list[tuple[str, float | None, tuple[int, ...]]]:
    changed = [item for item in audit.requantizations if item.component is Component.ROUTED_EXPERTS]
    assert sum(item.parameters or 0 for item in changed) in (0, EXPERTS, EXPERTS // 92 * 90)
    return [(item.after, item.bits_after, item.layers) for item in sorted(changed, key=lambda one: one.after)]


@pytest.mark.parametrize("name", [UNSLOTH_ID, INFERENCERLABS_ID])
def test_copies_and_repacks_are_faithful(name: str, official: Checkpoint) -> None:
    audit = ki.audit(BUILDS[name](), official)
    assert (audit.verdict, above_info(audit), audit.requantizations) == ("faithful", [], ())
    experts = next(item for item in audit.kept if item.component is Component.ROUTED_EXPERTS)
    assert (experts.encoding, experts.stored_bytes, experts.parameters, experts.layers) == (
        "mxfp4",
        EXPERT_BYTES,
        EXPERTS,
        LAYERS,
    )


def test_experts_of_two_bits(official: Checkpoint) -> None:
    audit = ki.audit(BUILDS[AINSLEYMARKOV_ID](), official)
    assert (audit.verdict, above_info(audit)) == ("requantized", [])
    assert experts_of(audit) == [("affine2", 2 + 32 / 128, LAYERS)]


@pytest.mark.parametrize("name", [*PIPENETWORK_IDS.values(), VLLM_PROJECT_ID])
def test_pruned_ones_are_reduced(name: str, official: Checkpoint) -> None:
    kept = 224 if name == VLLM_PROJECT_ID else 179
    audit = ki.audit(BUILDS[name](), official)
    assert (audit.verdict, above_info(audit)) == ("reduced", ["experts-pruned"])
    pruned = next(item for item in audit.findings if item.code == "experts-pruned")
    assert (pruned.expected, pruned.actual, pruned.count, pruned.layer) == (896, kept, 92, 1)
    experts = next(item for item in audit.kept if item.component is Component.ROUTED_EXPERTS)
    assert experts.stored_bytes == EXPERT_BYTES * kept // 896


def test_what_is_packed_by_a_runtime_of_its_own_is_unknown(official: Checkpoint) -> None:
    audit = ki.audit(BUILDS[DPHN_ID](), official)
    assert (audit.verdict, above_info(audit)) == ("requantized", ["unexpected-tensor"])
    assert {(item.before, item.after, item.bits_after) for item in audit.requantizations} == {
        ("bf16", "unknown:u8", None)
    }
    experts = next(item for item in audit.kept if item.component is Component.ROUTED_EXPERTS)
    assert experts.stored_bytes == EXPERT_BYTES


@pytest.mark.parametrize("companions", [False, True])
def test_mxfp4_moe(companions: bool, official: Checkpoint) -> None:
    audit = ki.audit(parts(devquasar_gguf(), "MXFP4_MOE"), official, companions=companions)
    missing = [] if companions else ["component-missing"]
    assert (audit.verdict, above_info(audit)) == ("requantized" if companions else "reduced", missing)
    experts = next(item for item in audit.kept if item.component is Component.ROUTED_EXPERTS)
    assert (experts.encoding, experts.stored_bytes) == ("mxfp4", EXPERT_BYTES)
    changed = {(item.component, item.before): item for item in audit.requantizations if item.after == "q8_0"}
    for component, layers in ((Component.KDA_ATTENTION, 69), (Component.MLA_ATTENTION, 24)):
        attention = changed[component, "bf16"]
        assert (attention.bits_before, attention.bits_after, len(attention.layers)) == (16.0, 8.5, layers)
    told = [item for item in audit.findings if item.code == "component-missing"]
    assert [item.where for item in told] == ([] if companions else ["vision_tower"])
    assert all("mmproj-BF16.gguf" in item.message for item in told)
    vision = [item.stored_bytes for item in audit.kept if item.component is Component.VISION_TOWER]
    assert sum(vision) < TOWER


@pytest.mark.parametrize(
    ("recipe", "experts"),
    [
        ("Q2_K", [("q2_k", 8 * 84 / 256), ("q3_k", 8 * 110 / 256)]),
        ("KLX-IQ2_XXS", [("iq1_m", 1.75), ("iq2_xxs", 2.0625)]),
        ("KLX-IQ1_M", [("iq1_m", 1.75), ("iq1_s", 1.5625)]),
        ("KLX-IQ1_S", [("iq1_m", 1.75), ("iq1_s", 1.5625)]),
    ],
)
def test_bits_of_the_smallest_sets(recipe: str, experts: list[tuple[str, float]], official: Checkpoint) -> None:
    files = karlexai_gguf() if recipe.startswith("KLX") else devquasar_gguf()
    audit = ki.audit(parts(files, recipe), official)
    # Text only, without a side file or with one that is not counted.
    assert (audit.verdict, above_info(audit)) == ("reduced", ["component-missing"])
    assert [(after, bits) for after, bits, _ in experts_of(audit)] == experts


@pytest.mark.parametrize("recipe", ["UD-Q4_K_XL", "UD-Q8_K_XL"])
def test_labels_that_no_tensor_bears_out(recipe: str, official: Checkpoint) -> None:
    audit = ki.audit(parts(danielhanchen_gguf(), recipe), official, companions=True)
    assert (audit.verdict, above_info(audit)) == ("requantized", ["label-disagrees"])
    assert experts_of(audit) == []


def test_another_architecture_with_two_layers_fewer(official: Checkpoint) -> None:
    audit = ki.audit(midagedev_gguf(), official)
    assert audit.verdict == "different-model"
    assert above_info(audit) == ["architecture-mismatch", "layer-missing", "component-missing"]
    by_code = {item.code: item for item in audit.findings}
    mismatch, layers = by_code["architecture-mismatch"], by_code["layer-missing"]
    assert (mismatch.expected, mismatch.actual) == ("kimi-k31", "kimi-k31-bloomery")
    assert (layers.expected, layers.actual, layers.examples) == (93, 91, ("layer 91", "layer 92"))
    assert audit.report is not None
    assert audit.report.parameters is not None
    assert audit.reference_parameters == 2_780_110_363_392 > audit.report.parameters


def test_the_official_model_against_the_build_with_its_side_file(official: Checkpoint) -> None:
    build = ki.open_checkpoint(parts(devquasar_gguf(), "MXFP4_MOE"), companions=True)
    audit = ki.audit(official, build)
    assert (audit.verdict, above_info(audit)) == ("requantized", [])
    assert {item.code for item in audit.findings} == {"component-requantized"}
