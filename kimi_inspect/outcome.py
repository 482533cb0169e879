"""What comes of holding a checkpoint against a reference, whatever kind of reference that is."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from kimi_inspect.values import Finding, Severity
from kimi_inspect.verdict import Identity, Kept, Relation, Requantization, Verdict

__all__ = ["Outcome", "is_same", "verdict_of"]


@frozen(kw_only=True)
class Outcome:
    """What a comparison shows.

    Attributes:
        findings: against the reference.
        requantizations: weights in another encoding.
        kept: weights in the same.
        different: it is another model, or has other values under the same headers.
        reduced: something of the reference was left out.
        changed: values are stored in another encoding, or were computed anew.
        alike: paths of shards that have the reference's header and another SHA-256.
        known: there is a reference, and it says enough to tell all that; a manifest of files laid out otherwise does
            not.
    """

    findings: tuple[Finding, ...] = ()
    requantizations: tuple[Requantization, ...] = ()
    kept: tuple[Kept, ...] = ()
    different: bool = False
    reduced: bool = False
    changed: bool = False
    alike: frozenset[str] = frozenset()
    known: bool = True


def is_same(identity: Identity, *, partial: bool) -> bool:
    """Whether every weight file is the reference's, and none is missing but on purpose."""
    return identity.relation is Relation.IDENTICAL or (partial and identity.relation is Relation.SUBSET)


def verdict_of(own: Sequence[Finding], outcome: Outcome, identity: Identity | None, *, partial: bool) -> Verdict:
    """Return the first verdict that holds.

    Args:
        own: what the candidate shows by itself.
        outcome: of the comparison.
        identity: the digests compared, or None.
        partial: the candidate is a part of a set, chosen on purpose.
    """
    if any(item.severity is Severity.ERROR for item in own):
        return Verdict.DAMAGED
    if identity and is_same(identity, partial=partial):
        return Verdict.IDENTICAL
    held = (
        (outcome.different, Verdict.DIFFERENT_MODEL),
        (outcome.reduced, Verdict.REDUCED),
        (outcome.changed, Verdict.REQUANTIZED),
        (outcome.known, Verdict.FAITHFUL),
    )
    return next((verdict for holds, verdict in held if holds), Verdict.CONSISTENT)
