"""A small model of each family, as the fields of its config.json.

All sizes differ, so that no two axes can be taken for each other; a ratio that ports of a family fix (GPT-2's
4 × n_embd, a head's width of Llama) is kept.
"""

from __future__ import annotations

from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.importing import configuration, family_called

_SIZES = {"vocab_size": 37, "hidden_size": 24, "num_hidden_layers": 2, "max_position_embeddings": 29}
_LLAMA = _SIZES | {"intermediate_size": 44, "num_attention_heads": 4, "num_key_value_heads": 2}
_LLAMA |= {"bos_token_id": 1, "eos_token_id": 2}
_WIDE = _LLAMA | {"head_dim": 10}
_BERT = _SIZES | {"num_attention_heads": 3, "intermediate_size": 40}
_BART: dict[str, Any] = {"vocab_size": 37, "d_model": 24, "encoder_layers": 2, "decoder_layers": 3}
_BART |= {"encoder_attention_heads": 3, "decoder_attention_heads": 3, "max_position_embeddings": 29}
_BART |= {"encoder_ffn_dim": 40, "decoder_ffn_dim": 40}

EXAMPLES: dict[str, dict[str, Any]] = {
    "bart": _BART,
    "bert": _BERT,
    "clip_text_model": _BERT | {"eos_token_id": 36, "projection_dim": 7},
    "clip_vision_model": {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
    | {"image_size": 6, "patch_size": 2, "projection_dim": 7},
    "cohere": _LLAMA | {"logit_scale": 0.3},
    "cohere2": _LLAMA | {"num_hidden_layers": 3, "sliding_window": 5, "sliding_window_pattern": 3},
    "deepseek_v3": _SIZES
    | {"num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 44, "first_k_dense_replace": 1}
    | {"moe_intermediate_size": 20, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_group": 3, "topk_group": 2}
    | {"q_lora_rank": 14, "kv_lora_rank": 9, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 5}
    | {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
        | {"mscale": 1.0, "mscale_all_dim": 1.0}
    }
    | {"bos_token_id": 1, "eos_token_id": 2},
    "distilbert": {"vocab_size": 37, "dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 40}
    | {"max_position_embeddings": 29},
    "falcon": _SIZES | {"num_attention_heads": 4, "bos_token_id": 1, "eos_token_id": 2},
    "gemma": _WIDE | {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1},
    "gemma2": _WIDE | {"sliding_window": 5, "query_pre_attn_scalar": 7, "attn_logit_softcapping": 3.0},
    "gemma3_text": _WIDE
    | {"num_hidden_layers": 3, "sliding_window": 5, "query_pre_attn_scalar": 7, "sliding_window_pattern": 3}
    | {"rope_local_base_freq": 100.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "gpt2": {"vocab_size": 37, "n_positions": 29, "n_embd": 24, "n_layer": 2, "n_head": 3},
    "gpt_oss": _WIDE
    | {"num_hidden_layers": 3, "sliding_window": 5, "num_local_experts": 5, "num_experts_per_tok": 2}
    | {"rope_theta": 150_000.0},
    "gpt_neox": _BERT | {"rotary_pct": 0.5, "bos_token_id": 0, "eos_token_id": 2},
    "gptj": {"vocab_size": 37, "n_positions": 29, "n_embd": 24, "n_layer": 2, "n_head": 3, "rotary_dim": 4},
    "granite": _LLAMA
    | {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.3, "logits_scaling": 5.0},
    "llama": _LLAMA | {"rope_theta": 10_000.0, "rms_norm_eps": 1e-5},
    "mamba2": {"vocab_size": 37, "hidden_size": 24, "num_hidden_layers": 2, "max_position_embeddings": 29}
    | {"num_heads": 4, "head_dim": 12, "state_size": 5, "n_groups": 2, "bos_token_id": 1, "eos_token_id": 2}
    | {"time_step_limit": [0.4, 0.9]},
    "marian": _BART
    | {"activation_function": "swish", "scale_embedding": True}
    | {"pad_token_id": 36, "eos_token_id": 0, "decoder_start_token_id": 36},
    "ministral3": _LLAMA
    | {
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "llama_4_scaling_beta": 0.7}
        | {"original_max_position_embeddings": 8}
    },
    "mistral": _LLAMA | {"sliding_window": 5},
    "mixtral": _LLAMA | {"sliding_window": 5, "num_local_experts": 5},
    "modernbert": _BERT
    | {
        "num_hidden_layers": 3,
        "global_attn_every_n_layers": 2,
        "local_attention": 8,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "mpnet": _BERT | {"max_position_embeddings": 31},
    "olmo2": _LLAMA,
    "olmoe": _LLAMA | {"num_experts": 5, "num_experts_per_tok": 3},
    "opt": _SIZES | {"ffn_dim": 96, "num_attention_heads": 3},
    "phi3": _LLAMA | {"sliding_window": 5, "partial_rotary_factor": 0.7},
    "qwen2": _LLAMA | {"tie_word_embeddings": True},
    "qwen2_moe": _LLAMA
    | {"num_hidden_layers": 3, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
    | {"shared_expert_intermediate_size": 28, "mlp_only_layers": [0]},
    "qwen3": _WIDE,
    "qwen3_moe": _WIDE
    | {"num_hidden_layers": 3, "num_experts": 5, "num_experts_per_tok": 2, "norm_topk_prob": True}
    | {"moe_intermediate_size": 20, "mlp_only_layers": [0]},
    "qwen3_next": _WIDE
    | {"num_hidden_layers": 3, "full_attention_interval": 2, "partial_rotary_factor": 0.4, "num_experts": 5}
    | {"num_experts_per_tok": 2, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 28}
    | {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 5, "linear_value_head_dim": 7},
    "roberta": _BERT | {"max_position_embeddings": 31, "type_vocab_size": 1},
    "smollm3": _LLAMA | {"num_hidden_layers": 3, "no_rope_layer_interval": 3},
    "vit": {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
    | {"image_size": 6, "patch_size": 2},
    "xlm-roberta": _BERT | {"max_position_embeddings": 31, "type_vocab_size": 1},
    "whisper": _BART
    | {"num_mel_bins": 5, "max_source_positions": 7, "max_target_positions": 11}
    | {"pad_token_id": 36, "bos_token_id": 36, "eos_token_id": 36, "decoder_start_token_id": 35},
    "t5": {"vocab_size": 37, "d_model": 24, "d_kv": 10, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 3}
    | {"num_heads": 3, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 17}
    | {"n_positions": 29, "decoder_start_token_id": 0},
}
"""The fields of each `model_type`; the others are those that transformers takes for missing ones."""


def example_config(model_type: str) -> TransformerConfig:
    """The small model of a family; raises `CheckpointError` for a family that cannot be imported."""
    family = family_called(model_type)
    return configuration(family, EXAMPLES[model_type], set(family.names) - set(family.computed))
