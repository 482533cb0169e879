"""What the Hub says of a repository beside its files: totals, licence, base models; a stranger's words, checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

__all__ = ["HubCard", "read_card"]

MAX_TOTAL = 2**63 - 1
"""A larger number of parameters is not believed."""

MAX_TEXT = 1000
"""A longer name, licence or link is not believed, in characters."""

MAX_ENTRIES = 1000
"""Dtypes and base models that are read at most."""

_BASE_MODEL = "base_model:"


@frozen(kw_only=True)
class HubCard:
    """What the Hub says of a repository at a commit; None or empty for what it does not say.

    Attributes:
        safetensors_total: parameters of the safetensors files by the Hub's own reckoning, often wrong of packed ones.
        safetensors_parameters: the same by dtype as stored.
        gguf_total: parameters of one GGUF file, of the Hub's choice.
        gguf_architecture: what that file's metadata name.
        license, license_name, license_link: of the README's front matter.
        base_models: repositories that it is made from, by the front matter and the tags.
    """

    safetensors_total: int | None = None
    safetensors_parameters: tuple[tuple[str, int], ...] = ()
    gguf_total: int | None = None
    gguf_architecture: str | None = None
    license: str | None = None
    license_name: str | None = None
    license_link: str | None = None
    base_models: tuple[str, ...] = ()


def read_card(info: object) -> HubCard:
    """Read the Hub's answer about a model, `expand`ed by safetensors, gguf, cardData and tags.

    Whatever is of another type than it should be counts as not said. Source: the Hub's OpenAPI description,
    `GET /api/models/{id}/revision/{rev}`.
    """
    safetensors, gguf, front = (_mapping(_mapping(info).get(key)) for key in ("safetensors", "gguf", "cardData"))
    said = {name: _count(number) for name, number in _mapping(safetensors.get("parameters")).items()}
    numbers = [(name, number) for name, number in said.items() if _text(name) and number is not None]
    return HubCard(
        safetensors_total=_count(safetensors.get("total")),
        safetensors_parameters=tuple(numbers[:MAX_ENTRIES]),
        gguf_total=_count(gguf.get("total")),
        gguf_architecture=_text(gguf.get("architecture")),
        license=_text(front.get("license")),
        license_name=_text(front.get("license_name")),
        license_link=_text(front.get("license_link")),
        base_models=tuple(dict.fromkeys(_base_models(front, _mapping(info).get("tags"))))[:MAX_ENTRIES],
    )


def _base_models(front: Mapping[str, Any], tags: object) -> Iterator[str]:
    """Yield the base models; a tag may have the relation before the id: `base_model:quantized:owner/name`."""
    named = front.get("base_model")
    for one in named if isinstance(named, list) else [named]:
        if text := _text(one):
            yield text
    for tag in tags if isinstance(tags, list) else []:
        text = _text(tag) or ""
        name = text.removeprefix(_BASE_MODEL).rpartition(":")[2]
        if text.startswith(_BASE_MODEL) and name:
            yield name


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= MAX_TOTAL else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= MAX_TEXT else None
