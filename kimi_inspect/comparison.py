"""A comparison: one row a checkpoint, with what it weighs by component; and its JSON form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
from attrs import field, frozen

from kimi_inspect.components import GROUPS, Group
from kimi_inspect.errors import KimiInspectError
from kimi_inspect.report import ExpertCensus, bits_per_weight, plain, total

__all__ = [
    "COMPARISON_SCHEMA",
    "INSIDE",
    "SIDE_FILE",
    "Comparison",
    "ComparisonRow",
    "ComponentSize",
    "error_values",
]

COMPARISON_SCHEMA = "kimi-inspect/compare/1"

INSIDE, SIDE_FILE = "inside", "side file"
"""Where a vision or draft part is."""

_GROUPS: Mapping[str, Group] = {component.value: group for component, group in GROUPS.items()}


@frozen(kw_only=True)
class ComponentSize:
    """What tensors of one component weigh.

    Attributes:
        stored_bytes: of all its tensors, scales among them.
        parameters: logical values, or None if some are not known.
        encodings: what they are stored in, most bytes first.
    """

    stored_bytes: int
    parameters: int | None
    encodings: tuple[str, ...] = ()

    @property
    def bits_per_weight(self) -> float | None:
        """Stored bits, scales included, for each parameter."""
        return bits_per_weight(self.stored_bytes, self.parameters)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "stored_bytes": self.stored_bytes,
            "parameters": self.parameters,
            "bits_per_weight": self.bits_per_weight,
            "encodings": list(self.encodings),
        }


@frozen(kw_only=True)
class ComparisonRow:
    """One checkpoint. Of one that cannot be read only `source`, `name` and `error` are known, all else is None.

    Attributes:
        source: where it is, as its report says; of one that cannot be read, as it was given.
        components: by name, those without a tensor left out.
        experts: census of the routed experts, or None if there are none.
        error: why it cannot be read: `type`, `message`, `file`, `offset`, `expected`, `actual`, `retryable`; else None.
        name: what tells it from the others: its source, with its set where there are others.
        complete: every file is there and was read.
        tensor_bytes: what headers declare, over all files.
        known_parameters: values of the tensors whose number of values is known.
        vision: ``inside`` its files, in a ``side file``, or None if there is no vision part.
        draft: the same of the draft head.
        finding_counts: how many findings it has of each severity.
    """

    source: str
    commit: str | None = None
    format: str | None = None
    family: str | None = None
    shard_count: int | None = None
    file_bytes: int | None = None
    parameters: int | None = None
    components: dict[str, ComponentSize] = field(factory=dict, hash=False)
    experts: ExpertCensus | None = None
    error: dict[str, Any] | None = field(default=None, hash=False)
    name: str
    set_name: str | None = None
    complete: bool | None = None
    tensor_bytes: int | None = None
    known_parameters: int | None = None
    vision: str | None = None
    draft: str | None = None
    finding_counts: dict[str, int] = field(factory=dict, hash=False)

    def __getitem__(self, component: str) -> ComponentSize:
        return self.components.get(component, _added(()))

    def of_group(self, group: Group) -> ComponentSize:
        """Add up the components of a group."""
        # A component that a newer version has added is of no group known here.
        return _added(size for name, size in self.components.items() if _GROUPS.get(name) is group)

    @property
    def bits_per_weight(self) -> float | None:
        """Stored bits, scales included, for each parameter of the whole checkpoint."""
        return None if self.tensor_bytes is None else bits_per_weight(self.tensor_bytes, self.parameters)

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        document = {each.name: plain(getattr(self, each.name)) for each in attrs.fields(ComparisonRow)}
        return document | {"components": {name: size.to_dict() for name, size in self.components.items()}}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> ComparisonRow:
        """Read what `to_dict` wrote; keys that are not known are passed over, those beside the contract's may lack."""
        sizes = {name: _known(ComponentSize, size) for name, size in document["components"].items()}
        experts = document.get("experts")
        values = {"name": document["source"]} | _known(cls, document)
        values["experts"] = ExpertCensus(**_known(ExpertCensus, experts)) if experts else None
        values["components"] = {
            name: ComponentSize(**{**size, "encodings": tuple(size.get("encodings", ()))})
            for name, size in sizes.items()
        }
        return cls(**values)


@frozen(kw_only=True)
class Comparison:
    """Checkpoints side by side, one row each."""

    rows: tuple[ComparisonRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON values, schema `kimi-inspect/compare/1`."""
        return {"schema": COMPARISON_SCHEMA, "rows": [row.to_dict() for row in self.rows]}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Comparison:
        """Read what `to_dict` wrote; keys that are not known are passed over.

        Raises:
            ValueError: it is a document of another schema.
        """
        if document.get("schema") != COMPARISON_SCHEMA:
            raise ValueError(f"expected schema {COMPARISON_SCHEMA}, got {document.get('schema')!r}")
        return cls(rows=tuple(map(ComparisonRow.from_dict, document["rows"])))


def error_values(error: KimiInspectError) -> dict[str, Any]:
    """Return an error as JSON values: the keys of `kimi-inspect/error/1`."""
    fields = ("file", "offset", "expected", "actual", "retryable")
    values = {name: plain(getattr(error, name)) for name in fields}
    return {"type": type(error).__name__, "message": error.problem, **values}


def _added(sizes: Iterable[ComponentSize]) -> ComponentSize:
    listed = sorted(sizes, key=lambda size: -size.stored_bytes)
    return ComponentSize(
        stored_bytes=sum(size.stored_bytes for size in listed),
        parameters=total(size.parameters for size in listed),
        encodings=tuple(dict.fromkeys(encoding for size in listed for encoding in size.encodings)),
    )


def _known(kind: type, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `document` holds of the fields of `kind`."""
    return {each.name: document[each.name] for each in attrs.fields(kind) if each.name in document}
