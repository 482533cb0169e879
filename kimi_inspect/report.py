"""The report: what a checkpoint holds, counted by component, layer, file and encoding; and its JSON form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

import attrs
from attrs import field, frozen

from kimi_inspect.components import Component, Group
from kimi_inspect.errors import InvalidSourceError
from kimi_inspect.values import Companion, Finding, LongArray, Severity, Shard, Traffic

__all__ = [
    "REPORT_SCHEMA",
    "ComponentRow",
    "EncodingRow",
    "ExpertCensus",
    "LayerRow",
    "Report",
    "bits_per_weight",
    "merged",
    "plain",
    "total",
]

E = TypeVar("E", bound=StrEnum)
T = TypeVar("T")

REPORT_SCHEMA = "kimi-inspect/report/1"


@frozen(kw_only=True)
class EncodingRow:
    """Tensors of one encoding.

    Attributes:
        stored_bytes: all their bytes, `scale_bytes` among them.
        scale_bytes: bytes of separate scales, zero points and bookkeeping.
        parameters: logical values, or None if some are not known.
    """

    encoding: str
    tensor_count: int
    stored_bytes: int
    scale_bytes: int
    parameters: int | None


@frozen(kw_only=True)
class ComponentRow:
    """Tensors of one component, by encoding, largest first."""

    component: Component
    encodings: tuple[EncodingRow, ...] = ()

    @property
    def group(self) -> Group:
        """The group of the component."""
        return self.component.group

    @property
    def tensor_count(self) -> int:
        """Tensors of every role."""
        return sum(row.tensor_count for row in self.encodings)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(row.stored_bytes for row in self.encodings)

    @property
    def parameters(self) -> int | None:
        """Logical values, or None if some are not known."""
        return total(row.parameters for row in self.encodings)

    @property
    def bits_per_weight(self) -> float | None:
        """Stored bits, scales included, for each parameter."""
        return bits_per_weight(self.stored_bytes, self.parameters)


@frozen(kw_only=True)
class LayerRow:
    """Tensors of one layer of the language stack, by component; `layer` is None for those outside it."""

    layer: int | None
    components: tuple[ComponentRow, ...]

    @property
    def tensor_count(self) -> int:
        """Tensors of every role."""
        return sum(row.tensor_count for row in self.components)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(row.stored_bytes for row in self.components)

    @property
    def parameters(self) -> int | None:
        """Logical values, or None if some are not known."""
        return total(row.parameters for row in self.components)


@frozen(kw_only=True)
class ExpertCensus:
    """Routed experts, counted by the numbers in their names.

    Attributes:
        layers: layers that have any.
        per_layer_min, per_layer_max: the fewest and the most distinct experts of one layer.
        declared: experts a layer by the config, or None.
    """

    layers: int
    per_layer_min: int
    per_layer_max: int
    declared: int | None = None


def total(parts: Iterable[int | None]) -> int | None:
    """Sum `parts`; None if one is None."""
    listed = list(parts)
    return None if None in listed else sum(part for part in listed if part is not None)


def bits_per_weight(stored_bytes: int, parameters: int | None) -> float | None:
    """Return stored bits for each parameter, or None if there is no parameter or their number is not known."""
    return 8 * stored_bytes / parameters if parameters else None


@frozen(kw_only=True)
class Report:
    """What a checkpoint holds. All counts are exact integers; bytes as in `Shard`, over all files.

    Attributes:
        parameters: logical values of all tensors; None if those of some are not known.
        known_parameters: the values of all the others.
        unknown_tensors: how many tensors hold an unknown number of values.
        components: largest first, those without a tensor left out.
        layers: the tensors outside the language stack first, then layer by layer; None in a report that was read from a
            document without them.
        files: the shards; None likewise.
        experts: census of the routed experts, or None if there are none.
        companions: side files, whether counted or not.
        other_sets: what else can be opened there, by name.
    """

    source: str
    commit: str | None
    format: str
    architecture: str | None
    family: str | None
    set_name: str
    shard_count: int
    complete: bool
    file_bytes: int
    header_bytes: int
    tensor_bytes: int
    padding_bytes: int
    missing_bytes: int
    unread_bytes: int
    tensor_count: int
    parameters: int | None
    known_parameters: int
    unknown_tensors: int
    components: tuple[ComponentRow, ...]
    experts: ExpertCensus | None = None
    companions: tuple[Companion, ...] = ()
    other_sets: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    traffic: Traffic = field(default=Traffic(), eq=False)
    layers: tuple[LayerRow, ...] | None = ()
    files: tuple[Shard, ...] | None = ()

    def __getitem__(self, component: Component) -> ComponentRow:
        rows = (row for row in self.components if row.component == component)
        return next(rows, ComponentRow(component=Component(component)))

    def by_layer(self) -> tuple[LayerRow, ...]:
        """Rows that add up to the whole: what stands outside the language stack, then each layer.

        Raises:
            InvalidSourceError: the report was read from a document without them.
        """
        return _there(self.layers, "layer")

    def by_file(self) -> tuple[Shard, ...]:
        """One row a file; raises as `by_layer`."""
        return _there(self.files, "file")

    def by_encoding(self) -> tuple[EncodingRow, ...]:
        """One row an encoding, over all components, largest first."""
        return merged(row for component in self.components for row in component.encodings)

    def to_dict(self, by: Iterable[str] = ("layer", "file", "encoding")) -> dict[str, Any]:
        """Return the report as JSON values, schema `kimi-inspect/report/1`.

        Args:
            by: the tables to add to the one of components: ``layer``, ``file``, ``encoding``.
        """
        wanted = set(by)
        document: dict[str, Any] = {"schema": REPORT_SCHEMA}
        for attribute in attrs.fields(Report):
            if attribute.name not in ("layers", "files"):
                document[attribute.name] = plain(getattr(self, attribute.name))
        document["components"] = [_component_dict(row) for row in self.components]
        if "layer" in wanted and self.layers is not None:
            document["layers"] = [_layer_dict(row) for row in self.layers]
        if "file" in wanted and self.files is not None:
            document["files"] = plain(self.files)
        if "encoding" in wanted:
            document["encodings"] = plain(self.by_encoding())
        return document

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Report:
        """Read what `to_dict` wrote; keys that are not known are passed over.

        Raises:
            InvalidSourceError: it is a document of another schema, or lacks what that asks for.
        """
        given: object = document
        schema = document.get("schema") if isinstance(given, Mapping) else None
        if schema != REPORT_SCHEMA:
            raise InvalidSourceError("no report", expected=REPORT_SCHEMA, actual=repr(schema))
        try:
            return cls._read(document)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            problem = f"a report that lacks something, or has it in another form: {type(error).__name__}, {error}"
        raise InvalidSourceError(problem)

    @classmethod
    def _read(cls, document: Mapping[str, Any]) -> Report:
        experts = document.get("experts")
        values = _known(cls, document) | {
            "components": tuple(map(_component_row, document["components"])),
            "experts": ExpertCensus(**_known(ExpertCensus, experts)) if experts else None,
            "companions": tuple(Companion(**_known(Companion, item)) for item in document.get("companions", ())),
            "other_sets": tuple(document.get("other_sets", ())),
            "findings": tuple(map(_finding, document.get("findings", ()))),
            "traffic": Traffic(**_known(Traffic, document.get("traffic", {}))),
            "layers": tuple(map(_layer_row, document["layers"])) if "layers" in document else None,
            "files": tuple(map(_shard, document["files"])) if "files" in document else None,
        }
        for name, value in values.items():
            if name.endswith(("_bytes", "_count", "_tensors")) and type(value) is not int:
                raise TypeError(f"{name} is {value!r}")
        return cls(**values)


def _there(rows: tuple[T, ...] | None, name: str) -> tuple[T, ...]:
    if rows is None:
        problem = f"the document that this report was read from has no table by {name}; write it with --by {name}"
        raise InvalidSourceError(f"{problem}, or with all that `to_dict` gives")
    return rows


def merged(rows: Iterable[EncodingRow]) -> tuple[EncodingRow, ...]:
    """Add up rows of the same encoding; largest first."""
    groups: dict[str, list[EncodingRow]] = {}
    for row in rows:
        groups.setdefault(row.encoding, []).append(row)
    sums = (
        EncodingRow(
            encoding=encoding,
            tensor_count=sum(row.tensor_count for row in group),
            stored_bytes=sum(row.stored_bytes for row in group),
            scale_bytes=sum(row.scale_bytes for row in group),
            parameters=total(row.parameters for row in group),
        )
        for encoding, group in groups.items()
    )
    return tuple(sorted(sums, key=lambda row: (-row.stored_bytes, row.encoding)))


def _shard(document: Mapping[str, Any]) -> Shard:
    values = _known(Shard, document)
    return Shard(**{**values, "metadata": _long_arrays(values.get("metadata"))})


def _long_arrays(value: Any) -> Any:
    """Make long arrays again of what stands for them in JSON."""
    if isinstance(value, list):
        return [_long_arrays(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if set(value) == {"type", "length"} and type(value["length"]) is int:
        return LongArray(**value)
    return {key: _long_arrays(item) for key, item in value.items()}


def plain(value: Any) -> Any:
    """Turn a value of ours, or of any that hold such, into JSON values."""
    if attrs.has(type(value)):
        return {name.name: plain(getattr(value, name.name)) for name in attrs.fields(type(value))}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _component_dict(row: ComponentRow) -> dict[str, Any]:
    return {
        "component": row.component,
        "group": row.group,
        "tensor_count": row.tensor_count,
        "stored_bytes": row.stored_bytes,
        "parameters": row.parameters,
        "encodings": plain(row.encodings),
    }


def _layer_dict(row: LayerRow) -> dict[str, Any]:
    return {
        "layer": row.layer,
        "tensor_count": row.tensor_count,
        "stored_bytes": row.stored_bytes,
        "parameters": row.parameters,
        "components": [_component_dict(component) for component in row.components],
    }


def _known(kind: type, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `document` holds of the fields of `kind`."""
    return {name.name: document[name.name] for name in attrs.fields(kind) if name.name in document}


def _component_row(document: Mapping[str, Any]) -> ComponentRow:
    rows = tuple(EncodingRow(**_known(EncodingRow, row)) for row in document["encodings"])
    return ComponentRow(component=_enum(Component, document["component"], Component.OTHER), encodings=rows)


def _layer_row(document: Mapping[str, Any]) -> LayerRow:
    return LayerRow(layer=document["layer"], components=tuple(map(_component_row, document["components"])))


def _finding(document: Mapping[str, Any]) -> Finding:
    values = _known(Finding, document)
    severity = _enum(Severity, values.pop("severity"), Severity.WARNING)
    return Finding(**values | {"severity": severity, "examples": tuple(values.get("examples", ()))})


def _enum(kind: type[E], value: str, otherwise: E) -> E:
    """Read a member; one that a newer version has added becomes `otherwise`."""
    return kind(value) if value in set(kind) else otherwise
