"""GGUF names: llama.cpp's whole table, and what makes up the layers of one model after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES
from test_families import check, classified

from kimi_inspect.components import Component
from kimi_inspect.rules import NOTHING

FORMAT = "gguf"


@pytest.mark.parametrize("architecture", list(MODEL_TENSORS), ids=MODEL_ARCH_NAMES.get)
def test_every_name_that_llama_cpp_gives_is_known(architecture: MODEL_ARCH) -> None:
    names = [TENSOR_NAMES[tensor].replace("{bid}", "7") + ".weight" for tensor in MODEL_TENSORS[architecture]]
    judged = classified(FORMAT, dict.fromkeys(names))
    assert [name for name in names if judged[name] == (Component.OTHER, {}, False)] == []


# In llama.cpp's table, but not in that of every release of the gguf package.
NEWER = """
    masked_embd_centroids masked_embd_ordering output_hc_fn output_hc_base output_hc_scale
    blk.0.ffn_gate_tid2eid blk.0.attn_kv blk.0.attn_output_a blk.0.attn_output_b
    blk.0.hc_attn_fn blk.0.hc_ffn_scale blk.0.attn_compressor_kv blk.0.attn_compressor_ape
    blk.0.indexer.q_proj blk.0.indexer_compressor_norm v.patch_norm.0 v.blk.0.attn_sinks v.vit_merger.ds_ffn_up
    mm.merger.fc1 v.resample_query_768 v.proj_blk.0.self_attn_q v.proj_blk.0.query a.downsample.conv a.rvq.codebook
    a.blk.0.res2.0 a.gen.code.blk.0.attn_q a.gen.wav.dac.blk.0.res.0.conv1 a.seanet.conv_in mm.a.local_blk.0.ffn_up
    nextn.pre_projection fc markov_w1 markov_w2 conf_proj d2t
"""


def test_names_newer_than_the_package_are_known() -> None:
    judged = classified(FORMAT, dict.fromkeys(name + ".weight" for name in NEWER.split()))
    assert [name for name, (component, _, _) in judged.items() if component is Component.OTHER] == []


def test_a_name_that_llama_cpp_does_not_give_is_not_guessed_at() -> None:
    names = ["direction.1", "blk.weight", "blk.1.something.weight", "token_embdx.weight", "single_blocks.0.linear1"]
    judged = classified(FORMAT, dict.fromkeys(names))
    assert {judgement[0] for judgement in judged.values()} == {NOTHING.component}


KDA = "attn_q attn_k attn_v ssm_conv1d_q ssm_conv1d_k ssm_conv1d_v ssm_f_a ssm_f_b ssm_beta ssm_g ssm_norm"
MLA = "attn_q_a attn_q_a_norm attn_q_b attn_kv_a_mqa attn_kv_a_norm attn_gate"
HALVES, WHOLE = "attn_k_b attn_v_b", "attn_kv_b"
INDEXER = "indexer.attn_q_b indexer.attn_k indexer.k_norm indexer.proj"
LATENT_MOE = (
    "ffn_gate_inp ffn_gate_exps ffn_up_exps ffn_down_exps ffn_routed_down ffn_routed_up ffn_routed_norm "
    "ffn_gate_shexp ffn_up_shexp ffn_down_shexp"
)
FULL_ATTENTION_LAYERS = (*range(3, 92, 4), 92)


def kimi_k31(kv_b: str) -> Iterator[str]:
    """The names in a Kimi K3.1 Pro file, of which older ones have one matrix in place of two halves."""
    yield from ("token_embd.weight", "output.weight", "output_norm.weight", "output_res_score.weight")
    for layer in range(93):
        names = ["attn_norm", "ffn_norm", "attn_res_score", "ffn_res_score", "attn_output"]
        bare = []
        if layer in FULL_ATTENTION_LAYERS:
            names += f"{MLA} {kv_b} {INDEXER}".split()
            bare += ["indexer.k_norm.bias"]
        else:
            names += KDA.split()
            bare += ["ssm_a", "ssm_dt.bias"]
        if layer:
            names += LATENT_MOE.split()
            bare += ["exp_probs_b.bias"]
        else:
            names += ["ffn_gate", "ffn_up", "ffn_down"]
        yield from (f"blk.{layer}.{name}" for name in [*(f"{name}.weight" for name in names), *bare])


K31_COUNTS = {
    Component.ROUTED_EXPERTS: 3 * 92,
    Component.SHARED_EXPERTS: 3 * 92,
    Component.ROUTER: 2 * 92,
    Component.LATENT_PROJECTION: 3 * 92,
    Component.DENSE_MLP: 3,
    Component.KDA_ATTENTION: 14 * 69,
    Component.MLA_ATTENTION: 9 * 24,
    Component.SPARSE_INDEXER: 5 * 24,
    Component.ATTENTION_RESIDUAL: 2 * 93 + 1,
    Component.NORMS: 2 * 93 + 1,
    Component.EMBEDDINGS: 1,
    Component.LM_HEAD: 1,
}


@pytest.mark.parametrize(
    ("kv_b", "expected"),
    [(HALVES, K31_COUNTS), (WHOLE, K31_COUNTS | {Component.MLA_ATTENTION: 8 * 24})],
    ids=["key and value halves", "one matrix"],
)
def test_all_of_kimi_k31(kv_b: str, expected: dict[Component, int]) -> None:
    judged = classified(FORMAT, dict.fromkeys(kimi_k31(kv_b)))
    assert Counter(component for component, _, _ in judged.values()) == expected
    assert len(judged) == (2_693 if kv_b == HALVES else 2_669)
    assert {name for name, (_, _, fused) in judged.items() if fused} == {name for name in judged if "_exps." in name}


FAMILIES = {
    "kimi-k31 mmproj": """
        vision_tower v.patch_embd.weight
        vision_tower v.position_embd.weight
        vision_tower v.blk.26.attn_qkv.weight block=26
        vision_tower v.post_ln.weight
        projector mm.1.weight
        projector mm.post_norm.weight
    """,
    "kimi-linear": """
        kda_attention blk.0.attn_q.weight layer=0
        kda_attention blk.0.attn_output.weight layer=0
        kda_attention blk.0.ssm_g_a.weight layer=0
        kda_attention blk.0.ssm_g_b.weight layer=0
        kda_attention blk.0.ssm_beta.weight layer=0
        kda_attention blk.0.ssm_a layer=0
        kda_attention blk.0.ssm_dt.bias layer=0
        mla_attention blk.3.attn_q.weight layer=3
        mla_attention blk.3.attn_kv_a_mqa.weight layer=3
        mla_attention blk.3.attn_output.weight layer=3
        norms blk.3.attn_norm.weight layer=3
    """,
    "qwen3next": """
        linear_attention blk.0.attn_qkv.weight layer=0
        linear_attention blk.0.attn_gate.weight layer=0
        linear_attention blk.0.ssm_ba.weight layer=0
        linear_attention blk.0.ssm_a layer=0
        linear_attention blk.0.ssm_dt.bias layer=0
        linear_attention blk.0.ssm_norm.weight layer=0
        linear_attention blk.0.ssm_out.weight layer=0
        attention blk.3.attn_q.weight layer=3
        attention blk.3.attn_q_norm.weight layer=3
        attention blk.3.attn_output.weight layer=3
        norms blk.3.post_attention_norm.weight layer=3
        shared_experts blk.3.ffn_gate_inp_shexp.weight layer=3
        router blk.3.ffn_gate_inp.weight layer=3
        routed_experts blk.3.ffn_down_exps.weight layer=3 fused
    """,
    "qwen35": """
        linear_attention blk.0.attn_qkv.weight layer=0
        linear_attention blk.0.ssm_beta.weight layer=0
        linear_attention blk.0.ssm_alpha.weight layer=0
    """,
    "deepseek2": """
        mla_attention blk.4.attn_q_a.weight layer=4
        mla_attention blk.4.attn_kv_b.weight layer=4
        mla_attention blk.4.attn_output.weight layer=4
        shared_experts blk.4.ffn_up_shexp.weight layer=4
        router blk.4.exp_probs_b.bias layer=4
    """,
    "deepseek2 without q_lora": """
        mla_attention blk.4.attn_q.weight layer=4
        mla_attention blk.4.attn_kv_a_mqa.weight layer=4
        mla_attention blk.4.attn_output.weight layer=4
    """,
    "deepseek32": """
        mla_attention blk.60.attn_k_b.weight layer=60
        sparse_indexer blk.60.indexer.k_norm.bias layer=60
        sparse_indexer blk.60.indexer.attn_q_b.weight layer=60
        mtp blk.61.nextn.eh_proj.weight layer=61
        mtp blk.61.attn_q_a.weight layer=61
        mtp blk.61.ffn_up_exps.weight layer=61 fused
        mtp blk.61.attn_norm.weight layer=61
    """,
    "gpt-oss": """
        attention blk.2.attn_sinks.weight layer=2
        attention blk.2.attn_q.bias layer=2
        norms blk.2.post_attention_norm.weight layer=2
        router blk.2.ffn_gate_inp.bias layer=2
        routed_experts blk.2.ffn_up_exps.bias layer=2 fused
    """,
    "llama and gemma3": """
        embeddings token_embd.weight
        attention rope_freqs.weight
        lm_head output.weight
        norms output_norm.weight
        attention blk.1.attn_k_norm.weight layer=1
        norms blk.1.post_ffw_norm.weight layer=1
        dense_mlp blk.1.ffn_gate.weight layer=1
    """,
    "mixtral, first form": """
        routed_experts blk.31.ffn_gate.7.weight layer=31 expert=7
        routed_experts blk.31.ffn_down.0.weight layer=31 expert=0
        router blk.31.ffn_gate_inp.weight layer=31
    """,
    "arctic": """
        norms blk.1.ffn_norm_exps.weight layer=1
        routed_experts blk.1.ffn_gate_exps.weight layer=1 fused
    """,
    "jamba and granite: one kind a layer": """
        linear_attention blk.0.ssm_in.weight layer=0
        linear_attention blk.0.ssm_dt.weight layer=0
        linear_attention blk.0.ssm_dt_norm.weight layer=0
        linear_attention blk.0.ssm_d layer=0
        attention blk.4.attn_v.weight layer=4
        attention blk.4.attn_output.weight layer=4
    """,
    "falcon-h1: two kinds in one layer": """
        attention blk.0.attn_q.weight layer=0
        attention blk.0.attn_output.weight layer=0
        linear_attention blk.0.ssm_in.weight layer=0
        linear_attention blk.0.ssm_norm.weight layer=0
        linear_attention blk.0.ssm_a layer=0
    """,
    "nemotron_h_moe": """
        latent_projection blk.8.ffn_latent_down.weight layer=8
        routed_experts blk.8.ffn_up_exps.weight layer=8 fused
    """,
    "rwkv and lfm2": """
        linear_attention blk.0.time_mix_key.weight layer=0
        linear_attention blk.0.time_mix_lerp_w.weight layer=0
        dense_mlp blk.0.channel_mix_value.weight layer=0
        linear_attention blk.1.shortconv.in_proj.weight layer=1
    """,
    "t5": """
        attention enc.blk.2.attn_o.weight layer=2
        attention enc.blk.2.attn_rel_b.weight layer=2
        attention dec.blk.2.cross_attn_q.weight layer=2
        norms dec.blk.2.cross_attn_norm.weight layer=2
        dense_mlp dec.blk.2.ffn_up.weight layer=2
        norms dec.output_norm.weight
    """,
    "bert": """
        embeddings token_types.weight
        embeddings position_embd.weight
        norms token_embd_norm.weight
        attention blk.5.attn_qkv.weight layer=5
        norms blk.5.attn_output_norm.weight layer=5
        norms blk.5.layer_output_norm.weight layer=5
        lm_head cls.output.weight
    """,
    "gemma3n": """
        embeddings per_layer_token_embd.weight
        embeddings per_layer_model_proj.weight
        attention_residual altup_proj.weight
        attention_residual blk.1.altup_router.weight layer=1
        attention_residual blk.1.laurel_l.weight layer=1
        dense_mlp blk.1.inp_gate.weight layer=1
        dense_mlp blk.1.proj.weight layer=1
        norms blk.1.post_norm.weight layer=1
    """,
    "towers": """
        audio_tower a.conv1d.1.weight
        audio_tower a.blk.31.attn_q.weight block=31
        projector mm.a.mlp.1.weight
        projector v.deepstack.8.fc1.weight
        vision_tower v.sam.blk.3.attn.qkv.weight block=3
        projector resampler.query
    """,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family(family: str) -> None:
    check(FORMAT, FAMILIES[family])
