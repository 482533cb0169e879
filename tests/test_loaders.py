"""Which engines load a checkpoint: every rule shown to speak, and to be silent where it has nothing to say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from attrs import evolve
from gguf_files import Tensor, Value, gguf_file

from kimi_inspect import Checkpoint, Finding, Severity, open_checkpoint, summarize
from kimi_inspect.loaders import loaders_of
from kimi_inspect.published import OWN_ENGINES
from kimi_inspect.testing import (
    BUILDS,
    DPHN_ID,
    ENCODINGS,
    INFERENCERLABS_ID,
    KIMI_K31_PRO_ID,
    GgufTensor,
    HollowFile,
    TensorSpec,
    hollow_gguf,
    hollow_safetensors,
    kimi_gguf,
    kimi_k3,
    kimi_k31_pro,
    kimi_mmproj,
    kimi_reap,
    packed_model,
)
from kimi_inspect.verdict import Loader, Support

YES, NO, UNKNOWN = Support.YES, Support.NO, Support.UNKNOWN
LLAMA, IK, MLX, VLLM, TRANSFORMERS = ENGINES = ("llama.cpp", "ik_llama.cpp", "mlx-lm", "vLLM", "transformers")
SMALL = {"layers": 2, "experts": 4}
COMMIT = "d" * 40


def rows(checkpoint: Checkpoint) -> dict[str, Loader]:
    return {row.engine: row for row in loaders_of(checkpoint, summarize(checkpoint))}


def support(checkpoint: Checkpoint) -> tuple[Support, ...]:
    """Return what the five engines do, in the order of their names above."""
    found = rows(checkpoint)
    return tuple(found[engine].support for engine in ENGINES)


def packed(encoding: str) -> Checkpoint:
    return open_checkpoint(packed_model(encoding).files)


def plain(config: Mapping[str, Any] | None = None, name: str = "model.safetensors", **metadata: str) -> Checkpoint:
    """Open one BF16 matrix beside a config."""
    tensors = [TensorSpec("model.layers.0.self_attn.q_proj.weight", "BF16", (8, 8))]
    files = {name: hollow_safetensors(tensors, metadata=metadata or None)}
    if config is not None:
        files["config.json"] = HollowFile(json.dumps(config).encode())
    return open_checkpoint(files)


def test_every_row_has_its_reason_and_its_source() -> None:
    for checkpoint in (packed("bf16"), packed("gguf-q4_k"), packed("mlx-affine4-64"), plain()):
        found = loaders_of(checkpoint, summarize(checkpoint))
        assert [row.engine for row in found] == list(ENGINES)
        assert all(row.reason and row.rule for row in found)


SAFETENSORS: dict[str, tuple[Support, Support, Support]] = {
    "bf16": (YES, YES, YES),
    "f16": (YES, YES, YES),
    "f32": (YES, YES, YES),
    "compressed-mxfp4": (UNKNOWN, YES, UNKNOWN),
    "compressed-nvfp4": (UNKNOWN, YES, UNKNOWN),
    "compressed-int2-32": (UNKNOWN, UNKNOWN, UNKNOWN),
    "compressed-int4-32": (UNKNOWN, YES, YES),
    "compressed-int4-128-zero-points": (UNKNOWN, YES, YES),
    "compressed-int8-128": (UNKNOWN, YES, YES),
    "compressed-int8-rows": (UNKNOWN, YES, UNKNOWN),
    "compressed-fp8-rows": (UNKNOWN, YES, UNKNOWN),
    "fp8-block": (UNKNOWN, YES, YES),
    "deepseek-v4-fp4": (UNKNOWN, UNKNOWN, UNKNOWN),
    "gpt-oss-mxfp4": (YES, YES, YES),
    "gptq-2": (UNKNOWN, UNKNOWN, YES),
    "gptq-3-desc-act": (UNKNOWN, UNKNOWN, YES),
    "gptq-4": (UNKNOWN, YES, YES),
    "gptq-8-desc-act": (UNKNOWN, YES, YES),
    "awq-4": (YES, YES, YES),
    "bnb-nf4": (NO, YES, YES),
    "bnb-fp4-nested": (NO, YES, YES),
    "bnb-int8": (NO, YES, YES),
    "mlx-bf16": (YES, UNKNOWN, UNKNOWN),
    "mlx-affine2-128": (YES, NO, NO),
    "mlx-affine6-64": (YES, NO, NO),
    "mlx-mxfp4": (YES, NO, NO),
    "mlx-mxfp8": (YES, NO, NO),
    "mlx-nvfp4": (YES, NO, NO),
    "modelopt-nvfp4": (UNKNOWN, YES, UNKNOWN),
    "modelopt-fp8": (UNKNOWN, YES, UNKNOWN),
}
"""By encoding of the packed model: mlx-lm, vLLM, transformers."""


@pytest.mark.parametrize(("encoding", "expected"), SAFETENSORS.items())
def test_layouts(encoding: str, expected: tuple[Support, ...]) -> None:
    assert support(packed(encoding)) == (NO, NO, *expected)


@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if name.startswith("gguf-")])
def test_types_of_upstream(encoding: str) -> None:
    newer = encoding.removeprefix("gguf-") in ("tq1_0", "tq2_0", "nvfp4", "q1_0", "q2_0")
    assert support(packed(encoding)) == (YES, UNKNOWN if newer else YES, NO, UNKNOWN, UNKNOWN)


class TestGguf:
    @staticmethod
    def of_type(number: int, nbytes: int = 64, name: str = "blk.0.ffn_up.weight") -> Checkpoint:
        tensors = [Tensor(name, (256,), number=number, nbytes=nbytes)]
        return open_checkpoint(
            {"x.gguf": HollowFile(gguf_file(tensors, [("general.architecture", Value(8, "llama"))]))}
        )

    @pytest.mark.parametrize(
        ("number", "name"), [(137, "iq2_k"), (144, "iq4_ks"), (158, "iq1_kt"), (223, "iq4_xs_r8"), (399, "q8_k_r8")]
    )
    def test_types_of_ik(self, number: int, name: str) -> None:
        found = rows(self.of_type(number))
        assert (found[LLAMA].support, found[IK].support) == (NO, YES)
        assert name in found[LLAMA].reason
        assert name in found[IK].reason

    @pytest.mark.parametrize("number", [142, 250, 400, 100_000])
    def test_types_that_nobody_knows(self, number: int) -> None:
        found = rows(self.of_type(number))
        assert found[LLAMA].support is found[IK].support is UNKNOWN
        assert str(number) in found[LLAMA].reason

    def test_a_type_number_of_a_fork(self) -> None:
        checkpoint = self.of_type(41, nbytes=512)
        assert "foreign-type" in {item.code for item in checkpoint.findings}
        assert support(checkpoint)[:2] == (NO, UNKNOWN)

    def test_names_that_are_too_long(self) -> None:
        assert support(self.of_type(0, 1024, "blk.0.ffn_up.weight" + "x" * 44))[:2] == (YES, YES)
        assert support(self.of_type(0, 1024, "blk.0.ffn_up.weight" + "x" * 45))[:2] == (NO, UNKNOWN)

    @pytest.mark.parametrize(("alignment", "expected"), [(64, YES), (48, NO)])
    def test_alignment(self, alignment: int, expected: Support) -> None:
        pairs = [("general.architecture", Value(8, "llama")), ("general.alignment", Value(4, alignment))]
        data = gguf_file([Tensor("blk.0.ffn_up.weight", (8,))], pairs, alignment=alignment)
        assert support(open_checkpoint({"x.gguf": HollowFile(data)}))[0] is expected

    @pytest.mark.parametrize(
        ("architecture", "llama", "ik"),
        [
            ("llama", YES, YES),
            ("deepseek2", YES, YES),
            ("kimi-linear", YES, UNKNOWN),
            ("kimi-k3", YES, UNKNOWN),
            ("kimi-k31", YES, UNKNOWN),
            ("clip", YES, UNKNOWN),
            ("deepseek4", UNKNOWN, YES),
            ("kimi-k4", UNKNOWN, UNKNOWN),
            (None, UNKNOWN, UNKNOWN),
        ],
    )
    def test_architectures(self, architecture: str | None, llama: Support, ik: Support) -> None:
        metadata = {"general.architecture": architecture} if architecture else {}
        checkpoint = open_checkpoint(
            {"x.gguf": hollow_gguf([GgufTensor("token_embd.weight", "F32", (8, 8))], metadata)}
        )
        assert support(checkpoint)[:2] == (llama, ik)

    def test_kimi(self) -> None:
        found = rows(open_checkpoint(kimi_gguf("MXFP4_MOE", **SMALL, tokens=50, parts=2)))
        assert found[LLAMA].support is YES
        assert "b12180" in found[LLAMA].reason
        assert "#31779" in found[LLAMA].rule
        assert found[IK].support is UNKNOWN

    def test_a_vision_encoder_beside_the_text_takes_nothing_away(self) -> None:
        files = {**kimi_gguf("Q2_K", **SMALL, tokens=50, parts=1), "mmproj-BF16.gguf": kimi_mmproj("BF16")}
        assert support(open_checkpoint(files, companions=True))[0] is YES

    def test_only_a_part(self) -> None:
        files = kimi_gguf("Q2_K", **SMALL, tokens=50, parts=3)
        part = open_checkpoint(files, files="*-00002-of-*")
        assert support(part) == (UNKNOWN,) * 5
        assert "part" in rows(part)[LLAMA].reason


class TestModels:
    @pytest.mark.parametrize(
        ("model", "expected"),
        [
            ("llama", (YES, YES, YES)),
            ("qwen3_next", (YES, YES, YES)),
            ("kimi_linear", (YES, YES, YES)),
            ("kimi_k25", (YES, YES, YES)),
            ("kimi_k2", (YES, YES, UNKNOWN)),
            ("kimi_vl", (YES, YES, UNKNOWN)),
            ("kimi_k3", (YES, YES, UNKNOWN)),
            ("kimi_k31", (NO, YES, UNKNOWN)),
            ("kimi_k4", (UNKNOWN, UNKNOWN, UNKNOWN)),
        ],
    )
    def test_by_the_config(self, model: str, expected: tuple[Support, ...]) -> None:
        checkpoint = evolve(plain({"model_type": "x"}), family=model.replace("_", "-"), findings=())
        assert support(checkpoint)[2:] == expected

    def test_without_a_config(self) -> None:
        assert support(plain()) == (NO, NO, UNKNOWN, UNKNOWN, UNKNOWN)
        assert "config" in rows(plain())[VLLM].reason

    def test_the_official_kimi(self) -> None:
        found = rows(open_checkpoint(kimi_k31_pro(**SMALL)))
        assert [found[engine].support for engine in ENGINES] == [NO, NO, NO, YES, UNKNOWN]
        assert "0.34.0" in found[VLLM].reason
        assert "kimi_k31" in found[MLX].reason
        assert "trust_remote_code" in found[TRANSFORMERS].reason

    def test_kimi_k3_by_mlx(self) -> None:
        assert support(open_checkpoint(kimi_k3(**SMALL))) == (NO, NO, YES, YES, UNKNOWN)

    def test_a_build_for_mlx(self) -> None:
        assert support(open_checkpoint(BUILDS[INFERENCERLABS_ID](**SMALL))) == (NO, NO, NO, NO, NO)

    def test_a_packing_that_is_not_known(self) -> None:
        assert support(open_checkpoint(BUILDS[DPHN_ID](**SMALL))) == (NO, NO, NO, NO, UNKNOWN)


class TestMlx:
    def test_files_of_other_names(self) -> None:
        config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
        assert rows(plain(config))[MLX].support is YES
        assert rows(plain(config, "weights.safetensors"))[MLX].support is NO
        assert rows(plain(config, "weights.safetensors"))[VLLM].support is YES

    def test_a_draft_head_beside_it_takes_nothing_away(self) -> None:
        files = packed_model("bf16").files
        files["mtp.safetensors"] = hollow_safetensors([TensorSpec("mtp.layers.0.eh_proj.weight", "BF16", (8, 8))])
        checkpoint = open_checkpoint(files, companions=True)
        assert [item.path for item in checkpoint.companions if item.counted] == ["mtp.safetensors"]
        assert rows(checkpoint)[MLX].support is YES

    def test_code_in_the_repository(self) -> None:
        for value, expected in (("kimi_k31.py", UNKNOWN), (7, NO), (None, NO)):
            checkpoint = open_checkpoint(BUILDS[INFERENCERLABS_ID](**SMALL))
            changed = evolve(checkpoint, config={**(checkpoint.config or {}), "model_file": value})
            assert rows(changed)[MLX].support is expected

    def test_plain_weights_by_mlx_may_be_renamed(self) -> None:
        config = {"model_type": "llama"}
        assert support(plain(config, format="mlx"))[2:] == (YES, UNKNOWN, UNKNOWN)
        assert support(plain(config, format="pt"))[2:] == (YES, YES, YES)


class TestTrouble:
    def test_a_part_is_missing(self) -> None:
        files = kimi_k31_pro(**SMALL)
        del files["model-00002-of-000005.safetensors"]
        checkpoint = open_checkpoint(files)
        assert support(checkpoint) == (NO,) * 5
        assert all("damaged: shard-missing" in row.reason for row in rows(checkpoint).values())

    def test_a_file_is_cut(self) -> None:
        whole = hollow_safetensors([TensorSpec("model.layers.0.mlp.up_proj.weight", "BF16", (8, 8))])
        cut = open_checkpoint({"model.safetensors": HollowFile(whole.head, whole.size - 1)})
        assert "truncated" in {item.code for item in cut.findings}
        assert support(cut) == (NO,) * 5

    def test_a_warning_is_no_damage(self) -> None:
        warned = open_checkpoint(BUILDS[DPHN_ID](**SMALL))
        assert [item.severity for item in warned.findings] == [Severity.WARNING]
        assert not any("damaged" in row.reason for row in rows(warned).values())

    def test_uneven_experts_are_a_doubt(self) -> None:
        uneven = open_checkpoint(kimi_reap(4, layers=4, expert_counts=[4, 5, 6]))
        (item,) = [one for one in uneven.findings if one.code == "experts-uneven"]
        assert item.severity is Severity.WARNING
        doubtful = evolve(packed("bf16"), findings=(item,))
        assert support(doubtful) == (NO, NO, UNKNOWN, UNKNOWN, UNKNOWN)
        assert support(evolve(packed("gguf-q4_k"), findings=(item,)))[:2] == (UNKNOWN, UNKNOWN)
        assert "different numbers of experts" in rows(doubtful)[VLLM].reason

    def test_a_config_that_declares_another_packing_is_a_doubt(self) -> None:
        files = packed_model("compressed-mxfp4").files
        config = json.loads(files["config.json"].read())
        config["quantization_config"]["config_groups"]["group_0"]["format"] = "nvfp4-pack-quantized"
        config["quantization_config"]["format"] = "nvfp4-pack-quantized"
        files["config.json"] = HollowFile(json.dumps(config).encode())
        checkpoint = open_checkpoint(files)
        assert "packing-disagrees" in {item.code for item in checkpoint.findings}
        assert rows(checkpoint)[VLLM].support is UNKNOWN
        assert "declares another packing" in rows(checkpoint)[VLLM].reason

    def test_llama_cpp_refuses_tensors_that_it_does_not_create(self) -> None:
        item = Finding(code="unexpected-tensor", severity=Severity.WARNING, where="x", message="x")
        found = rows(evolve(packed("gguf-q4_k"), findings=(item,)))
        assert (found[LLAMA].support, found[IK].support) == (NO, UNKNOWN)
        assert "wrong number of tensors" in found[LLAMA].rule
        # Others pass over them.
        assert support(evolve(packed("bf16"), findings=(item,))) == (NO, NO, YES, YES, YES)

    @pytest.mark.parametrize("code", ["component-missing", "unindexed-tensors", "index-unreadable"])
    def test_what_the_config_or_the_index_lack_is_a_doubt(self, code: str) -> None:
        item = Finding(code=code, severity=Severity.WARNING, where="x", message="x")
        assert support(evolve(packed("bf16"), findings=(item,))) == (NO, NO, YES, UNKNOWN, UNKNOWN)


class TestOwnEngines:
    @pytest.mark.parametrize("repository", OWN_ENGINES)
    def test_a_publisher_names_one(self, repository: str) -> None:
        checkpoint = evolve(packed("bf16"), source=repository, commit=COMMIT)
        *usual, own = loaders_of(checkpoint, summarize(checkpoint))
        assert [row.engine for row in usual] == list(ENGINES)
        assert (own.engine, own.support) == (OWN_ENGINES[repository].engine, YES)

    @pytest.mark.parametrize("source", [KIMI_K31_PRO_ID, "acme/M"])
    def test_others_name_none(self, source: str) -> None:
        assert list(rows(evolve(packed("bf16"), source=source, commit=COMMIT))) == list(ENGINES)

    def test_a_folder_of_that_name_is_not_the_repository(self) -> None:
        assert list(rows(evolve(packed("bf16"), source=DPHN_ID, commit=None))) == list(ENGINES)

    def test_what_is_damaged_it_does_not_load_either(self) -> None:
        files = kimi_k31_pro(**SMALL)
        del files["model-00002-of-000005.safetensors"]
        checkpoint = evolve(open_checkpoint(files), source=DPHN_ID, commit=COMMIT)
        assert [row.support for row in loaders_of(checkpoint, summarize(checkpoint))] == [NO] * 6
