"""What a folder is held against: a source, an open checkpoint, a manifest, or a list as sha256sum writes it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from attrs import evolve, frozen

from kimi_inspect.checkpoint import Checkpoint
from kimi_inspect.checksums import BOM, parse_checksums
from kimi_inspect.digesting import Means
from kimi_inspect.errors import (
    InvalidSourceError,
    NoCheckpointError,
    OfflineError,
    SourceError,
    SourceFileNotFoundError,
    UnsafePathError,
)
from kimi_inspect.fronts import has_header, read_fronts
from kimi_inspect.journal import Journal, open_memory
from kimi_inspect.judging import Expected
from kimi_inspect.locating import Location, Source, is_local, locate
from kimi_inspect.locking import NO_ACCESS, Companions, lock_located, sized, wanted_files
from kimi_inspect.manifest import Manifest, ManifestFile
from kimi_inspect.opening import MAX_WORKERS, listed
from kimi_inspect.reading import ReadOptions
from kimi_inspect.refetching import Refetch
from kimi_inspect.sets import matching
from kimi_inspect.sources import ListedFile, LocalFile, LocalFolder, leads_outside, read_whole
from kimi_inspect.text import plural, were
from kimi_inspect.tree import at_home, look_at
from kimi_inspect.values import Shard

__all__ = ["Against", "Expectation", "expect", "is_list"]

MAX_LIST_BYTES = 256 * 1024 * 1024

Against: TypeAlias = Source | Checkpoint | Manifest

_UNREAD = (*NO_ACCESS, SourceFileNotFoundError)
"""Why a header is told as unread; any other trouble would leave the result saying less than it seems to."""

_LISTS = re.compile(r"sha256sums?(\.txt)?|.*\.sha256(sums?)?(\.txt)?", re.IGNORECASE)
"""What people call a list of checksums."""


@frozen(kw_only=True)
class Expectation:
    """The files that a folder should hold.

    Attributes:
        against: what to call where that is said.
        source: where the files themselves are, or nothing that can be fetched from.
        commit: 40 hex digits, or None.
        origin: address of the site that was asked, or None.
        files: those that are expected.
        beside: paths of others that belong there, and were not asked for.
        own: a file that says what is expected: it may lie in the folder and is no part of it.
        notes: what is worth knowing of it.
        globs: what it was limited to; none for all.
    """

    against: str
    source: str = ""
    commit: str | None = None
    origin: str | None = None
    files: tuple[Expected, ...]
    beside: frozenset[str] = frozenset()
    own: Path | None = None
    notes: tuple[str, ...] = ()
    globs: tuple[str, ...] = ()

    def refetch(self, folder: Path) -> Refetch:
        """Say what fetches files of it into a folder."""
        return Refetch(source=self.source, commit=self.commit, folder=folder, origin=self.origin)

    def asks_for(self, path: str) -> bool:
        """Whether a path is one of those that were asked for."""
        return bool(matching([ListedFile(path=path, size=None)], self.globs))

    def limited(self, globs: Sequence[str]) -> Expectation:
        """Expect only the files that one of the globs fits; all without globs.

        Raises:
            NoCheckpointError: no file does: whatever the folder holds, nothing would be found wrong.
            UnsafePathError: a path leads out of the folder.
        """
        for file in self.files:
            if leads_outside(file.path.replace("\\", "_") if os.sep == "/" else file.path):
                raise UnsafePathError(
                    "a path is no plain path below the folder", file=self.against, actual=repr(file.path)
                )
        fitting = matching([ListedFile(path=file.path, size=None) for file in self.files], globs)
        paths = {file.path for file in fitting}
        if not paths:
            raise NoCheckpointError("no file is expected", file=self.against, expected=", ".join(globs) or "a file")
        rest = {file.path for file in self.files} - paths
        files = tuple(file for file in self.files if file.path in paths)
        return evolve(self, files=files, beside=self.beside | rest, globs=tuple(globs))


def expect(
    against: Against,
    root: Path,
    means: Means,
    *,
    quick: bool = False,
    companions: Companions = False,
    revision: str | None = None,
    token: str | bool | None = None,
    endpoint: str | None = None,
) -> Expectation:
    """Find out what a folder should hold.

    Args:
        against: what it is held against.
        root: the folder, which cannot be its own witness.
        means: how the files of another folder are hashed.
        quick: digests will not be compared, so headers of a source are read.
        companions: side files of a set that are expected too.
        revision: as for `open_checkpoint`.
        token: as for `open_checkpoint`.
        endpoint: as for `open_checkpoint`.

    Raises:
        SourceError: it cannot be read.
        InvalidSourceError: it is none of these.
        UnsafePathError: a path in it leads out of the folder.
    """
    if isinstance(against, Manifest):
        return _at(_of_manifest(against, against.source), revision, endpoint)
    if isinstance(against, Checkpoint):
        return _at(_of_checkpoint(against), revision, endpoint)
    file = None
    if isinstance(against, str | os.PathLike):
        file = _list_file(os.fspath(against), is_path=not isinstance(against, str))
    if file is not None:
        return _at(_of_file(file), revision, endpoint)
    location = locate(against, revision=revision, token=token, endpoint=endpoint)
    if isinstance(location.store, LocalFolder):
        return _of_folder(location, location.store, against, root, means, quick=quick, companions=companions)
    return _of_listing(location, root, means, quick=quick, companions=companions)


def _at(expectation: Expectation, revision: str | None, endpoint: str | None) -> Expectation:
    """Add where files may be fetched from to what was read of no site.

    Raises:
        InvalidSourceError: a revision is asked for that it is not known to be of.
    """
    if revision not in (None, expectation.commit):
        problem = "what it is held against names its own revision or none; leave the revision out"
        raise InvalidSourceError(problem, file=expectation.against, expected=expectation.commit, actual=revision)
    return evolve(expectation, origin=endpoint.rstrip("/") if endpoint else None)


def _list_file(source: str, *, is_path: bool) -> Path | None:
    """Return the path of a manifest or list, if that is what a source string names."""
    if "://" in source:
        return None
    path = at_home(source)
    if path.suffix in (".sums", ".txt") and not path.is_dir():
        return path
    if path.name.endswith(".json") or _LISTS.fullmatch(path.name):
        return path
    local = is_path or is_local(source) or "/" not in source
    there = path.is_file() or path.is_fifo()
    return path if local and there and not has_header(path.name) else None


def is_list(path: Path) -> bool:
    """Whether a file is empty, a manifest, or a list as sha256sum writes it."""
    try:
        if path.stat().st_size:
            _of_file(path)
    except (OSError, InvalidSourceError, UnsafePathError):
        return False
    return True


def _of_file(path: Path) -> Expectation:
    data = path.read_bytes() if path.is_fifo() else read_whole(LocalFile(path), MAX_LIST_BYTES, str(path))
    if data.removeprefix(BOM).lstrip()[:1] == b"{":
        try:
            manifest = Manifest.from_json(data)
        except (InvalidSourceError, UnsafePathError) as error:
            error.file = error.file or str(path)
            raise
        return evolve(_of_manifest(manifest, str(path)), own=path)
    found = parse_checksums(data, file=str(path))
    over = found.passed_over
    lines = "1 line of the list is no checksum" if over == 1 else f"{over:,} lines of the list are no checksums"
    return Expectation(
        against=str(path),
        files=tuple(Expected(path=name, sha256=digest) for name, digest in found.files),
        own=path,
        notes=(f"{lines} and {were(over)} passed over",) if over else (),
    )


def _of_manifest(manifest: Manifest, against: str) -> Expectation:
    def expected(file: ManifestFile) -> Expected:
        return Expected(
            path=file.path,
            bytes=file.bytes,
            sha256=file.sha256,
            git_sha1=file.git_sha1,
            header_sha256=file.header_sha256,
            masked=manifest.commit is not None,
        )

    files = tuple(map(expected, manifest.files))
    return Expectation(against=against, source=manifest.source, commit=manifest.commit, files=files)


def _of_checkpoint(checkpoint: Checkpoint) -> Expectation:
    def expected(shard: Shard) -> Expected:
        return Expected(
            path=shard.path,
            bytes=shard.file_bytes,
            sha256=shard.sha256,
            header_bytes=shard.header_bytes or None,
            masked=checkpoint.commit is not None,
        )

    files = tuple(map(expected, checkpoint.shards))
    source = checkpoint.source
    return Expectation(against=source, source=source, commit=checkpoint.commit, files=files)


def _of_folder(
    location: Location,
    store: LocalFolder,
    against: Source,
    root: Path,
    means: Means,
    *,
    quick: bool,
    companions: Companions,
) -> Expectation:
    """Hash another folder, or list it where digests will not be compared."""
    if isinstance(against, str) and not is_local(against):
        raise OfflineError(
            "offline mode is on, and what the Hub's cache holds is no witness of its own digests; "
            "unset HF_HUB_OFFLINE, or verify against a manifest that `kimi-inspect lock` made",
            file=store.source,
        )
    if store.root.resolve() == root.resolve():
        raise InvalidSourceError("a folder held against itself proves nothing; name its source, or a manifest")
    if quick:
        return _of_listing(location, root, means, quick=quick, companions=companions)
    # What is known of one folder is no business of the other's journal.
    memory = open_memory(store.root, believed=isinstance(means.memory, Journal))
    manifest = lock_located(location, [], evolve(means, memory=memory), companions=companions)
    return _of_manifest(manifest, store.source)


def _of_listing(location: Location, root: Path, means: Means, *, quick: bool, companions: Companions) -> Expectation:
    store = location.store
    listing = listed(location, means.notify)
    wanted = wanted_files(location, listing, companions)
    if not isinstance(store, LocalFolder):
        wanted = [file if file.size is not None else sized(store, file) for file in wanted]
    headed = [file for file in wanted if has_header(file.path) and look_at(root / file.path).mark] if quick else []
    fronts = read_fronts(store, headed, ReadOptions(max_workers=MAX_WORKERS), progress=means.notify)
    for front in fronts.values():
        if isinstance(front.error, SourceError) and not isinstance(front.error, _UNREAD):
            raise front.error

    def expected(file: ListedFile) -> Expected:
        return Expected(
            path=file.path,
            bytes=file.size,
            sha256=file.sha256,
            git_sha1=file.blob_id,
            header_sha256=fronts[file.path].sha256 if file.path in fronts else None,
            masked=store.commit is not None,
        )

    unread = sum(front.sha256 is None for front in fronts.values())
    told = plural(unread, "header")
    return Expectation(
        against=store.source,
        source=store.source,
        commit=store.commit,
        origin=store.origin,
        files=tuple(map(expected, wanted)),
        beside=frozenset(_paths(listing) - _paths(wanted)),
        notes=(f"{told} could not be read at the source and {were(unread)} not compared",) if unread else (),
    )


def _paths(files: Iterable[ListedFile]) -> set[str]:
    return {file.path for file in files}
