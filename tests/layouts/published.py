"""What is published of public checkpoints, and what their components must then hold.

Components are written out as products of the config's figures, apart from the layouts. Of the totals:

- `HUB`: `safetensors.total` that the Hub shows, which is what its counting code makes of the headers.
- `HEADERS`: added up by others from the headers of all files, scales left out.

The Hub's older counts take scales in: those are in `elements`, every stored element of every tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kimi_inspect import Component
from layouts import decoders, deepseek, kimi
from layouts.parts import Layout

__all__ = ["PACKED", "PLAIN", "PUBLISHED", "Published"]

Components = Mapping[Component, int]


@dataclass(frozen=True, kw_only=True)
class Published:
    """The figures of one checkpoint.

    Attributes:
        layout: what the figures are held against.
        family: the family in our spelling.
        parameters: the total.
        source: where the total comes from.
        tensors: how many there are.
        encodings: parameters by encoding.
        components: parameters by component.
        experts: layers with routed experts, and experts in each.
        tensor_bytes: the index's `total_size`, or the bytes added up from all headers; None where it is not published.
        elements: elements of all tensors, whatever they are; None where it is not published.
    """

    layout: Layout
    family: str
    parameters: int
    source: Literal["HUB", "HEADERS"]
    tensors: int
    encodings: Mapping[str, int]
    components: Components
    experts: tuple[int, int] | None = None
    tensor_bytes: int | None = None
    elements: int | None = None


def _mla(hidden: int, heads: int, q_rank: int | None) -> int:
    """Count MLA with a latent of 512, and heads of 128 plain and 64 rotated dimensions."""
    queries = hidden * q_rank + q_rank + q_rank * heads * 192 if q_rank else hidden * heads * 192
    return queries + hidden * (512 + 64) + 512 + 512 * heads * (128 + 128) + heads * 128 * hidden


def _gqa(hidden: int, heads: int, kv_heads: int, width: int) -> int:
    return 2 * hidden * heads * width + 2 * hidden * kv_heads * width


def _text(hidden: int, vocabulary: int, norms: int) -> dict[Component, int]:
    return {
        Component.EMBEDDINGS: vocabulary * hidden,
        Component.LM_HEAD: vocabulary * hidden,
        Component.NORMS: norms * hidden,
    }


def _siglip_like(positions: int) -> int:
    """Count a tower of 27 blocks, 1152 wide, with an MLP of 4304 and biases all over."""
    block = 2 * 2 * 1152 + 4 * (1152 * 1152 + 1152) + 2 * 1152 * 4304 + 4304 + 1152
    return 27 * block + 1152 * 3 * 14 * 14 + 1152 + positions * 1152 + 2 * 1152


def _patch_merger(hidden: int) -> int:
    return 2 * 1152 + 4608 * 4608 + 4608 + hidden * 4608 + hidden


def _kimi_k2(inv_freq: int = 0) -> dict[Component, int]:
    return {
        Component.ROUTED_EXPERTS: 60 * 384 * 3 * 7168 * 2048,
        Component.SHARED_EXPERTS: 60 * 3 * 7168 * 2048,
        Component.DENSE_MLP: 3 * 7168 * 18432,
        Component.ROUTER: 60 * (384 * 7168 + 384),
        Component.MLA_ATTENTION: 61 * (_mla(7168, 64, 1536) + inv_freq),
        **_text(7168, 163840, 61 * 2 + 1),
    }


def _gpt_oss(layers: int, experts: int) -> dict[Component, int]:
    biases = (64 + 8 + 8) * 64 + 2880
    return {
        Component.ROUTED_EXPERTS: layers * experts * (3 * 2880 * 2880 + 3 * 2880),
        Component.ROUTER: layers * (experts * 2880 + experts),
        Component.ATTENTION: layers * (_gqa(2880, 64, 8, 64) + biases + 64),
        **_text(2880, 201088, 2 * layers + 1),
    }


# Beside the weights K2 keeps 56 rotary frequencies a layer, K2 Thinking 128 and Kimi-VL 64. They are no parameters of a
# model, but tensors of the file, and the Hub counts them; without them both K2 have 1,026,408,232,448 parameters.
PACKED: dict[str, Published] = {
    "Kimi-K2-Instruct": Published(
        layout=kimi.KIMI_K2,
        family="kimi-k2",
        parameters=1_026_408_235_864,
        source="HUB",
        tensors=139_644,
        encodings={"fp8_block": 1_023_893_241_856, "bf16": 2_514_970_968, "f32": 60 * 384},
        components=_kimi_k2(inv_freq=56),
        experts=(60, 384),
        tensor_bytes=1_029_173_256_720,
        elements=1_026_470_731_056,
    ),
    "Kimi-K2-Thinking": Published(
        layout=kimi.KIMI_K2_THINKING,
        family="kimi-k2",
        parameters=1_026_408_240_256,
        source="HUB",
        tensors=208_276,
        encodings={"int4": 1_014_686_023_680, "bf16": 11_722_193_536, "f32": 60 * 384},
        components=_kimi_k2(inv_freq=128),
        experts=(60, 384),
        tensor_bytes=594_205_920_512,
    ),
    "Kimi-K2.5": Published(
        layout=kimi.KIMI_K25,
        family="kimi-k25",
        parameters=1_026_879_376_368,
        source="HUB",
        tensors=208_550,
        encodings={"int4": 1_014_686_023_680, "bf16": 12_193_329_648, "f32": 23_040},
        components={
            **_kimi_k2(),
            Component.VISION_TOWER: _siglip_like(64 * 64),
            Component.PROJECTOR: _patch_merger(7168),
        },
        experts=(60, 384),
        tensor_bytes=595_148_192_736,
        elements=170_738_182_128,
    ),
    # The Hub's 684,531,386,000 are 671,026,419,200 of the model, 13,463,426,304 of the drafting layer, its copies of
    # embeddings and head among them, and 41,540,496 scales.
    "DeepSeek-V3": Published(
        layout=deepseek.DEEPSEEK_V3,
        family="deepseek-v3",
        parameters=671_026_419_200 + 13_463_426_304,
        source="HEADERS",
        tensors=91_991,
        encodings={"fp8_block": 680_571_043_840, "bf16": 3_918_786_560, "f32": 59 * 256},
        components={
            Component.ROUTED_EXPERTS: 58 * 256 * 3 * 7168 * 2048,
            Component.SHARED_EXPERTS: 58 * 3 * 7168 * 2048,
            Component.DENSE_MLP: 3 * 3 * 7168 * 18432,
            Component.ROUTER: 58 * (256 * 7168 + 256),
            Component.MLA_ATTENTION: 61 * _mla(7168, 128, 1536),
            Component.MTP: _mla(7168, 128, 1536)
            + 257 * 3 * 7168 * 2048
            + (256 * 7168 + 256)
            + 2 * 129280 * 7168
            + 2 * 7168 * 7168
            + 5 * 7168,
            **_text(7168, 129280, 61 * 2 + 1),
        },
        experts=(58, 256),
        elements=684_531_386_000,
    ),
    "gpt-oss-20b": Published(
        layout=decoders.GPT_OSS_20B,
        family="gpt-oss",
        parameters=20_914_757_184,
        source="HUB",
        tensors=459,
        encodings={"mxfp4": 19_110_297_600, "bf16": 1_804_459_584},
        components=_gpt_oss(24, 32),
        experts=(24, 32),
        tensor_bytes=13_761_264_768,
        elements=11_956_805_184,
    ),
    "gpt-oss-120b": Published(
        layout=decoders.GPT_OSS_120B,
        family="gpt-oss",
        parameters=116_829_156_672,
        source="HUB",
        tensors=687,
        encodings={"mxfp4": 114_661_785_600, "bf16": 2_167_371_072},
        components=_gpt_oss(36, 128),
        experts=(36, 128),
        tensor_bytes=65_248_815_744,
    ),
    "MiniMax-M2.7": Published(
        layout=decoders.MINIMAX_M27,
        family="minimax-m2",
        parameters=228_689_764_864,
        source="HUB",
        tensors=96_103,
        encodings={
            "fp8_block": 62 * (256 * 3 * 3072 * 1536 + _gqa(3072, 48, 8, 128)),
            "bf16": 62 * ((48 + 8) * 128 + 2 * 3072) + 3072 + 2 * 200064 * 3072,
            "f32": 62 * (256 * 3072 + 256),
        },
        components={
            Component.ROUTED_EXPERTS: 62 * 256 * 3 * 3072 * 1536,
            Component.ROUTER: 62 * (256 * 3072 + 256),
            Component.ATTENTION: 62 * (_gqa(3072, 48, 8, 128) + (48 + 8) * 128),
            **_text(3072, 200064, 62 * 2 + 1),
        },
        experts=(62, 256),
        tensor_bytes=230_121_630_720,
        elements=228_703_644_928,
    ),
}

_KDA = 4 * 2304 * 4096 + 3 * 4096 * 4 + 2 * (2304 * 128 + 128 * 4096) + 32 * 2304 + 32 + 4096 + 128
_QWEN3_NEXT_ATTENTION = 3 * 2048 * 4096 + 2 * 2048 * 512 + 2 * 256
_QWEN3_NEXT_DELTA = 2048 * 12288 + 2048 * 64 + 8192 * 4 + 32 + 32 + 128 + 2048 * 4096
_QWEN3_NEXT_SHARED = 3 * 2048 * 512 + 2048
_GLM_ATTENTION = _gqa(4096, 96, 8, 128) + (96 + 8 + 8) * 128

PLAIN: dict[str, Published] = {
    "Kimi-Linear-48B-A3B": Published(
        layout=kimi.KIMI_LINEAR,
        family="kimi-linear",
        parameters=49_122_681_728,
        source="HEADERS",
        tensors=20_493,
        encodings={"bf16": 49_122_681_728 - 20 * (32 + 4096), "f32": 20 * (32 + 4096)},
        components={
            Component.ROUTED_EXPERTS: 26 * 256 * 3 * 2304 * 1024,
            Component.SHARED_EXPERTS: 26 * 3 * 2304 * 1024,
            Component.DENSE_MLP: 3 * 2304 * 9216,
            Component.ROUTER: 26 * (256 * 2304 + 256),
            Component.KDA_ATTENTION: 20 * _KDA,
            Component.MLA_ATTENTION: 7 * _mla(2304, 32, None),
            **_text(2304, 163840, 27 * 2 + 1),
        },
        experts=(26, 256),
        tensor_bytes=98_245_528_576,
    ),
    # Which dtype the correction biases have is not published; the layout takes F32, as in K2.
    "Kimi-VL-A3B": Published(
        layout=kimi.KIMI_VL,
        family="kimi-vl",
        parameters=16_407_657_776,
        source="HUB",
        tensors=5_679,
        encodings={"bf16": 16_407_657_776 - 26 * 64, "f32": 26 * 64},
        components={
            Component.ROUTED_EXPERTS: 26 * 64 * 3 * 2048 * 1408,
            Component.SHARED_EXPERTS: 26 * 3 * 2048 * 2 * 1408,
            Component.DENSE_MLP: 3 * 2048 * 11264,
            Component.ROUTER: 26 * (64 * 2048 + 64),
            Component.MLA_ATTENTION: 27 * (_mla(2048, 16, None) + 64),
            Component.VISION_TOWER: _siglip_like(64 * 64),
            Component.PROJECTOR: _patch_merger(2048),
            **_text(2048, 163840, 27 * 2 + 1),
        },
        experts=(26, 64),
    ),
    "Llama-3.1-8B": Published(
        layout=decoders.LLAMA_31_8B,
        family="llama",
        parameters=8_030_261_248,
        source="HUB",
        tensors=291,
        encodings={"bf16": 8_030_261_248},
        components={
            Component.DENSE_MLP: 32 * 3 * 4096 * 14336,
            Component.ATTENTION: 32 * _gqa(4096, 32, 8, 128),
            **_text(4096, 128256, 32 * 2 + 1),
        },
        tensor_bytes=16_060_522_496,
    ),
    "Mixtral-8x7B": Published(
        layout=decoders.MIXTRAL_8X7B,
        family="mixtral",
        parameters=46_702_792_704,
        source="HUB",
        tensors=995,
        encodings={"bf16": 46_702_792_704},
        components={
            Component.ROUTED_EXPERTS: 32 * 8 * 3 * 4096 * 14336,
            Component.ROUTER: 32 * 8 * 4096,
            Component.ATTENTION: 32 * _gqa(4096, 32, 8, 128),
            **_text(4096, 32000, 32 * 2 + 1),
        },
        experts=(32, 8),
        tensor_bytes=93_405_585_408,
    ),
    "Qwen3-30B-A3B": Published(
        layout=decoders.QWEN3_30B,
        family="qwen3-moe",
        parameters=30_532_122_624,
        source="HUB",
        tensors=18_867,
        encodings={"bf16": 30_532_122_624},
        components={
            Component.ROUTED_EXPERTS: 48 * 128 * 3 * 2048 * 768,
            Component.ROUTER: 48 * 128 * 2048,
            Component.ATTENTION: 48 * (_gqa(2048, 32, 4, 128) + 2 * 128),
            **_text(2048, 151936, 48 * 2 + 1),
        },
        experts=(48, 128),
        tensor_bytes=61_064_245_248,
    ),
    "Qwen3-Next-80B-A3B": Published(
        layout=decoders.QWEN3_NEXT,
        family="qwen3-next",
        parameters=81_324_862_720,
        source="HUB",
        tensors=75_944,
        encodings={"bf16": 81_324_862_720},
        components={
            Component.ROUTED_EXPERTS: 48 * 512 * 3 * 2048 * 512,
            Component.SHARED_EXPERTS: 48 * _QWEN3_NEXT_SHARED,
            Component.ROUTER: 48 * 512 * 2048,
            Component.ATTENTION: 12 * _QWEN3_NEXT_ATTENTION,
            Component.LINEAR_ATTENTION: 36 * _QWEN3_NEXT_DELTA,
            Component.MTP: _QWEN3_NEXT_ATTENTION
            + 512 * (3 * 2048 * 512 + 2048)
            + _QWEN3_NEXT_SHARED
            + 2 * 2048 * 2048
            + 5 * 2048,
            **_text(2048, 151936, 48 * 2 + 1),
        },
        experts=(48, 512),
    ),
    "GLM-4.5-Air": Published(
        layout=decoders.GLM_45_AIR,
        family="glm4-moe",
        parameters=110_468_824_832,
        source="HUB",
        tensors=18_329,
        encodings={"bf16": 110_468_824_832 - 46 * 128, "f32": 46 * 128},
        components={
            Component.ROUTED_EXPERTS: 45 * 128 * 3 * 4096 * 1408,
            Component.SHARED_EXPERTS: 45 * 3 * 4096 * 1408,
            Component.DENSE_MLP: 3 * 4096 * 10944,
            Component.ROUTER: 45 * (128 * 4096 + 128),
            Component.ATTENTION: 46 * _GLM_ATTENTION,
            Component.MTP: _GLM_ATTENTION
            + 129 * 3 * 4096 * 1408
            + (128 * 4096 + 128)
            + 2 * 151552 * 4096
            + 2 * 4096 * 4096
            + 5 * 4096,
            **_text(4096, 151552, 46 * 2 + 1),
        },
        experts=(45, 128),
    ),
    "gemma-3-4b": Published(
        layout=decoders.GEMMA_3_4B,
        family="gemma3",
        parameters=4_300_079_472,
        source="HUB",
        tensors=883,
        encodings={"bf16": 4_300_079_472},
        components={
            Component.DENSE_MLP: 34 * 3 * 2560 * 10240,
            Component.ATTENTION: 34 * (_gqa(2560, 8, 4, 256) + 2 * 256),
            Component.EMBEDDINGS: 262208 * 2560,
            Component.NORMS: (34 * 4 + 1) * 2560,
            Component.VISION_TOWER: _siglip_like(64 * 64),
            Component.PROJECTOR: 1152 * 2560 + 1152,
        },
        tensor_bytes=8_600_158_944,
    ),
}

PUBLISHED: dict[str, Published] = PACKED | PLAIN
"""By the model's name on the Hub; the packed ones hold weights in fewer bits than their dtype has."""
