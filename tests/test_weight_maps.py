"""Files that an index puts together where their names do not, as `from_pretrained` follows its weight_map."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from contracts.checks import REPO

from kimi_inspect import Checkpoint, Severity, audit, lock, open_checkpoint
from kimi_inspect.index_file import WeightMap, indexed_path
from kimi_inspect.opening import list_sets
from kimi_inspect.sets import sort_out
from kimi_inspect.sources import ListedFile, MappedFiles
from kimi_inspect.testing import HollowFile, LoopbackHub, Repository, TensorSpec, faults, hollow_safetensors
from kimi_inspect.weight_maps import weight_maps

Files = dict[str, HollowFile]

INDEX = "model.safetensors.index.json"
NAMES = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]


def shard(*tensors: str) -> HollowFile:
    return hollow_safetensors([TensorSpec(name, "BF16", (8, 8)) for name in tensors])


def index(entries: Mapping[str, str]) -> HollowFile:
    metadata = {"total_size": 128 * len(entries)}
    return HollowFile(json.dumps({"metadata": metadata, "weight_map": dict(entries)}).encode())


def split(paths: Sequence[str], *, at: str = INDEX) -> Files:
    """Return a model with one tensor in each file, and its index."""
    folder = at.rpartition("/")[0]
    prefix = f"{folder}/" if folder else ""
    files = {prefix + path: shard(name) for path, name in zip(paths, NAMES, strict=False)}
    return {**files, at: index(dict(zip(NAMES, paths, strict=False)))}


def found(content: Files, *, files: str | None = None) -> tuple[str, list[str], list[str], tuple[str, ...]]:
    """Open it by itself and from a hub; the same comes out."""
    here = open_checkpoint(content, files=files)
    with LoopbackHub([Repository(REPO, content)]) as hub:
        there = open_checkpoint(REPO, endpoint=hub.endpoint, files=files)
        if files is None:
            listed = list_sets(REPO, endpoint=hub.endpoint).sets
            assert [(one.name, one.file_count) for one in listed if one.default] == [
                (there.set_name, len(there.shards))
            ]
            assert {one.name for one in listed} == {there.set_name, *there.other_sets}
    assert told(here) == told(there)
    return told(here)


def told(checkpoint: Checkpoint) -> tuple[str, list[str], list[str], tuple[str, ...]]:
    codes = [item.code for item in checkpoint.findings if item.severity is not Severity.INFO]
    assert checkpoint.complete is ("shard-missing" not in codes)
    return checkpoint.set_name, [one.path for one in checkpoint.shards], codes, checkpoint.other_sets


NAMINGS = [
    ["layers-0.safetensors", "layers-1.safetensors"],
    ["layers-2.safetensors", "layers-10.safetensors"],
    ["weights.00.safetensors", "weights.01.safetensors"],
    ["shard_0.safetensors", "shard_1.safetensors"],
    ["model.00-of-02.safetensors", "model.01-of-02.safetensors"],
    ["pytorch_model-00000-TP-common.safetensors", "pytorch_model-00001-TP-000.safetensors"],
    ["model_0.safetensors", "model_mtp.safetensors"],
    # Numbered files and others.
    ["language-00001-of-00002.safetensors", "language-00002-of-00002.safetensors", "vision.safetensors"],
    ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model_extra_tensors.safetensors"],
    ["a-1-of-1.safetensors", "b-1-of-1.safetensors"],
]


@pytest.mark.parametrize("paths", NAMINGS)
def test_the_set_is_what_the_index_names(paths: list[str]) -> None:
    assert found(split(paths)) == ("model", paths, [], ())


@pytest.mark.parametrize("paths", NAMINGS)
def test_a_file_that_the_index_does_not_name_is_a_set_of_its_own(paths: list[str]) -> None:
    files = {**split(paths), "adapter_model.safetensors": shard("a")}
    assert found(files) == ("model", paths, [], ("adapter_model",))


@pytest.mark.parametrize("gone", [0, 1])
@pytest.mark.parametrize("paths", NAMINGS[:7])
def test_a_file_that_the_index_names_is_missing(paths: list[str], gone: int) -> None:
    files = split(paths)
    del files[paths[gone]]
    assert found(files) == ("model", [paths[1 - gone]], ["shard-missing"], ())
    (item,) = [item for item in open_checkpoint(files).findings if item.severity is Severity.ERROR]
    assert (item.file, item.expected, item.actual, item.count) == (paths[gone], 2, 1, 1)


def test_files_that_names_and_index_promise_are_told_once() -> None:
    first, second, extra = NAMINGS[8]
    files = split(NAMINGS[8])
    del files[second]
    assert found(files) == ("model", [first, extra], ["shard-missing"], ())


def test_numbers_may_be_others_than_the_count_says_if_the_index_says_so() -> None:
    paths = ["x-00001-of-00003.safetensors", "x-00002-of-00003.safetensors", "y.safetensors"]
    assert found(split(paths)) == ("model", paths, [], ())


def test_a_part_chosen_on_purpose_lacks_nothing() -> None:
    files = split(NAMINGS[0])
    assert found(files, files="*-0*") == ("model", ["layers-0.safetensors"], [], ())
    assert found(files, files="*.safetensors") == ("model", NAMINGS[0], [], ())


def test_a_folder_below_and_a_pipeline() -> None:
    files = split(NAMINGS[0], at="unet/x.safetensors.index.json")
    paths = [f"unet/{path}" for path in NAMINGS[0]]
    assert found(files) == ("unet/x", paths, [], ())
    both = {**files, "model_index.json": HollowFile(b"{}"), "vae/x.safetensors": shard("b")}
    assert found(both) == ("pipeline", [*paths, "vae/x.safetensors"], [], ())
    del both[paths[1]]
    assert found(both) == ("pipeline", [paths[0], "vae/x.safetensors"], ["shard-missing"], ())


def test_it_is_opened_by_its_name_or_a_file_of_it(tmp_path: Path) -> None:
    for path, file in split(NAMINGS[0]).items():
        file.write_to(tmp_path / path)
    shard("a").write_to(tmp_path / "other.safetensors")
    for name in ("model", "layers-0"):
        assert [one.path for one in open_checkpoint(f"{tmp_path}:{name}").shards] == NAMINGS[0]
    assert [one.path for one in open_checkpoint(f"{tmp_path}:other").shards] == ["other.safetensors"]


def test_a_manifest_of_such_a_set_is_one_set(tmp_path: Path) -> None:
    files = {**split(NAMINGS[0]), "other.safetensors": shard("a")}
    for path, file in files.items():
        file.write_to(tmp_path / path)
    manifest = lock(tmp_path, journal=False)
    whole = audit(tmp_path, against=manifest)
    assert (whole.verdict, whole.shard_count) == ("faithful", 2)
    files["layers-1.safetensors"] = shard("lm_head.weight")
    files["layers-1.safetensors"].write_to(tmp_path / "layers-1.safetensors")
    changed = {item.code for item in audit(tmp_path, against=manifest).findings}
    assert "shard-differs" in changed


# ---- where names leave no doubt, no index is read


def listed(*paths: str) -> list[ListedFile]:
    return [ListedFile(path=path, size=1) for path in paths]


NUMBERED = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


@pytest.mark.parametrize(
    "paths",
    [
        [],
        NUMBERED,
        ["model_00001-of-00002.safetensors", "model_00002-of-00002.safetensors"],
        ["other-1-of-2.safetensors", "other-2-of-2.safetensors"],
        ["model.safetensors", "a.safetensors", "b.safetensors"],
        [*NUMBERED, "consolidated.safetensors"],
        [*NUMBERED, "model-00001-of-00001.fp16.safetensors", "x.fp16.safetensors"],
        [*NUMBERED, "mtp.safetensors"],
        [*NUMBERED, "x.gguf", "folder/x.safetensors"],
    ],
)
def test_no_doubt(paths: list[str]) -> None:
    assert weight_maps(MappedFiles({}), listed(INDEX, *paths)) == ()


@pytest.mark.parametrize("paths", NAMINGS)
def test_an_index_in_doubt_is_read_once(paths: list[str]) -> None:
    with LoopbackHub([Repository(REPO, split(paths))]) as hub:
        open_checkpoint(REPO, endpoint=hub.endpoint)
        assert len([one for one in hub.log if "/resolve/" in one.target and INDEX in one.target]) == 1


def test_no_index_joins_nothing() -> None:
    files = {path: file for path, file in split(NAMINGS[0]).items() if path != INDEX}
    assert found(files) == ("layers-0", NAMINGS[0][:1], [], ("layers-1",))


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"<html>", b'{"weight_map": {"a": 1}}', b"\xff"])
def test_a_broken_index_joins_nothing_and_is_told(text: bytes) -> None:
    files = {**split(NAMINGS[0]), INDEX: HollowFile(text)}
    assert found(files) == ("layers-0", NAMINGS[0][:1], ["index-unreadable"], ("layers-1",))
    extra = {**split(NAMINGS[8]), INDEX: HollowFile(text)}
    name, paths, codes, others = told(open_checkpoint(extra))
    assert (name, paths, codes, others) == ("model", NUMBERED, ["index-unreadable"], ("model_extra_tensors",))


def test_an_index_that_the_hub_does_not_give_joins_nothing_and_is_told() -> None:
    with LoopbackHub([Repository(REPO, split(NAMINGS[0]))]) as hub:
        hub.play(faults.refused("gated-anonymous"), path="index.json")
        assert told(open_checkpoint(REPO, endpoint=hub.endpoint))[2] == ["index-unreadable"]


@pytest.mark.parametrize("place", ["../x.safetensors", "/etc/x.safetensors", "", "a//b", "..\\x"])
def test_an_index_that_leads_outside_promises_nothing_there(place: str) -> None:
    files = split(NAMINGS[0])
    files[INDEX] = index({**dict(zip(NAMES, NAMINGS[0], strict=False)), "x": place})
    with LoopbackHub([Repository(REPO, files)]) as hub:
        assert told(open_checkpoint(REPO, endpoint=hub.endpoint)) == ("model", NAMINGS[0], [], ())


def test_an_index_of_more_files_than_any_is_not_believed() -> None:
    files = split(NAMINGS[0])
    files[INDEX] = index({f"{number}": f"{number}.safetensors" for number in range(10_001)})
    assert found(files)[2] == ["index-unreadable"]


def test_an_index_of_files_that_are_not_there_joins_nothing() -> None:
    files = {**split(NAMINGS[0]), INDEX: index({"a": "x.safetensors"})}
    assert found(files) == ("layers-0", NAMINGS[0][:1], [], ("layers-1",))


def test_no_two_sets_have_one_name() -> None:
    maps = [WeightMap(INDEX, frozenset(NAMINGS[0]))]
    sets = sort_out(listed(*NUMBERED, *NAMINGS[0]), maps=maps).sets
    assert [(one.name, one.file_count) for one in sets] == [("layers-0", 2), ("model", 2)]


@pytest.mark.parametrize(
    ("path", "whole"),
    [
        (INDEX, "model.safetensors"),
        ("a/x.fp16.safetensors.index.json", "a/x.fp16.safetensors"),
        ("a/x.safetensors.index.fp16.json", "a/x.fp16.safetensors"),
        ("model_index.json", None),
        ("pytorch_model.bin.index.json", None),
        ("model.safetensors", None),
    ],
)
def test_names_of_indexes(path: str, whole: str | None) -> None:
    assert indexed_path(path) == whole
