"""Which engines load a checkpoint, as far as that is known: a table of rules, each with its source.

An engine has to know the model, and every way in which its weights are packed. What no rule knows is `unknown`, never
a guess; what is damaged no engine loads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from attrs import frozen

from kimi_inspect.claims import all_opened
from kimi_inspect.gguf_types import TENSOR_TYPES
from kimi_inspect.opening import Checkpoint
from kimi_inspect.published import CHECKED, OWN_ENGINES, repository_of
from kimi_inspect.report import Report
from kimi_inspect.table import TensorTable
from kimi_inspect.text import printable
from kimi_inspect.values import Role, Severity
from kimi_inspect.verdict import Loader, Support

__all__ = ["loaders_of"]

YES, NO, UNKNOWN = Support.YES, Support.NO, Support.UNKNOWN
_ORDER = (NO, UNKNOWN, YES)
"""The first of these that a rule says is what an engine does."""

_OF_ENGINES = frozenset({"foreign-type", "name-too-long"})
"""Errors that are not the file's but an engine's with it: rules below judge them."""


@frozen
class _Answer:
    """What one rule says."""

    support: Support
    reason: str
    rule: str


@frozen(kw_only=True)
class _Build:
    """What rules look at.

    Attributes:
        architecture: GGUF's `general.architecture`, and of safetensors the family.
        packings: layouts of weights with their encodings: ``("GPTQ", "int4")``; of GGUF the encodings alone matter.
        codes: of findings.
        config: the parsed config.json.
        paths: of the set's own files.
    """

    architecture: str | None
    packings: tuple[tuple[str, str], ...]
    codes: frozenset[str]
    config: Mapping[str, object]
    paths: tuple[str, ...]


_Rule = Callable[[_Build], Iterator[_Answer]]


@frozen
class _Layout:
    """What weights in a layout look like: the end of their names, stored type, start of the encoding; "" fits any."""

    name: str
    leaf: str = ""
    dtype: str = ""
    encoding: str | tuple[str, ...] = ""

    def fits(self, leaf: str, dtype: str, encoding: str) -> bool:
        return leaf.endswith(self.leaf) and self.dtype in ("", dtype) and encoding.startswith(self.encoding)


_LAYOUTS = (
    _Layout("no known form", encoding="unknown:"),
    _Layout("bitsandbytes", encoding=("nf4", "bnb_")),
    _Layout("compressed-tensors", leaf="weight_packed"),
    _Layout("GPTQ or AWQ", leaf="qweight"),
    _Layout("gpt-oss blocks", leaf="_blocks"),
    _Layout("MLX", dtype="U32"),
    _Layout("ModelOpt", dtype="U8", encoding="nvfp4"),
    _Layout("FP8 blocks", encoding="fp8_block"),
    _Layout("FP8", encoding="f8_"),
    _Layout("INT8", encoding="int8"),
    _Layout("bytes", encoding=("mxfp4", "mxfp8", "nvfp4")),
    _Layout("plain"),
)
"""The first that fits. Source: the forms in docs/encodings.md."""


@frozen
class _Loads:
    """A layout that an engine loads: of some encodings, of models of some families; of all where none is named."""

    layout: str
    encodings: frozenset[str] = frozenset()
    families: frozenset[str] = frozenset()

    def holds(self, packing: tuple[str, str], family: str | None) -> bool:
        return packing[0] == self.layout and all(
            not allowed or said in allowed for said, allowed in ((packing[1], self.encodings), (family, self.families))
        )


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _layouts(loads: Sequence[_Loads], refuses: str, rule: str) -> _Rule:
    """Make the rule that every layout has to be one that the engine loads; `refuses` names those it does not."""
    refused = frozenset(refuses.split(", "))

    def ask(build: _Build) -> Iterator[_Answer]:
        for packing in build.packings:
            if packing[0] in refused:
                yield _Answer(NO, f"it does not read {_shown(packing)}", rule)
            elif not any(one.holds(packing, build.architecture) for one in loads):
                yield _Answer(UNKNOWN, f"it is not known here to read {_shown(packing)}", rule)
        yield _Answer(YES, f"it reads {', '.join(map(_shown, build.packings))}", rule)

    return ask


def _shown(packing: tuple[str, str]) -> str:
    layout, encoding = packing
    return printable(encoding if layout == "plain" else f"{encoding} ({layout})")


def _models(known: Callable[[], frozenset[str]], rule: str, special: Mapping[str, _Answer]) -> _Rule:
    """Make the rule that the model has to be one that the engine has; of those in `special` more is known."""

    def ask(build: _Build) -> Iterator[_Answer]:
        name = build.architecture
        if name is None:
            yield _Answer(UNKNOWN, "neither config nor metadata name the model", rule)
        elif name in special:
            yield special[name]
        elif name in known():
            yield _Answer(YES, f"it has the model {name}", rule)
        else:
            yield _Answer(UNKNOWN, f"it is not known here to have a model {printable(name)}", rule)

    return ask


def _types(
    known: frozenset[str], rule: str, *, own: Mapping[str, str] | None = None, foreign: Mapping[str, str] | None = None
) -> _Rule:
    """Make the rule for types of GGUF: `own` are those that upstream has not, `foreign` those of another engine."""
    has, others = own or {}, foreign or {}

    def ask(build: _Build) -> Iterator[_Answer]:
        encodings = [encoding for _, encoding in build.packings]
        for encoding in encodings:
            if encoding in others:
                yield _Answer(NO, f"{others[encoding]} is a type of ik_llama.cpp's own", rule)
            elif encoding not in known and encoding not in has:
                what = printable(encoding.removeprefix("unknown:"))
                yield _Answer(UNKNOWN, f"it is not known here to have the type {what}", rule)
        yield _Answer(YES, f"it has the types {', '.join(has.get(one, one) for one in encodings)}", rule)

    return ask


def _refuses(support: Support, reasons: Mapping[str, str], rule: str) -> _Rule:
    """Make the rule for files with certain findings."""
    return lambda build: (_Answer(support, reason, rule) for code, reason in reasons.items() if code in build.codes)


_DOUBTS = _refuses(
    UNKNOWN,
    {
        "experts-uneven": "its layers hold different numbers of experts",
        "packing-disagrees": "its config declares another packing than its tensors show",
    },
    "docs/findings.md",
)
"""What every engine may stumble at."""

_LACKS = _refuses(
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


def _mlx_files(build: _Build) -> Iterator[_Answer]:
    if not all(path.rpartition("/")[2].startswith("model") for path in build.paths):
        yield _Answer(NO, "it looks for files named model*.safetensors only", f"{_MLX}, utils.py, load_model")


def _or_code(rule: _Rule) -> _Rule:
    """Ask no rule for models of a repository that brings the code of its own."""

    def ask(build: _Build) -> Iterator[_Answer]:
        if isinstance(build.config.get("model_file"), str):
            reason = "its config names model code in the repository itself, which is not looked into here"
            yield _Answer(UNKNOWN, reason, f"{_MLX}, utils.py, load_model: model_file")
        else:
            yield from rule(build)

    return ask


_MLX, _TRANSFORMERS = "mlx-lm 0.32.2", "transformers 5.24.0"
_NO_K31 = _Answer(
    NO,
    "it has no model of the type kimi_k31; the repository would have to bring the code",
    f"{_MLX}, models/: none up to {CHECKED}",
)

_COMMON = _names(
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

_IK_MODELS = _names(
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
class _Engine:
    """An engine, the format that it loads, its rules, and what it does with the other format."""

    name: str
    format: str
    rules: tuple[_Rule, ...]
    otherwise: _Answer


_ENGINES = (
    _Engine(
        name="llama.cpp",
        format="gguf",
        otherwise=_Answer(NO, "it loads GGUF only; convert_hf_to_gguf.py makes that", "llama.cpp, README.md"),
        rules=(
            _DOUBTS,
            _refuses(
                NO,
                {
                    "foreign-type": "it has a type number that a fork uses in its own way",
                    "name-too-long": "a tensor's name is longer than 63 bytes",
                    "misaligned": "its alignment is no power of two",
                },
                "llama.cpp, ggml/src/gguf.cpp; ggml.h, GGML_MAX_NAME",
            ),
            _refuses(
                NO,
                {"unexpected-tensor": "it refuses a file with tensors that its model does not have"},
                f"llama.cpp, {_DONE_GETTING}",
            ),
            _types(_GGML_TYPES, "llama.cpp, ggml.h, enum ggml_type", foreign=_IK_TYPES),
            _models(
                _upstream_models,
                "llama.cpp, gguf-py/gguf/constants.py, MODEL_ARCH_NAMES, as installed",
                {
                    "kimi-k31": _Answer(
                        YES, "it has kimi-k31 since build b12180", "llama.cpp, pull request #31779, build b12180"
                    ),
                    "kimi-k3": _Answer(YES, "it has kimi-k3", "llama.cpp, pull request #26185"),
                    "clip": _Answer(
                        YES, "a vision encoder, loaded beside a model by --mmproj", "llama.cpp, tools/mtmd"
                    ),
                },
            ),
        ),
    ),
    _Engine(
        name="ik_llama.cpp",
        format="gguf",
        otherwise=_Answer(NO, "it loads GGUF only", "ik_llama.cpp, README.md"),
        rules=(
            _DOUBTS,
            _refuses(
                UNKNOWN,
                {
                    "foreign-type": "it has a type number that a fork uses in its own way",
                    "name-too-long": "a tensor's name is longer than llama.cpp allows",
                    "misaligned": "its alignment is one that llama.cpp refuses",
                },
                "llama.cpp, ggml/src/gguf.cpp",
            ),
            _refuses(
                UNKNOWN, {"unexpected-tensor": "llama.cpp refuses so many tensors"}, f"llama.cpp, {_DONE_GETTING}"
            ),
            _types(
                _GGML_TYPES - _names("tq1_0 tq2_0 nvfp4 q1_0 q2_0"),
                "ik_llama.cpp, gguf-py/gguf/constants.py; of MXFP4 pull request #682",
                own=_IK_TYPES,
            ),
            _models(lambda: _IK_MODELS, "ik_llama.cpp, src/llama-arch.cpp, LLM_ARCH_NAMES", {}),
        ),
    ),
    _Engine(
        name="mlx-lm",
        format="safetensors",
        otherwise=_Answer(NO, "it loads safetensors only", f"{_MLX}, utils.py, load_model"),
        rules=(
            _DOUBTS,
            _mlx_files,
            _or_code(
                _models(
                    lambda: _COMMON | _names("kimi-k2 kimi-k3 kimi-vl"),
                    f"{_MLX}, models/, and utils.py, MODEL_REMAPPING",
                    {"kimi-k31": _NO_K31},
                )
            ),
            _layouts(
                (
                    _Loads("plain"),
                    _Loads("plain by MLX"),
                    _Loads("MLX"),
                    _Loads("AWQ", _names("int4")),
                    _Loads("gpt-oss blocks", families=_names("gpt-oss")),
                    _Loads("FP8 blocks", families=_names("deepseek-v3 kimi-k2")),
                    _Loads("compressed-tensors", _names("int4"), _names("deepseek-v3 kimi-k2 kimi-k25")),
                    _Loads("compressed-tensors", _names("mxfp4"), _names("kimi-k3")),
                ),
                "no known form, bitsandbytes",
                f"{_MLX}, utils.py, load_model, and sanitize in models/",
            ),
        ),
    ),
    _Engine(
        name="vLLM",
        format="safetensors",
        otherwise=_Answer(
            UNKNOWN, "GGUF is left to a plugin, vllm-gguf-plugin", "vLLM, pull request #39612, release 0.24.0"
        ),
        rules=(
            _DOUBTS,
            _LACKS,
            _models(
                lambda: _COMMON | _names("kimi-k2 kimi-vl"),
                "vLLM, docs/models/supported_models.md, and model_executor/models/registry.py",
                {
                    "kimi-k31": _Answer(YES, "it has kimi-k31 since 0.34.0", f"vLLM, release 0.34.0, read {CHECKED}"),
                    "kimi-k3": _Answer(YES, "it has kimi-k3", "vLLM, pull request #50000"),
                },
            ),
            _layouts(
                (
                    _Loads("plain"),
                    _Loads("compressed-tensors", _names("int4 int8 mxfp4 nvfp4")),
                    _Loads("INT8"),
                    _Loads("FP8"),
                    _Loads("FP8 blocks"),
                    _Loads("GPTQ", _names("int4 int8")),
                    _Loads("AWQ", _names("int4")),
                    _Loads("bitsandbytes"),
                    _Loads("ModelOpt"),
                    _Loads("gpt-oss blocks", families=_names("gpt-oss")),
                ),
                "no known form, MLX",
                "vLLM, docs/features/quantization, and model_executor/layers/quantization/",
            ),
        ),
    ),
    _Engine(
        name="transformers",
        format="safetensors",
        otherwise=_Answer(
            UNKNOWN, "it loads some architectures of GGUF, by gguf_file=", f"{_TRANSFORMERS}, docs, quantization/gguf"
        ),
        rules=(
            _DOUBTS,
            _LACKS,
            _models(
                lambda: _COMMON,
                f"{_TRANSFORMERS}, models/auto/modeling_auto.py",
                {
                    name: _Answer(
                        UNKNOWN,
                        f"it has no {name}: only with the publisher's own model code, by trust_remote_code",
                        f"{_TRANSFORMERS}, models/auto/modeling_auto.py; of Kimi K3 issue #48851",
                    )
                    for name in ("kimi-k2", "kimi-k3", "kimi-k31", "kimi-vl")
                },
            ),
            _layouts(
                (
                    _Loads("plain"),
                    _Loads("compressed-tensors", _names("int4 int8")),
                    _Loads("FP8 blocks"),
                    _Loads("GPTQ", _names("int2 int3 int4 int8")),
                    _Loads("AWQ", _names("int4")),
                    _Loads("bitsandbytes"),
                    _Loads("gpt-oss blocks", families=_names("gpt-oss")),
                ),
                "MLX",
                f"{_TRANSFORMERS}, quantizers/auto.py; MLX's form names no quant_method",
            ),
        ),
    ),
)
"""The engines in the order of the rows. No engine is known to load what no row here says."""


def loaders_of(checkpoint: Checkpoint, report: Report) -> tuple[Loader, ...]:
    """Say of each engine whether it loads a checkpoint, as far as that is known; nothing is read.

    A build that its publisher made for an engine of its own has a row for that too.
    """
    trouble, build = _trouble(checkpoint, report), _build(checkpoint, report)
    rows = [_row(engine.name, trouble or _answer(engine, build, report.format)) for engine in _ENGINES]
    own = OWN_ENGINES.get(repository_of(checkpoint.source, checkpoint.commit) or "")
    if own is not None:
        named = _Answer(YES, own.reason, f"notes of the repository, read {CHECKED}")
        rows.append(_row(own.engine, trouble or named))
    return tuple(rows)


def _row(engine: str, answer: _Answer) -> Loader:
    return Loader(engine=engine, support=answer.support, reason=answer.reason, rule=answer.rule)


def _trouble(checkpoint: Checkpoint, report: Report) -> _Answer | None:
    """Say what keeps any engine from a checkpoint, or keeps us from judging it; None if nothing does."""
    errors = [item.code for item in report.findings if item.severity is Severity.ERROR and item.code not in _OF_ENGINES]
    if errors:
        shown = ", ".join(dict.fromkeys(errors))
        return _Answer(NO, f"it is damaged: {shown}", "docs/findings.md: an error is what a loader fails at")
    if not all_opened([shard.path for shard in checkpoint.shards]):
        return _Answer(UNKNOWN, "only a part of the set was opened", "the numbers in the names of its files")
    return None


def _build(checkpoint: Checkpoint, report: Report) -> _Build:
    is_gguf = checkpoint.format == "gguf"
    sides = {item.path for item in checkpoint.companions if item.counted}
    by_mlx = checkpoint.metadata.get("format") == "mlx"
    found = dict.fromkeys(_packings(checkpoint.tensors))
    return _Build(
        architecture=checkpoint.architecture if is_gguf else checkpoint.family,
        packings=tuple(
            ("plain by MLX" if by_mlx and layout == "plain" else layout, encoding) for layout, encoding in found
        ),
        codes=frozenset(item.code for item in report.findings),
        config=checkpoint.config or {},
        paths=tuple(shard.path for shard in checkpoint.shards if shard.path not in sides),
    )


def _packings(tensors: TensorTable) -> Iterator[tuple[str, str]]:
    """Yield layout and encoding of the weights: of each look in the files, one tensor stands for all."""
    columns, rows = tensors.columns, tensors.rows
    pairs = columns.kind[rows].astype(np.int64) * max(len(columns.looks), 1) + columns.look[rows]
    _, firsts = np.unique(pairs, return_index=True)
    for row in rows[firsts].tolist():
        kind, look = columns.kinds[columns.kind[row]], columns.looks[columns.look[row]]
        if look.role is Role.WEIGHT:
            leaf = tensors.name_of(row).rpartition(".")[2]
            layout = next(one.name for one in _LAYOUTS if one.fits(leaf, kind.dtype, look.encoding))
            if layout == "GPTQ or AWQ":
                # A matrix of [in, out]: GPTQ packs what comes in, AWQ what goes out.
                layout = "GPTQ" if look.shape and kind.shape[1:] == look.shape[:1] else "AWQ"
            yield layout, look.encoding


def _answer(engine: _Engine, build: _Build, weights_format: str) -> _Answer:
    """Put together what the rules of an engine say: the worst of it, or all where nothing stands against it."""
    if weights_format != engine.format:
        return engine.otherwise
    answers = [answer for rule in engine.rules for answer in rule(build)]
    worst = min(answers, key=lambda answer: _ORDER.index(answer.support))
    if worst.support is not YES:
        return worst
    reasons, rules = (dict.fromkeys(texts) for texts in zip(*((one.reason, one.rule) for one in answers), strict=True))
    return _Answer(YES, "; ".join(reasons), "; ".join(rules))
