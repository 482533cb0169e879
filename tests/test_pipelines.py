"""Pipelines of several parts: which of them have weights, what is gone, and what the whole is called."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from contracts.checks import REPO

from kimi_inspect import Checkpoint, audit, open_checkpoint, summarize
from kimi_inspect.pipelines import Pipeline, read_pipeline
from kimi_inspect.sources import MappedFiles
from kimi_inspect.testing import HollowFile, LoopbackHub, Repository, TensorSpec, hollow_safetensors

Files = dict[str, HollowFile]

INDEX: dict[str, Any] = {
    "_class_name": "StableDiffusionPipeline",
    "_diffusers_version": "0.30.0",
    "requires_safety_checker": False,
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderKL"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
    "tokenizer": ["transformers", "CLIPTokenizerFast"],
    "scheduler": ["diffusers", "VQDiffusionScheduler"],
    "feature_extractor": ["transformers", "CLIPImageProcessor"],
    "image_processor": ["diffusers", "VaeImageProcessor"],
    "safety_checker": [None, None],
}
PARTS = ("unet", "vae", "text_encoder", "text_encoder_2")
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
    {"idx": 3, "name": "3", "path": "3_Normalize", "type": "sentence_transformers.models.Normalize"},
]


def text(said: object) -> HollowFile:
    return HollowFile(json.dumps(said).encode())


def weights(name: str) -> HollowFile:
    return hollow_safetensors([TensorSpec(f"{name}.weight", "BF16", (8, 8))])


def diffusers(change: Mapping[str, Any] | None = None) -> Files:
    files = {f"{part}/model.safetensors": weights(part) for part in PARTS}
    files["text_encoder/config.json"] = text({"model_type": "clip_text_model", "num_hidden_layers": 12})
    return {**files, "model_index.json": text({**INDEX, **(change or {})})}


def sentences(modules: object = MODULES) -> Files:
    return {
        "modules.json": text(modules),
        "config.json": text({"model_type": "bert"}),
        "1_Pooling/config.json": text({}),
        "model.safetensors": weights("pooler.dense"),
        "2_Dense/model.safetensors": weights("linear"),
        "2_Dense/config.json": text({"in_features": 8}),
    }


def without(files: Files, *gone: str) -> Files:
    return {path: file for path, file in files.items() if not path.startswith(gone)}


def missing(checkpoint: Checkpoint) -> list[str]:
    found = [item for item in checkpoint.findings if item.code == "shard-missing"]
    assert {item.severity for item in found} <= {"error"}
    assert checkpoint.complete is not bool(found)
    return [item.where for item in found]


@pytest.mark.parametrize("files", [diffusers(), sentences()])
def test_a_whole_pipeline_lacks_nothing(files: Files) -> None:
    assert missing(open_checkpoint(files)) == []
    with LoopbackHub([Repository(REPO, files)]) as hub:
        assert missing(open_checkpoint(REPO, endpoint=hub.endpoint)) == []


@pytest.mark.parametrize("part", PARTS)
def test_a_part_without_weights(part: str) -> None:
    assert missing(open_checkpoint(without(diffusers(), f"{part}/"))) == [part]
    bare = {**without(diffusers(), f"{part}/"), f"{part}/config.json": text({})}
    assert missing(open_checkpoint(bare)) == [part]
    assert audit(bare).verdict == "damaged"


def test_several_parts_without_weights() -> None:
    found = open_checkpoint(without(diffusers(), "vae/", "unet/", "text_encoder/"))
    assert missing(found) == ["unet", "vae", "text_encoder"]
    assert (found.set_name, found.config, found.architecture) == ("pipeline", None, "StableDiffusionPipeline")


@pytest.mark.parametrize("gone", ["2_Dense/", "2_Dense/model"])
def test_a_module_without_weights(gone: str) -> None:
    found = open_checkpoint(without(sentences(), gone))
    assert (missing(found), found.architecture) == (["2_Dense"], "bert")


def test_the_root_without_weights() -> None:
    assert missing(open_checkpoint(without(sentences(), "model."))) == ["root folder"]


@pytest.mark.parametrize("ending", ["bin", "msgpack", "ckpt", "onnx", "gguf"])
def test_a_part_in_another_format_is_there(ending: str) -> None:
    files = {**without(diffusers(), "vae/"), f"vae/model.{ending}": HollowFile(b"GGUF")}
    assert missing(open_checkpoint(files)) == []


@pytest.mark.parametrize(
    "part",
    [
        *(
            "scheduler",
            "tokenizer",
            "feature_extractor",
            None,
            5,
            ["x"],
            "",
            "VaeImageProcessor",
            "IFWatermarker",
            "Mel",
        ),
        *("EulerDiscreteScheduler", "T5TokenizerFast", "Qwen2VLProcessor", "CLIPFeatureExtractor"),
    ],
)
def test_a_class_that_may_have_no_weights_is_not_missed(part: object) -> None:
    assert missing(open_checkpoint(diffusers({"extra": ["x", part]}))) == []


@pytest.mark.parametrize(
    "part",
    [
        *(
            "FluxTransformer2DModel",
            "T5EncoderModel",
            "AutoencoderKLWan",
            "AsymmetricAutoencoderKL",
            "PriorTransformer",
        ),
        *("Qwen2_5_VLForConditionalGeneration", "LlamaForCausalLM", "ControlNetModel", "StableDiffusionSafetyChecker"),
        *("ConsistencyDecoderVAE", "Kandinsky3UNet", "MotionAdapter", "CLIPVisionModelWithProjection"),
    ],
)
def test_a_class_that_has_weights_is_missed(part: str) -> None:
    assert missing(open_checkpoint(diffusers({"extra": ["x", part]}))) == ["extra"]


@pytest.mark.parametrize(
    "module", [None, 5, {}, {"path": 1, "type": "x.Dense"}, {"path": "2_D"}, {"path": "../x", "type": "Dense"}]
)
def test_modules_that_are_none(module: object) -> None:
    assert missing(open_checkpoint(sentences([*MODULES, module]))) == []
    assert missing(open_checkpoint(sentences(module))) == []


def test_what_cannot_be_read_declares_nothing() -> None:
    for path, files in (("model_index.json", diffusers()), ("modules.json", sentences())):
        files[path] = HollowFile(b"<html>")
        assert missing(open_checkpoint(files)) == []


def test_a_choice_is_not_short_of_other_parts() -> None:
    files = {**without(diffusers(), "vae/"), "all.safetensors": weights("all")}
    assert missing(open_checkpoint(files, files="unet/*")) == []
    with LoopbackHub([Repository(REPO, files)]) as hub:
        for source in (f"{REPO}:all", f"{hub.endpoint}/{REPO}/tree/main/unet"):
            assert missing(open_checkpoint(source, endpoint=hub.endpoint)) == []
        assert missing(open_checkpoint(REPO, endpoint=hub.endpoint)) == ["vae"]


def test_no_pipeline_has_no_parts() -> None:
    assert read_pipeline(MappedFiles({}), ()) == Pipeline()


# ---- what it is called


def test_a_pipeline_is_not_its_text_encoder() -> None:
    found = open_checkpoint(diffusers())
    assert (found.config, found.architecture, found.family) == (
        None,
        "StableDiffusionPipeline",
        "stable-diffusion-pipeline",
    )
    assert "clip" not in json.dumps([item.message for item in found.findings])
    assert "clip" not in str([(row.reason, row.rule) for row in audit(found).loaders])
    assert summarize(found).family == "stable-diffusion-pipeline"


@pytest.mark.parametrize("name", [None, 5, ""])
def test_a_pipeline_that_does_not_say_what_it_is(name: object) -> None:
    found = open_checkpoint(diffusers({"_class_name": name}))
    assert (found.config, found.architecture, found.family) == (None, None, None)


def test_one_part_of_it_is_what_its_config_says() -> None:
    found = open_checkpoint(diffusers(), files="text_encoder/*")
    assert (found.architecture, found.family) == ("clip_text_model", "clip-text-model")


def test_the_config_in_the_root_is_the_pipelines() -> None:
    assert open_checkpoint(sentences()).config == {"model_type": "bert"}
    alone = without(sentences(), "config.json")
    assert open_checkpoint(alone).config is None
    first = {"modules.json": text([]), "0_Transformer/x.safetensors": weights("a")}
    first["0_Transformer/config.json"] = text({"model_type": "bert"})
    assert open_checkpoint(first).architecture == "bert"
