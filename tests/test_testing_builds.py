"""The stand-ins of other makers' builds and of other encodings: their sizes, added up apart from what made them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from fractions import Fraction
from io import BytesIO, TextIOWrapper
from math import prod
from pathlib import Path
from typing import Any

import gguf
import pytest
from safetensors import safe_open

from kimi_inspect import demo, testing
from kimi_inspect.testing import BUILDS, DTYPE_BITS, ENCODINGS, PIPENETWORK_IDS, HollowFile, kimi_reap, packed_model
from kimi_inspect.testing.__main__ import main

Files = Mapping[str, HollowFile]
Tensors = dict[str, tuple[str, tuple[int, ...]]]

PUBLISHED = {
    testing.UNSLOTH_ID: (96, 1_561_293_160_568),
    testing.INFERENCERLABS_ID: (115, 1_561_243_578_065),
    testing.AINSLEYMARKOV_ID: (95, 816_943_261_367),
    PIPENETWORK_IDS[4]: (95, 321_897_117_664),
    PIPENETWORK_IDS[6]: (95, 335_960_941_648),
    PIPENETWORK_IDS[8]: (95, 350_024_765_392),
    testing.DPHN_ID: (96, 1_532_965_277_463),
}
GGUF_BUILDS = {
    testing.KARLEXAI_GGUF_ID: testing.karlexai_gguf,
    testing.MIDAGEDEV_GGUF_ID: testing.midagedev_gguf,
}
GGUF_PARTS = {
    testing.KARLEXAI_GGUF_ID: {
        "KLX-IQ2_XXS/": (17, 709_876_827_040),
        "KLX-IQ1_M/": (15, 647_869_832_960),
        "KLX-IQ1_S/": (14, 592_677_343_328),
    },
    testing.MIDAGEDEV_GGUF_ID: {"Kimi-K3.1-Pro-IQ1_S": (31, 580_345_966_528)},
}
PARAMETERS = 2_780_110_363_392
EXPERT = 3 * 3072 * 3584
EXPERT_BYTES = EXPERT // 2 + EXPERT // 32

BITS: dict[str, Fraction | int] = {
    **dict.fromkeys(("bf16", "f16"), 16),
    "f32": 32,
    "compressed-mxfp4": 4 + Fraction(8, 32),
    "compressed-nvfp4": 4 + Fraction(8, 16),
    "fp8-block": 8 + Fraction(32, 128 * 128),
    "awq-4": 4 + Fraction(4 + 16, 128),
    "bnb-int8": 8,
    "mlx-mxfp4": 4 + Fraction(8, 32),
    "mlx-mxfp8": 8 + Fraction(8, 32),
    "mlx-nvfp4": 4 + Fraction(8, 16),
    "modelopt-nvfp4": 4 + Fraction(8, 16),
    "modelopt-fp8": 8,
    **{f"bnb-{kind}{nested}": 4 for kind in ("nf4", "fp4") for nested in ("", "-nested")},
    **{f"gptq-{b}{order}": b + Fraction(b + 16, 128) for b in (2, 3, 4, 8) for order in ("", "-desc-act")},
    **{f"mlx-affine{b}-{g}": b + Fraction(32, g) for b in (2, 3, 4, 5, 6, 8) for g in (32, 64, 128)},
    **{f"compressed-int{b}-{g}": b + Fraction(16, g) for b, g in ((2, 32), (4, 32), (4, 128), (8, 128))},
    **{
        f"compressed-int{b}-{g}-zero-points": b + Fraction(16 + b, g) for b, g in ((2, 32), (4, 32), (4, 128), (8, 128))
    },
}
"""Bits of a packed value with its share of scales and zero points, by the definition of each encoding."""
OTHERS = {"mlx-bf16", "compressed-int8-rows", "compressed-fp8-rows", "deepseek-v4-fp4", "gpt-oss-mxfp4"}
SAFETENSORS = [name for name in ENCODINGS if not name.startswith("gguf-")]


def shards(files: Files) -> dict[str, HollowFile]:
    return {path: file for path, file in files.items() if path.endswith(".safetensors")}


def declared(files: Files) -> Tensors:
    """Read the headers as plain JSON."""
    found: Tensors = {}
    for file in shards(files).values():
        header = json.loads(file.head[8:])
        header.pop("__metadata__", None)
        assert not found.keys() & header.keys()
        found |= {name: (one["dtype"], tuple(one["shape"])) for name, one in header.items()}
    return found


def stored_bytes(tensors: Tensors, pattern: str = "") -> int:
    wanted = [one for name, one in tensors.items() if re.search(pattern, name)]
    return sum(DTYPE_BITS[dtype] * prod(shape) for dtype, shape in wanted) // 8


def written(text: str, stem: str = "") -> Tensors:
    """Parse "name dtype extent extent; name dtype"."""
    items = (item.split() for item in text.split("; "))
    return {stem + name: (dtype, tuple(map(int, extents))) for name, dtype, *extents in items}


def payload(files: Files) -> int:
    return sum(file.size - len(file.head) for file in shards(files).values())


def config(files: Files) -> Any:
    return json.loads(files["config.json"].head)


def reference_reads(files: Files, folder: Path) -> Tensors:
    """Open every shard by safetensors itself; the files are sparse."""
    found: Tensors = {}
    for path, file in shards(files).items():
        file.write_to(folder / path)
        with safe_open(folder / path, framework="numpy") as opened:
            for name in opened.keys():  # noqa: SIM118 - it has no __iter__
                one = opened.get_slice(name)
                found[name] = (one.get_dtype(), tuple(one.get_shape()))
    return found


def matrices(encoding: str) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield what belongs to projections; seed 0 has no row count that a block of 128 would cut."""
    for name, (dtype, shape) in declared(packed_model(encoding).files).items():
        if "_proj" in name and len(shape) > 1:
            yield name, dtype, shape


class TestPacked:
    @pytest.mark.parametrize("encoding", SAFETENSORS)
    def test_reference_reads(self, tmp_path: Path, encoding: str) -> None:
        files = packed_model(encoding).files
        assert reference_reads(files, tmp_path) == declared(files)
        index = json.loads(files["model.safetensors.index.json"].head)
        assert (set(index["weight_map"]), index["metadata"]["total_size"]) == (set(declared(files)), payload(files))

    @pytest.mark.parametrize("encoding", BITS)
    def test_bits_of_a_value(self, encoding: str) -> None:
        values = sum(prod(shape) for _, _, shape in matrices("bf16"))
        bits = sum(DTYPE_BITS[dtype] * prod(shape) for _, dtype, shape in matrices(encoding))
        assert Fraction(bits, values) == BITS[encoding]

    @pytest.mark.parametrize("seed", [0, 1, 77, 143, 100_000])
    def test_parameters_are_those_of_the_plain_model(self, seed: int) -> None:
        models = [packed_model(encoding, layers=3, experts=5, seed=seed) for encoding in ENCODINGS]
        plain = declared(models[ENCODINGS.index("bf16")].files)
        assert {model.parameters for model in models} == {sum(prod(shape) for _, shape in plain.values())}
        packed = [model.packed_parameters for model in models]
        linear = sum(prod(shape) for name, (_, shape) in plain.items() if "_proj" in name)
        assert packed[ENCODINGS.index("gptq-4")] == packed[ENCODINGS.index("gguf-q4_k")] == linear

    @pytest.mark.parametrize(
        ("encoding", "expected"),
        [
            ("compressed-int4-32-zero-points", "weight_packed I32 512 32; weight_scale BF16 512 8; weight_shape I64 2"),
            ("compressed-int4-32-zero-points", "weight_zero_point I32 64 8"),
            ("compressed-fp8-rows", "weight F8_E4M3 512 256; weight_scale BF16 512 1"),
            ("gptq-3", "qweight I32 24 512; qzeros I32 2 48; scales F16 2 512; g_idx I32 256"),
            ("awq-4", "qweight I32 256 64; qzeros I32 2 64; scales F16 2 512"),
            ("bnb-nf4", "weight U8 65536 1; weight.absmax F32 2048; weight.quant_map F32 16"),
            ("bnb-fp4-nested", "weight.absmax U8 2048; weight.nested_absmax F32 8; weight.nested_quant_map F32 256"),
            ("bnb-int8", "weight I8 512 256; SCB F32 512; weight_format U8"),
            ("mlx-affine3-64", "weight U32 512 24; scales BF16 512 4; biases BF16 512 4"),
            ("mlx-nvfp4", "weight U32 512 32; scales U8 512 16"),
            ("modelopt-nvfp4", "weight U8 512 128; weight_scale F8_E4M3 512 16; weight_scale_2 F32; input_scale F32"),
        ],
    )
    def test_one_matrix(self, encoding: str, expected: str) -> None:
        tensors = declared(packed_model(encoding).files)
        assert written(expected, "model.layers.0.self_attn.q_proj.").items() <= tensors.items()

    @pytest.mark.parametrize(
        ("encoding", "expected"),
        [
            ("gpt-oss-mxfp4", "model.layers.1.mlp.experts.gate_up_proj_blocks U8 4 512 8 16"),
            ("gpt-oss-mxfp4", "model.layers.1.mlp.experts.down_proj_scales U8 4 256 8"),
            ("deepseek-v4-fp4", "layers.1.ffn.experts.3.w2.weight I8 256 128; norm.weight BF16 256"),
            ("deepseek-v4-fp4", "layers.1.ffn.experts.3.w2.scale F8_E8M0 256 8"),
            ("deepseek-v4-fp4", "layers.0.ffn.w1.weight F8_E4M3 512 256; layers.0.attn.wo.scale F8_E8M0 2 4"),
            ("mlx-mxfp4", "model.layers.1.mlp.switch_mlp.up_proj.weight U32 4 256 32"),
            ("mlx-mxfp4", "model.layers.1.mlp.gate.biases BF16 4 4; model.embed_tokens.scales U8 320 8"),
            ("bnb-nf4-nested", "model.layers.1.mlp.gate.weight.nested_absmax F32 1; lm_head.weight BF16 320 256"),
        ],
    )
    def test_names(self, encoding: str, expected: str) -> None:
        assert written(expected).items() <= declared(packed_model(encoding).files).items()

    def test_configs(self) -> None:
        assert set(BITS) | OTHERS == set(SAFETENSORS)
        said = {encoding: config(packed_model(encoding).files) for encoding in SAFETENSORS}
        methods = {name: one.get("quantization_config", {}).get("quant_method") for name, one in said.items()}
        kinds = ("compressed-tensors", "gptq", "awq", "bitsandbytes", "modelopt", "fp8", "mxfp4", None)
        assert set(methods.values()) == set(kinds)
        assert said["deepseek-v4-fp4"]["expert_dtype"] == "fp4"
        assert said["gptq-2-desc-act"]["quantization_config"]["desc_act"]
        router = {"model.layers.1.mlp.gate": {"group_size": 64, "bits": 8, "mode": "affine"}}
        assert said["mlx-mxfp8"]["quantization"] == {"group_size": 32, "bits": 8, "mode": "mxfp8"} | router
        assert "hf_quant_config.json" in packed_model("modelopt-fp8").files
        with pytest.raises(ValueError, match="expected one of ENCODINGS"):
            packed_model("q4")

    @pytest.mark.parametrize("encoding", [name for name in ENCODINGS if name.startswith("gguf-")])
    def test_reference_reads_gguf(self, tmp_path: Path, encoding: str) -> None:
        model = packed_model(encoding, layers=2, experts=2)
        (file,) = model.files.values()
        kind = encoding.removeprefix("gguf-").upper()
        if kind not in gguf.GGMLQuantizationType.__members__:
            assert file.size > len(file.head) > len(testing.hollow_gguf([], {}).head)
            return
        file.write_to(tmp_path / "model.gguf")
        tensors = [one for one in gguf.GGUFReader(tmp_path / "model.gguf").tensors if not one.name.endswith(".scale")]
        assert sum(int(one.n_elements) for one in tensors) == model.parameters
        assert sum(int(one.n_elements) for one in tensors if one.tensor_type.name == kind) == model.packed_parameters


class TestBuilds:
    @pytest.mark.parametrize("repo_id", PUBLISHED)
    def test_files_and_bytes(self, repo_id: str) -> None:
        files = shards(BUILDS[repo_id]())
        count, total = PUBLISHED[repo_id]
        assert len(files) == count
        assert sum(file.size for file in files.values()) == pytest.approx(total, rel=0.0002)

    def test_mlx_is_the_official_one_regrouped(self) -> None:
        files = testing.kimi_mlx()
        tensors = declared(files)
        assert stored_bytes(tensors, r"switch_mlp") == 92 * 896 * EXPERT_BYTES == 1_446_456_066_048
        # Scales of a byte stand for no parameters, a word for eight; kv_b_proj is two matrices, with its own count.
        values = {"U32": 8, "U8": 0, "BF16": 1, "F32": 1}
        assert sum(values[dtype] * prod(shape) for dtype, shape in tensors.values()) == PARAMETERS
        assert stored_bytes(tensors) == 1_561_217_377_280
        assert len(tensors) == 497_340 - 92 * (896 * 6 - 6) + 24
        layer = {name.removeprefix("model.layers.3."): one for name, one in tensors.items() if ".layers.3." in name}
        assert layer["self_attn.embed_q.weight"] == ("BF16", (96, 512, 128))
        assert layer["self_attn.unembed_out.weight"] == ("BF16", (96, 128, 512))
        assert layer["block_sparse_moe.switch_mlp.down_proj.weight"] == ("U32", (896, 3584, 384))
        assert layer["block_sparse_moe.e_score_correction_bias"] == ("F32", (896,))
        assert layer["mlp_res.norm_weight"] == ("BF16", (7168,))
        assert tensors["model.layers.0.self_attn.q_conv.conv.weight"] == ("F32", (12288, 4, 1))
        assert tensors.keys() >= {"model.output_attn_res.proj_weight", "vision_tower.patch_embed.pos_emb.weight"}
        said = config(files)
        assert said["quantization"] == said["quantization_config"] == {"group_size": 32, "bits": 4, "mode": "mxfp4"}
        assert "quantization_config" not in said["text_config"]

    @pytest.mark.parametrize("bits", [4, 6, 8])
    def test_reap(self, bits: Any) -> None:
        files = kimi_reap(bits)
        tensors = declared(files)
        assert stored_bytes(tensors, r"switch_mlp") == 179 * 92 * EXPERT_BYTES == 288_968_343_552
        assert tensors["model.layers.92.block_sparse_moe.gate.weight"] == ("U32", (179, 7168 * bits // 32))
        parameters = 0
        for name, (dtype, shape) in tensors.items():
            if not name.endswith((".scales", ".biases")):
                width = (4 if "switch_mlp" in name else bits) if dtype == "U32" else 32
                parameters += prod(shape) * 32 // width
        assert parameters == PARAMETERS - 92 * (896 - 179) * (EXPERT + 7168 + 1)
        said = config(files)
        assert said["text_config"]["num_experts"] == 179
        assert said["quantization"]["model.layers.1.block_sparse_moe.switch_mlp.up_proj"]["mode"] == "mxfp4"
        assert len(said["quantization"]) == 3 + 92 * 3

    def test_reap_undeclared_and_uneven(self) -> None:
        files = kimi_reap(4, layers=3, experts=2, declared=896)
        assert config(files)["text_config"]["num_experts"] == 896
        assert declared(files)["model.layers.2.block_sparse_moe.e_score_correction_bias"][1] == (2,)
        files = kimi_reap(6, layers=4, expert_counts=[3, 1, 2])
        stacks = [shape for name, (_, shape) in declared(files).items() if name.endswith("switch_mlp.up_proj.scales")]
        assert [shape[0] for shape in stacks] == [3, 1, 2]
        said = config(files)["text_config"]
        assert (said["num_experts"], said["expert_counts"]) == (3, [0, 3, 1, 2])
        assert "expert_counts" not in config(kimi_reap(6, layers=2, expert_counts=[3], declared=3))["text_config"]

    def test_2bit(self) -> None:
        tensors = declared(testing.kimi_2bit())
        assert Fraction(stored_bytes(tensors, "switch_mlp") * 8, 92 * 896 * EXPERT) == 2 + Fraction(32, 128)
        quantization = config(testing.kimi_2bit(layers=2, experts=2))["quantization"]
        assert (quantization["bits"], quantization["group_size"]) == (2, 128)
        assert [quantization[name]["bits"] for name in ("lm_head", "model.layers.1.self_attn.q_proj")] == [8, 6]

    def test_nf12(self) -> None:
        tensors = declared(testing.kimi_nf12(layers=5, experts=2))
        official = declared(testing.kimi_k31_pro(layers=5, experts=2))
        books = [name for name in tensors if name.endswith("nf12_codebook")]
        # Two of each layer, 6 in KDA, 4 in full attention, 3 in the dense layer, 6 in the others, 2 of none.
        assert len(books) == 5 * 2 + 4 * 6 + 4 + 3 + 4 * 6 + 2
        for name in (book.replace("nf12_codebook", "weight") for book in books):
            dtype, shape = official.pop(name)
            assert (dtype, len(shape)) == ("BF16", 2)
            assert tensors.pop(name) == ("U8", (prod(shape) * 3 // 2,))
        assert tensors == official | dict.fromkeys(books, ("F32", (4096,)))

    def test_pruned(self) -> None:
        less = 92 * (896 - 224) * (EXPERT_BYTES + 2 * 7168 + 4)
        assert payload(testing.kimi_pruned()) == payload(testing.kimi_k31_pro()) - less == 1_561_217_377_280 - less
        files = testing.kimi_pruned(layers=2)
        assert stored_bytes(declared(files), r"\.experts\.") == 224 * EXPERT_BYTES
        assert config(files)["text_config"]["num_experts"] == 224

    @pytest.mark.parametrize("repo_id", BUILDS)
    def test_reference_reads_a_small_one(self, tmp_path: Path, repo_id: str) -> None:
        files = BUILDS[repo_id](layers=5, experts=3)
        tensors = reference_reads(files, tmp_path)
        assert tensors == declared(files)
        assert set(json.loads(files["model.safetensors.index.json"].head)["weight_map"]) == set(tensors)

    def test_process_serves_them(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO()))
        assert main(["--model", "kimi-k3.1-pro-mlx", "--model", "all"]) == 0
        served = json.loads(capsys.readouterr().out)["repositories"]
        assert {testing.KIMI_K31_PRO_ID, *GGUF_PARTS, *BUILDS} <= set(served)

    def test_demo_has_them_all(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO()))
        assert main([word for name in demo.EMBEDDED.values() for word in ("--model", name)]) == 0
        assert json.loads(capsys.readouterr().out)["repositories"] == list(demo.EMBEDDED)
        gguf = {testing.DEVQUASAR_GGUF_ID, testing.DANIELHANCHEN_GGUF_ID, *GGUF_PARTS}
        assert set(demo.EMBEDDED) == {testing.KIMI_K31_PRO_ID, *gguf, *BUILDS}


class TestGgufBuilds:
    @pytest.mark.parametrize("repo_id", GGUF_PARTS)
    def test_files_and_bytes(self, repo_id: str) -> None:
        files = GGUF_BUILDS[repo_id]()
        for stem, (count, total) in GGUF_PARTS[repo_id].items():
            parts = [file for path, file in files.items() if path.startswith(stem)]
            assert len(parts) == count
            assert sum(file.size for file in parts) == pytest.approx(total, rel=0.001)
            # The Hub takes no file of more than 50 GB.
            assert max(file.size for file in parts) < 50_000_000_000

    @pytest.mark.parametrize("repo_id", GGUF_PARTS)
    def test_reference_reads_a_small_one(self, tmp_path: Path, repo_id: str) -> None:
        files = GGUF_BUILDS[repo_id](layers=5, experts=4, tokens=64, parts=2)
        for stem in GGUF_PARTS[repo_id]:
            readers = []
            for path, file in files.items():
                if path.startswith(stem):
                    file.write_to(tmp_path / path.replace("/", "_"))
                    readers.append(gguf.GGUFReader(tmp_path / path.replace("/", "_")))
            assert len(readers) == 2
            values = sum(int(one.n_elements) for reader in readers for one in reader.tensors)
            assert values == sum(prod(one.dims) for one in testing.kimi_gguf_tensors("Q2_K", layers=5, experts=4))
            architecture = readers[0].fields["general.architecture"].contents()
            assert readers[0].fields[f"{architecture}.block_count"].contents() == 5
