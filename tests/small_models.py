"""Public models cut to a few layers and experts, and what a converter to GGUF makes of them by gguf's own table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES
from gguf.tensor_mapping import TensorNameMap
from layouts.published import PUBLISHED

from kimi_inspect.testing import GgufTensor, HollowFile, TensorSpec, hollow_gguf

__all__ = ["ARCHITECTURES", "DRAFTS", "Shape", "small", "small_tensors", "twin"]

Shape = tuple[int, ...]

CUT = {"num_hidden_layers": 4, "n_routed_experts": 4, "num_experts": 4, "num_local_experts": 4}
"""What is cut of a config, and to what."""

ARCHITECTURES: Mapping[str, str] = {
    **dict.fromkeys(("Llama-3.1-8B", "Mixtral-8x7B"), "llama"),
    **dict.fromkeys(("Kimi-K2-Instruct", "Kimi-K2-Thinking", "Kimi-K2.5", "Kimi-VL-A3B", "DeepSeek-V3"), "deepseek2"),
    **dict.fromkeys(("gpt-oss-20b", "gpt-oss-120b"), "gpt-oss"),
    "Kimi-Linear-48B-A3B": "kimi-linear",
    "Qwen3-30B-A3B": "qwen3moe",
    "Qwen3-Next-80B-A3B": "qwen3next",
    "GLM-4.5-Air": "glm4moe",
    "MiniMax-M2.7": "minimax-m2",
    "gemma-3-4b": "gemma3",
}
"""What llama.cpp calls the architecture of each of `PUBLISHED`."""

# What converters pass over: scales, which they multiply in, and buffers.
_PASSED_OVER = re.compile(r"(\.weight_scale(_inv)?|\.weight_shape|_scales|\.inv_freq)$")
_TOWERS = re.compile(r"^(vision_tower|mm_projector|multi_modal_projector)\.")
DRAFTS: Mapping[str, str] = {"DeepSeek-V3": r"^model\.layers\.4\.", "Qwen3-Next-80B-A3B": r"^mtp\."}
"""Names of the drafts that llama.cpp leaves out."""

# What converters rename before they look a name up.
_RENAMED = (
    (r"^language_model\.", ""),
    (r"\.weight_packed$", ".weight"),
    (r"_proj_blocks$", "_proj.weight"),
    (r"_proj_bias$", "_proj.bias"),
    (r"_projection_weight$", "_projection.weight"),
    (r"\.sinks$", ".sinks.weight"),
    (r"\.e_score_correction_bias$", ".e_score_correction.bias"),
    (r"\.dt_bias$", ".dt_proj.bias"),
    (r"^mm_projector\.proj\.0\.", "mm_projector.proj.linear_1."),
    (r"^mm_projector\.proj\.2\.", "mm_projector.proj.linear_2."),
    (r"\.experts\.\d+\.", ".experts."),
)


def _cut(config: Mapping[str, Any]) -> dict[str, Any]:
    kept = {"num_hidden_layers"} if config.get("model_type") == "gpt_oss" else set()
    small = {key: min(config[key], value) for key, value in CUT.items() if key in config and key not in kept}
    inner = {"text_config": _cut(config["text_config"])} if "text_config" in config else {}
    return {**config, **small, **inner}


@cache
def small_tensors(name: str) -> tuple[TensorSpec, ...]:
    """Return the tensors of one of `PUBLISHED` with four layers, and four experts in each; gpt-oss keeps its layers."""
    layout = PUBLISHED[name].layout
    return tuple(tensor for shard in layout.lay_out(_cut(layout.config)).values() for tensor in shard)


def small(name: str, tensors: Iterable[TensorSpec] | None = None) -> dict[str, HollowFile]:
    """Return the small model in one file, or these tensors in its stead."""
    shards = {"model.safetensors": list(small_tensors(name) if tensors is None else tensors)}
    layout = PUBLISHED[name].layout
    config = HollowFile(json.dumps(_cut(layout.config)).encode())
    return {**layout.files_of(shards), "config.json": config}


def twin(name: str, *, dropped: str = "$^") -> dict[str, HollowFile]:
    """Return the same model in GGUF, its towers in a file beside it; without the tensors whose name `dropped` fits.

    Names are those that gguf's table gives; shapes follow what llama.cpp's `modify_tensors` does for the family.
    """
    architecture = ARCHITECTURES[name]
    arch = next(arch for arch, text in MODEL_ARCH_NAMES.items() if text == architecture)
    left_out = re.compile(f"{dropped}|{DRAFTS.get(name, '$^')}")
    tensors = [tensor for tensor in small_tensors(name) if not left_out.search(tensor.name)]
    text = [*_converted(arch, [tensor for tensor in tensors if not _TOWERS.search(tensor.name)])]
    towers = [*_converted(MODEL_ARCH.MMPROJ, [tensor for tensor in tensors if _TOWERS.search(tensor.name)])]
    if architecture == "llama":
        text.append(GgufTensor("rope_freqs.weight", "F32", (64,)))
    files = {"model-BF16.gguf": hollow_gguf(text, {"general.architecture": architecture})}
    if towers:
        files["mmproj-BF16.gguf"] = hollow_gguf(towers, {"general.architecture": "clip"})
    return files


def _converted(arch: MODEL_ARCH, tensors: Iterable[TensorSpec]) -> Iterator[GgufTensor]:
    names = TensorNameMap(arch, 100)
    stacks: dict[str, list[TensorSpec]] = {}
    for tensor in tensors:
        if not _PASSED_OVER.search(tensor.name):
            name = tensor.name
            for pattern, replacement in _RENAMED:
                name = re.sub(pattern, replacement, name)
            stacks.setdefault(name, []).append(tensor)
    for name, stack in stacks.items():
        shape = _logical(stack[0])
        if ".experts." in stack[0].name and "_proj_" not in stack[0].name:
            shape = (len(stack), *shape)
        for part, extents in _parted(name, shape):
            found = names.get_name(part, try_suffixes=(".weight", ".bias"))
            assert found, part
            packed = stack[0].name.endswith("_blocks")
            kind = "MXFP4" if packed else "F32" if len(extents) == 1 or not part.endswith(".weight") else "BF16"
            yield GgufTensor(found, kind, extents[::-1])


def _logical(tensor: TensorSpec) -> Shape:
    if tensor.name.endswith(".weight_packed"):
        return (tensor.shape[0], tensor.shape[1] * 8)
    if tensor.name.endswith("_blocks"):
        return (*tensor.shape[:-2], tensor.shape[-2] * 32)
    return tensor.shape


def _parted(name: str, shape: Shape) -> Iterator[tuple[str, Shape]]:
    """Yield what becomes of a tensor."""
    if "kv_b_proj" in name:  # as many plain dimensions in a key as in a value: 128
        heads = shape[0] // 256
        yield name.replace("kv_b_proj", "k_b_proj"), (heads, shape[1], 128)
        yield name.replace("kv_b_proj", "v_b_proj"), (heads, 128, shape[1])
    elif "experts.gate_up_proj" in name:
        for part in ("gate_proj", "up_proj"):
            yield name.replace("gate_up_proj", part), (shape[0], shape[1] // 2, *shape[2:])
    elif "in_proj_qkvz" in name:  # as many values as queries and keys together
        yield name.replace("qkvz", "qkv"), (shape[0] * 2 // 3, shape[1])
        yield name.replace("qkvz", "z"), (shape[0] // 3, shape[1])
    elif "mm_input_projection" in name:
        yield name, shape[::-1]
    elif len(shape) == 3 and shape[1] == 1:
        yield name, (shape[0], shape[2])
    else:
        yield name, shape
