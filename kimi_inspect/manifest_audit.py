"""A checkpoint held against a manifest: sizes and headers where digests are not known; no weight is read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from kimi_inspect.checkpoint import Checkpoint
from kimi_inspect.findings import finding
from kimi_inspect.index_file import WeightMap
from kimi_inspect.manifest import Manifest, ManifestFile
from kimi_inspect.outcome import Outcome
from kimi_inspect.sets import sort_out
from kimi_inspect.sources import ListedFile
from kimi_inspect.values import Finding, Shard
from kimi_inspect.verdict import Identity

__all__ = ["compare_with_manifest", "weights_of"]


def weights_of(manifest: Manifest, paths: Collection[str], digests: Collection[str | None]) -> dict[str, ManifestFile]:
    """Return the weight files of a manifest by path: of its sets the one that has most in common with a candidate.

    Args:
        manifest: all files.
        paths: those of the candidate.
        digests: their digests, as far as they are known.
    """
    by_path = {file.path: file for file in manifest.files}
    listing = [ListedFile(path=file.path, size=file.bytes, sha256=file.sha256) for file in manifest.files]
    known, named = {*digests} - {None}, {*paths}
    # What a candidate puts together, be it by an index or as a pipeline, is one set there too.
    together = [WeightMap(path="", files=frozenset(paths))] if len(paths) > 1 else []
    sets = sort_out(listing, maps=together).all

    def shared(files: Collection[ListedFile]) -> tuple[int, int]:
        return sum(file.sha256 in known for file in files), sum(file.path in named for file in files)

    best = max(sets, key=lambda one: shared(one.files), default=None)
    return {file.path: by_path[file.path] for file in best.files} if best else {}


def compare_with_manifest(
    checkpoint: Checkpoint,
    files: Mapping[str, ManifestFile],
    identity: Identity | None,
    front: Callable[[Shard], bytes | None],
    *,
    partial: bool,
) -> Outcome:
    """Hold the shards of an open checkpoint against the files of a manifest.

    Args:
        checkpoint: the candidate.
        files: weight files of the manifest, by path.
        identity: the digests compared, or None.
        front: reads the header of a shard again; None if it cannot.
        partial: the candidate is a part of a set, chosen on purpose.
    """
    sides = {side.path for side in checkpoint.companions}
    shards = {shard.path: shard for shard in checkpoint.shards if shard.path not in sides}
    equal = set(identity.equal) if identity else set()
    both = [shard for path, shard in shards.items() if path in files and path not in equal]
    headers = {shard.path: _has_header(shard, files[shard.path], front) for shard in both}
    other = [shard for shard in both if headers[shard.path] is False]
    missing = [] if partial else sorted(identity.missing if identity else files.keys() - shards.keys())
    told = any(item.code == "shard-missing" for item in checkpoint.findings)
    found = [*([] if told else _missing(missing)), *([] if identity else _differing(other, files))]
    return Outcome(
        findings=tuple(found),
        different=bool(other or (identity and identity.differing) or (missing and not both and not equal)),
        reduced=bool(missing),
        alike=frozenset(path for path, has in headers.items() if has),
        known=bool(headers) and all(headers.values()),
    )


def _has_header(shard: Shard, file: ManifestFile, front: Callable[[Shard], bytes | None]) -> bool | None:
    """Whether a shard has the size and the header that a manifest tells; None where it does not tell the header."""
    if file.bytes != shard.file_bytes:
        return False
    header = front(shard) if file.header_sha256 and shard.header_bytes else None
    return None if header is None else hashlib.sha256(header).hexdigest() == file.header_sha256


def _missing(missing: Sequence[str]) -> Iterator[Finding]:
    if missing:
        message = "a weight file of the manifest is not there"
        yield finding("shard-missing", missing[0], message, file=missing[0], count=len(missing), examples=missing)


def _differing(shards: Sequence[Shard], files: Mapping[str, ManifestFile]) -> Iterator[Finding]:
    """Yield the shards of another size or header than the manifest tells, whose digests are not known."""
    if shards:
        first = shards[0]
        yield finding(
            "shard-differs",
            first.path,
            "another size, or another header, than the manifest tells; it is another file",
            file=first.path,
            expected=files[first.path].bytes,
            actual=first.file_bytes,
            count=len(shards),
            examples=[shard.path for shard in shards],
        )
