"""What stands in a folder on this machine, as somebody sees it who has to vouch for every file of it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from attrs import frozen

from kimi_inspect.errors import InvalidSourceError, SourceFileNotFoundError, TransportError
from kimi_inspect.hashing import Mark

__all__ = [
    "MODELSCOPE_PARTS",
    "UNFINISHED",
    "Entry",
    "at_home",
    "first_partial",
    "kept_partials",
    "look_at",
    "named_folder",
    "refuse_no_folder",
    "told_commits",
    "unreadable",
    "walk",
]

UNFINISHED = (".incomplete", ".aria2", ".part", ".partial", ".crdownload")
"""What download programs put behind the name of a file that they have not finished, or have notes on."""

MODELSCOPE_PARTS = "._____temp"
"""The folder in which ModelScope's client keeps files, under their own paths, until they are whole."""

_HUB_PARTS = ".cache/huggingface/download"
"""The same of the Hub's client, under names that hold the digest."""

_BOOKKEEPING = (".git", ".cache/huggingface", MODELSCOPE_PARTS)
_NOTES = frozenset({".msc", ".mdl", ".mv", ".DS_Store"})
"""What git, the Hub's client, ModelScope's and the system keep beside the files: no part of a checkpoint."""

_KEPT = re.compile(r"(?:^|\.)(?P<digest>[0-9a-f]{64}|[0-9a-f]{40})(?:\.[0-9a-f]+)?\.incomplete")
"""How the Hub's client calls what it has of a file: by the digest of the whole."""

_COMMIT = re.compile("[0-9a-f]{40}")


@frozen(kw_only=True)
class Entry:
    """What stands under a path, links followed.

    Attributes:
        mark: of a regular file, else None.
        problem: what it is, if it is no file that could be read; None also where there is nothing.
        dangling: it is a link to nothing.
    """

    mark: Mark | None = None
    problem: str | None = None
    dangling: bool = False


def at_home(path: str | os.PathLike[str]) -> Path:
    """Return a path with `~` as the home that it stands for; as it is where there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def look_at(path: Path) -> Entry:
    """Say what stands under a path."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return Entry(dangling=path.is_symlink())
    except (OSError, ValueError) as error:
        return Entry(problem=f"it cannot be looked at: {getattr(error, 'strerror', None) or error}")
    if S_ISREG(status.st_mode):
        return Entry(mark=Mark.of(status))
    return Entry(problem=f"there is {'a folder' if S_ISDIR(status.st_mode) else 'no regular file'}")


def refuse_no_folder(folder: Path) -> None:
    """Raise unless it is a folder that can be listed.

    Raises:
        SourceFileNotFoundError: there is none.
        TransportError: it is a file, or may not be read.
        InvalidSourceError: it is the Hub's cache of a repository, in which the files lie in snapshots.
    """
    try:
        with os.scandir(folder) as inside:
            names = {item.name for item in inside}
    except FileNotFoundError:
        raise SourceFileNotFoundError("there is no such folder", file=str(folder)) from None
    except NotADirectoryError:
        problem = "a file, not a folder; give the folder that it lies in, and --files for this one alone"
        raise TransportError(problem, file=str(folder), retryable=False) from None
    except (OSError, ValueError) as error:
        problem = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise TransportError(problem, file=str(folder), retryable=False) from None
    if {"blobs", "snapshots", "refs"} <= names:
        problem = "the folder of a repository in the Hub's cache; give one of its snapshots"
        raise InvalidSourceError(problem, file=str(folder), expected=str(folder / "snapshots" / "<commit>"))


def named_folder(folder: str | os.PathLike[str]) -> Path:
    """Return the path of a folder that can be listed.

    Raises:
        InvalidSourceError: the name is empty, as a variable may be that nobody has set.
        KimiInspectError: as `refuse_no_folder`.
    """
    if not os.fspath(folder):
        raise InvalidSourceError("no folder is named")
    root = at_home(folder)
    refuse_no_folder(root)
    return root


def walk(root: Path, unlisted: Callable[[OSError], object]) -> Iterator[str]:
    """Yield the path of every file and link below a folder, bookkeeping of git and of download programs left out.

    Links to folders are entered, unless they lead to one that holds them: that is a circle. `unlisted` is told of each
    folder that cannot be listed.
    """
    for folder, folders, names in os.walk(root, onerror=unlisted, followlinks=True):
        here = Path(folder).relative_to(root)
        above = [root, *(root / parent for parent in here.parents), Path(folder)]
        folders[:] = sorted(
            name
            for name in folders
            if (here / name).as_posix() not in _BOOKKEEPING and not _leads_up(Path(folder, name), above)
        )
        yield from ((here / name).as_posix() for name in sorted(names) if name not in _NOTES)


def _leads_up(path: Path, above: Sequence[Path]) -> bool:
    """Whether what stands there is a link to one of the folders on the way to it, or to what holds one."""
    if not path.is_symlink():
        return False
    target = path.resolve()
    return any(folder.resolve().is_relative_to(target) for folder in above)


def kept_partials(root: Path) -> dict[str, int]:
    """Return what the Hub's client keeps of files that it has not finished: their digests, and the bytes so far."""
    places = [root / _HUB_PARTS]
    real = root.resolve()
    if real.parent.name == "snapshots":
        places.append(real.parent.parent / "blobs")
    found: dict[str, int] = {}
    for path in (path for place in places for path in place.rglob("*.incomplete")):
        match = _KEPT.search(path.name)
        mark = look_at(path).mark
        if match and mark:
            found[match["digest"]] = max(mark.size, found.get(match["digest"], 0))
    return found


def first_partial(root: Path) -> str | None:
    """Return the path of a file that the clients of the Hub or ModelScope have in a folder and not finished, or None.

    What the Hub's cache keeps beside its snapshots may belong to another of these.
    """
    hub, modelscope = (root / _HUB_PARTS).rglob("*.incomplete"), (root / MODELSCOPE_PARTS).rglob("*")
    found = sorted(path.relative_to(root).as_posix() for path in (*hub, *modelscope) if path.is_file())
    return found[0] if found else None


def told_commits(root: Path) -> frozenset[str]:
    """Return the commits that the Hub's client notes for the files of a folder: a hint, and no evidence."""
    real = root.resolve()
    if real.parent.name == "snapshots" and _COMMIT.fullmatch(real.name):
        return frozenset({real.name})
    notes = (root / _HUB_PARTS).rglob("*.metadata")
    return frozenset(filter(None, map(_noted_commit, notes)))


def _noted_commit(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            line = file.read(41).decode("ascii", "replace")
    except OSError:
        return None
    return line[:40] if _COMMIT.fullmatch(line[:40]) and line[40:] in ("", "\n") else None


def unreadable(path: Path) -> str | None:
    """Say why a file cannot be opened, or None."""
    try:
        path.open("rb").close()
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"
    return None
