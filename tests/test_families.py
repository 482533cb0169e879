"""Safetensors names: what makes up the layers of one family of models after another, decoders of text above all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from kimi_inspect import rules
from kimi_inspect.classifying import classify
from kimi_inspect.components import Component
from kimi_inspect.families import RULES
from kimi_inspect.names import Names
from kimi_inspect.patterns import Patterns
from kimi_inspect.rules import Judgement, Rule, judge
from kimi_inspect.table import COMPONENTS

FORMAT = "safetensors"

Found = tuple[Component, dict[str, int], bool]


def classified(form: str, names: Iterable[str]) -> dict[str, Found]:
    """Component, numbers, and whether fused, for the names of one checkpoint, every other one in a second shard."""
    shards = [list(names)[::2], list(names)[1::2]]
    classes = classify(Patterns.of([Names.of(shard) for shard in shards]), RULES[form])
    numbers = {"layer": classes.layer, "block": classes.block, "expert": classes.expert}
    return {
        name: (
            COMPONENTS[classes.component[row]],
            {what: int(column[row]) for what, column in numbers.items() if column[row] >= 0},
            bool(classes.fused[row]),
        )
        for row, name in enumerate([*shards[0], *shards[1]])
    }


def check(form: str, table: str) -> None:
    """Compare with a table whose lines say: component, name, the numbers in it, perhaps `fused`."""
    expected: dict[str, Found] = {}
    for component, name, *facts in map(str.split, table.strip().splitlines()):
        numbers = dict(fact.split("=") for fact in facts if "=" in fact)
        said = {what: int(number) for what, number in numbers.items()}
        expected[name] = (Component(component), said, "fused" in facts)
    assert classified(form, expected) == expected


def test_a_name_is_judged_once_however_many_are_spelt_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()

    def counting(text: str, rules: tuple[Rule, ...]) -> Judgement:
        asked[text] += 1
        return judge(text, rules)

    monkeypatch.setattr(rules, "judge", counting)
    experts = [
        f"model.layers.{layer}.mlp.experts.{expert}.up_proj.weight" for layer in range(12) for expert in range(99)
    ]
    classified(FORMAT, [*experts, *(f"model.layers.{layer}.self_attn.q_proj.weight" for layer in range(12))])
    assert asked == {
        "model.layers.0.mlp.experts.0.up_proj.weight": 1,
        "model.layers.0.self_attn.q_proj.weight": 1,
    }


@pytest.mark.parametrize(
    "wrapper", ["", "model.", "language_model.model.", "model.language_model.", "base_model.model."]
)
def test_what_a_model_is_wrapped_in_says_nothing(wrapper: str) -> None:
    table = f"""
        routed_experts {wrapper}layers.12.mlp.experts.3.up_proj.weight layer=12 expert=3
        attention {wrapper}layers.12.self_attn.q_proj.lora_A.weight layer=12
        embeddings {wrapper}embed_tokens.weight
        norms {wrapper}norm.weight
        lm_head {wrapper}lm_head.weight
        vision_tower {wrapper}visual.blocks.2.attn.qkv.weight block=2
    """
    check(FORMAT, table)


@pytest.mark.parametrize(
    "name",
    ["weight", "layers.weight", "layers.3.unheard_of.weight", "transformer_blocks.0.attn.to_q.weight", "conv1.weight"],
)
def test_what_no_family_has_is_not_guessed_at(name: str) -> None:
    assert classified(FORMAT, [name])[name] == (Component.OTHER, {}, False)


# What a module is packed as stands behind its name.
LEAVES = (
    *("weight", "bias", "weight_packed", "weight_scale", "weight_scale_2", "weight_scale_inv", "weight_shape"),
    *(
        "input_scale",
        "qweight",
        "qzeros",
        "scales",
        "biases",
        "g_idx",
        "weight.absmax",
        "weight.quant_state.bitsandbytes__nf4",
    ),
)


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_packed_weight_is_where_the_weight_was(leaf: str) -> None:
    table = f"""
        routed_experts model.layers.12.mlp.experts.3.up_proj.{leaf} layer=12 expert=3
        routed_experts model.layers.12.mlp.switch_mlp.up_proj.{leaf} layer=12 fused
        mla_attention model.layers.12.self_attn.kv_b_proj.{leaf} layer=12
        mla_attention model.layers.12.self_attn.o_proj.{leaf} layer=12
        shared_experts model.layers.12.mlp.shared_experts.up_proj.{leaf} layer=12
        dense_mlp model.layers.0.mlp.down_proj.{leaf} layer=0
        lm_head lm_head.{leaf}
    """
    check(FORMAT, table)


FAMILIES = {
    "llama": """
        embeddings model.embed_tokens.weight
        attention model.layers.3.self_attn.q_proj.weight layer=3
        attention model.layers.3.self_attn.rotary_emb.inv_freq layer=3
        dense_mlp model.layers.3.mlp.gate_proj.weight layer=3
        norms model.layers.3.input_layernorm.weight layer=3
        norms model.norm.weight
        lm_head lm_head.weight
    """,
    "llama in its own names": """
        embeddings tok_embeddings.weight
        attention layers.3.attention.wq.weight layer=3
        dense_mlp layers.3.feed_forward.w1.weight layer=3
        norms layers.3.attention_norm.weight layer=3
        norms layers.3.ffn_norm.weight layer=3
        lm_head output.weight
        attention rope.freqs
    """,
    "llama 4": """
        routed_experts language_model.model.layers.3.feed_forward.experts.gate_up_proj layer=3 fused
        routed_experts language_model.model.layers.3.feed_forward.experts.down_proj layer=3 fused
        router language_model.model.layers.3.feed_forward.router.weight layer=3
        shared_experts language_model.model.layers.3.feed_forward.shared_expert.up_proj.weight layer=3
        dense_mlp language_model.model.layers.2.feed_forward.up_proj.weight layer=2
        vision_tower vision_model.model.layers.33.mlp.fc1.weight block=33
        vision_tower vision_model.patch_embedding.linear.weight
        projector vision_model.vision_adapter.mlp.fc1.weight
        projector multi_modal_projector.linear_1.weight
    """,
    "mixtral and minimax m2": """
        routed_experts model.layers.3.block_sparse_moe.experts.7.w1.weight layer=3 expert=7
        router model.layers.3.block_sparse_moe.gate.weight layer=3
        router model.layers.3.block_sparse_moe.e_score_correction_bias layer=3
        attention model.layers.3.self_attn.q_norm.weight layer=3
    """,
    "mistral large 3 in its own names": """
        routed_experts layers.3.experts.7.w1.weight layer=3 expert=7
        shared_experts layers.3.shared_experts.w1.weight layer=3
        router layers.3.gate.weight layer=3
        mla_attention layers.3.attention.wkv_a_with_mqa.weight layer=3
        mla_attention layers.3.attention.wo.weight layer=3
        vision_tower vision_encoder.transformer.layers.2.attention.wq.weight block=2
        projector vision_language_adapter.w_in.weight
    """,
    "qwen2-moe, qwen3-moe": """
        routed_experts model.layers.3.mlp.experts.127.gate_proj.weight layer=3 expert=127
        router model.layers.3.mlp.gate.weight layer=3
        shared_experts model.layers.3.mlp.shared_expert.up_proj.weight layer=3
        shared_experts model.layers.3.mlp.shared_expert_gate.weight layer=3
        attention model.layers.3.self_attn.k_norm.weight layer=3
    """,
    "glm-4.5": """
        dense_mlp model.layers.0.mlp.up_proj.weight layer=0
        router model.layers.3.mlp.gate.e_score_correction_bias layer=3
        mtp model.layers.46.eh_proj.weight layer=46
        mtp model.layers.46.enorm.weight layer=46
        mtp model.layers.46.shared_head.norm.weight layer=46
        mtp model.layers.46.embed_tokens.weight layer=46
        mtp model.layers.46.mlp.experts.3.up_proj.weight layer=46 expert=3
        mtp model.layers.46.self_attn.q_proj.weight layer=46
        mtp model.layers.46.input_layernorm.weight layer=46
    """,
    "deepseek v2 lite": """
        mla_attention model.layers.3.self_attn.q_proj.weight layer=3
        mla_attention model.layers.3.self_attn.kv_a_proj_with_mqa.weight layer=3
        mla_attention model.layers.3.self_attn.o_proj.weight layer=3
    """,
    "deepseek v3.2": """
        mla_attention model.layers.3.self_attn.q_a_layernorm.weight layer=3
        sparse_indexer model.layers.3.self_attn.indexer.wq_b.weight layer=3
        sparse_indexer model.layers.3.self_attn.indexer.k_norm.bias layer=3
        mtp model.layers.61.hnorm.weight layer=61
        mtp model.layers.61.self_attn.indexer.wk.weight layer=61
    """,
    "deepseek v4 in its own names": """
        embeddings embed.weight
        lm_head head.weight
        attention_residual hc_head_fn
        attention_residual layers.3.hc_attn_base layer=3
        mla_attention layers.3.attn.wq_a.weight layer=3
        mla_attention layers.3.attn.attn_sink layer=3
        mla_attention layers.3.attn.compressor.wkv.weight layer=3
        sparse_indexer layers.3.attn.indexer.wq_b.weight layer=3
        routed_experts layers.3.ffn.experts.255.w1.scale layer=3 expert=255
        shared_experts layers.3.ffn.shared_experts.w1.weight layer=3
        router layers.3.ffn.gate.tid2eid layer=3
        norms layers.3.ffn_norm.weight layer=3
        mtp mtp.0.attn.wq_a.weight
    """,
    "longcat flash": """
        mla_attention model.layers.3.self_attn.1.q_a_proj.weight layer=3
        mla_attention model.layers.3.self_attn.1.o_proj.weight layer=3
        dense_mlp model.layers.3.mlps.1.up_proj.weight layer=3
        router model.layers.3.mlp.router.classifier.weight layer=3
        norms model.layers.3.input_layernorm.1.weight layer=3
    """,
    "gpt-oss": """
        routed_experts model.layers.3.mlp.experts.gate_up_proj_blocks layer=3 fused
        routed_experts model.layers.3.mlp.experts.gate_up_proj_scales layer=3 fused
        routed_experts model.layers.3.mlp.experts.down_proj_bias layer=3 fused
        router model.layers.3.mlp.router.bias layer=3
        attention model.layers.3.self_attn.sinks layer=3
    """,
    "gpt-oss in its own names": """
        embeddings embedding.weight
        lm_head unembedding.weight
        attention block.3.attn.qkv.weight layer=3
        routed_experts block.3.mlp.mlp1_weight.blocks layer=3 fused
        router block.3.mlp.gate.weight layer=3
        norms norm.scale
    """,
    "gemma 3": """
        norms language_model.model.layers.3.pre_feedforward_layernorm.weight layer=3
        norms language_model.model.layers.3.post_feedforward_layernorm.weight layer=3
        vision_tower vision_tower.vision_model.encoder.layers.26.mlp.fc1.bias block=26
        vision_tower vision_tower.vision_model.embeddings.patch_embedding.weight
        projector multi_modal_projector.mm_input_projection_weight
    """,
    "kimi k2, kimi k2.5, kimi-vl": """
        routed_experts language_model.model.layers.3.mlp.experts.383.down_proj.weight_shape layer=3 expert=383
        vision_tower vision_tower.encoder.blocks.26.wqkv.bias block=26
        projector mm_projector.pre_norm.weight
        projector multi_modal_projector.linear_1.weight
    """,
    "kimi linear": """
        kda_attention model.layers.0.self_attn.g_a_proj.weight layer=0
        kda_attention model.layers.0.self_attn.q_proj.weight layer=0
        mla_attention model.layers.3.self_attn.q_proj.weight layer=3
        mla_attention model.layers.3.self_attn.kv_b_proj.weight layer=3
        routed_experts model.layers.3.block_sparse_moe.experts.255.w2.weight layer=3 expert=255
    """,
    "kimi linear in mlx": """
        mla_attention model.layers.3.self_attn.kv_a_layernorm.weight layer=3
        routed_experts model.layers.3.mlp.switch_mlp.up_proj.biases layer=3 fused
        shared_experts model.layers.3.mlp.shared_experts.up_proj.weight layer=3
        router model.layers.3.mlp.gate.weight layer=3
        router model.layers.3.mlp.e_score_correction_bias layer=3
    """,
    "kimi k3 in mlx": """
        routed_experts model.layers.3.block_sparse_moe.switch_mlp.gate_proj.scales layer=3 fused
        router model.layers.3.block_sparse_moe.e_score_correction_bias layer=3
        latent_projection model.layers.3.block_sparse_moe.routed_expert_down_proj.weight layer=3
        attention_residual model.layers.3.self_attention_res.proj_weight layer=3
        attention_residual model.layers.3.mlp_res.norm_weight layer=3
        attention_residual model.output_attn_res.proj_weight
        mla_attention model.layers.3.self_attn.embed_q.weight layer=3
        mla_attention model.layers.3.self_attn.unembed_out.weight layer=3
        mla_attention model.layers.3.self_attn.g_proj.weight layer=3
        kda_attention model.layers.4.self_attn.q_conv.conv.weight layer=4
        kda_attention model.layers.4.self_attn.g_proj.weight layer=4
        kda_attention model.layers.4.self_attn.q_proj.weight layer=4
    """,
    "gpt-2, falcon, bloom, mpt, phi": """
        embeddings transformer.wte.weight
        embeddings wpe.weight
        attention h.3.attn.c_attn.weight layer=3
        dense_mlp h.3.mlp.c_fc.bias layer=3
        norms h.3.ln_1.weight layer=3
        norms transformer.ln_f.weight
        attention transformer.h.4.self_attention.query_key_value.weight layer=4
        norms word_embeddings_layernorm.weight
        attention transformer.blocks.3.attn.Wqkv.weight layer=3
        dense_mlp transformer.blocks.3.ffn.up_proj.weight layer=3
        attention transformer.blocks.3.norm_attn_norm.attn.Wqkv.weight layer=3
        norms transformer.blocks.3.norm_attn_norm.norm_1.weight layer=3
        routed_experts transformer.blocks.3.ffn.experts.mlp.w1 layer=3
        attention model.layers.5.self_attn.dense.weight layer=5
        dense_mlp model.layers.5.mlp.fc1.weight layer=5
    """,
    "gpt-neox, chatglm": """
        embeddings gpt_neox.embed_in.weight
        attention gpt_neox.layers.3.attention.query_key_value.weight layer=3
        norms gpt_neox.final_layer_norm.weight
        lm_head embed_out.weight
        embeddings transformer.embedding.word_embeddings.weight
        attention transformer.encoder.layers.4.self_attention.dense.weight layer=4
        lm_head transformer.output_layer.weight
        attention transformer.rotary_pos_emb.inv_freq
    """,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family(family: str) -> None:
    check(FORMAT, FAMILIES[family])
