"""What an audit says: the verdict, and the values that stand behind it; and their JSON form."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from attrs import field, frozen

from kimi_inspect.components import Component
from kimi_inspect.report import Report, bits_per_weight, plain
from kimi_inspect.values import Finding, Traffic

__all__ = [
    "AUDIT_SCHEMA",
    "Audit",
    "Claim",
    "Identity",
    "Kept",
    "Loader",
    "Relation",
    "Requantization",
    "Support",
    "Verdict",
]

AUDIT_SCHEMA = "kimi-inspect/audit/1"


class Verdict(StrEnum):
    """What a checkpoint is, all in all; the first of these that holds."""

    DAMAGED = "damaged"
    DIFFERENT_MODEL = "different-model"
    REDUCED = "reduced"
    REQUANTIZED = "requantized"
    FAITHFUL = "faithful"
    IDENTICAL = "identical"
    CONSISTENT = "consistent"


class Relation(StrEnum):
    """How the files of two listings stand to each other, by their SHA-256."""

    IDENTICAL = "identical"
    SUBSET = "subset"
    SUPERSET = "superset"
    OVERLAPPING = "overlapping"
    DISJOINT = "disjoint"


@frozen(kw_only=True)
class Identity:
    """Two listings compared by the SHA-256 of their weight files; no weight was read.

    Attributes:
        relation: of the candidate to the reference.
        equal: paths of the candidate's shards that the reference has too, under whatever name.
        renamed: of these, those under another name, and that name.
        differing: paths that both have, with other digests.
        added: other paths of the candidate.
        missing: other paths of the reference.
    """

    relation: Relation
    equal: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    differing: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@frozen(kw_only=True)
class Requantization:
    """Weights of one component that the reference has in another encoding.

    Attributes:
        before, after: encodings of the reference and of the candidate.
        bytes_before, bytes_after: of these weights, with their scales.
        parameters: values of these weights in the candidate, or None if they are not known.
        parameters_before: the same of the reference.
        layers: of the language stack, ascending; empty for weights outside of it.
        lossless: every value of the old encoding is one of the new, as of BF16 in F32.
    """

    component: Component
    before: str
    after: str
    bytes_before: int
    bytes_after: int
    parameters: int | None
    parameters_before: int | None
    layers: tuple[int, ...] = ()
    lossless: bool = False

    @property
    def bits_before(self) -> float | None:
        """Bits for each parameter in the reference."""
        return bits_per_weight(self.bytes_before, self.parameters_before)

    @property
    def bits_after(self) -> float | None:
        """Bits for each parameter in the candidate."""
        return bits_per_weight(self.bytes_after, self.parameters)


@frozen(kw_only=True)
class Claim:
    """Something that is said of a checkpoint, beside what is counted.

    Attributes:
        subject: what is spoken of: ``parameters``, ``tensor bytes``, ``quantization``, ``licence`` …
        said_by: who says it: ``model-index``, ``general.size_label``, ``repository name`` …
        said: what is said.
        counted: the same as counted here, or None where headers cannot tell.
        agrees: None where nothing can be held against it.
    """

    subject: str
    said_by: str
    said: str | int
    counted: str | int | None = None
    agrees: bool | None = None


@frozen(kw_only=True)
class Kept:
    """Weights of one component that are stored as in the reference: in the same encoding and as many bytes for each."""

    component: Component
    encoding: str
    stored_bytes: int
    parameters: int | None
    layers: tuple[int, ...] = ()


class Support(StrEnum):
    """Whether an engine loads a checkpoint, as far as that is known."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@frozen(kw_only=True)
class Loader:
    """An engine, and whether it can load a checkpoint.

    Attributes:
        reason: why so, in a few words.
        rule: where the rule comes from.
    """

    engine: str
    support: Support
    reason: str
    rule: str


@frozen(kw_only=True)
class Audit:
    """What an audit found.

    Attributes:
        candidate, against: what was audited, and the reference, as results name sources.
        candidate_set, against_set: which sets of these, where they hold other weights too; else None.
        findings: gravest first: those of the candidate alone, and those against the reference.
        identical_shards: shards of the candidate that the reference has too, by SHA-256.
        shard_count: shards of the candidate.
        report: what the candidate holds; None where no header had to be read.
        identity: the two listings compared; None where digests are not known of both.
        requantizations: weights that the reference has in another encoding, most bytes first.
        kept: weights stored as in the reference, most bytes first.
        unchecked_index_bytes: size of an index too large to be read unasked; None if there is none, or it was read.
        reference_parameters: logical values of the reference, or None if they are not known.
        traffic: what both sources cost.
    """

    candidate: str
    against: str | None
    verdict: Verdict
    findings: tuple[Finding, ...]
    identical_shards: int
    shard_count: int
    report: Report | None
    identity: Identity | None = None
    requantizations: tuple[Requantization, ...] = ()
    kept: tuple[Kept, ...] = ()
    claims: tuple[Claim, ...] = ()
    loaders: tuple[Loader, ...] = ()
    unchecked_index_bytes: int | None = None
    reference_parameters: int | None = None
    candidate_set: str | None = None
    against_set: str | None = None
    traffic: Traffic = field(default=Traffic(), eq=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the audit as JSON values, schema `kimi-inspect/audit/1`."""
        requantizations = [
            {**plain(item), "bits_before": item.bits_before, "bits_after": item.bits_after}
            for item in self.requantizations
        ]
        return {
            "schema": AUDIT_SCHEMA,
            "candidate": self.candidate,
            "against": self.against,
            "verdict": self.verdict,
            "findings": plain(self.findings),
            "identical_shards": self.identical_shards,
            "shard_count": self.shard_count,
            "report": None if self.report is None else self.report.to_dict(by=()),
            "identity": plain(self.identity),
            "requantizations": requantizations,
            "kept": plain(self.kept),
            "claims": plain(self.claims),
            "loaders": plain(self.loaders),
            "unchecked_index_bytes": self.unchecked_index_bytes,
            "reference_parameters": self.reference_parameters,
            "candidate_set": self.candidate_set,
            "against_set": self.against_set,
            "traffic": plain(self.traffic),
        }
