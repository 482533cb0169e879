"""GGUF names, one table for all architectures.

llama.cpp gives the tensors of every model it converts names out of one table (`TENSOR_NAMES` in its
`gguf-py/gguf/constants.py`), and those of vision and audio towers, which mostly come in a file apart, as well. The rows
below follow that table, and what its `tensor_mapping.py` says a name stands for in the original model.

Of a name that is used for more than one kind of attention, the certain names of the same layer tell which it is.
"""

from __future__ import annotations

from kimi_inspect.components import Component
from kimi_inspect.rules import Rule

__all__ = ["RULES"]

KINDS = (Component.KDA_ATTENTION, Component.MLA_ATTENTION)
GATED_KINDS = (*KINDS, Component.LINEAR_ATTENTION)

_ATTENTION = (
    Rule("blk.{layer}.indexer*", Component.SPARSE_INDEXER),
    # Kimi Linear, Kimi K3: the convolutions and gates of KDA have names of their own.
    Rule("blk.{layer}.ssm_conv1d_q|ssm_conv1d_k|ssm_conv1d_v", Component.KDA_ATTENTION),
    Rule("blk.{layer}.ssm_f_a|ssm_f_b|ssm_g|ssm_g_a|ssm_g_b", Component.KDA_ATTENTION),
    # DeepSeek V2 and all that took MLA over from it; attn_kv_b is one in older files, attn_k_b and attn_v_b in newer.
    Rule("blk.{layer}.attn_q_a|attn_q_a_norm|attn_q_b", Component.MLA_ATTENTION),
    Rule("blk.{layer}.attn_kv_a_mqa|attn_kv_a_norm|attn_kv_b|attn_k_b|attn_v_b", Component.MLA_ATTENTION),
    # Mamba, gated delta nets.
    Rule("blk.{layer}.ssm_in|ssm_out|ssm_x|ssm_d|ssm_conv1d|ssm_ba|ssm_alpha", Component.LINEAR_ATTENTION),
    Rule("blk.{layer}.ssm_dt_norm|ssm_b_norm|ssm_c_norm", Component.LINEAR_ATTENTION),
    Rule("blk.{layer}.ssm_*", Component.LINEAR_ATTENTION, kinds=(Component.KDA_ATTENTION,)),
    # RWKV; LFM2's short convolutions.
    Rule("blk.{layer}.time_mix_*|shortconv", Component.LINEAR_ATTENTION),
    # Beside the attention, not inside it. BERT and Grok normalise after it, under the name attn_output_norm.
    Rule("blk.{layer}.attn_norm|attn_norm_2|attn_output_norm|cross_attn_norm", Component.NORMS),
    Rule("blk.{layer}.attn_res_score|ffn_res_score", Component.ATTENTION_RESIDUAL),
    # Qwen3-Next's linear layers have these two besides ssm_*. The others attention and Mamba may share a layer with,
    # as in Falcon-H1: there attn_q says nothing about ssm_in.
    Rule("blk.{layer}.attn_qkv|attn_gate", Component.ATTENTION, kinds=GATED_KINDS),
    Rule("blk.{layer}.attn_*", Component.ATTENTION, kinds=KINDS),
    # CogVLM sends image tokens through weights of their own, in the layers of the language model.
    Rule("blk.{layer}.cross_attn_*|vis_attn_*|rope_*", Component.ATTENTION),
    Rule("rope_freqs|rope_factors_long|rope_factors_short", Component.ATTENTION),
)

_MLP = (
    Rule("blk.{layer}.ffn_norm_exps", Component.NORMS),  # Arctic: in front of the experts, one for all
    Rule("blk.{layer}.ffn_*_exps|ffn_*_chexps", Component.ROUTED_EXPERTS, fused=True),
    # The first files of Mixtral had each expert by itself.
    Rule("blk.{layer}.ffn_gate|ffn_up|ffn_down.{expert}", Component.ROUTED_EXPERTS),
    Rule("blk.{layer}.ffn_*_shexp", Component.SHARED_EXPERTS),
    Rule("blk.{layer}.ffn_gate_inp|ffn_gate_tid2eid|exp_probs_b", Component.ROUTER),
    Rule("blk.{layer}.ffn_routed_down|ffn_routed_up|ffn_routed_norm", Component.LATENT_PROJECTION),
    Rule("blk.{layer}.ffn_latent_down|ffn_latent_up", Component.LATENT_PROJECTION),
    Rule("blk.{layer}.ffn_norm", Component.NORMS),
    # BitNet's ffn_sub_norm stands between two matrices of the MLP.
    Rule("blk.{layer}.ffn|ffn_gate|ffn_up|ffn_down|ffn_sub_norm", Component.DENSE_MLP),
    Rule("blk.{layer}.channel_mix_*|vis_gate|vis_up|vis_down", Component.DENSE_MLP),
    # Gemma 3n: each layer gates and projects an embedding of its own.
    Rule("blk.{layer}.inp_gate|proj", Component.DENSE_MLP),
)

_REST_OF_TEXT = (
    # A layer that drafts tokens; with one such tensor the whole layer is a draft.
    Rule("blk.{layer}.nextn", Component.MTP),
    # What else only drafts have: EAGLE's vocabulary map and input, the heads of DSpark.
    Rule("nextn|fc|d2t|markov_w1|markov_w2|conf_proj", Component.MTP),
    # Weights on the residual stream: hyper-connections; Gemma 3n's AltUp and LAuReL.
    Rule("output_res_score|output_hc_*|altup_proj|altup_unembd_proj", Component.ATTENTION_RESIDUAL),
    Rule("blk.{layer}.hc_*|altup_*|laurel_*", Component.ATTENTION_RESIDUAL),
    Rule("blk.{layer}.post_*|pre_*|layer_output_norm|layer_output_scale", Component.NORMS),
    Rule("output_norm|token_embd_norm", Component.NORMS),
    Rule("token_embd|position_embd|token_types|masked_embd_*", Component.EMBEDDINGS),
    Rule("per_layer_token_embd|per_layer_model_proj|per_layer_proj_norm", Component.EMBEDDINGS),
    # Classifiers, and the dense layers behind an embedding model, are the head of a model that has no other.
    Rule("output|cls|dense_2|dense_3", Component.LM_HEAD),
)

_MULTIMODAL = (
    Rule("mm|resampler", Component.PROJECTOR),
    # These stand under the towers' prefixes, but behind the towers: Qwen3-VL's mergers, the Q-formers of Granite.
    Rule("v.deepstack|resample_query_*|proj_*", Component.PROJECTOR),
    Rule("a.proj_*", Component.PROJECTOR),
    Rule("v.blk.{block}", Component.VISION_TOWER),
    Rule("v.sam.blk.{block}", Component.VISION_TOWER),
    Rule("v", Component.VISION_TOWER),
    Rule("a.blk.{block}", Component.AUDIO_TOWER),
    Rule("a", Component.AUDIO_TOWER),
    # WavTokenizer, which makes sound, is a model to itself.
    Rule("convnext|posnet.{block}", Component.AUDIO_TOWER),
    Rule("conv1d", Component.AUDIO_TOWER),
)

RULES: tuple[Rule, ...] = (*_ATTENTION, *_MLP, *_REST_OF_TEXT, *_MULTIMODAL)
"""By name, first match wins. `enc.` and `dec.` of models with two stacks count as wrappers."""
