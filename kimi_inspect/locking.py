"""Makes a manifest of a checkpoint: from the digests of a listing, or by hashing the files of a folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from attrs import evolve

from kimi_inspect.choosing import find_files, named_set
from kimi_inspect.companions import chosen_sides
from kimi_inspect.digesting import Answer, Job, Means, digest_all
from kimi_inspect.errors import (
    AuthenticationError,
    CheckpointError,
    GatedRepositoryError,
    NoCheckpointError,
    SourceError,
    TransportError,
)
from kimi_inspect.fronts import Front, has_header, read_fronts
from kimi_inspect.hashing import GIT_SHA1, SHA256
from kimi_inspect.journal import Memory, open_memory
from kimi_inspect.locating import Location, Source, locate
from kimi_inspect.manifest import Manifest, ManifestFile
from kimi_inspect.opening import MAX_WORKERS, listed
from kimi_inspect.reading import ReadOptions, workers
from kimi_inspect.sets import as_globs, matching
from kimi_inspect.sources import FileStore, ListedFile, LocalFolder, leads_outside
from kimi_inspect.transport import DEFAULT_TIMEOUT
from kimi_inspect.tree import UNFINISHED, first_partial, look_at, refuse_no_folder, walk
from kimi_inspect.values import ProgressCallback

__all__ = ["NO_ACCESS", "Companions", "lock", "lock_located", "sized", "wanted_files"]

Companions: TypeAlias = bool | str | Sequence[str]

NO_ACCESS = (AuthenticationError, GatedRepositoryError)

SMALL_BYTES = 16 * 1024 * 1024
"""Files up to this size that git keeps are read, to know their SHA-256 too; the Hub keeps larger ones outside git."""


_UNFINISHED = "the folder holds an unfinished download; finish it, remove this, or choose files with --files"


def lock(
    source: Source,
    *,
    revision: str | None = None,
    files: str | Sequence[str] | None = None,
    companions: Companions = False,
    token: str | bool | None = None,
    endpoint: str | None = None,
    max_workers: int | None = None,
    executor: Executor | None = None,
    journal: bool = True,
    leave_out: str | os.PathLike[str] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    progress: ProgressCallback | None = None,
) -> Manifest:
    """Make a manifest: every file of a checkpoint with its size and digests, and of weight files that of the header.

    Of a repository the digests are the listing's, and the small files that git keeps are read and held against it. A
    folder is hashed. All files are listed, side files and other sets too; of `owner/name:SET` those of the set and all
    that are no weights, of a single file those of its set.

    Args:
        source: as for `open_checkpoint`.
        revision: as for `open_checkpoint`.
        files: globs on the paths: only these.
        companions: side files that belong to `owner/name:SET` too, as for `open_checkpoint`.
        token: as for `open_checkpoint`.
        endpoint: as for `open_checkpoint`.
        max_workers: files hashed at a time; None for as many as there are processors.
        executor: hashes the files of a folder instead of threads here, as for `verify`.
        journal: remember the digests of a folder, and use those that are.
        leave_out: a file that does not count where it lies in the folder: the manifest that is to be written.
        timeout: as for `open_checkpoint`.
        progress: called from this thread; what it raises cancels the call.

    Raises:
        SourceError: the listing or the headers cannot be had, or a file of the folder cannot be read.
        CheckpointError: no file fits, or the folder holds an unfinished download.
        InvalidSourceError: the string names no source.
    """
    location = locate(source, revision=revision, token=token, endpoint=endpoint, timeout=timeout)
    store = location.store
    memory = open_memory(store.root, believed=journal) if isinstance(store, LocalFolder) else Memory()
    means = Means(memory=memory, max_workers=max_workers, executor=executor, notify=progress or (lambda _: None))
    left_out = _real(leave_out)
    return lock_located(location, as_globs(files), means, companions=companions, leave_out=left_out, portable=True)


def _real(path: str | os.PathLike[str] | None) -> str | None:
    """Return where a path leads; one in a circle as it is, and None for what can be no path."""
    try:
        return os.path.realpath(path) if path else None
    except ValueError:
        return None


def lock_located(
    location: Location,
    globs: Sequence[str],
    means: Means,
    *,
    companions: Companions = False,
    leave_out: str | None = None,
    portable: bool = False,
) -> Manifest:
    """Make a manifest of a source that has been found.

    Args:
        location: where it is.
        globs: only files that one of these fits.
        means: how files are hashed.
        companions: side files of a set that count too.
        leave_out: the real path of a file that does not count.
        portable: the manifest is to be kept, so names that it could not be read back with are refused.
    """
    store = location.store
    local = isinstance(store, LocalFolder)
    listing = _in_folder(store, leave_out) if isinstance(store, LocalFolder) else listed(location, means.notify)
    wanted = matching(wanted_files(location, listing, companions), globs)
    if not wanted:
        raise NoCheckpointError("no file there fits", file=store.source, expected=", ".join(globs) or "a file")
    if isinstance(store, LocalFolder):
        _refuse_partials(store.root, wanted, globs)
    if portable:
        _refuse_names(wanted)
    fronts = _read_headers(store, wanted, means)
    digests = _hashed(store.root, wanted, means) if isinstance(store, LocalFolder) else _small(store, wanted)
    told = [file if local or file.size is not None else sized(store, file) for file in wanted]
    return Manifest(
        source=_honest(store),
        # Nobody has asked the Hub whether a folder is what it is called.
        commit=None if local else store.commit,
        created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        files=tuple(
            ManifestFile(
                path=file.path,
                bytes=file.size or 0,
                sha256=file.sha256 or digests.get(file.path, {}).get(SHA256),
                git_sha1=file.blob_id or digests.get(file.path, {}).get(GIT_SHA1),
                header_sha256=fronts[file.path].sha256 if file.path in fronts else None,
            )
            for file in sorted(told, key=lambda file: file.path)
        ),
    )


def _refuse_partials(root: Path, wanted: Sequence[ListedFile], globs: Sequence[str]) -> None:
    """Raise where a download is not finished; globs may choose other files, and those that only look like it."""
    if globs:
        return
    partial = next((file.path for file in wanted if file.path.endswith(UNFINISHED)), None) or first_partial(root)
    if partial is not None:
        raise CheckpointError(_UNFINISHED, file=partial)


def _refuse_names(files: Sequence[ListedFile]) -> None:
    """Raise where a name could not be read back: on some systems a backslash is a letter, on others it is a `/`."""
    for file in files:
        if leads_outside(file.path):
            raise CheckpointError("a file name with a backslash; rename it", file=file.path)


def _read_headers(store: FileStore, files: Sequence[ListedFile], means: Means) -> Mapping[str, Front]:
    """Hash headers; those that nobody may see without access stay unknown."""
    headed = [file for file in files if has_header(file.path)]
    fronts = read_fronts(store, headed, ReadOptions(max_workers=MAX_WORKERS), progress=means.notify)
    for front in fronts.values():
        if isinstance(front.error, SourceError) and not isinstance(front.error, NO_ACCESS):
            raise front.error
    for file in headed:
        _agree_on_size(file, fronts[file.path].file_bytes)
    return fronts


def _agree_on_size(file: ListedFile, size: int | None) -> None:
    """Refuse a listing that tells another size than the file has: no true copy would fit such a manifest."""
    if None not in (file.size, size) and file.size != size:
        problem = "the file is not as long as the listing tells; start again"
        raise TransportError(problem, file=file.path, expected=file.size, actual=size)


def _honest(store: FileStore) -> str:
    """Return what to call a source: of what the Hub's cache holds, offline, the place, for nobody has asked the Hub."""
    if isinstance(store, LocalFolder) and not Path(store.source).absolute().is_relative_to(store.root.absolute()):
        return str(store.root)
    return store.source


def wanted_files(
    location: Location, listing: Sequence[ListedFile], companions: Companions = False
) -> Sequence[ListedFile]:
    """Return the files that a source string means: all, those below a folder, or a set with what is beside weights.

    Args:
        location: where it leads.
        listing: all files there.
        companions: side files of a set that belong to it too, as for `open_checkpoint`; some headers are read then.
    """
    if location.set_name or location.member:
        if companions:
            found = find_files(location, listing, [], ReadOptions(max_workers=MAX_WORKERS))
            sides = [side.files for side in chosen_sides(found.sides, companions)]
            paths = {file.path for one in (found.chosen, *sides) for file in one.files}
        else:
            chosen = named_set(location, listing, [])
            paths = {file.path for file in chosen.files} if chosen else set()
        beside = location.member is None
        return [file for file in listing if file.path in paths or (beside and not has_header(file.path))]
    below = f"{location.folder}/" if location.folder else ""
    return [file for file in listing if file.path.startswith(below)]


def _in_folder(store: LocalFolder, leave_out: str | None) -> list[ListedFile]:
    """List a folder for one who vouches for it: nothing may be there that cannot be read, or is not whole."""
    refuse_no_folder(store.root)
    found = []
    for path in walk(store.root, _refuse_folder):
        if leave_out and os.path.realpath(store.root / path) == leave_out:
            continue
        entry = look_at(store.root / path)
        if entry.mark is None:
            problem = entry.problem or "there is a link to nothing"
            raise TransportError(f"no file that can be read: {problem}", file=path, retryable=False)
        found.append(ListedFile(path=path, size=entry.mark.size))
    return found


def _refuse_folder(error: OSError) -> None:
    """Refuse a folder below that cannot be listed: what is in it would be left out in silence."""
    problem = f"a folder that cannot be listed: {error.strerror or error}"
    raise TransportError(problem, file=str(error.filename), retryable=False) from None


def _hashed(root: Path, wanted: Sequence[ListedFile], means: Means) -> Mapping[str, Mapping[str, str]]:
    jobs = []
    for file in wanted:
        mark = look_at(root / file.path).mark
        if mark is None or mark.size != file.size:
            raise TransportError("the file has changed while the folder was listed", file=file.path)
        small = mark.size <= SMALL_BYTES and not has_header(file.path)
        algorithms = (SHA256, GIT_SHA1) if small else (SHA256,)
        jobs.append(Job(path=file.path, file=root / file.path, mark=mark, algorithms=algorithms))
    return {job.path: _sure(job, answer) for job, answer in digest_all(jobs, means)}


def _sure(job: Job, answer: Answer) -> Mapping[str, str]:
    if answer.problem is not None:
        raise TransportError(f"no digest: {answer.problem}", file=job.path, retryable=answer.changed)
    return answer.digests


def _small(store: FileStore, wanted: Sequence[ListedFile]) -> Mapping[str, Mapping[str, str]]:
    """Read the small files whose SHA-256 nobody tells, and see that they are those of the listing."""
    small = [file for file in wanted if file.blob_id and not file.sha256 and (file.size or 0) <= SMALL_BYTES]

    def read(file: ListedFile) -> Mapping[str, str]:
        try:
            data = store.read_small(file, SMALL_BYTES) if file.size else b""
        except NO_ACCESS:
            return {}
        _agree_on_size(file, len(data))
        git_sha1 = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
        if git_sha1 != file.blob_id:
            problem = "the file is not the one that the listing tells; start again"
            raise TransportError(problem, file=file.path, expected=file.blob_id, actual=git_sha1)
        return {SHA256: hashlib.sha256(data).hexdigest()}

    with workers(store, MAX_WORKERS) as pool:
        return dict(zip((file.path for file in small), pool.map(read, small), strict=True))


def sized(store: FileStore, file: ListedFile) -> ListedFile:
    """Ask for the size of a file that no listing tells."""
    return evolve(file, size=store.open(file).size)
