"""The same weights twice in a folder or repository: told, and never added up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from contracts.checks import LOOKS, REPO, SHARD, check_sums

from kimi_inspect import Checkpoint, open_checkpoint, summarize
from kimi_inspect.testing import (
    GgufTensor,
    HollowFile,
    LoopbackHub,
    Repository,
    TensorSpec,
    hollow_gguf,
    hollow_safetensors,
)

Files = Mapping[str, HollowFile]


def norms(*layers: int, dtype: str = "BF16", width: int = 8, name: str = "input_layernorm") -> HollowFile:
    return hollow_safetensors([TensorSpec(f"model.layers.{layer}.{name}.weight", dtype, (width,)) for layer in layers])


def gguf(width: int = 8) -> HollowFile:
    return hollow_gguf(
        [GgufTensor("blk.0.attn_norm.weight", "F32", (width,))],
        {"general.architecture": "llama", "general.file_type": width},
    )


def sharded(stem: str, name: str = "input_layernorm") -> dict[str, HollowFile]:
    return {f"{stem}-0000{layer + 1}-of-00002.safetensors": norms(layer, name=name) for layer in range(2)}


def original(dtype: str = "BF16") -> HollowFile:
    """Return all layers in one file, under the names of the original code."""
    return norms(0, 1, name="attention_norm", dtype=dtype)


MODEL = sharded("model")
ONE = {"model.safetensors": norms(0, 1)}


def remote(files: Files, suffix: str = "", *, globs: str | None = None) -> tuple[Checkpoint, int]:
    """Open a repository; return the requests as well."""
    with LoopbackHub([Repository(REPO, files)]) as hub:
        checkpoint = open_checkpoint(REPO + suffix, endpoint=hub.endpoint, files=globs)
        return checkpoint, len(hub.log)


def copies(checkpoint: Checkpoint) -> list[str]:
    """Return what is there again; hold the rest of what was found against nothing at all."""
    check_sums(checkpoint)
    assert checkpoint.complete
    found = [item for item in checkpoint.findings if item.code != "label-disagrees"]  # the weights are made up
    assert {(item.code, item.severity) for item in found} <= {("duplicate-copy", "info")}
    return sorted(item.where for item in found)


def counted(checkpoint: Checkpoint, files: Files) -> None:
    """See that these files are counted, and once."""
    assert {shard.path: shard.file_bytes for shard in checkpoint.shards} == {p: f.size for p, f in files.items()}
    report = summarize(checkpoint)
    assert report.file_bytes == sum(file.size for file in files.values())
    assert report.shard_count == len(files)


DIGESTS: list[tuple[Files, Files, str]] = [
    (ONE, {"copy/model.safetensors": norms(0, 1)}, "copy/model"),
    (ONE, {"model.fp16.safetensors": norms(0, 1)}, "model.fp16"),
    (ONE, {"z.safetensors": norms(0, 1)}, "z"),
    (MODEL, sharded("old/model"), "old/model"),
    # The parts may bear other names.
    (
        MODEL,
        dict(zip(["b/x-1-of-2.safetensors", "b/x-2-of-2.safetensors"], [*MODEL.values()][::-1], strict=True)),
        "b/x",
    ),
]


class TestByDigest:
    """Digests of the listing, with no request more."""

    @pytest.mark.parametrize(("files", "again", "where"), DIGESTS)
    def test_equal(self, files: Files, again: Files, where: str) -> None:
        checkpoint, requests = remote({**files, **again})
        counted(checkpoint, files)
        (finding,) = checkpoint.findings
        assert copies(checkpoint) == [where]
        assert finding.examples == tuple(sorted(again))
        assert (finding.count, finding.actual) == (len(again), sum(shard.tensor_bytes for shard in checkpoint.shards))
        assert checkpoint.other_sets == (where,)
        assert requests == LOOKS + SHARD * len(files)

    @pytest.mark.parametrize(
        ("files", "others"),
        [
            # As many bytes of another precision, or of other weights.
            (ONE, {"model.fp16.safetensors": norms(0, 1, dtype="F16")}),
            (ONE, {"sub/model.safetensors": norms(0, 2)}),
            (ONE, {"model.fp32.safetensors": norms(0, 1, dtype="F32")}),
            # A part of them, or more.
            (MODEL, {"old/model.safetensors": norms(0)}),
            (MODEL, sharded("old/model") | {"old/model-00002-of-00002.safetensors": norms(7)}),
            ({"model.safetensors": norms(0)}, sharded("old/model")),
            (ONE, {"x-Q8_0.gguf": gguf()}),
        ],
    )
    def test_unequal(self, files: Files, others: Files) -> None:
        checkpoint, requests = remote({**files, **others})
        counted(checkpoint, files)
        assert copies(checkpoint) == []
        assert requests == LOOKS + SHARD * len(files)

    def test_gguf(self) -> None:
        files = {"x-Q8_0.gguf": gguf(), "Q8_0/x-Q8_0.gguf": gguf(), "x-Q4_0.gguf": gguf(16)}
        assert copies(remote(files, ":x-Q8_0")[0]) == ["Q8_0/x-Q8_0"]
        assert copies(remote(files, ":Q4_0")[0]) == []

    def test_of_what_cannot_be_read_nothing_is_said(self) -> None:
        files = {**MODEL, "model-00002-of-00002.safetensors": HollowFile(b"<html>")}
        checkpoint, _ = remote({**files, **{f"old/{path}": file for path, file in files.items()}})
        assert [item.code for item in checkpoint.findings] == ["shard-unreadable"]

    def test_a_folder_has_no_digests(self, tmp_path: Path) -> None:
        assert copies(opened(tmp_path, {**ONE, "copy/model.safetensors": norms(0, 1)})) == []


def opened(folder: Path, files: Files) -> Checkpoint:
    for path, file in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        file.write_to(folder / path)
    return open_checkpoint(folder)


class TestByLayout:
    """A copy in the layout of the original code, shown by its headers."""

    @pytest.mark.parametrize("place", ["folder", "hub"])
    @pytest.mark.parametrize(
        ("again", "where"),
        [
            ({"consolidated.safetensors": original()}, "consolidated"),
            ({"consolidated.00.safetensors": original()}, "consolidated.00"),
            ({"original/model.safetensors": original()}, "original/model"),
            ({"original/consolidated.safetensors": original()}, "original/consolidated"),
            (sharded("original/model", "attention_norm"), "original/model"),
            (sharded("consolidated", "attention_norm"), "consolidated"),
        ],
    )
    def test_as_many_bytes(self, again: Files, where: str, place: str, tmp_path: Path) -> None:
        files = {**MODEL, **again}
        checkpoint = opened(tmp_path, files) if place == "folder" else remote(files)[0]
        assert copies(checkpoint) == [where]
        counted(checkpoint, MODEL)
        (finding,) = checkpoint.findings
        assert (finding.actual, finding.count, finding.examples) == (32, len(again), tuple(again))
        assert finding.message.startswith(f"{where} holds the same weights again, 32 bytes")

    def test_two_copies_are_two_findings(self, tmp_path: Path) -> None:
        files = {**MODEL, "consolidated.safetensors": original(), "original/model.safetensors": original()}
        assert copies(opened(tmp_path, files)) == ["consolidated", "original/model"]

    def test_from_the_copy(self) -> None:
        checkpoint, _ = remote({**MODEL, "consolidated.safetensors": original()}, ":consolidated")
        assert copies(checkpoint) == ["model"]
        counted(checkpoint, {"consolidated.safetensors": original()})

    @pytest.mark.parametrize(
        "others",
        [
            {"consolidated.safetensors": norms(0, 1, 2)},
            {"consolidated.safetensors": norms(0)},
            {"consolidated.safetensors": original(dtype="F32")},
            {"consolidated.safetensors": original(dtype="F8_E4M3")},
            {"original/model.safetensors": norms(0, 1, width=16)},
            # As many bytes, under a name that says nothing of a copy.
            {"sub/model.safetensors": original()},
            {"my_consolidated.safetensors": original()},
            {"originals/model.safetensors": original()},
            {"model.fp16.safetensors": norms(0, 1, dtype="F16")},
            # As many bytes in another format.
            {"original/model.gguf": gguf()},
        ],
    )
    def test_silence(self, others: Files, tmp_path: Path) -> None:
        checkpoint = opened(tmp_path, {**MODEL, **others})
        assert copies(checkpoint) == []
        counted(checkpoint, MODEL)

    def test_a_copy_that_cannot_be_read_spoils_nothing(self, tmp_path: Path) -> None:
        checkpoint = opened(tmp_path, {**MODEL, "consolidated.safetensors": HollowFile(b"<html>")})
        assert copies(checkpoint) == []
        counted(checkpoint, MODEL)

    def test_a_part_of_a_copy_that_cannot_be_read(self, tmp_path: Path) -> None:
        again = {"original/x-1-of-2.safetensors": original(), "original/x-2-of-2.safetensors": HollowFile(b"<html>")}
        assert copies(opened(tmp_path, {**MODEL, **again})) == []

    def test_a_side_file_that_is_counted_is_no_part_of_it(self, tmp_path: Path) -> None:
        files = {**MODEL, "consolidated.safetensors": original(), "mtp.safetensors": norms(2)}
        opened(tmp_path, files)
        assert copies(open_checkpoint(tmp_path, companions=True)) == ["consolidated"]

    def test_what_is_not_whole_is_not_called_equal(self, tmp_path: Path) -> None:
        files = {"model-00001-of-00002.safetensors": norms(0), "consolidated.safetensors": original()}
        assert [item.code for item in opened(tmp_path, files).findings] == ["shard-missing"]

    def test_it_is_the_only_one(self, tmp_path: Path) -> None:
        assert copies(opened(tmp_path, {"consolidated.safetensors": original()})) == []

    def test_globs_leave_it_out(self) -> None:
        checkpoint, requests = remote({**MODEL, "consolidated.safetensors": original()}, globs="model-*")
        assert copies(checkpoint) == []
        assert requests == LOOKS + SHARD * len(MODEL)


class TestPipelines:
    """Parts of a pipeline are no copies of each other, nor are its variants."""

    @pytest.fixture
    def files(self) -> Files:
        return {
            "model_index.json": HollowFile(b"{}"),
            "unet/x.safetensors": norms(0),
            "unet/x.fp16.safetensors": norms(0, dtype="F16"),
            "vae/x.safetensors": norms(1),
            "text_encoder/model.safetensors": norms(2),
        }

    def test_variants(self, files: Files) -> None:
        plain = {path: file for path, file in files.items() if ".safetensors" in path and "fp16" not in path}
        checkpoint, _ = remote(files)
        assert copies(checkpoint) == []
        assert (checkpoint.set_name, checkpoint.other_sets) == ("pipeline", ("pipeline.fp16",))
        counted(checkpoint, plain)
        fp16, _ = remote(files, ":pipeline.fp16")
        assert copies(fp16) == []
        counted(
            fp16,
            {path: files[path] for path in files if path.endswith("fp16.safetensors")}
            | {path: file for path, file in plain.items() if not path.startswith("unet")},
        )

    def test_one_file_for_all_in_the_root_is_not_added(self, files: Files) -> None:
        checkpoint, _ = remote({**files, "all.safetensors": norms(0, 1, 2)})
        assert copies(checkpoint) == []
        assert "all.safetensors" not in {shard.path for shard in checkpoint.shards}
