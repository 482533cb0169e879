"""Audits of models of many families: each against itself, and what a converter makes of it against the original."""

from __future__ import annotations

import pytest
from small_models import ARCHITECTURES, DRAFTS, small, twin

import kimi_inspect as ki
from kimi_inspect import Audit, Severity, Verdict
from kimi_inspect.testing import ENCODINGS, packed_model


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
