"""What is said of checkpoints, held against what is counted: each claim agrees, disagrees, or is left open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from attrs import evolve
from layouts.published import PUBLISHED as MODELS

from kimi_inspect import Checkpoint, Finding, Severity, open_checkpoint, summarize
from kimi_inspect.claims import claims_of, label_findings
from kimi_inspect.components import Component
from kimi_inspect.counted import all_opened
from kimi_inspect.hub_card import HubCard
from kimi_inspect.name_words import expert_words, is_model_size, quant_words, size_word
from kimi_inspect.published import PUBLISHED, published_of, repository_of
from kimi_inspect.sources import ListedFile
from kimi_inspect.testing import (
    BUILDS,
    DANIELHANCHEN_GGUF_ID,
    DEVQUASAR_GGUF_ID,
    DPHN_ID,
    KIMI_K31_PRO_ID,
    PIPENETWORK_IDS,
    GgufTensor,
    HollowFile,
    TensorSpec,
    danielhanchen_gguf,
    devquasar_gguf,
    hollow_gguf,
    hollow_safetensors,
    kimi_gguf,
    kimi_k31_pro,
    kimi_mmproj,
    kimi_reap,
    packed_model,
)
from kimi_inspect.testing.hollow import Files
from kimi_inspect.verdict import Claim

COMMIT = "d" * 40
SMALL = {"layers": 2, "experts": 4}
Told = tuple[str | int, str | int | None, bool | None]


def hollow(files: Files) -> dict[str, HollowFile]:
    return {path: file if isinstance(file, HollowFile) else HollowFile(file) for path, file in files.items()}


def opened(files: Files, source: str = "", /, **options: Any) -> Checkpoint:
    """Open files as if they were those of a repository, if one is named."""
    checkpoint = open_checkpoint(hollow(files), **options)
    return evolve(checkpoint, source=source, commit=COMMIT) if source else checkpoint


def claims(checkpoint: Checkpoint, **said: Any) -> tuple[Claim, ...]:
    return claims_of(checkpoint, summarize(checkpoint), card=said.pop("card", None), **said)


def told(found: tuple[Claim, ...], subject: str, said_by: str = "") -> list[Told]:
    """Return what is said of a subject, counted, and whether it agrees."""
    return [(one.said, one.counted, one.agrees) for one in found if one.subject == subject and said_by in one.said_by]


def agrees(found: tuple[Claim, ...], subject: str, said_by: str = "") -> list[bool | None]:
    return [one[2] for one in told(found, subject, said_by)]


def findings(checkpoint: Checkpoint, reference_experts: int | None = None) -> list[Finding]:
    return list(label_findings(checkpoint, summarize(checkpoint), reference_experts=reference_experts))


def in_gguf(encoding: str = "q4_k", **metadata: Any) -> Checkpoint:
    """Open the packed model in GGUF with more key-values, or others; ``__`` stands for a point."""
    said = {key.replace("__", "."): value for key, value in metadata.items()}
    checkpoint = open_checkpoint(packed_model(f"gguf-{encoding}").files)
    return evolve(checkpoint, metadata={**checkpoint.metadata, **said})


@pytest.fixture(scope="module")
def kimi() -> Checkpoint:
    """A small Kimi under the name of the true one."""
    return opened(kimi_k31_pro(**SMALL), KIMI_K31_PRO_ID)


def parameters_of(checkpoint: Checkpoint) -> int:
    counted = summarize(checkpoint).parameters
    assert counted is not None
    return counted


class TestHub:
    def test_the_right_total(self, kimi: Checkpoint) -> None:
        total = parameters_of(kimi)
        assert told(claims(kimi, card=HubCard(safetensors_total=total)), "parameters", "Hub") == [(total, total, True)]

    def test_a_wrong_total(self, kimi: Checkpoint) -> None:
        card = HubCard(safetensors_total=1, gguf_total=2, gguf_architecture="other")
        assert told(claims(kimi, card=card), "parameters", "Hub") == [(1, parameters_of(kimi), False)]
        assert told(claims(kimi, card=card), "architecture") == []

    def test_a_total_that_cannot_be_counted(self) -> None:
        unknown = opened(BUILDS[DPHN_ID](**SMALL), DPHN_ID)
        assert told(claims(unknown, card=HubCard(safetensors_total=1)), "parameters", "Hub") == [(1, None, None)]

    def test_a_part_of_a_set_is_not_the_whole(self) -> None:
        part = opened(kimi_k31_pro(**SMALL), KIMI_K31_PRO_ID, files="model-00001-*")
        said = claims(part, card=HubCard(safetensors_total=1), index_total=2)
        assert agrees(said, "parameters") == [None, None]
        assert agrees(said, "tensor bytes") == [None]
        assert agrees(said, "files") == agrees(said, "file bytes") == [None]

    def test_a_set_with_a_part_missing_is_not_the_whole(self) -> None:
        files = kimi_k31_pro(**SMALL)
        del files["model-00002-of-000005.safetensors"]
        assert agrees(claims(opened(files), card=HubCard(safetensors_total=1)), "parameters") == [None]

    def test_a_tensor_that_is_there_twice_counts_once(self) -> None:
        files = {f"model-0000{number}-of-00002.safetensors": matrix("BF16") for number in (1, 2)}
        assert told(claims(opened(files), card=HubCard(safetensors_total=64)), "parameters") == [(64, 64, True)]

    def test_another_set_may_be_meant(self) -> None:
        files = {"model.safetensors": matrix("BF16"), "model.fp16.safetensors": matrix("F16")}
        checkpoint = opened(files)
        assert checkpoint.other_sets
        assert agrees(claims(checkpoint, card=HubCard(safetensors_total=1)), "parameters") == [None]
        assert agrees(claims(checkpoint, card=HubCard(safetensors_total=64)), "parameters") == [True]

    def test_gguf_of_one_file(self) -> None:
        checkpoint = in_gguf()
        total = parameters_of(checkpoint)
        for said, expected in ((total, True), (total - 1, False)):
            card = HubCard(gguf_total=said, safetensors_total=1, gguf_architecture="llama")
            assert told(claims(checkpoint, card=card), "parameters", "Hub") == [(said, total, expected)]
            assert told(claims(checkpoint, card=card), "architecture") == [("llama", "qwen3moe", False)]
        assert agrees(claims(checkpoint, card=HubCard(gguf_architecture="qwen3moe")), "architecture") == [True]

    def test_gguf_of_several_files_is_one_of_them(self) -> None:
        checkpoint = opened(kimi_gguf("Q2_K", **SMALL, tokens=50, parts=2))
        total = parameters_of(checkpoint)
        assert agrees(claims(checkpoint, card=HubCard(gguf_total=total)), "parameters", "Hub") == [True]
        assert agrees(claims(checkpoint, card=HubCard(gguf_total=total - 1)), "parameters", "Hub") == [None]

    def test_base_models_are_repeated(self, kimi: Checkpoint) -> None:
        card = HubCard(base_models=("a/b", "c/d\x1b[2J"))
        assert told(claims(kimi, card=card), "base model") == [("a/b", None, None), (r"c/d\x1b[2J", None, None)]

    def test_nothing_said_is_no_claim(self) -> None:
        assert claims(open_checkpoint({"model.safetensors": matrix("BF16")}), card=HubCard()) == ()


def matrix(dtype: str, name: str = "model.layers.0.mlp.up_proj.weight") -> HollowFile:
    return hollow_safetensors([TensorSpec(name, dtype, (8, 8))])


@pytest.mark.parametrize(("off", "expected"), [(0, True), (1, False)])
def test_the_index(kimi: Checkpoint, off: int, expected: bool) -> None:
    stored = summarize(kimi).tensor_bytes
    assert told(claims(kimi, index_total=stored + off), "tensor bytes") == [(stored + off, stored, expected)]


class TestMetadata:
    @pytest.mark.parametrize(
        ("label", "counted", "expected"),
        [
            ("2.8T", "4.3B", False),
            ("4.3B", "4.3B", True),
            ("1.8B", "4.3B", True),  # without embeddings and head
            ("1.7B", "4.3B", False),
            ("4.8B", "4.3B", False),
            ("4x4.2B", "4x4.2B", True),
            ("5x4.2B", "4x4.2B", False),
            ("4x7B", "4x4.2B", False),
            ("large", None, None),
            ("4.3B-chat", None, None),
            ("", None, None),
        ],
    )
    def test_the_size_label(self, label: str, counted: str | None, expected: bool | None) -> None:
        checkpoint = opened(kimi_gguf("Q2_K", **SMALL, tokens=50, parts=1))
        checkpoint = evolve(checkpoint, metadata={**checkpoint.metadata, "general.size_label": label})
        assert told(claims(checkpoint), "size", "size_label") == [(label, counted, expected)]

    @pytest.mark.parametrize(
        ("number", "said", "expected"),
        [
            (15, "Q4_K_M", True),
            (15 + 1024, "Q4_K_M", True),
            (7, "Q8_0", True),
            (38, "MXFP4_MOE", False),
            (10, "Q2_K", False),
            (999, "999", None),
        ],
    )
    def test_the_file_type(self, number: int, said: str, expected: bool | None) -> None:
        found = claims(in_gguf(general__file_type=number))
        assert told(found, "quantization", "file_type") == [(said, "q4_k, q8_0, f32", expected)]

    def test_the_parameter_count(self) -> None:
        total = parameters_of(in_gguf())
        for said, expected in ((total, True), (total + 1, False)):
            found = claims(in_gguf(general__parameter_count=said))
            assert told(found, "parameters", "general") == [(said, total, expected)]
            assert findings(in_gguf(general__parameter_count=said)) == []

    @pytest.mark.parametrize("off", [0.5, 1.02, 1000])
    def test_a_wrong_parameter_count(self, off: float) -> None:
        checkpoint = in_gguf(general__parameter_count=int(parameters_of(in_gguf()) * off))
        (item,) = findings(checkpoint)
        path = checkpoint.shards[0].path
        assert (item.code, item.severity, item.where) == ("declared-total-wrong", Severity.WARNING, path)
        assert (item.actual, item.count) == (parameters_of(checkpoint), 1)

    def test_a_parameter_count_may_leave_embeddings_out(self) -> None:
        checkpoint = in_gguf()
        outside = {Component.EMBEDDINGS, Component.LM_HEAD}
        left = sum(one.parameters or 0 for one in checkpoint.tensors if one.component in outside)
        assert left > 0.02 * parameters_of(checkpoint)
        assert findings(in_gguf(general__parameter_count=parameters_of(checkpoint) - left)) == []

    @pytest.mark.parametrize("said", [{"general__parameter_count": 1}, {"general__size_label": "70B"}])
    def test_totals_of_what_is_damaged_are_not_told_again(self, said: dict[str, Any]) -> None:
        lost = Finding(code="layer-missing", severity=Severity.ERROR, where="x", message="x")
        checkpoint = in_gguf(**said)
        assert len(findings(checkpoint)) == 1
        assert findings(evolve(checkpoint, findings=(lost,))) == []

    @pytest.mark.parametrize(
        ("label", "wrong"),
        [("70B", True), ("8x70B", True), ("2.1M", False), ("large", False), ("70B-chat", False), ("2x2B", True)],
    )
    def test_a_wrong_size_label(self, label: str, wrong: bool) -> None:
        complaints = findings(in_gguf(general__size_label=label))
        assert [(item.code, item.expected) for item in complaints] == [("label-disagrees", label)] * wrong

    def test_label_and_name_are_one_finding(self) -> None:
        checkpoint = evolve(in_gguf(general__size_label="70B"), source="acme/M-70B-GGUF", commit=COMMIT)
        (item,) = findings(checkpoint)
        assert (item.where, item.expected, item.actual, item.count) == ("M-70B-GGUF", "70B", "2.1M", 2)
        assert "its repository name says 70B and its general.size_label says 70B, and it holds" in item.message

    def test_what_is_of_another_type_says_nothing(self) -> None:
        keys = ("size_label", "file_type", "parameter_count", "license")
        odd: dict[str, Any] = {f"general__{key}": [1] for key in keys}
        assert claims(in_gguf(**odd)) == claims(in_gguf())

    def test_safetensors_have_no_such_metadata(self) -> None:
        said = {"general.size_label": "7B", "general.file_type": "7", "general.license": "mit"}
        file = hollow_safetensors([TensorSpec("a.weight", "BF16", (8, 8))], metadata=said)
        assert claims(open_checkpoint({"model.safetensors": file})) == ()


class TestQuantizationsInNames:
    @pytest.mark.parametrize(
        ("name", "encoding", "expected"),
        [
            ("M-2bit-MLX", "mlx-affine2-64", True),
            ("M-3-bit", "mlx-affine4-64", False),
            ("M-4bit", "mlx-affine4-64", True),
            ("M-MLX-q6", "mlx-affine6-64", True),
            ("M-MLX-q6", "mlx-affine4-64", False),
            ("M-8bit", "mlx-affine4-64", True),  # its router is
            ("M-MXFP4", "mlx-mxfp4", True),
            ("M-MXFP4", "compressed-mxfp4", True),
            ("M-MXFP4", "compressed-nvfp4", False),
            ("M-NVFP4", "modelopt-nvfp4", True),
            ("M-NVFP4", "bf16", False),
            ("M-MXFP8", "mlx-mxfp8", True),
            ("M-FP8", "fp8-block", True),
            ("M-FP8-Dynamic", "compressed-fp8-rows", True),
            ("M-FP8", "mlx-mxfp8", True),
            ("M-FP8", "compressed-int8-128", False),
            ("M-AWQ", "awq-4", True),
            ("M-AWQ", "compressed-int4-128", True),
            ("M-AWQ", "bf16", False),
            ("M-GPTQ-Int4", "gptq-4", True),
            ("M-GPTQ-Int8", "gptq-4", False),
            ("M-w4a16", "compressed-int4-128", True),
            ("M-w8a8", "compressed-int4-128", False),
            ("M-bnb-4bit", "bnb-nf4", True),
            ("M-NF4", "bnb-nf4", True),
            ("M-NF4", "bnb-fp4", False),
            ("M-BF16", "bf16", True),
            ("M-FP16", "f16", True),
            ("M-fp32", "f16", False),
            ("M-Q4_K_M", "bf16", None),  # a recipe of llama.cpp's: what it means here is not known
        ],
    )
    def test_safetensors(self, name: str, encoding: str, expected: bool | None) -> None:
        checkpoint = opened(packed_model(encoding).files, f"acme/{name}@main")
        words = agrees(claims(checkpoint), "quantization", "repository name")
        assert words[-1] is expected
        complaints = findings(checkpoint)
        assert [item.code for item in complaints] == ["label-disagrees"] * (expected is False)

    @pytest.mark.parametrize(
        ("name", "encoding", "expected"),
        [
            ("M-Q4_K_M-GGUF", "q4_k", True),
            ("M.i1-Q4_K_M", "q4_k", True),
            ("M-Q2_K-GGUF", "q4_k", False),
            ("M-IQ2_XXS", "iq2_s", True),
            ("M-MXFP4_MOE", "mxfp4", True),
            ("M-MXFP4", "q4_k", False),
            ("M-NVFP4", "nvfp4", True),
            ("M-4bit", "q4_k", True),
            ("M-2bit", "q4_k", False),
            ("M-FP8-GGUF", "q4_k", None),  # what it was made from
            ("M-AWQ-GGUF", "q4_k", None),
        ],
    )
    def test_gguf(self, name: str, encoding: str, expected: bool | None) -> None:
        checkpoint = evolve(in_gguf(encoding), source=f"acme/{name}", commit=COMMIT)
        assert agrees(claims(checkpoint), "quantization", "repository name") == [expected]
        assert findings(checkpoint) == []  # its label is looked at when it is opened

    @pytest.mark.parametrize(
        "name",
        [
            "Kimi-K3.1-Pro",
            "Kimi-K3.1-Pro-NF12",
            "M-FP8-KV",
            "M-kv_fp8",
            "M-4.5bit",
            "M-1.58bit",
            "M-Q3i",
            "M-AttnFP8",
            "M-FP8-to-FP32",
            "M-dequantized-NVFP4",
            "M-Q9",
            "M-v2bits2",
            "M-int16",
        ],
    )
    def test_words_that_are_not_understood(self, name: str) -> None:
        checkpoint = opened(packed_model("bf16").files, f"acme/{name}")
        assert told(claims(checkpoint), "quantization") == []
        assert findings(checkpoint) == []

    def test_an_unknown_packing_may_be_what_is_said(self) -> None:
        for name, expected in (("M-NVFP4", None), ("M-MXFP4", True)):
            checkpoint = opened(BUILDS[DPHN_ID](**SMALL), f"acme/{name}")
            assert agrees(claims(checkpoint), "quantization") == [expected]
            assert findings(checkpoint) == []

    def test_the_name_of_a_repository_with_several_sets_speaks_of_one(self) -> None:
        files = {"model.safetensors": matrix("BF16"), "model.fp16.safetensors": matrix("F16")}
        checkpoint = opened(files, "acme/M-NVFP4")
        assert agrees(claims(checkpoint), "quantization", "repository name") == [None]
        assert findings(checkpoint) == []

    def test_the_name_of_a_set_speaks_of_it(self) -> None:
        files = {"model.safetensors": matrix("BF16"), "8bit/model.safetensors": matrix("BF16")}
        checkpoint = opened(files, "acme/M", files="8bit/*")
        assert told(claims(checkpoint), "quantization") == [("8bit", "bf16", False)]
        (item,) = findings(checkpoint)
        assert (item.code, item.severity, item.where) == ("label-disagrees", Severity.WARNING, "8bit/model")
        assert (item.expected, item.actual, item.count) == ("8bit", "bf16", 1)
        assert "its set name says 8bit" in item.message

    def test_a_word_is_told_once(self) -> None:
        files = {"NVFP4/M-nvfp4.safetensors": matrix("BF16")}
        assert len(told(claims(opened(files, "acme/M-NVFP4")), "quantization")) == 1

    def test_several_wrong_words_are_one_finding(self) -> None:
        (item,) = findings(opened(packed_model("bf16").files, "acme/M-AWQ-4bit"))
        assert item.count == 2
        assert "says AWQ and its repository name says 4bit, and no tensor" in item.message

    def test_nothing_is_said_of_a_part(self) -> None:
        files = packed_model("bf16").files
        part = opened(files, "acme/M-NVFP4", files="model-00001-*")
        assert agrees(claims(part), "quantization") == [None]
        assert findings(part) == []
        del files["model-00002-of-00003.safetensors"]
        assert findings(opened(files, "acme/M-NVFP4")) == []

    @pytest.mark.parametrize(
        ("source", "commit", "place"),
        [
            ("acme/M-NVFP4@v1", COMMIT, "repository name"),
            ("ms://acme/M-NVFP4@v1", None, "repository name"),
            ("/x/models--acme--M-NVFP4/snapshots/" + COMMIT, COMMIT, "repository name"),
            ("/x/M-NVFP4", None, "folder name"),
            ("q3/M-NVFP4", None, "folder name"),
            ("weights/M-NVFP4", None, "folder name"),
        ],
    )
    def test_where_names_stand(self, source: str, commit: str | None, place: str) -> None:
        checkpoint = evolve(open_checkpoint(packed_model("bf16").files), source=source, commit=commit)
        assert told(claims(checkpoint), "quantization", place) == [("NVFP4", "bf16", False)]
        assert len(findings(checkpoint)) == (place != "folder name")

    @pytest.mark.parametrize("name", ["q3", "Q2-report", "int8-free", "fp8", "70B"])
    def test_the_name_of_a_folder_is_the_readers_own(self, name: str) -> None:
        checkpoint = evolve(open_checkpoint(packed_model("bf16").files), source=f"/x/{name}", commit=None)
        assert findings(checkpoint) == []

    def test_a_file_that_says_what_its_folder_says_is_told(self) -> None:
        checkpoint = opened({"M-NVFP4.safetensors": matrix("BF16")})
        (item,) = findings(evolve(checkpoint, source="/x/M-NVFP4", commit=None))
        assert (item.where, item.expected) == ("M-NVFP4", "NVFP4")

    @pytest.mark.parametrize("source", ["NVFP4/x", "https://example.org/M-NVFP4", "<mapping>", "M-NVFP4.gguf"])
    def test_where_none_stand(self, source: str) -> None:
        commit = COMMIT if source == "NVFP4/x" else None  # the owner's name says nothing
        checkpoint = evolve(open_checkpoint(packed_model("bf16").files), source=source, commit=commit)
        assert told(claims(checkpoint), "quantization", "repository name") == []

    def test_a_long_name_costs_no_time(self) -> None:
        name = "q4_0_" * 100_000
        checkpoint = evolve(open_checkpoint(packed_model("bf16").files), source=name, commit=None)
        (word,) = told(claims(checkpoint), "quantization")
        assert len(str(word[0])) < 300


class TestExpertsInNames:
    @pytest.mark.parametrize(
        ("name", "kept", "reference", "expected"),
        [
            ("M-REAP80", 179, 896, True),
            ("M-REAP-80", 179, 896, True),
            ("M-REAP0.8", 179, 896, True),
            ("M-REAP80", 179, None, None),
            ("M-REAP50", 179, 896, False),
            ("M-REAP80", 185, 896, False),
            ("M-REAP20", 13, 16, True),
            ("M-REAP-179", 179, None, True),
            ("M-REAP-179", 178, 896, False),
            ("M-224of896", 224, None, True),
            ("M-224of896", 224, 896, True),
            ("M-224of896", 224, 384, None),
            ("M-179of896", 224, 384, False),
        ],
    )
    def test_prunings(self, name: str, kept: int, reference: int | None, expected: bool | None) -> None:
        checkpoint = opened(kimi_reap(4, layers=2, experts=kept), f"acme/{name}")
        (word,) = told(claims(checkpoint, reference_experts=reference), "experts")
        assert word == (name[2:], kept, expected)
        complaints = findings(checkpoint, reference)
        assert [item.code for item in complaints] == ["label-disagrees"] * (expected is False)
        assert [item.actual for item in complaints] == [kept] * (expected is False)

    def test_uneven_layers_are_left_open(self) -> None:
        checkpoint = opened(kimi_reap(4, layers=3, expert_counts=[179, 180]), "acme/M-REAP-179")
        assert told(claims(checkpoint), "experts") == [("REAP-179", None, None)]
        assert findings(checkpoint) == []

    def test_a_part_is_left_open(self) -> None:
        part = opened(kimi_k31_pro(**SMALL), "acme/M-3of4", files="model-00002-*")
        assert told(claims(part), "experts") == [("3of4", 4, None)]
        assert findings(part) == []

    def test_gguf_has_no_other_finding_for_that(self) -> None:
        checkpoint = opened(kimi_gguf("Q2_K", **SMALL, tokens=50, parts=1), "acme/M-3of4-GGUF")
        (item,) = findings(checkpoint)
        assert (item.expected, item.actual) == ("3of4", 4)

    @pytest.mark.parametrize("name", ["GLM-4.5-Air-REAP-82B-A12B", "M-REAP", "M-REAP0", "M-00001-of-00034", "M-9of4"])
    def test_words_that_are_not_understood(self, name: str) -> None:
        assert list(expert_words(name)) == []


class TestSizesInNames:
    @pytest.mark.parametrize(
        "name", ["Llama-3.1-8B", "Mixtral-8x7B", "gemma-3-4b", "gpt-oss-20b", "Kimi-Linear-48B-A3B", "Qwen3-30B-A3B"]
    )
    def test_published_models_are_as_large_as_they_are_called(self, name: str) -> None:
        layout = MODELS[name].layout
        checkpoint = opened(layout.files_of(layout.lay_out(layout.config)), f"acme/{name}")
        assert agrees(claims(checkpoint), "size", "repository name") == [True]
        other = evolve(checkpoint, source="acme/M-3x2B")
        assert agrees(claims(other), "size") == [None if checkpoint.family in ("llama", "gemma3") else False]

    @pytest.mark.parametrize(
        ("said", "expected"),
        [
            ("1B", True),
            ("1.1B", True),
            ("0.92B", True),
            ("0.9B", False),
            ("1.3B", True),
            ("0.7B", False),
            ("1.6B", False),
            ("1T", False),
        ],
    )
    def test_between_all_and_what_names_leave_out(self, said: str, expected: bool) -> None:
        checkpoint = opened(billions(), f"acme/M-{said}-chat")
        assert told(claims(checkpoint), "size") == [(said, "1.4B", expected)]
        # Of what is a little off nobody complains.
        assert [item.code for item in findings(checkpoint)] == ["label-disagrees"] * (said == "1T")

    @pytest.mark.parametrize(
        ("said", "wrong"),
        [
            ("0.6B", True),
            ("0.7B", False),
            ("2B", False),
            ("2.2B", True),
            ("70B", True),
            ("70b-A3B", True),
            ("70B-128K", True),
            ("70B-1M", True),
            ("8x70B", False),  # it has no experts
            ("70B-7B", False),
            ("EAGLE3-70B", False),
            ("70B-draft", False),
            ("70B-REAP", False),
            ("100B-tokens", False),
            ("17B-16E", False),
        ],
    )
    def test_sizes_that_are_plainly_wrong(self, said: str, wrong: bool) -> None:
        checkpoint = opened(billions(), f"acme/M-{said}")
        complaints = findings(checkpoint)
        assert [(item.code, item.where, item.actual) for item in complaints] == [
            ("label-disagrees", f"M-{said}", "1.4B")
        ] * wrong
        assert findings(evolve(checkpoint, source=f"/x/M-{said}", commit=None)) == []

    def test_a_wrong_number_of_experts_is_plain(self) -> None:
        layout = MODELS["Mixtral-8x7B"].layout
        files = layout.files_of(layout.lay_out(layout.config))
        for name, wrong in (("M-8x7B", False), ("M-4x7B", True), ("M-8x8B", False), ("M-8x22B", True)):
            complaints = findings(opened(files, f"acme/{name}"))
            assert [item.code for item in complaints] == ["label-disagrees"] * wrong

    def test_the_name_of_a_file_is_as_plain(self) -> None:
        file = billions()["model.safetensors"]
        (item,) = findings(opened({"M-70B.safetensors": file}))
        assert (item.where, item.count) == ("M-70B", 1)

    def test_a_repository_of_several_sets_may_mean_another(self) -> None:
        file = billions()["model.safetensors"]
        checkpoint = opened({"model.safetensors": file, "model.fp16.safetensors": matrix("F16")}, "acme/M-70B")
        assert agrees(claims(checkpoint), "size") == [None]
        assert findings(checkpoint) == []

    def test_what_goes_beside_a_model_has_its_name(self) -> None:
        matrices = {"model.safetensors": hollow_safetensors([TensorSpec("a.lora_A.weight", "BF16", (8, 8))])}
        assert findings(opened(matrices, "acme/M-70B")) == []
        assert findings(opened({"M-70B-f16.gguf": kimi_mmproj("F16")})) == []

    def test_integers_may_hold_several_values_each(self) -> None:
        tensors = [
            TensorSpec("model.embed_tokens.weight", "BF16", (100, 1000)),
            TensorSpec("model.layers.0.mlp.up_proj.weight", "U8", (1000, 1000)),
        ]
        assert findings(opened({"model.safetensors": hollow_safetensors(tensors)}, "acme/M-70B")) == []

    @pytest.mark.parametrize(
        ("said", "expected"), [("4x150M", True), ("4x90M", True), ("4x60M", False), ("4x190M", False), ("8x90M", False)]
    )
    def test_experts_times_one(self, said: str, expected: bool) -> None:
        """All but the experts are 120 million parameters, 60 of them embeddings; an expert has 30."""
        tensors = [
            TensorSpec("model.embed_tokens.weight", "BF16", (60_000, 1000)),
            TensorSpec("model.layers.0.self_attn.q_proj.weight", "BF16", (60_000, 1000)),
        ]
        tensors += [
            TensorSpec(f"model.layers.0.mlp.experts.{number}.up_proj.weight", "BF16", (30_000, 1000))
            for number in range(4)
        ]
        checkpoint = opened({"model.safetensors": hollow_safetensors(tensors)}, f"acme/M-{said}")
        assert told(claims(checkpoint), "size") == [(said, "4x150M", expected)]

    def test_what_cannot_be_counted_is_left_open(self) -> None:
        unknown = opened(BUILDS[DPHN_ID](**SMALL), "acme/M-7B")
        dense = opened({"model.safetensors": matrix("BF16")}, "acme/M-8x7B")
        assert told(claims(unknown), "size") == [("7B", None, None)]
        assert told(claims(dense), "size") == [("8x7B", None, None)]

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("Qwen2.5-7B-Instruct-1M", "7B"),
            ("BitNet-b1.58-2B-4T", "2B"),
            ("gemma-3-270m", "270m"),
            ("M-1M", None),
            ("M-128K", None),
            ("Llama-4-Scout-17B-16E-Instruct", None),
            ("gemma-3n-E4B-it", None),
            ("M-A3B", None),
            ("Kimi-K3.1-Pro", None),
        ],
    )
    def test_words(self, name: str, text: str | None) -> None:
        word = size_word(name)
        assert (word.text if word else None) == text
        assert not (text is None and is_model_size(name))


class TestLicences:
    def test_all_who_speak_of_one(self) -> None:
        checkpoint = in_gguf(general__license="mit", general__license__name="MIT")
        card = HubCard(license="other", license_name="kimi", license_link="https://example.org/\x1b")
        paths = ["LICENSE", "COPYING.txt", "licence-model.md", "README.md", "docs/LICENSE", "LICENSES.csv"]
        found = told(
            claims(checkpoint, card=card, listing=[ListedFile(path=path, size=1) for path in paths]), "licence"
        )
        assert [one[0] for one in found] == [
            *("other", "kimi", r"https://example.org/\x1b", "mit", "MIT"),
            *("LICENSE", "COPYING.txt", "licence-model.md"),
        ]
        assert {one[1:] for one in found} == {(None, None)}

    def test_nobody(self) -> None:
        assert told(claims(in_gguf(), card=HubCard(), listing=[ListedFile(path="README.md", size=1)]), "licence") == []


class TestPublished:
    def test_the_figures_hold_for_the_true_ones(self) -> None:
        full: Mapping[str, Files] = {
            KIMI_K31_PRO_ID: kimi_k31_pro(),
            DEVQUASAR_GGUF_ID: devquasar_gguf(),
            DANIELHANCHEN_GGUF_ID: danielhanchen_gguf(),
        }
        for (repository, name), figures in PUBLISHED.items():
            if repository in full:
                checkpoint = opened(full[repository], repository, files=f"*{name}*" if name else None)
                found = claims(checkpoint)
                assert told(found, "files", "published") == [(figures.files, figures.files, True)]
                assert told(found, "file bytes") == [(figures.file_bytes, figures.file_bytes, True)]
                assert agrees(found, "parameters", "published") == [True] * (figures.parameters is not None)

    def test_they_do_not_hold_for_others(self, kimi: Checkpoint) -> None:
        found = claims(kimi)
        assert agrees(found, "files") == agrees(found, "file bytes") == agrees(found, "parameters") == [False]

    def test_side_files_do_not_count(self) -> None:
        files = {**kimi_gguf("Q2_K", **SMALL, tokens=50, parts=3), "mmproj-BF16.gguf": kimi_mmproj("BF16")}
        alone = opened(files, "acme/M-4B")
        both = opened(files, "acme/M-4B", companions=True)
        assert summarize(both).parameters != parameters_of(alone)
        total = parameters_of(alone)
        assert claims(both, card=HubCard(gguf_total=total)) == claims(alone, card=HubCard(gguf_total=total))

    @pytest.mark.parametrize("source", ["acme/M", "./" + KIMI_K31_PRO_ID])
    def test_of_most_nothing_is_published(self, source: str) -> None:
        assert told(claims(opened(kimi_k31_pro(**SMALL), source)), "files") == []

    def test_a_set_that_came_later_has_no_figures(self) -> None:
        assert published_of(KIMI_K31_PRO_ID, "Q2_K", "gguf") is None
        assert published_of(KIMI_K31_PRO_ID, "model", "safetensors") is not None

    @pytest.mark.parametrize(
        ("source", "commit", "expected"),
        [
            ("a/b", COMMIT, "a/b"),
            ("a/b@refs/pr/1", COMMIT, "a/b"),
            ("a/b", None, None),
            ("/hub/models--a--b-c/snapshots/" + COMMIT, COMMIT, "a/b-c"),
            ("snapshots/" + COMMIT, COMMIT, None),
            ("/x/b", COMMIT, None),
            ("https://example.org/a/b", COMMIT, None),
        ],
    )
    def test_repositories(self, source: str, commit: str | None, expected: str | None) -> None:
        assert repository_of(source, commit) == expected


def billions() -> dict[str, HollowFile]:
    """Of 1.4 billion parameters 0.2 billion each are embeddings and head."""
    tensors = [
        TensorSpec("model.embed_tokens.weight", "BF16", (200_000, 1000)),
        TensorSpec("lm_head.weight", "BF16", (200_000, 1000)),
        TensorSpec("model.layers.0.mlp.up_proj.weight", "BF16", (1_000_000, 1000)),
    ]
    return {"model.safetensors": hollow_safetensors(tensors)}


def stand_ins() -> Iterator[tuple[str, Files, str | None]]:
    """Yield all stand-ins of published builds, small, and which set to open."""
    for repository, build in BUILDS.items():
        experts = 179 if repository in PIPENETWORK_IDS.values() else 4
        yield repository, build(layers=2, experts=experts), None
    small = {**SMALL, "tokens": 50, "parts": 2}
    for glob in ("*MXFP4_MOE*", "*Q2_K*"):
        yield DEVQUASAR_GGUF_ID, devquasar_gguf(**small), glob
    for glob in ("UD-Q4_K_XL/*", "UD-Q8_K_XL/*"):
        yield DANIELHANCHEN_GGUF_ID, danielhanchen_gguf(**small), glob


@pytest.mark.parametrize(
    ("source", "files", "glob"), [pytest.param(*each, id=f"{each[0]} {each[2]}") for each in stand_ins()]
)
def test_nothing_is_said_against_the_stand_ins(source: str, files: Files, glob: str | None) -> None:
    checkpoint = opened(files, source, files=glob)
    assert findings(checkpoint, reference_experts=896) == []
    named = [one for one in claims(checkpoint, reference_experts=896) if "name" in one.said_by]
    # No tensor of this set has the type that it is called by, which its label is told for.
    wrong = {"UD-Q4_K_XL"} if glob and glob.startswith("UD-") else set()
    assert {one.said for one in named if not one.agrees} <= {*wrong, "UD-Q8_K_XL"}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["model"], True),
        ([], True),
        (["a-00001-of-00002", "a-00002-of-00002"], True),
        (["a-00000-of-00002", "a-00001-of-00002"], True),
        (["a-00000-of-00002", "a-00001-of-00002", "a-00002-of-00002"], True),
        (["a-00002-of-00002"], False),
        (["a-00001-of-00002", "a-00002-of-00002", "b-00001-of-00002"], False),
        (["a-00001-of-00001", "b/a-00001-of-00001"], True),
    ],
)
def test_names_say_how_many_files_there_are(names: list[str], expected: bool) -> None:
    assert all_opened([f"{name}.safetensors" for name in names]) is expected


def test_names_are_read_in_any_case() -> None:
    assert [word.text for word in quant_words("m-mxfp4-int4_fp8")] == ["mxfp4", "fp8", "int4"]


def test_a_file_without_tensors_says_nothing_against_its_name() -> None:
    checkpoint = opened({"M-Q4_K_M.gguf": hollow_gguf([], {"general.architecture": "llama"})})
    assert agrees(claims(checkpoint), "quantization") == [None]
    assert findings(checkpoint) == []


def test_a_single_tensor_is_enough_for_a_label() -> None:
    file = hollow_gguf([GgufTensor("token_embd.weight", "Q4_K", (256, 4))], {"general.architecture": "llama"})
    assert agrees(claims(opened({"M-Q4_K_M.gguf": file})), "quantization") == [True]
