"""Audits a checkpoint: alone, or against what it should be. Digests decide first, then headers; no weight is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Unpack

from attrs import evolve, frozen

from kimi_inspect.causes import apart, but_for
from kimi_inspect.checkpoint import Checkpoint
from kimi_inspect.claims import claims_of, label_findings
from kimi_inspect.config_audit import compare_with_config
from kimi_inspect.errors import KimiInspectError
from kimi_inspect.findings import finding, in_order
from kimi_inspect.identity import identify, identity_findings
from kimi_inspect.loaders import loaders_of
from kimi_inspect.locating import Source
from kimi_inspect.manifest import Manifest, ManifestFile
from kimi_inspect.manifest_audit import compare_with_manifest, weights_of
from kimi_inspect.opening import OpenOptions, options_for
from kimi_inspect.outcome import Outcome, is_same, verdict_of
from kimi_inspect.references import Config, Reference, Subject, reference_of, subject_of
from kimi_inspect.report import Report
from kimi_inspect.sides import Side, gguf_architecture, side_of
from kimi_inspect.sources import ListedFile
from kimi_inspect.structure_audit import compare_structure
from kimi_inspect.summarizing import summarize
from kimi_inspect.values import Finding, Severity, Traffic
from kimi_inspect.verdict import Audit, Claim, Identity

__all__ = ["audit"]


@frozen(kw_only=True, eq=False)
class _Case:
    """A candidate and its reference, both listed.

    Attributes:
        files: weight files of a manifest that is the reference; else none.
        identity: the digests of both compared, or None.
        partial: the candidate is a part of a set, chosen on purpose.
    """

    subject: Subject
    reference: Reference | None
    files: Mapping[str, ManifestFile]
    identity: Identity | None
    partial: bool

    @property
    def is_identical(self) -> bool:
        """Whether no header has to be read."""
        is_open = self.subject.store is None
        return self.identity is not None and is_same(self.identity, partial=self.partial) and not is_open


def audit(
    candidate: Source | Checkpoint,
    against: Source | Checkpoint | Manifest | None = None,
    **options: Unpack[OpenOptions],
) -> Audit:
    """Say what of a checkpoint is not as it says, or not as a reference has it.

    Where the SHA-256 of all weight files are known of both and equal, no header is read.

    Args:
        candidate: a source, or an open checkpoint.
        against: a source in any format, an open checkpoint, a manifest, a config.json, or a folder or repository with
            only one. None audits the candidate alone.
        options: as of `open_checkpoint`. `revision`, `files` and `check_index` are the candidate's alone; without the
            last, an index of up to 8 MiB is held against the headers. Where one of the two is on ModelScope and the
            other is not, `endpoint` is the Hub's, and `token` goes to one site: the Hub's to the Hub.

    Raises:
        KimiInspectError: one of them cannot be read; errors as of `open_checkpoint`, with a note that says which.
    """
    case = _listed(candidate, against, options)
    return _identical(case) if case.is_identical else _by_headers(case)


def _listed(
    candidate: Source | Checkpoint, against: Source | Checkpoint | Manifest | None, options: OpenOptions
) -> _Case:
    with _reading("candidate"):
        subject = subject_of(candidate, options_for(candidate, options, among=[candidate, against]))
    with _reading("reference"):
        reference = None if against is None else reference_of(against, options, candidate=candidate)
    files: Mapping[str, ManifestFile] = {}
    digests: Mapping[str, str | None] = {}
    if isinstance(reference, Manifest):
        files = weights_of(reference, subject.digests, subject.digests.values())
        digests = {path: file.sha256 for path, file in files.items()}
    elif isinstance(reference, Subject):
        digests = reference.digests
    identity = identify(subject.digests, digests)
    partial = bool(options.get("files"))
    return _Case(subject=subject, reference=reference, files=files, identity=identity, partial=partial)


@contextmanager
def _reading(role: str) -> Iterator[None]:
    """Let an error say which of the two could not be read."""
    try:
        yield
    except KimiInspectError as error:
        if not getattr(error, "__notes__", ()):
            error.add_note(f"while reading the {role}")
        raise


def _identical(case: _Case) -> Audit:
    """Make the audit of a checkpoint whose files are the reference's; no header is read for it."""
    found = list(identity_findings(case.identity)) if case.identity else []
    if isinstance(case.reference, Subject) and case.identity:
        found += _beside(case.subject.listing, case.reference.listing, case.identity)
    return _audit(case, Outcome(), own=found, found=found)


def _beside(mine: Sequence[ListedFile], its: Sequence[ListedFile], identity: Identity) -> Iterator[Finding]:
    """Yield what equal weights may still be loaded wrongly by: an index of other file names, another config."""
    theirs = {file.path: file for file in its}
    same = {file.path: _is_same(file, theirs.get(file.path)) for file in mine}
    indexes = sorted(path for path, equal in same.items() if equal and path.endswith(".index.json"))
    if identity.renamed and indexes:
        path, original = identity.renamed[0]
        message = "the files bear other names than the reference's, but the index is the reference's; loaders fail"
        yield finding("index-stale", indexes[0], message, file=path, expected=original, count=len(identity.renamed))
    if same.get("config.json") is False:
        message = "config.json is another than the reference's; the weights are the same"
        yield finding("config-differs", "config.json", message, file="config.json")


def _is_same(one: ListedFile, other: ListedFile | None) -> bool | None:
    """Whether two files have the same content; None where the listings do not tell, or tell digests of two kinds."""
    for mine, its in ((one.sha256, other and other.sha256), (one.blob_id, other and other.blob_id)):
        if mine and its:
            return mine == its
    return None


def _by_headers(case: _Case) -> Audit:
    """Make the audit of a checkpoint from its headers, and those of a reference that has any."""
    with _reading("candidate"):
        checkpoint, its = _opened(case)
    report = summarize(checkpoint)
    experts = _fuller(its, report)
    labels = label_findings(checkpoint, report, reference_experts=experts)
    own = [item for item in (*checkpoint.findings, *labels) if not (its and _lack_both(item, its))]
    outcome = _outcome(case, checkpoint, its, own)
    shown = identity_findings(case.identity, outcome.alike) if case.identity else ()
    found = apart([*but_for(own, outcome.findings, checkpoint.tensors), *shown, *outcome.findings])
    sides = {side.path for side in checkpoint.companions if side.counted}
    return evolve(
        _audit(case, outcome, own=own, found=found),
        shard_count=sum(shard.path not in sides for shard in checkpoint.shards),
        report=report,
        unchecked_index_bytes=case.subject.index_bytes,
        reference_parameters=its.parameters if its else None,
        claims=_claims(case.subject, checkpoint, report, experts),
        loaders=loaders_of(checkpoint, report),
        traffic=_cost(case, checkpoint),
    )


def _outcome(case: _Case, checkpoint: Checkpoint, its: Side | None, own: Sequence[Finding]) -> Outcome:
    """Hold the candidate against its reference, whatever kind that is."""
    if isinstance(case.reference, Config):
        return compare_with_config(checkpoint, case.reference, partial=case.partial)
    if isinstance(case.reference, Manifest):
        return compare_with_manifest(checkpoint, case.files, case.identity, case.subject.front, partial=case.partial)
    if its is not None:
        return compare_structure(_side(checkpoint, its.architecture, case.identity), its, own, partial=case.partial)
    return Outcome(known=False)


def _audit(case: _Case, outcome: Outcome, *, own: Sequence[Finding], found: Sequence[Finding]) -> Audit:
    """Make the audit, as far as it needs no header of the candidate."""
    return Audit(
        candidate=case.subject.source,
        candidate_set=case.subject.set_name,
        against=case.reference.source if case.reference else None,
        against_set=case.reference.set_name if isinstance(case.reference, Subject) else None,
        verdict=verdict_of(own, outcome, case.identity, partial=case.partial),
        findings=in_order(found),
        identical_shards=len(case.identity.equal) if case.identity else 0,
        shard_count=len(case.subject.digests),
        report=None,
        identity=case.identity,
        requantizations=outcome.requantizations,
        kept=outcome.kept,
        traffic=_cost(case, None),
    )


def _cost(case: _Case, checkpoint: Checkpoint | None) -> Traffic:
    """Add up what both sources have cost."""
    parts = [checkpoint.traffic if checkpoint and case.subject.store is None else case.subject.traffic]
    parts += [case.reference.traffic] if isinstance(case.reference, Subject) else []
    return Traffic(requests=sum(part.requests for part in parts), bytes_read=sum(part.bytes_read for part in parts))


def _opened(case: _Case) -> tuple[Checkpoint, Side | None]:
    """Open the candidate, and draw the reference together.

    Half a million tensors are held but once: the reference is let go before the candidate is opened, unless that is
    GGUF, which has few tensors, and whose architecture says how to read the reference's names.
    """
    if not isinstance(case.reference, Subject):
        return case.subject.open(), None
    if all(path.endswith(".gguf") for path in case.subject.digests):
        checkpoint = case.subject.open()
        with _reading("reference"):
            return checkpoint, _side(case.reference.open(), gguf_architecture(checkpoint), case.identity)
    with _reading("reference"):
        its = _side(case.reference.open(), None, case.identity)
    return case.subject.open(), its


def _side(checkpoint: Checkpoint, architecture: str | None, identity: Identity | None) -> Side:
    return side_of(checkpoint, architecture=architecture, layouts_of=identity.differing if identity else ())


def _lack_both(item: Finding, its: Side) -> bool:
    """Whether a part that is declared is not in the reference either: MiniMax, say, publishes no draft layers."""
    left_out = item.code in ("component-missing", "mtp-missing") and item.severity is Severity.WARNING
    return left_out and all(unit.component != item.where for unit in its.units.values())


def _fuller(its: Side | None, report: Report) -> int | None:
    """Return the experts of a reference that has more of them: against it a pruning can be measured."""
    kept = report.experts.per_layer_max if report.experts else 0
    return its.experts if its and its.experts and its.experts > kept else None


def _claims(subject: Subject, checkpoint: Checkpoint, report: Report, experts: int | None) -> tuple[Claim, ...]:
    return claims_of(
        checkpoint,
        report,
        card=subject.card(),
        listing=subject.listing,
        index_total=subject.index_total(),
        reference_experts=experts,
    )
