"""One side of a comparison: what of a checkpoint is needed when its half a million tensors are let go."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from attrs import frozen

from kimi_inspect.checkpoint import Checkpoint
from kimi_inspect.components import Component
from kimi_inspect.facts import facts_of
from kimi_inspect.families import ALIASES, family_of
from kimi_inspect.holdings import Unit, holdings_of
from kimi_inspect.report import total
from kimi_inspect.values import Companion

__all__ = ["Side", "families_of", "gguf_architecture", "same_family", "side_of"]


@frozen(kw_only=True, eq=False)
class Side:
    """A checkpoint, ready to be compared.

    Attributes:
        families: the names that its family goes by: of the whole model, and of its language model.
        paths: of its shards whose headers were read.
        units: by place and number.
        experts: routed experts a layer, or None if it has none, or layers differ.
        tied: the head uses the embeddings' weights; None where nothing says so.
        architecture: as GGUF calls it; None of a build in another format.
        companions: its side files.
        layouts: by path, a digest of a shard's names, shapes, types and offsets; for those that were asked for.
    """

    source: str
    weights_format: str
    families: tuple[str, ...]
    paths: frozenset[str]
    units: Mapping[tuple[str, int], Unit]
    experts: int | None
    tied: bool | None
    architecture: str | None
    companions: tuple[Companion, ...]
    layouts: Mapping[str, bytes]

    @property
    def parameters(self) -> int | None:
        """Logical values of all units, or None if some are not known."""
        return total(unit.parameters for unit in self.units.values())


def gguf_architecture(checkpoint: Checkpoint) -> str | None:
    """Return under which architecture gguf knows a build's names; None of one in another format."""
    return checkpoint.architecture if checkpoint.format == "gguf" else None


def side_of(checkpoint: Checkpoint, *, architecture: str | None, layouts_of: Collection[str] = ()) -> Side:
    """Draw a checkpoint together.

    Args:
        checkpoint: an open one.
        architecture: as for `holdings_of`.
        layouts_of: paths of the shards whose headers will be compared.
    """
    units = holdings_of(checkpoint.tensors, checkpoint.format, architecture=architecture)
    experts = {unit.experts for unit in units.values() if unit.component is Component.ROUTED_EXPERTS}
    facts = facts_of(checkpoint.config, checkpoint.metadata, weights_format=checkpoint.format)
    return Side(
        source=checkpoint.source,
        weights_format=checkpoint.format,
        families=families_of(checkpoint.architecture, checkpoint.config),
        paths=frozenset(checkpoint.tensors.columns.paths),
        units=units,
        experts=experts.pop() if len(experts) == 1 else None,
        tied=facts.tied,
        architecture=gguf_architecture(checkpoint),
        companions=checkpoint.companions,
        layouts={path: _layout(checkpoint, path) for path in layouts_of},
    )


def families_of(architecture: str | None, config: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the names of a model's family, each in one spelling: its own, then its language model's."""
    text = (config or {}).get("text_config")
    inner = text.get("model_type") if isinstance(text, Mapping) else None
    named = [family_of(name) for name in (architecture, inner) if isinstance(name, str)]
    return tuple(dict.fromkeys(name for name in named if name))


def same_family(mine: Sequence[str], its: Sequence[str]) -> bool:
    """Whether two models are of one family: as a whole, or one is the other's language model by itself."""
    one, other = (
        [{_bare(alias) for alias in (name, *ALIASES.get(name, ()))} for name in names] for names in (mine, its)
    )
    return any(one[0] & names for names in other) or any(other[0] & names for names in one)


def _bare(name: str) -> str:
    return name.replace("-", "").replace(".", "")


def _layout(checkpoint: Checkpoint, path: str) -> bytes:
    """Digest what a shard's header says, in whatever order and spacing."""
    columns = checkpoint.tensors.columns
    digest = hashlib.blake2b(digest_size=32)
    if path in columns.paths:
        shard = columns.paths.index(path)
        rows = columns.shard == shard
        digest.update(columns.names[shard].blob)
        kinds = [columns.kinds[code] for code in columns.kind[rows].tolist()]
        digest.update(repr([(kind.dtype, kind.shape) for kind in kinds]).encode())
        digest.update((columns.begin[rows] - columns.begin[rows].min(initial=2**62)).tobytes())
    return digest.digest()
