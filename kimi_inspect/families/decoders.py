"""Language models in general, in safetensors names: decoders above all, and encoders, hybrids and towers around them.

The names are those that the published modeling code gives its modules: transformers' `modeling_*.py`, the code that
comes with a checkpoint (Kimi, DeepSeek, Mistral, GLM, …), mlx-lm for what is peculiar to MLX. Whatever a quantizer
writes (`qweight`, `weight_scale_inv`, `biases`, …) stands behind the module's name, so no rule needs to know of it.

`STACK` are the words for the stack of layers. What stands right below a layer is an attention, an MLP or a norm, and
few words are used for each, so that most rules serve many families.
"""

from __future__ import annotations

from collections.abc import Iterable

from kimi_inspect.components import Component
from kimi_inspect.rules import Rule, any_of

__all__ = ["RULES", "SPEECH", "hears"]

STACK = "layers|h|blocks|block|layer.{layer}"
MOE = "mlp|block_sparse_moe|feed_forward|ffn|moe|mixer"
"""Where experts are: the MLP of a layer by its many names, `mixer` for Nemotron-H."""
TOWER = (
    "vision_tower|vision_model|vision_encoder|vision_module|vision_backbone|vision|visual|visual_encoder|vit|vpm|"
    "image_tower|image_encoder|visual_tokenizer|sam_model"
)
BLOCKS = "blocks|layers|layer|resblocks.{block}"
AUDIO = "audio_tower|audio_encoder|audio_model|speech_encoder|whisper_encoder|mm_whisper_embeddings|apm"

KINDS = (Component.KDA_ATTENTION, Component.MLA_ATTENTION)
LINEAR = (Component.LINEAR_ATTENTION,)

_MULTIMODAL = (
    # Behind the tower, though named below it: Qwen-VL and GLM-V (merger), Llama 4 (adapter), CogVLM.
    Rule("visual.merger|deepstack_merger_list|downsample|attn_pool|proj", Component.PROJECTOR),
    Rule("vision_model.vision_adapter", Component.PROJECTOR),
    Rule("vision.linear_proj|boi|eoi", Component.PROJECTOR),
    Rule(f"{TOWER}.{BLOCKS}", Component.VISION_TOWER),
    Rule(f"{TOWER}.*.{BLOCKS}", Component.VISION_TOWER),
    Rule(f"{TOWER}.*.*.{BLOCKS}", Component.VISION_TOWER),
    Rule(f"{TOWER}.*.*.*.{BLOCKS}", Component.VISION_TOWER),
    Rule(TOWER, Component.VISION_TOWER),
    Rule("multi_modal_projector|mm_projector|projector|connector|aligner|resampler|merger", Component.PROJECTOR),
    Rule("vision_projection|visual_projection|text_projection|audio_projector|speech_projector", Component.PROJECTOR),
    Rule("vision_language_adapter|patch_merger|pre_mm_projector_norm|audio_language_adapter", Component.PROJECTOR),
    Rule("mlp1", Component.PROJECTOR),  # InternVL
    Rule("embed_vision|embed_audio|image_newline|view_seperator|qformer|query_tokens", Component.PROJECTOR),
    Rule(f"{AUDIO}.{BLOCKS}", Component.AUDIO_TOWER),
    Rule(f"{AUDIO}.*.{BLOCKS}", Component.AUDIO_TOWER),
    Rule(f"{AUDIO}.*.*.{BLOCKS}", Component.AUDIO_TOWER),
    Rule("audio_tower.conformer.{block}", Component.AUDIO_TOWER),  # Gemma 3n
    Rule(AUDIO, Component.AUDIO_TOWER),
    Rule("encoder.conv1|conv2", Component.AUDIO_TOWER),  # Whisper; of its layers, see `SPEECH`
    # Qwen-Omni's speech: a decoder of its own, and what makes sound of its tokens.
    Rule("talker|token2wav|code2wav", Component.AUDIO_TOWER),
    # Phi-4-multimodal keeps both towers beside its embeddings.
    Rule("embed_tokens_extend.*.*projection*", Component.PROJECTOR),
    Rule("embed_tokens_extend.audio_embed.encoder.encoders.{block}", Component.AUDIO_TOWER),
    Rule("embed_tokens_extend.audio_embed", Component.AUDIO_TOWER),
    Rule(f"embed_tokens_extend|vision_embed_tokens.*.*.{BLOCKS}", Component.VISION_TOWER),
    Rule(f"embed_tokens_extend|vision_embed_tokens.*.*.*.{BLOCKS}", Component.VISION_TOWER),
    Rule("embed_tokens_extend|vision_embed_tokens", Component.VISION_TOWER),
)

_DRAFT = (
    # Layers beyond the last, as in DeepSeek V3 and GLM-4.5: they have these besides all that other layers have.
    Rule("layers.{layer}.eh_proj|enorm|hnorm|embed_tokens|shared_head", Component.MTP),
    Rule("mtp*|nextn*", Component.MTP),  # Qwen3-Next, DeepSeek V4, MiMo, ERNIE: beside the stack
    Rule("d2t|t2d|midlayer|fc", Component.MTP),  # EAGLE
)

_MLP = (
    Rule(f"{STACK}.{MOE}.experts|chunk_experts.{{expert}}", Component.ROUTED_EXPERTS),
    # One tensor for the experts of a layer: transformers (Llama 4, gpt-oss, Qwen3.5), MLX.
    Rule(f"{STACK}.{MOE}.experts.gate_up_proj*|down_proj*|gate_proj|up_proj", Component.ROUTED_EXPERTS, fused=True),
    Rule(f"{STACK}.{MOE}.switch_mlp|switch_glu", Component.ROUTED_EXPERTS, fused=True),
    Rule(f"{STACK}.block_sparse_moe.input_linear|output_linear", Component.ROUTED_EXPERTS, fused=True),  # Granite
    Rule(f"{STACK}.moe.gate_proj|up_proj|down_proj", Component.ROUTED_EXPERTS, fused=True),  # Step 3
    Rule("block.{layer}.mlp.mlp1_weight|mlp1_bias|mlp2_weight|mlp2_bias", Component.ROUTED_EXPERTS, fused=True),
    # DBRX and its like write the experts one below another in a matrix: its first dimension counts rows.
    Rule(f"{STACK}.{MOE}.experts", Component.ROUTED_EXPERTS),
    # Mistral's own names and Gemma 4 have no module between layer and experts.
    Rule(f"{STACK}.experts.{{expert}}", Component.ROUTED_EXPERTS),
    Rule(f"{STACK}.experts", Component.ROUTED_EXPERTS, fused=True),
    Rule(f"{STACK}.{MOE}.share*", Component.SHARED_EXPERTS),
    Rule(f"{STACK}.share_expert|shared_mlp|shared_experts", Component.SHARED_EXPERTS),
    Rule(f"{STACK}.{MOE}.*_latent_proj|latent_proj", Component.LATENT_PROJECTION),  # Nemotron 3
    Rule(f"{STACK}.{MOE}.gate|router|router_bias|primary_router|moe_statics", Component.ROUTER),
    Rule(f"{STACK}.{MOE}.e_score_correction_bias|expert_bias", Component.ROUTER),
    Rule(f"{STACK}.router|gate", Component.ROUTER),
    Rule(f"{STACK}.mixer.up_proj|down_proj", Component.DENSE_MLP),  # Nemotron-H
    Rule(f"{STACK}.mlp|mlps|feed_forward|ffn|moe|block_sparse_moe|mlp_block|residual_mlp", Component.DENSE_MLP),
    Rule(f"{STACK}.fc1|ff_proj|ff_out|up_proj|intermediate|linear", Component.DENSE_MLP),  # OPT, OLMo, BERT, Zamba
    Rule(f"{STACK}.output.dense", Component.DENSE_MLP),  # BERT
    Rule(f"{STACK}.layer.{{}}.DenseReluDense", Component.DENSE_MLP),  # T5
    Rule(f"{STACK}.shared_transformer.feed_forward", Component.DENSE_MLP),  # Zamba 2
    Rule(f"{STACK}.per_layer_input_gate|per_layer_projection|cross_attn_mlp_gate", Component.DENSE_MLP),
)

_ATTENTION = (
    Rule(f"{STACK}.self_attn|attn|attention.indexer", Component.SPARSE_INDEXER),
    # The short convolutions of KDA in MLX.
    Rule("layers.{layer}.self_attn.q_conv|k_conv|v_conv", Component.KDA_ATTENTION),
    # MLA: as MLX splits kv_b_proj, with the first two matrices made one, twice in a layer (LongCat).
    Rule("layers.{layer}.self_attn.embed_q|unembed_out|fused_qkv_a_proj_with_mqa", Component.MLA_ATTENTION),
    Rule("layers.{layer}.self_attn.{}.q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj", Component.MLA_ATTENTION),
    Rule("layers.{layer}.attention.q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj", Component.MLA_ATTENTION),
    # In the names of DeepSeek's and Mistral's own code.
    Rule("layers.{layer}.attn|attention.wq_a|wq_b|wkv|wkv_a|wkv_a_with_mqa|wkv_b", Component.MLA_ATTENTION),
    # Gated delta nets, Mamba, RWKV; short convolutions (LFM2); lightning attention (MiniMax, Bailing).
    Rule(f"{STACK}.linear_attn|mamba|ssm|conv|att|mamba_decoder", Component.LINEAR_ATTENTION),
    Rule(f"{STACK}.attention.time_*|receptance|g_norm", Component.LINEAR_ATTENTION),
    Rule("layers.{layer}.self_attn.output_gate", Component.LINEAR_ATTENTION),
    Rule("layers.{layer}.self_attn.qkv_proj|out_proj|norm", Component.ATTENTION, kinds=LINEAR),
    Rule(f"{STACK}.temporal_block.linear_x|linear_y|linear_out|conv_1d|rg_lru", Component.LINEAR_ATTENTION),
    # A mixer may be anything: attention has these, the rest is Mamba but for an attention's last matrix.
    Rule(f"{STACK}.mixer.q_proj|k_proj|v_proj|o_proj|Wqkv|inner_attn", Component.ATTENTION),
    Rule(f"{STACK}.mixer.out_proj", Component.LINEAR_ATTENTION, kinds=(Component.ATTENTION,)),
    Rule(f"{STACK}.mixer", Component.LINEAR_ATTENTION),
    Rule(f"{STACK}.attention.output.LayerNorm", Component.NORMS),  # BERT: around the attention, as in its output
    Rule(f"{STACK}.attention", Component.ATTENTION, kinds=(*KINDS, *LINEAR)),
    Rule(f"{STACK}.attn|self_attn|self_attention", Component.ATTENTION, kinds=KINDS),
    Rule(f"{STACK}.norm_attn_norm.attn", Component.ATTENTION),  # DBRX
    Rule(f"{STACK}.self_attention_res|mlp_res", Component.ATTENTION_RESIDUAL),  # Kimi K3 in MLX
    Rule(f"{STACK}.cross_attn|cross_attn_attn_gate|encoder_attn|crossattention", Component.ATTENTION),
    Rule(f"{STACK}.layer.{{}}.SelfAttention|EncDecAttention", Component.ATTENTION),
    Rule(f"{STACK}.temporal_block|rotary_emb|att_proj|attn_out|q_proj|k_proj|v_proj|o_proj", Component.ATTENTION),
    Rule(f"{STACK}.shared_transformer.self_attn", Component.ATTENTION),
    Rule("rotary_emb|rotary_pos_emb|rope|relative_attention_bias", Component.ATTENTION),
)

_REST = (
    # Weights on the residual stream: Kimi K3 in MLX, hyper-connections (DeepSeek V4), AltUp and LAuReL (Gemma 3n).
    Rule("output_attn_res|hc_*|altup_*", Component.ATTENTION_RESIDUAL),
    Rule(f"{STACK}.hc_*|altup|laurel", Component.ATTENTION_RESIDUAL),
    Rule(f"{STACK}.*norm*|*Norm*|ln_*|ln0|pre_ln|post_ln|layer_scalar", Component.NORMS),
    Rule(f"{STACK}.output.LayerNorm", Component.NORMS),
    Rule(f"{STACK}.layer.{{}}.layer_norm", Component.NORMS),
    Rule(f"{STACK}.shared_transformer.*norm*", Component.NORMS),
    Rule("embeddings|embed|embedding.LayerNorm|norm", Component.NORMS),
    Rule("word_embeddings_layernorm|layernorm_embedding|embedding_norm|emb_ln", Component.NORMS),
    Rule("norm*|*_norm|*layernorm|ln_f|ln_out|ln_final|LayerNorm", Component.NORMS),
    # What a last hidden state goes through, be it to tokens, classes or one vector.
    Rule("output|head|lm_head|embed_out|unembedding|output_layer|proj_out|project_out|ff_out", Component.LM_HEAD),
    Rule("final_logits_bias|logit_scale|score|classifier|cls|pooler|qa_outputs|v_head|linear", Component.LM_HEAD),
    Rule("decoder.weight|bias", Component.LM_HEAD),
    Rule("embed_*|embed|embedding|embeddings|*_embeddings|*_embedding|emb|embd|shared", Component.EMBEDDINGS),
    Rule("wte|wpe|project_in|per_layer_model_projection", Component.EMBEDDINGS),
    Rule("mapping|weights", Component.EMBEDDINGS),  # model2vec: which row a token has, and how much it counts
)

RULES: tuple[Rule, ...] = (*_MULTIMODAL, *_DRAFT, *_MLP, *_ATTENTION, *_REST)
"""By name, first match wins."""

SPEECH = (Rule("encoder.layers|blocks.{block}", Component.AUDIO_TOWER), Rule("encoder", Component.AUDIO_TOWER))
"""The encoder of Whisper and Moonshine, by names that encoders of text (BART, T5) have too: tried first where the
tensors show what only speech has, convolutions before the attention."""

_SHOWS_SPEECH = tuple(
    any_of([Rule(pattern, Component.AUDIO_TOWER)]).match
    for pattern in ("encoder.conv1", "encoder.layers|blocks.{block}.self_attn|attn")
)


def hears(texts: Iterable[str]) -> bool:
    """Whether names, each number in them written as one 0, are those of a model with an encoder of speech."""
    listed = list(texts)
    return all(any(map(shows, listed)) for shows in _SHOWS_SPEECH)
