"""What a config.json or GGUF metadata declare of a model: read in one place, in the spellings that models use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from kimi_inspect.values import LongArray

__all__ = ["MAX_COUNT", "TOKENS", "Facts", "Size", "facts_of"]

TEXT_KEYS = ("text_config", "language_config", "llm_config", "thinker_config")
LAYER_KEYS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")
DECODER_LAYERS, OF_SPEECH = "decoder_layers", "num_mel_bins"
"""What Whisper's layers of text are counted by: its `num_hidden_layers` is that of the encoder, an audio tower."""
EXPERT_KEYS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts", "expert_counts")
SHARED_KEYS = ("n_shared_experts", "num_shared_experts", "shared_expert_intermediate_size")
DRAFT_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
TOKENS = "tokenizer.ggml.tokens"
"""Under which key GGUF has its vocabulary."""

SIZE_KEYS: Mapping[str, tuple[str, ...]] = {
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "vocabulary": ("vocab_size",),
    "dense": ("intermediate_size_mlp", "intermediate_size"),
    "expert": ("moe_intermediate_size",),
    "heads": ("num_attention_heads",),
    "key_heads": ("num_key_value_heads",),
    "head": ("head_dim",),
}
"""What configs call the sizes of matrices; Llama 4 has an MLP beside its experts."""

SIZES_IN_GGUF: Mapping[str, str] = {
    "hidden": "embedding_length",
    "vocabulary": "vocab_size",
    "dense": "feed_forward_length",
    "expert": "expert_feed_forward_length",
    "heads": "attention.head_count",
    "key_heads": "attention.head_count_kv",
    "head": "attention.key_length",
}
"""The same in GGUF metadata, behind the architecture."""

EXPERTS_ARE_MLPS = frozenset({"mixtral", "gpt_oss", "minimax_m2"})
"""Models whose `intermediate_size` is that of an expert."""

MAX_COUNT = 1_000_000
"""A config that says a larger number of anything is not believed."""


@frozen
class Size:
    """What is said of a size: under which key, and how much, of each layer by itself where layers differ."""

    key: str
    value: int | tuple[int, ...]

    def of(self, layer: int) -> int | None:
        """Return the size in a layer, or outside of any; None where it is not said."""
        if isinstance(self.value, int):
            return self.value
        return self.value[layer] if 0 <= layer < len(self.value) else None


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
        sizes: of matrices, by the names of `SIZE_KEYS`.
        kinds: what kind each layer is of, where that is said.
        uneven: something is said of each layer by itself, and layers differ.
        shares_keys: layers use the keys and values of others.
        own_head: the head has a vocabulary of its own, as a draft's may.
        other_layers: the most layers that a part of the config says which may be the language model's or not.
        disbelieved: under which key a number of layers stands that is none, and what stands there.
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
    sizes: Mapping[str, Size] = field(factory=dict)
    kinds: tuple[str, ...] = ()
    uneven: bool = False
    shares_keys: bool = False
    own_head: bool = False
    other_layers: int = 0
    disbelieved: tuple[str, object] | None = None


def facts_of(config: Mapping[str, Any] | None, metadata: Mapping[str, Any], *, weights_format: str) -> Facts:
    """Read what a GGUF file declares of itself, or else a config."""
    if weights_format == "gguf":
        return _of_metadata(metadata)
    return _of_config(config or {})


def _of_config(config: Mapping[str, Any]) -> Facts:
    levels = list(_text_levels(config))
    experts = next(filter(None, (_value(levels, key, (int, list)) for key in EXPERT_KEYS)), None)
    dsa = _value(levels, "dsa_config", (dict,))
    hears = any(OF_SPEECH in level for level in levels)
    layers = _first_count(levels, (DECODER_LAYERS, *LAYER_KEYS) if hears else LAYER_KEYS)
    kinds = _value(levels, "layer_types", (list,)) or []
    return Facts(
        layers=layers,
        dense_layers=_dense_layers(levels),
        experts=experts if _is_count(experts) else None,
        experts_by_layer=_each(next(filter(None, (_value(levels, key, (list,)) for key in EXPERT_KEYS)), None)),
        shared_experts=bool(_first_count(levels, SHARED_KEYS)),
        draft_layers=_first_count(levels, DRAFT_KEYS),
        vision=_is_mapping(config.get("vision_config")),
        audio=_is_mapping(config.get("audio_config")),
        indexer=bool(dsa) or _is_count(_value(levels, "index_topk", (int,))),
        tied=_value([*levels[-1:], *levels[:-1]], "tie_word_embeddings", (bool,)) if _generates(config) else None,
        sizes=_sizes(levels, layers),
        kinds=tuple(map(str, kinds)) if len(kinds) == layers else (),
        uneven=any(_is_uneven(key, value, layers) for level in levels for key, value in level.items()),
        shares_keys=bool(_first_count(levels, ("num_kv_shared_layers",))),
        own_head=any("draft_vocab_size" in level for level in levels),
        other_layers=0 if len(levels) > 1 else _most_layers(config.values()),
        disbelieved=_disbelieved((key, level.get(key)) for level in levels for key in LAYER_KEYS)
        if not layers
        else None,
    )


def _sizes(levels: Sequence[Mapping[str, Any]], layers: int | None) -> dict[str, Size]:
    """Return the sizes of matrices that a config says; a model of models is asked by its language model first."""
    said = {
        what: next(
            (Size(key, size) for level in levels for key in keys if (size := _size(level.get(key), layers))), None
        )
        for what, keys in SIZE_KEYS.items()
    }
    found = {what: size for what, size in said.items() if size is not None}
    if "dense" in found and any(level.get("model_type") in EXPERTS_ARE_MLPS for level in levels):
        found["expert"] = found.pop("dense")
    return found


def _size(value: object, layers: int | None) -> int | tuple[int, ...] | None:
    """Return a size if it is one, or one for each layer."""
    if isinstance(value, list) and len(value) == layers and all(map(_is_count, value)):
        return tuple(value)
    return value if type(value) is int and _is_count(value) and value else None


def _is_uneven(key: str, value: object, layers: int | None) -> bool:
    """Whether a config says something of each layer by itself, and layers differ."""
    if not isinstance(value, list) or not layers or len(value) != layers:
        return False
    return key == "block_configs" or (all(type(one) in (int, float) for one in value) and len({*value}) > 1)


def _disbelieved(said: Iterable[tuple[str, object]]) -> tuple[str, object] | None:
    """Return the first number of layers that is said and is none."""
    return next((one for one in said if isinstance(one[1], int | float | str) and not _is_count(one[1])), None)


def _most_layers(parts: Iterable[object]) -> int:
    return max((_first_count([part], LAYER_KEYS) or 0 for part in parts if isinstance(part, Mapping)), default=0)


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping) and bool(value)


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
    layers = None if blocks is None or architecture == "clip" else max(blocks - (drafts or 0), 0)
    sizes = {
        what: (f"{architecture}.{key}", metadata.get(f"{architecture}.{key}")) for what, key in SIZES_IN_GGUF.items()
    }
    tokens = _tokens(metadata.get(TOKENS))
    if tokens:
        sizes["vocabulary"] = TOKENS, tokens
    counts = {what: Size(key, size) for what, (key, value) in sizes.items() if (size := _size(value, blocks))}
    return Facts(
        layers=layers,
        dense_layers=said("leading_dense_block_count") or 0,
        experts=said("expert_count") or None,
        experts_by_layer=_each(experts),
        shared_experts=bool(said("expert_shared_count")),
        draft_layers=drafts,
        indexer=said("attention.indexer.head_count") is not None,
        sizes=counts,
        uneven=any(value is not None and type(value) is not int for _, value in sizes.values()),
        shares_keys=bool(said("attention.shared_kv_layers")),
        disbelieved=None
        if layers
        else _disbelieved([(f"{architecture}.block_count", metadata.get(f"{architecture}.block_count"))]),
    )


def _tokens(value: object) -> int | None:
    """Return how many tokens a tokenizer has."""
    return value.length if isinstance(value, LongArray) else len(value) if isinstance(value, list) else None


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
