"""The engines, and what each is known to load: a table of rules, each with its source."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from kimi_inspect.gguf_types import TENSOR_TYPES
from kimi_inspect.loader_rules import (
    NO,
    UNKNOWN,
    YES,
    Answer,
    Build,
    Loads,
    Rule,
    has_models,
    has_types,
    reads,
    refuses_findings,
    words,
)
from kimi_inspect.published import CHECKED

__all__ = ["ENGINES", "Engine"]

_DOUBTS = refuses_findings(
    UNKNOWN,
    {
        "experts-uneven": "its layers hold different numbers of experts",
        "packing-disagrees": "its config declares another packing than its tensors show",
    },
    "docs/findings.md",
)
"""What every engine may stumble at."""

_LACKS = refuses_findings(
    UNKNOWN,
    {
        "component-missing": "its config declares parts that are not there",
        "unindexed-tensors": "its index does not name all of its tensors",
        "index-unreadable": "its index cannot be read",
    },
    "docs/findings.md",
)
"""What engines may stumble at that build all that the config declares, and look for it where the index says."""

_DONE_GETTING = "src/llama-model-loader.cpp, done_getting_tensors: wrong number of tensors"


def _mlx_files(build: Build) -> Iterator[Answer]:
    if not all(path.rpartition("/")[2].startswith("model") for path in build.paths):
        yield Answer(NO, "it looks for files named model*.safetensors only", f"{_MLX}, utils.py, load_model")


def _or_code(rule: Rule) -> Rule:
    """Ask no rule for models of a repository that brings the code of its own."""

    def ask(build: Build) -> Iterator[Answer]:
        if isinstance(build.config.get("model_file"), str):
            reason = "its config names model code in the repository itself, which is not looked into here"
            yield Answer(UNKNOWN, reason, f"{_MLX}, utils.py, load_model: model_file")
        else:
            yield from rule(build)

    return ask


_MLX, _TRANSFORMERS = "mlx-lm 0.32.2", "transformers 5.24.0"
_NO_K31 = Answer(
    NO,
    "it has no model of the type kimi_k31; the repository would have to bring the code",
    f"{_MLX}, models/: none up to {CHECKED}",
)

_COMMON = words(
    "kimi-k25 kimi-linear deepseek-v2 deepseek-v3 deepseek-v32 llama llama4 mistral mixtral qwen2 qwen2-moe qwen3 "
    "qwen3-moe qwen3-next qwen3-vl qwen3-vl-moe gpt-oss gemma gemma2 gemma3 gemma3-text glm4 glm4-moe minimax "
    "minimax-m2 phi3 phimoe mamba2 jamba falcon-h1 nemotron-h olmo2 olmo3"
)
"""Families, as `family_of` spells them, that all three of mlx-lm, vLLM and transformers have."""

_IK_RUNS: tuple[tuple[int, str], ...] = (
    (133, "q6_0 iq1_bn iq2_bn q8_k64 iq2_k iq3_k iq4_k iq5_k iq6_k"),
    (144, "iq4_ks iq2_ks iq4_kss"),
    (151, "q8_kv iq5_ks iq2_kt iq3_kt iq4_kt iq3_ks iq2_kl iq1_kt"),
    (202, "q4_0_r8"),
    (206, "q5_0_r4"),
    (208, "q8_0_r8"),
    (210, "q2_k_r4 q3_k_r4 q4_k_r4 q5_k_r4 q6_k_r4"),
    (216, "iq2_xxs_r4 iq2_xs_r4 iq3_xxs_r4 iq1_s_r4 iq4_nl_r4 iq3_s_r4 iq2_s_r4 iq4_xs_r8"),
    (229, "iq1_m_r4 bf16_r16"),
    (233, "q6_0_r4"),
    (335, "iq2_bn_r4"),
    (337, "iq2_k_r4 iq3_k_r4 iq4_k_r4 iq5_k_r4"),
    (344, "iq4_ks_r4"),
    (352, "iq5_ks_r4"),
    (398, "q8_kv_r8 q8_k_r8"),
)
"""Numbers that ik_llama.cpp has given to types of its own, in runs. Source: its gguf-py/gguf/constants.py."""

_IK_TYPES = {f"unknown:{first + step}": name for first, run in _IK_RUNS for step, name in enumerate(run.split())}
_GGML_TYPES = frozenset(known.name.lower() for known in TENSOR_TYPES.values())

_IK_MODELS = words(
    "llama llama4 deci falcon grok gpt2 gptj gptneox mpt baichuan starcoder refact bert nomic-bert jina-bert-v2 bloom "
    "stablelm qwen qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3next qwen3vl qwen3vlmoe qwen35 qwen35moe phi2 phi3 plamo "
    "codeshell orion internlm2 minicpm gemma gemma2 gemma3 gemma4 starcoder2 mamba xverse command-r cohere2 dbrx olmo "
    "openelm arctic deepseek2 deepseek4 chatglm glm4 glm4moe glm-dsa bitnet bitnet-25 t5 t5encoder jais granite "
    "granitemoe dots1 ernie4_5 ernie4_5-moe hunyuan-moe gpt-oss bailingmoe2 minimax-m2 smollm3 mistral3 mistral4 mimo2 "
    "seed_oss step35 lfm2"
)


def _upstream_models() -> frozenset[str]:
    """Return the architectures that the installed gguf package knows."""
    from gguf.constants import MODEL_ARCH_NAMES

    return frozenset(MODEL_ARCH_NAMES.values())


@frozen(kw_only=True)
class Engine:
    """An engine, the format that it loads, its rules, and what it does with the other format."""

    name: str
    format: str
    rules: tuple[Rule, ...]
    otherwise: Answer


ENGINES = (
    Engine(
        name="llama.cpp",
        format="gguf",
        otherwise=Answer(NO, "it loads GGUF only; convert_hf_to_gguf.py makes that", "llama.cpp, README.md"),
        rules=(
            _DOUBTS,
            refuses_findings(
                NO,
                {
                    "foreign-type": "it has a type number that a fork uses in its own way",
                    "name-too-long": "a tensor's name is longer than 63 bytes",
                    "misaligned": "its alignment is no power of two",
                },
                "llama.cpp, ggml/src/gguf.cpp; ggml.h, GGML_MAX_NAME",
            ),
            refuses_findings(
                NO,
                {"unexpected-tensor": "it refuses a file with tensors that its model does not have"},
                f"llama.cpp, {_DONE_GETTING}",
            ),
            has_types(_GGML_TYPES, "llama.cpp, ggml.h, enum ggml_type", foreign=_IK_TYPES),
            has_models(
                _upstream_models,
                "llama.cpp, gguf-py/gguf/constants.py, MODEL_ARCH_NAMES, as installed",
                {
                    "kimi-k31": Answer(
                        YES, "it has kimi-k31 since build b12180", "llama.cpp, pull request #31779, build b12180"
                    ),
                    "kimi-k3": Answer(YES, "it has kimi-k3", "llama.cpp, pull request #26185"),
                    "clip": Answer(YES, "a vision encoder, loaded beside a model by --mmproj", "llama.cpp, tools/mtmd"),
                },
            ),
        ),
    ),
    Engine(
        name="ik_llama.cpp",
        format="gguf",
        otherwise=Answer(NO, "it loads GGUF only", "ik_llama.cpp, README.md"),
        rules=(
            _DOUBTS,
            refuses_findings(
                UNKNOWN,
                {
                    "foreign-type": "it has a type number that a fork uses in its own way",
                    "name-too-long": "a tensor's name is longer than llama.cpp allows",
                    "misaligned": "its alignment is one that llama.cpp refuses",
                },
                "llama.cpp, ggml/src/gguf.cpp",
            ),
            refuses_findings(
                UNKNOWN, {"unexpected-tensor": "llama.cpp refuses so many tensors"}, f"llama.cpp, {_DONE_GETTING}"
            ),
            has_types(
                _GGML_TYPES - words("tq1_0 tq2_0 nvfp4 q1_0 q2_0"),
                "ik_llama.cpp, gguf-py/gguf/constants.py; of MXFP4 pull request #682",
                own=_IK_TYPES,
            ),
            has_models(lambda: _IK_MODELS, "ik_llama.cpp, src/llama-arch.cpp, LLM_ARCH_NAMES", {}),
        ),
    ),
    Engine(
        name="mlx-lm",
        format="safetensors",
        otherwise=Answer(NO, "it loads safetensors only", f"{_MLX}, utils.py, load_model"),
        rules=(
            _DOUBTS,
            _mlx_files,
            _or_code(
                has_models(
                    lambda: _COMMON | words("kimi-k2 kimi-k3 kimi-vl"),
                    f"{_MLX}, models/, and utils.py, MODEL_REMAPPING",
                    {"kimi-k31": _NO_K31},
                )
            ),
            reads(
                (
                    Loads("plain"),
                    Loads("plain by MLX"),
                    Loads("MLX"),
                    Loads("AWQ", words("int4")),
                    Loads("gpt-oss blocks", families=words("gpt-oss")),
                    Loads("FP8 blocks", families=words("deepseek-v3 kimi-k2")),
                    Loads("compressed-tensors", words("int4"), words("deepseek-v3 kimi-k2 kimi-k25")),
                    Loads("compressed-tensors", words("mxfp4"), words("kimi-k3")),
                ),
                "no known form, bitsandbytes",
                f"{_MLX}, utils.py, load_model, and sanitize in models/",
            ),
        ),
    ),
    Engine(
        name="vLLM",
        format="safetensors",
        otherwise=Answer(
            UNKNOWN, "GGUF is left to a plugin, vllm-gguf-plugin", "vLLM, pull request #39612, release 0.24.0"
        ),
        rules=(
            _DOUBTS,
            _LACKS,
            has_models(
                lambda: _COMMON | words("kimi-k2 kimi-vl"),
                "vLLM, docs/models/supported_models.md, and model_executor/models/registry.py",
                {
                    "kimi-k31": Answer(YES, "it has kimi-k31 since 0.34.0", f"vLLM, release 0.34.0, read {CHECKED}"),
                    "kimi-k3": Answer(YES, "it has kimi-k3", "vLLM, pull request #50000"),
                },
            ),
            reads(
                (
                    Loads("plain"),
                    Loads("compressed-tensors", words("int4 int8 mxfp4 nvfp4")),
                    Loads("INT8"),
                    Loads("FP8"),
                    Loads("FP8 blocks"),
                    Loads("GPTQ", words("int4 int8")),
                    Loads("AWQ", words("int4")),
                    Loads("bitsandbytes"),
                    Loads("ModelOpt"),
                    Loads("gpt-oss blocks", families=words("gpt-oss")),
                ),
                "no known form, MLX",
                "vLLM, docs/features/quantization, and model_executor/layers/quantization/",
            ),
        ),
    ),
    Engine(
        name="transformers",
        format="safetensors",
        otherwise=Answer(
            UNKNOWN, "it loads some architectures of GGUF, by gguf_file=", f"{_TRANSFORMERS}, docs, quantization/gguf"
        ),
        rules=(
            _DOUBTS,
            _LACKS,
            has_models(
                lambda: _COMMON,
                f"{_TRANSFORMERS}, models/auto/modeling_auto.py",
                {
                    name: Answer(
                        UNKNOWN,
                        f"it has no {name}: only with the publisher's own model code, by trust_remote_code",
                        f"{_TRANSFORMERS}, models/auto/modeling_auto.py; of Kimi K3 issue #48851",
                    )
                    for name in ("kimi-k2", "kimi-k3", "kimi-k31", "kimi-vl")
                },
            ),
            reads(
                (
                    Loads("plain"),
                    Loads("compressed-tensors", words("int4 int8")),
                    Loads("FP8 blocks"),
                    Loads("GPTQ", words("int2 int3 int4 int8")),
                    Loads("AWQ", words("int4")),
                    Loads("bitsandbytes"),
                    Loads("gpt-oss blocks", families=words("gpt-oss")),
                ),
                "MLX",
                f"{_TRANSFORMERS}, quantizers/auto.py; MLX's form names no quant_method",
            ),
        ),
    ),
)
"""The engines in the order of the rows. No engine is known to load what no row here says."""
