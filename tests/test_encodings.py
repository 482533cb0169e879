"""The same small model in every encoding that tools write: however it is packed, the same model has to come out."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from math import prod

import pytest
from contracts.checks import check_sums

from kimi_inspect import Checkpoint, Component, Report, Role, Severity, TensorInfo, open_checkpoint, summarize
from kimi_inspect.testing import DTYPE_BITS, ENCODINGS, GGML_TYPES, PackedModel, packed_model

SEEDS = [0, 143]
SAFETENSORS = [name for name in ENCODINGS if not name.startswith("gguf-")]
GGUF = [name for name in ENCODINGS if name.startswith("gguf-")]
KEPT = {"bf16", "f16", "f32", "q8_0"}
"""What norms, routers and embeddings may be that an encoding does not pack."""

Packed = tuple[str, int | None]

SPECIAL: Mapping[str, Packed] = {
    "compressed-mxfp4": ("mxfp4", 32),
    "compressed-nvfp4": ("nvfp4", 16),
    "compressed-int8-rows": ("int8", None),
    "compressed-fp8-rows": ("f8_e4m3", None),
    "fp8-block": ("fp8_block", 128),
    "deepseek-v4-fp4": ("fp8_block", 128),
    "gpt-oss-mxfp4": ("mxfp4", 32),
    "awq-4": ("int4", 128),
    "bnb-int8": ("bnb_int8", None),
    "mlx-mxfp4": ("mxfp4", 32),
    "mlx-mxfp8": ("mxfp8", 32),
    "mlx-nvfp4": ("nvfp4", 16),
    "modelopt-nvfp4": ("nvfp4", 16),
    "modelopt-fp8": ("f8_e4m3", None),
    "mlx-bf16": ("bf16", None),
}
FORMS: Mapping[str, tuple[str, str]] = {
    r"(bf16|f16|f32)": (r"\1", ""),
    r"compressed-int(\d)-(\d+)(?:-zero-points)?": (r"int\1", r"\2"),
    r"gptq-(\d)(?:-desc-act)?": (r"int\1", "128"),
    r"bnb-nf4(?:-nested)?": ("nf4", "64"),
    r"bnb-fp4(?:-nested)?": ("bnb_fp4", "64"),
    r"mlx-affine(\d)-(\d+)": (r"affine\1", r"\2"),
    r"gguf-(\w+)": (r"\1", ""),
}

ROLES: Mapping[str, Role] = {
    r"\.(weight|weight_packed|qweight)$|_blocks$": Role.WEIGHT,
    r"\.(weight_scale|weight_scale_inv|weight_scale_2|weight_global_scale|input_scale|input_global_scale)$": Role.SCALE,
    r"\.(scales?|SCB|weight\.absmax|weight\.nested_absmax)$|_scales$": Role.SCALE,
    r"\.(biases|qzeros|weight_zero_point)$": Role.ZERO_POINT,
    r"\.(weight_shape|g_idx|weight_format|weight\.(nested_)?quant_map|weight\.quant_state\.\w+)$": Role.BOOKKEEPING,
}


@cache
def model(encoding: str, seed: int) -> PackedModel:
    return packed_model(encoding, layers=3, experts=3, seed=seed)


@cache
def opened(encoding: str, seed: int) -> Checkpoint:
    return open_checkpoint(model(encoding, seed).files)


@cache
def report(encoding: str, seed: int) -> Report:
    return summarize(opened(encoding, seed))


def named(encoding: str) -> Packed:
    """What the contract calls the packed matrices of an encoding, and their group size."""
    if encoding in SPECIAL:
        return SPECIAL[encoding]
    for pattern, (name, group) in FORMS.items():
        if match := re.fullmatch(pattern, encoding):
            return match.expand(name), int(match.expand(group) or 0) or None
    raise AssertionError(encoding)


def packings(encoding: str) -> set[Packed]:
    """All that its packed matrices are: MLX has routers in 8 bits, DeepSeek V4 experts in 4."""
    is_packed_mlx = encoding.startswith("mlx-") and encoding != "mlx-bf16"
    more: set[Packed] = {("affine8", 64)} if is_packed_mlx else set()
    return {named(encoding)} | more | ({("mxfp4", 32)} if encoding == "deepseek-v4-fp4" else set())


def role(name: str) -> Role:
    return next(role for pattern, role in ROLES.items() if re.search(pattern, name))


def module(name: str) -> str:
    return re.sub(r"\.(weight\.[\w.]+|\w+)$|_(blocks|scales)$", "", name)


def stored(encoding: str, seed: int) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """Read the headers of safetensors as plain JSON: type, shape and bytes of each tensor."""
    found = {}
    for path, file in model(encoding, seed).files.items():
        if path.endswith(".safetensors"):
            header = json.loads(file.head[8:])
            header.pop("__metadata__", None)
            for name, one in header.items():
                found[name] = one["dtype"], tuple(one["shape"]), DTYPE_BITS[one["dtype"]] * prod(one["shape"]) // 8
    return found


def weights(encoding: str, seed: int) -> list[TensorInfo]:
    return list(opened(encoding, seed).tensors.select(role=Role.WEIGHT))


everywhere = pytest.mark.parametrize("seed", SEEDS)
each = pytest.mark.parametrize("encoding", ENCODINGS)
in_safetensors = pytest.mark.parametrize("encoding", SAFETENSORS)
in_gguf = pytest.mark.parametrize("encoding", GGUF)


@everywhere
@each
def test_parameters_are_those_of_the_model(encoding: str, seed: int) -> None:
    made, found = model(encoding, seed), report(encoding, seed)
    assert made.parameters == model("bf16", seed).parameters
    assert (found.parameters, found.known_parameters, found.unknown_tensors) == (made.parameters, made.parameters, 0)
    rows = {row.component: row.parameters for row in found.components}
    assert rows == {row.component: row.parameters for row in report("bf16", seed).components}


@everywhere
@each
def test_nothing_is_other_and_nothing_is_wrong(encoding: str, seed: int) -> None:
    assert report(encoding, seed)[Component.OTHER].tensor_count == 0
    assert [item for item in opened(encoding, seed).findings if item.severity is not Severity.INFO] == []
    check_sums(opened(encoding, seed))
    assert opened(encoding, seed).complete


@everywhere
@each
def test_encodings_are_named_as_the_contract_names_them(encoding: str, seed: int) -> None:
    names = {name for name, _ in packings(encoding)}
    rows = {row.encoding: row.parameters or 0 for row in report(encoding, seed).by_encoding()}
    assert names <= rows.keys() <= names | KEPT
    if not names & KEPT:
        assert sum(rows[name] for name in names) == model(encoding, seed).packed_parameters


@everywhere
@each
def test_group_size_is_said_of_what_has_groups(encoding: str, seed: int) -> None:
    groups = {(one.encoding, one.group_size) for one in opened(encoding, seed).tensors}
    assert {one for one in groups if one[1] is not None} == {one for one in packings(encoding) if one[1] is not None}
    assert {one for one in groups if one[0] not in KEPT} == {one for one in packings(encoding) if one[0] not in KEPT}


@everywhere
@in_safetensors
def test_every_tensor_has_its_role_and_its_bytes(encoding: str, seed: int) -> None:
    expected = stored(encoding, seed)
    table = opened(encoding, seed).tensors
    assert {one.name for one in table} == expected.keys()
    for one in table:
        dtype, shape, nbytes = expected[one.name]
        assert (one.dtype, one.stored_shape, one.stored_bytes) == (dtype, shape, nbytes)
        assert one.byte_range[1] - one.byte_range[0] == nbytes
        assert one.role is role(one.name), one.name
        if one.role is not Role.WEIGHT:
            assert one.parameters == 0
        elif one.shape is not None:
            assert one.parameters == prod(one.shape)


@everywhere
@in_safetensors
def test_what_stands_beside_a_weight_goes_by_its_encoding(encoding: str, seed: int) -> None:
    owners = {module(one.name): one for one in weights(encoding, seed)}
    for one in opened(encoding, seed).tensors:
        owner = owners[module(one.name)]
        assert (one.encoding, one.component, one.group_size) == (owner.encoding, owner.component, owner.group_size)
        assert (one.layer, one.expert, one.experts) == (owner.layer, owner.expert, owner.experts)


@everywhere
@in_safetensors
def test_bytes_of_scales_add_up(encoding: str, seed: int) -> None:
    tensors = stored(encoding, seed)
    beside = sum(nbytes for name, (_, _, nbytes) in tensors.items() if role(name) is not Role.WEIGHT)
    found = report(encoding, seed)
    assert sum(row.scale_bytes for row in found.by_encoding()) == beside
    assert sum(row.stored_bytes for row in found.by_encoding()) == sum(nbytes for _, _, nbytes in tensors.values())
    assert sum(row.stored_bytes for row in found.components) == found.tensor_bytes
    assert sum(part.scale_bytes for row in found.components for part in row.encodings) == beside


@everywhere
@in_gguf
def test_scales_in_gguf_are_in_the_blocks(encoding: str, seed: int) -> None:
    rows = {row.encoding: row for row in report(encoding, seed).by_encoding()}
    assert rows[named(encoding)[0]].scale_bytes == 0
    beside = [one for one in opened(encoding, seed).tensors if one.role is not Role.WEIGHT]
    assert all((one.name.endswith(".scale") and one.dtype == "NVFP4") or encoding == "gguf-nvfp4" for one in beside)
    assert sum(row.stored_bytes for row in rows.values()) == report(encoding, seed).tensor_bytes


@everywhere
@pytest.mark.parametrize("encoding", sorted({*ENCODINGS} - {"gpt-oss-mxfp4"}))
def test_shapes_are_those_of_the_plain_model(encoding: str, seed: int) -> None:
    style = next((style for style in ("mlx-", "gguf-") if encoding.startswith(style)), "")
    plain, found = weights(f"{style}bf16", seed), weights(encoding, seed)
    if encoding == "deepseek-v4-fp4":  # under other names
        assert Counter(one.shape for one in found) == Counter(one.shape for one in plain)
        return
    shapes = {module(one.name): one.shape for one in plain}
    assert len(found) == len(shapes)
    for one in found:
        assert one.shape == (None if one.encoding in ("nf4", "bnb_fp4") else shapes[module(one.name)])


@everywhere
def test_shapes_of_joined_experts(seed: int) -> None:
    """gpt-oss has gate and up in one matrix, the experts outermost."""
    plain = {one.name: one.shape or () for one in weights("bf16", seed)}
    rows, columns = plain["model.layers.1.mlp.experts.0.gate_proj.weight"]
    table = opened("gpt-oss-mxfp4", seed).tensors
    joined = table["model.layers.1.mlp.experts.gate_up_proj_blocks"]
    assert (joined.shape, joined.experts, joined.expert) == ((3, 2 * rows, columns), 3, None)
    assert table["model.layers.1.mlp.experts.down_proj_blocks"].shape == (3, columns, rows)


@everywhere
@in_gguf
def test_gguf_shapes_are_outermost_first(encoding: str, seed: int) -> None:
    plain = {one.name: one.shape or () for one in weights("bf16", seed)}
    rows, columns = plain["model.layers.1.mlp.experts.0.down_proj.weight"]
    one = opened(encoding, seed).tensors["blk.1.ffn_down_exps.weight"]
    assert (one.shape, one.stored_shape, one.experts) == ((3, rows, columns), (columns, rows, 3), 3)
    _, values, size = GGML_TYPES[encoding.removeprefix("gguf-").upper()]
    assert one.stored_bytes * values == 3 * rows * columns * size


@in_safetensors
def test_experts_are_the_same_in_each(encoding: str) -> None:
    experts = report(encoding, 0).experts
    assert experts is not None
    assert (experts.layers, experts.per_layer_min, experts.per_layer_max, experts.declared) == (2, 3, 3, 3)
