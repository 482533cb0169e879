"""Audits a checkpoint: alone, or against what it should be. Digests decide first, then headers; no weight is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Unpack

from kimi_inspect.causes import apart, but_for
from kimi_inspect.claims import claims_of, label_findings
from kimi_inspect.config_audit import compare_with_config
from kimi_inspect.errors import KimiInspectError
from kimi_inspect.findings import finding, in_order
from kimi_inspect.identity import identify, identity_findings
from kimi_inspect.loaders import loaders_of
from kimi_inspect.locating import Source
from kimi_inspect.manifest import Manifest, ManifestFile
from kimi_inspect.manifest_audit import compare_with_manifest, weights_of
from kimi_inspect.opening import Checkpoint, OpenOptions
from kimi_inspect.outcome import Outcome, verdict_of
from kimi_inspect.references import Config, Reference, Subject, reference_of, subject_of
from kimi_inspect.report import Report
from kimi_inspect.sides import Side, gguf_architecture, side_of
from kimi_inspect.sources import ListedFile
from kimi_inspect.structure_audit import compare_structure
from kimi_inspect.summarizing import summarize
from kimi_inspect.values import Finding, Traffic
from kimi_inspect.verdict import Audit, Claim, Identity, Relation

__all__ = ["audit"]


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
        options: as of `open_checkpoint`. `revision`, `files` and `check_index` are the candidate's alone; so are
            `token` and `endpoint` where one of the two is on ModelScope and the other is not.

    Raises:
        KimiInspectError: one of them cannot be read; errors as of `open_checkpoint`, with a note that says which.
    """
    with _reading("candidate"):
        subject = subject_of(candidate, options)
    with _reading("reference"):
        reference = None if against is None else reference_of(against, options, candidate=candidate)
    files = _manifest_files(reference, subject)
    identity = identify(subject.digests, _digests(reference, files))
    if identity and identity.relation is Relation.IDENTICAL and subject.store is not None:
        return _identical(subject, reference, identity)
    with _reading("candidate"):
        checkpoint, its = _opened(subject, reference, identity)
    report = summarize(checkpoint)
    experts = _fuller(its, report)
    own = [*checkpoint.findings, *label_findings(checkpoint, report, reference_experts=experts)]
    partial = bool(options.get("files"))
    alike: frozenset[str] = frozenset()
    outcome: Outcome | None = None
    if isinstance(reference, Config):
        outcome = compare_with_config(checkpoint, reference, partial=partial)
    elif isinstance(reference, Manifest):
        outcome, alike = compare_with_manifest(checkpoint, files, identity, subject.front)
    elif its is not None:
        mine = _side(checkpoint, its.architecture, identity)
        alike = frozenset(path for path, layout in mine.layouts.items() if its.layouts.get(path) == layout)
        outcome = compare_structure(mine, its, own, partial=partial, alike=alike)
    more = outcome.findings if outcome else ()
    shown = identity_findings(identity, alike) if identity else ()
    return Audit(
        candidate=checkpoint.source,
        against=_name(reference),
        verdict=verdict_of(own, outcome, identity),
        findings=in_order(apart([*but_for(own, more, checkpoint.tensors), *shown, *more])),
        identical_shards=len(identity.equal) if identity else 0,
        shard_count=len(subject.digests) or len(checkpoint.shards),
        report=report,
        identity=identity,
        requantizations=outcome.requantizations if outcome else (),
        kept=outcome.kept if outcome else (),
        claims=_claims(subject, checkpoint, report, experts),
        loaders=loaders_of(checkpoint, report),
        reference_parameters=its.parameters if its else None,
        traffic=_cost(subject, reference, checkpoint),
    )


@contextmanager
def _reading(role: str) -> Iterator[None]:
    """Let an error say which of the two could not be read."""
    try:
        yield
    except KimiInspectError as error:
        if not getattr(error, "__notes__", ()):
            error.add_note(f"while reading the {role}")
        raise


def _manifest_files(reference: Reference | None, subject: Subject) -> Mapping[str, ManifestFile]:
    if not isinstance(reference, Manifest):
        return {}
    return weights_of(reference, subject.digests, subject.digests.values())


def _digests(reference: Reference | None, files: Mapping[str, ManifestFile]) -> Mapping[str, str | None]:
    if isinstance(reference, Subject):
        return reference.digests
    return {path: file.sha256 for path, file in files.items()}


def _name(reference: Reference | None) -> str | None:
    return reference.source if reference else None


def _cost(subject: Subject, reference: Reference | None, checkpoint: Checkpoint | None) -> Traffic:
    """Add up what both sources have cost."""
    parts = [subject.traffic] if subject.store or checkpoint is None else [checkpoint.traffic]
    parts += [reference.traffic] if isinstance(reference, Subject) else []
    return Traffic(requests=sum(part.requests for part in parts), bytes_read=sum(part.bytes_read for part in parts))


def _identical(subject: Subject, reference: Reference | None, identity: Identity) -> Audit:
    """Make the audit of a checkpoint whose files are the reference's; no header is read for it."""
    listing = reference.listing if isinstance(reference, Subject) else ()
    found = [*identity_findings(identity), *_beside(subject.listing, listing, identity)]
    return Audit(
        candidate=subject.source,
        against=_name(reference),
        verdict=verdict_of(found, None, identity),
        findings=in_order(found),
        identical_shards=len(identity.equal),
        shard_count=len(subject.digests),
        report=None,
        identity=identity,
        traffic=_cost(subject, reference, None),
    )


def _beside(mine: Sequence[ListedFile], its: Sequence[ListedFile], identity: Identity) -> Iterator[Finding]:
    """Yield what equal weights may still be loaded wrongly by: an index of other file names, another config."""
    theirs = {file.path: _content(file) for file in its}
    same = {file.path for file in mine if _content(file) and theirs.get(file.path) == _content(file)}
    indexes = sorted(path for path in same if path.endswith(".index.json"))
    if identity.renamed and indexes:
        path, original = identity.renamed[0]
        message = "the files bear other names than the reference's, but the index is the reference's; loaders fail"
        yield finding("index-stale", indexes[0], message, file=path, expected=original, count=len(identity.renamed))
    config = next((file for file in mine if file.path == "config.json"), None)
    if config and _content(config) and theirs.get("config.json") not in (None, _content(config)):
        message = "config.json is another than the reference's; the weights are the same"
        yield finding("config-differs", "config.json", message, file="config.json")


def _content(file: ListedFile) -> str | None:
    """Return what tells the content of a file, as far as the listing does."""
    return file.sha256 or file.blob_id


def _opened(subject: Subject, reference: Reference | None, identity: Identity | None) -> tuple[Checkpoint, Side | None]:
    """Open the candidate, and draw the reference together.

    Half a million tensors are held but once: the reference is let go before the candidate is opened, unless that is
    GGUF, which has few tensors, and whose architecture says how to read the reference's names.
    """
    if not isinstance(reference, Subject):
        return subject.open(), None
    if all(path.endswith(".gguf") for path in subject.digests):
        checkpoint = subject.open()
        with _reading("reference"):
            return checkpoint, _side(reference.open(), gguf_architecture(checkpoint), identity)
    with _reading("reference"):
        its = _side(reference.open(), None, identity)
    return subject.open(), its


def _side(checkpoint: Checkpoint, architecture: str | None, identity: Identity | None) -> Side:
    return side_of(checkpoint, architecture=architecture, layouts_of=identity.differing if identity else ())


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
