"""The repositories that the fake Hub holds, and the facts that it tells of each file.

Digests and ids are made as git, Git LFS and the Hub make them: a small file is known by the SHA-1 of its git blob, a
large one by the SHA-256 of its content and the SHA-1 of the pointer text that git holds in its place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any, Literal
from urllib.parse import unquote

from kimi_inspect.testing.hollow import Files, HollowFile

__all__ = ["Catalog", "Entry", "Repository", "Shelf", "Snapshot"]

# What the Hub's .gitattributes sends to LFS whatever the size, and the size from which it takes nothing else.
_LFS_SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".onnx", ".npz", ".model")
_LFS_FROM_BYTES = 10_000_000
_MASK = "*" * 64


@dataclass(frozen=True)
class Repository:
    """A model repository as a test declares it.

    `files` maps paths to their content, or is a function that makes such a mapping, called when it is first needed.
    `commit` (40 hex digits) is derived from the content when empty; `branch` and `tags` all point to it. `gated` is how
    access is granted (True stands for "auto"). `renamed_from` is a former id that redirects here. `info` adds to, or
    replaces, what the model's metadata say.
    """

    repo_id: str
    files: Files | Callable[[], Files]
    _: KW_ONLY
    commit: str = ""
    branch: str = "main"
    tags: tuple[str, ...] = ()
    gated: bool | Literal["auto", "manual"] = False
    private: bool = False
    disabled: bool = False
    renamed_from: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """A file at its path."""

    path: str
    file: HollowFile

    @cached_property
    def is_lfs(self) -> bool:
        """Whether the content lies outside git."""
        return self.path.endswith(_LFS_SUFFIXES) or self.file.size > _LFS_FROM_BYTES

    @cached_property
    def pointer(self) -> bytes:
        """The text that git holds for a file in LFS."""
        text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.file.sha256}\nsize {self.file.size}\n"
        return text.encode()

    @cached_property
    def oid(self) -> str:
        """The git blob id: of the pointer for a file in LFS, else of the content."""
        content = self.pointer if self.is_lfs else self.file.read()
        return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()

    @cached_property
    def xet_hash(self) -> str:
        """A stand-in for the Xet hash, 64 hex digits: like the real one it is not the SHA-256, and not checkable."""
        return hashlib.sha256(b"xet:" + self.file.sha256.encode()).hexdigest()

    def listing(self, *, masked: bool) -> dict[str, Any]:
        """Return the entry of a tree listing; `masked` hides the digests, as for a reader without access."""
        entry: dict[str, Any] = {"type": "file", "oid": self.oid, "size": self.file.size}
        if self.is_lfs:
            oid = _MASK if masked else self.file.sha256
            entry["lfs"] = {"oid": oid, "size": self.file.size, "pointerSize": len(self.pointer)}
            entry["xetHash"] = _MASK if masked else self.xet_hash
        return entry | {"path": self.path}

    def sibling(self, *, masked: bool) -> dict[str, Any]:
        """Return the entry of the model's metadata; the keys are not those of a tree listing."""
        entry: dict[str, Any] = {"rfilename": self.path, "blobId": self.oid, "size": self.file.size}
        if self.is_lfs:
            sha256 = _MASK if masked else self.file.sha256
            entry["lfs"] = {"sha256": sha256, "size": self.file.size, "pointerSize": len(self.pointer)}
        return entry


class Snapshot:
    """The files of one commit."""

    def __init__(self, files: Files | Callable[[], Files], commit: str = "") -> None:
        self._files = files
        self._commit = commit

    @cached_property
    def entries(self) -> dict[str, Entry]:
        """The files by their paths, in order."""
        files = self._files() if callable(self._files) else self._files
        return {
            path: Entry(path, HollowFile(content) if isinstance(content, bytes) else content)
            for path, content in sorted(files.items())
        }

    @cached_property
    def commit(self) -> str:
        """The commit, 40 hex digits; when none was given, one derived from paths, sizes and digests."""
        if self._commit:
            return self._commit
        lines = (f"{entry.path}\0{entry.file.size}\0{entry.file.sha256}\n" for entry in self.entries.values())
        return hashlib.sha1("".join(lines).encode(), usedforsecurity=False).hexdigest()

    @property
    def folders(self) -> set[str]:
        """The paths of all folders."""
        return {folder for path in self.entries for folder in _parents(path)}

    def listing(self, folder: str, *, recursive: bool, masked: bool) -> list[dict[str, Any]]:
        """Return the tree entries below `folder` ("" for the root), by path, folders included."""
        prefix = folder + "/" if folder else ""
        folders = {path: _folder_listing(path) for path in self.folders}
        files = {path: entry.listing(masked=masked) for path, entry in self.entries.items()}
        both = folders | files
        below = sorted(path for path in both if path.startswith(prefix))
        return [both[path] for path in below if recursive or "/" not in path.removeprefix(prefix)]


class Shelf:
    """A repository with its commits: what a revision points to may change, a commit never does."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        first = Snapshot(repository.files, repository.commit)
        self.refs = dict.fromkeys((repository.branch, *repository.tags), first)
        self._snapshots = [first]

    def push(self, files: Files | None = None, commit: str = "") -> str:
        """Put a new commit on the branch and return it; without `files` it has the same content as the last.

        Tags, and readers that pinned a former commit, stay where they are.
        """
        last = self.refs[self.repository.branch]
        if files is None:
            files = {path: entry.file for path, entry in last.entries.items()}
            commit = commit or hashlib.sha1(last.commit.encode(), usedforsecurity=False).hexdigest()
        snapshot = Snapshot(files, commit)
        self._snapshots.append(snapshot)
        self.refs[self.repository.branch] = snapshot
        return snapshot.commit

    def find(self, revision: str) -> Snapshot | None:
        """Return what a branch, a tag, a commit or its first digits (seven or more) point to."""
        if revision in self.refs:
            return self.refs[revision]
        if len(revision) < 7:
            return None
        return next((one for one in self._snapshots if one.commit.startswith(revision)), None)


class Catalog:
    """All repositories, by their ids and their former ids."""

    def __init__(self, repositories: Iterable[Repository]) -> None:
        self._shelves = {one.repo_id: Shelf(one) for one in repositories}
        self._today = {repo_id.lower(): repo_id for repo_id in self._shelves}
        for repo_id, shelf in self._shelves.items():
            if former := shelf.repository.renamed_from:
                self._today[former.lower()] = repo_id

    def shelf(self, repo_id: str) -> Shelf | None:
        """Return the repository of exactly that id."""
        return self._shelves.get(repo_id)

    def today(self, repo_id: str) -> str | None:
        """Return the present id of a repository asked for by any id it has or had, in any case."""
        return self._today.get(repo_id.lower())

    def locate(self, path: str) -> tuple[str, list[str]]:
        """Split a quoted path below a route into the repository id and the quoted parts after it.

        An id has one part or two, so a one-part id is told by being known.
        """
        parts = path.split("/")
        first = unquote(parts[0])
        if len(parts) < 2 or self.today(first):
            return first, parts[1:]
        return f"{first}/{unquote(parts[1])}", parts[2:]


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _folder_listing(path: str) -> dict[str, Any]:
    oid = hashlib.sha1(b"tree:" + path.encode(), usedforsecurity=False).hexdigest()
    return {"type": "directory", "oid": oid, "size": 0, "path": path}
