from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from contracts.checks import REPO, weights

from kimi_inspect import open_checkpoint
from kimi_inspect.errors import CheckpointError, NoCheckpointError, SourceFileNotFoundError, UnsafePathError
from kimi_inspect.pipelines import read_pipeline
from kimi_inspect.sets import choose_set, sort_out
from kimi_inspect.sidecars import MAX_SHARDS, ShardName, split_siblings
from kimi_inspect.sources import ListedFile, MappedFiles
from kimi_inspect.testing import HollowFile, LoopbackHub, Repository, TensorSpec, hollow_safetensors
from kimi_inspect.wholeness import missing_shards

Files = dict[str, HollowFile]


def listed(*paths: str, size: int | None = 10) -> list[ListedFile]:
    return [ListedFile(path=path, size=size) for path in paths]


def shards(count: int, stem: str = "model", *, without: Sequence[int] = (), variant: str = "") -> list[str]:
    numbers = [number for number in range(1, count + 1) if number not in without]
    return [f"{stem}-{number:05d}-of-{count:05d}{variant}.safetensors" for number in numbers]


class Unread(MappedFiles):
    """A store whose side files cannot be read."""

    def __init__(self) -> None:
        super().__init__({})

    def read_small(self, file: ListedFile, limit: int) -> bytes:
        raise SourceFileNotFoundError(f"no {limit} bytes", file=file.path)


@pytest.mark.parametrize(
    ("path", "set_name", "number", "count"),
    [
        ("model.safetensors", "model", None, None),
        ("a/b/model.safetensors", "a/b/model", None, None),
        ("model-00001-of-00002.safetensors", "model", 1, 2),
        ("model-00096-of-000096.safetensors", "model", 96, 96),
        ("a/x-y-00001-of-00002.safetensors", "a/x-y", 1, 2),
        ("model-1-of-2.safetensors", "model", 1, 2),
        ("a/model_00002-of-00002.safetensors", "a/model", 2, 2),
        ("model.fp16.safetensors", "model.fp16", None, None),
        ("model.fp16-00001-of-00002.safetensors", "model.fp16", 1, 2),
        ("model-00001-of-00002.fp16.safetensors", "model.fp16", 1, 2),
        ("a-of-b.safetensors", "a-of-b", None, None),
        ("model-00001-of-00002-00003-of-00004.safetensors", "model-00001-of-00002", 3, 4),
        ("model-0000000001-of-0000000002.safetensors", "model-0000000001-of-0000000002", None, None),
    ],
)
def test_names_of_shards(path: str, set_name: str, number: int | None, count: int | None) -> None:
    name = ShardName.of(path)
    assert (name.set_name, name.number, name.count) == (set_name, number, count)
    assert name.sibling(number or 0) == path or number is None


@pytest.mark.parametrize(
    ("path", "siblings"),
    [
        ("a/x-00002-of-00003.safetensors", [f"a/x-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]),
        ("x-2-of-3.gguf", ["x-1-of-3.gguf", "x-2-of-3.gguf", "x-3-of-3.gguf"]),
        ("x-00002-of-000002.safetensors", ["x-00001-of-000002.safetensors", "x-00002-of-000002.safetensors"]),
        ("x_1-of-2.safetensors", ["x_1-of-2.safetensors", "x_2-of-2.safetensors"]),
        ("x.safetensors", []),
        ("x-00001-of-00000.safetensors", []),
        (f"x-00001-of-{MAX_SHARDS + 1}.safetensors", []),
    ],
)
def test_siblings(path: str, siblings: list[str]) -> None:
    assert split_siblings(path) == siblings


def test_shards_come_by_number_whatever_the_listing() -> None:
    paths = shards(12)
    (found,) = sort_out(listed(*reversed(paths))).sets
    assert [file.path for file in found.files] == paths
    assert (found.name, found.format, found.default) == ("model", "safetensors", True)
    assert (found.file_count, found.file_bytes) == (12, 120)
    # By text "10" would come before "9".
    (unpadded,) = sort_out(listed(*(f"m-{number}-of-12.safetensors" for number in range(12, 0, -1)))).sets
    assert [ShardName.of(file.path).number for file in unpadded.files] == list(range(1, 13))


def test_the_size_of_a_set_with_a_file_of_unknown_size() -> None:
    (found,) = sort_out([*listed("a-1-of-2.safetensors"), *listed("a-2-of-2.safetensors", size=None)]).sets
    assert found.file_bytes is None


def test_what_is_no_weight_file_is_in_no_set() -> None:
    assert sort_out(listed("config.json", "model.safetensors.index.json", "x.bin", "safetensors", "a.txt")).sets == ()


@pytest.mark.parametrize(
    ("paths", "default"),
    [
        # What from_pretrained loads: the root before folders, plain before variants, `model` before other names,
        # and one file before many.
        (["model.safetensors", "sub/model.safetensors"], "model"),
        (["zzz.safetensors", "sub/model.safetensors"], "zzz"),
        (["a/b/model.safetensors", "z/model.safetensors"], "z/model"),
        (["model.fp16.safetensors", "model.safetensors"], "model"),
        ([*shards(2, variant=".fp16"), *shards(2)], "model"),
        (["consolidated.safetensors", *shards(2)], "model"),
        (["adapter.safetensors", "model.safetensors"], "model"),
        (["x.fp16.safetensors", "x.safetensors"], "x"),
        (["b.safetensors", "a.safetensors"], "a"),
        (["a.fp16.safetensors", "b.safetensors"], "b"),
        (["consolidated.safetensors", "x.safetensors"], "x"),
        (["draft.safetensors", "x.safetensors"], "x"),
    ],
)
def test_default(paths: list[str], default: str) -> None:
    sets = sort_out(listed(*paths)).sets
    assert [found.name for found in sets if found.default] == [default]
    assert sets[0].name == default
    assert choose_set(listed(*reversed(paths)), source="x") == sets[0]


def test_one_file_comes_before_many() -> None:
    sets = sort_out(listed(*shards(2), "model.safetensors")).sets
    assert [[file.path for file in found.files] for found in sets] == [["model.safetensors"], shards(2)]


def test_sets_of_one_name_are_told_apart() -> None:
    listing = listed(*shards(2), *shards(3), "model.safetensors")
    sets = sort_out(listing).sets
    assert len({found.name for found in sets}) == len(sets) == 3
    for found in sets:
        assert choose_set(listing, source="x", name=found.name).files == found.files


UNET, VAE = "unet/diffusion_pytorch_model", "vae/diffusion_pytorch_model"
DIFFUSERS = ["model_index.json", f"{UNET}.safetensors", f"{VAE}.safetensors", "text_encoder/model.safetensors"]


def in_folder(folder: str, paths: Sequence[str]) -> list[str]:
    return [f"{folder}/{path}" for path in paths]


@pytest.mark.parametrize(
    ("paths", "sets"),
    [
        (DIFFUSERS, {"pipeline": DIFFUSERS[1:]}),
        # Several text encoders.
        (
            [*DIFFUSERS, "text_encoder_2/model.safetensors", "text_encoder_3/model.safetensors"],
            {"pipeline": [*DIFFUSERS[1:], "text_encoder_2/model.safetensors", "text_encoder_3/model.safetensors"]},
        ),
        # A variant where there is one, the plain file where there is none.
        (
            [*DIFFUSERS, f"{UNET}.fp16.safetensors", f"{UNET}.bf16.safetensors", f"{VAE}.fp16.safetensors"],
            {
                "pipeline": DIFFUSERS[1:],
                "pipeline.fp16": [f"{UNET}.fp16.safetensors", f"{VAE}.fp16.safetensors", DIFFUSERS[3]],
                "pipeline.bf16": [f"{UNET}.bf16.safetensors", *DIFFUSERS[2:]],
            },
        ),
        # A sharded part, and its variant named in either way.
        *(
            (
                ["model_index.json", *in_folder("unet", shards(2)), *variant, f"{VAE}.safetensors"],
                {
                    "pipeline": [*in_folder("unet", shards(2)), f"{VAE}.safetensors"],
                    "pipeline.fp16": [*variant, f"{VAE}.safetensors"],
                },
            )
            for variant in (
                in_folder("unet", shards(2, variant=".fp16")),
                in_folder("unet", shards(2, "model.fp16")),
                ["unet/model.fp16.safetensors"],
            )
        ),
        # What lies in the root, or deeper, is a checkpoint of its own; so is a second file in a folder.
        ([*DIFFUSERS, "sd_xl.safetensors"], {"pipeline": DIFFUSERS[1:], "sd_xl": ["sd_xl.safetensors"]}),
        ([*DIFFUSERS, "a/b/x.safetensors"], {"pipeline": DIFFUSERS[1:], "a/b/x": ["a/b/x.safetensors"]}),
        ([*DIFFUSERS, "vae/z.safetensors"], {"pipeline": DIFFUSERS[1:], "vae/z": ["vae/z.safetensors"]}),
        ([*DIFFUSERS, "unet/x-Q4_0.gguf"], {"pipeline": DIFFUSERS[1:], "Q4_0": ["unet/x-Q4_0.gguf"]}),
        (
            ["model_index.json", "transformer/x-Q4_0.gguf", "vae/x.safetensors"],
            {"pipeline": ["vae/x.safetensors"], "Q4_0": ["transformer/x-Q4_0.gguf"]},
        ),
        # No folder has weights; the index lies deeper: nothing is put together.
        (["model_index.json", "x.safetensors"], {"x": ["x.safetensors"]}),
        (["a/model_index.json", "a/vae/x.safetensors"], {"a/vae/x": ["a/vae/x.safetensors"]}),
        (DIFFUSERS[1:3], {UNET: DIFFUSERS[1:2], VAE: DIFFUSERS[2:3]}),
        # sentence-transformers: the root and the numbered folders.
        (
            ["modules.json", "model.safetensors", "2_Dense/model.safetensors", "onnx/model.safetensors"],
            {"pipeline": ["model.safetensors", "2_Dense/model.safetensors"], "onnx/model": ["onnx/model.safetensors"]},
        ),
        (
            ["modules.json", "0_T/x.safetensors", "2_D/x.safetensors"],
            {"pipeline": ["0_T/x.safetensors", "2_D/x.safetensors"]},
        ),
        (
            ["modules.json", *shards(2), "model.fp16.safetensors", "x-Q4_0.gguf"],
            {"pipeline": shards(2), "model.fp16": ["model.fp16.safetensors"], "Q4_0": ["x-Q4_0.gguf"]},
        ),
        (["modules.json", "onnx/x.safetensors"], {"onnx/x": ["onnx/x.safetensors"]}),
    ],
)
def test_pipelines(paths: list[str], sets: dict[str, list[str]]) -> None:
    folders = read_pipeline(Unread(), listed(*paths)).folders
    found = sort_out(listed(*reversed(paths)), folders=folders).sets
    assert {one.name: sorted(file.path for file in one.files) for one in found} == {
        name: sorted(files) for name, files in sets.items()
    }
    assert [one.name for one in found if one.default] == [next(iter(sets))]
    # A file that is in several stands for the plain one.
    for path in sets[found[0].name]:
        assert choose_set(listed(*paths), source="x", member=path, folders=folders) == found[0]


def test_a_part_of_a_pipeline_is_missing() -> None:
    parts = [*in_folder("text_encoder", shards(3)), *in_folder("unet", shards(3)[::2]), "vae/x.safetensors"]
    listing = listed("model_index.json", *parts)
    (found,) = sort_out(listing, folders=read_pipeline(Unread(), listing).folders).sets
    (finding,) = missing_shards(found)
    assert (finding.code, finding.examples) == ("shard-missing", tuple(in_folder("unet", shards(3)[1:2])))
    assert (finding.expected, finding.actual) == (3, 2)


class TestChoice:
    LISTING = listed(*shards(3), "original/consolidated.safetensors", "model.fp16.safetensors", "config.json")

    def paths(self, **options: object) -> list[str]:
        return [file.path for file in choose_set(self.LISTING, source="x", **options).files]  # type: ignore[arg-type]

    def test_by_name(self) -> None:
        assert self.paths(name="model.fp16") == ["model.fp16.safetensors"]
        assert self.paths(name="original/consolidated") == ["original/consolidated.safetensors"]

    def test_by_a_file(self) -> None:
        assert self.paths(member=shards(3)[2]) == shards(3)
        assert self.paths(member="original/consolidated.safetensors") == ["original/consolidated.safetensors"]

    @pytest.mark.parametrize(
        ("globs", "paths"),
        [
            (["model-*"], shards(3)),
            (["*-00002-of-*"], shards(3)[1:2]),
            (["*-0000[13]-*"], [shards(3)[0], shards(3)[2]]),
            (["*-0000?-of-00003.safetensors"], shards(3)),
            # The star crosses folders, and a folder stands for all that is in it.
            (["*consolidated*"], ["original/consolidated.safetensors"]),
            (["original/"], ["original/consolidated.safetensors"]),
            (["original/*"], ["original/consolidated.safetensors"]),
            ([shards(3)[0], shards(3)[1]], shards(3)[:2]),
            (["*"], shards(3)),
            (["nothing", "model-00001*"], shards(3)[:1]),
        ],
    )
    def test_by_globs(self, globs: list[str], paths: list[str]) -> None:
        assert self.paths(globs=globs) == paths

    @pytest.mark.parametrize("globs", [["*.gguf"], ["MODEL-*"], ["model"], ["config.json"], ["consolidated*"]])
    def test_globs_that_match_no_weights(self, globs: list[str]) -> None:
        with pytest.raises(NoCheckpointError, match="matches") as caught:
            self.paths(globs=globs)
        assert globs[0] in str(caught.value)
        assert caught.value.actual == "5 files of weights that no glob fits"

    def test_no_such_set(self) -> None:
        with pytest.raises(NoCheckpointError) as caught:
            self.paths(name="fp32")
        assert caught.value.expected == "fp32"
        # The choice there is.
        assert caught.value.actual == "model, model.fp16, original/consolidated"
        with pytest.raises(NoCheckpointError):
            self.paths(member="config.json")

    def test_nothing_to_choose_from(self) -> None:
        with pytest.raises(NoCheckpointError, match="no safetensors or GGUF file is there") as caught:
            choose_set(listed("config.json"), source="a/b")
        assert isinstance(caught.value, CheckpointError)
        assert (caught.value.file, caught.value.actual) == ("a/b", "1 file of other kinds")
        with pytest.raises(NoCheckpointError) as caught:
            choose_set(listed("config.json", "a.txt"), source="a/b", globs=["*.gguf"])
        assert caught.value.actual == "2 files of other kinds"


@pytest.mark.parametrize(
    ("paths", "missing"),
    [
        (shards(3), []),
        (["model.safetensors"], []),
        (shards(3, without=[1]), shards(3)[:1]),
        (shards(3, without=[2, 3]), shards(3)[1:]),
        (shards(30, without=range(2, 20)), shards(30)[1:19]),
        (["model-00002-of-000003.safetensors"], [f"model-0000{number}-of-000003.safetensors" for number in (1, 3)]),
        (["x-00001-of-999999999.safetensors"], []),
    ],
)
def test_missing_shards(paths: list[str], missing: list[str]) -> None:
    found = list(missing_shards(sort_out(listed(*paths)).sets[0]))
    if not missing:
        assert found == []
        return
    (finding,) = found
    assert (finding.code, finding.severity, finding.file) == ("shard-missing", "error", missing[0])
    assert (finding.count, finding.examples) == (len(missing), tuple(missing[:10]))
    assert (finding.expected, finding.actual) == (len(paths) + len(missing), len(paths))


class TestOpening:
    """Sets as who opens a checkpoint sees them."""

    @pytest.fixture
    def folder(self, tmp_path: Path, kimi: Files) -> Path:
        for path, file in kimi.items():
            file.write_to(tmp_path / path)
        return tmp_path

    def test_a_missing_shard(self, folder: Path, kimi: Files) -> None:
        gone = "model-00003-of-000008.safetensors"
        (folder / gone).unlink()
        checkpoint = open_checkpoint(folder)
        (finding,) = checkpoint.findings
        assert (finding.code, finding.examples) == ("shard-missing", (gone,))
        assert not checkpoint.complete
        assert [shard.path for shard in checkpoint.shards] == [path for path in weights(kimi) if path != gone]

    @pytest.mark.parametrize("files", ["*-0000[12]-*", ["model-00001*", "model-00002*"]])
    def test_a_part_chosen_on_purpose(self, folder: Path, kimi: Files, files: str | list[str]) -> None:
        checkpoint = open_checkpoint(folder, files=files)
        assert checkpoint.findings == ()
        assert [shard.path for shard in checkpoint.shards] == list(weights(kimi))[:2]

    def test_a_set_of_several(self, kimi: Files) -> None:
        other = hollow_safetensors([TensorSpec("a.weight", "BF16", (3, 5))])
        files: Files = {**kimi, "original/consolidated.safetensors": other, "model.fp16.safetensors": other}
        with LoopbackHub([Repository(REPO, files)]) as hub:
            default = open_checkpoint(REPO, endpoint=hub.endpoint)
            named = open_checkpoint(f"{REPO}:original/consolidated", endpoint=hub.endpoint)
            pasted = open_checkpoint(f"{hub.endpoint}/{REPO}/blob/main/model.fp16.safetensors", endpoint=hub.endpoint)
        assert (default.set_name, len(default.shards)) == ("model", len(weights(kimi)))
        assert (named.set_name, len(named.shards), len(named.tensors)) == ("original/consolidated", 1, 1)
        assert (pasted.set_name, len(pasted.shards), len(pasted.tensors)) == ("model.fp16", 1, 1)

    def test_the_config_of_a_set_in_a_folder_is_the_one_beside_it(self, tmp_path: Path) -> None:
        file = hollow_safetensors([TensorSpec("a.weight", "BF16", (3, 5))])
        for place in ("sub", "bare"):
            (tmp_path / place).mkdir()
            file.write_to(tmp_path / place / "model.safetensors")
        (tmp_path / "config.json").write_text('{"model_type": "root"}')
        (tmp_path / "sub" / "config.json").write_text('{"model_type": "sub"}')
        assert open_checkpoint(tmp_path, files="sub/").architecture == "sub"
        assert open_checkpoint(tmp_path, files="bare/").architecture == "root"

    @pytest.mark.parametrize(
        "path",
        [
            "../x.safetensors",
            "a/../../x.safetensors",
            "a/./x.safetensors",
            "a//x.safetensors",
            "/etc/x.safetensors",
            "a\\..\\x.safetensors",
            "..",
            "a/",
            "x\0.safetensors",
            "../x.json",
        ],
    )
    def test_an_unsafe_path_is_never_asked_for(self, kimi: Files, path: str) -> None:
        with LoopbackHub([Repository(REPO, {**kimi, path: HollowFile(b"{}")})]) as hub:
            with pytest.raises(UnsafePathError) as caught:
                open_checkpoint(REPO, endpoint=hub.endpoint)
            # The commit and the listing, and not one file.
            assert len(hub.log) == 2
            assert not [one for one in hub.log if "/resolve" in one.target]
        assert isinstance(caught.value, CheckpointError)
        assert caught.value.file == REPO
        assert str(caught.value).isprintable()

    @pytest.mark.parametrize("path", ["..a/x..y", "a/...", ".gitattributes", "a b/%2e%2e", "a/..%2fx"])
    def test_a_path_that_only_looks_unsafe(self, kimi: Files, path: str) -> None:
        with LoopbackHub([Repository(REPO, {**kimi, path: HollowFile(b"{}")})]) as hub:
            assert open_checkpoint(REPO, endpoint=hub.endpoint).complete
