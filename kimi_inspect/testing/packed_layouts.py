"""What each tool packs of a model, how, and what it writes of it into config.json.

Norms are never packed. Of the rest, tools for servers leave embeddings, head and router as they were, bitsandbytes
takes the router too, and MLX everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kimi_inspect.testing import packings
from kimi_inspect.testing.packings import Pack

__all__ = ["LAYOUTS", "Kind", "Layout", "Style"]

Kind = Literal["attention", "mlp", "experts", "router", "embedding", "head", "norm"]
Style = Literal["transformers", "mlx", "gpt-oss", "deepseek-v4"]

_Config = Mapping[str, Any]


@dataclass(frozen=True)
class Layout:
    """One encoding of a model.

    `packs` says how each kind of matrix is packed; what is not in it is of `dtype`. `style` is whose names the model
    has, `config` goes to the top of config.json, `router` beside it for each router in MLX's quantization, and `file`
    is a further JSON file.
    """

    packs: Mapping[Kind, Pack] = field(default_factory=dict)
    config: _Config = field(default_factory=dict)
    dtype: str = "BF16"
    style: Style = "transformers"
    router: _Config = field(default_factory=dict)
    file: tuple[str, _Config] | None = None


def _linear(pack: Pack) -> dict[Kind, Pack]:
    return {"attention": pack, "mlp": pack, "experts": pack}


def _compressed(pack: Pack, name: str, **weights: Any) -> Layout:
    group = {
        "format": name,
        "targets": ["Linear"],
        "input_activations": None,
        "output_activations": None,
        "weights": {"dynamic": False, "observer": "minmax", "symmetric": True, "type": "int"} | weights,
    }
    quantization = {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": name,
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "ignore": ["lm_head", "re:.*mlp.gate$"],
        "config_groups": {"group_0": group},
    }
    return Layout(_linear(pack), {"quantization_config": quantization})


_MXFP4 = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
_NVFP4 = _MXFP4 | {"strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"}
_ROWS = {"num_bits": 8, "strategy": "channel", "group_size": None}


def _compressed_layouts() -> Iterator[tuple[str, Layout]]:
    yield "compressed-mxfp4", _compressed(packings.mxfp4, "mxfp4-pack-quantized", **_MXFP4)
    yield "compressed-nvfp4", _compressed(packings.nvfp4, "nvfp4-pack-quantized", **_NVFP4)
    for bits, group in ((2, 32), (4, 32), (4, 128), (8, 128)):
        for zero_points in (False, True):
            pack = packings.pack_quantized(bits, group, zero_points=zero_points)
            weights = {"num_bits": bits, "strategy": "group", "group_size": group, "symmetric": not zero_points}
            name = f"compressed-int{bits}-{group}{'-zero-points' * zero_points}"
            yield name, _compressed(pack, "pack-quantized", **weights)
    yield "compressed-int8-rows", _compressed(packings.one_scale_a_row("I8"), "int-quantized", **_ROWS)
    pack = packings.one_scale_a_row("F8_E4M3")
    yield "compressed-fp8-rows", _compressed(pack, "float-quantized", **_ROWS, type="float")


def _deepseek_layouts() -> Iterator[tuple[str, Layout]]:
    fp8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    yield (
        "fp8-block",
        Layout(_linear(packings.fp8_block("weight_scale_inv", "F32")), {"quantization_config": fp8}),
    )
    yield (
        "deepseek-v4-fp4",
        Layout(
            _linear(packings.fp8_block("scale", "F8_E8M0")) | {"experts": packings.fp4_bytes},
            {"expert_dtype": "fp4", "quantization_config": fp8 | {"scale_fmt": "ue8m0"}},
            style="deepseek-v4",
        ),
    )


def _gptq_layouts() -> Iterator[tuple[str, Layout]]:
    for bits in (2, 3, 4, 8):
        for desc_act in (False, True):
            quantization = {
                "quant_method": "gptq",
                "bits": bits,
                "group_size": 128,
                "desc_act": desc_act,
                "sym": True,
                "lm_head": False,
                "checkpoint_format": "gptq",
                "pack_dtype": "int32",
            }
            yield (
                f"gptq-{bits}{'-desc-act' * desc_act}",
                Layout(_linear(packings.gptq(bits, 128)), {"quantization_config": quantization}, "F16"),
            )


def _bitsandbytes_layouts() -> Iterator[tuple[str, Layout]]:
    for kind in ("nf4", "fp4"):
        for nested in (False, True):
            pack = packings.bnb_4bit(kind, nested=nested)
            yield f"bnb-{kind}{'-nested' * nested}", _bitsandbytes(pack, kind=kind, nested=nested)
    yield "bnb-int8", _bitsandbytes(packings.bnb_int8)


def _bitsandbytes(pack: Pack, *, kind: str = "", nested: bool = False) -> Layout:
    quantization = {
        "quant_method": "bitsandbytes",
        "load_in_4bit": bool(kind),
        "load_in_8bit": not kind,
        "bnb_4bit_compute_dtype": "bfloat16",
        "bnb_4bit_quant_storage": "uint8",
        "bnb_4bit_quant_type": kind or "fp4",
        "bnb_4bit_use_double_quant": nested,
        "llm_int8_skip_modules": None,
        "llm_int8_threshold": 6.0,
    }
    return Layout(_linear(pack) | {"router": pack}, {"quantization_config": quantization})


def _mlx_layouts() -> Iterator[tuple[str, Layout]]:
    yield "mlx-bf16", Layout(style="mlx")
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            yield f"mlx-affine{bits}-{group}", _mlx(packings.mlx_affine(bits, group), bits, group, "affine")
    for mode, bits, group in (("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)):
        yield f"mlx-{mode}", _mlx(packings.mlx_float(bits, group), bits, group, mode)


def _mlx(pack: Pack, bits: int, group: int, mode: str) -> Layout:
    router = {"group_size": 64, "bits": 8, "mode": "affine"}
    packs = _linear(pack) | {"embedding": pack, "head": pack, "router": packings.mlx_affine(8, 64)}
    quantization = {"group_size": group, "bits": bits, "mode": mode}
    return Layout(packs, {"quantization": quantization}, style="mlx", router=router)


def _modelopt(pack: Pack, algorithm: str, **details: Any) -> Layout:
    ignore = ["lm_head", "model.layers.*.mlp.gate"]
    producer = {"name": "modelopt", "version": "0.33.0"}
    numbers = {"num_bits": 4 if details else 8, "type": "float", "dynamic": False} | details
    quantization = {
        "quant_method": "modelopt",
        "quant_algo": algorithm,
        "producer": producer,
        "ignore": ignore,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": numbers, "input_activations": numbers}},
    }
    said = {"quant_algo": algorithm, "kv_cache_quant_algo": None, "exclude_modules": ignore} | details
    side_file = ("hf_quant_config.json", {"producer": producer, "quantization": said})
    return Layout(_linear(pack), {"quantization_config": quantization}, file=side_file)


_GPT_OSS = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
}
_AWQ = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 128,
    "version": "gemm",
    "zero_point": True,
    "modules_to_not_convert": ["gate"],
}

LAYOUTS: Mapping[str, Layout] = {
    "bf16": Layout(),
    "f16": Layout(dtype="F16"),
    "f32": Layout(dtype="F32"),
    **dict(_compressed_layouts()),
    **dict(_deepseek_layouts()),
    "gpt-oss-mxfp4": Layout({"experts": packings.gpt_oss_blocks}, {"quantization_config": _GPT_OSS}, style="gpt-oss"),
    **dict(_gptq_layouts()),
    "awq-4": Layout(_linear(packings.awq), {"quantization_config": _AWQ}, "F16"),
    **dict(_bitsandbytes_layouts()),
    **dict(_mlx_layouts()),
    "modelopt-nvfp4": _modelopt(packings.modelopt_nvfp4, "NVFP4", group_size=16),
    "modelopt-fp8": _modelopt(packings.modelopt_fp8, "FP8"),
}
"""The encodings in safetensors by their names here."""
