"""The GGUF builds of Kimi K3.1 Pro: every tensor with its type in each recipe, the metadata, the parts of each set.

Names and dims are those of the public converter: the experts of a layer lie in one tensor for each of gate, up and
down, the two factors of each residual score are one vector, and the key and value halves of the latent projection are
apart. The recipes follow the published sets, whose sizes in bytes the whole sets have to the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from kimi_inspect.testing.gguf import GgufTensor, hollow_gguf, split_gguf
from kimi_inspect.testing.hollow import HollowFile, dealt
from kimi_inspect.testing.kimi import EXPERTS, KIMI_K31_PRO_ID, LAYERS, kimi_config
from kimi_inspect.testing.kimi_metadata import TOKENS, mmproj_metadata, text_metadata

__all__ = [
    "DANIELHANCHEN_GGUF_ID",
    "DEVQUASAR_GGUF_ID",
    "TOKENS",
    "KimiRecipe",
    "Precision",
    "danielhanchen_gguf",
    "devquasar_gguf",
    "imatrix_gguf",
    "kimi_gguf",
    "kimi_gguf_tensors",
    "kimi_mmproj",
    "maker_readme",
    "typed_tensors",
]

DEVQUASAR_GGUF_ID = "DevQuasar/moonshotai.Kimi-K3.1-Pro-GGUF"
DANIELHANCHEN_GGUF_ID = "danielhanchen/Kimi-K3.1-Pro-GGUF-Preliminary"

KimiRecipe = Literal["MXFP4_MOE", "Q2_K", "UD-Q4_K_XL", "UD-Q8_K_XL"]
Precision = Literal["BF16", "F16", "F32"]

# A row is a tensor's name below its layer, the kind by which recipes choose a type, and its dims; -1 stands for the
# number of experts. "sensitive" are the matrices that a low recipe gives more bits.
_Row = tuple[str, str, tuple[int, ...]]
_EXPERT_COUNT = -1

_GLOBALS: tuple[_Row, ...] = (
    ("token_embd.weight", "matrix", (7168, TOKENS)),
    ("output.weight", "head", (7168, TOKENS)),
    ("output_norm.weight", "plain", (7168,)),
    ("output_res_score.weight", "plain", (7168,)),
)
_EVERY_LAYER: tuple[_Row, ...] = (
    ("attn_norm.weight", "plain", (7168,)),
    ("ffn_norm.weight", "plain", (7168,)),
    ("attn_res_score.weight", "plain", (7168,)),
    ("ffn_res_score.weight", "plain", (7168,)),
    ("attn_output.weight", "sensitive", (12288, 7168)),
)
_KDA: tuple[_Row, ...] = (
    ("attn_q.weight", "matrix", (7168, 12288)),
    ("attn_k.weight", "matrix", (7168, 12288)),
    ("attn_v.weight", "sensitive", (7168, 12288)),
    ("ssm_conv1d_q.weight", "plain", (4, 1, 12288, 1)),
    ("ssm_conv1d_k.weight", "plain", (4, 1, 12288, 1)),
    ("ssm_conv1d_v.weight", "plain", (4, 1, 12288, 1)),
    ("ssm_f_a.weight", "matrix", (7168, 128)),
    ("ssm_f_b.weight", "short rows", (128, 12288)),
    ("ssm_beta.weight", "beta", (7168, 96)),
    # One for each head, without the zeros that pad it in safetensors.
    ("ssm_a", "plain", (96,)),
    ("ssm_dt.bias", "plain", (12288,)),
    ("ssm_g.weight", "matrix", (7168, 12288)),
    ("ssm_norm.weight", "plain", (128,)),
)
_FULL_ATTENTION: tuple[_Row, ...] = (
    ("attn_q_a.weight", "matrix", (7168, 1536)),
    ("attn_q_a_norm.weight", "plain", (1536,)),
    ("attn_q_b.weight", "matrix", (1536, 18432)),
    ("attn_kv_a_mqa.weight", "matrix", (7168, 576)),
    ("attn_kv_a_norm.weight", "plain", (512,)),
    ("attn_k_b.weight", "short rows", (128, 512, 96)),
    ("attn_v_b.weight", "matrix", (512, 128, 96)),
    ("attn_gate.weight", "matrix", (7168, 12288)),
    ("indexer.attn_q_b.weight", "indexer", (1536, 4096)),
    ("indexer.attn_k.weight", "indexer", (7168, 128)),
    ("indexer.k_norm.weight", "plain", (128,)),
    ("indexer.k_norm.bias", "plain", (128,)),
    ("indexer.proj.weight", "indexer weights", (7168, 32)),
)
_DENSE_MLP: tuple[_Row, ...] = (
    ("ffn_gate.weight", "matrix", (7168, 33792)),
    ("ffn_up.weight", "matrix", (7168, 33792)),
    ("ffn_down.weight", "sensitive", (33792, 7168)),
)
_MOE: tuple[_Row, ...] = (
    ("ffn_gate_inp.weight", "plain", (7168, _EXPERT_COUNT)),
    ("exp_probs_b.bias", "plain", (_EXPERT_COUNT,)),
    ("ffn_gate_exps.weight", "experts", (3584, 3072, _EXPERT_COUNT)),
    ("ffn_up_exps.weight", "experts", (3584, 3072, _EXPERT_COUNT)),
    ("ffn_down_exps.weight", "experts down", (3072, 3584, _EXPERT_COUNT)),
    ("ffn_routed_down.weight", "matrix", (7168, 3584)),
    ("ffn_routed_up.weight", "matrix", (3584, 7168)),
    ("ffn_routed_norm.weight", "plain", (3584,)),
    ("ffn_gate_shexp.weight", "matrix", (7168, 6144)),
    ("ffn_up_shexp.weight", "matrix", (7168, 6144)),
    ("ffn_down_shexp.weight", "sensitive", (6144, 7168)),
)
_TOWER: tuple[_Row, ...] = (
    ("v.patch_embd.weight", "plain", (14, 14, 3, 1024)),
    ("v.position_embd.weight", "plain", (1024, 64, 64)),
    ("v.post_ln.weight", "plain", (1024,)),
    ("mm.1.weight", "matrix", (4096, 4096)),
    ("mm.2.weight", "matrix", (4096, 7168)),
    ("mm.post_norm.weight", "plain", (7168,)),
)
_TOWER_BLOCK: tuple[_Row, ...] = (
    ("ln1.weight", "plain", (1024,)),
    ("ln2.weight", "plain", (1024,)),
    ("attn_qkv.weight", "matrix", (1024, 4608)),
    ("attn_out.weight", "matrix", (1536, 1024)),
    ("ffn_up.weight", "matrix", (1024, 4096)),
    ("ffn_down.weight", "matrix", (4096, 1024)),
)
_TOWER_BLOCKS = 27

_UNQUANTIZED = {"plain": "F32", "indexer": "BF16", "indexer weights": "F32"}
_MATRICES = ("matrix", "sensitive", "head", "beta", "short rows")
_MXFP4_EXPERTS = {"experts": "MXFP4", "experts down": "MXFP4"}
_Q8_0 = _UNQUANTIZED | dict.fromkeys(_MATRICES, "Q8_0") | _MXFP4_EXPERTS
_TYPES: Mapping[KimiRecipe, Mapping[str, str]] = {
    "MXFP4_MOE": _Q8_0,
    # A block of the K types is 256 elements: rows of 128 cannot have them.
    "Q2_K": _UNQUANTIZED
    | {"matrix": "Q2_K", "beta": "Q2_K", "experts": "Q2_K", "head": "Q6_K", "short rows": "Q4_0"}
    | {"sensitive": "Q3_K", "experts down": "Q3_K"},
    "UD-Q4_K_XL": _Q8_0 | {"beta": "F32", "indexer weights": "Q8_0"},
    "UD-Q8_K_XL": _UNQUANTIZED | dict.fromkeys(_MATRICES, "BF16") | _MXFP4_EXPERTS,
}


@dataclass(frozen=True, slots=True)
class _Build:
    """A published set, `bare` of whose parts, the first ones, have no tensors.

    `template_bytes` is the length of chat template that gives the whole set its published size.
    """

    stem: str
    parts: int
    bare: int
    file_type: int
    template_bytes: int


_BUILDS: Mapping[KimiRecipe, _Build] = {
    "MXFP4_MOE": _Build("moonshotai.Kimi-K3.1-Pro.MXFP4_MOE", 33, 1, 38, 20336),
    "Q2_K": _Build("moonshotai.Kimi-K3.1-Pro.Q2_K", 33, 1, 10, 20400),
    "UD-Q4_K_XL": _Build("UD-Q4_K_XL/Kimi-K3.1-Pro-UD-Q4_K_XL", 34, 0, 15, 20464),
    "UD-Q8_K_XL": _Build("UD-Q8_K_XL/Kimi-K3.1-Pro-UD-Q8_K_XL", 34, 0, 7, 22320),
}
_FLOAT_FILE_TYPES: Mapping[Precision, int] = {"F32": 0, "F16": 1, "BF16": 32}


def kimi_gguf_tensors(recipe: KimiRecipe, *, layers: int = LAYERS, experts: int = EXPERTS) -> list[GgufTensor]:
    """Return the tensors of a recipe in the order of their data: the globals, then by layer, each by name."""
    return typed_tensors(lambda _: _TYPES[recipe], layers=layers, experts=experts)


def typed_tensors(types: Callable[[int | None], Mapping[str, str]], *, layers: int, experts: int) -> list[GgufTensor]:
    """Return all tensors in the order of their data; `types` gives the types by kind in a layer, None for no layer."""
    config = kimi_config("kimi-k3.1-pro", layers=layers, experts=experts)["text_config"]
    tensors = _typed(_GLOBALS, "", types(None), experts)
    for layer in range(layers):
        is_full = layer + 1 in config["linear_attn_config"]["full_attn_layers"]
        rows = [*_EVERY_LAYER, *(_FULL_ATTENTION if is_full else _KDA)]
        rows += _DENSE_MLP if layer < config["first_k_dense_replace"] else _MOE
        tensors += _typed(rows, f"blk.{layer}.", types(layer), experts)
    return tensors


def kimi_gguf(
    recipe: KimiRecipe,
    *,
    layers: int = LAYERS,
    experts: int = EXPERTS,
    tokens: int = TOKENS,
    parts: int | None = None,
) -> dict[str, HollowFile]:
    """Return the set of a recipe, path to file; or a small one of fewer layers, experts or parts.

    `tokens` is the length of the tokenizer's lists alone: the embedding keeps its rows. MXFP4_MOE and Q2_K lie in the
    root and begin with a part that has no tensors, the UD sets lie in folders of their own.
    """
    build = _BUILDS[recipe]
    count = parts or build.parts
    tensors = kimi_gguf_tensors(recipe, layers=layers, experts=experts)
    bare = min(build.bare, count - 1)
    shares = [*([] for _ in range(bare)), *dealt(tensors, count - bare)]
    config = kimi_config("kimi-k3.1-pro", layers=layers, experts=experts)["text_config"]
    metadata = text_metadata(
        config,
        tokens,
        parameters=sum(tensor.parameters for tensor in tensors),
        file_type=build.file_type,
        template_bytes=build.template_bytes,
    )
    return split_gguf(build.stem, shares, metadata)


def kimi_mmproj(precision: Precision) -> HollowFile:
    """Return the vision tower and projector, matrices in `precision`, all else in F32."""
    types = {"plain": "F32", "matrix": precision}
    blocks = [(f"v.blk.{b}.{name}", kind, dims) for b in range(_TOWER_BLOCKS) for name, kind, dims in _TOWER_BLOCK]
    return hollow_gguf(
        _typed([*_TOWER, *blocks], "", types, 0), mmproj_metadata(_FLOAT_FILE_TYPES[precision], _TOWER_BLOCKS)
    )


def imatrix_gguf() -> HollowFile:
    """Return an importance matrix: statistics of activations in a GGUF file, not weights, of no architecture."""
    widths = {"blk.0.attn_q.weight": 7168, "blk.0.attn_output.weight": 12288, "blk.0.ffn_down.weight": 33792}
    tensors = []
    for name, width in widths.items():
        tensors += [GgufTensor(f"{name}.counts", "F32", (1, 1)), GgufTensor(f"{name}.in_sum2", "F32", (width, 1))]
    metadata = {
        "general.type": "imatrix",
        "imatrix.datasets": ["calibration.txt"],
        "imatrix.chunk_count": 80,
        "imatrix.chunk_size": 512,
    }
    return hollow_gguf(tensors, metadata)


def devquasar_gguf(
    *, layers: int = LAYERS, experts: int = EXPERTS, tokens: int = TOKENS, parts: int | None = None
) -> dict[str, HollowFile]:
    """Return a repository with two sets in its root and one vision projector, path to file."""
    files = maker_readme("DevQuasar") | {"mmproj-BF16.gguf": kimi_mmproj("BF16")}
    for recipe in ("MXFP4_MOE", "Q2_K"):
        files |= kimi_gguf(recipe, layers=layers, experts=experts, tokens=tokens, parts=parts)
    return files


def danielhanchen_gguf(
    *, layers: int = LAYERS, experts: int = EXPERTS, tokens: int = TOKENS, parts: int | None = None
) -> dict[str, HollowFile]:
    """Return a repository with two sets in folders, one projector in three precisions and an importance matrix."""
    files = maker_readme("danielhanchen") | {"imatrix.gguf": imatrix_gguf()}
    files |= {f"mmproj-{precision}.gguf": kimi_mmproj(precision) for precision in _FLOAT_FILE_TYPES}
    for recipe in ("UD-Q4_K_XL", "UD-Q8_K_XL"):
        files |= kimi_gguf(recipe, layers=layers, experts=experts, tokens=tokens, parts=parts)
    return files


def maker_readme(name: str, more: str = "") -> dict[str, HollowFile]:
    """Return the README of a repository of that maker's, path to file, with `more` at its end."""
    text = f"---\nbase_model: {KIMI_K31_PRO_ID}\nlibrary_name: gguf\n---\n\n{name}: true headers over hollow weights.\n"
    return {"README.md": HollowFile(f"{text}{more}".encode())}


def _typed(rows: Iterable[_Row], prefix: str, types: Mapping[str, str], experts: int) -> list[GgufTensor]:
    """Name the rows, in their order by name, and give each its type."""
    return [
        GgufTensor(prefix + name, types[kind], tuple(experts if dim == _EXPERT_COUNT else dim for dim in dims))
        for name, kind, dims in sorted(rows)
    ]
