"""Verifies a folder while it is being downloaded: each file as soon as it is whole."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kimi_inspect.checking import Earlier, Partials, check, check_files, explained
from kimi_inspect.digesting import Means
from kimi_inspect.expectations import Against, Expectation, expect
from kimi_inspect.hashing import Mark
from kimi_inspect.journal import open_memory
from kimi_inspect.judging import Expected, by_look
from kimi_inspect.locking import Companions
from kimi_inspect.sets import as_globs
from kimi_inspect.tree import look_at, named_folder
from kimi_inspect.values import ProgressCallback
from kimi_inspect.verification import FileVerification, Status, Verification

__all__ = ["watch"]

INTERVAL = 2.0
"""Seconds between two looks at the folder."""

PATIENCE = 30
"""Looks at which a file that is too short has to be the same before it is told: who writes it may have paused."""


def watch(
    folder: str | os.PathLike[str],
    against: Against,
    *,
    seen: Callable[[FileVerification], object],
    files: str | Sequence[str] | None = None,
    journal: bool = True,
    max_workers: int | None = None,
    companions: Companions = False,
    revision: str | None = None,
    token: str | bool | None = None,
    endpoint: str | None = None,
    progress: ProgressCallback | None = None,
    wait: Callable[[float], object] = time.sleep,
    interval: float = INTERVAL,
) -> Verification:
    """Verify the files of a folder as they arrive, until all that are expected are there.

    A file is whole when it has its size, nothing shows that it is still being fetched, and it was the same at the look
    before. One that is wrong is told at once, and one that stays too short after a minute; when it has been replaced it
    is checked again.

    Args:
        folder: it may still be empty.
        against: as for `verify`.
        seen: is told of each file when it has been checked, from this thread.
        files: as for `verify`.
        journal: as for `verify`.
        max_workers: as for `verify`.
        companions: as for `verify`.
        revision: as for `verify`.
        token: as for `verify`.
        endpoint: as for `verify`.
        progress: as for `verify`.
        wait: makes the pauses; what it raises ends the watch.
        interval: seconds between two looks.

    Returns:
        What `verify` says in the end.

    Raises:
        KimiInspectError: as `verify`.
    """
    root = named_folder(folder)
    memory = open_memory(root, believed=journal)
    means = Means(memory=memory, max_workers=max_workers, notify=progress or (lambda _: None))
    expectation = expect(against, root, means, companions=companions, revision=revision, token=token, endpoint=endpoint)
    expectation = expectation.limited(as_globs(files))
    watched = _Watched(root, expectation, means, seen)
    while not watched.look():
        wait(interval)
    return check(root, expectation, means, earlier=watched.earlier)


class _Watched:
    """A folder between two looks: what each file was at the last one, and what has been checked and told."""

    def __init__(
        self, root: Path, expectation: Expectation, means: Means, seen: Callable[[FileVerification], object]
    ) -> None:
        self._root = root
        self._files = expectation.files
        self._means = means
        self._seen = seen
        self._refetch = expectation.refetch(root)
        self._before: Mapping[str, Mark] = {}
        self._checked: dict[str, Mark] = {}
        self._wrong: Counter[FileVerification] = Counter()
        self._hopeless: set[str] = set()
        self.earlier = Earlier()

    def look(self) -> bool:
        """Check what has become whole; say whether all files have been checked as they are."""
        whole = self._whole()
        ready = [
            file
            for file in self._files
            if (mark := whole.get(file.path)) and self._before.get(file.path) == mark != self._checked.get(file.path)
        ]
        found = check_files(self._root, ready, self._means, seen=self._tell)
        fresh = {file.path for file in found.files if not file.remembered}
        self.earlier = Earlier(fresh=self.earlier.fresh | fresh, hashed=self.earlier.hashed + found.hashed)
        # One that changed while it was read was not whole yet.
        self._checked |= {file.path: whole[file.path] for file in found.files if file.status != Status.UNFINISHED}
        self._before = whole
        return all(self._is_settled(file, whole.get(file.path)) for file in self._files)

    def _is_settled(self, file: Expected, mark: Mark | None) -> bool:
        """Whether a file has been checked as it is, or is what cannot become right by waiting."""
        return file.path in self._hopeless or (mark is not None and mark == self._checked.get(file.path))

    def _whole(self) -> dict[str, Mark]:
        """Return what the files are that seem to be there as a whole; tell of those that do not become so."""
        partials = Partials(self._root)
        whole, wrong = {}, Counter[FileVerification]()
        self._hopeless = set()
        for file in self._files:
            entry = look_at(self._root / file.path)
            verdict = by_look(file, entry, partial=partials.of(file, entry))
            if verdict is None and entry.mark:
                whole[file.path] = entry.mark
            elif verdict is not None and verdict.status in (Status.SIZE_DIFFERS, Status.UNREADABLE):
                wrong[verdict] = self._wrong[verdict] + 1
                short = (verdict.bytes or 0) < (file.bytes or 0) and verdict.status == Status.SIZE_DIFFERS
                if wrong[verdict] == (PATIENCE if short else 2):
                    self._tell(verdict)
                if not short and wrong[verdict] >= 2:
                    self._hopeless.add(file.path)
        self._wrong = wrong
        return whole

    def _tell(self, file: FileVerification) -> None:
        self._seen(explained(self._root, file, self._refetch))
