"""What to do about each finding, in a few words for people; docs/findings.md says the same at more length."""

from __future__ import annotations

__all__ = ["ADVICE", "MILD_ADVICE"]

_AGAIN = "download it again"
_ANEW = "ask the publisher to write it anew"
_DO_NOT_LOAD = "do not load it; tell the publisher"
_ASK = "ask the publisher"

ADVICE: dict[str, str] = {
    "truncated": _AGAIN,
    "shard-missing": "download the rest",
    "shard-unreadable": _AGAIN,
    "shard-order": "download the set again; tell the publisher",
    "split-count-disagrees": "download the set again; tell the publisher",
    "tensor-total-wrong": "download the set again; tell the publisher",
    "size-differs-from-listing": "start again; report it if it stays",
    "gap": _ANEW,
    "trailing-bytes": _ANEW,
    "bad-padding": _ANEW,
    "metadata-not-string": _ANEW,
    "duplicate-key": _ANEW,
    "embedded-file": _DO_NOT_LOAD,
    "duplicate-tensor": "find out which file is meant",
    "architecture-mismatch": "do not trust the name or the config; look at what it holds",
    "layer-missing": _DO_NOT_LOAD,
    "component-missing": _DO_NOT_LOAD,
    "tensor-missing": _DO_NOT_LOAD,
    "expert-missing": _DO_NOT_LOAD,
    "experts-uneven": "load it with what made it",
    "expert-count-disagrees": "do not trust the config",
    "index-tensor-absent": "do not load it; download the index again",
    "index-stale": "download the index that belongs to these files",
    "scale-missing": _DO_NOT_LOAD,
    "scale-shape": _DO_NOT_LOAD,
    "misaligned": _ANEW,
    "foreign-type": "load it with the fork that made it",
    "name-too-long": _ANEW,
    "parameters-differ": "take it for another model",
    "shape-differs": "do not load it as the model that is named; tell the publisher",
    "mtp-missing": "decode without speculation",
    "experts-pruned": "test it on your own tasks",
    "unexpected-tensor": _ASK,
    "unindexed-tensors": _ASK,
    "declared-total-wrong": _ASK,
    "label-disagrees": "look at the encodings, not at the label",
    "unknown-type": "update this package",
    "packing-disagrees": "trust the tensors; tell the publisher",
    "leading-space": "nothing",
    "index-unreadable": _AGAIN,
    "config-unreadable": "look at the file",
}
"""By code, for all that are errors or warnings."""

MILD_ADVICE: dict[str, str] = {
    "component-missing": "load it as a model without that part, or get the side file",
}
"""By code, where a warning under the code of an error asks for something else."""
