"""Packings that no rule knows: what they hold is unknown, to the byte, and never another model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

import kimi_inspect as ki
from kimi_inspect import Audit, Checkpoint, Role
from kimi_inspect.testing import HollowFile, TensorSpec, hollow_safetensors

HIDDEN, INNER, LAYERS = 256, 512, 2
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 32,
    "vocab_size": 64,
}
MATRICES = {
    **{f"self_attn.{one}_proj": (HIDDEN, HIDDEN) for one in "qkvo"},
    **{f"mlp.{one}_proj": (INNER, HIDDEN) for one in ("gate", "up")},
    "mlp.down_proj": (HIDDEN, INNER),
}
NORMS = ("input_layernorm", "post_attention_layernorm")

Pack = Callable[[int, int], str]
"""From the rows and columns of a matrix to "leaf DTYPE extent extent, leaf DTYPE"."""

METHODS: dict[str, tuple[Pack, str, dict[str, Role]]] = {
    "exl3": (
        lambda out, into: f"trellis I16 {into // 16} {out // 16} 64, suh F16 {into}, svh F16 {out}, mcg I32",
        "i16",
        {"trellis": Role.WEIGHT, "suh": Role.BOOKKEEPING, "mcg": Role.BOOKKEEPING},
    ),
    "exl2": (
        lambda out, into: (
            f"q_weight I32 {into // 8} {out}, q_scale I32 {into // 32} {out // 8}, q_scale_max F16 {into // 32},"
            f" q_groups I16 {into // 16}, q_invperm I32 {into}"
        ),
        "i32",
        {"q_weight": Role.WEIGHT, "q_scale": Role.SCALE, "q_invperm": Role.BOOKKEEPING},
    ),
    "hqq": (
        lambda out, into: (
            f"W_q U8 {out * into // 128} 64, scale F16 {out * into // 64} 1, zero F16 {out * into // 64} 1"
        ),
        "u8",
        {"W_q": Role.WEIGHT, "scale": Role.SCALE, "zero": Role.ZERO_POINT},
    ),
    "aqlm": (
        lambda out, into: f"codes I16 {out} {into // 8} 1, codebooks F16 1 65536 1 8, scales F16 {out} 1 1 1",
        "i16",
        {"codes": Role.WEIGHT, "codebooks": Role.BOOKKEEPING, "scales": Role.SCALE},
    ),
    "quip": (
        lambda out, into: f"Qidxs I16 {out} {into // 8}, SU F16 {into}, SV F16 {out}, Wscale F32",
        "i16",
        {"Qidxs": Role.WEIGHT, "SU": Role.BOOKKEEPING, "Wscale": Role.SCALE},
    ),
    "quanto": (
        lambda out, into: f"weight._data I8 {out} {into}, weight._scale BF16 {out} 1",
        "i8",
        {"weight._data": Role.WEIGHT, "weight._scale": Role.SCALE},
    ),
    "vptq": (
        lambda out, into: (
            f"indices I32 1 {out // 16} {into}, centroids.weight F16 1 2048, perm U16 {into}, weight_scale F16 {into}"
        ),
        "i32",
        {"indices": Role.WEIGHT, "centroids.weight": Role.BOOKKEEPING, "weight_scale": Role.SCALE},
    ),
    "torchao": (
        lambda out, into: f"_weight_qdata I8 {out} {into}, _weight_scale F32 {out} {into // 32}",
        "i8",
        {"_weight_qdata": Role.WEIGHT, "_weight_scale": Role.BOOKKEEPING},
    ),
    "made up today": (
        lambda out, into: f"blob U32 {out} {into // 8}, steps F16 {out} {into // 32}, order I16 {into}",
        "u32",
        {"blob": Role.WEIGHT, "steps": Role.BOOKKEEPING, "order": Role.BOOKKEEPING},
    ),
}
PLAIN = 2 * 64 * HIDDEN + HIDDEN + LAYERS * len(NORMS) * HIDDEN
"""Parameters that stay BF16."""


def tensors(pack: Pack | None = None) -> Iterator[TensorSpec]:
    for name in ("model.embed_tokens", "lm_head"):
        yield TensorSpec(f"{name}.weight", "BF16", (64, HIDDEN))
    yield TensorSpec("model.norm.weight", "BF16", (HIDDEN,))
    for layer in range(LAYERS):
        for name in NORMS:
            yield TensorSpec(f"model.layers.{layer}.{name}.weight", "BF16", (HIDDEN,))
        for name, shape in MATRICES.items():
            for item in (pack(*shape) if pack else f"weight BF16 {shape[0]} {shape[1]}").split(", "):
                leaf, dtype, *extents = item.split()
                yield TensorSpec(f"model.layers.{layer}.{name}.{leaf}", dtype, tuple(map(int, extents)))


def opened(specs: Iterator[TensorSpec] | list[TensorSpec], method: str | None = None, **said: Any) -> Checkpoint:
    config: Mapping[str, Any] = CONFIG | ({"quantization_config": {"quant_method": method, **said}} if method else {})
    files = {
        "model.safetensors": hollow_safetensors(list(specs)),
        "config.json": HollowFile(json.dumps(config).encode()),
    }
    return ki.open_checkpoint(files)


def above_info(found: Checkpoint | Audit) -> list[str]:
    return [item.code for item in found.findings if item.severity is not ki.Severity.INFO]


@pytest.mark.parametrize("method", METHODS)
class TestMethodsThatNoRuleKnows:
    def test_parameters_are_unknown_and_bytes_exact(self, method: str) -> None:
        pack, dtype, roles = METHODS[method]
        specs = list(tensors(pack))
        found = opened(specs, method)
        report = ki.summarize(found)
        assert above_info(found) == []
        assert (report.parameters, report.known_parameters) == (None, PLAIN)
        assert report.unknown_tensors == LAYERS * len(MATRICES)
        packed = next(row for row in report.by_encoding() if row.encoding != "bf16")
        assert (packed.encoding, packed.parameters) == (f"unknown:{dtype}", None)
        assert packed.stored_bytes == report.tensor_bytes - 2 * PLAIN
        for leaf, role in roles.items():
            tensor = found.tensors[f"model.layers.1.mlp.up_proj.{leaf}"]
            assert (leaf, tensor.role, tensor.parameters) == (leaf, role, None if role is Role.WEIGHT else 0)

    @pytest.mark.parametrize("declared", [True, False])
    def test_it_is_no_other_model(self, method: str, declared: bool) -> None:
        found = opened(tensors(METHODS[method][0]), method if declared else None)
        audit = ki.audit(found, opened(tensors()))
        assert (audit.verdict, above_info(audit)) == ("requantized", [])
        assert {item.after for item in audit.requantizations} == {f"unknown:{METHODS[method][1]}"}
        assert {item.bits_after for item in audit.requantizations} == {None}

    def test_nor_is_the_plain_one_against_it(self, method: str) -> None:
        audit = ki.audit(opened(tensors()), opened(tensors(METHODS[method][0]), method))
        assert (audit.verdict, above_info(audit)) == ("requantized", [])

    def test_a_layer_that_is_missing_is_told(self, method: str) -> None:
        kept = [one for one in tensors(METHODS[method][0]) if ".layers.1." not in one.name]
        audit = ki.audit(opened(kept, method), opened(tensors()))
        assert "layer-missing" in [item.code for item in audit.findings]

    def test_a_norm_that_is_missing_is_told(self, method: str) -> None:
        kept = [one for one in tensors(METHODS[method][0]) if one.name != "model.layers.1.input_layernorm.weight"]
        audit = ki.audit(opened(kept, method), opened(tensors()))
        assert "tensor-missing" in [item.code for item in audit.findings]


def test_a_matrix_that_is_missing_beside_known_leaves_is_told() -> None:
    kept = [one for one in tensors(METHODS["exl3"][0]) if not one.name.startswith("model.layers.1.mlp.up_proj")]
    audit = ki.audit(opened(kept, "exl3"), opened(tensors()))
    assert [item.tensor for item in audit.findings if item.code == "tensor-missing"] == [
        "model.layers.1.mlp.up_proj.weight"
    ]


def test_experts_in_one_tensor_under_a_method_that_no_rule_knows() -> None:
    module = "model.layers.0.mlp.experts."
    specs = [
        TensorSpec(module + "gate_up_proj", "U8", (4, 64, 32)),
        TensorSpec(module + "gate_up_proj_steps", "F16", (4, 64, 2)),
        TensorSpec(module + "gate_up_proj_bias", "BF16", (4, 64)),
        TensorSpec(module + "down_proj", "BF16", (4, 32, 64)),
    ]
    found = opened(specs, "made up today").tensors
    assert [(one.name.removeprefix(module), one.encoding, one.parameters) for one in found] == [
        ("gate_up_proj", "unknown:u8", None),
        ("gate_up_proj_steps", "unknown:u8", 0),
        ("gate_up_proj_bias", "bf16", 4 * 64),
        ("down_proj", "bf16", 4 * 32 * 64),
    ]


@pytest.mark.parametrize("method", ["made up today", None])
@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    [
        ("model.embeddings.position_ids", "I32", (1, 64)),
        ("model.layers.0.mlp.gate.tid2eid", "I32", (64, 2)),
        ("model.d2t", "I32", (8, 8)),
        ("model.layers.0.self_attn.relative_position_index", "I32", (49, 49)),
        ("model.layers.0.attn.bias", "U8", (1, 1, 64, 64)),
        ("model.layers.0.bn.num_batches_tracked", "I64", ()),
        ("model.layers.0.self_attn.q_proj.order", "I32", (64,)),
        ("table", "I32", (8, 8)),
    ],
)
def test_integers_that_are_what_they_are(name: str, dtype: str, shape: tuple[int, ...], method: str | None) -> None:
    found = opened([TensorSpec(name, dtype, shape)], method).tensors[0]
    assert (found.encoding, found.role, found.shape) == (dtype.lower(), Role.WEIGHT, shape)


@pytest.mark.parametrize("method", ["made up today", None])
def test_a_table_beside_a_plain_weight_is_no_packed_weight(method: str | None) -> None:
    module = "model.layers.{}.mlp.up_proj."
    specs = [
        TensorSpec(module.format(0) + "weight", "BF16", (8, 8)),
        TensorSpec(module.format(0) + "hashes", "I32", (8, 8)),
        TensorSpec(module.format(1) + "hashes", "I32", (8, 8)),
        TensorSpec(module.format(1) + "steps", "F16", (8, 1)),
    ]
    found = opened(specs, method).tensors
    assert [one.encoding for one in found] == ["bf16", "i32", "unknown:i32", "unknown:i32"]


@pytest.mark.parametrize("module", ["model.layers.0.quantizer", "model.layers.0.self_attn"])
def test_without_a_declaration_only_a_module_that_has_to_have_a_matrix_is_packed(module: str) -> None:
    specs = [TensorSpec(f"{module}.hashes", "I32", (8, 8)), TensorSpec(f"{module}.steps", "F16", (8, 1))]
    assert [one.encoding for one in opened(specs).tensors] == ["i32", "f16"]
    assert [one.parameters for one in opened(specs, "made up today").tensors] == [None, 0]


def test_a_name_of_a_foreign_packing_alone_shows_nothing() -> None:
    specs = [TensorSpec("model.layers.0.quantizer.codes", "I32", (8, 8))]
    assert opened(specs).tensors[0].encoding == "i32"
    assert opened(specs, "aqlm").tensors[0].encoding == "unknown:i32"


def test_a_known_method_in_tensors_of_another_kernel() -> None:
    """GPTQ as Marlin lays it out."""
    module = "model.layers.0.mlp.up_proj."
    specs = [TensorSpec(module + "B", "I32", (16, 512)), TensorSpec(module + "s", "F16", (2, 256))]
    found = opened(specs, "gptq", bits=4, group_size=128).tensors
    assert [(one.encoding, one.parameters) for one in found] == [("unknown:i32", None), ("unknown:i32", 0)]


@pytest.mark.parametrize("scales", [(8, 2), (7, 7)], ids=["known", "unknown"])
def test_whole_numbers_beside_a_known_weight_are_no_other_weight(scales: tuple[int, int]) -> None:
    """Sparse weights as Marlin lays them out have a matrix that says which values are there."""
    module = "model.layers.0.mlp.up_proj."
    specs = [
        TensorSpec(module + "weight_packed", "I32", (8, 8)),
        TensorSpec(module + "weight_scale", "BF16", scales),
        TensorSpec(module + "meta", "I16", (8, 4)),
    ]
    group = {"weights": {"num_bits": 4, "group_size": 32}}
    found = opened(specs, "compressed-tensors", format="marlin-24", config_groups={"group_0": group}).tensors
    assert found[module + "weight_packed"].encoding == ("int4" if scales == (8, 2) else "unknown:i32")
    assert found[module + "meta"].parameters is not None


def test_a_known_form_under_an_unknown_method_is_what_its_tensors_say() -> None:
    module = "model.layers.0.mlp.up_proj."
    specs = [
        TensorSpec(module + "qweight", "I32", (8, 96)),
        TensorSpec(module + "qzeros", "I32", (2, 12)),
        TensorSpec(module + "scales", "F16", (2, 96)),
        TensorSpec(module + "g_idx", "I32", (64,)),
    ]
    assert {one.encoding for one in opened(specs, "auto-round").tensors} == {"int4"}


def test_more_integers_than_a_module_has_are_none_of_it() -> None:
    letters = [chr(97 + one // 26) + chr(97 + one % 26) for one in range(100)]
    specs = [TensorSpec(f"model.layers.0.mlp.up_proj.{name}", "I32", (8, 8)) for name in letters]
    report = ki.summarize(opened(specs, "made up today"))
    assert report.unknown_tensors == 64
