"""Kimi K3.1 Pro regrouped as the public converters for MLX do it, and packed by a recipe.

The experts of a layer are stacked, `language_model.` is dropped, the latent projection of full attention is split into
its key and its value half, convolutions have their channels last. All parameters stay, none are added.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kimi_inspect.testing.hollow import HollowFile, TensorSpec, dealt, hollow_checkpoint, in_data_order
from kimi_inspect.testing.kimi import kimi_config, kimi_tensors
from kimi_inspect.testing.packings import Pack, mlx_affine, mlx_float

__all__ = ["MXFP4", "MlxRecipe", "Scheme", "mlx_repository"]

_METADATA = {"format": "mlx"}

# Patterns in official names, and what MLX has in their place; expert 0 stands for all of its layer.
_NAMES: tuple[tuple[str, str], ...] = (
    (r"^language_model\.", ""),
    (r"(self_attention_res|mlp_res|output_attn_res)_(proj|norm)\.weight$", r"\1.\2_weight"),
    (r"\.([qkv])_conv1d\.", r".\1_conv.conv."),
    (r"\.gate\.e_score_correction_bias$", ".e_score_correction_bias"),
    (r"\.experts\.0\.w1\.weight_packed$", ".switch_mlp.gate_proj.weight"),
    (r"\.experts\.0\.w2\.weight_packed$", ".switch_mlp.down_proj.weight"),
    (r"\.experts\.0\.w3\.weight_packed$", ".switch_mlp.up_proj.weight"),
)


@dataclass(frozen=True, slots=True)
class Scheme:
    """A way of MLX to pack: `mode`, `bits` a value, `group` of values that share a scale."""

    mode: str
    bits: int
    group: int

    @property
    def pack(self) -> Pack:
        """What lays out a matrix."""
        return (mlx_affine if self.mode == "affine" else mlx_float)(self.bits, self.group)

    @property
    def said(self) -> dict[str, Any]:
        """What config.json says of it."""
        return {"group_size": self.group, "bits": self.bits, "mode": self.mode}


MXFP4 = Scheme("mxfp4", 4, 32)


@dataclass(frozen=True, slots=True)
class MlxRecipe:
    """How a build is packed.

    The first pattern of `schemes` that is found in a tensor's name tells its scheme, or None that it stays as it is.
    `default` is the scheme that config.json gives for the whole, `narrow_conv` makes the F32 convolutions BF16.
    Headers are padded to `pad_to` bytes; MLX's own writer does not pad.
    """

    default: Scheme
    schemes: tuple[tuple[str, Scheme | None], ...]
    narrow_conv: bool = False
    pad_to: int = 1

    def scheme(self, name: str) -> Scheme | None:
        """Return the scheme of a tensor of that name."""
        return next((scheme for pattern, scheme in self.schemes if re.search(pattern, name)), None)


def mlx_repository(
    config: Mapping[str, Any], counts: Sequence[int], recipe: MlxRecipe, *, shards: int | None = None
) -> dict[str, HollowFile]:
    """Return a whole repository, path to file.

    Args:
        config: what config.json shall say; how many layers there are is read from it.
        counts: experts of each layer, 0 in the dense ones; ValueError when they are not as many as the layers.
        recipe: how it is packed.
        shards: how many, of about the same bytes and fewer where a tensor is larger than a share; None gives each
            layer one, then one to what no layer has and one to vision.
    """
    # Made with one expert, whose tensors are then stretched: the full number would be half a million.
    layers = config["text_config"]["num_hidden_layers"]
    official = kimi_tensors(kimi_config("kimi-k3.1-pro", layers=layers, experts=1))
    groups = [
        [tensor for one in group for tensor in _regrouped(one, count, config["text_config"])]
        for group, count in zip(official.values(), (*counts, 0, 0, 0), strict=True)
    ]
    *rest, projector, tower = groups
    groups = [[_kept(tensor, recipe) for tensor in group] for group in (*rest, projector + tower)]
    stored = [[tensor for one in group for tensor in _stored(one, recipe)] for group in groups]
    if shards is not None:
        stored = [share for share in dealt([tensor for group in stored for tensor in group], shards) if share]
    files = {
        f"model-{number:05d}-of-{len(stored):05d}.safetensors": in_data_order(tensors)
        for number, tensors in enumerate(stored, 1)
    }
    names = [one.name for group in groups for one in group]
    return hollow_checkpoint(files, _said(config, names, recipe), metadata=_METADATA, pad_to=recipe.pad_to)


def _regrouped(tensor: TensorSpec, experts: int, config: Mapping[str, Any]) -> Iterator[TensorSpec]:
    """Yield what becomes of an official tensor; a stack of experts is F4, two values for each byte, without scales."""
    name, shape = tensor.name, tensor.shape
    for pattern, replacement in _NAMES:
        name = re.sub(pattern, replacement, name)
    if name.endswith(".kv_b_proj.weight"):
        heads, rank = config["num_attention_heads"], config["kv_lora_rank"]
        keys, values = config["qk_nope_head_dim"], config["v_head_dim"]
        stem = name.removesuffix("kv_b_proj.weight")
        # The keys' half is kept transposed: it is applied to the queries.
        yield TensorSpec(f"{stem}embed_q.weight", tensor.dtype, (heads, rank, keys))
        yield TensorSpec(f"{stem}unembed_out.weight", tensor.dtype, (heads, values, rank))
    elif name.endswith(".conv.weight"):
        yield TensorSpec(name, tensor.dtype, (shape[0], shape[2], shape[1]))
    elif name.endswith((".gate.weight", ".e_score_correction_bias")):
        yield TensorSpec(name, tensor.dtype, (experts, *shape[1:]))
    elif ".switch_mlp." in name:
        yield TensorSpec(name, "F4", (experts, shape[0], 2 * shape[1]))
    elif not name.endswith(".weight_scale"):
        yield TensorSpec(name, tensor.dtype, shape)


def _kept(tensor: TensorSpec, recipe: MlxRecipe) -> TensorSpec:
    if recipe.narrow_conv and tensor.name.endswith(".conv.weight"):
        return TensorSpec(tensor.name, "BF16", tensor.shape)
    return tensor


def _stored(tensor: TensorSpec, recipe: MlxRecipe) -> list[TensorSpec]:
    scheme = recipe.scheme(tensor.name)
    return [tensor] if scheme is None else scheme.pack(tensor.name.removesuffix(".weight"), tensor.shape)


def _said(config: Mapping[str, Any], names: Sequence[str], recipe: MlxRecipe) -> dict[str, Any]:
    """Return the config with MLX's quantization in place of the official one, under both names that loaders look for.

    A module of another scheme than the default is named with its own; one that stays as it is has no scales, and needs
    no word.
    """
    schemes = {name.removesuffix(".weight"): recipe.scheme(name) for name in names}
    others = {module: one.said for module, one in schemes.items() if one not in (None, recipe.default)}
    quantization = recipe.default.said | others
    text = {key: value for key, value in config["text_config"].items() if key != "quantization_config"}
    return {**config, "text_config": text, "quantization": quantization, "quantization_config": quantization}
