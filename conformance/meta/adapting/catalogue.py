"""The ports by name, each with the configuration that it has."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from meta.adapting import arrays, encoders, fused, gpt, llama
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

PORTS: dict[str, tuple[Callable[[TransformerConfig], Any], TransformerConfig]] = {
    "nanogpt": (gpt.NanoGPT, GPT2),
    "gpt2-conv1d": (gpt.GPT2, GPT2),
    "mingpt": (gpt.MinGPT, dataclasses.replace(GPT2, tied_head=False, activation="gelu")),
    "logits-bias": (gpt.LogitsBias, dataclasses.replace(GPT2, tied_head=False, head_bias=True, activation="gelu")),
    "lecture": (gpt.Lecture, preset("notes-lm").resized()),
    "bloom": (gpt.Bloom, BLOOM),
    "starcoder": (gpt.StarCoder, dataclasses.replace(GPT2, num_key_value_heads=1)),
    "meta-llama": (llama.Meta, LLAMA),
    "meta-llama-pairs": (llama.Meta, dataclasses.replace(LLAMA, rope_layout="interleaved")),
    "hub-llama": (llama.HubLlama, LLAMA),
    "qwen2-gate-up": (llama.Qwen2, example_config("qwen2")),
    "qwen3-in-turn": (llama.Qwen3, example_config("qwen3")),
    "gemma-up-gate": (llama.Gemma, example_config("gemma")),
    "phi3": (fused.Phi3, LLAMA),
    "neox": (fused.NeoX, ROTARY),
    "falcon": (fused.Falcon, FALCON),
    "to-kv": (fused.ToKV, ALIKE),
    "bert": (encoders.Bert, BERT),
    "t5": (encoders.T5, example_config("t5")),
    "annotated": (encoders.Annotated, ANNOTATED),
    "torch-transformer": (encoders.Torch, TORCH),
    "picogpt": (arrays.pico, GPT2),
    "jax-stacked": (arrays.stacked, ALIKE),
    "nnx": (arrays.flax, dataclasses.replace(GPT2)),
    "numbered": (arrays.Numbered, NUMBERED),
}
