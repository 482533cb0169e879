"""Exact, typed, per-component contents of a model checkpoint, from its headers alone.

>>> import kimi_inspect as ki
>>> ki.Component.ROUTED_EXPERTS.group
<Group.EXPERTS: 'experts'>

Everything public stands here and is imported when it is first used: importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kimi_inspect.components import Component, Group
    from kimi_inspect.errors import (
        AmbiguousCheckpointError,
        AuthenticationError,
        CheckpointError,
        FormatError,
        GatedRepositoryError,
        HeaderTooLargeError,
        InvalidSourceError,
        KimiInspectError,
        MalformedHeaderError,
        NoCheckpointError,
        NotWeightsError,
        OfflineError,
        RangeNotSupportedError,
        RateLimitedError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
        SourceError,
        SourceFileNotFoundError,
        TransportError,
        TruncatedError,
        UnsafePathError,
        UnsupportedVersionError,
    )
    from kimi_inspect.expecting import expected_tensors
    from kimi_inspect.opening import Checkpoint, open_checkpoint
    from kimi_inspect.report import ComponentRow, EncodingRow, ExpertCensus, LayerRow, Report
    from kimi_inspect.sources import ByteSource
    from kimi_inspect.summarizing import inspect, summarize
    from kimi_inspect.table import TensorTable
    from kimi_inspect.values import (
        ByteRange,
        Companion,
        Finding,
        Progress,
        Role,
        Severity,
        Shard,
        TensorInfo,
        Traffic,
    )

__version__ = "0.1.0"

_HOMES = {
    "components": ("Component", "Group"),
    "errors": (
        "AmbiguousCheckpointError",
        "AuthenticationError",
        "CheckpointError",
        "FormatError",
        "GatedRepositoryError",
        "HeaderTooLargeError",
        "InvalidSourceError",
        "KimiInspectError",
        "MalformedHeaderError",
        "NoCheckpointError",
        "NotWeightsError",
        "OfflineError",
        "RangeNotSupportedError",
        "RateLimitedError",
        "RepositoryNotFoundError",
        "RevisionNotFoundError",
        "SourceError",
        "SourceFileNotFoundError",
        "TransportError",
        "TruncatedError",
        "UnsafePathError",
        "UnsupportedVersionError",
    ),
    "expecting": ("expected_tensors",),
    "opening": ("Checkpoint", "open_checkpoint"),
    "report": ("ComponentRow", "EncodingRow", "ExpertCensus", "LayerRow", "Report"),
    "sources": ("ByteSource",),
    "summarizing": ("inspect", "summarize"),
    "table": ("TensorTable",),
    "values": (
        "ByteRange",
        "Companion",
        "Finding",
        "Progress",
        "Role",
        "Severity",
        "Shard",
        "TensorInfo",
        "Traffic",
    ),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [  # noqa: PLE0604: mypy and ruff read the names above
    *sorted(_HOME),
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__]
