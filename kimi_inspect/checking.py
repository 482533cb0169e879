"""Holds a folder against what is expected of it: sizes first, then headers, then digests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from attrs import evolve, frozen

from kimi_inspect.digesting import Job, Means, digest_all
from kimi_inspect.expectations import Expectation
from kimi_inspect.fronts import Front, has_header, read_fronts
from kimi_inspect.hashing import Mark
from kimi_inspect.judging import Expected, by_answer, by_header, by_look, by_own_header, unhashed, unknown
from kimi_inspect.reading import ReadOptions, ReadShard, read_shards
from kimi_inspect.refetching import Refetch
from kimi_inspect.sources import ListedFile, LocalFolder
from kimi_inspect.text import plural, were
from kimi_inspect.tree import (
    MODELSCOPE_PARTS,
    UNFINISHED,
    Entry,
    kept_partials,
    look_at,
    told_commits,
    unreadable,
    walk,
)
from kimi_inspect.verification import FileVerification, Status, Verification, is_weights

__all__ = ["Earlier", "Partials", "check", "check_files", "explained"]

HASHED_ANYWAY = 64 * 1024 * 1024
"""A file up to this size is hashed though its header is wrong already: its digest tells more and costs nothing."""

Seen = Callable[[FileVerification], object]

READERS = 8
"""Headers read at a time: memory is for the buffers that hash."""


class Partials:
    """What download programs left of files that they did not finish."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._kept = kept_partials(root)
        self._modelscope = (root / MODELSCOPE_PARTS).is_dir()
        self._names: dict[str, frozenset[str]] = {}

    def of(self, file: Expected, entry: Entry) -> str | None:
        """Say what shows that a file is not finished, or None."""
        folder, _, name = file.path.rpartition("/")
        there = self._beside(folder)
        for suffix in UNFINISHED:
            # aria2 gives a file its full size at once; others write beside it, and what is whole stays whole.
            if (suffix == ".aria2" or entry.mark is None) and name + suffix in there:
                mark = look_at(self._root / (file.path + suffix)).mark
                if mark is not None:
                    return f"{file.path}{suffix} is there" + ("" if suffix == ".aria2" else f", {mark.size:,} bytes")
        kept = self._fetched(file)
        if entry.mark is None and kept is not None:
            return f"{kept:,} bytes of it have been fetched"
        return None

    def _beside(self, folder: str) -> frozenset[str]:
        """Return the names in a folder, which is listed once however many files are asked for."""
        if folder not in self._names:
            try:
                self._names[folder] = frozenset(one.name for one in (self._root / folder).iterdir())
            except (OSError, ValueError):
                self._names[folder] = frozenset()
        return self._names[folder]

    def _fetched(self, file: Expected) -> int | None:
        """Return how many bytes of a file a client keeps elsewhere, or None."""
        apart = look_at(self._root / MODELSCOPE_PARTS / file.path).mark if self._modelscope else None
        return apart.size if apart else self._kept.get(file.sha256 or "") or self._kept.get(file.git_sha1 or "")


@frozen(kw_only=True)
class Checked:
    """Files that were checked, and the bytes that were hashed for them."""

    files: tuple[FileVerification, ...]
    hashed: int = 0


@frozen(kw_only=True)
class Earlier:
    """What the same call has hashed before: paths of the files, and the bytes."""

    fresh: frozenset[str] = frozenset()
    hashed: int = 0


def check(
    root: Path, expectation: Expectation, means: Means, *, quick: bool = False, earlier: Earlier | None = None
) -> Verification:
    """Check all files that are expected, and name those that are not."""
    earlier = earlier or Earlier()
    checked = check_files(root, expectation.files, means, quick=quick)
    refetch = expectation.refetch(root)
    found = [evolve(file, remembered=file.remembered and file.path not in earlier.fresh) for file in checked.files]
    expected = _told_together([explained(root, file, refetch) for file in found])
    extra = list(_extra(root, expectation))
    return Verification(
        folder=str(root),
        against=expectation.against,
        commit=expectation.commit,
        quick=quick,
        bytes_hashed=checked.hashed + earlier.hashed,
        files=tuple(sorted([*expected, *extra], key=lambda file: file.path)),
        bytes_remembered=sum(file.bytes or 0 for file in expected if file.remembered),
        notes=(
            *expectation.notes,
            *means.memory.notes,
            *_unlisted(extra),
            *_notes(root, expectation, expected, quick=quick),
        ),
    )


def check_files(
    root: Path, files: Sequence[Expected], means: Means, *, quick: bool = False, seen: Seen = lambda _: None
) -> Checked:
    """Check some files; the result is in the order of `files`, and `seen` is told of each as soon as it is known."""
    found = _Found(seen)
    entries = {file.path: look_at(root / file.path) for file in files}
    partials = Partials(root)
    for file in files:
        entry = entries[file.path]
        found.add(by_look(file, entry, partial=partials.of(file, entry)))
    marks = {path: entry.mark for path, entry in entries.items() if path not in found.by_path and entry.mark}
    here = [file for file in files if file.path in marks]
    fronts = _fronts(root, here, means, quick=quick)
    for file in here:
        size = marks[file.path].size
        verdict = by_header(file, fronts[file.path], size) if file.path in fronts else None
        # Its digest tells more than its header alone.
        small = not quick and file.digest is not None and size <= HASHED_ANYWAY
        if small and verdict is not None and verdict.status == Status.MISMATCH:
            found.other_headers[file.path] = verdict.note
        else:
            found.add(verdict)
    left = [file for file in here if file.path not in found.by_path]
    hashed = 0
    if quick:
        for file in left:
            found.add(_unhashed(root, file, fronts.get(file.path), marks[file.path].size))
    else:
        hashed = _hash(root, left, marks, means, found)
    return Checked(files=tuple(found.by_path[file.path] for file in files), hashed=hashed)


class _Found:
    """What has been found so far, by path."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self.by_path: dict[str, FileVerification] = {}
        self.other_headers: dict[str, str | None] = {}

    def add(self, verdict: FileVerification | None) -> None:
        if verdict is not None:
            if verdict.status == Status.MISMATCH and verdict.path in self.other_headers:
                verdict = evolve(verdict, note=self.other_headers[verdict.path])
            self.by_path[verdict.path] = verdict
            self._seen(verdict)


def _fronts(root: Path, files: Iterable[Expected], means: Means, *, quick: bool) -> Mapping[str, Front]:
    """Read the headers that something is known of; where no file will be hashed, all."""
    wanted = [
        ListedFile(path=file.path, size=None)
        for file in files
        if has_header(file.path) and (quick or file.header_sha256 or file.header_bytes)
    ]
    return read_fronts(LocalFolder(root), wanted, ReadOptions(max_workers=READERS), progress=means.notify)


def _unhashed(root: Path, file: Expected, front: Front | None, size: int) -> FileVerification:
    """Judge a file that nobody hashes: where no size is expected of a weight file, by what its own header says."""
    problem = None if front else unreadable(root / file.path)
    verdict = by_look(file, Entry(problem=problem), partial=None) if problem else None
    if front and file.bytes is None:
        shard = _own_header(root, file.path, size)
        ends = {item.code: item.expected for item in (shard.header.findings if shard.header else ())}
        promised = ends.get("truncated", ends.get("trailing-bytes", size))
        verdict = by_own_header(file, shard.error, promised, size)
    return unhashed(file, front, size) if verdict is None else verdict


def _own_header(root: Path, path: str, size: int | None) -> ReadShard:
    (shard,) = read_shards(LocalFolder(root), [ListedFile(path=path, size=size)], ReadOptions(max_workers=1))
    return shard


def _hash(root: Path, files: Sequence[Expected], marks: Mapping[str, Mark], means: Means, found: _Found) -> int:
    """Hash files whose digest is known; return how many bytes that were."""
    by_path = {file.path: file for file in files}
    jobs = []
    for file in files:
        mark = marks[file.path]
        if file.digest:
            algorithms = (file.digest[0],)
            jobs.append(Job(path=file.path, file=root / file.path, mark=mark, algorithms=algorithms))
        else:
            found.add(unknown(file, mark.size))
    hashed = 0
    for job, answer in digest_all(jobs, means):
        hashed += answer.hashed
        found.add(by_answer(by_path[job.path], answer, job.mark.size))
    return hashed


def explained(root: Path, file: FileVerification, refetch: Refetch) -> FileVerification:
    """Add what is seen of a wrong file, and what fetches it again."""
    if file.ok or file.status == Status.DIGEST_UNKNOWN:
        return file
    # Of a mismatch there is a note only where it is the header that differs.
    laid_out = file.status == Status.SIZE_DIFFERS or (file.status == Status.MISMATCH and file.note is not None)
    note = _by_own_header(root, file) if laid_out and has_header(file.path) else None
    again = file.status not in (Status.MISSING, Status.UNFINISHED)
    return evolve(file, note=note or file.note, command=refetch.command(file.path, again=again))


WHOLE = "a whole file by its own header: of another revision or build, not a damaged one"
OTHER_HEADER = "its header is another: damaged, or of another revision"
OTHER_SIZE = "as long as its own header says: damaged, or of another revision"


def _told_together(files: Sequence[FileVerification]) -> Sequence[FileVerification]:
    """Call files those of another revision where most weight files have other headers that fit, and none is right."""
    weights = [file for file in files if has_header(file.path)]
    other = sum(file.note in (OTHER_HEADER, OTHER_SIZE) for file in weights)
    right = any(file.status in (Status.OK, Status.NOT_HASHED) for file in weights)
    if right or 2 * other <= len(weights) or (other < 2 and len(weights) > 1):
        return files
    return [evolve(file, note=WHOLE) if file.note in (OTHER_HEADER, OTHER_SIZE) else file for file in files]


def _by_own_header(root: Path, file: FileVerification) -> str:
    """Say what a weight file is by what it says of itself."""
    shard = _own_header(root, file.path, file.bytes)
    if shard.header is None:
        return f"no header that can be read: {shard.error.problem if shard.error else 'unknown'}"
    if shard.header.missing_bytes:
        return f"cut: its own header promises {shard.header.missing_bytes:,} bytes more"
    if shard.header.findings:
        return "its own header does not fit it"
    return OTHER_SIZE if file.status == Status.SIZE_DIFFERS else OTHER_HEADER


UNLISTED = "a folder that cannot be listed"


def _extra(root: Path, expectation: Expectation) -> Iterable[FileVerification]:
    """Name the files that nobody expects: those that are being fetched, and any others."""
    known = {file.path for file in expectation.files} | expectation.beside
    own = os.path.realpath(expectation.own) if expectation.own else None
    refused: list[OSError] = []
    for path in walk(root, refused.append):
        if path in known or (own and os.path.realpath(root / path) == own):
            continue
        mark = look_at(root / path).mark
        unfinished = path.endswith(UNFINISHED) and expectation.asks_for(path.rpartition(".")[0])
        status = Status.UNFINISHED if unfinished else Status.EXTRA
        yield FileVerification(path=path, status=status, bytes=mark.size if mark else None)
    for error in refused:
        folder = Path(error.filename).relative_to(root).as_posix()
        asked = not expectation.globs or any(file.path.startswith(f"{folder}/") for file in expectation.files)
        if asked and folder not in known and not isinstance(error, FileNotFoundError):
            note = f"{UNLISTED}: {error.strerror or error}"
            yield FileVerification(path=folder, status=Status.UNREADABLE, note=note)


def _unlisted(extra: Iterable[FileVerification]) -> Iterable[str]:
    """Say that there is more than is told."""
    if unlisted := sum((file.note or "").startswith(UNLISTED) for file in extra):
        folders = "1 folder" if unlisted == 1 else f"{unlisted:,} folders"
        yield f"{folders} could not be listed; only files that are expected there were looked at"


def _notes(root: Path, expectation: Expectation, files: Sequence[FileVerification], *, quick: bool) -> Iterable[str]:
    """Say what the files show together."""
    if quick:
        yield from _unproven(expectation, [file for file in files if file.status == Status.NOT_HASHED])
    if remembered := sum(file.bytes or 0 for file in files if file.remembered):
        amount = f"{plural(remembered, 'byte')} {were(remembered)}"
        yield f"{amount} hashed by an earlier call and not read again; without the journal they are"
    told = told_commits(root)
    if expectation.commit and told and expectation.commit not in told and (quick or not all(file.ok for file in files)):
        commits = ", ".join(sorted(told)[:3])
        yield f"by the notes of the Hub's client the folder is of commit {commits}, not {expectation.commit}"
    if all(file.ok for file in files):
        return
    weights = [file for file in files if is_weights(file.path)]
    whole = sum(file.note == WHOLE for file in weights)
    values = sum(file.status == Status.MISMATCH and file.note is None for file in weights)
    if whole:
        those = "the weight file is" if len(weights) == 1 else f"{whole:,} of {len(weights):,} weight files are"
        yield f"{those} whole, with headers of another revision or build"
    if len(weights) > 1 and values == len(weights):
        yield "every weight file has its size and another content: another revision or build rather than damage"


def _unproven(expectation: Expectation, files: Sequence[FileVerification]) -> Iterable[str]:
    """Say what a quick look at files compared, and what that does not prove."""
    expected = {file.path: file for file in expectation.files}
    weights = [file for file in files if has_header(file.path)]
    bare = [file for file in weights if not (expected[file.path].header_sha256 or expected[file.path].header_bytes)]
    unsized = sum(expected[file.path].bytes is None for file in files)
    compared = [
        *(["sizes"] if unsized < len(files) else []),
        *(["headers"] if len(bare) < len(weights) else []),
    ]
    unread = sum(file.bytes or 0 for file in files)
    alike = "" if unsized else " of the same length"
    said = f"only {' and '.join(compared)} were compared" if compared else "files were only looked for"
    yield f"{said}: {plural(unread, 'byte')} {were(unread)} not hashed, and may be others{alike}"
    if unsized:
        yield f"no size is known of {plural(unsized, 'file')}; weight files were held against their own headers"
    elif bare:
        yield f"no header is known of {plural(len(bare), 'weight file')}, so only their sizes were compared"
    if illegible := [file for file in weights if file.note]:
        have = "has" if len(illegible) == 1 else "have"
        names = ", ".join(file.path for file in illegible[:3])
        yield f"{plural(len(illegible), 'weight file')} {have} a header that cannot be read: {names}"
