"""A checkpoint held against a manifest: sizes and headers where digests are not known; no weight is read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping

from kimi_inspect.findings import finding
from kimi_inspect.manifest import Manifest, ManifestFile
from kimi_inspect.opening import Checkpoint
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
    sets = sort_out(listing).all

    def shared(files: Collection[ListedFile]) -> tuple[int, int]:
        return sum(file.sha256 in known for file in files), sum(file.path in named for file in files)

    best = max(sets, key=lambda one: shared(one.files), default=None)
    return {file.path: by_path[file.path] for file in best.files} if best else {}


def compare_with_manifest(
    checkpoint: Checkpoint,
    files: Mapping[str, ManifestFile],
    identity: Identity | None,
    front: Callable[[Shard], bytes | None],
) -> Outcome:
    """Hold the shards of an open checkpoint against the files of a manifest.

    Args:
        checkpoint: the candidate.
        files: weight files of the manifest, by path.
        identity: the digests compared, or None.
        front: reads the header of a shard again; None if it cannot.
    """
    sides = {side.path for side in checkpoint.companions}
    shards = {shard.path: shard for shard in checkpoint.shards if shard.path not in sides}
    equal = set(identity.equal) if identity else set()
    both = [shard for path, shard in shards.items() if path in files and path not in equal]
    alike = frozenset(_alike(both, files, front))
    found = [*_missing(shards, files, identity), *([] if identity else _resized(both, files))]
    return Outcome(
        findings=tuple(found),
        different=identity is not None and any(path in alike for path in identity.differing),
        reduced=any(item.code == "shard-missing" for item in found),
        alike=alike,
        known=identity is None and {*files} == {*shards} == {*alike},
    )


def _alike(
    shards: list[Shard], files: Mapping[str, ManifestFile], front: Callable[[Shard], bytes | None]
) -> Iterator[str]:
    """Yield the shards whose headers have the manifest's digest and whose size is the manifest's."""
    told = [
        shard
        for shard in shards
        if files[shard.path].header_sha256 and shard.header_bytes and files[shard.path].bytes == shard.file_bytes
    ]
    for shard in told:
        header = front(shard)
        if header is not None and hashlib.sha256(header).hexdigest() == files[shard.path].header_sha256:
            yield shard.path


def _missing(
    shards: Mapping[str, Shard], files: Mapping[str, ManifestFile], identity: Identity | None
) -> Iterator[Finding]:
    missing = list(identity.missing) if identity else sorted(files.keys() - shards.keys())
    if missing:
        message = "a weight file of the manifest is not there"
        yield finding("shard-missing", missing[0], message, file=missing[0], count=len(missing), examples=missing)


def _resized(shards: list[Shard], files: Mapping[str, ManifestFile]) -> Iterator[Finding]:
    """Yield the shards of another size than the manifest says."""
    other = [shard for shard in shards if shard.file_bytes != files[shard.path].bytes]
    if other:
        first = other[0]
        yield finding(
            "shard-differs",
            first.path,
            "another size than the manifest says",
            file=first.path,
            expected=files[first.path].bytes,
            actual=first.file_bytes,
            count=len(other),
            examples=[shard.path for shard in other],
        )
