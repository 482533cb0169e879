"""The stand-ins in GGUF: that the writer is right, by the reference reader, and that Kimi's sets have their totals."""

from __future__ import annotations

import json
import sys
from io import BytesIO, TextIOWrapper
from math import prod
from pathlib import Path
from typing import Any, Literal

import gguf
import pytest
from testing.raw_client import ask

from kimi_inspect.testing import (
    DANIELHANCHEN_GGUF_ID,
    DEVQUASAR_GGUF_ID,
    GGML_TYPES,
    KIMI_K31_PRO_ID,
    ByteOrder,
    Files,
    GgufTensor,
    HollowFile,
    KimiRecipe,
    LoopbackHub,
    Precision,
    Repository,
    SplitNumbers,
    Typed,
    danielhanchen_gguf,
    devquasar_gguf,
    encoded,
    hollow_gguf,
    imatrix_gguf,
    kimi_gguf,
    kimi_gguf_tensors,
    kimi_mmproj,
    split_gguf,
)
from kimi_inspect.testing.__main__ import main

SOME = (
    GgufTensor("blk.0.ssm_a", "F32", (3,)),
    GgufTensor("token_embd.weight", "Q8_0", (64, 5)),
    GgufTensor("blk.0.ffn_up_exps.weight", "MXFP4", (32, 3, 2)),
    GgufTensor("é", "NVFP4", (128, 1, 1, 1)),
)
VALUES: dict[str, tuple[Any, list[str], Any]] = {
    "text": ("naïve", ["STRING"], "naïve"),
    "truth": (True, ["BOOL"], True),
    "number": (7, ["UINT32"], 7),
    "fraction": (0.5, ["FLOAT32"], 0.5),
    "texts": (["a", "", "é"], ["ARRAY", "STRING"], ["a", "", "é"]),
    "truths": ([True, False], ["ARRAY", "BOOL"], [True, False]),
    "numbers": ([1, 2], ["ARRAY", "UINT32"], [1, 2]),
    "fractions": ([0.5, 2.0], ["ARRAY", "FLOAT32"], [0.5, 2.0]),
    "u8": (Typed("u8", 255), ["UINT8"], 255),
    "i8": (Typed("i8", -1), ["INT8"], -1),
    "u16": (Typed("u16", 3), ["UINT16"], 3),
    "i16": (Typed("i16", -3), ["INT16"], -3),
    "i32": (Typed("i32", [-1, 2]), ["ARRAY", "INT32"], [-1, 2]),
    "u64": (Typed("u64", 2**40), ["UINT64"], 2**40),
    "i64": (Typed("i64", [-(2**40)]), ["ARRAY", "INT64"], [-(2**40)]),
    "f64": (Typed("f64", 0.1), ["FLOAT64"], 0.1),
}


def read(file: HollowFile, folder: Path) -> gguf.GGUFReader:
    """Read by the reference reader; the file is sparse, whatever its size."""
    path = folder / f"{len(list(folder.iterdir()))}.gguf"  # the reader keeps the last one mapped
    file.write_to(path)
    return gguf.GGUFReader(path)


def contents(reader: gguf.GGUFReader) -> dict[str, Any]:
    """Return the key-values of the file without the three numbers of its head."""
    return {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}


class TestWriter:
    def test_types_are_those_of_the_reference(self) -> None:
        unlike = {}
        for kind in gguf.GGMLQuantizationType:
            theirs = (int(kind), *gguf.GGML_QUANT_SIZES[kind])
            if GGML_TYPES[kind.name] != theirs:
                unlike[kind.name] = theirs
        # Theirs has two sums of four bytes each in Q8_1, where ggml has two of two.
        assert unlike == {"Q8_1": (9, 32, 40)}
        assert set(GGML_TYPES) - {kind.name for kind in gguf.GGMLQuantizationType} <= {"Q2_0"}

    @pytest.mark.parametrize("version", [2, 3])
    @pytest.mark.parametrize("byte_order", ["<", ">"])
    @pytest.mark.parametrize("alignment", [8, 32, 4096])
    def test_reference_reads_tensors(self, tmp_path: Path, version: int, byte_order: ByteOrder, alignment: int) -> None:
        file = hollow_gguf(SOME, {"a": 1}, version=version, byte_order=byte_order, alignment=alignment)
        reader = read(file, tmp_path)
        said = [(t.name, t.tensor_type.name, tuple(t.shape.tolist()), t.n_bytes) for t in reader.tensors]
        assert said == [(t.name, t.type, t.dims, t.stored_bytes) for t in SOME]
        place = len(file.head)
        for tensor in reader.tensors:
            assert tensor.data_offset == place
            place += -(-int(tensor.n_bytes) // alignment) * alignment
        assert file.size == place
        assert contents(reader) == {"a": 1} | ({} if alignment == 32 else {"general.alignment": alignment})

    @pytest.mark.parametrize("byte_order", ["<", ">"])
    def test_reference_reads_values(self, tmp_path: Path, byte_order: ByteOrder) -> None:
        file = hollow_gguf([], {key: value for key, (value, _, _) in VALUES.items()}, byte_order=byte_order)
        reader = read(file, tmp_path)
        assert contents(reader) == {key: content for key, (_, _, content) in VALUES.items()}
        for key, (_, types, _) in VALUES.items():
            assert [kind.name for kind in reader.fields[key].types] == types
        assert file.size == len(file.head)
        assert file.size % 32 == 0

    @pytest.mark.parametrize(("byte_order", "order"), [("<", "little"), (">", "big")])
    def test_version_1_has_lengths_of_32_bits(self, byte_order: ByteOrder, order: Literal["little", "big"]) -> None:
        def words(*numbers: int) -> bytes:
            return b"".join(number.to_bytes(4, order) for number in numbers)

        file = hollow_gguf([GgufTensor("t", "F16", (6, 2))], {"k": "hi"}, version=1, byte_order=byte_order)
        pair = words(1) + b"k" + words(8, 2) + b"hi"
        tensor = words(1) + b"t" + words(2, 6, 2, 1) + bytes(8)
        assert file.head == (b"GGUF" + words(1, 1, 1) + pair + tensor).ljust(64, b"\0")
        assert file.size == 64 + 32

    def test_what_is_encoded_goes_in_as_it_is(self) -> None:
        once = encoded(["a", "b"], byte_order=">")
        files = [hollow_gguf([], {"k": value}, byte_order=">") for value in (once, ["a", "b"])]
        assert files[0].head == files[1].head

    def test_rows_fill_blocks(self) -> None:
        assert GgufTensor("x", "F32", ()).stored_bytes == 4
        assert GgufTensor("x", "Q8_0", (0, 5)).stored_bytes == 0
        with pytest.raises(ValueError, match="blocks of 256 elements, a row is 128"):
            _ = GgufTensor("x", "Q2_K", (128, 512)).stored_bytes


class TestSplit:
    def test_parts(self, tmp_path: Path) -> None:
        files = split_gguf("a/B", [[], SOME[:1], SOME[1:]], {"general.architecture": "x"}, alignment=64)
        assert list(files) == [f"a/B-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
        readers = [read(file, tmp_path) for file in files.values()]
        assert [[tensor.name for tensor in reader.tensors] for reader in readers] == [
            [],
            ["blk.0.ssm_a"],
            ["token_embd.weight", "blk.0.ffn_up_exps.weight", "é"],
        ]
        aligned = {"split.count": 3, "split.tensors.count": 4, "general.alignment": 64}
        assert [contents(reader) for reader in readers] == [
            {"general.architecture": "x", "split.no": 0} | aligned,
            {"split.no": 1} | aligned,
            {"split.no": 2} | aligned,
        ]
        keys = ("split.no", "split.count", "split.tensors.count")
        assert [readers[0].fields[key].types[0].name for key in keys] == ["UINT16", "UINT16", "INT32"]

    def test_a_part_may_lie(self, tmp_path: Path) -> None:
        files = split_gguf("B", [SOME[:2], SOME[2:]], {}, numbers={1: SplitNumbers(no=0, count=9, tensors=-1)})
        said = [contents(read(file, tmp_path)) for file in files.values()]
        assert said[0] == {"split.no": 0, "split.count": 2, "split.tensors.count": 4}
        assert said[1] == {"split.no": 0, "split.count": 9, "split.tensors.count": -1}


class TestKimi:
    @pytest.mark.parametrize(
        ("recipe", "parts", "tensor_bytes", "file_bytes"),
        [
            ("MXFP4_MOE", 33, 1_508_890_182_016, 1_508_897_280_480),
            ("Q2_K", 33, 1_009_307_929_472, 1_009_315_027_936),
            ("UD-Q4_K_XL", 34, 1_509_013_485_952, 1_509_020_584_672),
            ("UD-Q8_K_XL", 34, 1_561_518_856_576, 1_561_525_956_960),
        ],
    )
    def test_totals(self, recipe: KimiRecipe, parts: int, tensor_bytes: int, file_bytes: int) -> None:
        files, tensors = kimi_gguf(recipe), kimi_gguf_tensors(recipe)
        assert (len(files), len(tensors)) == (parts, 2693)
        assert sum(tensor.stored_bytes for tensor in tensors) == tensor_bytes
        assert sum(file.size - len(file.head) for file in files.values()) == tensor_bytes
        assert sum(file.size for file in files.values()) == file_bytes
        experts = [tensor for tensor in tensors if tensor.name.endswith("_exps.weight")]
        if recipe != "Q2_K":
            assert {tensor.type for tensor in experts} == {"MXFP4"}
            assert sum(tensor.stored_bytes for tensor in experts) == 1_446_456_066_048

    def test_parameters(self) -> None:
        sizes = {tensor.name: prod(tensor.dims) for tensor in kimi_gguf_tensors("Q2_K")}
        # Of each residual score safetensors have two vectors, and of each ssm_a 32 entries of padding more.
        residual = sum(size for name, size in sizes.items() if name.endswith("_res_score.weight"))
        assert residual == 1_340_416
        assert [size for name, size in sizes.items() if name.endswith("ssm_a")] == [96] * 69
        assert sum(sizes.values()) + 1_340_416 + 69 * 32 == 2_780_110_363_392 - (401_214_464 + 46_144_512)

    @pytest.mark.parametrize(
        ("recipe", "expected"),
        [
            ("MXFP4_MOE", ["Q8_0", "Q8_0", "Q8_0", "Q8_0", "Q8_0", "BF16", "F32", "F32", "MXFP4"]),
            ("Q2_K", ["Q6_K", "Q3_K", "Q4_0", "Q2_K", "Q2_K", "BF16", "F32", "F32", "Q3_K"]),
            ("UD-Q4_K_XL", ["Q8_0", "Q8_0", "Q8_0", "Q8_0", "F32", "BF16", "Q8_0", "F32", "MXFP4"]),
            ("UD-Q8_K_XL", ["BF16", "BF16", "BF16", "BF16", "BF16", "BF16", "F32", "F32", "MXFP4"]),
        ],
    )
    def test_recipes(self, recipe: KimiRecipe, expected: list[str]) -> None:
        types = {tensor.name: tensor.type for tensor in kimi_gguf_tensors(recipe, layers=4, experts=2)}
        names = ["output", "blk.2.attn_v", "blk.3.attn_k_b", "blk.3.attn_v_b", "blk.2.ssm_beta", "blk.3.indexer.attn_k"]
        names += ["blk.3.indexer.proj", "blk.3.ffn_gate_inp", "blk.3.ffn_down_exps"]
        assert [types[f"{name}.weight"] for name in names] == expected

    def test_reference_reads_a_small_set(self, tmp_path: Path) -> None:
        files = kimi_gguf("MXFP4_MOE", layers=5, experts=4, tokens=1000, parts=4)
        readers = [read(file, tmp_path) for file in files.values()]
        tensors = [(t.name, t.tensor_type.name, tuple(t.shape.tolist())) for r in readers for t in r.tensors]
        expected = kimi_gguf_tensors("MXFP4_MOE", layers=5, experts=4)
        assert tensors == [(t.name, t.type, t.dims) for t in expected]
        assert not readers[0].tensors
        # The globals, then by layer, which has one digit here; by name within each.
        names = [tensor.name for tensor in expected]
        assert names == sorted(names[:4]) + sorted(names[4:])
        said = contents(readers[0])
        assert said["general.architecture"] == "kimi-k31"
        assert said["kimi-k31.attention.head_count_kv"] == [0, 0, 0, 1, 0]
        assert (said["kimi-k31.block_count"], said["kimi-k31.expert_count"]) == (5, 4)
        tokens, merges = (said[f"tokenizer.ggml.{key}"] for key in ("tokens", "merges"))
        assert len(set(tokens)) == len(said["tokenizer.ggml.token_type"]) == 1000
        assert [merge.replace(" ", "") for merge in merges] == tokens[256:-256]

    @pytest.mark.parametrize("tokens", [1, 256, 300, 512, 600])
    def test_tokenizer_of_any_length(self, tmp_path: Path, tokens: int) -> None:
        said = contents(read(kimi_gguf("Q2_K", layers=1, tokens=tokens, parts=1).popitem()[1], tmp_path))
        lists = [said[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type", "merges")]
        assert [len(one) for one in lists] == [tokens, tokens, max(0, tokens - 512)]
        assert all(said[f"tokenizer.ggml.{key}_token_id"] < tokens for key in ("bos", "eos", "padding"))

    @pytest.mark.parametrize("parts", [1, 2, 33, 200])
    def test_parts_hold_for_a_small_set_too(self, parts: int) -> None:
        files = kimi_gguf("UD-Q8_K_XL", layers=2, experts=8, tokens=10, parts=parts)
        assert len(files) == parts
        total = sum(tensor.stored_bytes for tensor in kimi_gguf_tensors("UD-Q8_K_XL", layers=2, experts=8))
        assert sum(file.size - len(file.head) for file in files.values()) == total

    @pytest.mark.parametrize(
        ("precision", "tensor_bytes"), [("BF16", 904_437_760), ("F16", 904_437_760), ("F32", 1_789_435_904)]
    )
    def test_mmproj(self, tmp_path: Path, precision: Precision, tensor_bytes: int) -> None:
        file = kimi_mmproj(precision)
        assert (file.size - len(file.head), file.size) == (tensor_bytes, tensor_bytes + 11_168)
        reader = read(file, tmp_path)
        types = [tensor.tensor_type.name for tensor in reader.tensors]
        assert (len(types), types.count(precision)) == (168, 168 if precision == "F32" else 110)
        assert sum(int(tensor.n_elements) for tensor in reader.tensors) == 401_214_464 + 46_144_512
        said = contents(reader)
        assert (said["general.architecture"], said["clip.has_vision_encoder"]) == ("clip", True)

    def test_imatrix(self, tmp_path: Path) -> None:
        reader = read(imatrix_gguf(), tmp_path)
        said = contents(reader)
        assert said["general.type"] == "imatrix"
        assert "general.architecture" not in said
        assert {tensor.name.rpartition(".")[2] for tensor in reader.tensors} == {"in_sum2", "counts"}


class TestRepositories:
    def test_devquasar(self) -> None:
        files = devquasar_gguf()
        assert len(files) == 33 + 33 + 2
        assert "moonshotai.Kimi-K3.1-Pro.MXFP4_MOE-00001-of-00033.gguf" in files
        assert sum(file.size for path, file in files.items() if "mmproj" in path) == 904_448_928

    def test_danielhanchen(self) -> None:
        files = danielhanchen_gguf()
        assert len(files) == 34 + 34 + 3 + 2
        assert "UD-Q4_K_XL/Kimi-K3.1-Pro-UD-Q4_K_XL-00034-of-00034.gguf" in files
        assert "config.json" not in files

    def test_files_are_made_when_first_asked_for(self) -> None:
        made = []

        def make() -> Files:
            made.append(1)
            return {"README.md": b"x"}

        with LoopbackHub([Repository(repo_id="a/b", files=make)]) as hub:
            assert not made
            for _ in range(2):
                assert [entry["path"] for entry in ask(f"{hub.endpoint}/api/models/a/b/tree/main").json] == [
                    "README.md"
                ]
        assert made == [1]

    def test_process_serves_several(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO()))
        models = ["kimi-k3.1-pro-gguf", "kimi-k3.1-pro", "kimi-k3.1-pro-gguf-preliminary", "kimi-k3.1-pro"]
        assert main([word for model in models for word in ("--model", model)]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["repositories"] == [DEVQUASAR_GGUF_ID, KIMI_K31_PRO_ID, DANIELHANCHEN_GGUF_ID]
