"""What names of weight files say, in the habits of those who publish them."""

from __future__ import annotations

import pytest

from kimi_inspect.set_names import base_name, is_copy, is_draft, is_side, quant_label, variant_of

QUANTS = [
    # unsloth: a folder a quantization, its own recipes marked UD.
    ("UD-Q4_K_XL/Kimi-K3.1-Pro-UD-Q4_K_XL-00001-of-00034.gguf", "UD-Q4_K_XL", "Kimi-K3.1-Pro"),
    ("UD-IQ1_M/DeepSeek-R1-UD-IQ1_M-00002-of-00004.gguf", "UD-IQ1_M", "DeepSeek-R1"),
    ("Qwen3-0.6B-UD-Q8_K_XL.gguf", "UD-Q8_K_XL", "Qwen3-0.6B"),
    ("gpt-oss-120b-UD-TQ1_0.gguf", "UD-TQ1_0", "gpt-oss-120b"),
    ("BF16/Kimi-K2-Instruct-BF16-00001-of-00045.gguf", "BF16", "Kimi-K2-Instruct"),
    # bartowski.
    ("Llama-3.3-70B-Instruct-Q4_K_M.gguf", "Q4_K_M", "Llama-3.3-70B-Instruct"),
    ("google_gemma-3-4b-it-IQ4_NL.gguf", "IQ4_NL", "google_gemma-3-4b-it"),
    ("x-Q4_0_8_8.gguf", "Q4_0_8_8", "x"),
    ("x-Q6_K_L.gguf", "Q6_K_L", "x"),
    ("x-Q8_0_L.gguf", "Q8_0_L", "x"),
    ("x-Q4_K_M_L.gguf", "Q4_K_M_L", "x"),
    ("x-f32/x-f32-00001-of-00003.gguf", "f32", "x"),
    # mradermacher: dots, and i1 for those made with an importance matrix.
    ("Llama-3-8B.i1-Q4_K_M.gguf", "i1-Q4_K_M", "Llama-3-8B"),
    ("Llama-3-8B.i1-IQ2_XXS.gguf", "i1-IQ2_XXS", "Llama-3-8B"),
    ("Llama-3-8B.Q8_0.gguf", "Q8_0", "Llama-3-8B"),
    # TheBloke, DevQuasar, KarLexAI, ggml-org, Qwen, Microsoft, Google, QuantFactory.
    ("llama-2-7b-chat.Q5_K_S.gguf", "Q5_K_S", "llama-2-7b-chat"),
    ("moonshotai.Kimi-K3.1-Pro.MXFP4_MOE-00001-of-00033.gguf", "MXFP4_MOE", "moonshotai.Kimi-K3.1-Pro"),
    ("moonshotai.Kimi-K3.1-Pro.Q2_K-00033-of-00033.gguf", "Q2_K", "moonshotai.Kimi-K3.1-Pro"),
    ("Kimi-K3.1-Pro-KLX-IQ2_XXS-00001-of-00010.gguf", "KLX-IQ2_XXS", "Kimi-K3.1-Pro"),
    ("gemma-3-270m-f16.gguf", "f16", "gemma-3-270m"),
    ("gpt-oss-20b-mxfp4.gguf", "mxfp4", "gpt-oss-20b"),
    ("qwen2.5-7b-instruct-q4_k_m-00001-of-00002.gguf", "q4_k_m", "qwen2.5-7b-instruct"),
    ("qwen2.5-7b-instruct-fp16-00001-of-00004.gguf", "fp16", "qwen2.5-7b-instruct"),
    ("Phi-3-mini-4k-instruct-q4.gguf", "q4", "Phi-3-mini-4k-instruct"),
    ("gemma-3-4b-it-q4_0.gguf", "q4_0", "gemma-3-4b-it"),
    ("gemma-3-4b-it-qat-q4_0.gguf", "q4_0", "gemma-3-4b-it-qat"),
    ("Falcon3-1B-TQ2_0.gguf", "TQ2_0", "Falcon3-1B"),
    ("x-NVFP4.gguf", "NVFP4", "x"),
    ("x-fp8.gguf", "fp8", "x"),
    # VL, a number or a Q in the name of a model is no label.
    ("Qwen2.5-VL-7B-Instruct-Q4_K_M.gguf", "Q4_K_M", "Qwen2.5-VL-7B-Instruct"),
    ("QwQ-32B-IQ3_XXS.gguf", "IQ3_XXS", "QwQ-32B"),
    ("Q4_K_M.gguf", "Q4_K_M", ""),
    ("x_Q4_K_M.gguf", "Q4_K_M", "x"),
    ("x Q4_K_M.gguf", "Q4_K_M", "x"),
    ("naïve 模型-Q4_K_M.gguf", "Q4_K_M", "naïve 模型"),
    # The last of two labels, and the name before the folder.
    ("x-bf16-q8_0.gguf", "q8_0", "x-bf16"),
    ("Q8_0/x-Q4_0.gguf", "Q4_0", "x"),
    ("IQ4_XS/x.gguf", "IQ4_XS", "x"),
    ("a/b/x-UD-Q2_K_XL/part-00001-of-00002.gguf", "UD-Q2_K_XL", "part"),
]

UNLABELLED = [
    "model.gguf",
    "Qwen3-VL-2B.gguf",
    "Qwen2.gguf",
    "QwQ-32B.gguf",
    "phi-4.gguf",
    "sub/model.gguf",
    "x-Q4_K_M-v2.gguf",
    "Q4_K_M-x.gguf",
    "xQ4_K_M.gguf",
    "x-INT4.gguf",
    "x-q4f16_1.gguf",
    "x-BF161.gguf",
    "x-Q.gguf",
    "Q4_K_M/deeper/x.gguf",
]


@pytest.mark.parametrize(("path", "label", "base"), QUANTS)
def test_labels_and_the_name_that_all_quantizations_share(path: str, label: str, base: str) -> None:
    assert (quant_label(path), base_name(path)) == (label, base)


@pytest.mark.parametrize("path", UNLABELLED)
def test_names_without_a_label(path: str) -> None:
    assert quant_label(path) is None
    assert base_name(path) == path.rpartition("/")[2].removesuffix(".gguf")


SIDES = [
    ("mmproj-F16.gguf", "mmproj"),
    ("mmproj-BF16.gguf", "mmproj"),
    ("mmproj.gguf", "mmproj"),
    ("MMPROJ-f32.gguf", "MMPROJ"),
    ("sub/mmproj-F16.gguf", "mmproj"),
    ("gemma-3-4b-it-mmproj-f16.gguf", "gemma-3-4b-it-mmproj"),
    ("mmproj-model-f16.gguf", "mmproj-model"),
    ("mmproj-google_gemma-3-4b-it-bf16.gguf", "mmproj-google_gemma-3-4b-it"),
    ("Qwen2.5-VL-7B.mmproj-Q8_0.gguf", "Qwen2.5-VL-7B.mmproj"),
    ("Qwen2.5-VL-7B.mmproj.gguf", "Qwen2.5-VL-7B.mmproj"),
    ("mmproj_model_f16.gguf", "mmproj_model"),
    ("x_mmproj.gguf", "x_mmproj"),
    ("mmproj-F16-00001-of-00002.gguf", "mmproj"),
    ("imatrix.gguf", "imatrix"),
    ("imatrix_unsloth.gguf", "imatrix_unsloth"),
    ("Kimi-K3.1-Pro.imatrix.gguf", "Kimi-K3.1-Pro.imatrix"),
    ("Kimi-K3.1-Pro-imatrix.gguf", "Kimi-K3.1-Pro-imatrix"),
]


@pytest.mark.parametrize(("path", "base"), SIDES)
def test_names_of_side_files(path: str, base: str) -> None:
    assert is_side(path)
    assert base_name(path) == base


def test_precisions_of_one_side_file_share_a_name() -> None:
    for habit in ("mmproj-{}.gguf", "x-mmproj-{}.gguf", "mmproj-x-{}.gguf", "x.mmproj-{}.gguf", "mmproj.{}.gguf"):
        assert len({base_name(habit.format(kind)) for kind in ("F16", "bf16", "F32", "Q8_0")}) == 1


@pytest.mark.parametrize(
    "path",
    [
        *(path for path, _, _ in QUANTS),
        *UNLABELLED,
        # The word stands alone, and in the name of the file.
        "mmprojector.gguf",
        "xmmproj-f16.gguf",
        "imatrixed-Q4_K_M.gguf",
        "mmproj/x-Q4_K_M.gguf",
        "imatrix/x-Q4_K_M.gguf",
    ],
)
def test_names_of_models(path: str) -> None:
    assert not is_side(path)


@pytest.mark.parametrize(
    "name",
    [
        *("mtp", "MTP", "model-mtp", "model_mtp", "model.mtp", "mtp_head", "mtp-fp8", "mtp.fp8", "nextn"),
        *("model-nextn", "draft", "draft_model", "draft-00001-of-00002", "eagle", "eagle3", "eagle3-head"),
        "medusa_lm_head",
    ],
)
def test_names_of_draft_heads(name: str) -> None:
    assert is_draft(f"{name}.safetensors")
    assert is_draft(f"sub/{name}.safetensors")


@pytest.mark.parametrize(
    "path",
    ["model", "mtpx", "drafting", "eagles", "mtp/model", "llama-mtp", "model-00001-of-00002", "eagle33", "modelmtp"],
)
def test_names_of_no_draft_head(path: str) -> None:
    assert not is_draft(f"{path}.safetensors")


@pytest.mark.parametrize("variant", ["fp16", "bf16", "fp32", "fp8", "int8", "ema", "non_ema"])
@pytest.mark.parametrize(
    "habit",
    [
        "model.{}.safetensors",
        "unet/x.{}.safetensors",
        "a.b.{}.safetensors",
        # Writers put the variant before the numbers or behind them.
        "model-00001-of-00002.{}.safetensors",
        "model.{}-00001-of-00002.safetensors",
    ],
)
def test_variants(habit: str, variant: str) -> None:
    assert variant_of(habit.format(variant)) == variant


@pytest.mark.parametrize(
    "path",
    [
        "model",
        "fp16/model",
        "x.fp16/model",
        "x.fp16-y/model",
        "fp16",
        "model-fp16",
        "model.fp16x",
        "model.ema_only",
        "model.fp8_e4m3",
    ],
)
def test_no_variants(path: str) -> None:
    assert variant_of(f"{path}.safetensors") is None


@pytest.mark.parametrize(
    "name",
    [
        *("consolidated", "consolidated.00", "consolidated-fp8", "sub/consolidated"),
        *("original/model", "original/a/b", "a/original/b", "original/consolidated.00"),
    ],
)
def test_copies_in_the_original_layout(name: str) -> None:
    assert is_copy(name)


@pytest.mark.parametrize("name", ["model", "original", "originals/x", "my_consolidated", "consolidatedx", "x/original"])
def test_no_copies(name: str) -> None:
    assert not is_copy(name)
