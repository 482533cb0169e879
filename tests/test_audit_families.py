"""Audits of models of many families: each against itself, and what a converter makes of it against the original."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from small_models import ARCHITECTURES, DRAFTS, small, small_tensors, twin

import kimi_inspect as ki
from kimi_inspect import Audit, Severity, Verdict
from kimi_inspect.testing import ENCODINGS, HollowFile, TensorSpec, hollow_safetensors, packed_model

Files = dict[str, HollowFile]

OF_EXPERT = (("w1", -1), ("w2", 1), ("w3", -1))
OF_MLP = (("gate", -1), ("down", 1), ("up", -1))
"""The matrices of an MLP, and which way their sides are."""
SAYS_SO = {"architecture-mismatch", "parameters-differ", "shape-differs"}
"""What a different model is told by, where no digest is known."""


def above_info(audit: Audit) -> list[str]:
    return [item.code for item in audit.findings if item.severity is not Severity.INFO]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_against_itself(name: str) -> None:
    alone, audit = ki.audit(small(name)), ki.audit(small(name), small(name))
    # MiniMax publishes no draft layers, and its config declares them.
    declared = ["mtp-missing"] if name == "MiniMax-M2.7" else []
    assert (alone.verdict, above_info(alone)) == (Verdict.CONSISTENT, declared)
    assert (audit.verdict, above_info(audit), audit.requantizations) == (Verdict.FAITHFUL, [], ())


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_model_in_any_encoding_against_itself(encoding: str) -> None:
    files = packed_model(encoding).files
    audit = ki.audit(files, dict(files))
    assert (audit.verdict, above_info(audit), audit.requantizations) == (Verdict.FAITHFUL, [], ())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_a_converter_makes_of_it_against_the_original(name: str) -> None:
    audit = ki.audit(twin(name), small(name), companions=True)
    dropped = ["mtp-missing"] if name in DRAFTS else []
    assert above_info(audit) == dropped
    assert audit.verdict in ((Verdict.REDUCED,) if dropped else (Verdict.REQUANTIZED, Verdict.FAITHFUL))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_original_against_what_a_converter_makes_of_it(name: str) -> None:
    audit = ki.audit(small(name), ki.open_checkpoint(twin(name), companions=True))
    assert above_info(audit) == []
    assert audit.verdict in (Verdict.REQUANTIZED, Verdict.FAITHFUL)


@pytest.mark.parametrize("other", ["Llama-3.1-8B", "Qwen3-30B-A3B", "Kimi-K2-Instruct", "gemma-3-4b"])
def test_another_model_is_one_finding(other: str) -> None:
    audit = ki.audit(small(other), small("GLM-4.5-Air"))
    assert (audit.verdict, above_info(audit)) == (Verdict.DIFFERENT_MODEL, ["architecture-mismatch"])


def little(family: str, *, experts: int = 0, more: Iterable[TensorSpec] = (), dropped: Iterable[str] = ()) -> Files:
    """Return a model of two layers with Llama's attention, and Llama's or Mixtral's MLP."""
    shapes = {"model.embed_tokens": (256, 64), "model.norm": (64,), "lm_head": (256, 64)}
    for at in ("model.layers.0.", "model.layers.1."):
        shapes |= {f"{at}self_attn.{one}_proj": (64 if one in "qo" else 16, 64) for one in "qkvo"}
        shapes |= {f"{at}{one}_layernorm": (64,) for one in ("input", "post_attention")}
        moe = f"{at}block_sparse_moe."
        shapes |= {f"{moe}gate": (experts, 64)} if experts else {}
        shapes |= {f"{moe}experts.{n}.{w}": (64, 128)[::step] for n in range(experts) for w, step in OF_EXPERT}
        shapes |= {} if experts else {f"{at}mlp.{one}_proj": (64, 128)[::step] for one, step in OF_MLP}
    tensors = [TensorSpec(f"{name}.weight", "BF16", shape) for name, shape in shapes.items() if name not in dropped]
    config = {"model_type": family, "num_hidden_layers": 2, "hidden_size": 64} | (
        {"num_experts": experts} if experts else {}
    )
    return {
        "model.safetensors": hollow_safetensors([*tensors, *more]),
        "config.json": HollowFile(json.dumps(config).encode()),
    }


@pytest.mark.parametrize("of_config", [False, True])
@pytest.mark.parametrize(
    ("mine", "its"), [(("llama", 0), ("mixtral", 4)), (("mixtral", 4), ("llama", 0)), (("mistral", 0), ("mixtral", 4))]
)
def test_experts_where_the_other_has_a_dense_mlp_are_another_model(
    mine: tuple[str, int], its: tuple[str, int], tmp_path: Path, *, of_config: bool
) -> None:
    reference = little(its[0], experts=its[1])
    (tmp_path / "config.json").write_bytes(reference["config.json"].head)
    audit = ki.audit(little(mine[0], experts=mine[1]), tmp_path if of_config else reference)
    mismatch = next(item for item in audit.findings if item.code == "architecture-mismatch")
    assert (audit.verdict, mismatch.expected, mismatch.actual) == (Verdict.DIFFERENT_MODEL, its[0], mine[0])


def test_one_name_of_gguf_for_both_hides_nothing() -> None:
    for make in (small, twin):
        audit = ki.audit(twin("Llama-3.1-8B"), make("Mixtral-8x7B"))
        assert (audit.verdict, above_info(audit)[0]) == (Verdict.DIFFERENT_MODEL, "architecture-mismatch")


def test_one_architecture_under_two_names_is_no_other_model() -> None:
    audit = ki.audit(little("llama"), little("mistral"))
    assert (audit.verdict, audit.findings) == (Verdict.FAITHFUL, ())
    fewer = ki.audit(little("mixtral", experts=2), little("mixtral", experts=4))
    assert (fewer.verdict, above_info(fewer)) == (Verdict.REDUCED, ["experts-pruned"])


DROPPED = ("lm_head", "norm", "experts", "layers.3.", "mlp", "o_proj", "vision")
CLASSIFIER = TensorSpec("score.weight", "BF16", (2, 64))
BIAS = TensorSpec("model.layers.1.self_attn.q_proj.bias", "BF16", (64,))


@pytest.mark.parametrize(
    ("candidate", "codes"),
    [
        (little("llama", more=[CLASSIFIER], dropped=["lm_head"]), ["tensor-missing", "parameters-differ"]),
        (little("llama", more=[BIAS]), ["parameters-differ"]),
    ],
)
def test_what_the_reference_lacks_in_its_own_names_makes_another_model(candidate: Files, codes: list[str]) -> None:
    audit = ki.audit(candidate, little("llama"))
    assert (audit.verdict, above_info(audit)) == (Verdict.DIFFERENT_MODEL, codes)
    more = audit.findings[-1]
    assert (more.severity, more.expected) == (Severity.ERROR, 0)
    assert more.actual == (128 if codes[1:] else 64)


def test_what_a_converter_has_left_over_makes_none() -> None:
    files = twin("Llama-3.1-8B")
    tensors = [one for one in small_tensors("Llama-3.1-8B") if "layers.3.mlp" not in one.name]
    audit = ki.audit(files, small("Llama-3.1-8B", tensors))
    assert "parameters-differ" not in above_info(audit)


@pytest.mark.parametrize("its", ARCHITECTURES)
def test_another_model_is_never_said_without_a_finding_that_says_so(its: str) -> None:
    dropped = [small(its, [one for one in small_tensors(its) if part not in one.name]) for part in DROPPED]
    grown = [small(its, {one.name: one for one in (*small_tensors(its), more)}.values()) for more in (CLASSIFIER, BIAS)]
    other = [make(name) for name in ("Llama-3.1-8B", "Mixtral-8x7B") for make in (small, twin)]
    for candidate in (*dropped, *grown, *other):
        audit = ki.audit(candidate, small(its))
        says_so = {item.code for item in audit.findings} & SAYS_SO
        assert says_so if audit.verdict is Verdict.DIFFERENT_MODEL else audit.verdict is Verdict.DAMAGED or not says_so
