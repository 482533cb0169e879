"""Exact, typed, per-component contents of a model checkpoint, from its headers alone.

>>> import kimi_inspect as ki
>>> ki.Component.ROUTED_EXPERTS.group
<Group.EXPERTS: 'experts'>

Everything public stands here and is imported when it is first used: importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module

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
    "auditing": ("audit",),
    "bodies": ("read_ranges",),
    "checkpoint": ("Checkpoint",),
    "comparing": ("compare",),
    "comparison": ("Comparison", "ComparisonRow", "ComponentSize"),
    "expecting": ("expected_tensors",),
    "inventory": ("Inventory",),
    "locking": ("lock",),
    "manifest": ("Manifest", "ManifestFile"),
    "opening": ("open_checkpoint",),
    "report": ("ComponentRow", "EncodingRow", "ExpertCensus", "LayerRow", "Report"),
    "sources": ("ByteSource",),
    "summarizing": ("inspect", "summarize"),
    "table": ("TensorTable",),
    "values": (
        "ByteRange",
        "Companion",
        "Finding",
        "LongArray",
        "Progress",
        "Role",
        "Severity",
        "Shard",
        "TensorInfo",
        "Traffic",
    ),
    "verification": ("FileVerification", "Status", "Verification"),
    "verifying": ("verify", "verify_file"),
    "watching": ("watch",),
    "verdict": ("Audit", "Claim", "Identity", "Kept", "Loader", "Relation", "Requantization", "Support", "Verdict"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

# __init__.pyi lists them one by one, for those that do not run this.
__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__]
