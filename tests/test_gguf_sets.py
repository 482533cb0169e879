"""Several GGUF checkpoints in one folder or repository: told apart, chosen, listed, and damaged in the usual ways."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from contracts.checks import REPO, check_sums

from kimi_inspect import open_checkpoint
from kimi_inspect.cli import main
from kimi_inspect.errors import AmbiguousCheckpointError, NoCheckpointError, NotWeightsError, TruncatedError
from kimi_inspect.sets import choose_set, sort_out
from kimi_inspect.sources import ListedFile
from kimi_inspect.testing import (
    GgufTensor,
    HollowFile,
    LoopbackHub,
    Repository,
    TensorSpec,
    hollow_gguf,
    hollow_safetensors,
    split_gguf,
)

Files = Mapping[str, HollowFile]

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"ab" * 32 + b"\nsize 16900000000\n"
SAFETENSORS = hollow_safetensors([TensorSpec("model.norm.weight", "BF16", (64,))])
HOSTILE = "\x1b[31mred\x07"


def listed(*paths: str, size: int | None = 10) -> list[ListedFile]:
    return [ListedFile(path=path, size=size) for path in paths]


def names(stem: str, count: int, *numbers: int, ending: str = ".gguf") -> list[str]:
    return [f"{stem}-{number:05d}-of-{count:05d}{ending}" for number in numbers or range(1, count + 1)]


def model(layers: int = 1) -> HollowFile:
    norms = [GgufTensor(f"blk.{layer}.attn_norm.weight", "F32", (8,)) for layer in range(layers)]
    return hollow_gguf(norms, {"general.architecture": "llama"})


def split(stem: str, count: int = 3) -> dict[str, HollowFile]:
    parts = [[GgufTensor(f"blk.{layer}.attn_norm.weight", "F32", (8,))] for layer in range(count)]
    return split_gguf(stem, parts, {"general.architecture": "llama"})


def write(folder: Path, files: Files) -> Path:
    for path, file in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        file.write_to(folder / path)
    return folder


@pytest.mark.parametrize(
    ("paths", "sets"),
    [
        # In the root, in folders, and both.
        (["x-Q4_K_M.gguf", "x-Q8_0.gguf"], {"Q4_K_M": 1, "Q8_0": 1}),
        ([*names("UD-Q4_K_XL/x-UD-Q4_K_XL", 3), *names("BF16/x-BF16", 2)], {"UD-Q4_K_XL": 3, "BF16": 2}),
        (["x-Q4_K_M.gguf", *names("Q8_0/x-Q8_0", 2)], {"Q4_K_M": 1, "Q8_0": 2}),
        # A label that two sets bear tells nothing; nor do names without one.
        (["x-Q4_0.gguf", *names("Q4_0/x-Q4_0", 2)], {"x-Q4_0": 1, "Q4_0/x-Q4_0": 2}),
        (["x-Q4_0.gguf", "y-Q4_0.gguf", "x-Q8_0.gguf"], {"x-Q4_0": 1, "y-Q4_0": 1, "Q8_0": 1}),
        (["a.gguf", "b/a.gguf"], {"a": 1, "b/a": 1}),
        (["x-q4_0.gguf", "x-Q4_0.gguf"], {"q4_0": 1, "Q4_0": 1}),
        # Draft heads of this format are told by their metadata.
        (["mtp-Q8_0.gguf", "x-Q4_0.gguf"], {"Q8_0": 1, "Q4_0": 1}),
        # One stem with two counts is two uploads.
        ([*names("x-Q8_0", 2), *names("x-Q8_0", 3)], {"x-Q8_0-of-2": 2, "x-Q8_0-of-3": 3}),
        (["x-Q8_0.gguf", *names("x-Q8_0", 2)], {"x-Q8_0": 1, "x-Q8_0-of-2": 2}),
        # Parts alone, of another width, counted from zero.
        (names("x-Q8_0", 9, 4), {"Q8_0": 1}),
        (["x-Q8_0-1-of-2.gguf", "x-Q8_0-00002-of-00002.gguf"], {"Q8_0": 2}),
        (names("x-Q8_0", 3, 0, 1, 2), {"Q8_0": 3}),
        (["x-Q8_0-00001-of-999999999.gguf"], {"Q8_0": 1}),
        (
            ["a b-Q8_0.gguf", "é-Q4_0.gguf", "c\\d-Q2_K.gguf", "C:x-Q3_K.gguf"],
            dict.fromkeys(["Q8_0", "Q4_0", "Q2_K", "Q3_K"], 1),
        ),
    ],
)
def test_sets_and_what_they_are_called(paths: list[str], sets: dict[str, int]) -> None:
    shelves = sort_out(listed(*reversed(paths)))
    assert {one.name: one.file_count for one in shelves.sets} == sets
    assert [one.default for one in shelves.sets] == [len(sets) == 1] * len(sets)
    assert {one.format for one in shelves.sets} == {"gguf"}
    assert shelves.side == ()
    # Each can be had by its name, and by any of its files.
    for one in shelves.sets:
        assert choose_set(listed(*paths), source="x", name=one.name).files == one.files
        assert all(choose_set(listed(*paths), source="x", member=file.path) == one for file in one.files)


def test_parts_come_by_number_whatever_the_listing() -> None:
    paths = [f"x-{number}-of-12.gguf" for number in range(12, 0, -1)]
    (found,) = sort_out(listed(*paths)).sets
    assert [file.path for file in found.files] == paths[::-1]


@pytest.mark.parametrize(
    ("paths", "order"),
    [
        (["x-Q8_0.gguf", "model.safetensors"], ["model", "Q8_0"]),
        (["a.gguf", "deep/er/x.safetensors"], ["deep/er/x", "a"]),
        (["model.gguf", "model.safetensors"], ["model", "model.gguf"]),
        (["a-Q8_0.gguf", "a-Q4_0.gguf", "z.fp16.safetensors"], ["z.fp16", "Q4_0", "Q8_0"]),
    ],
)
def test_safetensors_come_before_gguf(paths: list[str], order: list[str]) -> None:
    sets = sort_out(listed(*paths)).sets
    assert [one.name for one in sets] == order
    assert [one.default for one in sets] == [True] + [False] * (len(sets) - 1)


class TestAmbiguity:
    def told(self, files: list[ListedFile]) -> AmbiguousCheckpointError:
        with pytest.raises(AmbiguousCheckpointError) as caught:
            choose_set(files, source="a/b")
        return caught.value

    def test_every_set_is_named_with_its_size(self) -> None:
        files = [
            *listed(*names("UD-Q4_K_XL/x-UD-Q4_K_XL", 34), size=45_000_000_000),
            *listed("x-Q8_0.gguf", size=7_000_000_000),
            *listed("x-Q2_K.gguf", size=None),
            *listed("mmproj-F16.gguf", "imatrix.gguf"),
        ]
        error = self.told(files)
        assert error.file == "a/b"
        assert error.actual == ["Q2_K", "Q8_0", "UD-Q4_K_XL"]
        text = str(error)
        assert "there are 3 checkpoints" in text
        assert "UD-Q4_K_XL (1,530.0 GB, 34 files)" in text
        assert "Q8_0 (7.0 GB, 1 file)" in text
        assert "Q2_K (size unknown, 1 file)" in text
        # Side files are no choice.
        assert "mmproj" not in text
        assert "imatrix" not in text

    def test_names_of_strangers(self) -> None:
        error = self.told(listed(f"{HOSTILE}/x.gguf", "y\n2-Q9.gguf", "naïve 模型.gguf"))
        assert str(error).isprintable()
        assert error.problem.isprintable()
        assert "\\x1b[31mred\\x07/x (" in str(error)
        assert "naïve 模型 (" in str(error)

    def test_huge_numbers_of_files_in_names(self) -> None:
        error = self.told(listed("a-00001-of-999999999.gguf", "b-000000000-of-999999999.gguf"))
        assert error.actual == ["a", "b"]


class TestChoice:
    FILES = listed(
        *names("x-Q8_0", 2), *names("UD-Q4_K_XL/x-UD-Q4_K_XL", 3), "x-Q4_K_M.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf"
    )

    @pytest.mark.parametrize("name", ["UD-Q4_K_XL", "ud-q4_k_xl", "Ud-Q4_K_Xl"])
    def test_by_name_in_any_case(self, name: str) -> None:
        assert choose_set(self.FILES, source="x", name=name).name == "UD-Q4_K_XL"

    def test_the_exact_name_comes_first(self) -> None:
        both = listed("x-q4_0.gguf", "x-Q4_0.gguf")
        for name in ("q4_0", "Q4_0"):
            assert choose_set(both, source="x", name=name).name == name

    @pytest.mark.parametrize("name", ["Q4_K", "K_M", "-Q8_0", "mmproj", "F16", "", "UD-Q4_K_XL/"])
    def test_a_name_is_whole(self, name: str) -> None:
        with pytest.raises(NoCheckpointError) as caught:
            choose_set(self.FILES, source="x", name=name)
        assert "UD-Q4_K_XL" in str(caught.value)

    @pytest.mark.parametrize(
        ("globs", "name", "count"),
        [
            (["UD-Q4_K_XL/*"], "UD-Q4_K_XL", 3),
            (["*Q4_K_M*"], "Q4_K_M", 1),
            (["*-00002-of-00003.gguf"], "UD-Q4_K_XL", 1),
            (["*-0000[13]-of-00003.gguf"], "UD-Q4_K_XL", 2),
            # A side file asked for on purpose is what is opened; beside a model it stays a side file.
            (["mmproj-F16*"], "mmproj-F16", 1),
            (["mmproj-F16*", "x-Q8_0*"], "Q8_0", 2),
        ],
    )
    def test_by_globs(self, globs: list[str], name: str, count: int) -> None:
        found = choose_set(self.FILES, source="x", globs=globs)
        assert (found.name, found.file_count) == (name, count)

    @pytest.mark.parametrize("globs", [["x-*"], ["*-00001-of-*"], ["mmproj*"], ["*.gguf"]])
    def test_globs_that_leave_several(self, globs: list[str]) -> None:
        with pytest.raises(AmbiguousCheckpointError):
            choose_set(self.FILES, source="x", globs=globs)


QUANTS: Files = {**split("Q8_0/x-Q8_0"), "x-Q4_0.gguf": model(2), "x-Q2_K.gguf": model(4)}
PART = "Q8_0/x-Q8_0-00002-of-00003.gguf"


class TestOpening:
    @pytest.mark.parametrize(
        ("source", "name", "tensors"),
        [
            (f"{REPO}:Q8_0", "Q8_0", 3),
            (f"{REPO}:q4_0", "Q4_0", 2),
            (f"{REPO}@main:Q2_K", "Q2_K", 4),
            (f"{{hub}}/{REPO}/blob/main/{PART}", "Q8_0", 3),
            (f"{{hub}}/{REPO}/resolve/main/x-Q4_0.gguf?download=true", "Q4_0", 2),
        ],
    )
    def test_one_set_of_a_repository(self, source: str, name: str, tensors: int) -> None:
        with LoopbackHub([Repository(REPO, QUANTS)]) as hub:
            checkpoint = open_checkpoint(source.format(hub=hub.endpoint), endpoint=hub.endpoint)
        assert (checkpoint.set_name, checkpoint.format, len(checkpoint.tensors)) == (name, "gguf", tensors)
        assert {checkpoint.set_name, *checkpoint.other_sets} == {"Q8_0", "Q4_0", "Q2_K"}
        assert checkpoint.complete
        assert {item.code for item in checkpoint.findings} <= {"label-disagrees"}  # all its tensors are F32
        check_sums(checkpoint)

    def test_a_repository_that_leaves_it_open(self) -> None:
        with (
            LoopbackHub([Repository(REPO, QUANTS)]) as hub,
            pytest.raises(AmbiguousCheckpointError, match="Q8_0") as caught,
        ):
            open_checkpoint(REPO, endpoint=hub.endpoint)
        assert caught.value.file == REPO

    @pytest.mark.parametrize("number", [1, 2, 3])
    def test_the_path_of_one_part_opens_the_set(self, number: int, tmp_path: Path) -> None:
        write(tmp_path, {**split("x-Q8_0"), "x-Q4_0.gguf": model()})
        checkpoint = open_checkpoint(tmp_path / f"x-Q8_0-0000{number}-of-00003.gguf")
        assert [shard.path for shard in checkpoint.shards] == names("x-Q8_0", 3)
        assert checkpoint.complete

    def test_a_set_that_is_not_there(self) -> None:
        with LoopbackHub([Repository(REPO, QUANTS)]) as hub:
            with pytest.raises(NoCheckpointError, match="`ls` shows them") as caught:
                open_checkpoint(f"{REPO}:Q5_K", endpoint=hub.endpoint)
            assert not [one for one in hub.log if one.target.endswith("x-Q4_0.gguf") and one.origin == "cdn"]
        assert caught.value.expected == "Q5_K"

    def test_sixty_models_cost_few_looks(self) -> None:
        files = {f"model{number}-Q4_K_M.gguf": model(number + 1) for number in range(60)}
        files["mmproj-F16.gguf"] = hollow_gguf([], {"general.architecture": "clip"})
        with LoopbackHub([Repository(REPO, files)]) as hub:
            checkpoint = open_checkpoint(f"{REPO}:model7-Q4_K_M", endpoint=hub.endpoint)
            # The commit, the listing, the file itself, and at most eight looks of two requests.
            assert len(hub.log) <= 20
        assert len(checkpoint.tensors) == 8
        assert len(checkpoint.other_sets) == 59
        # What goes by the name of a side file is looked into first.
        assert [one.path for one in checkpoint.companions] == ["mmproj-F16.gguf"]

    def test_a_thousand_sets_are_sorted_soon(self) -> None:
        paths = [f"m{number}/m{number}-Q4_K_M.gguf" for number in range(1000)]
        begin = time.perf_counter()
        assert choose_set(listed(*paths), source="x", name="m7/m7-Q4_K_M").files[0].path == paths[7]
        assert time.perf_counter() - begin < 3


def unlink(path: Path) -> None:
    path.unlink()


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def make_pointer(path: Path) -> None:
    path.write_bytes(POINTER)


def make_empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("ending", [".gguf", ".safetensors"])
@pytest.mark.parametrize(
    ("damage", "code", "file_bytes"),
    [
        (unlink, "shard-missing", None),
        (make_folder, "shard-missing", None),
        (make_dangling, "shard-unreadable", 0),
        (make_pointer, "shard-unreadable", len(POINTER)),
        (make_empty, "shard-unreadable", 0),
    ],
)
def test_a_damaged_part(
    damage: Callable[[Path], None], code: str, file_bytes: int | None, ending: str, number: int, tmp_path: Path
) -> None:
    parts = split("x-Q8_0")
    if ending == ".safetensors":
        norms = [TensorSpec(f"model.layers.{layer}.input_layernorm.weight", "BF16", (8,)) for layer in range(3)]
        parts = dict(
            zip(names("x-Q8_0", 3, ending=ending), (hollow_safetensors([norm]) for norm in norms), strict=True)
        )
    path = list(parts)[number - 1]
    damage(write(tmp_path, parts) / path)
    checkpoint = open_checkpoint(tmp_path)
    (finding,) = checkpoint.findings
    assert (finding.code, finding.file, finding.severity) == (code, path, "error")
    assert not checkpoint.complete
    assert len(checkpoint.tensors) == 2
    unread = {shard.path: shard.unread_bytes for shard in checkpoint.shards if not shard.header_bytes}
    assert unread == ({} if file_bytes is None else {path: file_bytes})
    check_sums(checkpoint)
    if damage is make_pointer:
        assert "16,900,000,000 bytes" in finding.message


@pytest.mark.parametrize(("count", "ending"), [(1, ".gguf"), (3, ".gguf"), (1, ".safetensors"), (3, ".safetensors")])
def test_nothing_but_pointers(count: int, ending: str, tmp_path: Path) -> None:
    for path in names("x-Q8_0", count, ending=ending):
        make_pointer(tmp_path / path)
    with pytest.raises(NotWeightsError, match="Git LFS pointer"):
        open_checkpoint(tmp_path)


def test_an_empty_file_alone(tmp_path: Path) -> None:
    make_empty(tmp_path / "x-Q8_0.gguf")
    with pytest.raises(TruncatedError):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("ending", [".incomplete", ".part", ".crdownload", ".aria2", ".tmp"])
def test_an_unfinished_download(ending: str, tmp_path: Path) -> None:
    gone = names("x-Q8_0", 3)[1]
    write(tmp_path, split("x-Q8_0"))
    (tmp_path / gone).rename(tmp_path / (gone + ending))
    (finding,) = open_checkpoint(tmp_path).findings
    assert (finding.code, finding.expected, finding.actual, finding.examples) == ("shard-missing", 3, 2, (gone,))
    assert f"an unfinished download lies beside: {gone}{ending}" in finding.message
    # Another file's left-over is none of this set's.
    (tmp_path / (gone + ending)).rename(tmp_path / f"y{ending}")
    (finding,) = open_checkpoint(tmp_path).findings
    assert "unfinished" not in finding.message


class TestLs:
    def listing(self, folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
        assert main(["ls", str(folder), "--json", *options]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["schema"] == "kimi-inspect/sets/1"
        sets: list[dict[str, Any]] = document["sets"]
        return sets

    def test_json(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        files = {**split("Q8_0/x-Q8_0"), "x-Q4_0.gguf": model(2), "mmproj-F16.gguf": model(), "imatrix.gguf": model()}
        write(tmp_path, files)
        size = sum(file.size for file in split("x").values())
        q4 = {"name": "Q4_0", "format": "gguf", "file_count": 1, "file_bytes": model(2).size, "default": False}
        q8 = {"name": "Q8_0", "format": "gguf", "file_count": 3, "file_bytes": size, "default": False}
        assert self.listing(tmp_path, capsys) == [q4, q8]
        assert self.listing(tmp_path, capsys, "--files", "Q8_0/*") == [q8 | {"default": True}]
        write(tmp_path, {"model.safetensors": SAFETENSORS})
        assert [one["name"] for one in self.listing(tmp_path, capsys) if one["default"]] == ["model"]

    @pytest.mark.parametrize(("damage", "size"), [(make_dangling, None), (make_pointer, len(POINTER)), (make_empty, 0)])
    def test_no_header_is_read(
        self, damage: Callable[[Path], None], size: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        damage(write(tmp_path, {"x-Q8_0.gguf": model()}) / "x-Q8_0.gguf")
        assert [(one["name"], one["file_bytes"]) for one in self.listing(tmp_path, capsys)] == [("Q8_0", size)]
        assert main(["ls", str(tmp_path)]) == 0
        assert ("unknown" in capsys.readouterr().out) == (size is None)

    def test_for_people(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        write(tmp_path, {f"{HOSTILE}-x.gguf": model(), "[bold]é.gguf": model(), "mmproj-F16.gguf": model()})
        assert main(["ls", str(tmp_path)]) == 0
        rows = capsys.readouterr().out.splitlines()
        assert not [row for row in rows if not row.isprintable()]
        assert [row.split()[0] for row in rows[2:]] == [
            HOSTILE.encode("unicode_escape").decode() + "-x",
            "[bold]é",
            "mmproj-F16",
        ]
        assert [row.rstrip().endswith("side file") for row in rows[2:]] == [False, False, True]
        # Those of a stranger's names that are asked for in vain do no harm either.
        assert main(["show", str(tmp_path)]) == 2
        assert capsys.readouterr().err.strip().isprintable()
