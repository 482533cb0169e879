"""What a config.json or GGUF metadata declare of a model: read in one place, in the spellings that models use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

__all__ = ["MAX_COUNT", "Facts", "facts_of"]

TEXT_KEYS = ("text_config", "language_config", "llm_config", "thinker_config")
LAYER_KEYS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")
EXPERT_KEYS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts", "expert_counts")
SHARED_KEYS = ("n_shared_experts", "num_shared_experts", "shared_expert_intermediate_size")
DRAFT_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")

MAX_COUNT = 1_000_000
"""A config that says a larger number of anything is not believed."""


@frozen(kw_only=True)
class Facts:
    """What is declared; None for what is not said.

    Attributes:
        layers: layers of the language stack, without draft layers.
        dense_layers: first layers that have no routed experts.
        experts: routed experts a layer.
        experts_by_layer: the same where layers differ, in the order of the layers that have any.
        shared_experts: there are experts that every token passes.
        draft_layers: draft layers, behind the others.
        vision, audio: there is such a tower.
        indexer: attention is sparse, with an indexer.
        tied: the head uses the embeddings' weights.
    """

    layers: int | None = None
    dense_layers: int = 0
    experts: int | None = None
    experts_by_layer: tuple[int, ...] | None = None
    shared_experts: bool = False
    draft_layers: int | None = None
    vision: bool = False
    audio: bool = False
    indexer: bool = False
    tied: bool | None = None


def facts_of(config: Mapping[str, Any] | None, metadata: Mapping[str, Any], *, weights_format: str) -> Facts:
    """Read what a GGUF file declares of itself, or else a config."""
    if weights_format == "gguf":
        return _of_metadata(metadata)
    return _of_config(config or {})


def _of_config(config: Mapping[str, Any]) -> Facts:
    levels = list(_text_levels(config))
    experts = next(filter(None, (_value(levels, key, (int, list)) for key in EXPERT_KEYS)), None)
    dsa = _value(levels, "dsa_config", (dict,))
    return Facts(
        layers=_first_count(levels, LAYER_KEYS),
        dense_layers=_dense_layers(levels),
        experts=experts if _is_count(experts) else None,
        experts_by_layer=_each(next(filter(None, (_value(levels, key, (list,)) for key in EXPERT_KEYS)), None)),
        shared_experts=bool(_first_count(levels, SHARED_KEYS)),
        draft_layers=_first_count(levels, DRAFT_KEYS),
        vision=bool(config.get("vision_config")),
        audio=bool(config.get("audio_config")),
        indexer=bool(dsa) or _is_count(_value(levels, "index_topk", (int,))),
        tied=_value([*levels[-1:], *levels[:-1]], "tie_word_embeddings", (bool,)) if _generates(config) else None,
    )


def _text_levels(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the levels of a config where facts of the language model may stand, the model's own first."""
    for key in TEXT_KEYS:
        level = config.get(key)
        if isinstance(level, Mapping):
            yield level
    yield config


def _dense_layers(levels: Sequence[Mapping[str, Any]]) -> int:
    """Return how many of the first layers have no routed experts; all, where each is named as such."""
    plain, layers = _value(levels, "mlp_only_layers", (list,)), _first_count(levels, LAYER_KEYS) or 0
    if plain and layers and all(map(_is_count, plain)) and len({*plain} & {*range(layers)}) == layers:
        return layers
    return _first_count(levels, ("first_k_dense_replace",)) or 0


def _generates(config: Mapping[str, Any]) -> bool:
    """Whether the model has a head by its class: an encoder or an embedding model has none, whatever else it says."""
    classes = config.get("architectures")
    if not isinstance(classes, list):
        return True
    return any(isinstance(name, str) and name.endswith(("ForCausalLM", "ForConditionalGeneration")) for name in classes)


def _of_metadata(metadata: Mapping[str, Any]) -> Facts:
    architecture = metadata.get("general.architecture")

    def said(key: str) -> int | None:
        value = metadata.get(f"{architecture}.{key}")
        return value if _is_count(value) else None

    blocks, drafts, experts = (
        said("block_count"),
        said("nextn_predict_layers"),
        metadata.get(f"{architecture}.expert_count"),
    )
    return Facts(
        layers=None if blocks is None or architecture == "clip" else max(blocks - (drafts or 0), 0),
        dense_layers=said("leading_dense_block_count") or 0,
        experts=said("expert_count") or None,
        experts_by_layer=_each(experts),
        shared_experts=bool(said("expert_shared_count")),
        draft_layers=drafts,
        indexer=said("attention.indexer.head_count") is not None,
    )


def _each(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not all(map(_is_count, value)):
        return None
    return tuple(filter(None, value)) or None  # dense layers have none


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_COUNT


def _first_count(levels: Iterable[Mapping[str, Any]], keys: Iterable[str]) -> int | None:
    listed = list(levels)
    found = (_value(listed, key, (int,)) for key in keys)
    return next((value for value in found if _is_count(value)), None)


def _value(levels: Iterable[Mapping[str, Any]], key: str, kinds: tuple[type, ...]) -> Any:
    """Return what the first level says under a key, if it is of one of these types."""
    return next((level[key] for level in levels if type(level.get(key)) in kinds), None)
