"""The ports by name, each with the configuration that it has."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from meta.adapting import arrays, decoders, encoders
from transparity.config import TransformerConfig
from transparity.presets import preset
from transparity_conformance.checkpoints.examples import example_config

GPT2 = example_config("gpt2")
LLAMA = example_config("llama")
ALIKE = dataclasses.replace(LLAMA, num_key_value_heads=None)
"""A Llama whose heads do not share keys and values."""

BERT = example_config("bert")
ROTARY = TransformerConfig(
    architecture="decoder",
    target_vocab_size=37,
    max_length=29,
    embed_dim=24,
    num_heads=3,
    num_decoder_layers=3,
    feed_forward_dim=40,
    norm_position="pre",
    final_norm=True,
    positions="rotary",
    rope_layout="halves",
    activation="gelu",
    head_bias=False,
)
FALCON = dataclasses.replace(
    ROTARY,
    num_heads=6,
    num_key_value_heads=2,
    rope_layout="interleaved",
    qkv_bias=False,
    output_bias=False,
    feed_forward_bias=False,
)
BLOOM = dataclasses.replace(
    ROTARY, num_heads=4, positions="alibi", embedding_norm=True, activation="gelu-tanh", tied_head=True
)
NUMBERED = dataclasses.replace(
    ROTARY, positions="learned", qkv_bias=False, output_bias=False, activation="relu", num_decoder_layers=2
)
ANNOTATED = TransformerConfig(
    architecture="encoder-decoder",
    source_vocab_size=37,
    target_vocab_size=31,
    max_length=23,
    embed_dim=24,
    num_heads=3,
    num_encoder_layers=2,
    num_decoder_layers=3,
    feed_forward_dim=40,
    norm="layer-unbiased",
    norm_eps=1e-6,
    norm_position="pre",
    final_norm=True,
    mask_value=-1e9,
    positions="sinusoidal",
    embedding_scale="embed_dim",
    pad_id=0,
)
TORCH = dataclasses.replace(
    ANNOTATED, norm="layer", norm_eps=1e-5, norm_position="post", positions="learned", embedding_scale="none"
)

CONFIGS = {
    "nanogpt": GPT2,
    "gpt2-conv1d": GPT2,
    "mingpt": dataclasses.replace(GPT2, tied_head=False, activation="gelu"),
    "logits-bias": dataclasses.replace(GPT2, tied_head=False, head_bias=True, activation="gelu"),
    "lecture": preset("notes-lm").resized(),
    "bloom": BLOOM,
    "starcoder": dataclasses.replace(GPT2, num_key_value_heads=1),
    "meta-llama": LLAMA,
    "meta-llama-pairs": dataclasses.replace(LLAMA, rope_layout="interleaved"),
    "hub-llama": LLAMA,
    "qwen2-gate-up": example_config("qwen2"),
    "qwen3-in-turn": example_config("qwen3"),
    "gemma-up-gate": example_config("gemma"),
    "phi3": LLAMA,
    "neox": ROTARY,
    "falcon": FALCON,
    "to-kv": ALIKE,
    "bert": BERT,
    "t5": example_config("t5"),
    "annotated": ANNOTATED,
    "torch-transformer": TORCH,
    "picogpt": GPT2,
    "jax-stacked": ALIKE,
    "nnx": GPT2,
    "numbered": NUMBERED,
}
FILES = {name: module for module in (decoders, encoders, arrays) for name in module.PORTS}
"""The module that each port is in."""

PORTS: dict[str, tuple[Callable[[TransformerConfig], Any], TransformerConfig]] = {
    name: (FILES[name].PORTS[name], config) for name, config in CONFIGS.items()
}
