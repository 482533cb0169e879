"""Whether two listings hold the same weight files, by their SHA-256: no header and no weight is read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from kimi_inspect.findings import finding
from kimi_inspect.values import Finding
from kimi_inspect.verdict import Identity, Relation

__all__ = ["identify", "identity_findings"]

Digests = Mapping[str, str | None]
"""SHA-256 by path, or None where it is not known."""


def identify(candidate: Digests, reference: Digests) -> Identity | None:
    """Compare the digests of two sets of files; None where one of them is not known, or there is no file.

    A file stands for as many as it is: of two equal ones in the candidate and one in the reference, one is added.
    """
    mine, its = dict(candidate), dict(reference)
    if not mine or not its or None in mine.values() or None in its.values():
        return None
    same = {path for path, digest in mine.items() if its.get(path) == digest}
    spare: dict[str | None, list[str]] = {}
    for path in sorted(its.keys() - same):
        spare.setdefault(its[path], []).append(path)
    renamed = []
    for path in sorted(mine.keys() - same):
        others = spare.get(mine[path])
        if others:
            renamed.append((path, others.pop(0)))
    equal = same | {path for path, _ in renamed}
    found = same | {path for _, path in renamed}
    added, missing = mine.keys() - equal, its.keys() - found
    differing = added & missing
    return Identity(
        relation=_relation(len(equal), len(added), len(missing)),
        equal=tuple(sorted(equal)),
        renamed=tuple(renamed),
        differing=tuple(sorted(differing)),
        added=tuple(sorted(added - differing)),
        missing=tuple(sorted(missing - differing)),
    )


def _relation(equal: int, added: int, missing: int) -> Relation:
    if not equal:
        return Relation.DISJOINT
    if not added:
        return Relation.SUBSET if missing else Relation.IDENTICAL
    return Relation.OVERLAPPING if missing else Relation.SUPERSET


def identity_findings(identity: Identity, alike: Collection[str] = ()) -> Iterator[Finding]:
    """Yield what the digests show: files that are the reference's, and files of its names that are not.

    Args:
        identity: the digests compared.
        alike: files whose headers are known to be the reference's.
    """
    if identity.equal:
        under = f", {len(identity.renamed)} of them under another name" if identity.renamed else ""
        total = len(identity.equal) + len(identity.differing) + len(identity.added)
        message = f"{len(identity.equal)} of {total} files have the SHA-256 of the reference's{under}"
        yield finding(
            "identical", "files", message, count=len(identity.equal), examples=identity.equal, actual=identity.relation
        )
    other_values = [path for path in identity.differing if path in alike]
    laid_out = [path for path in identity.differing if path not in alike]
    for paths, what in ((other_values, ", under the same header: its values are others"), (laid_out, "")):
        if paths:
            message = f"another SHA-256 than the reference's file of that name{what}"
            yield finding("shard-differs", paths[0], message, file=paths[0], count=len(paths), examples=paths)
