"""Which files of a folder or repository make one checkpoint, by their names alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from attrs import evolve, frozen

from kimi_inspect.errors import (
    AmbiguousCheckpointError,
    InvalidSourceError,
    NoCheckpointError,
    SourceFileNotFoundError,
)
from kimi_inspect.index_file import WeightMap, indexed_path
from kimi_inspect.set_names import is_copy, is_draft, is_side, quant_label, variant_of
from kimi_inspect.sidecars import ShardName
from kimi_inspect.sources import ListedFile
from kimi_inspect.text import printable

__all__ = ["FileSet", "Shelves", "as_globs", "choose_set", "matching", "sort_out"]

SUFFIXES = {".safetensors": "safetensors", ".gguf": "gguf"}
"""File name endings of weight files, and the format they stand for."""

PIPELINE = "pipeline"
"""What the set is called whose parts stand in folders, as diffusers and sentence-transformers keep them."""


@frozen(kw_only=True)
class FileSet:
    """The weight files of one checkpoint.

    Attributes:
        name: what to call it, as in ``owner/name:NAME``.
        format: ``safetensors`` or ``gguf``.
        files: its files, in the order of their numbers.
        default: the one that is opened when none is asked for.
        maps: the indexes that put its files together where their names do not.
        folders: of a pipeline, those of its parts.
    """

    name: str
    format: str
    files: tuple[ListedFile, ...]
    default: bool = False
    maps: tuple[WeightMap, ...] = ()
    folders: tuple[str, ...] = ()

    @property
    def first_name(self) -> str:
        """The path that its name and place among others are taken from."""
        whole = indexed_path(self.maps[0].path) if self.maps and not self.folders else None
        return whole or self.files[0].path

    @property
    def file_count(self) -> int:
        """Files that are there."""
        return len(self.files)

    @property
    def file_bytes(self) -> int | None:
        """Their sizes together; None if one is not known."""
        sizes = [file.size for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)


@frozen(kw_only=True)
class Shelves:
    """The weight files of a listing, sorted.

    Attributes:
        sets: checkpoints, the default one first.
        side: files that go by the names of side files.
    """

    sets: tuple[FileSet, ...]
    side: tuple[FileSet, ...]

    @property
    def all(self) -> tuple[FileSet, ...]:
        """Everything that can be opened by name."""
        return self.sets + self.side


def sort_out(
    files: Iterable[ListedFile],
    known: Mapping[str, bool] | None = None,
    *,
    folders: Sequence[str] = (),
    maps: Sequence[WeightMap] = (),
) -> Shelves:
    """Sort weight files into sets.

    Args:
        files: a listing.
        known: by path, whether a file is a side file, where more is known than its name.
        folders: those whose weights make one checkpoint together.
        maps: the indexes that may put files together that names do not.
    """
    found = _by_indexes(list(_by_name(files)), maps)
    side = [one for one in found if (known or {}).get(one.files[0].path, _is_side(one))]
    sets = [one for one in found if one not in side]
    if not sets:
        sets, side = side, []
    if folders:
        sets = _assembled(sets, folders)
    ordered = _labelled(sorted(sets, key=_preference))
    certain = len(ordered) == 1 or any(one.format == "safetensors" for one in ordered)
    return Shelves(
        sets=tuple(evolve(one, default=certain and index == 0) for index, one in enumerate(ordered)),
        side=tuple(side),
    )


def _is_side(found: FileSet) -> bool:
    path = found.files[0].path
    return is_side(path) if found.format == "gguf" else is_draft(path) and not found.maps


def _by_name(files: Iterable[ListedFile]) -> Iterator[FileSet]:
    """Group files by folder, stem, variant and the number of files that their names tell."""
    groups: dict[tuple[str, str, int | None], list[ListedFile]] = {}
    for file in files:
        name = ShardName.of(file.path)
        if name.stem.startswith("."):
            continue  # what some systems keep beside a file
        for suffix in filter(file.path.endswith, SUFFIXES):
            groups.setdefault((name.set_name, suffix, name.count), []).append(file)
    for (set_name, suffix, count), members in groups.items():
        same = [other for other in groups if other[0] == set_name]
        counts = f"-of-{count}" if count is not None and len({other[2] for other in same}) > 1 else ""
        ending = suffix if suffix == ".gguf" and len({other[1] for other in same}) > 1 else ""
        yield FileSet(
            name=set_name + counts + ending,
            format=SUFFIXES[suffix],
            files=tuple(sorted(members, key=_number)),
        )


def _by_indexes(sets: Sequence[FileSet], maps: Sequence[WeightMap]) -> list[FileSet]:
    """Put those sets together of which an index names files, as `from_pretrained` does, whatever they are called."""
    found = list(sets)
    for one in maps:
        files = one.files or frozenset()
        members: list[FileSet] = []
        others: list[FileSet] = []
        for each in found:
            named = each.format == "safetensors" and any(file.path in files for file in each.files)
            (members if named else others).append(each)
        if not members:
            continue
        name = ShardName.of(indexed_path(one.path) or one.path).set_name
        together = FileSet(
            name=members[0].name if name in {each.name for each in others} else name,
            format="safetensors",
            files=tuple(sorted((file for each in members for file in each.files), key=_naturally)),
            maps=(one,),
        )
        found = [*others, together]
    return found


def _naturally(file: ListedFile) -> list[str | int]:
    """Order paths by the numbers in them: names without a count have no other order."""
    parts = re.split("([0-9]{1,9})", file.path)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)]


def _number(file: ListedFile) -> tuple[int, str]:
    return ShardName.of(file.path).number or 0, file.path


def _labelled(sets: Sequence[FileSet]) -> list[FileSet]:
    """Call GGUF sets by their quantization where that tells them apart."""
    labels = [
        quant_label(one.files[0].path) if one.format == "gguf" and not is_side(one.files[0].path) else None
        for one in sets
    ]
    taken = [label or one.name for label, one in zip(labels, sets, strict=True)]
    return [
        evolve(one, name=label) if label and taken.count(label) == 1 else one
        for one, label in zip(sets, labels, strict=True)
    ]


def _preference(found: FileSet) -> tuple[object, ...]:
    """Order sets as `from_pretrained` prefers them.

    safetensors before GGUF; a pipeline before its parts; the root before folders; plain before variants and copies in
    another layout; `model` before other names; one file before many; then by name.
    """
    path = ShardName.of(found.first_name)
    return (
        found.format != "safetensors",
        found.name != PIPELINE,
        path.folder.count("/"),
        variant_of(found.first_name) is not None,
        is_copy(path.set_name),
        is_draft(found.first_name) and found.format == "safetensors",
        path.stem != "model",
        path.set_name,
        path.count is not None,
        path.count or 0,
    )


def _assembled(sets: Sequence[FileSet], folders: Sequence[str]) -> list[FileSet]:
    """Make one set of the parts of a pipeline, and one for each variant of which there are parts."""
    parts: dict[str, list[FileSet]] = {}
    for one in sorted(sets, key=_preference):
        folder = ShardName.of(one.files[0].path).folder.rstrip("/")
        if folder in folders and one.format == "safetensors":
            parts.setdefault(folder, []).append(one)
    if not parts:
        return list(sets)
    plain = [found[0] for found in parts.values()]
    made = [_joined(PIPELINE, plain)]
    used = set(map(id, plain))
    variants = {one.files[0].path: variant_of(one.first_name) for found in parts.values() for one in found}
    for variant in sorted({name for name in variants.values() if name and "" not in folders}):
        members = [
            next((one for one in found if variants[one.files[0].path] == variant), found[0]) for found in parts.values()
        ]
        if members != plain:
            made.append(_joined(f"{PIPELINE}.{variant}", members))
            used.update(map(id, members))
    return [*made, *(one for one in sets if id(one) not in used)]


def _joined(name: str, parts: Sequence[FileSet]) -> FileSet:
    return FileSet(
        name=name,
        format="safetensors",
        files=tuple(file for part in parts for file in part.files),
        maps=tuple(one for part in parts for one in part.maps),
        folders=tuple(ShardName.of(part.files[0].path).folder.rstrip("/") for part in parts),
    )


def choose_set(
    listing: Sequence[ListedFile],
    *,
    source: str,
    name: str | None = None,
    member: str | None = None,
    globs: Sequence[str] = (),
    known: Mapping[str, bool] | None = None,
    folders: Sequence[str] = (),
    maps: Sequence[WeightMap] = (),
) -> FileSet:
    """Choose one set: by name, by a file in it, by globs on the paths, or the default.

    Raises:
        NoCheckpointError: there is none such.
        AmbiguousCheckpointError: none is asked for, and none of several is the default.
    """
    shelves = sort_out(matching(listing, globs), known, folders=folders, maps=maps)
    if not shelves.sets:
        raise _nothing(listing, source, globs)
    if member is not None:
        asked = [one for one in shelves.all if any(file.path == member for file in one.files)]
        if not any(file.path == member for file in listing):
            raise SourceFileNotFoundError("there is no such file", file=member)
    elif name is not None:
        asked = _by_set_name(shelves.all, name)
    else:
        asked = [one for one in shelves.sets if one.default]
        if not asked:
            raise _ambiguous(shelves.sets, source)
    if not asked:
        names = ", ".join(one.name for one in shelves.sets)
        raise NoCheckpointError("no such set; `ls` shows them", file=source, expected=name or member, actual=names)
    return asked[0]


def _nothing(listing: Sequence[ListedFile], source: str, globs: Sequence[str]) -> NoCheckpointError:
    weights = sum(file.path.endswith(tuple(SUFFIXES)) for file in listing)
    missed = f"{_files(weights)} of weights that no glob fits" if globs and weights else ""
    return NoCheckpointError(
        "no safetensors or GGUF file matches" if globs else "no safetensors or GGUF file is there",
        file=source,
        expected=" or ".join(globs) or "a file ending in .safetensors or .gguf",
        actual=missed or (f"{_files(len(listing))} of other kinds" if listing else "nothing"),
    )


def _by_set_name(sets: Sequence[FileSet], name: str) -> list[FileSet]:
    """Return the sets that go by a name: as `ls` shows it, or as their files are named; in any case if in no other."""
    long = [(one, {one.name, ShardName.of(one.files[0].path).set_name}) for one in sets]
    exact = [one for one in sets if one.name == name] or [one for one, names in long if name in names]
    return exact or [one for one, names in long if name.casefold() in {each.casefold() for each in names}]


def _ambiguous(sets: Sequence[FileSet], source: str) -> AmbiguousCheckpointError:
    lines = [f"{one.name} ({_size(one.file_bytes)}, {_files(one.file_count)})" for one in sets]
    return AmbiguousCheckpointError(
        f"there are {len(sets)} checkpoints, and none comes before the others; name one after a colon: "
        + printable(", ".join(lines)),
        file=source,
        expected="SOURCE:SET, or files=",
        actual=[one.name for one in sets],
    )


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"


def _size(nbytes: int | None) -> str:
    if nbytes is None:
        return "size unknown"
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if nbytes >= unit:
            return f"{nbytes / unit:,.1f} {name}"
    return f"{nbytes} bytes"


def as_globs(wanted: str | Sequence[str] | None) -> list[str]:
    """Return globs that a caller gives, be it one or several.

    Raises:
        InvalidSourceError: an empty list: nothing fits it, and who made it may have meant something else.
    """
    if wanted is None:
        return []
    globs = [wanted] if isinstance(wanted, str) else list(wanted)
    if not globs:
        raise InvalidSourceError("a list of no globs fits no file; leave files out for all")
    return globs


def matching(listing: Sequence[ListedFile], globs: Sequence[str]) -> Sequence[ListedFile]:
    """Return the files that one of the globs fits, as `allow_patterns` of huggingface_hub does; all without globs."""
    if not globs:
        return listing
    from huggingface_hub.utils import filter_repo_objects

    return list(filter_repo_objects(listing, allow_patterns=list(globs), key=lambda file: file.path))
