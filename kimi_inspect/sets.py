"""Which files of a folder or repository make one checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen

from kimi_inspect.errors import NoCheckpointError
from kimi_inspect.findings import finding
from kimi_inspect.sidecars import MAX_SHARDS, ShardName
from kimi_inspect.sources import ListedFile
from kimi_inspect.values import Finding

__all__ = ["FileSet", "choose_set", "find_sets", "matching", "missing_shards"]

SUFFIXES = {".safetensors": "safetensors"}
"""File name endings of weight files, and the format they stand for."""


@frozen(kw_only=True)
class FileSet:
    """The weight files of one checkpoint.

    Attributes:
        name: what to call it, as in ``owner/name:NAME``.
        format: ``safetensors``.
        files: its files, in the order of their numbers.
        default: `from_pretrained` would load this one.
    """

    name: str
    format: str
    files: tuple[ListedFile, ...]
    default: bool = False

    @property
    def file_count(self) -> int:
        """Files that are there."""
        return len(self.files)

    @property
    def file_bytes(self) -> int | None:
        """Their sizes together; None if one is not known."""
        sizes = [file.size for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)


def find_sets(files: Iterable[ListedFile]) -> tuple[FileSet, ...]:
    """Sort weight files into sets, the default one first, then by name."""
    groups: dict[tuple[str, str, int | None], list[ListedFile]] = {}
    for file in files:
        name = ShardName.of(file.path)
        for suffix in filter(file.path.endswith, SUFFIXES):
            groups.setdefault((name.set_name, suffix, name.count), []).append(file)
    ordered = sorted(groups, key=_preference)
    return tuple(
        FileSet(
            name=_distinct(group, groups),
            format=SUFFIXES[group[1]],
            files=tuple(sorted(groups[group], key=_number)),
            default=index == 0,
        )
        for index, group in enumerate(ordered)
    )


def _preference(group: tuple[str, str, int | None]) -> tuple[object, ...]:
    """Order sets as `from_pretrained` prefers them: the root, `model`, one file before many, then by name."""
    name, suffix, count = group
    return name.count("/"), name.rpartition("/")[2] != "model", name, count is not None, count or 0, suffix


def _distinct(group: tuple[str, str, int | None], groups: Iterable[tuple[str, str, int | None]]) -> str:
    """Return the set's name, with its file count where another set bears the same name."""
    name, _, count = group
    same = sum(other[0] == name for other in groups)
    return name if same == 1 or count is None else f"{name}-of-{count}"


def _number(file: ListedFile) -> tuple[int, str]:
    return ShardName.of(file.path).number or 0, file.path


def choose_set(
    listing: Sequence[ListedFile],
    *,
    source: str,
    name: str | None = None,
    member: str | None = None,
    globs: Sequence[str] = (),
) -> FileSet:
    """Choose one set: by name, by a file in it, by globs on the paths, or the default.

    Raises:
        NoCheckpointError: there is none such.
    """
    files = matching(listing, globs)
    sets = find_sets(files)
    if not sets:
        raise NoCheckpointError(
            "no safetensors file matches" if globs else "no safetensors file is there",
            file=source,
            expected=" or ".join(globs) or "a file ending in .safetensors",
            actual=f"{len(listing)} files of other kinds" if listing else "nothing",
        )
    if member is not None:
        sets = tuple(found for found in sets if any(file.path == member for file in found.files))
    if name is not None:
        sets = tuple(found for found in sets if found.name == name)
    if not sets:
        names = ", ".join(found.name for found in find_sets(files))
        raise NoCheckpointError("no such set; `ls` shows them", file=source, expected=name or member, actual=names)
    return sets[0]


def matching(listing: Sequence[ListedFile], globs: Sequence[str]) -> Sequence[ListedFile]:
    """Return the files that one of the globs fits, as `allow_patterns` of huggingface_hub does; all without globs."""
    if not globs:
        return listing
    from huggingface_hub.utils import filter_repo_objects

    return list(filter_repo_objects(listing, allow_patterns=list(globs), key=lambda file: file.path))


def missing_shards(chosen: FileSet) -> list[Finding]:
    """Find the files that the names of a set promise and that are not there."""
    first = ShardName.of(chosen.files[0].path)
    if first.count is None or first.count > MAX_SHARDS:
        return []
    there = {ShardName.of(file.path).number for file in chosen.files}
    missing = [first.sibling(number) for number in range(1, first.count + 1) if number not in there]
    if not missing:
        return []
    message = f"{len(missing)} of {first.count} files are not there; totals are of what is there"
    return [
        finding(
            "shard-missing",
            missing[0],
            message,
            file=missing[0],
            expected=first.count,
            actual=first.count - len(missing),
            count=len(missing),
            examples=missing,
        )
    ]
