"""What config files say of packing: the forms that tools write, and what a stranger may write in their place."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import usual

from kimi_inspect.declared import KEYS, MAX_GLOBS, Declaration, Spec, declaration_of

MXFP4 = Spec(encoding="mxfp4", bits=4, group_size=32)
INT4 = Spec(encoding="int4", bits=4, group_size=32)
INT2 = Spec(encoding="int2", bits=2, group_size=128)
BLOCK = Spec(encoding="fp8_block", bits=8, block=(128, 128))
EXPERT = "model.layers.3.mlp.experts.12.up_proj"
QUERY = "model.layers.3.self_attn.q_proj"


def read(said: Any, **beside: Any) -> Declaration:
    return declaration_of({"quantization_config": said, **beside})


def compressed(
    *groups: dict[str, Any], form: str | None = "pack-quantized", method: str | None = "x"
) -> dict[str, Any]:
    named = {f"group_{number}": group for number, group in enumerate(groups)}
    said = {"quant_method": method and "compressed-tensors", "format": form, "config_groups": named}
    return {key: value for key, value in said.items() if value is not None}


def group(bits: int, size: int | None, *targets: str, **weights: Any) -> dict[str, Any]:
    chosen = {"targets": list(targets)} if targets else {}
    return {"weights": {"num_bits": bits, "group_size": size, "type": "int"} | weights, **chosen}


@pytest.mark.parametrize(
    ("said", "spec"),
    [
        (compressed(group(4, 32, "Linear")), INT4),
        (compressed(group(4, 32)), INT4),
        (compressed(group(4, 32, "Linear"), method=None), INT4),
        (compressed(group(8, None, "Linear", strategy="channel")), Spec(encoding="int8", bits=8)),
        (compressed(group(4, 32, type="float"), form="mxfp4-pack-quantized"), MXFP4),
        (
            compressed(group(4, 16, type="float"), form="nvfp4-pack-quantized"),
            Spec(encoding="nvfp4", bits=4, group_size=16),
        ),
        (compressed({"format": "mxfp4-pack-quantized"}, form="mixed-precision"), MXFP4),
        (compressed(form="mxfp8-quantized"), None),
        ({"format": "mxfp8-quantized"}, Spec(encoding="mxfp8", bits=8, group_size=32)),
        (compressed(group(8, None, type="float", block_structure=[128, 128]), form="float-quantized"), BLOCK),
        (compressed(group(8, None, type="float", block_structure="128x128"), form="float-quantized"), BLOCK),
        (compressed(group(8, None, type="float"), form="float-quantized"), Spec(encoding=None, bits=8)),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, INT4),
        ({"quant_method": "gptq", "bits": 3, "group_size": -1}, Spec(encoding="int3", bits=3)),
        ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}, INT4),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, Spec(encoding="bnb_int8", bits=8)),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
            Spec(encoding="nf4", bits=4),
        ),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
            Spec(encoding="bnb_fp4", bits=4),
        ),
        ({"quant_method": "bitsandbytes", "load_in_4bit": False, "bnb_4bit_quant_type": "nf4"}, None),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, BLOCK),
        ({"quant_method": "fp8"}, None),
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, MXFP4),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, Spec(encoding="nvfp4")),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, None),
        ({"bits": 4, "group_size": 64}, Spec(encoding="affine4", bits=4, group_size=64)),
        ({"bits": 6, "group_size": 64, "mode": "affine"}, Spec(encoding="affine6", bits=6, group_size=64)),
        ({"bits": 4, "group_size": 32, "mode": "mxfp4"}, MXFP4),
        ({"quant_method": "a method of next year", "bits": 4}, None),
    ],
)
def test_forms_that_tools_write(said: dict[str, Any], spec: Spec | None) -> None:
    declaration = read(said)
    assert declaration.of(QUERY) == declaration.of(EXPERT) == spec
    assert declaration.packed
    assert declaration.sole == (spec and spec.encoding)
    assert declaration.uniform


@pytest.mark.parametrize("key", KEYS)
def test_a_form_stands_at_the_top_or_in_the_text_model(key: str) -> None:
    said, other = {"quant_method": "mxfp4"}, {"quant_method": "gptq", "bits": 4, "group_size": 32}
    assert declaration_of({key: said}).default == MXFP4
    assert declaration_of({"text_config": {key: said}}).default == MXFP4
    assert declaration_of({key: other, "text_config": {key: said}}).default == INT4
    assert declaration_of({"vision_config": {key: said}}) == Declaration()


@pytest.mark.parametrize(
    ("target", "fits", "fits_not"),
    [
        (EXPERT, EXPERT, EXPERT + ".x"),
        ("re:.*experts.*", EXPERT, QUERY),
        ("re:.*mlp.experts.*", EXPERT, QUERY),
        (r"re:.*\.experts\.\d+\..*", EXPERT, "model.layers.3.mlp.shared_experts.up_proj"),
        ("re:.*self_attn.(q|k)_proj$", QUERY, "model.layers.3.self_attn.v_proj"),
        ("re:.*self_attn.(?:q|k)_proj$", QUERY, QUERY + ".inner"),
        ("re:^model.layers.3.*", QUERY, "language_model.model.layers.3.x"),
        (r"re:model\.layers\.[0-9]+\.self_attn.*", QUERY, EXPERT),
        ("re:.*lm_head", "lm_head", QUERY),
        ("re:.*up_proj$", EXPERT, EXPERT + ".lora"),
        ("re:.*up_proj", EXPERT + ".lora", QUERY),
        ("Embedding", QUERY, None),
    ],
)
def test_targets_are_names_patterns_and_classes(target: str, fits: str, fits_not: str | None) -> None:
    declaration = read(compressed(group(2, 128, target), group(4, 32, "Linear")))
    assert declaration.of(fits) == INT2
    assert not declaration.uniform
    assert declaration.encodings == {"int2", "int4"}
    assert declaration.sole is None
    if fits_not is not None:
        assert declaration.of(fits_not) == INT4


@pytest.mark.parametrize("turned", [False, True])
def test_a_class_of_modules_stands_for_the_rest_wherever_it_stands(turned: bool) -> None:
    groups = [group(4, 32, "Linear"), group(2, 128, "re:.*experts.*")]
    declaration = read(compressed(*(reversed(groups) if turned else groups)))
    assert (declaration.of(EXPERT), declaration.of(QUERY)) == (INT2, INT4)


def test_the_first_of_several_patterns_decides() -> None:
    declaration = read(
        compressed(group(2, 128, "re:.*experts.*"), group(4, 32, "re:.*up_proj"), group(8, 32, "re:.*q_.*"))
    )
    assert (declaration.of(EXPERT), declaration.of("model.up_proj"), declaration.of("model.norm")) == (INT2, INT4, None)


@pytest.mark.parametrize("pattern", ["(a+)+$", "[a-z]*", "a{1,9}", "(?!a)", "(a", "a)", "a|b", r"a\\", "(a*)*b", "a+"])
def test_what_is_not_understood_of_a_pattern_fits_nothing(pattern: str) -> None:
    declaration = read(compressed(group(2, 128, "re:" + pattern), group(4, 32, "Linear")))
    assert declaration.of("a" * 40) == INT4


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "(.*.*.*)*b",
        ".*a" * 400 + "b",
        "(a|b)" * 400,
        "(a|aa)" * 400 + "$",
        "a" * 4000,
        "(?:" + "|".join("ab" * 400) + ")",
    ],
)
def test_no_pattern_costs_anything(pattern: str) -> None:
    began = time.process_time()
    declaration = read(compressed(group(2, 128, "re:" + pattern), group(4, 32, "Linear")))
    for number in range(50):
        declaration.of("a" * 500 + str(number))
    assert time.process_time() - began < 2


def test_alternatives_are_followed_up_to_a_limit() -> None:
    every = "|".join(f"m{number}" for number in range(MAX_GLOBS + 1))
    declaration = read(compressed(group(2, 128, f"re:({every})$"), group(4, 32, "Linear")))
    assert declaration.of("m0") == declaration.of(f"m{MAX_GLOBS - 1}") == INT2


def test_mlx_says_of_single_modules_what_they_are() -> None:
    said = {
        "bits": 4,
        "group_size": 64,
        QUERY: {"bits": 8, "group_size": 32},
        EXPERT: {"bits": 4, "group_size": 32, "mode": "mxfp4"},
        "model.embed_tokens": False,
        "lm_head": True,
    }
    declaration = declaration_of({"quantization": said, "quantization_config": said})
    assert declaration.of(QUERY) == Spec(encoding="affine8", bits=8, group_size=32)
    assert declaration.of(EXPERT) == MXFP4
    assert declaration.of("model.embed_tokens") is None
    assert declaration.of("lm_head") == declaration.default == Spec(encoding="affine4", bits=4, group_size=64)
    assert not declaration.uniform
    assert declaration.encodings == {"affine4", "affine8", "mxfp4"}


@pytest.mark.parametrize(("dtype", "spec"), [("fp4", MXFP4), ("fp8", BLOCK), (None, BLOCK)])
def test_deepseek_says_beside_it_that_experts_are_of_four_bits(dtype: str | None, spec: Spec) -> None:
    declaration = read({"quant_method": "fp8", "weight_block_size": [128, 128]}, expert_dtype=dtype)
    assert declaration.of("layers.3.ffn.experts.12.w1") == spec
    assert declaration.of("layers.3.ffn.shared_experts.w1") == declaration.of("layers.3.attn.wq_a") == BLOCK


@pytest.mark.parametrize(
    "said",
    [
        None,
        "mxfp4",
        4,
        [],
        ["mxfp4"],
        {},
        {"quant_method": ["gptq"], "bits": 4},
        {"quant_method": {}, "bits": 4},
        {"quant_method": "gptq", "bits": "4"},
        {"quant_method": "gptq", "bits": True},
        {"quant_method": "gptq", "bits": 4.0},
        {"quant_method": "gptq", "bits": -4},
        {"quant_method": "fp8", "weight_block_size": [128]},
        {"quant_method": "fp8", "weight_block_size": [128, 0]},
        {"quant_method": "fp8", "weight_block_size": [128, -128]},
        {"quant_method": "fp8", "weight_block_size": [128.0, True]},
        {"quant_method": "fp8", "weight_block_size": "128"},
        {"quant_method": "fp8", "weight_block_size": [10**9, 10**9]},
        {"quant_method": "fp8", "weight_block_size": {"0": 128}},
        {"quant_method": "modelopt", "quant_algo": ["NVFP4"]},
        {"quant_method": "bitsandbytes", "load_in_8bit": "yes"},
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": ["nf4"]},
        {"format": ["mxfp4-pack-quantized"]},
        {"format": "mxfp4-pack-quantized", "config_groups": {"group_0": "Linear"}},
        {"config_groups": {"group_0": {"weights": ["int"], "targets": {"Linear": 1}}}},
        {"config_groups": {"group_0": {"weights": {"num_bits": [4]}, "targets": [4, None, ["re:.*"]]}}},
    ],
)
def test_garbage_declares_no_encoding(said: Any) -> None:
    declaration = read(said)
    assert declaration.encodings == set()
    assert declaration.sole is None
    assert declaration.packed == isinstance(said, dict)


@pytest.mark.parametrize("config", [None, {}, {"text_config": 4}, {"text_config": [1]}, {"quantization": None}])
def test_nothing_is_declared(config: dict[str, Any] | None) -> None:
    assert declaration_of(config) == Declaration()
    assert declaration_of(config).uniform


WORDS = """
    gptq awq fp8 mxfp4 mlx modelopt bitsandbytes compressed-tensors NVFP4 mxfp4-pack-quantized Linear int float affine
    128x128 re:.* re:(a|b)+ re:^(?:a|b)$
"""
SAID = """
    quant_method bits group_size format config_groups group_0 targets weights num_bits type block_structure mode
    weight_block_size quant_algo load_in_4bit bnb_4bit_quant_type quantization text_config expert_dtype
"""
words = st.sampled_from(WORDS.split())
keys = st.sampled_from([QUERY, *SAID.split()])
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.sampled_from([2, 4, 8, 32, 128]), st.floats(), words, st.text()
)
values = st.recursive(leaves, lambda one: st.one_of(st.lists(one, max_size=4), st.dictionaries(keys, one, max_size=6)))


@usual
@given(st.sampled_from(KEYS), st.dictionaries(keys, values, max_size=8), st.text(max_size=30))
def test_no_json_raises(key: str, said: dict[str, Any], name: str) -> None:
    declaration = declaration_of({**said, key: said})
    assert declaration.packed
    for module in (QUERY, EXPERT, name, ""):
        spec = declaration.of(module)
        assert spec is None or spec.encoding is None or spec.encoding in declaration.encodings
    assert declaration.sole is None or declaration.encodings == {declaration.sole}
    assert declaration.uniform in (True, False)
