"""Repositories that are put together oddly: side files that cannot be read, parts renamed, two sets of one name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from contracts.checks import REPO

from kimi_inspect import Checkpoint, Component, inspect, open_checkpoint
from kimi_inspect.cli import main
from kimi_inspect.errors import AmbiguousCheckpointError
from kimi_inspect.opening import list_sets
from kimi_inspect.set_names import base_name, quant_label
from kimi_inspect.sets import choose_set, sort_out
from kimi_inspect.sources import ListedFile
from kimi_inspect.testing import (
    GgufTensor,
    HollowFile,
    LoopbackHub,
    Repository,
    TensorSpec,
    Typed,
    hollow_gguf,
    hollow_safetensors,
    imatrix_gguf,
    split_gguf,
)

Files = Mapping[str, HollowFile]

NORM = "blk.0.attn_norm.weight"
POINTER = HollowFile(b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 16900000000\n")


def gguf(*names: str, architecture: str = "llama", **metadata: Any) -> HollowFile:
    tensors = [GgufTensor(name, "F32", (8,)) for name in names or [NORM]]
    return hollow_gguf(tensors, {"general.architecture": architecture, **metadata})


def safetensors(name: str) -> HollowFile:
    return hollow_safetensors([TensorSpec(name, "BF16", (8,))])


def split(stem: str, count: int, name: str = "blk.{}.attn_norm.weight", architecture: str = "llama") -> Files:
    parts = [[GgufTensor(name.format(layer), "F32", (8,))] for layer in range(count)]
    return split_gguf(stem, parts, {"general.architecture": architecture})


MODEL: Files = {"x-F32.gguf": gguf()}
CLIP = gguf("v.blk.0.ln1.weight", architecture="clip")
PIPELINE: Files = {"model_index.json": HollowFile(b"{}")}


def remote(content: Files, suffix: str = "", **options: Any) -> Checkpoint:
    """Open a repository; a suffix that begins with a slash makes an address of it."""
    with LoopbackHub([Repository(REPO, content)]) as hub:
        source = f"{hub.endpoint}/{REPO}{suffix}" if suffix.startswith("/") else REPO + suffix
        return open_checkpoint(source, endpoint=hub.endpoint, **options)


def listed(*paths: str, size: int = 1) -> list[ListedFile]:
    return [ListedFile(path=path, size=size) for path in paths]


def codes(checkpoint: Checkpoint) -> list[str]:
    return [item.code for item in checkpoint.findings if item.code != "unclassified"]


# ---- side files


def test_a_side_file_that_cannot_be_read_leaves_the_model_alone() -> None:
    assert remote({**MODEL, "mmproj-F32.gguf": POINTER}).set_name == "F32"


@pytest.mark.parametrize("companions", [False, True])
def test_names_of_a_draft_model_are_its_own(*, companions: bool) -> None:
    names = ("token_embd.weight", NORM)
    files = {"x-F32.gguf": gguf(*names), "heads.gguf": gguf(*names, architecture="eagle3")}
    assert codes(remote(files, companions=companions)) == []


def test_a_draft_model_counts_as_one_whatever_its_tensors_are() -> None:
    with LoopbackHub([Repository(REPO, {**MODEL, "heads.gguf": gguf(architecture="eagle3")})]) as hub:
        alone, both = (inspect(REPO, endpoint=hub.endpoint, companions=counted) for counted in (False, True))
    assert both[Component.NORMS] == alone[Component.NORMS]
    assert (alone[Component.MTP].stored_bytes, both[Component.MTP].stored_bytes) == (0, 32)


def test_no_glob_counts_no_side_file() -> None:
    found = remote({**MODEL, "mmproj-F32.gguf": CLIP}, companions=[])
    assert [one.counted for one in found.companions] == [False]


def test_a_part_of_a_side_file_is_missing() -> None:
    parts = split("mmproj-F32", 2, "v.blk.{}.ln1.weight", "clip")
    whole, cut = (
        {**MODEL, **parts},
        {**MODEL, "mmproj-F32-00001-of-00002.gguf": parts["mmproj-F32-00001-of-00002.gguf"]},
    )
    assert codes(remote(whole, companions=True)) == []
    found = remote(cut, companions=True)
    assert codes(found) == ["shard-missing"]
    assert not found.complete


def test_statistics_beside_a_projector_are_no_checkpoint() -> None:
    assert remote({"mmproj-F32.gguf": CLIP, "imatrix.gguf": imatrix_gguf()}).set_name in ("F32", "mmproj-F32")


def test_a_draft_in_several_files_is_one_side_file() -> None:
    shelves = sort_out(listed("draft-1-of-2.safetensors", "draft-2-of-2.safetensors", "x.safetensors"))
    assert [one.name for one in shelves.sets] == ["x"]
    assert [one.file_count for one in shelves.side] == [2]


@pytest.mark.parametrize("path", ["imatrix.gguf", "x.imatrix.gguf", "folder/x-imatrix.gguf"])
def test_statistics_are_not_listed(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    files = {**MODEL, "mmproj-F32.gguf": CLIP, "y-imatrix-Q4_0.gguf": gguf(), path: imatrix_gguf()}
    with LoopbackHub([Repository(REPO, files)]) as hub:
        listing = list_sets(REPO, endpoint=hub.endpoint)
        assert main(["ls", REPO, "--endpoint", hub.endpoint]) == 0
        alone = list_sets(f"{hub.endpoint}/{REPO}/blob/main/{path}", files=path, endpoint=hub.endpoint)
    assert [one.files[0].path for one in listing.sets] == ["x-F32.gguf"]
    # A name that a model may bear is still one.
    assert [one.files[0].path for one in listing.side] == ["mmproj-F32.gguf", "y-imatrix-Q4_0.gguf"]
    assert path.removesuffix(".gguf") not in capsys.readouterr().out.split()
    assert (alone.sets, alone.side) == ((), ())


# ---- sets by name


def test_every_name_that_is_listed_opens() -> None:
    files = {"x-f16.gguf": gguf(), "lora-f16.gguf": gguf(**{"general.type": "adapter"})}
    with LoopbackHub([Repository(REPO, files)]) as hub:
        names = [one.name for one in list_sets(REPO, endpoint=hub.endpoint).sets]
        opened = [open_checkpoint(f"{REPO}:{name}", endpoint=hub.endpoint) for name in names]
    assert {"x-f16.gguf"} <= {one.path for checkpoint in opened for one in checkpoint.shards} <= files.keys()


def test_no_two_sets_have_one_name() -> None:
    names = [one.name for one in sort_out(listed("BF16.safetensors", "x-BF16.gguf")).sets]
    assert len({*names}) == 2


def test_an_address_of_a_folder_is_the_set_in_it() -> None:
    files = {"model.safetensors": safetensors("a"), "UD-Q4_K_XL/x-UD-Q4_K_XL.gguf": gguf()}
    assert remote(files, "/tree/main/UD-Q4_K_XL").set_name == "UD-Q4_K_XL"
    assert remote(files).set_name == "model"


@pytest.mark.parametrize(
    ("path", "label"), [("ggml-model-i2_s.gguf", "i2_s"), ("x-Q4_K_M.gguf", "Q4_K_M"), ("x-7b.gguf", None)]
)
def test_labels_in_names(path: str, label: str | None) -> None:
    assert quant_label(path) == label


@pytest.mark.parametrize("path", ["x-ud-q4_k_xl.gguf", "x-UD-Q4_K_XL.gguf", "x-Q8_0.gguf"])
def test_names_without_their_labels(path: str) -> None:
    assert base_name(path) == "x"


def test_small_sets_are_listed_with_sizes_that_tell() -> None:
    with pytest.raises(AmbiguousCheckpointError) as error:
        choose_set(listed("x-Q4_0.gguf", "x-Q8_0.gguf", size=40_000_000), source="x")
    assert "40" in str(error.value)
    assert "0.0 GB" not in str(error.value)


# ---- parts


def test_a_part_that_is_chosen_on_purpose_is_not_short_of_the_others() -> None:
    assert codes(remote(split("x-F32", 3), files="*-00001-of-*")) == []
    assert codes(remote(split("x-F32", 3))) == []


@pytest.mark.parametrize("key", ["split.no", "split.count", "split.tensors.count", "general.type"])
def test_a_number_of_the_set_that_is_a_list(key: str) -> None:
    value: Any = Typed("str", ["x"]) if key == "general.type" else Typed("i32", [1])
    assert len(remote({"x-00001-of-00001.gguf": gguf(**{key: value})}).tensors) == 1
    assert len(remote({**MODEL, "y.gguf": gguf(**{key: value})}, ":F32").tensors) == 1


def test_a_part_that_was_renamed_says_that_others_are_missing() -> None:
    assert codes(remote({"x-F32.gguf": split("x-F32", 3)["x-F32-00001-of-00003.gguf"]})) == ["shard-missing"]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_parts_that_are_numbered_from_zero(lost: int) -> None:
    paths = [f"x-{number:05d}-of-00003.gguf" for number in range(3)]
    files = dict(zip(paths, split("x", 3).values(), strict=True))
    assert codes(remote(files)) == []
    del files[paths[lost]]
    found = remote(files)
    assert (codes(found), found.findings[0].file) == (["shard-missing"], paths[lost])


def test_a_number_beyond_the_count() -> None:
    files = {path: gguf(f"blk.{number}.attn_norm.weight") for number, path in enumerate(split("x-F32", 3))}
    assert "shard-order" in codes(remote({**files, "x-F32-00005-of-00003.gguf": gguf("blk.9.attn_norm.weight")}))
    assert "shard-order" not in codes(remote(files))


# ---- pipelines


def test_globs_choose_the_whole_pipeline() -> None:
    files = {**PIPELINE, "unet/x.safetensors": safetensors("a"), "vae/x.safetensors": safetensors("b")}
    found = open_checkpoint(files, files=["*.safetensors"])
    assert [one.path for one in found.shards] == ["unet/x.safetensors", "vae/x.safetensors"]
    assert len(found.tensors) == 2
    assert [one.path for one in open_checkpoint(files, files="vae/*").shards] == ["vae/x.safetensors"]


def test_a_pipeline_of_one_precision_is_whole() -> None:
    files = {**PIPELINE, "unet/x.fp16.safetensors": safetensors("a"), "vae/x.fp16.safetensors": safetensors("b")}
    found = remote(files)
    assert (codes(found), len(found.shards)) == ([], 2)


def test_a_folder_of_originals_is_no_part_of_a_pipeline() -> None:
    shelves = sort_out(listed("model_index.json", "unet/x.safetensors", "original/x.safetensors"))
    assert [file.path for file in shelves.sets[0].files] == ["unet/x.safetensors"]
