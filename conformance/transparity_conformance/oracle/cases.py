"""Small configurations of the families that people port, which together have every part that no preset has.

Each has the parts of a family (Llama's rotary positions and grouped heads, T5's relative bias and tied head …), not its
sizes: these are different from each other, so that no two axes can be taken for one another.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from transparity.config import TransformerConfig

_DECODER = TransformerConfig(
    architecture="decoder",
    target_vocab_size=31,
    max_length=11,
    embed_dim=24,
    num_heads=3,
    num_decoder_layers=2,
    feed_forward_dim=40,
    norm_position="pre",
    final_norm=True,
)

_LLAMA = dataclasses.replace(
    _DECODER,
    num_heads=4,
    num_key_value_heads=2,
    attention_head_dim=8,
    feed_forward_bias=False,
    gated=True,
    activation="silu",
    norm="rms",
    qkv_bias=False,
    output_bias=False,
    positions="rotary",
    rope_layout="halves",
    head_bias=False,
)

_TRANSLATION = TransformerConfig(
    architecture="encoder-decoder",
    source_vocab_size=37,
    target_vocab_size=37,
    shared_embedding=True,
    tied_head=True,
    max_length=11,
    embed_dim=24,
    num_heads=3,
    num_encoder_layers=2,
    num_decoder_layers=2,
    feed_forward_dim=40,
    bos_id=1,
    eos_id=2,
)

_BERT = TransformerConfig(
    architecture="encoder",
    source_vocab_size=37,
    max_length=11,
    embed_dim=24,
    num_heads=3,
    num_encoder_layers=2,
    feed_forward_dim=40,
    activation="gelu",
    embedding_norm=True,
    head="pooled",
)

_MASKED = dataclasses.replace(_BERT, head="logits", head_transform=True, tied_head=True)

IMAGES = dataclasses.replace(
    _BERT,
    source_vocab_size=None,
    pad_id=None,
    max_length=10,
    patch_size=2,
    class_token=True,
    norm_position="pre",
    final_norm=True,
    embedding_norm=False,
)
"""An encoder of images (ViT)."""

AUDIO = TransformerConfig(
    architecture="encoder-decoder",
    target_vocab_size=31,
    max_length=11,
    mel_bins=5,
    num_frames=14,
    embed_dim=24,
    num_heads=3,
    num_encoder_layers=2,
    num_decoder_layers=2,
    feed_forward_dim=29,
    norm_position="pre",
    final_norm=True,
    key_bias=False,
    encoder_positions="sinusoidal",
    sinusoidal_timescales="inclusive",
    rope_layout="halves",
    activation="gelu",
    tied_head=True,
    head_bias=False,
    bos_id=1,
    eos_id=2,
)
"""An encoder of audio and a decoder of text (Whisper)."""

_CLIP: dict[str, Any] = {
    "norm_position": "pre",
    "final_norm": True,
    "activation": "gelu-quick",
    "head_bias": False,
    "pooler": "none",
    "num_classes": 7,
}

CLIP_TEXT = dataclasses.replace(_DECODER, **_CLIP, pad_id=None, eos_id=2, head="classes", pooling="eos")
"""A decoder of texts, of which the first end token is pooled (CLIP)."""

CLIP_IMAGES = dataclasses.replace(IMAGES, **_CLIP, patch_bias=False, embedding_norm=True, head="classes")
"""An encoder of images, whose class token is pooled (CLIP)."""

CASES: dict[str, TransformerConfig] = {
    "llama": dataclasses.replace(
        _LLAMA, rope_theta=500.0, rotary_scaling="llama3", rotary_factor=8.0, rotary_original_length=64
    ),
    "yarn": dataclasses.replace(
        _LLAMA,
        rope_theta=100.0,
        rotary_scaling="yarn",
        rotary_factor=4.0,
        rotary_low_frequency=1.5,
        rotary_high_frequency=8.0,
        rotary_original_length=64,
        rotary_truncate=False,
        rotary_attention_factor=1.2,
    ),
    "phi3": dataclasses.replace(
        _LLAMA,
        rope_theta=500.0,
        rotary_dim=6,
        rotary_scaling="longrope",
        rotary_original_length=6,
        rotary_attention_factor=1.3,
        rotary_short_factors=(1.0, 1.5, 2.5),
        rotary_long_factors=(1.2, 3.0, 7.0),
    ),
    "qwen": dataclasses.replace(
        _LLAMA,
        query_key_norm=True,
        sliding_window=4,
        rotary_scaling="linear",
        rotary_factor=2.0,
        layer_types=("rotary", "no_positions"),
        layer_overrides={"no_positions": {"positions": "none"}},
        embedding_multiplier=3.0,
        residual_multiplier=0.4,
        tied_head=True,
        head_multiplier=0.5,
    ),
    "gemma": dataclasses.replace(
        _LLAMA,
        num_key_value_heads=1,
        attention_head_dim=10,
        activation="gelu-tanh",
        norm_gain="one-plus-weight",
        norm_position="both",
        attention_multiplier=0.8,
        attention_softcap=4.0,
        sliding_window=4,
        layer_types=("sliding_attention", "full_attention"),
        layer_overrides={
            "full_attention": {
                "sliding_window": None,
                "rope_theta": 500.0,
                "rotary_scaling": "linear",
                "rotary_factor": 2.0,
            }
        },
        embedding_scale="embed_dim",
        tied_head=True,
        final_softcap=3.0,
    ),
    "llama4": dataclasses.replace(  # positions in chunks alone, temperature elsewhere alone
        _LLAMA,
        sliding_window=4,
        window_kind="chunks",
        query_temperature=0.7,
        query_temperature_length=3,
        query_temperature_first=1,
        layer_types=("chunked_attention", "full_attention"),
        layer_overrides={
            "chunked_attention": {"query_temperature": 0.0},
            "full_attention": {"sliding_window": None, "positions": "none"},
        },
    ),
    "mixtral": dataclasses.replace(_LLAMA, num_experts=5, sliding_window=4),
    "qwen-moe": dataclasses.replace(
        _LLAMA,
        num_decoder_layers=3,
        query_key_norm=True,
        num_experts=5,
        experts_per_token=3,
        router_normalized=False,
        shared_expert_dim=29,
        shared_expert_gate=True,
        layer_types=("dense", "experts", "experts"),
        layer_overrides={"dense": {"num_experts": 0, "feed_forward_dim": 43}},
    ),
    "qwen3-next": dataclasses.replace(  # recurrences, and attention with a gate
        _LLAMA,
        attention_head_dim=10,
        rotary_dim=4,
        query_key_norm=True,
        attention_gate=True,
        norm_gain="one-plus-weight",
        padding="attention-mask",
        recurrent_heads=4,
        recurrent_key_heads=2,
        recurrent_key_dim=5,
        recurrent_value_dim=7,
        convolution_width=3,
        layer_types=("linear_attention", "full_attention"),
        layer_overrides={"linear_attention": {"mixer": "gated-delta"}},
    ),
    "mamba2": dataclasses.replace(  # recurrences alone
        _LLAMA,
        num_heads=1,
        num_key_value_heads=None,
        attention_head_dim=None,
        positions="none",
        feed_forward_dim=0,
        padding="attention-mask",
        mixer="state-space",
        recurrent_heads=4,
        recurrent_key_heads=2,
        recurrent_key_dim=5,
        recurrent_value_dim=12,
        convolution_width=3,
        convolution_bias=True,
        recurrent_bias=True,
        time_step_least=0.4,
        time_step_most=0.9,
    ),
    "deepseek": dataclasses.replace(
        _LLAMA,
        num_key_value_heads=None,
        attention_head_dim=10,
        rotary_dim=4,
        query_rank=7,
        key_value_rank=9,
        value_head_dim=6,
        rope_layout="interleaved",
        rotary_scaling="yarn",
        rotary_factor=4.0,
        rotary_high_frequency=8.0,
        rotary_original_length=64,
        attention_multiplier=1.3,
        num_experts=6,
        router_scores="sigmoid",
        router_correction=True,
        router_groups=3,
        router_groups_chosen=2,
        router_scale=2.5,
        shared_expert_dim=29,
    ),
    "gpt-oss": dataclasses.replace(
        _LLAMA,
        num_decoder_layers=3,
        feed_forward_bias=True,
        activation="gelu-quick",
        gate_limit=0.9,
        up_offset=1.0,
        num_experts=5,
        router_bias=True,
        qkv_bias=True,
        output_bias=True,
        attention_sinks=True,
        sliding_window=4,
        layer_types=("sliding_attention", "full_attention"),
        layer_overrides={"full_attention": {"sliding_window": None}},
        rope_theta=100.0,
        rotary_scaling="yarn",
        rotary_factor=4.0,
        rotary_high_frequency=8.0,
        rotary_original_length=64,
        rotary_truncate=False,
        rotary_attention_factor=1.2,
    ),
    "clamped-gate": dataclasses.replace(_LLAMA, activation="gelu-quick", gate_limit=0.9, up_offset=1.0),
    "olmo2": dataclasses.replace(_LLAMA, norm_position="branch", query_key_norm=True, query_key_norm_over="projection"),
    "gpt-j": dataclasses.replace(
        _DECODER,
        activation="gelu-tanh",
        qkv_bias=False,
        output_bias=False,
        branches="parallel-one-norm",
        positions="rotary",
        rotary_dim=4,
    ),
    "gpt-neox": dataclasses.replace(
        _DECODER, branches="parallel", activation="gelu", positions="rotary", rope_layout="halves", rotary_dim=4
    ),
    "bloom": dataclasses.replace(
        _DECODER, num_heads=6, activation="gelu-tanh", positions="alibi", embedding_norm=True, tied_head=True
    ),
    "opt": dataclasses.replace(_DECODER, padding="attention-mask", position_offset=2, position_count="visible"),
    "t5": dataclasses.replace(
        _TRANSLATION,
        activation="gelu-tanh",
        gated=True,
        feed_forward_bias=False,
        norm="rms",
        norm_position="pre",
        final_norm=True,
        qkv_bias=False,
        output_bias=False,
        attention_scale="none",
        positions="relative",
        relative_buckets=8,
        relative_max_distance=9,
        head_bias=False,
        head_scale="embed_dim",
    ),
    "bart": dataclasses.replace(_TRANSLATION, activation="gelu", position_offset=2, embedding_norm=True),
    "marian": dataclasses.replace(
        _TRANSLATION,
        activation="silu",
        padding="attention-mask",
        positions="sinusoidal",
        rope_layout="halves",
        embedding_scale="embed_dim",
    ),
    "masked-bert": _MASKED,
    "mpnet": dataclasses.replace(
        _MASKED,
        pad_id=1,
        position_offset=2,
        position_count="visible",
        relative_bias=True,
        relative_buckets=8,
        relative_max_distance=9,
    ),
    "classifier": dataclasses.replace(
        _BERT, padding="attention-mask", head="classes", pooling="mean", pooler="relu", num_classes=5
    ),
    "last-token": dataclasses.replace(
        _LLAMA, norm="layer", norm_bias=False, head="classes", pooling="last", pooler="none", num_classes=5
    ),
    "bert": dataclasses.replace(_BERT, padding="attention-mask", num_token_types=2),
    "roberta": dataclasses.replace(
        _BERT, pad_id=1, position_offset=2, position_count="visible", activation="gelu-quick", head="hidden"
    ),
    "modern-bert": dataclasses.replace(
        _BERT,
        feed_forward_bias=False,
        gated=True,
        norm_bias=False,
        norm_position="pre",
        final_norm=True,
        qkv_bias=False,
        output_bias=False,
        num_encoder_layers=3,
        sliding_window=4,
        layer_types=("first", "sliding_attention", "full_attention"),
        layer_overrides={
            "first": {"sliding_window": None, "rope_theta": 500.0, "attention_norm": False},
            "full_attention": {"sliding_window": None, "rope_theta": 500.0},
        },
        positions="rotary",
        rope_layout="halves",
        head="logits",
        head_transform=True,
        head_transform_bias=False,
        tied_head=True,
    ),
}

MODELS = {**CASES, "vit": IMAGES, "whisper": AUDIO, "clip-text": CLIP_TEXT, "clip-vision": CLIP_IMAGES}
"""The same, and those whose inputs are no tokens."""
