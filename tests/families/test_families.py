"""Checkpoints of the families, written by transformers, compute the same as transformers."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner, Result

from transparity.config import TransformerConfig
from transparity.errors import ParameterError, TransparityError
from transparity.parameters import load_parameters
from transparity.protocol import Backend
from transparity_conformance.checking.check import PortError, check
from transparity_conformance.checkpoints.importing import Checkpoint, import_checkpoint
from transparity_conformance.checkpoints.reading import CheckpointError
from transparity_conformance.cli import app
from transparity_conformance.oracle.oracle import forward_oracle
from transparity_conformance.oracle.probes import frame_inputs, pixel_inputs
from transparity_conformance.report.comparison import as_numbers, difference, share

with warnings.catch_warnings():  # its warnings while it is imported are not about this project
    warnings.simplefilter("ignore")
    import transformers
    from transformers import modeling_rope_utils

transformers.logging.disable_progress_bar()

Refusal = Callable[..., AbstractContextManager[None]]


class Case(NamedTuple):
    """A model of transformers, the length of its inputs, and its expected configuration."""

    model: str
    fields: dict[str, Any]
    expected: dict[str, Any]
    length: int = 11
    head: str | None = None


SIZES = {"num_hidden_layers": 2, "intermediate_size": 22, "vocab_size": 41}
BERT = SIZES | {"hidden_size": 12, "num_attention_heads": 3, "max_position_embeddings": 19}
GPT2 = {"vocab_size": 41, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 19, "eos_token_id": 2}
GPT2 |= {"bos_token_id": 2}
DISTILBERT = {"vocab_size": 41, "dim": 12, "n_layers": 2, "n_heads": 3, "hidden_dim": 22}
DISTILBERT |= {"max_position_embeddings": 19}
MODERNBERT = BERT | {"num_hidden_layers": 5, "local_attention": 4, "pad_token_id": 0, "bos_token_id": 1}
MODERNBERT |= {"eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
VIT = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 22}
VIT |= {"image_size": 6, "patch_size": 2}
CLIP = BERT | {"eos_token_id": 40, "bos_token_id": 39, "projection_dim": 7}
WHISPER: dict[str, Any] = {"vocab_size": 41, "d_model": 12, "encoder_layers": 2, "decoder_layers": 2, "num_mel_bins": 7}
WHISPER |= {"encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_ffn_dim": 22, "decoder_ffn_dim": 22}
WHISPER |= {"max_source_positions": 9, "max_target_positions": 19, "pad_token_id": 40, "bos_token_id": 40}
WHISPER |= {"eos_token_id": 40, "decoder_start_token_id": 39, "begin_suppress_tokens": None}
FALCON = {"vocab_size": 41, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
FALCON |= {"max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = SIZES | {"hidden_size": 16, "num_attention_heads": 4, "max_position_embeddings": 64}
GROUPED = LLAMA | {"num_key_value_heads": 2}
EXPERTS = GROUPED | {"intermediate_size": 20}  # grouped products ask for multiples of four
SHARED = LLAMA | {"num_key_value_heads": 1, "head_dim": 6}
LATENT = {"num_key_value_heads": 4, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 5}
LATENT |= {"moe_intermediate_size": 12, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2}
SHARED_EXPERT = {"moe_intermediate_size": 12, "shared_expert_intermediate_size": 8}
NEXT = SHARED_EXPERT | {"head_dim": 8, "linear_num_value_heads": 4, "linear_num_key_heads": 2}
NEXT |= {"linear_key_head_dim": 5, "linear_value_head_dim": 6}
MAMBA2 = {"num_hidden_layers": 2, "vocab_size": 41, "hidden_size": 12, "state_size": 5, "chunk_size": 4}
SPECIAL = {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}
T5 = {"vocab_size": 41, "d_model": 12, "d_kv": 5, "d_ff": 22, "num_layers": 2, "num_heads": 3}
T5 |= {"relative_attention_num_buckets": 12, "relative_attention_max_distance": 17, "decoder_start_token_id": 0}
BART = {"vocab_size": 41, "d_model": 12, "encoder_layers": 2, "decoder_layers": 3, "max_position_embeddings": 19}
BART |= {"encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_ffn_dim": 22, "decoder_ffn_dim": 22}
OPT = {"vocab_size": 41, "hidden_size": 12, "num_hidden_layers": 2, "ffn_dim": 22, "num_attention_heads": 3}
OPT |= {"max_position_embeddings": 19, "word_embed_proj_dim": 12}
MARIAN = BART | {"pad_token_id": 40, "decoder_start_token_id": 40, "activation_function": "swish"}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 30.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}

YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 40}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 6.5], "rope_theta": 30.0}
PHI3_LONG = GROUPED | {"rope_parameters": LONGROPE, "original_max_position_embeddings": 16} | SPECIAL

CASES = {
    "bert": Case("BertModel", BERT, {"head": "pooled", "num_token_types": 2, "pad_id": 0}),
    "bert, hidden": Case("BertModel", BERT | {"type_vocab_size": 3}, {"head": "hidden"}, head="hidden"),
    "bert, without a pooler": Case(
        "BertForMaskedLM",
        BERT | {"hidden_act": "gelu_new"},
        {"activation": "gelu-tanh", "head": "logits", "head_transform": True, "tied_head": True},
    ),
    "roberta, masked": Case("RobertaForMaskedLM", BERT, {"head": "logits", "head_transform": True}),
    "xlm-roberta, masked": Case("XLMRobertaForMaskedLM", BERT, {"head": "logits", "head_transform": True}),
    "roberta": Case("RobertaModel", BERT, {"position_count": "visible", "position_offset": 2, "max_length": 17}),
    "xlm-roberta": Case("XLMRobertaModel", BERT, {"position_count": "visible", "position_offset": 2, "head": "pooled"}),
    "xlm-roberta, another pad": Case(
        "XLMRobertaModel",
        BERT | {"pad_token_id": 4, "type_vocab_size": 1, "hidden_act": "relu"},
        {"position_offset": 5, "pad_id": 4, "max_length": 14},
    ),
    "mpnet": Case(
        "MPNetModel",
        BERT | {"max_position_embeddings": 160},
        {"head": "pooled", "relative_bias": True, "position_offset": 2, "num_token_types": 0, "norm_eps": 1e-12},
        length=151,
    ),
    "mpnet, masked": Case(
        "MPNetForMaskedLM",
        BERT,
        {"head": "logits", "head_transform": True, "tied_head": True, "relative_buckets": 32},
    ),
    "mpnet, classes": Case(
        "MPNetForSequenceClassification", BERT | {"num_labels": 3}, {"num_classes": 3, "pooler": "tanh"}
    ),
    "vit": Case("ViTModel", VIT, {"head": "pooled", "max_length": 10, "class_token": True, "norm_eps": 1e-12}),
    "vit, one channel": Case(
        "ViTModel",
        VIT | {"num_channels": 1, "patch_size": 3, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3},
        {"image_channels": 1, "patch_size": 3, "max_length": 5, "activation": "gelu-tanh", "head": "hidden"},
        head="hidden",
    ),
    "vit, classes": Case(
        "ViTForImageClassification",
        VIT | {"num_labels": 5, "qkv_bias": False, "image_size": 8},
        {"head": "classes", "num_classes": 5, "pooler": "none", "max_length": 17, "qkv_bias": False},
    ),
    "clip_text_model": Case(
        "CLIPTextModel",
        CLIP,
        {"pooling": "eos", "pooler": "none", "activation": "gelu-quick", "max_length": 19, "eos_id": 40},
    ),
    "clip_text_model, projected": Case(
        "CLIPTextModelWithProjection",
        CLIP | {"hidden_act": "gelu", "layer_norm_eps": 1e-3, "eos_token_id": 2},
        {"head": "classes", "pooling": "largest", "num_classes": 7, "head_bias": False, "activation": "gelu"},
    ),
    "clip_vision_model": Case(
        "CLIPVisionModel",
        VIT | {"projection_dim": 7},
        {"patch_bias": False, "embedding_norm": True, "head": "pooled", "pooler": "none", "activation": "gelu-quick"},
    ),
    "clip_vision_model, projected": Case(
        "CLIPVisionModelWithProjection",
        VIT | {"projection_dim": 7, "num_channels": 1, "patch_size": 3, "hidden_act": "gelu", "layer_norm_eps": 1e-3},
        {"head": "classes", "num_classes": 7, "image_channels": 1, "max_length": 5, "activation": "gelu"},
    ),
    "whisper": Case(
        "WhisperForConditionalGeneration",
        WHISPER,
        {"mel_bins": 7, "num_frames": 18, "max_length": 19, "key_bias": False, "encoder_positions": "learned"}
        | {"positions": "learned", "tied_head": True, "bos_id": 39, "eos_id": 40},
    ),
    "whisper, untied": Case(
        "WhisperForConditionalGeneration",
        WHISPER
        | {"tie_word_embeddings": False, "activation_function": "relu", "num_mel_bins": 4}
        | {"encoder_layers": 1, "max_source_positions": 6, "d_model": 10, "scale_embedding": True}
        | {"encoder_attention_heads": 5, "decoder_attention_heads": 5},
        {"tied_head": False, "activation": "relu", "num_encoder_layers": 1, "num_decoder_layers": 2},
    ),
    "whisper, two frames": Case(
        "WhisperForConditionalGeneration",
        WHISPER | {"max_source_positions": 1, "num_mel_bins": 1, "decoder_layers": 1},
        {"num_frames": 2, "mel_bins": 1},
    ),
    "distilbert": Case("DistilBertModel", DISTILBERT, {"head": "hidden", "num_token_types": 0, "norm_eps": 1e-12}),
    "distilbert, relu": Case(
        "DistilBertForMaskedLM",
        DISTILBERT | {"activation": "relu", "sinusoidal_pos_embds": True, "n_layers": 3},
        {"activation": "relu", "head_transform": True, "num_encoder_layers": 3},
    ),
    "modernbert": Case(
        "ModernBertForMaskedLM",
        MODERNBERT,
        {
            "sliding_window": 3,
            "norm_bias": False,
            "head_transform_bias": False,
            "tied_head": True,
            "activation": "gelu",
        },
        length=17,
    ),
    "modernbert, without a head": Case("ModernBertModel", MODERNBERT, {"head": "hidden"}),
    "modernbert, biases": Case(
        "ModernBertForMaskedLM",
        MODERNBERT
        | dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), True)
        | {"decoder_bias": False, "tie_word_embeddings": False, "local_attention": 7, "num_hidden_layers": 3}
        | {"layer_types": ["sliding_attention", "full_attention", "full_attention"]},
        {"sliding_window": 4, "qkv_bias": True, "tied_head": False, "head_bias": False},
        length=17,
    ),
    "modernbert, scaled": Case(
        "ModernBertForMaskedLM",
        MODERNBERT
        | {"global_attn_every_n_layers": 1, "num_hidden_layers": 2, "hidden_activation": "gelu_new"}
        | {"classifier_activation": "gelu_new"}
        | {"rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 30.0, "factor": 3.0}}},
        {"sliding_window": None, "rotary_scaling": "linear", "activation": "gelu-tanh"},
    ),
    "modernbert, classes": Case(
        "ModernBertForSequenceClassification",
        MODERNBERT | {"classifier_pooling": "mean", "num_labels": 3},
        {"head": "classes", "num_classes": 3, "pooling": "mean", "pooler": "none", "head_transform": True},
    ),
    "bert, classes": Case(
        "BertForSequenceClassification", BERT, {"head": "classes", "num_classes": 2, "pooler": "tanh"}
    ),
    "roberta, classes": Case(
        "RobertaForSequenceClassification", BERT | {"num_labels": 3}, {"num_classes": 3, "pooling": "first"}
    ),
    "distilbert, classes": Case(
        "DistilBertForSequenceClassification", DISTILBERT | {"num_labels": 1}, {"num_classes": 1, "pooler": "relu"}
    ),
    "llama, classes": Case(
        "LlamaForSequenceClassification",
        GROUPED | {"num_labels": 5, "pad_token_id": 0},
        {"head": "classes", "pooling": "last", "pooler": "none", "head_bias": False},
    ),
    "mistral, classes": Case(
        "MistralForSequenceClassification",
        GROUPED | {"num_labels": 1, "pad_token_id": 0, "sliding_window": 4},
        {"head": "classes", "pooling": "last", "num_classes": 1, "sliding_window": 4},
    ),
    "qwen2, classes": Case(
        "Qwen2ForSequenceClassification",
        GROUPED | {"num_labels": 3, "pad_token_id": 40},
        {"head": "classes", "pooling": "last", "pooler": "none", "qkv_bias": True},
    ),
    "qwen3, classes": Case(
        "Qwen3ForSequenceClassification",
        GROUPED | {"num_labels": 4, "pad_token_id": 1, "head_dim": 6},
        {"head": "classes", "pooling": "last", "pooler": "none", "query_key_norm": True},
    ),
    "xlm-roberta, classes": Case(
        "XLMRobertaForSequenceClassification", BERT | {"num_labels": 5}, {"num_classes": 5, "pooler": "tanh"}
    ),
    "gpt2, classes": Case(
        "GPT2ForSequenceClassification", GPT2 | {"num_labels": 3, "pad_token_id": 0}, {"pooling": "last"}
    ),
    "gpt2": Case("GPT2LMHeadModel", GPT2, {"tied_head": True, "activation": "gelu-tanh", "feed_forward_dim": 48}),
    "gpt2, unscaled": Case(
        "GPT2LMHeadModel",
        GPT2 | {"n_inner": 22, "scale_attn_weights": False, "activation_function": "quick_gelu"},
        {"attention_scale": "none", "activation": "gelu-quick", "feed_forward_dim": 22},
    ),
    "gpt2, untied": Case("GPT2LMHeadModel", GPT2 | {"tie_word_embeddings": False}, {"tied_head": False}),
    "llama": Case("LlamaForCausalLM", LLAMA, {"num_key_value_heads": 4, "attention_head_dim": None}),
    "llama, grouped": Case(
        "LlamaForCausalLM",
        GROUPED | {"attention_bias": True, "mlp_bias": True, "rope_parameters": {"rope_theta": 500.0}},
        {"num_key_value_heads": 2, "qkv_bias": True, "feed_forward_bias": True, "rope_theta": 500.0},
    ),
    "llama, one key": Case(
        "LlamaForCausalLM", SHARED | {"tie_word_embeddings": True}, {"attention_head_dim": 6, "tied_head": True}
    ),
    "llama, scaled as in 3.1": Case(
        "LlamaForCausalLM", GROUPED | {"rope_parameters": LLAMA3}, {"rotary_scaling": "llama3"}, length=29
    ),
    "llama, scaled": Case(
        "LlamaForCausalLM",
        GROUPED | {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 100.0}},
        {"rotary_scaling": "linear", "rotary_factor": 3.0},
    ),
    "llama, yarn": Case(
        "LlamaForCausalLM",
        GROUPED | {"head_dim": 12, "rope_parameters": YARN | {"beta_fast": 3.0, "beta_slow": 0.5, "truncate": False}},
        {"rotary_scaling": "yarn", "rotary_truncate": False, "rotary_attention_factor": 0.1 * math.log(4) + 1},
        length=61,
    ),
    "qwen2, yarn": Case(
        "Qwen2ForCausalLM",
        GROUPED | {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 1.5}},
        {
            "rotary_low_frequency": 1.0,
            "rotary_high_frequency": 32.0,
            "rotary_attention_factor": (0.07 * math.log(4) + 1) / (0.15 * math.log(4) + 1),
        },
        length=23,
    ),
    "qwen3, yarn": Case(
        "Qwen3ForCausalLM",
        SHARED | {"head_dim": 10, "rope_parameters": YARN | {"attention_factor": 1.7, "factor": 3.0}},
        {"rotary_scaling": "yarn", "rotary_attention_factor": 1.7, "rotary_original_length": 40, "rotary_factor": 3.0},
        length=53,
    ),
    "phi3, short": Case(
        "Phi3ForCausalLM",
        PHI3_LONG,
        {"rotary_scaling": "longrope", "rotary_original_length": 16, "rotary_short_factors": [1.0, 1.5]}
        | {"rotary_attention_factor": math.sqrt(1 + math.log(4) / math.log(16))},
        length=16,
    ),
    "phi3, long": Case("Phi3ForCausalLM", PHI3_LONG, {"rotary_long_factors": [2.0, 6.5]}, length=17),
    "phi3, long and rotated in part": Case(
        "Phi3ForCausalLM",
        GROUPED
        | {"hidden_size": 24, "original_max_position_embeddings": 9}
        | {"rope_parameters": LONGROPE | {"partial_rotary_factor": 0.7, "attention_factor": 0.8}}
        | SPECIAL,
        {"rotary_dim": 4, "rotary_attention_factor": 0.8, "rotary_original_length": 9},
        length=29,
    ),
    "falcon": Case(
        "FalconForCausalLM",
        FALCON,
        {"branches": "parallel-one-norm", "num_key_value_heads": 1, "feed_forward_dim": 64, "qkv_bias": False},
    ),
    "falcon, grouped": Case(
        "FalconForCausalLM",
        FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 22},
        {"branches": "parallel", "num_key_value_heads": 2, "feed_forward_dim": 22},
    ),
    "falcon, grouped with one norm": Case(
        "FalconForCausalLM",
        FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1, "bias": True},
        {"branches": "parallel-one-norm", "num_key_value_heads": 2, "feed_forward_bias": True, "output_bias": True},
    ),
    "falcon, sequential": Case(
        "FalconForCausalLM",
        FALCON | {"multi_query": False, "parallel_attn": False, "tie_word_embeddings": False, "bias": True},
        {"branches": "sequential", "num_key_value_heads": 4, "tied_head": False},
    ),
    "ministral3": Case(
        "Ministral3ForCausalLM",
        GROUPED
        | {
            "head_dim": 6,
            "rope_parameters": YARN | {"original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.6},
        }
        | SPECIAL,
        {"query_temperature": 0.6, "query_temperature_length": 8, "sliding_window": None, "rotary_scaling": "yarn"},
        length=29,
    ),
    "ministral3, a window and no scaling": Case(
        "Ministral3ForCausalLM",
        SHARED
        | {
            "sliding_window": 4,
            "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}
            | {"original_max_position_embeddings": 3, "llama_4_scaling_beta": 0.4},
        },
        {"query_temperature": 0.4, "query_temperature_length": 3, "sliding_window": 4, "rotary_scaling": "none"},
        length=17,
    ),
    "mistral": Case(
        "MistralForCausalLM", SHARED | {"sliding_window": 4}, {"sliding_window": 4, "attention_head_dim": 6}
    ),
    "mistral, no window": Case("MistralForCausalLM", GROUPED | {"sliding_window": None}, {"sliding_window": None}),
    "qwen2": Case("Qwen2ForCausalLM", GROUPED, {"qkv_bias": True, "output_bias": False, "sliding_window": None}),
    "qwen2, windows": Case(
        "Qwen2ForCausalLM",
        GROUPED | {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0},
        {"sliding_window": 3, "layer_types": []},
    ),
    "qwen2, some windows": Case(
        "Qwen2ForCausalLM",
        GROUPED
        | {"num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": 3}
        | {"layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]},
        {"sliding_window": 3, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
    ),
    "qwen3": Case(
        "Qwen3ForCausalLM",
        SHARED | {"attention_bias": True},
        {"query_key_norm": True, "qkv_bias": True, "output_bias": True, "attention_head_dim": 6},
    ),
    "mixtral": Case(
        "MixtralForCausalLM",
        EXPERTS | {"num_local_experts": 5, "sliding_window": 4},
        {"num_experts": 5, "experts_per_token": 2, "router_normalized": True, "sliding_window": 4},
        length=23,
    ),
    "mixtral, one expert of three": Case(
        "MixtralForCausalLM",
        EXPERTS | {"num_key_value_heads": 1, "head_dim": 6, "num_local_experts": 3, "num_experts_per_tok": 1},
        {"num_experts": 3, "experts_per_token": 1, "sliding_window": None},
    ),
    "mixtral, all experts": Case(
        "MixtralForCausalLM",
        EXPERTS | {"num_local_experts": 4, "num_experts_per_tok": 4},
        {"num_experts": 4, "experts_per_token": 4},
    ),
    "olmoe": Case(
        "OlmoeForCausalLM",
        EXPERTS | SPECIAL | {"num_experts": 6, "num_experts_per_tok": 3},
        {"num_experts": 6, "experts_per_token": 3, "router_normalized": False, "query_key_norm_over": "projection"},
    ),
    "olmoe, normalised": Case(
        "OlmoeForCausalLM",
        EXPERTS
        | SPECIAL
        | {
            "num_key_value_heads": 4,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
            "attention_bias": True,
        },
        {"router_normalized": True, "qkv_bias": True},
    ),
    "qwen2_moe": Case(
        "Qwen2MoeForCausalLM",
        GROUPED | SHARED_EXPERT | {"num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": True},
        {"num_experts": 6, "experts_per_token": 3, "shared_expert_dim": 8, "shared_expert_gate": True}
        | {"feed_forward_dim": 12, "router_normalized": True, "qkv_bias": True, "sliding_window": None},
    ),
    "qwen2_moe, some layers dense, some with windows": Case(
        "Qwen2MoeForCausalLM",
        GROUPED
        | SHARED_EXPERT
        | {"num_hidden_layers": 5, "num_experts": 4, "num_experts_per_tok": 1, "qkv_bias": False}
        | {"decoder_sparse_step": 2, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 3}
        | {"tie_word_embeddings": True},
        {"num_experts": 4, "router_normalized": False, "qkv_bias": False, "sliding_window": 3, "tied_head": True}
        | {
            "layer_types": [
                *("dense_sliding_attention", "experts_full_attention", "dense_sliding_attention"),
                *("experts_full_attention", "dense_full_attention"),
            ]
        },
    ),
    "qwen2_moe, windows by type": Case(
        "Qwen2MoeForCausalLM",
        GROUPED
        | SHARED_EXPERT
        | {"num_experts": 4, "num_experts_per_tok": 4, "use_sliding_window": True, "sliding_window": 3}
        | {"layer_types": ["full_attention", "sliding_attention"]},
        {"experts_per_token": 4, "layer_types": ["experts_full_attention", "experts_sliding_attention"]},
    ),
    "qwen3_next": Case(
        "Qwen3NextForCausalLM",
        GROUPED | NEXT | {"num_hidden_layers": 4, "num_experts": 6, "num_experts_per_tok": 3},
        {"recurrent_heads": 4, "recurrent_key_heads": 2, "convolution_width": 4, "attention_gate": True}
        | {
            "layer_types": ["experts_linear_attention"] * 3 + ["experts_full_attention"],
            "layer_overrides": {"experts_full_attention": {"mixer": "attention"}},
        },
    ),
    "qwen3_next, some layers dense, as many keys as values": Case(
        "Qwen3NextForCausalLM",
        GROUPED
        | NEXT
        | {"num_hidden_layers": 4, "num_experts": 4, "num_experts_per_tok": 1, "norm_topk_prob": False}
        | {
            "decoder_sparse_step": 2,
            "layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"],
        }
        | {"linear_num_key_heads": 4, "linear_conv_kernel_dim": 3, "attention_bias": True, "tie_word_embeddings": True},
        {
            "convolution_width": 3,
            "qkv_bias": True,
            "tied_head": True,
            "router_normalized": False,
            "recurrent_key_heads": 4,
        },
    ),
    "qwen3_next, one key for all": Case(
        "Qwen3NextForCausalLM",
        GROUPED
        | NEXT
        | {
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 3,
        }
        | {"num_experts": 4, "num_experts_per_tok": 4},
        {"mixer": "gated-delta", "recurrent_heads": 3, "recurrent_key_heads": 1},
        length=19,
    ),
    "mamba2": Case(
        "Mamba2ForCausalLM",
        MAMBA2 | {"num_heads": 4, "head_dim": 9, "n_groups": 2, "expand": 3},
        {"mixer": "state-space", "feed_forward_dim": 0, "recurrent_heads": 4, "recurrent_key_heads": 2}
        | {"recurrent_key_dim": 5, "recurrent_value_dim": 9, "convolution_width": 4, "convolution_bias": True}
        | {"recurrent_bias": False, "time_step_least": 0.0, "time_step_most": None, "tied_head": False},
        length=75,
    ),
    "mamba2, biases, bounds, one key for all": Case(
        "Mamba2ForCausalLM",
        MAMBA2
        | {"num_heads": 3, "head_dim": 8, "n_groups": 1, "conv_kernel": 3, "use_bias": True, "use_conv_bias": False}
        | {"time_step_limit": (0.4, 0.9), "tie_word_embeddings": True},
        {"recurrent_bias": True, "convolution_bias": False, "time_step_least": 0.4, "time_step_most": 0.9}
        | {"recurrent_key_heads": 1, "convolution_width": 3, "tied_head": True},
    ),
    "mamba2, as many keys as values": Case(
        "Mamba2ForCausalLM",
        MAMBA2 | {"num_heads": 4, "head_dim": 3, "n_groups": 4, "expand": 1, "layer_norm_epsilon": 1e-2},
        {"recurrent_key_heads": 4, "norm_eps": 1e-2},
        length=19,
    ),
    "qwen3_moe": Case(
        "Qwen3MoeForCausalLM",
        SHARED | {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 12, "norm_topk_prob": True},
        {"num_experts": 6, "experts_per_token": 3, "feed_forward_dim": 12, "router_normalized": True},
    ),
    "qwen3_moe, some layers dense": Case(
        "Qwen3MoeForCausalLM",
        GROUPED
        | {"num_hidden_layers": 5, "num_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 12}
        | {"decoder_sparse_step": 2, "mlp_only_layers": [3], "use_sliding_window": True, "sliding_window": 3},
        {"num_experts": 4, "experts_per_token": 1, "router_normalized": False, "sliding_window": 3}
        | {"layer_types": ["dense", "experts", "dense", "dense"]}
        | {"layer_overrides": {"dense": {"num_experts": 0, "feed_forward_dim": 22}}},
    ),
    "qwen3_moe, all experts": Case(
        "Qwen3MoeForCausalLM",
        GROUPED | {"num_experts": 3, "num_experts_per_tok": 3, "moe_intermediate_size": 12, "mlp_only_layers": [0]},
        {"experts_per_token": 3, "layer_types": ["dense", "experts"]},
    ),
    "deepseek_v3": Case(
        "DeepseekV3ForCausalLM",
        EXPERTS
        | LATENT
        | {"num_hidden_layers": 3, "first_k_dense_replace": 1, "q_lora_rank": 10, "n_shared_experts": 2}
        | {
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "mscale": 1.0}
            | {"mscale_all_dim": 0.7, "original_max_position_embeddings": 16}
        },
        {"query_rank": 10, "key_value_rank": 8, "value_head_dim": 5, "rotary_dim": 4, "attention_head_dim": 10}
        | {"rope_layout": "interleaved", "router_groups": 4, "router_scale": 2.5, "shared_expert_dim": 24}
        | {"layer_types": ["dense", "experts", "experts"], "rotary_scaling": "yarn"},
        length=19,
    ),
    "deepseek_v3, whole queries": Case(
        "DeepseekV3ForCausalLM",
        EXPERTS
        | LATENT
        | {"first_k_dense_replace": 0, "q_lora_rank": None, "rope_interleave": False, "n_group": 1}
        | {"topk_group": 1, "norm_topk_prob": False, "routed_scaling_factor": 1.0, "v_head_dim": 12},
        {
            "query_rank": None,
            "rope_layout": "halves",
            "router_groups": 1,
            "router_normalized": False,
            "layer_types": [],
        },
    ),
    "gpt_oss": Case(
        "GptOssForCausalLM",
        EXPERTS
        | SPECIAL
        | {"head_dim": 6, "num_hidden_layers": 3, "num_local_experts": 5, "num_experts_per_tok": 2}
        | {"sliding_window": 4, "swiglu_limit": 0.9},
        {"attention_sinks": True, "gate_limit": 0.9, "up_offset": 1.0, "sliding_window": 4, "rotary_scaling": "yarn"}
        | {"layer_types": ["sliding_attention", "full_attention"], "rotary_truncate": False, "router_bias": True},
        length=17,
    ),
    "gpt_oss, all experts": Case(
        "GptOssForCausalLM",
        EXPERTS
        | SPECIAL
        | {"num_key_value_heads": 4, "head_dim": 4, "num_local_experts": 3, "num_experts_per_tok": 3}
        | {"attention_bias": False, "layer_types": ["full_attention"] * 2, "tie_word_embeddings": True}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {"gate_limit": 7.0, "sliding_window": None, "rotary_scaling": "none", "qkv_bias": False, "tied_head": True},
    ),
    "gemma": Case("GemmaForCausalLM", SHARED, {"norm_gain": "one-plus-weight", "activation": "gelu-tanh"}),
    "gemma2": Case(
        "Gemma2ForCausalLM",
        GROUPED
        | {"head_dim": 6, "num_hidden_layers": 3, "sliding_window": 3, "query_pre_attn_scalar": 7}
        | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
        {
            "attention_softcap": 2.0,
            "final_softcap": 3.0,
            "sliding_window": 3,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "gemma2, no caps": Case(
        "Gemma2ForCausalLM",
        SHARED | {"attn_logit_softcapping": None, "final_logit_softcapping": None},
        {"attention_softcap": None, "final_softcap": None},
    ),
    "gemma3": Case(
        "Gemma3ForCausalLM",
        GROUPED
        | {"head_dim": 6, "num_hidden_layers": 4, "sliding_window": 3, "query_pre_attn_scalar": 7}
        | {"layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]}
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
            }
        },
        {"query_key_norm": True, "norm_gain": "one-plus-weight", "rope_theta": 30.0, "rotary_scaling": "none"}
        | {
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "layer_overrides": {
                "full_attention": {
                    "sliding_window": None,
                    "rope_theta": 500.0,
                    "rotary_scaling": "linear",
                    "rotary_factor": 3.0,
                }
            },
        },
    ),
    "gemma3, full alone": Case(
        "Gemma3ForCausalLM",
        SHARED | {"layer_types": ["full_attention"] * 2, "final_logit_softcapping": 3.0},
        {"layer_types": [], "rope_theta": 1e6, "sliding_window": None, "final_softcap": 3.0},
    ),
    "smollm3": Case(
        "SmolLM3ForCausalLM",
        GROUPED | {"num_hidden_layers": 4, "no_rope_layer_interval": 3} | SPECIAL,
        {
            "layer_types": ["full_attention", "full_attention", "full_attention_without_positions"],
            "layer_overrides": {"full_attention_without_positions": {"positions": "none"}},
        },
    ),
    "smollm3, windows": Case(
        "SmolLM3ForCausalLM",
        GROUPED | {"use_sliding_window": True, "sliding_window": 3, "no_rope_layers": [0, 1]} | SPECIAL,
        {"sliding_window": 3, "positions": "rotary"},
    ),
    "phi3": Case(
        "Phi3ForCausalLM",
        GROUPED | {"sliding_window": 4} | SPECIAL,
        {"sliding_window": 4, "rotary_dim": None, "num_key_value_heads": 2},
    ),
    "phi3, rotated in part": Case(
        "Phi3ForCausalLM",
        GROUPED
        | {"hidden_size": 24, "tie_word_embeddings": True}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.7}}
        | SPECIAL,
        {"rotary_dim": 4, "rope_theta": 50.0, "tied_head": True},
    ),
    "granite": Case(
        "GraniteForCausalLM",
        GROUPED
        | {
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.3,
            "logits_scaling": 5.0,
        },
        {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.3}
        | {"head_multiplier": 0.2, "attention_scale": "none"},
    ),
    "granite, plain and tied": Case(
        "GraniteForCausalLM",
        SHARED | {"tie_word_embeddings": True, "attention_bias": True},
        {"residual_multiplier": 1.0, "tied_head": True, "qkv_bias": True},
    ),
    "olmo2": Case(
        "Olmo2ForCausalLM",
        GROUPED,
        {"norm_position": "branch", "query_key_norm": True, "query_key_norm_over": "projection"},
    ),
    "olmo2, one key": Case(
        "Olmo2ForCausalLM",
        SHARED | {"tie_word_embeddings": True, "attention_bias": True, "rope_parameters": LLAMA3},
        {"attention_head_dim": 6, "tied_head": True, "rotary_scaling": "llama3"},
    ),
    "gptj": Case(
        "GPTJForCausalLM",
        GPT2 | {"rotary_dim": 2, "eos_token_id": 2},
        {"branches": "parallel-one-norm", "rotary_dim": 2, "rope_layout": "interleaved", "feed_forward_dim": 48},
    ),
    "gptj, another width": Case(
        "GPTJForCausalLM",
        GPT2 | {"rotary_dim": 4, "n_inner": 22, "activation_function": "relu"},
        {"rotary_dim": 4, "feed_forward_dim": 22, "activation": "relu"},
    ),
    "gpt_neox": Case(
        "GPTNeoXForCausalLM",
        BERT | {"hidden_size": 24, "rope_parameters": {"rope_theta": 50.0, "partial_rotary_factor": 0.5}},
        {"branches": "parallel", "rotary_dim": 4, "rope_theta": 50.0, "qkv_bias": True},
    ),
    "gpt_neox, sequential": Case(
        "GPTNeoXForCausalLM",
        BERT
        | {"hidden_size": 24, "use_parallel_residual": False, "attention_bias": False, "tie_word_embeddings": True}
        | {"rope_parameters": {"rope_theta": 50.0, "partial_rotary_factor": 1.0}},
        {"branches": "sequential", "rotary_dim": None, "qkv_bias": False, "tied_head": True},
    ),
    "cohere": Case(
        "CohereForCausalLM",
        GROUPED | {"logit_scale": 0.3} | SPECIAL,
        {"branches": "parallel-one-norm", "norm_bias": False, "head_multiplier": 0.3, "rope_layout": "interleaved"},
    ),
    "cohere2": Case(
        "Cohere2ForCausalLM",
        GROUPED | {"num_hidden_layers": 4, "sliding_window": 3, "logit_scale": 0.3} | SPECIAL,
        {
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
            "layer_overrides": {"full_attention": {"sliding_window": None, "positions": "none"}},
            "sliding_window": 3,
        },
    ),
    "cohere, untied": Case(
        "CohereForCausalLM",
        GROUPED | {"tie_word_embeddings": False, "attention_bias": True} | SPECIAL,
        {"tied_head": False, "output_bias": True, "head_multiplier": 0.0625},
    ),
    "t5": Case("T5ForConditionalGeneration", T5, {"tied_head": True, "head_scale": "embed_dim"}, length=23),
    "t5, gated": Case(
        "T5ForConditionalGeneration",
        T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_decoder_layers": 3},
        {"tied_head": False, "head_scale": "none", "activation": "gelu-tanh", "num_decoder_layers": 3},
        length=23,
    ),
    "t5, its encoder": Case(
        "T5EncoderModel", T5 | {"feed_forward_proj": "gated-silu"}, {"head": "hidden", "activation": "silu"}, length=23
    ),
    "bart": Case("BartForConditionalGeneration", BART, {"position_offset": 2, "pad_id": 1, "head_bias": True}),
    "bart, scaled": Case(
        "BartForConditionalGeneration", BART | {"scale_embedding": True}, {"embedding_scale": "embed_dim"}
    ),
    "marian": Case(
        "MarianMTModel", MARIAN | {"scale_embedding": True}, {"activation": "silu", "pad_id": 40, "bos_id": 40}
    ),
    "marian, two vocabularies": Case(
        "MarianMTModel",
        MARIAN | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 43},
        {"shared_embedding": False, "target_vocab_size": 43},
    ),
    "opt": Case("OPTForCausalLM", OPT, {"position_offset": 2, "position_count": "visible", "final_norm": True}),
    "opt, norms behind": Case(
        "OPTForCausalLM",
        OPT | {"do_layer_norm_before": False, "enable_bias": False, "tie_word_embeddings": False},
        {"norm_position": "post", "final_norm": False, "feed_forward_bias": False, "tied_head": False},
    ),
    "opt, no last norm": Case(
        "OPTForCausalLM",
        OPT | {"_remove_final_layer_norm": True, "activation_function": "gelu"},
        {"norm_position": "pre", "final_norm": False, "activation": "gelu"},
    ),
}

DECODED = (
    "deepseek_v3",
    "gpt_oss",
    "mixtral",
    "olmoe",
    "qwen2_moe, some layers dense, some with windows",
    "qwen3_moe, some layers dense",
    "qwen3_next",
    "qwen3_next, one key for all",
    "mamba2",
    "mamba2, as many keys as values",
    "falcon",
    "falcon, grouped",
    "qwen3, yarn",
    "gptj",
    "gpt_neox",
    "cohere",
    "cohere2",
    "gemma3",
    "granite",
    "olmo2",
    "smollm3, windows",
    "phi3",
    "phi3, rotated in part",
    "ministral3",
)
"""Cases that are compared with the cache of transformers, too."""


def new(case: Case) -> Any:
    """The model of transformers, as it is initialised."""
    model_class = getattr(transformers, case.model)
    model = model_class(model_class.config_class(**case.fields, attn_implementation="eager")).eval()
    if case.expected.get("tied_head") is False:  # T5's class ties what its files have twice
        head = model.get_output_embeddings()
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
    return model


def learned(model: Any) -> dict[str, torch.Tensor]:
    """Its weights, Whisper's table of positions among them, and the bias of its logits and the correction of its
    routers, which are buffers."""
    frozen = "model.encoder.embed_positions.weight" if model.config.model_type == "whisper" else ""
    weights = {name: value for name, value in model.named_parameters() if value.requires_grad or name == frozen}
    kept = ("final_logits_bias", "e_score_correction_bias")
    return weights | {name: value for name, value in model.named_buffers() if name.endswith(kept)}


TABLES = ("embed", "shared", "wte", "wpe", "relative")


def made(case: Case) -> Any:
    """The model with weights that reveal faults: gains spread around one, biases that are not zero."""
    model = new(case)
    random = torch.Generator().manual_seed(5)
    from_zero = ("gemma", "gemma2", "gemma3_text", "qwen3_next")
    one = 0 if model.config.model_type in from_zero else 1
    with torch.no_grad():
        for name, value in learned(model).items():
            drawn = torch.randn(value.shape, generator=random)
            if value.ndim < 2:
                is_gain = name.endswith("weight")
                value.copy_(0.3 * drawn + ((1 if "linear_attn" in name else one) if is_gain else 0))
            else:
                value.copy_(drawn if any(part in name for part in TABLES) else 1.3 * drawn / value.shape[1] ** 0.5)
    return model


def tokens_of(config: TransformerConfig, length: int) -> dict[str, np.ndarray]:
    """Three different rows, one padded on the left and one on the right; both sides of encoder-decoders differ in
    length."""
    if config.reads_pixels:
        return {"pixels": pixel_inputs(config, 3, 7)}
    random = np.random.default_rng(7)
    inputs = {"source": frame_inputs(config, 3, 7)} if config.reads_frames else {}
    for name in config.token_inputs:
        shape = (3, length - 2 if name == "target" else length)
        tokens = random.integers(3, config.stack_vocab_size(config.input_stack(name)) - 2, shape)
        if config.pad_id is not None and name != "target":
            tokens[0, :2] = config.pad_id
            tokens[1, -3:] = config.pad_id
        if config.pad_id is not None and name == "target":
            tokens[2, 2] = config.pad_id  # which is seen: a decoder's mask is causal alone
        if config.is_pooled and config.pooling in ("eos", "largest"):  # twice, once, and not at all
            tokens[:2, 4], tokens[0, 7] = config.stack_vocab_size("decoder") - 1, config.stack_vocab_size("decoder") - 1
        inputs[name] = tokens
    if config.num_token_types:
        inputs["token_types"] = random.integers(0, config.num_token_types, inputs["tokens"].shape)
    return inputs


def theirs(model: Any, checkpoint: Checkpoint, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """The output of the model of transformers, in its own dtype."""
    config = checkpoint.config
    dtype = next(model.parameters()).dtype
    given = {name: torch.from_numpy(value) for name, value in inputs.items()}
    name = config.input_names[0]
    called = "pixel_values" if config.reads_pixels else "input_features" if config.reads_frames else "input_ids"
    named: dict[str, Any] = {called: given[name].to(dtype) if given[name].is_floating_point() else given[name]}
    if "target" in given:
        named["decoder_input_ids"] = given["target"]
    if (
        config.has_encoder and config.pad_id is not None and not config.reads_frames
    ) or config.target_mask == "causal-and-padding":
        named["attention_mask"] = torch.from_numpy(np.int64(inputs[config.input_names[0]] != config.pad_id))
    if "token_types" in given:
        named["token_type_ids"] = given["token_types"]
    with torch.no_grad():
        if config.head in ("logits", "classes"):
            said = model(**named)
            return as_numbers(next(said[name] for name in ("logits", "text_embeds", "image_embeds") if name in said))
        said = getattr(model, model.base_model_prefix, model)(**named)
        return as_numbers(said.pooler_output if config.head == "pooled" else said.last_hidden_state)


@contextmanager
def in_double_precision(case: Case, model: Any) -> Iterator[Any]:
    """The whole model in float64.

    transformers computes norms, angles, attention weights and buckets in float32 whatever the model's dtype is, so its
    own `double()` is as far off as float32.
    """
    upcast = {"float32": torch.float64, "float": torch.float64, "FloatTensor": torch.DoubleTensor}
    before = torch.get_default_dtype()
    with pytest.MonkeyPatch.context() as patch:
        for module in (sys.modules[type(model).__module__], modeling_rope_utils):
            patch.setattr(module, "torch", SimpleNamespace(**vars(torch) | upcast))
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        torch.set_default_dtype(torch.float64)
        try:
            double = new(case)
            if hasattr(double.config, "_experts_implementation"):  # grouped products have no float64
                double.config._experts_implementation = "eager"
            assert not double.load_state_dict(learned(model), strict=False).unexpected_keys
            yield double
        finally:
            torch.set_default_dtype(before)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_computes_what_transformers_computes(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = made(case)
    model.save_pretrained(tmp_path)
    checkpoint = import_checkpoint(tmp_path, case.head)
    config = checkpoint.config.as_dict()
    assert {field: config[field] for field in case.expected} == case.expected

    inputs = tokens_of(checkpoint.config, case.length)
    oracle = forward_oracle(checkpoint.config, checkpoint.parameters, inputs)
    said = {"float32": theirs(model, checkpoint, inputs)}
    with in_double_precision(case, model) as double:
        said["float64"] = theirs(double, checkpoint, inputs)
    assert said["float64"].dtype == np.float64
    for dtype, value in said.items():
        error, budget = difference(value, oracle.expected["logits"]), oracle.budget("logits", dtype)
        assert share(error, budget) <= 1, f"{dtype} differs by {error:.3g}; expected at most {budget:.3g}"


@pytest.mark.sampled(20)
@pytest.mark.parametrize("column", ["pytorch", "flax"], indirect=True)
@pytest.mark.parametrize("name", CASES)
def test_a_backend_computes_the_same(name: str, backend: Backend, saved: Callable[[str], Path]) -> None:
    checkpoint = import_checkpoint(saved(name))
    config, parameters = checkpoint.config, checkpoint.parameters
    inputs = tokens_of(config, CASES[name].length)
    oracle = forward_oracle(config, parameters, inputs)
    forward = backend(config, parameters, dtype="float32", mode=backend.modes[0])
    error = difference(as_numbers(forward.logits(**inputs)), oracle.expected["logits"])
    assert share(error, oracle.budget("logits", "float32")) <= 1


@pytest.mark.parametrize("name", DECODED)
def test_transformers_computes_the_same_with_its_cache(name: str, saved: Callable[[str], Path]) -> None:
    """A part of the tokens first, then one token after the other."""
    checkpoint, model = import_checkpoint(saved(name)), made(CASES[name])
    tokens = tokens_of(checkpoint.config, CASES[name].length)["tokens"][:1, 3:]
    oracle = forward_oracle(checkpoint.config, checkpoint.parameters, {"tokens": tokens})
    cache, found, kept = None, [], "cache_params" if model.config.model_type == "mamba2" else "past_key_values"
    for chunk in np.split(tokens, range(4, tokens.shape[1]), axis=1):
        with torch.no_grad():
            said = model(input_ids=torch.from_numpy(chunk), use_cache=True, **{kept: cache})
        cache = said[kept]
        found.append(as_numbers(said.logits))
    error = difference(np.concatenate(found, axis=1), oracle.expected["logits"])
    assert share(error, oracle.budget("logits", "float32")) <= 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["bert", "gemma2"])
def test_a_port_is_checked_on_a_checkpoint(name: str, saved: Callable[[str], Path]) -> None:
    result = invoke("check", "transparity_pytorch.port:build", "--checkpoint", saved(name))
    assert result.exit_code == 0, result.output
    assert "AGREES" in result.stdout
    assert "fields that no forward pass depends on: " in " ".join(result.stdout.split())


def invoke(*arguments: Any) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a case, saved once."""
    folders: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp("saved")
            made(CASES[name]).save_pretrained(folders[name])
        return folders[name]

    return folder


def edited(
    folder: Path, into: Path, fields: Mapping[str, Any] | None = None, tensors: Mapping[str, Any] | None = None
) -> Path:
    """A copy with other `fields` and `tensors`, without those that are `GONE`."""
    into.mkdir(parents=True, exist_ok=True)
    config = json.loads((folder / "config.json").read_text()) | dict(fields or {})
    (into / "config.json").write_text(json.dumps({name: value for name, value in config.items() if value is not GONE}))
    both = {**load_file(folder / "model.safetensors"), **(tensors or {})}
    save_file({name: value for name, value in both.items() if value is not GONE}, into / "model.safetensors")
    return into


GONE = object()


def same(one: Checkpoint, other: Checkpoint) -> bool:
    return one.config == other.config and all(
        np.array_equal(value, other.parameters[name]) for name, value in one.parameters.items()
    )


def test_a_checkpoint_in_several_files_is_the_same(saved: Callable[[str], Path], tmp_path: Path) -> None:
    made(CASES["llama, grouped"]).save_pretrained(tmp_path, max_shard_size="5KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert same(import_checkpoint(tmp_path), import_checkpoint(saved("llama, grouped")))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_imported_exactly(dtype: str, tmp_path: Path) -> None:
    model = made(CASES["llama"]).to(getattr(torch, dtype))
    model.save_pretrained(tmp_path)
    checkpoint = import_checkpoint(tmp_path)
    table = checkpoint.parameters["decoder.token_embedding.weight"]
    assert table.dtype == np.float32
    assert np.array_equal(table, model.model.embed_tokens.weight.detach().float().numpy())


def test_fields_of_transformers_4_mean_the_same(saved: Callable[[str], Path], tmp_path: Path) -> None:
    folder = saved("llama, scaled as in 3.1")
    scaling = {name: value for name, value in LLAMA3.items() if name not in ("rope_theta", "rope_type")}
    older = {"rope_parameters": GONE, "rope_theta": 30.0, "rope_scaling": {"type": "llama3"} | scaling}
    assert same(import_checkpoint(edited(folder, tmp_path / "llama", older)), import_checkpoint(folder))
    folder = saved("phi3, long")
    scaling = {"type": "su"} | {name: LONGROPE[name] for name in ("short_factor", "long_factor")}
    older = {"rope_parameters": GONE, "rope_theta": 30.0, "rope_scaling": scaling}
    assert same(import_checkpoint(edited(folder, tmp_path / "phi3", older)), import_checkpoint(folder))
    folder = saved("gemma3")
    older = {"rope_parameters": GONE, "rope_theta": 500.0, "rope_local_base_freq": 30.0}
    older |= {"rope_scaling": {"type": "linear", "factor": 3.0}}
    assert same(import_checkpoint(edited(folder, tmp_path / "gemma3", older)), import_checkpoint(folder))
    folder = saved("t5, gated")
    older = {"scale_decoder_outputs": GONE, "tie_word_embeddings": False}
    assert same(import_checkpoint(edited(folder, tmp_path / "t5", older)), import_checkpoint(folder))


@pytest.mark.parametrize("name", ["bert, without a pooler", "gpt2", "llama", "bart", "opt"])
def test_a_prefix_is_optional(name: str, saved: Callable[[str], Path], tmp_path: Path) -> None:
    prefix = {"bert, without a pooler": "bert.", "gpt2": "transformer."}.get(name, "model.")
    tensors = load_file(saved(name) / "model.safetensors")
    bare: dict[str, Any] = {tensor: GONE for tensor in tensors if tensor.startswith(prefix)}
    bare |= {tensor.removeprefix(prefix): value for tensor, value in tensors.items()}
    assert same(import_checkpoint(edited(saved(name), tmp_path, tensors=bare)), import_checkpoint(saved(name)))


def test_a_stored_tied_head_has_to_equal_the_embedding(
    saved: Callable[[str], Path], tmp_path: Path, refused: Refusal
) -> None:
    folder = saved("gpt2")
    table = load_file(folder / "model.safetensors")["transformer.wte.weight"]
    assert same(
        import_checkpoint(edited(folder, tmp_path / "same", tensors={"lm_head.weight": table})),
        import_checkpoint(folder),
    )
    other = edited(folder, tmp_path / "other", tensors={"lm_head.weight": table + 1})
    with refused(CheckpointError, "'lm_head.weight' and 'transformer.wte.weight' of"):
        import_checkpoint(other)


def test_ignored_fields_and_tensors_are_reported(saved: Callable[[str], Path], tmp_path: Path) -> None:
    more = {"fancy_attention": 3, "eos_token_id": [2, 5], "pad_token_id": -1, "rms_norm_eps": GONE}
    zeros = np.zeros(2, np.float32)
    tensors = {"score.weight": zeros, "model.layers.7.mlp.up_proj.weight": zeros}
    checkpoint = import_checkpoint(edited(saved("llama"), tmp_path, more, tensors))
    remarks = dict(remark.split(": ", 1) for remark in checkpoint.remarks)
    assert remarks["fields that are not honoured"] == "fancy_attention (3), pad_token_id (-1), eos_token_id ([2, 5])"
    assert remarks["fields that are missing, taken as transformers does"] == "rms_norm_eps 1e-06"
    assert remarks["tensors that are not used"] == "model.layers.7.mlp.up_proj.weight, score.weight"
    assert "use_cache" in remarks["fields that no forward pass depends on"].split(", ")
    assert (checkpoint.config.eos_id, checkpoint.config.pad_id) == (2, None)
    checkpoint = import_checkpoint(saved("bert, without a pooler"), "hidden")
    assert "cls.predictions.transform.dense.weight" in str(checkpoint.remarks)
    assert "head: hidden" in checkpoint.remarks


def test_tensors_that_are_computed_here_are_no_parameters(saved: Callable[[str], Path], tmp_path: Path) -> None:
    folder = edited(saved("bert"), tmp_path, tensors={"embeddings.position_ids": np.arange(19)[None]})
    assert "tensors that are computed here: embeddings.position_ids" in import_checkpoint(folder).remarks


SLIDES, SEES = "sliding_attention", "full_attention"

REFUSED_FIELDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "an unknown family": ("llama", {"model_type": "mamba"}, 'has the model_type "mamba"; expected one of bart, bert'),
    "no family": ("llama", {"model_type": GONE}, "has the model_type null; expected"),
    "an unknown activation": ("llama", {"hidden_act": "mish"}, 'hidden_act is "mish"; expected one of gelu'),
    "another scaling": ("llama", {"rope_scaling": {"type": "dynamic"}, "rope_parameters": None}, '"dynamic"'),
    "half a scaling": ("llama", {"rope_parameters": {"rope_type": "linear"}}, "rope_parameters has no factor"),
    "a scaling and more": (
        "llama",
        {"rope_parameters": {"rope_type": "default", "attention_factor": 2}},
        "rope_parameters.attention_factor is 2; expected none",
    ),
    "a part turned": ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; expected 1"),
    "quantised": ("llama", {"quantization_config": {"bits": 4}}, 'quantization_config is {"bits": 4}; expected none'),
    "a size that is none": ("llama", {"hidden_size": "16"}, 'hidden_size is "16"; expected a whole number'),
    "a size too few": ("llama", {"hidden_size": GONE}, "hidden_size is missing; expected it, for embed_dim"),
    "a scale by layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "expected false"),
    "a decoder": ("bert", {"is_decoder": True}, "is_decoder is true; expected false"),
    "other positions": ("bert", {"position_embedding_type": "relative_key"}, 'expected "absolute"'),
    "two numbers of heads": ("bart", {"decoder_attention_heads": 2}, "decoder_attention_heads is 2; expected 3, as"),
    "other layers": ("bart", {"normalize_before": True}, "normalize_before is true; expected false"),
    "both ways": ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention is true"),
    "windows without any": ("qwen2", {"layer_types": [SLIDES, SLIDES]}, "use_sliding_window is false; expected true"),
    "narrower tokens": ("opt", {"word_embed_proj_dim": 6}, "word_embed_proj_dim is 6; expected 12, as hidden_size is"),
    "norms that are not learned": ("opt", {"layer_norm_elementwise_affine": False}, "is false; expected true"),
    "linear biases": ("falcon", {"alibi": True}, "alibi is true; expected false"),
    "groups in turn": ("falcon, grouped", {"parallel_attn": False}, "parallel_attn is false; expected true"),
    "no activation": ("t5", {"feed_forward_proj": 3}, "feed_forward_proj is 3; expected"),
}


@pytest.mark.parametrize("what", REFUSED_FIELDS)
def test_fields_that_would_change_numbers_are_refused(
    what: str, saved: Callable[[str], Path], tmp_path: Path, refused: Refusal
) -> None:
    name, fields, message = REFUSED_FIELDS[what]
    folder = edited(saved(name), tmp_path, fields)
    with refused(CheckpointError, f"{folder / 'config.json'} "):
        import_checkpoint(folder)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        import_checkpoint(folder)


def test_tensors_that_do_not_fit_are_refused(saved: Callable[[str], Path], tmp_path: Path, refused: Refusal) -> None:
    name, folder = "model.layers.1.mlp.up_proj.weight", saved("llama")
    with refused(CheckpointError, f"{tmp_path} has no tensor 'layers.1.mlp.up_proj.weight'; expected it, for the"):
        import_checkpoint(edited(folder, tmp_path, tensors={name: GONE}))
    with refused(CheckpointError, f"{name!r} of {tmp_path / 'model.safetensors'} has the shape (16, 22)"):
        import_checkpoint(edited(folder, tmp_path, tensors={name: np.zeros((16, 22), np.float32)}))
    with refused(
        CheckpointError, f"{name!r} of {tmp_path / 'model.safetensors'} has the dtype I8; expected one of F32"
    ):
        import_checkpoint(edited(folder, tmp_path, tensors={name: np.zeros((22, 16), np.int8)}))
    with refused(
        CheckpointError, f"{tmp_path} cannot be imported: Parameter 'decoder.layers.1.feed_forward.up.weight'"
    ):
        import_checkpoint(edited(folder, tmp_path, tensors={name: np.full((22, 16), np.nan, np.float32)}))
    with refused(CheckpointError, f"{saved('bert, without a pooler')} has no tensor 'pooler.dense.weight'; expected"):
        import_checkpoint(saved("bert, without a pooler"), "pooled")
    with refused(CheckpointError, f"{folder / 'config.json'} cannot be imported: a head is asked for (hidden)"):
        import_checkpoint(folder, "hidden")
    with refused(CheckpointError, f"{saved('bert') / 'config.json'} cannot be imported: a head is asked for (logits)"):
        import_checkpoint(saved("bert"), "logits")


def test_folders_without_a_checkpoint_are_refused(
    saved: Callable[[str], Path], tmp_path: Path, refused: Refusal
) -> None:
    nowhere = tmp_path / "nowhere"
    with refused(CheckpointError, f"{nowhere} is no folder; expected one with config.json"):
        import_checkpoint(nowhere)
    with refused(CheckpointError, f"{tmp_path} has no config.json; expected"):
        import_checkpoint(tmp_path)
    config = tmp_path / "config.json"
    not_json = "is not JSON: "
    for text, message in (("{", not_json), ("[1]", "is [1]; expected an object"), ('{"a": NaN}', not_json)):
        config.write_text(text)
        with refused(TransparityError, f"{config} {message}"):
            import_checkpoint(tmp_path)
    config.write_text((saved("llama") / "config.json").read_text())
    with refused(CheckpointError, f"{tmp_path} has no model.safetensors; expected"):
        import_checkpoint(tmp_path)
    pickle = tmp_path / "pytorch_model.bin"
    pickle.write_bytes(b"\x80\x04N.")
    for given in (tmp_path, pickle):
        with refused(CheckpointError, f"{pickle} is a pickle, which can run any code when it is read; expected"):
            import_checkpoint(given)


def test_invalid_files_are_refused(saved: Callable[[str], Path], tmp_path: Path, refused: Refusal) -> None:
    folder = edited(saved("llama"), tmp_path)
    weights, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    for names, message in (
        ({"a": "more.safetensors"}, f"{folder} has no more.safetensors, which"),
        ({"a": "../model.safetensors"}, f"{index} names the file '../model.safetensors'; expected"),
        (["a"], f"{index} has no weight_map; expected"),
    ):
        index.write_text(json.dumps({"weight_map": names}))
        with refused(CheckpointError, message):
            import_checkpoint(folder)
    index.unlink()
    for name in ("one.safetensors", "two.safetensors"):
        (folder / name).write_bytes(weights.read_bytes())
    (folder / "model.safetensors").unlink()
    with refused(CheckpointError, f"{folder} has one.safetensors, two.safetensors and no model.safetensors.index.json"):
        import_checkpoint(folder)
    weights.write_bytes(b"no tensors")
    with refused(CheckpointError, f"{weights} cannot be read as a safetensors file: "):
        import_checkpoint(folder)


def test_the_command_imports(saved: Callable[[str], Path], tmp_path: Path) -> None:
    result = invoke("import", saved("gemma2"), tmp_path / "new")
    assert result.exit_code == 0, result.output
    assert "gemma2, decoder, " in " ".join(result.stdout.split())
    checkpoint = import_checkpoint(saved("gemma2"))
    config = TransformerConfig.from_json((tmp_path / "new" / "config.json").read_text())
    parameters = load_parameters(tmp_path / "new" / "parameters.safetensors", config)
    assert same(dataclasses.replace(checkpoint, config=config, parameters=parameters), checkpoint)
    assert invoke("import", saved("gemma2"), tmp_path / "new").exit_code == 0, "over what it wrote itself"


def test_the_command_refuses_in_one_sentence(saved: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    port, checkpoint = "transparity_numpy.port:build", ("--checkpoint", saved("llama"))
    for arguments, message in (
        (("import", tmp_path, tmp_path / "new"), "is not JSON"),
        (("import", saved("llama"), tmp_path), "has other files in it; expected an empty folder"),
        (("import", saved("llama"), saved("gemma2")), "has other files in it; expected an empty folder"),
        (("import", saved("llama"), tmp_path / "config.json"), "cannot be written"),
        (("import", saved("llama"), tmp_path / "new", "--head", "pooled"), "the output of this model is logits"),
        (("check", port, "--checkpoint", tmp_path), "is not JSON"),
        (("check", port, *checkpoint, "--preset", "walkthrough"), "--checkpoint goes with a PORT alone"),
        (("check", port, *checkpoint, "--config", tmp_path / "config.json"), "--checkpoint goes with a PORT alone"),
        (("check", "--command", "true", *checkpoint), "--checkpoint goes with a PORT alone"),
        (("check", port, "--head", "pooled"), "--head is for --checkpoint"),
    ):
        result = invoke(*arguments)
        assert result.exit_code == 2, arguments
        assert message in result.stderr
        assert result.stderr.count("\n") == 1
        assert result.stderr.endswith(".\n")


def test_a_wrong_port_diverges_on_a_checkpoint(saved: Callable[[str], Path]) -> None:
    from transparity_numpy.port import build

    def wrong(config: TransformerConfig, parameters: Any) -> Any:
        return build(dataclasses.replace(config, rope_layout="interleaved"), parameters)

    checkpoint = import_checkpoint(saved("llama, grouped"))
    report = check(wrong, config=checkpoint.config, parameters=checkpoint.parameters)
    assert report.verdict == "diverges"
    assert report.first_divergence == "decoder.layers.0.self_attention.query_rotated"


def falls(config: TransformerConfig, parameters: Any) -> Callable[..., Any]:
    raise AssertionError("nothing is to be built")


def test_given_parameters_have_to_be_those_of_the_configuration(saved: Callable[[str], Path], refused: Refusal) -> None:
    checkpoint = import_checkpoint(saved("llama"))
    with refused(PortError, "check() was given parameters and no config of theirs; name one"):
        check(falls, preset="notes-lm", parameters=checkpoint.parameters)
    with refused(ParameterError, "Parameter 'head.weight' is missing"):
        fewer = {name: value for name, value in checkpoint.parameters.items() if name != "head.weight"}
        check(falls, config=checkpoint.config, parameters=fewer)
