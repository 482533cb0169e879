"""Side files: told by their metadata, listed, and counted on request, one precision of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from contracts.checks import CONFIG, LOOKS, REPO, SHARD, check_sums

from kimi_inspect import Checkpoint, Component, Report, inspect, open_checkpoint, summarize
from kimi_inspect.cli import main
from kimi_inspect.companions import role_of
from kimi_inspect.errors import AmbiguousCheckpointError, NoCheckpointError
from kimi_inspect.testing import (
    DANIELHANCHEN_GGUF_ID,
    GgufTensor,
    HollowFile,
    LoopbackHub,
    Repository,
    TensorSpec,
    danielhanchen_gguf,
    hollow_gguf,
    hollow_safetensors,
    imatrix_gguf,
    split_gguf,
)

Files = Mapping[str, HollowFile]

CLIP = {"general.architecture": "clip", "general.type": "mmproj", "clip.has_vision_encoder": True}
NORM = GgufTensor("blk.0.attn_norm.weight", "F32", (8,))
TOWER = GgufTensor("v.blk.0.ln1.weight", "F32", (8,))


def text(*tensors: GgufTensor, architecture: str = "llama", **metadata: Any) -> HollowFile:
    return hollow_gguf(tensors or [NORM], {"general.architecture": architecture, **metadata})


def clip(rows: int = 1, **metadata: Any) -> HollowFile:
    """Return a projector, the larger the more rows."""
    patch = GgufTensor("v.patch_embd.weight", "F32", (8, rows))
    return hollow_gguf([TOWER, patch], {**CLIP, **{f"clip.{key}": value for key, value in metadata.items()}})


def typed(kind: str) -> HollowFile:
    return hollow_gguf([GgufTensor(f"{kind}.weight", "F32", (8,))], {"general.type": kind})


MODEL: Files = {"x-Q8_0.gguf": text()}
DRAFT = hollow_safetensors([TensorSpec("mtp.fc.weight", "BF16", (8, 8))])
SAFETENSORS: Files = {"model.safetensors": hollow_safetensors([TensorSpec("model.norm.weight", "BF16", (8,))])}


def write(folder: Path, files: Files) -> Path:
    for path, file in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        file.write_to(folder / path)
    return folder


def listed(checkpoint: Checkpoint | Report) -> dict[str, tuple[str, bool]]:
    assert [one.path for one in checkpoint.companions] == sorted(one.path for one in checkpoint.companions)
    return {one.path: (one.role, one.counted) for one in checkpoint.companions}


def remote(files: Files, suffix: str = "", **options: Any) -> tuple[Checkpoint, int]:
    """Open a repository; return the requests as well."""
    with LoopbackHub([Repository(REPO, files)]) as hub:
        checkpoint = open_checkpoint(REPO + suffix, endpoint=hub.endpoint, **options)
        return checkpoint, len(hub.log)


@pytest.mark.parametrize(
    ("metadata", "role"),
    [
        ({"general.architecture": "llama"}, None),
        ({"general.architecture": "llama", "general.type": "model"}, None),
        ({}, None),
        ({"general.architecture": "clip"}, "vision"),
        ({"general.architecture": "kimi", "general.type": "mmproj"}, "vision"),
        ({"general.architecture": "clip", "clip.has_vision_encoder": True, "clip.has_audio_encoder": True}, "vision"),
        ({"general.architecture": "clip", "clip.has_audio_encoder": True}, "other"),
        ({"general.architecture": "clip", "clip.has_audio_encoder": True, "clip.has_vision_encoder": False}, "other"),
        ({"general.architecture": "clip", "clip.has_audio_encoder": False}, "vision"),
        ({"general.architecture": "llama", "general.type": "adapter"}, "other"),
        *(({"general.architecture": draft}, "draft") for draft in ("eagle", "eagle3", "mtp", "medusa", "dflash")),
        ({"general.architecture": "eagles"}, None),
        ({"general.type": "imatrix"}, "imatrix"),
        ({"imatrix.chunk_count": 1}, "imatrix"),
        ({"general.architecture": "llama", "imatrix.chunk_count": 1}, None),
    ],
)
def test_roles(metadata: dict[str, Any], role: str | None) -> None:
    assert role_of(metadata) == role


@pytest.mark.parametrize("place", ["folder", "hub"])
@pytest.mark.parametrize(
    ("path", "file", "role"),
    [
        ("mmproj-F16.gguf", clip(), "vision"),
        # The name decides nothing.
        ("eyes.gguf", clip(), "vision"),
        ("sub/vision-tower.gguf", clip(), "vision"),
        ("eyes.gguf", hollow_gguf([TOWER], {"general.architecture": "clip"}), "vision"),
        (
            "ears.gguf",
            hollow_gguf(
                [GgufTensor("a.x", "F32", (8,))],
                {**CLIP, "clip.has_vision_encoder": False, "clip.has_audio_encoder": True},
            ),
            "other",
        ),
        (
            "lora.gguf",
            text(GgufTensor("blk.0.attn_q.weight.lora_a", "F32", (8,)), **{"general.type": "adapter"}),
            "other",
        ),
        ("heads.gguf", text(GgufTensor("fc.weight", "F32", (8,)), architecture="eagle3"), "draft"),
    ],
)
def test_a_side_file_is_told_by_its_metadata(
    path: str, file: HollowFile, role: str, place: str, tmp_path: Path
) -> None:
    def opened(**options: Any) -> Checkpoint:
        files = {**MODEL, path: file}
        return remote(files, **options)[0] if place == "hub" else open_checkpoint(write(tmp_path, files), **options)

    checkpoint = opened()
    assert (checkpoint.set_name, checkpoint.other_sets, len(checkpoint.tensors)) == ("Q8_0", (), 1)
    assert listed(checkpoint) == {path: (role, False)}
    assert checkpoint.companions[0].bytes == file.size
    assert [shard.path for shard in checkpoint.shards] == ["x-Q8_0.gguf"]
    counted = opened(companions=True)
    assert listed(counted) == {path: (role, True)}
    assert [shard.path for shard in counted.shards] == ["x-Q8_0.gguf", path]
    assert counted.architecture == "llama"
    check_sums(counted)


@pytest.mark.parametrize("path", ["imatrix.gguf", "stats.gguf", "x.imatrix.gguf"])
@pytest.mark.parametrize("file", [imatrix_gguf(), typed("imatrix"), hollow_gguf([NORM], {"imatrix.chunk_count": 80})])
def test_an_importance_matrix_is_neither_checkpoint_nor_side_file(path: str, file: HollowFile, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write(tmp_path, {**MODEL, path: file}), companions=True)
    assert (checkpoint.set_name, checkpoint.other_sets, checkpoint.companions) == ("Q8_0", (), ())
    assert [shard.path for shard in checkpoint.shards] == ["x-Q8_0.gguf"]


def test_a_model_called_as_a_side_file(tmp_path: Path) -> None:
    (found,) = open_checkpoint(write(tmp_path, {"mmproj-Q8_0.gguf": text()})).shards
    assert found.path == "mmproj-Q8_0.gguf"
    # Beside another it is one of two checkpoints.
    with pytest.raises(AmbiguousCheckpointError) as caught:
        open_checkpoint(write(tmp_path, {"x-Q2_K.gguf": text()}))
    assert caught.value.actual == ["mmproj-Q8_0", "Q2_K"]


def test_files_at_hand_are_looked_into_one_by_one(tmp_path: Path) -> None:
    write(tmp_path, {**MODEL, "y-F16.gguf": clip(), "y-Q4_0.gguf": text()})
    checkpoint = open_checkpoint(tmp_path / "x-Q8_0.gguf")
    assert (listed(checkpoint), checkpoint.other_sets) == ({"y-F16.gguf": ("vision", False)}, ("Q4_0",))


def test_draft_architectures_alone_make_a_draft(tmp_path: Path) -> None:
    with pytest.raises(AmbiguousCheckpointError):
        open_checkpoint(write(tmp_path, {**MODEL, "draft.gguf": text(architecture="qwen3")}))


@pytest.mark.parametrize("companions", [False, True])
def test_vision_inside_the_same_file_is_one_checkpoint(companions: bool, tmp_path: Path) -> None:
    fused = text(NORM, TOWER, GgufTensor("mm.0.weight", "F32", (8, 8)), architecture="gemma3")
    report = inspect(write(tmp_path, {"gemma.gguf": fused}), companions=companions)
    assert (report.companions, report.findings, report.tensor_count) == ((), (), 3)
    assert report[Component.VISION_TOWER].stored_bytes == 32
    assert report[Component.PROJECTOR].stored_bytes == 256


class TestAlternatives:
    """Several precisions of one side file: one is counted."""

    @pytest.mark.parametrize(
        ("precisions", "wanted", "counted"),
        [
            (["Q8_0", "F32", "F16", "BF16"], True, ["BF16"]),
            (["Q8_0", "F32", "F16"], True, ["F16"]),
            (["Q8_0", "F32", "fp16"], True, ["fp16"]),
            (["F32", "Q8_0"], True, ["F32"]),
            (["F32", "F16", "BF16"], "*F32*", ["F32"]),
            (["F32", "F16", "BF16"], ["*F32*", "*-F16*"], ["F16"]),
            (["F32", "F16", "BF16"], "mmproj-*", ["BF16"]),
            (["F32", "F16", "BF16"], "*", ["BF16"]),
            (["F32", "F16", "BF16"], False, []),
        ],
    )
    def test_by_precision(
        self, precisions: Sequence[str], wanted: bool | str | list[str], counted: Sequence[str], tmp_path: Path
    ) -> None:
        paths = {f"mmproj-{precision}.gguf": clip(number) for number, precision in enumerate(precisions, 1)}
        folder = write(tmp_path, {**MODEL, **paths})
        checkpoint = open_checkpoint(folder, companions=wanted)
        chosen = [f"mmproj-{precision}.gguf" for precision in counted]
        assert listed(checkpoint) == {path: ("vision", path in chosen) for path in paths}
        assert [shard.path for shard in checkpoint.shards] == ["x-Q8_0.gguf", *chosen]
        expected = sum(file.size for path, file in {**MODEL, **paths}.items() if path in ["x-Q8_0.gguf", *chosen])
        assert sum(shard.file_bytes for shard in checkpoint.shards) == expected
        assert summarize(checkpoint).file_bytes == expected

    def test_of_unknown_precisions_the_largest(self, tmp_path: Path) -> None:
        files = {"mmproj-Q4_0.gguf": clip(1), "mmproj-Q8_0.gguf": clip(3), "mmproj-Q5_0.gguf": clip(2)}
        checkpoint = open_checkpoint(write(tmp_path, {**MODEL, **files}), companions=True)
        assert [path for path, (_, counted) in listed(checkpoint).items() if counted] == ["mmproj-Q8_0.gguf"]

    def test_side_files_of_several_kinds_are_no_alternatives(self, tmp_path: Path) -> None:
        heads = text(GgufTensor("fc.weight", "F32", (8,)), architecture="eagle3")
        files = {"mmproj-F16.gguf": clip(), "mmproj-BF16.gguf": clip(), "mmproj-F32.gguf": heads}
        files |= {f"{name}-F16.gguf": typed("adapter") for name in ("lora-a", "lora-b")}
        checkpoint = open_checkpoint(write(tmp_path, {**MODEL, **files}), companions=True)
        assert listed(checkpoint) == {
            "lora-a-F16.gguf": ("other", True),
            "lora-b-F16.gguf": ("other", True),
            "mmproj-BF16.gguf": ("vision", True),
            "mmproj-F16.gguf": ("vision", False),
            "mmproj-F32.gguf": ("draft", True),
        }

    def test_a_side_file_in_parts_is_counted_whole(self, tmp_path: Path) -> None:
        parts = split_gguf("mmproj-F16", [[TOWER], [GgufTensor("v.blk.1.ln1.weight", "F32", (8,))]], CLIP)
        checkpoint = open_checkpoint(write(tmp_path, {**MODEL, **parts}), companions="*-00002-of-*")
        assert listed(checkpoint) == dict.fromkeys(parts, ("vision", True))
        assert len(checkpoint.tensors) == 3


@pytest.mark.parametrize("globs", ["*Q8*", ["x-Q8_0.gguf"], ["nothing", "*.safetensors"]])
def test_globs_that_fit_no_side_file_are_refused(globs: str | list[str], tmp_path: Path) -> None:
    with pytest.raises(NoCheckpointError, match="no side file") as caught:
        open_checkpoint(write(tmp_path, {**MODEL, "mmproj-F16.gguf": clip()}), companions=globs)
    assert caught.value.expected == "mmproj-F16.gguf"


class TestAlone:
    def test_by_its_own_name(self) -> None:
        checkpoint, _ = remote({**MODEL, "mmproj-F16.gguf": clip(), "mmproj-F32.gguf": clip(2)}, ":mmproj-F16")
        assert [shard.path for shard in checkpoint.shards] == ["mmproj-F16.gguf"]
        assert (checkpoint.architecture, checkpoint.companions, checkpoint.other_sets) == ("clip", (), ("Q8_0",))

    def test_by_its_path_and_by_a_glob(self, tmp_path: Path) -> None:
        write(tmp_path, {**MODEL, "mmproj-F16.gguf": clip(), "mmproj-F32.gguf": clip(2)})
        for checkpoint in (open_checkpoint(tmp_path / "mmproj-F32.gguf"), open_checkpoint(tmp_path, files="*F32*")):
            assert [shard.path for shard in checkpoint.shards] == ["mmproj-F32.gguf"]
            assert checkpoint.companions == ()

    def test_nothing_else_is_there(self, tmp_path: Path) -> None:
        checkpoint = open_checkpoint(write(tmp_path, {"mmproj-F16.gguf": clip()}), companions=True)
        assert [shard.path for shard in checkpoint.shards] == ["mmproj-F16.gguf"]
        assert checkpoint.companions == ()
        with pytest.raises(AmbiguousCheckpointError):
            open_checkpoint(write(tmp_path, {"mmproj-F32.gguf": clip()}))


class TestSafetensors:
    """The format has no mark for side files: names tell draft heads, and GGUF files are of another checkpoint."""

    @pytest.mark.parametrize(
        "path", ["mtp.safetensors", "model-mtp.safetensors", "eagle3.safetensors", "sub/mtp.safetensors"]
    )
    def test_draft_heads(self, path: str, tmp_path: Path) -> None:
        folder = write(tmp_path, {**SAFETENSORS, path: DRAFT})
        report = inspect(folder)
        assert (listed(report), report.other_sets) == ({path: ("draft", False)}, ())
        assert report[Component.MTP].stored_bytes == 0
        counted = inspect(folder, companions=True)
        assert listed(counted) == {path: ("draft", True)}
        assert counted[Component.MTP].stored_bytes == 128
        assert counted.file_bytes == report.file_bytes + DRAFT.size
        assert inspect(folder, companions=["*mtp*", "*eagle*"]) == counted

    def test_a_draft_head_alone_is_a_checkpoint(self, tmp_path: Path) -> None:
        report = inspect(write(tmp_path, {"mtp.safetensors": DRAFT}), companions=True)
        assert (report.set_name, report.companions, report.file_bytes) == ("mtp", (), DRAFT.size)

    def test_a_draft_head_by_itself_and_checkpoints_beside_it(self, tmp_path: Path) -> None:
        write(tmp_path, {**SAFETENSORS, "mtp.safetensors": DRAFT, "other.safetensors": DRAFT})
        checkpoint = open_checkpoint(tmp_path / "mtp.safetensors", companions=True)
        assert [shard.path for shard in checkpoint.shards] == ["mtp.safetensors"]
        assert (checkpoint.companions, checkpoint.other_sets) == ((), ("model", "other"))

    def test_a_projector_beside_them(self) -> None:
        checkpoint, requests = remote(
            {**SAFETENSORS, "mmproj-F16.gguf": clip(), "config.json": HollowFile(b"{}")}, companions=True
        )
        assert ([shard.path for shard in checkpoint.shards], checkpoint.companions) == (["model.safetensors"], ())
        # It is not looked into either.
        assert requests == LOOKS + CONFIG + SHARD

    def test_draft_heads_are_none_of_a_gguf(self, tmp_path: Path) -> None:
        checkpoint = open_checkpoint(write(tmp_path, {**MODEL, "mtp.safetensors": DRAFT}), companions=True)
        assert (checkpoint.format, checkpoint.companions, len(checkpoint.shards)) == ("gguf", (), 1)


class TestKimi:
    """The repository with two sets of 34 parts, a projector in three precisions and an importance matrix."""

    FILES = staticmethod(lambda: danielhanchen_gguf(layers=5, experts=4, tokens=10))

    def test_requests(self) -> None:
        with LoopbackHub([Repository(DANIELHANCHEN_GGUF_ID, self.FILES)]) as hub:
            checkpoint = open_checkpoint(f"{DANIELHANCHEN_GGUF_ID}:UD-Q4_K_XL", endpoint=hub.endpoint)
            assert len(hub.log) == checkpoint.traffic.requests <= 76
            seen = len(hub.log)
            counted = open_checkpoint(f"{DANIELHANCHEN_GGUF_ID}:UD-Q4_K_XL", endpoint=hub.endpoint, companions=True)
            assert len(hub.log) - seen <= 78
        precisions = [f"mmproj-{precision}.gguf" for precision in ("BF16", "F16", "F32")]
        assert (len(checkpoint.shards), checkpoint.other_sets) == (34, ("UD-Q8_K_XL",))
        assert listed(checkpoint) == dict.fromkeys(precisions, ("vision", False))
        assert listed(counted) == {path: ("vision", path == precisions[0]) for path in precisions}
        assert {item.code for one in (checkpoint, counted) for item in one.findings} == {"label-disagrees"}

    def test_sums(self) -> None:
        files = self.FILES()
        projector = files["mmproj-BF16.gguf"]
        with LoopbackHub([Repository(DANIELHANCHEN_GGUF_ID, files)]) as hub:
            plain, counted = (
                inspect(f"{DANIELHANCHEN_GGUF_ID}:UD-Q8_K_XL", endpoint=hub.endpoint, companions=companions)
                for companions in (False, True)
            )
        assert (counted.shard_count, counted.file_bytes) == (35, plain.file_bytes + projector.size)
        tower = (Component.VISION_TOWER, Component.PROJECTOR)
        assert {one for one in Component if plain[one] != counted[one]} == set(tower)
        assert sum(plain[one].stored_bytes for one in tower) == 0
        vision = sum(counted[one].stored_bytes for one in tower)
        assert vision == counted.tensor_bytes - plain.tensor_bytes == 904_437_760
        assert counted.tensor_count - plain.tensor_count == 168
        for report in (plain, counted):
            told = report.header_bytes + report.tensor_bytes + report.padding_bytes + report.unread_bytes
            assert report.file_bytes + report.missing_bytes == told
            assert sum(row.stored_bytes for row in report.components) == report.tensor_bytes
            assert sum(row.tensor_count for row in report.components) == report.tensor_count
        # What it is called does not change with what is counted.
        assert plain.family == counted.family
        assert plain.architecture == counted.architecture == "kimi-k31"


@pytest.mark.parametrize(
    ("options", "counted"),
    [
        ([], None),
        (["--companions"], "BF16"),
        (["--companions", "*F32*"], "F32"),
        (["--companions", "*F32*", "--companions", "*F16*"], "BF16"),
        (["--companions", "*F32*", "--companions"], "BF16"),
    ],
)
def test_command_line(
    options: list[str], counted: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {f"mmproj-{precision}.gguf": clip() for precision in ("BF16", "F32")}
    write(tmp_path, {**MODEL, **files})
    assert main(["show", str(tmp_path), *options, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["companions"] == [
        {"path": path, "bytes": file.size, "role": "vision", "counted": path == f"mmproj-{counted}.gguf"}
        for path, file in files.items()
    ]
    assert document["shard_count"] == (2 if counted else 1)
    assert main(["show", str(tmp_path), *options]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("side file")]
    assert [line.endswith(", not counted") for line in lines] == [
        one["counted"] is False for one in document["companions"]
    ]
