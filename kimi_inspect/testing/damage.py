"""Damage that is planted on purpose: each function takes the files of a sound repository and gives them back with one.

    from kimi_inspect.testing import damage, kimi_k31_pro

    files = damage.drop_tensor(kimi_k31_pro(layers=5, experts=4), "language_model.model.norm.weight")

Every file is valid by itself: its header is written anew, with offsets and a size that follow from its tensors. Files
that were given are left as they are. What is said of all files together stays as it was, as a careless publisher leaves
it: the index, and in GGUF the number of tensors in the set. `with_index` makes that true again, as when the damage is
older than the index.

A repository has one set of weights here, in safetensors (MLX's too) or in GGUF. Of several damages `cut_shard` comes
last, since a file that is written anew is whole again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from kimi_inspect.testing.hollow import HollowFile, TensorSpec, in_data_order
from kimi_inspect.testing.kimi_mlx import Scheme
from kimi_inspect.testing.packings import Pack, plain
from kimi_inspect.testing.parts import GgufPart, Part, indexed, take_apart, weight_paths

__all__ = [
    "cut_shard",
    "drop_expert",
    "drop_scale",
    "drop_shard",
    "drop_tensor",
    "other_model",
    "renumber",
    "reshape_scale",
    "shorten_router",
    "swap_shard",
]

_Repository = Mapping[str, HollowFile]
_Edit = Callable[[TensorSpec], TensorSpec | None]

# What stands for the last word of a weight's name in the name of its scale.
_SCALES = ("weight_scale", "weight_scale_inv", "scales", "scale", "weight.absmax", "SCB")

# A decoder with the shapes of TinyLlama: the names of a module in safetensors and in GGUF, and its shape.
_Module = tuple[str, str, tuple[int, ...]]
_DECODER: tuple[_Module, ...] = (
    ("model.embed_tokens", "token_embd", (32000, 2048)),
    ("model.norm", "output_norm", (2048,)),
    ("lm_head", "output", (32000, 2048)),
)
_DECODER_LAYER: tuple[_Module, ...] = (
    ("input_layernorm", "attn_norm", (2048,)),
    ("self_attn.q_proj", "attn_q", (2048, 2048)),
    ("self_attn.k_proj", "attn_k", (256, 2048)),
    ("self_attn.v_proj", "attn_v", (256, 2048)),
    ("self_attn.o_proj", "attn_output", (2048, 2048)),
    ("post_attention_layernorm", "ffn_norm", (2048,)),
    ("mlp.gate_proj", "ffn_gate", (5632, 2048)),
    ("mlp.up_proj", "ffn_up", (5632, 2048)),
    ("mlp.down_proj", "ffn_down", (2048, 5632)),
)


def drop_shard(files: _Repository, number: int, *, with_index: bool = False) -> dict[str, HollowFile]:
    """Leave out the shard of that number, from 1."""
    lost = _numbered(files, number)
    return _finished({path: file for path, file in files.items() if path != lost}, with_index=with_index)


def cut_shard(files: _Repository, number: int, missing_bytes: int) -> dict[str, HollowFile]:
    """Let a shard end so many bytes early, as after a download that broke off."""
    path = _numbered(files, number)
    size = files[path].size
    if not 0 < missing_bytes <= size:
        raise ValueError(f"missing_bytes: expected 1 to {size}, got {missing_bytes}")
    return {**files, path: files[path].resized(size - missing_bytes)}


def drop_tensor(files: _Repository, name: str, *, with_index: bool = False) -> dict[str, HollowFile]:
    """Leave out one tensor."""
    return _edited(files, lambda tensor: None if tensor.name == name else tensor, name, with_index=with_index)


def drop_scale(files: _Repository, name: str, *, with_index: bool = False) -> dict[str, HollowFile]:
    """Leave out the scale of the weight of that name; ValueError where there is none, as in GGUF."""
    return drop_tensor(files, _scale_of(files, name), with_index=with_index)


def reshape_scale(files: _Repository, name: str, *, with_index: bool = False) -> dict[str, HollowFile]:
    """Give the scale of the weight of that name one group more in each row than the weight has."""
    scale = _scale_of(files, name)

    def edit(tensor: TensorSpec) -> TensorSpec:
        if tensor.name != scale:
            return tensor
        *rows, groups = tensor.shape
        return replace(tensor, shape=(*rows, groups + 1))

    return _edited(files, edit, scale, with_index=with_index)


def drop_expert(files: _Repository, layer: int, expert: int, *, with_index: bool = False) -> dict[str, HollowFile]:
    """Leave out an expert of a layer, its weights and scales; the router still knows it.

    Where the experts of a layer are stacked, the stacks have one fewer.
    """
    single = _in_layer(layer, rf"experts\.{expert}\.")
    stacked = _in_layer(layer, r"(switch_mlp\.|ffn_\w+_exps\.)")

    def edit(tensor: TensorSpec) -> TensorSpec | None:
        if single.search(tensor.name):
            return None
        return _one_fewer(tensor) if stacked.search(tensor.name) and expert < tensor.shape[0] else tensor

    return _edited(files, edit, f"expert {expert} in layer {layer}", with_index=with_index)


def shorten_router(files: _Repository, layer: int, *, with_index: bool = False) -> dict[str, HollowFile]:
    """Take one row off the router's matrix in a layer, and off its scales where it is packed; its biases stay."""
    router = _in_layer(layer, r"(gate\.(weight|scales|biases)|ffn_gate_inp\.weight)$")
    return _edited(
        files,
        lambda tensor: _one_fewer(tensor) if router.search(tensor.name) else tensor,
        f"router in layer {layer}",
        with_index=with_index,
    )


def swap_shard(
    files: _Repository, number: int, other_files: _Repository, *, with_index: bool = False
) -> dict[str, HollowFile]:
    """Put the shard that has the same number in another repository in the place of ours."""
    theirs = other_files[_numbered(other_files, number)]
    return _finished({**files, _numbered(files, number): theirs}, with_index=with_index)


def renumber(files: _Repository, one: int = 2, other: int = 3, *, with_index: bool = False) -> dict[str, HollowFile]:
    """Let two shards exchange their names; a part of a GGUF set still says its true number.

    Safetensors files do not know their number: with an index written after it nothing is wrong with them.
    """
    first, second = _numbered(files, one), _numbered(files, other)
    return _finished({**files, first: files[second], second: files[first]}, with_index=with_index)


def other_model(files: _Repository, *, with_index: bool = False) -> dict[str, HollowFile]:
    """Put a small Llama of as many layers under the names, the config and the metadata of this repository.

    Its matrices are packed as the config of an MLX build says, in GGUF as the experts were.
    """
    parts = {path: take_apart(files[path]) for path in weight_paths(files)}
    names = [tensor.name for part in parts.values() for tensor in part.tensors]
    tensors = list(_llama(_layer_count(names), *_manner(files, list(parts.values()))))
    made = dict(files)
    for number, (path, part) in enumerate(parts.items()):
        share = tensors[number * len(tensors) // len(parts) : (number + 1) * len(tensors) // len(parts)]
        ordered = share if isinstance(part, GgufPart) else in_data_order(share)
        made[path] = replace(part, tensors=tuple(ordered)).file()
    return _finished(made, with_index=with_index)


def _finished(files: dict[str, HollowFile], *, with_index: bool) -> dict[str, HollowFile]:
    return indexed(files) if with_index else files


def _edited(files: _Repository, edit: _Edit, what: str, *, with_index: bool) -> dict[str, HollowFile]:
    """Return the files with each tensor as `edit` leaves it, or without it; ValueError when that changes nothing."""
    changed = {}
    for path in weight_paths(files):
        part = take_apart(files[path])
        tensors = tuple(tensor for tensor in map(edit, part.tensors) if tensor is not None)
        if tensors != part.tensors:
            changed[path] = replace(part, tensors=tensors).file()
    if not changed:
        raise ValueError(f"{what}: not in these files")
    return _finished({**files, **changed}, with_index=with_index)


def _numbered(files: _Repository, number: int) -> str:
    found = [path for path in weight_paths(files) if re.search(rf"-0*{number}-of-\d+\.\w+$", path)]
    if len(found) != 1:
        raise ValueError(f"shard {number}: expected one file of that number, got {len(found)}")
    return found[0]


def _scale_of(files: _Repository, name: str) -> str:
    module = name.rpartition(".")[0]
    names = {tensor.name for path in weight_paths(files) for tensor in take_apart(files[path]).tensors}
    found = [scale for scale in (f"{module}.{word}" for word in _SCALES) if scale in names]
    if name not in names or not found:
        raise ValueError(f"{name}: expected a weight with a scale beside it")
    return found[0]


def _in_layer(layer: int, rest: str) -> re.Pattern[str]:
    """Return a pattern for names in a layer, in safetensors or GGUF, whose last words begin as `rest` says."""
    return re.compile(rf"(^|\.)(layers|blk)\.{layer}\.(.*\.)?{rest}")


def _one_fewer(tensor: TensorSpec) -> TensorSpec:
    return replace(tensor, shape=(tensor.shape[0] - 1, *tensor.shape[1:]))


def _layer_count(names: Iterable[str]) -> int:
    found = (re.search(r"(^|\.)(layers|blk)\.(\d+)\.", name) for name in names)
    return 1 + max(int(match[3]) for match in found if match)


def _manner(files: _Repository, parts: Sequence[Part]) -> tuple[bool, Pack, str]:
    """Return whether names are GGUF's, how a matrix is laid out and in what type a vector is."""
    if isinstance(parts[0], GgufPart):
        expert = next((one.dtype for part in parts for one in part.tensors if "_exps." in one.name), "Q8_0")
        return True, plain(expert), "F32"
    said = json.loads(files["config.json"].head).get("quantization") if "config.json" in files else None
    if said is None:
        return False, plain("BF16"), "BF16"
    return False, Scheme(said["mode"], said["bits"], said["group_size"]).pack, "BF16"


def _llama(layers: int, is_gguf: bool, pack: Pack, vector: str) -> Iterator[TensorSpec]:
    stem = "blk" if is_gguf else "model.layers"
    numbered = [
        (f"{stem}.{layer}.{ours}", f"{stem}.{layer}.{theirs}", shape)
        for layer in range(layers)
        for ours, theirs, shape in _DECODER_LAYER
    ]
    for ours, theirs, shape in (*_DECODER, *numbered):
        module = theirs if is_gguf else ours
        yield from (plain(vector) if len(shape) == 1 else pack)(module, shape)
