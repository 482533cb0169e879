"""Stand-ins for the GGUF builds of Kimi K3.1 Pro of which only files and bytes are public.

The layouts are ours and claim nothing of what the builds hold: the first layers have experts of a richer type, the
others of a poorer one, and all else is Q6_K and Q8_0, or BF16 and F32 as it is. The number of richer layers is the one
that brings a whole set nearest to the published bytes, within 0.1 %. Paths of the parts are ours too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kimi_inspect.testing.gguf import split_gguf
from kimi_inspect.testing.hollow import HollowFile, dealt
from kimi_inspect.testing.kimi import EXPERTS, LAYERS, kimi_config
from kimi_inspect.testing.kimi_gguf import TOKENS, maker_readme, typed_tensors
from kimi_inspect.testing.kimi_metadata import text_metadata

__all__ = ["BLOOMERY_LAYERS", "KARLEXAI_GGUF_ID", "MIDAGEDEV_GGUF_ID", "karlexai_gguf", "midagedev_gguf"]

KARLEXAI_GGUF_ID = "KarLexAI/Kimi-K3.1-Pro-GGUF"
MIDAGEDEV_GGUF_ID = "midagedev/Kimi-K3.1-Pro-GGUF"

BLOOMERY_LAYERS = 91
"""Layers of the build whose parameters are said not to match; that it lacks the last two is made up."""

_TEMPLATE_BYTES = 20480

# Types by the kinds of tensors; experts apart.
_REST: Mapping[str, str] = {
    "plain": "F32",
    "indexer": "BF16",
    "indexer weights": "F32",
    "matrix": "Q6_K",
    **dict.fromkeys(("sensitive", "head", "beta", "short rows"), "Q8_0"),
}


@dataclass(frozen=True, slots=True)
class _Mix:
    """A set of `layers` layers: the first `rich_layers` that have experts have them in `rich`, the others in `poor`."""

    stem: str
    parts: int
    file_type: int
    rich: str
    poor: str
    rich_layers: int
    layers: int = LAYERS
    architecture: str = "kimi-k31"

    def types(self, layer: int | None, layers: int) -> Mapping[str, str]:
        """Return the types of a layer, or of what is in none; of fewer layers the same share is richer."""
        # The first layer is dense.
        is_rich = layer is not None and (layer - 1) * (self.layers - 1) < self.rich_layers * (layers - 1)
        return {**_REST, **dict.fromkeys(("experts", "experts down"), self.rich if is_rich else self.poor)}


_KLX = (
    _Mix("KLX-IQ2_XXS/Kimi-K3.1-Pro-KLX-IQ2_XXS", 17, 19, "IQ2_XXS", "IQ1_M", 52),
    _Mix("KLX-IQ1_M/Kimi-K3.1-Pro-KLX-IQ1_M", 15, 31, "IQ1_M", "IQ1_S", 90),
    _Mix("KLX-IQ1_S/Kimi-K3.1-Pro-KLX-IQ1_S", 14, 24, "IQ1_M", "IQ1_S", 10),
)
_BLOOMERY = _Mix("Kimi-K3.1-Pro-IQ1_S", 31, 24, "IQ1_M", "IQ1_S", 10, BLOOMERY_LAYERS, "kimi-k31-bloomery")


def karlexai_gguf(
    *, layers: int = LAYERS, experts: int = EXPERTS, tokens: int = TOKENS, parts: int | None = None
) -> dict[str, HollowFile]:
    """Return a repository with three sets in folders, KLX-IQ2_XXS, KLX-IQ1_M and KLX-IQ1_S, and no vision projector."""
    files = maker_readme("KarLexAI")
    for mix in _KLX:
        files |= _set(mix, layers=layers, experts=experts, tokens=tokens, parts=parts)
    return files


def midagedev_gguf(
    *, layers: int = BLOOMERY_LAYERS, experts: int = EXPERTS, tokens: int = TOKENS, parts: int | None = None
) -> dict[str, HollowFile]:
    """Return a repository with one set, IQ1_S, of which is said that only bloomery, an engine of its own, loads it.

    The name of its architecture, `kimi-k31-bloomery`, and of its keys is made up. It agrees with itself, but has two
    layers fewer than the original.
    """
    files = maker_readme("midagedev", "Only bloomery loads it; the parameter counts do not match the original's.")
    return files | _set(_BLOOMERY, layers=layers, experts=experts, tokens=tokens, parts=parts)


def _set(mix: _Mix, *, layers: int, experts: int, tokens: int, parts: int | None) -> dict[str, HollowFile]:
    tensors = typed_tensors(lambda layer: mix.types(layer, layers), layers=layers, experts=experts)
    metadata = text_metadata(
        kimi_config("kimi-k3.1-pro", layers=layers, experts=experts)["text_config"],
        tokens,
        parameters=sum(tensor.parameters for tensor in tensors),
        file_type=mix.file_type,
        template_bytes=_TEMPLATE_BYTES,
        architecture=mix.architecture,
    )
    return split_gguf(mix.stem, dealt(tensors, parts or mix.parts), metadata)
