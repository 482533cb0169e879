"""What is published of builds of Kimi K3.1 Pro: figures of their files, and the engines that their publishers name.

Read on the Hub on the date below. A repository may have changed since: a figure is a claim like any other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from attrs import frozen

__all__ = ["CHECKED", "OWN_ENGINES", "PUBLISHED", "OwnEngine", "Published", "published_of", "repository_of"]

CHECKED = "2026-11-09"
"""When all this was read."""

_REPOSITORY = re.compile(r"([\w.-]+/[\w.-]+)(?:@.+)?")
_SNAPSHOT = re.compile(r"(?:.*/)?models--([\w.-]+?)--([\w.-]+)/snapshots/[0-9a-f]{40}(?:/.*)?")


@frozen(kw_only=True)
class Published:
    """The weight files of one set, side files left out.

    Attributes:
        files: how many.
        file_bytes: their sizes together.
        parameters: None where no number is published.
    """

    files: int
    file_bytes: int
    parameters: int | None = None


PUBLISHED: Mapping[tuple[str, str], Published] = {
    ("moonshotai/Kimi-K3.1-Pro", ""): Published(files=96, file_bytes=1_561_293_160_568, parameters=2_780_110_363_392),
    ("unsloth/Kimi-K3.1-Pro", ""): Published(files=96, file_bytes=1_561_293_160_568),
    ("DevQuasar/moonshotai.Kimi-K3.1-Pro-GGUF", "MXFP4_MOE"): Published(files=33, file_bytes=1_508_897_280_480),
    ("DevQuasar/moonshotai.Kimi-K3.1-Pro-GGUF", "Q2_K"): Published(files=33, file_bytes=1_009_315_027_936),
    ("danielhanchen/Kimi-K3.1-Pro-GGUF-Preliminary", "UD-Q4_K_XL"): Published(files=34, file_bytes=1_509_020_584_672),
    ("danielhanchen/Kimi-K3.1-Pro-GGUF-Preliminary", "UD-Q8_K_XL"): Published(files=34, file_bytes=1_561_525_956_960),
    ("KarLexAI/Kimi-K3.1-Pro-GGUF", "KLX-IQ2_XXS"): Published(files=17, file_bytes=709_876_827_040),
    ("KarLexAI/Kimi-K3.1-Pro-GGUF", "KLX-IQ1_M"): Published(files=15, file_bytes=647_869_832_960),
    ("KarLexAI/Kimi-K3.1-Pro-GGUF", "KLX-IQ1_S"): Published(files=14, file_bytes=592_677_343_328),
    ("midagedev/Kimi-K3.1-Pro-GGUF", "IQ1_S"): Published(files=31, file_bytes=580_345_966_528),
}
"""By repository and set, "" for the one that a safetensors repository opens with."""


@frozen(kw_only=True)
class OwnEngine:
    """An engine that the publisher of a build names for it."""

    engine: str
    reason: str


OWN_ENGINES: Mapping[str, OwnEngine] = {
    "midagedev/Kimi-K3.1-Pro-GGUF": OwnEngine(engine="bloomery", reason="the publisher names bloomery for this build"),
    "AinsleyMarkov/Kimi-K3.1-Pro-2bit-MLX": OwnEngine(
        engine="the publisher's engine", reason="the publisher names an engine of their own for this build"
    ),
    "dphn/Kimi-K3.1-Pro-NF12": OwnEngine(
        engine="the publisher's NF12 runtime", reason="the publisher names a runtime of their own for this build"
    ),
    "inferencerlabs/Kimi-K3.1-Pro-MLX": OwnEngine(
        engine="Inferencer", reason="the publisher names Inferencer for this build"
    ),
}
"""By repository."""


def published_of(repository: str, set_name: str, weights_format: str) -> Published | None:
    """Return the figures that are published of a set; None where there are none."""
    default = "" if weights_format == "safetensors" else set_name
    return PUBLISHED.get((repository, set_name)) or PUBLISHED.get((repository, default))


def repository_of(source: str, commit: str | None) -> str | None:
    """Return the id of the repository on the Hub that a result's source names; None for anything else.

    >>> repository_of("moonshotai/Kimi-K3.1-Pro@main", "d9e99b0792a5e93b78ea9bea62a68167e36ddd9e")
    'moonshotai/Kimi-K3.1-Pro'
    >>> repository_of("weights/kimi", None) is None
    True
    """
    if commit is None:  # a folder here, or another server
        return None
    if snapshot := _SNAPSHOT.fullmatch(source):
        return f"{snapshot[1]}/{snapshot[2]}"
    named = _REPOSITORY.fullmatch(source)
    return named[1] if named and named[1] != f"snapshots/{commit}" else None
