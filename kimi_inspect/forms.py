"""The forms in which weights are packed: what a weight and the tensors beside it determine together.

Each function looks at one weight: the shapes and types of the tensors that share its module's name, and what the config
says. Sources: OCP Microscaling specification 1.0 (MXFP4, MXFP8: a power-of-two scale for 32 values); NVIDIA's NVFP4 (an
FP8 scale for 16 values, another for the whole tensor); compressed-tensors, AutoGPTQ, AutoAWQ, bitsandbytes and MLX for
their own layouts; DeepSeek V3's report for FP8 in blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from attrs import evolve, field, frozen

from kimi_inspect.declared import Spec
from kimi_inspect.header import Kind
from kimi_inspect.leaves import HANGING, OWN

__all__ = ["Verdict", "decide"]

MX_GROUP, NV_GROUP = 32, 16
WIDTHS = range(2, 9)
"""Bits that whole values are packed in."""
FP8_BLOCK = (128, 128)
GROUPS = (16, 32, 64, 128, 256, 512)
"""Values of a row that share a scale, where they share by groups."""
BNB_BLOCKS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
BNB_BLOCK, BNB_NESTED_BLOCK = 64, 256
"""What bitsandbytes takes unless it is told otherwise: values for a maximum, and maxima for one of theirs."""
MLX_MODES = (("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16))
"""MLX's modes without biases: bits of a value, and values that share a scale."""
_MX_SCALES = ("U8", "F8_E8M0")


@frozen(kw_only=True)
class Verdict:
    """What a weight turns out to be.

    Attributes:
        encoding: as in `TensorInfo`.
        shape: of the values; None where only their number is known.
        parameters: how many values.
        group_size: values that share one scale.
        by_tensors: the tensors alone determine it; else the config was believed.
        misfit: a tensor beside the weight that has not the shape it should have, and that shape.
        layout: whose way of laying it out it is, of two with the same encoding: ``gptq`` or ``awq``.
        lacks: last part of the name of what belongs beside it, apart from its scale, and is not there.
    """

    encoding: str
    shape: tuple[int, ...] | None
    parameters: int
    group_size: int | None = None
    by_tensors: bool = True
    misfit: tuple[str, tuple[int, ...]] | None = None
    layout: str | None = field(default=None, eq=False)
    lacks: str | None = None


def decide(main: str, tensors: Mapping[str, Kind], spec: Spec | None) -> Verdict | None:
    """Say what a weight is; None if nothing determines it, or if it is not packed at all.

    Args:
        main: the last part of the weight's name.
        tensors: the tensors of its module by the last part of their names, itself among them.
        spec: what the config says of it.
    """
    if not tensors[main].shape:
        return None
    form = _FORMS.get(main)
    return form(tensors, spec) if form else None


def _grouped(
    encoding: str, shape: tuple[int, ...], group: int, scale: tuple[str, Kind] | None, *, by_tensors: bool = True
) -> Verdict:
    """Make the verdict for values in groups along the last dimension, each group with one scale."""
    misfit = None
    if scale is not None:
        expected = (*shape[:-1], -(-shape[-1] // group))
        misfit = None if scale[1].shape == expected else (scale[0], expected)
    return Verdict(
        encoding=encoding,
        shape=shape,
        parameters=prod(shape),
        group_size=group,
        by_tensors=by_tensors and scale is not None,
        misfit=misfit,
    )


def _widened(shape: tuple[int, ...], times: int) -> tuple[int, ...]:
    return (*shape[:-1], shape[-1] * times)


def _fp4(weight: Kind, scale: tuple[str, Kind] | None, spec: Spec | None) -> Verdict | None:
    """Two values a byte; the type of the scales tells MXFP4 from NVFP4."""
    shape = _widened(weight.shape, 2)
    if scale is None:
        group = {"mxfp4": MX_GROUP, "nvfp4": NV_GROUP}.get(spec.encoding or "") if spec else None
        return _grouped(str(spec.encoding), shape, group, None) if spec and group else None
    if scale[1].dtype in _MX_SCALES:
        return _grouped("mxfp4", shape, MX_GROUP, scale)
    return _grouped("nvfp4", shape, NV_GROUP, scale) if scale[1].dtype == "F8_E4M3" else None


def _compressed(tensors: Mapping[str, Kind], spec: Spec | None) -> Verdict | None:
    """compressed-tensors: FP4 in bytes, or integers in words of 32 bits, as many a word as are whole in it."""
    weight, scale = tensors["weight_packed"], _of(tensors, "weight_scale")
    if weight.dtype == "U8":
        return _fp4(weight, scale, spec)
    if weight.dtype != "I32" or spec is None or not spec.bits or spec.bits > 32 or spec.leaf != "weight_packed":
        return None
    shape = _widened(weight.shape, 32 // spec.bits)
    encoding = f"int{spec.bits}"
    if spec.group_size is None or scale is None:
        return Verdict(encoding=encoding, shape=shape, parameters=prod(shape), by_tensors=False)
    # The last word of a row may be filled up; the scales tell how far.
    told = scale[1].shape[-1] * spec.group_size if scale[1].shape else 0
    if 0 <= shape[-1] - told < 32 // spec.bits:
        shape = (*shape[:-1], told)
    return _grouped(encoding, shape, spec.group_size, scale, by_tensors=False)


def _of(tensors: Mapping[str, Kind], *names: str) -> tuple[str, Kind] | None:
    return next(((name, tensors[name]) for name in names if name in tensors), None)


def _blocks(tensors: Mapping[str, Kind], _: Spec | None) -> Verdict | None:
    """gpt-oss: MXFP4 as [experts, rows, groups, 16] bytes and [experts, rows, groups] scales."""
    weight, scale = tensors["_blocks"], _of(tensors, "_scales")
    if weight.dtype != "U8" or len(weight.shape) < 2 or weight.shape[-1] * 2 != MX_GROUP:
        return None
    return _grouped("mxfp4", (*weight.shape[:-2], weight.shape[-2] * MX_GROUP), MX_GROUP, scale)


def _qweight(tensors: Mapping[str, Kind], spec: Spec | None) -> Verdict | None:
    """GPTQ packs along the rows, AWQ along the columns of a matrix stored [in, out]; scales are [groups, out]."""
    weight, scales = tensors["qweight"], tensors.get("scales")
    if weight.dtype != "I32" or len(weight.shape) != 2:
        return None
    if scales is None or len(scales.shape) != 2:
        return _integers(spec, (weight.shape[1], weight.shape[0])) if spec and spec.bits else None
    return _awq(tensors, spec) if _is_awq(tensors, spec) else _gptq(tensors, spec)


def _is_awq(tensors: Mapping[str, Kind], spec: Spec | None) -> bool:
    """Tell AWQ from GPTQ: by the scales, one for each value that goes out; where these fit neither, by the zeros.

    AWQ's zeros have as many words as its weight.
    """
    columns, out = tensors["qweight"].shape[1], tensors["scales"].shape[1]
    if out == columns or not columns:
        return False
    bits, rest = divmod(32 * columns, out) if out else (0, 1)
    if not rest and bits in WIDTHS:
        return True
    zeros = tensors.get("qzeros")
    words = zeros.shape[-1] if zeros is not None and zeros.shape else None
    return "g_idx" not in tensors and words == columns and spec is not None


def _awq(tensors: Mapping[str, Kind], spec: Spec | None) -> Verdict | None:
    (rows, columns), (groups, out) = tensors["qweight"].shape, tensors["scales"].shape
    bits, rest = divmod(32 * columns, out) if out else (0, 1)
    misfit = None
    if rest or bits not in WIDTHS:
        bits = (spec.bits if spec else None) or 0
        if bits not in WIDTHS or 32 * columns % bits:
            return None
        out = 32 * columns // bits
        misfit = ("scales", (groups, out))
    return _counted(bits, (out, rows), groups, spec, layout="awq", misfit=misfit)


def _gptq(tensors: Mapping[str, Kind], spec: Spec | None) -> Verdict | None:
    (rows, out), (groups, width) = tensors["qweight"].shape, tensors["scales"].shape
    zeros, order = tensors.get("qzeros"), tensors.get("g_idx")
    bits, rest = divmod(32 * zeros.shape[-1], out) if zeros is not None and zeros.shape and out else (0, 0)
    if not bits and order is not None and order.shape and order.shape[0]:
        bits, rest = divmod(32 * rows, order.shape[0])
    by_tensors = bool(bits)
    bits = bits or (spec.bits or 0 if spec else 0)
    if rest or bits not in WIDTHS or 32 * rows % bits:
        return None
    misfit = None if width == out else ("scales", (groups, out))
    shape = (out, 32 * rows // bits)
    return _counted(bits, shape, groups, spec, by_tensors=by_tensors, layout="gptq", misfit=misfit)


def _counted(
    bits: int,
    shape: tuple[int, int],
    groups: int,
    spec: Spec | None,
    *,
    by_tensors: bool = True,
    layout: str | None = None,
    misfit: tuple[str, tuple[int, ...]] | None = None,
) -> Verdict:
    declared = spec.group_size if spec else None
    expected = (-(-shape[1] // declared), shape[0]) if declared and groups else None
    return Verdict(
        misfit=("scales", expected) if expected and expected[0] != groups else misfit,
        encoding=f"int{bits}",
        shape=shape,
        parameters=prod(shape),
        group_size=shape[1] // groups if groups and shape[1] % groups == 0 else None,
        by_tensors=by_tensors,
        layout=layout,
    )


def _integers(spec: Spec, words: tuple[int, int]) -> Verdict | None:
    """Believe the config where a GPTQ weight has lost its scales."""
    bits = spec.bits or 0
    if not bits or 32 * words[1] % bits:
        return None
    return _counted(bits, (words[0], 32 * words[1] // bits), 0, spec, by_tensors=False)


def _weight(tensors: Mapping[str, Kind], spec: Spec | None) -> Verdict | None:
    """A weight under its plain name: the type says which forms come into question."""
    weight = tensors["weight"]
    if weight.dtype == "U32":
        return _mlx(tensors, spec)
    if weight.dtype == "U8":
        return _bitsandbytes(tensors) or _fp4_by_scale(tensors, spec)
    if weight.dtype == "I8":
        return _bytes(tensors, spec)
    return _fp8(tensors, spec) if weight.dtype.startswith("F8_E") else None


def _fp4_by_scale(tensors: Mapping[str, Kind], spec: Spec | None) -> Verdict | None:
    scale = _of(tensors, "weight_scale", "scale")
    return _fp4(tensors["weight"], scale, spec) if scale else None


def _bitsandbytes(tensors: Mapping[str, Kind]) -> Verdict | None:
    """bitsandbytes: a column of bytes, two values in each; the shape lies in the state, in the body of the file."""
    for kind in ("nf4", "fp4"):
        if f"weight.quant_state.bitsandbytes__{kind}" in tensors:
            values = 2 * prod(tensors["weight"].shape)
            absmax = tensors.get("weight.absmax")
            blocks = prod(absmax.shape) if absmax else 0
            encoding = "nf4" if kind == "nf4" else "bnb_fp4"
            return Verdict(
                encoding=encoding,
                shape=None,
                parameters=values,
                group_size=values // blocks if blocks and values % blocks == 0 else None,
                misfit=_misfit_of_maxima(values, tensors) if absmax else None,
            )
    return None


def _misfit_of_maxima(values: int, tensors: Mapping[str, Kind]) -> tuple[str, tuple[int, ...]] | None:
    """Hold the maxima of bitsandbytes' blocks against the values, and the maxima of the maxima against these."""
    blocks = prod(tensors["weight.absmax"].shape)
    if blocks not in {-(-values // size) for size in BNB_BLOCKS}:
        return "weight.absmax", (-(-values // BNB_BLOCK),)
    nested = tensors.get("weight.nested_absmax")
    expected = -(-blocks // BNB_NESTED_BLOCK)
    return ("weight.nested_absmax", (expected,)) if nested and prod(nested.shape) != expected else None


def _bytes(tensors: Mapping[str, Kind], spec: Spec | None) -> Verdict | None:
    """Signed bytes: bitsandbytes' or another int8, or two FP4 values where the scale is a power of two for 32."""
    weight = tensors["weight"]
    scale = _of(tensors, "weight_scale", "scale")
    if scale and scale[1].dtype in _MX_SCALES:
        return _grouped("mxfp4", _widened(weight.shape, 2), MX_GROUP, scale)
    if "SCB" in tensors:
        rows = weight.shape[:-1]
        misfit = None if prod(tensors["SCB"].shape) == prod(rows) else ("SCB", rows)
        return Verdict(encoding="bnb_int8", shape=weight.shape, parameters=prod(weight.shape), misfit=misfit)
    if scale:
        misfit = None if _is_by_row(weight, scale[1], spec) else (scale[0], (*weight.shape[:-1], 1))
        return Verdict(encoding="int8", shape=weight.shape, parameters=prod(weight.shape), misfit=misfit)
    return None


def _is_by_row(weight: Kind, scale: Kind, spec: Spec | None) -> bool:
    """Whether a scale is one for all or one for each row; if the config does not exclude it, for groups in a row."""
    rows = weight.shape[:-1]
    if prod(scale.shape) in (1, prod(rows)):
        return True
    may_be_groups = spec is None or (spec.group_size is not None and spec.leaf != "qweight")
    steps = {-(-weight.shape[-1] // group) for group in GROUPS}
    return may_be_groups and scale.shape[:-1] == rows and scale.shape[-1] in steps


def _fp8(tensors: Mapping[str, Kind], spec: Spec | None) -> Verdict | None:
    """FP8 with one scale for a block or a group; with one for a row or for all it is a plain type."""
    weight, scale = tensors["weight"], _of(tensors, "weight_scale_inv", "weight_scale", "scale")
    if scale is None or len(weight.shape) < 2:
        return None
    name, kind = scale
    rows = weight.shape[:-1]
    if kind.dtype in _MX_SCALES and kind.shape == (*rows, -(-weight.shape[-1] // MX_GROUP)):
        return _grouped("mxfp8", weight.shape, MX_GROUP, scale)
    block = (spec.block if spec else None) or FP8_BLOCK
    blocks = (*rows[:-1], *(-(-side // step) for side, step in zip(weight.shape[-2:], block, strict=True)))
    plain = Verdict(encoding=weight.dtype.lower(), shape=weight.shape, parameters=prod(weight.shape))
    if kind.shape == blocks:
        return evolve(plain, encoding="fp8_block", group_size=block[1])
    if prod(kind.shape) == 1 or kind.shape in (rows, (*rows, 1)):
        return plain
    if name == "weight_scale_inv" or (spec and spec.block and name != "weight_scale"):
        return evolve(plain, encoding="fp8_block", group_size=block[1], by_tensors=False, misfit=(name, blocks))
    return None if _is_by_row(weight, kind, spec) else evolve(plain, misfit=(name, (*rows, 1)))


def _own(tensors: Mapping[str, Kind], spec: Spec | None) -> Verdict | None:
    """Experts in one tensor [experts, in, out] without a last name, on which those of its scales hang."""
    weight, scale = tensors[OWN], _of(tensors, *HANGING)
    verdict = _weight({f"weight{leaf}": kind for leaf, kind in tensors.items()}, spec)
    fits = verdict is not None and verdict.misfit is None
    if not fits and scale and weight.dtype.startswith(("F8_E", "I8")) and len(weight.shape) > 2:
        experts, out = weight.shape[0], weight.shape[-1]
        if scale[1].shape in ((experts,), (experts, 1, 1), (experts, out), (experts, 1, out)):
            encoding = "int8" if weight.dtype == "I8" else weight.dtype.lower()
            return Verdict(encoding=encoding, shape=weight.shape, parameters=prod(weight.shape))
    if verdict is None or verdict.misfit is None:
        return verdict
    leaf, shape = verdict.misfit
    return evolve(verdict, misfit=(leaf.removeprefix("weight"), shape))


def _mlx(tensors: Mapping[str, Kind], spec: Spec | None) -> Verdict | None:
    """MLX: values packed bit by bit in words of 32; without biases the scales' share of the row tells the mode."""
    weight, scales, biases = tensors["weight"], _of(tensors, "scales"), tensors.get("biases")
    if scales is None or not scales[1].shape:
        return None
    if scales[1].dtype == "U8" and biases is None:
        return _mlx_without_biases(weight, scales, spec)
    if spec is None or spec.bits is None or spec.bits not in WIDTHS or not spec.group_size:
        return None
    shape = (*weight.shape[:-1], weight.shape[-1] * 32 // spec.bits)
    verdict = _grouped(f"affine{spec.bits}", shape, spec.group_size, scales, by_tensors=False)
    if shape[-1] % spec.group_size:  # MLX packs whole groups only
        verdict = evolve(verdict, misfit=(scales[0], (*shape[:-1], shape[-1] // spec.group_size)))
    if biases is None:
        return evolve(verdict, lacks="biases") if spec.encoding == verdict.encoding else None
    if verdict.misfit is None and biases.shape != scales[1].shape:
        return evolve(verdict, misfit=("biases", scales[1].shape))
    return verdict


def _mlx_without_biases(weight: Kind, scales: tuple[str, Kind], spec: Spec | None) -> Verdict | None:
    declared = None
    for mode, bits, group in MLX_MODES:
        verdict = _grouped(mode, _widened(weight.shape, 32 // bits), group, scales)
        if verdict.misfit is None and weight.shape[-1] * 32 // bits % group == 0:
            return verdict
        if spec and spec.encoding == mode:
            declared = evolve(verdict, by_tensors=False)
    return declared


_FORMS: dict[str, Callable[[Mapping[str, Kind], Spec | None], Verdict | None]] = {
    "weight_packed": _compressed,
    "_blocks": _blocks,
    "qweight": _qweight,
    "weight": _weight,
    OWN: _own,
}
