"""Building blocks of layouts: what modeling code makes of a config, module by module.

A row is a tensor of one layer or one expert; layouts repeat rows over layers and experts. How a matrix is stored is a
function of its own, so that the same model can be laid out plain and packed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from kimi_inspect.testing import HollowFile
from kimi_inspect.testing.hollow import TensorSpec, hollow_from_header

__all__ = [
    "Config",
    "Layout",
    "Row",
    "Store",
    "bf16",
    "biased",
    "each",
    "fp8",
    "gated_mlp",
    "gqa",
    "int4",
    "layer_norm",
    "numbered",
    "split",
    "stack",
    "vector",
]

Config = Mapping[str, Any]
"""A config.json, or a part of it."""
Row = tuple[str, str, tuple[int, ...]]
"""A tensor's name below its prefix, its dtype and its shape."""
Store = Callable[[str, int, int], list[Row]]
"""How a matrix [rows, columns] of a module of that name is stored."""
Shards = dict[str, list[TensorSpec]]

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
FP8_BLOCK = 128
INT4_GROUP = 32


@dataclass(frozen=True)
class Layout:
    """A public checkpoint: its config.json, and what makes its tensors, by file, of that config."""

    config_text: str
    lay_out: Callable[[Config], Shards]

    @cached_property
    def config(self) -> dict[str, Any]:
        """The parsed config.json."""
        config: dict[str, Any] = json.loads(self.config_text)
        return config

    def files_of(self, shards: Mapping[str, Sequence[TensorSpec]]) -> dict[str, HollowFile]:
        """Return the repository of these shards: true headers over holes, an index, the config.json."""
        files = {path: _hollow(tensors) for path, tensors in shards.items()}
        total = sum(file.size - len(file.head) for file in files.values())
        weight_map = {tensor.name: path for path, tensors in shards.items() for tensor in tensors}
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        files["model.safetensors.index.json"] = HollowFile(json.dumps(index).encode())
        files["config.json"] = HollowFile(self.config_text.encode())
        return files


def _hollow(tensors: Sequence[TensorSpec]) -> HollowFile:
    """Write a header as `hollow_safetensors` does, several times as fast: few looks are shared by many names."""
    looks: dict[tuple[str, tuple[int, ...]], tuple[str, int]] = {}
    entries, begin = [], 0
    for tensor in tensors:
        key = (tensor.dtype, tensor.shape)
        if key not in looks:
            text = f'{{"dtype":"{tensor.dtype}","shape":{list(tensor.shape)},"data_offsets":'
            looks[key] = (text, tensor.stored_bytes)
        text, nbytes = looks[key]
        entries.append(f'"{tensor.name}":{text}[{begin},{begin + nbytes}]}}')
        begin += nbytes
    return hollow_from_header(f"{{{','.join(entries)}}}".encode(), begin)


def bf16(name: str, rows: int, columns: int) -> list[Row]:
    """Store as it is."""
    return [(f"{name}.weight", "BF16", (rows, columns))]


def biased(name: str, rows: int, columns: int) -> list[Row]:
    """Store as it is, and a bias."""
    return [*bf16(name, rows, columns), (f"{name}.bias", "BF16", (rows,))]


def fp8(name: str, rows: int, columns: int) -> list[Row]:
    """Store as DeepSeek V3 does: one F32 scale for each block of 128 x 128, begun blocks included."""
    blocks = (-(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK))
    return [(f"{name}.weight", "F8_E4M3", (rows, columns)), (f"{name}.weight_scale_inv", "F32", blocks)]


def int4(name: str, rows: int, columns: int) -> list[Row]:
    """Store as compressed-tensors' `pack-quantized`: eight codes to an I32, a BF16 scale to a group of 32."""
    return [
        (f"{name}.weight_packed", "I32", (rows, columns // 8)),
        (f"{name}.weight_scale", "BF16", (rows, columns // INT4_GROUP)),
        (f"{name}.weight_shape", "I32", (2,)),
    ]


def vector(name: str, width: int, dtype: str = "BF16") -> list[Row]:
    """Store a vector of that very name."""
    return [(name, dtype, (width,))]


def layer_norm(name: str, width: int) -> list[Row]:
    """Store the weight and bias of a layer norm."""
    return [*vector(f"{name}.weight", width), *vector(f"{name}.bias", width)]


def gated_mlp(name: str, hidden: int, width: int, store: Store, names: Sequence[str] = PROJECTIONS) -> list[Row]:
    """Lay out an MLP of gate, up and down, by `names` in this order."""
    gate, up, down = (f"{name}.{part}" if name else part for part in names)
    return [*store(gate, width, hidden), *store(up, width, hidden), *store(down, hidden, width)]


def gqa(config: Config, store: Store, last: Store | None = None) -> list[Row]:
    """Lay out grouped-query attention; `last` is how the output projection is stored, where it differs."""
    hidden, heads, kv_heads = (config[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
    width = config.get("head_dim") or hidden // heads
    return [
        *store("self_attn.q_proj", heads * width, hidden),
        *store("self_attn.k_proj", kv_heads * width, hidden),
        *store("self_attn.v_proj", kv_heads * width, hidden),
        *(last or store)("self_attn.o_proj", hidden, heads * width),
    ]


def each(prefix: str, count: int, rows: Sequence[Row]) -> list[Row]:
    """Repeat the rows of one expert for `count` of them."""
    return [(f"{prefix}{number}.{name}", dtype, shape) for number in range(count) for name, dtype, shape in rows]


def stack(prefix: str, numbers: Iterable[int], rows: Sequence[Row]) -> list[TensorSpec]:
    """Repeat the rows of one layer for each of `numbers`."""
    return [TensorSpec(f"{prefix}{number}.{name}", dtype, shape) for number in numbers for name, dtype, shape in rows]


def numbered(count: int, *, first: int = 1, of: int | None = None, form: str = "05d") -> list[str]:
    """Name `count` files: `model-00001-of-00004.safetensors` and so on."""
    total = format(count if of is None else of, form)
    return [f"model-{number:05d}-of-{total}.safetensors" for number in range(first, first + count)]


def split(tensors: Sequence[TensorSpec], paths: Sequence[str]) -> Shards:
    """Cut `tensors` into as many runs of about the same number; where the public files are cut is not known."""
    bounds = pairwise(len(tensors) * number // len(paths) for number in range(len(paths) + 1))
    return {path: list(tensors[begin:end]) for path, (begin, end) in zip(paths, bounds, strict=True)}
