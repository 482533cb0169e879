"""Public checkpoints, laid out from their configs: their shapes, and our reports, give the published totals.

The sums by hand share no code with the package. Run the packed ones alone with `-k packed`.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import chain
from math import prod

import pytest
from layouts.published import PACKED, PLAIN, PUBLISHED

from kimi_inspect import Component, Report, Severity, inspect
from kimi_inspect.testing.hollow import DTYPE_BITS


@dataclass(frozen=True)
class Look:
    """What is kept of a layout when it has been looked at: not its tensors, which are many.

    `elements` are those of each dtype as stored, `parameters` by our names of encodings, by hand.
    """

    files: int
    tensors: int
    tensor_bytes: int
    scale_bytes: int
    elements: Counter[str]
    parameters: Counter[str]
    drafts: int
    report: Report


ENCODINGS = {"I32": "int4", "F8_E4M3": "fp8_block", "U8": "mxfp4", "BF16": "bf16", "F32": "f32"}
"""What the layouts store under each dtype."""


def by_hand(name: str, elements: int) -> int:
    """Count the parameters of a tensor by the rules of its format, as its name tells."""
    leaf = name.rpartition(".")[2]
    if leaf in ("weight_scale", "weight_scale_inv", "weight_shape") or leaf.endswith("_scales"):
        return 0
    return 8 * elements if leaf == "weight_packed" else 2 * elements if leaf.endswith("_blocks") else elements


@contextmanager
def no_collecting() -> Iterator[None]:
    """Keep the collector from looking through some hundred thousand tuples again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@cache
def look(name: str) -> Look:
    """Lay a model out, count by hand, and have it reported."""
    layout = PUBLISHED[name].layout
    beyond = (f"model.layers.{layout.config.get('num_hidden_layers')}.", "mtp.")
    elements: Counter[str] = Counter()
    parameters: Counter[str] = Counter()
    tensors, drafts, scale_bits = 0, 0, 0
    with no_collecting():
        shards = layout.lay_out(layout.config)
        for tensor in chain.from_iterable(shards.values()):
            stored = prod(tensor.shape)
            count = by_hand(tensor.name, stored)
            tensors += 1
            elements[tensor.dtype] += stored
            parameters[ENCODINGS[tensor.dtype]] += count
            drafts += count if tensor.name.startswith(beyond) else 0
            scale_bits += 0 if count else stored * DTYPE_BITS[tensor.dtype]
        report = inspect(layout.files_of(shards))
    nbytes = sum(count * DTYPE_BITS[dtype] // 8 for dtype, count in elements.items())
    return Look(len(shards), tensors, nbytes, scale_bits // 8, elements, parameters, drafts, report)


def check_report(name: str) -> None:
    published, seen = PUBLISHED[name], look(name)
    report = seen.report
    assert report.parameters == report.known_parameters == published.parameters
    assert {row.component: row.parameters for row in report.components} == published.components
    encodings: Counter[str] = Counter()
    rows = [row for component in report.components for row in component.encodings]
    for row in rows:
        encodings[row.encoding] += row.parameters or 0
    assert +encodings == published.encodings
    assert report[Component.OTHER].tensor_count == 0
    assert (report.family, report.unknown_tensors) == (published.family, 0)
    assert (report.shard_count, report.tensor_count) == (seen.files, published.tensors)
    assert sum(row.scale_bytes for row in rows) == seen.scale_bytes
    assert report.tensor_bytes == seen.tensor_bytes == report.file_bytes - report.header_bytes
    check_experts(name)


def check_experts(name: str) -> None:
    experts, census = PUBLISHED[name].experts, look(name).report.experts
    if experts is None:
        assert census is None
    else:
        layers, count = experts
        assert census is not None
        assert (census.layers, census.per_layer_min, census.per_layer_max) == (layers, count, count)
        assert census.declared == count


def check_findings(name: str) -> None:
    report = look(name).report
    found = [finding.code for finding in report.findings if finding.severity is not Severity.INFO]
    # MiniMax declares three draft modules and publishes none of them.
    assert found == (["mtp-missing"] if name == "MiniMax-M2.7" else [])
    assert report.complete


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_shapes_alone_add_up_to_what_is_published(name: str) -> None:
    published, seen = PUBLISHED[name], look(name)
    assert seen.parameters == published.encodings
    assert seen.parameters.total() == published.parameters
    assert seen.tensors == published.tensors
    assert published.tensor_bytes in (None, seen.tensor_bytes)
    assert published.elements in (None, seen.elements.total())


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_components_written_out_are_the_whole(name: str) -> None:
    assert sum(PUBLISHED[name].components.values()) == PUBLISHED[name].parameters


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_checkpoint_is_reported_as_published(name: str) -> None:
    check_report(name)


@pytest.mark.parametrize("name", PACKED)
def test_a_packed_checkpoint_is_reported_as_published(name: str) -> None:
    check_report(name)


@pytest.mark.parametrize("name", PLAIN)
def test_nothing_is_wrong_with_a_plain_checkpoint(name: str) -> None:
    check_findings(name)


@pytest.mark.parametrize("name", PACKED)
def test_nothing_is_wrong_with_a_packed_checkpoint(name: str) -> None:
    check_findings(name)


@pytest.mark.parametrize("name", [name for name in PUBLISHED if Component.MTP in PUBLISHED[name].components])
def test_drafts_are_all_that_stands_beyond_the_last_layer(name: str) -> None:
    assert look(name).report[Component.MTP].parameters == look(name).drafts > 0


def test_the_hub_counts_scales_of_deepseek_v3_that_we_do_not() -> None:
    seen = look("DeepSeek-V3")
    assert seen.elements == {"BF16": 3_918_786_560, "F8_E4M3": 680_571_043_840, "F32": 41_555_600}
    assert seen.elements.total() - seen.parameters.total() == 41_540_496
    assert seen.parameters.total() - seen.drafts == 671_026_419_200


def test_kimi_k2_and_its_successors_hold_the_same_model() -> None:
    text = 1_026_408_232_448
    assert look("Kimi-K2-Instruct").parameters.total() - 61 * 56 == text  # rotary frequencies, saved with the weights
    assert look("Kimi-K2-Thinking").parameters.total() - 61 * 128 == text
    pictures = [look("Kimi-K2.5").report[part].parameters for part in (Component.VISION_TOWER, Component.PROJECTOR)]
    assert pictures == [416_866_032, 54_277_888]
    assert look("Kimi-K2.5").parameters.total() - 416_866_032 - 54_277_888 == text


def test_kda_stands_in_the_layers_that_the_config_of_kimi_linear_lists() -> None:
    kinds = PUBLISHED["Kimi-Linear-48B-A3B"].layout.config["linear_attn_config"]
    layers = {
        row.layer: {part.component for part in row.components} for row in look("Kimi-Linear-48B-A3B").report.by_layer()
    }
    for component, key in ((Component.KDA_ATTENTION, "kda_layers"), (Component.MLA_ATTENTION, "full_attn_layers")):
        found = [layer + 1 for layer, parts in layers.items() if layer is not None and component in parts]
        assert sorted(found) == kinds[key]
