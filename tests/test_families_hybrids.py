"""Safetensors names of all but plain decoders: recurrent layers, encoders, towers for pictures and sound, drafts."""

from __future__ import annotations

import json

import pytest
from test_families import FORMAT, check

from kimi_inspect import Checkpoint, Component, open_checkpoint
from kimi_inspect.testing import HollowFile, TensorSpec, hollow_safetensors

FAMILIES = {
    "llama 3.2 vision": """
        attention language_model.model.layers.3.cross_attn.q_proj.weight layer=3
        attention language_model.model.layers.3.cross_attn_attn_gate layer=3
        dense_mlp language_model.model.layers.3.cross_attn_mlp_gate layer=3
        vision_tower vision_model.global_transformer.layers.7.self_attn.q_proj.weight block=7
        projector multi_modal_projector.weight
    """,
    "qwen3-next": """
        linear_attention model.layers.0.linear_attn.in_proj_qkvz.weight layer=0
        linear_attention model.layers.0.linear_attn.A_log layer=0
        linear_attention model.layers.0.linear_attn.norm.weight layer=0
        attention model.layers.3.self_attn.o_proj.weight layer=3
        mtp mtp.layers.0.self_attn.q_proj.weight
        mtp mtp.layers.0.mlp.experts.5.up_proj.weight
        mtp mtp.fc.weight
        mtp mtp.pre_fc_norm_hidden.weight
    """,
    "qwen3-vl-moe": """
        vision_tower model.visual.blocks.26.attn.qkv.weight block=26
        vision_tower model.visual.patch_embed.proj.weight
        projector model.visual.merger.linear_fc1.weight
        projector model.visual.deepstack_merger_list.0.norm.weight
        routed_experts model.language_model.layers.3.mlp.experts.gate_up_proj layer=3 fused
        norms model.language_model.norm.weight
    """,
    "qwen3-omni": """
        audio_tower thinker.audio_tower.layers.3.self_attn.q_proj.weight block=3
        audio_tower thinker.audio_tower.conv2d1.weight
        routed_experts thinker.model.layers.3.mlp.experts.0.up_proj.weight layer=3 expert=0
        audio_tower talker.model.layers.3.mlp.experts.0.up_proj.weight
        audio_tower code2wav.decoder.0.conv.weight
    """,
    "gemma 3n and 4": """
        embeddings model.language_model.embed_tokens_per_layer.weight
        attention_residual model.language_model.layers.3.laurel.linear_left.weight layer=3
        attention_residual model.language_model.altup_projections.0.weight
        dense_mlp model.language_model.layers.3.per_layer_input_gate.weight layer=3
        norms model.language_model.layers.3.post_per_layer_input_norm.weight layer=3
        norms model.language_model.layers.3.layer_scalar layer=3
        router model.language_model.layers.3.router.proj.weight layer=3
        routed_experts model.language_model.layers.3.experts.gate_up_proj layer=3 fused
        vision_tower model.vision_tower.timm_model.blocks.2.1.conv_pw.weight block=2
        audio_tower model.audio_tower.conformer.5.attention.attn.q_proj.weight block=5
        projector model.embed_vision.embedding_projection.weight
    """,
    "mamba": """
        embeddings backbone.embeddings.weight
        linear_attention backbone.layers.3.mixer.in_proj.weight layer=3
        linear_attention backbone.layers.3.mixer.out_proj.weight layer=3
        linear_attention backbone.layers.3.mixer.A_log layer=3
        norms backbone.layers.3.norm.weight layer=3
        norms backbone.norm_f.weight
    """,
    "nemotron-h": """
        attention backbone.layers.7.mixer.q_proj.weight layer=7
        attention backbone.layers.7.mixer.o_proj.weight layer=7
        dense_mlp backbone.layers.1.mixer.up_proj.weight layer=1
        routed_experts backbone.layers.2.mixer.experts.5.up_proj.weight layer=2 expert=5
        shared_experts backbone.layers.2.mixer.shared_experts.up_proj.weight layer=2
        router backbone.layers.2.mixer.gate.weight layer=2
        latent_projection backbone.layers.2.mixer.fc1_latent_proj.weight layer=2
        linear_attention backbone.layers.0.mixer.conv1d.weight layer=0
    """,
    "jamba, granite hybrid, lfm2": """
        linear_attention model.layers.0.mamba.dt_layernorm.weight layer=0
        routed_experts model.layers.0.feed_forward.experts.3.up_proj.weight layer=0 expert=3
        router model.layers.0.feed_forward.router.weight layer=0
        norms model.layers.0.pre_ff_layernorm.weight layer=0
        routed_experts model.layers.1.block_sparse_moe.input_linear.weight layer=1 fused
        router model.layers.1.block_sparse_moe.router.layer.weight layer=1
        shared_experts model.layers.1.shared_mlp.input_linear.weight layer=1
        linear_attention model.layers.2.conv.in_proj.weight layer=2
        norms model.layers.2.operator_norm.weight layer=2
        router model.layers.2.feed_forward.expert_bias layer=2
    """,
    "falcon-h1": """
        linear_attention model.layers.3.mamba.in_proj.weight layer=3
        attention model.layers.3.self_attn.q_proj.weight layer=3
        attention model.layers.3.self_attn.o_proj.weight layer=3
        norms model.final_layernorm.weight
    """,
    "minimax 01": """
        linear_attention model.layers.0.self_attn.output_gate.weight layer=0
        linear_attention model.layers.0.self_attn.qkv_proj.weight layer=0
        attention model.layers.7.self_attn.q_proj.weight layer=7
    """,
    "bailing linear": """
        embeddings model.word_embeddings.weight
        linear_attention model.layers.0.attention.query_key_value.weight layer=0
        linear_attention model.layers.0.attention.g_norm.weight layer=0
        attention model.layers.7.attention.query_key_value.weight layer=7
    """,
    "rwkv": """
        linear_attention blocks.3.att.time_decay layer=3
        dense_mlp blocks.3.ffn.key.weight layer=3
        norms blocks.0.ln0.weight layer=0
        embeddings emb.weight
        norms ln_out.weight
        lm_head head.weight
    """,
    "bert": """
        embeddings embeddings.word_embeddings.weight
        norms embeddings.LayerNorm.weight
        attention encoder.layer.3.attention.self.query.weight layer=3
        attention encoder.layer.3.attention.output.dense.weight layer=3
        norms encoder.layer.3.attention.output.LayerNorm.weight layer=3
        dense_mlp encoder.layer.3.intermediate.dense.weight layer=3
        dense_mlp encoder.layer.3.output.dense.weight layer=3
        norms encoder.layer.3.output.LayerNorm.weight layer=3
        lm_head pooler.dense.weight
        lm_head cls.predictions.bias
    """,
    "modern bert, sentence-transformers, model2vec": """
        embeddings model.embeddings.tok_embeddings.weight
        attention model.layers.3.attn.Wqkv.weight layer=3
        dense_mlp model.layers.3.mlp.Wi.weight layer=3
        norms model.final_norm.weight
        lm_head linear.weight
        embeddings mapping
    """,
    "t5, whisper": """
        embeddings shared.weight
        attention encoder.block.3.layer.0.SelfAttention.q.weight layer=3
        attention decoder.block.3.layer.1.EncDecAttention.q.weight layer=3
        dense_mlp decoder.block.3.layer.2.DenseReluDense.wi_0.weight layer=3
        norms decoder.block.3.layer.2.layer_norm.weight layer=3
        norms encoder.final_layer_norm.weight
        audio_tower model.encoder.conv1.weight
        attention model.decoder.layers.4.encoder_attn.q_proj.weight layer=4
        dense_mlp model.decoder.layers.4.fc1.weight layer=4
        norms model.decoder.layers.4.self_attn_layer_norm.weight layer=4
    """,
    "internvl, minicpm-v, phi-4-multimodal, voxtral": """
        vision_tower vision_model.encoder.layers.3.attn.qkv.weight block=3
        projector mlp1.1.weight
        vision_tower vpm.encoder.layers.3.self_attn.q_proj.weight block=3
        projector resampler.query
        vision_tower model.embed_tokens_extend.image_embed.img_processor.encoder.layers.3.mlp.fc1.weight block=3
        projector model.embed_tokens_extend.image_embed.img_projection.0.weight
        audio_tower model.embed_tokens_extend.audio_embed.encoder.encoders.3.conv.glu.b1 block=3
        audio_tower mm_whisper_embeddings.whisper_encoder.transformer.layers.3.attention.wq.weight block=3
    """,
    "eagle": """
        mtp fc.weight
        mtp midlayer.self_attn.q_proj.weight
        mtp d2t
    """,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family(family: str) -> None:
    check(FORMAT, FAMILIES[family])


FRONTS = {
    "whisper": ["model.encoder.conv1.weight", "model.encoder.conv2.weight"],
    "bart": ["model.encoder.layernorm_embedding.weight"],
    "no attention": ["model.encoder.conv1.weight"],
}


def two_stacks(front: str, *, encoder: int = 6, decoder: int = 6, attention: str = "self_attn.q_proj") -> Checkpoint:
    stacks = (("encoder", encoder), ("decoder", decoder))
    modules = [
        f"model.{side}.layers.{n}.{one}" for side, count in stacks for n in range(count) for one in (attention, "fc1")
    ]
    modules += ["model.encoder.layer_norm", "model.encoder.embed_positions", "model.decoder.embed_positions"]
    config = {"num_mel_bins": 80} if front == "whisper" else {}
    config |= {"num_hidden_layers": encoder, "encoder_layers": encoder, "decoder_layers": decoder}
    tensors = [TensorSpec(name, "F16", (8, 8)) for name in (*FRONTS[front], *(f"{one}.weight" for one in modules))]
    document = HollowFile(json.dumps(config).encode())
    return open_checkpoint({"model.safetensors": hollow_safetensors(tensors), "config.json": document})


def test_the_encoder_of_whisper_is_an_audio_tower() -> None:
    table = two_stacks("whisper").tensors
    heard = table.select(component=Component.AUDIO_TOWER)
    assert {one.name for one in table if ".encoder." in one.name} == {one.name for one in heard}
    fifth, other = (table[f"model.{side}.layers.5.self_attn.q_proj.weight"] for side in ("encoder", "decoder"))
    assert (fifth.layer, fifth.block) == (None, 5)
    assert (other.component, other.layer, other.block) == (Component.ATTENTION, 5, None)
    assert table["model.encoder.layer_norm.weight"].block is None


@pytest.mark.parametrize("decoder", [2, 6, 8])
def test_its_layers_are_those_of_the_decoder(decoder: int) -> None:
    """In Whisper large v3 turbo 4, beside 32 of the encoder, which `num_hidden_layers` counts."""
    assert two_stacks("whisper", decoder=decoder).findings == ()


@pytest.mark.parametrize(("front", "attention"), [("bart", "self_attn.q_proj"), ("no attention", "conv")])
def test_any_other_encoder_is_of_the_language_stack(front: str, attention: str) -> None:
    table = two_stacks(front, attention=attention).tensors
    assert {one.layer for one in table if ".layers." in one.name} == {*range(6)}
    assert all("conv1" in one.name for one in table.select(component=Component.AUDIO_TOWER))
