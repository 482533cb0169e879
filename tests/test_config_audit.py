"""Audits against a config.json alone: what it says of a model, held against the headers, under the narrowest code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_models import ARCHITECTURES, DRAFTS, small, small_tensors, twin

import kimi_inspect as ki
from kimi_inspect import Audit, Severity
from kimi_inspect.testing import ENCODINGS, HollowFile, TensorSpec, kimi_config, kimi_gguf, kimi_k31_pro, packed_model

Files = dict[str, HollowFile]
LLAMA, QWEN, GEMMA = "Llama-3.1-8B", "Qwen3-30B-A3B", "gemma-3-4b"


def config_of(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(small(name)["config.json"].head)
    return config


def against(files: Files, config: dict[str, Any], folder: Path) -> Audit:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return ki.audit(files, path, companions=True)


def told(audit: Audit) -> tuple[str, list[str]]:
    return str(audit.verdict), [item.code for item in audit.findings if item.severity is not Severity.INFO]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_of_the_model_that_the_config_is_of_nothing_is_said(name: str, tmp_path: Path) -> None:
    declared = ["mtp-missing"] if name == "MiniMax-M2.7" else []
    assert told(against(small(name), config_of(name), tmp_path)) == ("reduced" if declared else "consistent", declared)
    dropped = declared or (["mtp-missing"] if name in DRAFTS and name != "Qwen3-Next-80B-A3B" else [])
    assert told(against(twin(name), config_of(name), tmp_path)) == ("reduced" if dropped else "consistent", dropped)


@pytest.mark.parametrize("encoding", [one for one in ENCODINGS if not one.startswith("gguf")])
def test_in_any_encoding_nothing_is_said(encoding: str, tmp_path: Path) -> None:
    files = dict(packed_model(encoding).files)
    assert told(against(files, json.loads(files["config.json"].read()), tmp_path)) == ("consistent", [])


@pytest.mark.parametrize(
    ("key", "value", "code", "verdict"),
    [
        ("model_type", "glm4_moe", "architecture-mismatch", "different-model"),
        ("num_hidden_layers", 3, "parameters-differ", "different-model"),
        ("num_hidden_layers", 6, "layer-missing", "reduced"),
        ("hidden_size", 2560, "shape-differs", "different-model"),
        ("vocab_size", 200_000, "shape-differs", "different-model"),
        ("moe_intermediate_size", 1024, "shape-differs", "different-model"),
        ("num_attention_heads", 64, "shape-differs", "different-model"),
        ("num_experts", 2, "parameters-differ", "different-model"),
        ("num_experts", 8, "experts-pruned", "reduced"),
    ],
)
@pytest.mark.parametrize("make", [small, twin])
def test_what_the_config_says_otherwise(
    make: Any, key: str, value: Any, code: str, verdict: str, tmp_path: Path
) -> None:
    assert told(against(make(QWEN), config_of(QWEN) | {key: value}, tmp_path)) == (verdict, [code])


def test_an_mlp_of_another_width(tmp_path: Path) -> None:
    for make in (small, twin):
        audit = against(make(LLAMA), config_of(LLAMA) | {"intermediate_size": 8192}, tmp_path)
        assert told(audit) == ("different-model", ["shape-differs"])
        assert (audit.findings[0].expected, audit.findings[0].actual) == (8192, 14336)


def test_a_head_that_is_said_not_to_be_the_embeddings(tmp_path: Path) -> None:
    headless = [one for one in small_tensors(LLAMA) if one.name != "lm_head.weight"]
    tied = config_of(LLAMA) | {"tie_word_embeddings": True}
    files = small(LLAMA, headless) | {"config.json": HollowFile(json.dumps(tied).encode())}
    assert told(against(files, tied, tmp_path)) == ("consistent", [])
    assert told(against(files, config_of(LLAMA), tmp_path)) == ("reduced", ["component-missing"])


def test_more_experts_are_not_the_configs_fault(tmp_path: Path) -> None:
    """The whole model against the config of its half."""
    half = kimi_config("kimi-k3.1-pro", layers=5, experts=4)
    for files in (kimi_k31_pro(layers=5, experts=8), kimi_gguf("MXFP4_MOE", layers=5, experts=8, tokens=64)):
        audit = against(files, half, tmp_path)
        assert told(audit)[0] == "different-model"
        found = [item for item in audit.findings if item.code == "parameters-differ"]
        assert [(item.expected, item.actual, item.count) for item in found] == [(4, 8, 4)]
        assert "reference" in found[0].message
        assert "expert-count-disagrees" not in [item.code for item in audit.findings]


def test_more_layers_of_kimi(tmp_path: Path) -> None:
    audit = against(kimi_k31_pro(layers=6, experts=4), kimi_config("kimi-k3.1-pro", layers=5, experts=4), tmp_path)
    assert told(audit) == ("different-model", ["parameters-differ"])
    assert (audit.findings[0].expected, audit.findings[0].actual) == (5, 6)


def test_a_tower_that_the_config_does_not_declare(tmp_path: Path) -> None:
    config = {key: value for key, value in config_of(GEMMA).items() if key != "vision_config"}
    audit = against(small(GEMMA), config, tmp_path)
    assert told(audit) == ("consistent", [])
    assert [(item.code, item.where) for item in audit.findings] == [("extra-component", "vision_tower")]
    blind = [one for one in small_tensors(GEMMA) if "vision" not in one.name and "multi_modal" not in one.name]
    files = small(GEMMA, blind) | {"config.json": HollowFile(json.dumps(config).encode())}
    assert told(against(files, config_of(GEMMA), tmp_path)) == ("reduced", ["component-missing"])


def test_what_the_checkpoint_shows_by_itself_is_told_once(tmp_path: Path) -> None:
    tensors = [
        TensorSpec(one.name, one.dtype, (8, 8)) if one.name == "model.layers.2.mlp.up_proj.weight" else one
        for one in small_tensors(LLAMA)
    ]
    assert told(against(small(LLAMA, tensors), config_of(LLAMA), tmp_path)) == ("damaged", ["shape-differs"])


def test_layers_that_the_own_config_does_not_declare_either(tmp_path: Path) -> None:
    few = config_of(LLAMA) | {"num_hidden_layers": 3}
    files = small(LLAMA) | {"config.json": HollowFile(json.dumps(few).encode())}
    both = ["parameters-differ", "unexpected-tensor"]
    assert told(against(files, few, tmp_path)) == ("different-model", both)
