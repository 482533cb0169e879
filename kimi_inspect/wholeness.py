"""Whether a set of files is whole, by the numbers in its names and by those in its parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from kimi_inspect.findings import finding
from kimi_inspect.pipelines import Pipeline
from kimi_inspect.sets import FileSet
from kimi_inspect.sidecars import MAX_SHARDS, ShardName
from kimi_inspect.values import Finding

__all__ = ["missing_parts", "missing_shards", "split_findings"]

UNFINISHED = (".incomplete", ".part", ".crdownload", ".aria2", ".tmp")
"""What downloading programs put behind the name of a file that is not whole yet."""


def missing_shards(
    chosen: FileSet, others: Collection[str] = (), *, places: Mapping[str, int] | None = None
) -> Iterator[Finding]:
    """Yield what the names of a set, or its index, promise and that is not there, and numbers beyond what they promise.

    Args:
        chosen: the set; of a pipeline's set, the parts in each folder.
        others: paths of all files in the listing, for unfinished downloads among them.
        places: by path, the place that a part itself says it has, from 0.
    """
    groups: dict[tuple[str, int | None], list[ShardName]] = {}
    for file in chosen.files:
        name = ShardName.of(file.path)
        groups.setdefault((name.set_name, name.count), []).append(name)
    for names in groups.values():
        yield from _missing(names, set(others), places or {})
    there = {*others, *(file.path for file in chosen.files)}
    for files in (one.files for one in chosen.maps if one.files):
        absent = [ShardName.of(path) for path in sorted(files - there)]
        # Those that names promise too are told already.
        missing = [name.path for name in absent if name.count is None or (name.set_name, name.count) not in groups]
        if missing:
            yield _lacking(missing, len(files), set(others), "that the index names ")


def missing_parts(pipeline: Pipeline) -> Iterator[Finding]:
    """Yield the parts of a pipeline that have weights by their class, and no file of them is there."""
    for folder in pipeline.bare:
        message = f"{pipeline.index} declares this part, and no weights of it are there; totals are of what is there"
        yield finding("shard-missing", folder or "root folder", message)


def _missing(names: Sequence[ShardName], others: set[str], places: Mapping[str, int]) -> Iterator[Finding]:
    count, numbers = names[0].count, {name.number for name in names}
    if count is None or count > MAX_SHARDS:
        return
    first = _first_number(names, places)
    strays = [name.path for name in names if name.number is None or not first <= name.number < first + count]
    if strays:
        message = f"a file is numbered beyond the {count} that there are"
        yield finding("shard-order", strays[0], message, file=strays[0], count=len(strays), examples=strays)
    shortest = min(names, key=lambda name: name.digits)
    missing = [shortest.sibling(number) for number in range(first, first + count) if number not in numbers]
    if missing:
        yield _lacking(missing, count, others)


def _lacking(missing: Sequence[str], count: int, others: Collection[str], which: str = "") -> Finding:
    message = f"{len(missing)} of {count} files {which}are not there; totals are of what is there"
    unfinished = [path + ending for path in missing for ending in UNFINISHED if path + ending in others]
    if unfinished:
        message += f"; an unfinished download lies beside: {unfinished[0]}"
    return finding(
        "shard-missing",
        missing[0],
        message,
        file=missing[0],
        expected=count,
        actual=count - len(missing),
        count=len(missing),
        examples=missing,
    )


def _first_number(names: Sequence[ShardName], places: Mapping[str, int]) -> int:
    """Return the number that the first file bears: 1, or 0 where some tool counts from there.

    The names tell, where all files are there; else the parts, if they agree on it.
    """
    count, numbers = names[0].count or 1, {name.number for name in names}
    by_names = 0 if 0 in numbers and count not in numbers else 1
    told = {name.number - places[name.path] for name in names if name.number is not None and name.path in places}
    whole = len([number for number in numbers if number is not None and 0 <= number - by_names < count]) == count
    return by_names if whole or len(told) != 1 or not told <= {0, 1} else told.pop()


def split_findings(parts: Sequence[tuple[str, Mapping[str, Any], int]], *, whole: bool) -> Iterator[Finding]:
    """Yield where the numbers that GGUF parts bear in name and metadata disagree.

    The keys are llama.cpp's: `split.no` counts from 0, `split.count` is the number of parts, `split.tensors.count` the
    tensors in all of them.

    Args:
        parts: path, metadata and number of tensors of each part that was read.
        whole: no part is missing or unread.
    """
    names = [ShardName.of(path) for path, _, _ in parts]
    yield from _order_findings(parts, names)
    counts = list(_count_findings(parts, names))
    yield from counts
    if not whole or any(item.code == "shard-missing" for item in counts):
        return
    stored = sum(tensors for _, _, tensors in parts)
    wrong = [
        (path, metadata["split.tensors.count"])
        for path, metadata, _ in parts
        if metadata.get("split.tensors.count") not in (None, stored)
    ]
    if wrong:
        path, declared = wrong[0]
        message = "the parts declare another number of tensors than they hold"
        yield finding("tensor-total-wrong", path, message, file=path, expected=declared, actual=stored)


def _order_findings(
    parts: Sequence[tuple[str, Mapping[str, Any], int]], names: Sequence[ShardName]
) -> Iterator[Finding]:
    """Find parts whose `split.no` is not the place that the name gives, and numbers that two files bear."""
    places = {path: metadata["split.no"] for path, metadata, _ in parts if type(metadata.get("split.no")) is int}
    base = _first_number(names, places) if names else 1
    wrong = [
        (path, name.number - base, metadata["split.no"])
        for (path, metadata, _), name in zip(parts, names, strict=True)
        if name.number is not None and metadata.get("split.no") not in (None, name.number - base)
    ]
    if wrong:
        path, expected, actual = wrong[0]
        message = "the part says by split.no that it stands elsewhere than its name says; parts are renumbered or mixed"
        yield finding(
            "shard-order",
            path,
            message,
            file=path,
            expected=expected,
            actual=actual,
            count=len(wrong),
            examples=[item[0] for item in wrong],
        )
    twice = [number for number, times in Counter(name.number for name in names).items() if times > 1]
    if twice and names[0].count is not None:
        paths = [path for (path, _, _), name in zip(parts, names, strict=True) if name.number in twice]
        yield finding(
            "shard-order",
            paths[0],
            "two files bear the same number in one set",
            file=paths[0],
            count=len(paths),
            examples=paths,
        )


def _count_findings(
    parts: Sequence[tuple[str, Mapping[str, Any], int]], names: Sequence[ShardName]
) -> Iterator[Finding]:
    """Find parts whose `split.count` is not the number in their names; a part alone under a plain name lacks others."""
    wrong = [
        (path, name.count, metadata["split.count"])
        for (path, metadata, _), name in zip(parts, names, strict=True)
        if metadata.get("split.count") not in (None, name.count, *((0, 1) if name.count is None else ()))
    ]
    if not wrong:
        return
    path, expected, actual = wrong[0]
    alone = expected is None
    message = (
        f"it is one of {actual} parts, and its name does not tell the others; loaders find none of them"
        if alone
        else "the part says by split.count that there are others than its name says"
    )
    yield finding(
        "shard-missing" if alone else "split-count-disagrees",
        path,
        message,
        file=path,
        expected=actual if alone else expected,
        actual=1 if alone else actual,
        count=len(wrong),
        examples=[item[0] for item in wrong],
    )
