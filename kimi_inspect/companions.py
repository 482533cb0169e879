"""Side files beside a checkpoint: found by what their metadata say, and chosen among alternatives.

A GGUF file says itself what it is: `general.type` and `general.architecture` of llama.cpp's converter. Names only say
where to look: files that bear the checkpoint's own name are its other quantizations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from kimi_inspect.errors import KimiInspectError, NoCheckpointError
from kimi_inspect.gguf import read_gguf_kind
from kimi_inspect.planning import run
from kimi_inspect.reading import ReadOptions, workers
from kimi_inspect.set_names import base_name, is_side, quant_label
from kimi_inspect.sets import FileSet, Shelves, as_globs, matching
from kimi_inspect.sources import FileStore, ListedFile
from kimi_inspect.values import Companion

__all__ = ["IMATRIX", "SideFile", "chosen_sides", "companions_of", "look_into", "role_of", "side_files"]

VISION, DRAFT, OTHER = "vision", "draft", "other"
UNREAD = "unread"
IMATRIX = "imatrix"
"""Statistics for quantization: neither a checkpoint nor a side file of one."""

MAX_GROUPS = 3
"""Groups of like-named files, beside the checkpoint's own, that are looked into whatever their names; where there are
more, a repository holds models of their own, and only those named like side files are."""

MAX_SIDES = 8
"""Groups named like side files that are looked into."""

_TYPES = {"imatrix": IMATRIX, "adapter": OTHER, "vocab": OTHER}
_DRAFT_ARCHITECTURES = ("eagle", "eagle3", "mtp", "medusa", "dflash")
_PRECISIONS = ("bf16", "f16", "fp16", "f32", "fp32")
"""Precisions of one side file, from the one to count on."""


@frozen(kw_only=True)
class SideFile:
    """A file set that is no model of its own, and its role."""

    files: FileSet
    role: str

    @property
    def alternative(self) -> tuple[str, str]:
        """What all precisions of one side file share; a model sees through one vision encoder."""
        return self.role, "" if self.role == VISION else base_name(self.files.files[0].path)

    @property
    def rank(self) -> tuple[int, int, str]:
        """Order among alternatives: by precision, then the largest."""
        label = (quant_label(self.files.files[0].path) or "").lower()
        place = _PRECISIONS.index(label) if label in _PRECISIONS else len(_PRECISIONS)
        return place, -(self.files.file_bytes or 0), self.files.name


def look_into(
    store: FileStore, shelves: Shelves, chosen: FileSet | None, options: ReadOptions
) -> dict[str, str | None]:
    """Read of GGUF sets that may be side files what they are.

    Args:
        store: where they are.
        shelves: all sets by their names.
        chosen: the set to be opened; None while that is open.
        options: how to read.

    Returns:
        By the path of a set's first file its role; None for a model of its own. What cannot be read is left out.
    """
    if chosen is not None and chosen.format != "gguf":
        return {}
    groups = _groups(shelves, chosen, free=store.origin is None)
    looks = [(group, one) for group in groups for one in _samples(group, store)]
    with workers(store, options.max_workers) as pool:
        kinds = list(pool.map(lambda look: _kind(store, look[1].files[0], options), looks))
    return {
        member.files[0].path: kind
        for (group, one), kind in zip(looks, kinds, strict=True)
        if kind != UNREAD
        for member in (group if len(_samples(group, store)) == 1 else [one])
    }


def _groups(shelves: Shelves, chosen: FileSet | None, *, free: bool) -> list[list[FileSet]]:
    """Return the GGUF sets to look into, those of one base name together; all where looking is `free`."""
    groups: dict[str, list[FileSet]] = {}
    for one in shelves.all:
        if one.format == "gguf" and one != chosen:
            groups.setdefault(base_name(one.files[0].path), []).append(one)
    if free:
        return list(groups.values())
    if chosen is not None:
        groups.pop(base_name(chosen.files[0].path), None)
    elif len(groups) < 2:
        return []
    named = [group for group in groups.values() if is_side(group[0].files[0].path)]
    others = [group for group in groups.values() if group not in named]
    return [*named[:MAX_SIDES], *(others if len(others) <= MAX_GROUPS else [])]


def _samples(group: Sequence[FileSet], store: FileStore) -> Sequence[FileSet]:
    """Return the members of a group to look into: where a look costs a request, the smallest stands for all."""
    return group if store.origin is None else [min(group, key=lambda one: one.file_bytes or 0)]


def _kind(store: FileStore, file: ListedFile, options: ReadOptions) -> str | None:
    """Read what a GGUF file is; None for a model."""
    kept = options.cache.get_kind(file) if options.cache else None
    if kept is not None:
        return role_of(kept)
    try:
        source = store.open(file)
        plan = read_gguf_kind(source.size, file=file.path, max_header_bytes=options.max_header_bytes)
        metadata = run(plan, source.read)
    except KimiInspectError:
        return UNREAD
    if options.cache:
        options.cache.put_kind(file, metadata)
    return role_of(metadata)


def role_of(metadata: Mapping[str, Any]) -> str | None:
    """Return the role that a file's metadata give it; None for a model of its own."""
    kind, architecture = metadata.get("general.type"), metadata.get("general.architecture")
    if isinstance(kind, str) and kind in _TYPES:
        return _TYPES[kind]
    if architecture is None and any(key.startswith("imatrix.") for key in metadata):
        return IMATRIX
    if architecture == "clip" or kind == "mmproj":
        audio_only = metadata.get("clip.has_audio_encoder") and not metadata.get("clip.has_vision_encoder")
        return OTHER if audio_only else VISION
    return DRAFT if isinstance(architecture, str) and architecture in _DRAFT_ARCHITECTURES else None


def side_files(shelves: Shelves, chosen: FileSet, roles: Mapping[str, str | None]) -> Iterator[SideFile]:
    """Yield the side files of the chosen set: of its format, and no statistics. A side file has none."""
    if is_side(chosen.files[0].path):
        return
    for one in shelves.all:
        role = roles.get(one.files[0].path, _named_role(one) if one in shelves.side else None)
        if role not in (None, IMATRIX) and one.format == chosen.format and one != chosen:
            yield SideFile(files=one, role=str(role))


def _named_role(one: FileSet) -> str | None:
    """Return the role that a name tells, where what is inside does not: safetensors, and what cannot be read."""
    if one.format == "safetensors":
        return DRAFT
    return VISION if "mmproj" in one.files[0].path.lower() else None


def chosen_sides(sides: Sequence[SideFile], wanted: bool | str | Sequence[str]) -> list[SideFile]:
    """Return the side files to count: of alternatives the first by rank, never two.

    Raises:
        NoCheckpointError: globs fit none.

    Args:
        sides: all there are.
        wanted: True for all, False for none, or globs on their paths.
    """
    if not wanted:
        return []
    globs = [] if wanted is True else as_globs(wanted)
    fitting = [one for one in sides if wanted is True or matching(one.files.files, globs)]
    if globs and not fitting:
        names = ", ".join(file.path for one in sides for file in one.files.files)
        raise NoCheckpointError(
            "no side file matches", expected=names or "no glob: there is none", actual=", ".join(globs)
        )
    best: dict[tuple[str, str], SideFile] = {}
    for one in sorted(fitting, key=lambda one: one.rank):
        best.setdefault(one.alternative, one)
    return list(best.values())


def companions_of(sides: Iterable[SideFile], counted: Sequence[SideFile]) -> tuple[Companion, ...]:
    """Return the side files as results name them, by path."""
    found = [
        Companion(path=file.path, bytes=file.size or 0, role=one.role, counted=one in counted)
        for one in sides
        for file in one.files.files
    ]
    return tuple(sorted(found, key=lambda item: item.path))
