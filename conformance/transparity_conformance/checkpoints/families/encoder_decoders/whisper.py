"""Whisper (Radford et al. 2022): a decoder of text beside an encoder of log-mel frames. The spectrogram is outside."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.families.encoder_decoders import bart
from transparity_conformance.checkpoints.fields import Family, Fields, activation, activation_name, same, whole
from transparity_conformance.checkpoints.naming import Stored, Table, linears
from transparity_numpy.embeddings import sinusoidal_positions

POSITIONS = "encoder.embed_positions.weight"


def _kernel(name: str) -> Stored:
    """A convolution's kernel (features_out, features_in, 3), here a matrix."""
    return Stored(((name, _as_matrix),), lambda parts: parts[0].reshape(len(parts[0]), -1, 3))


def _as_matrix(kernel: np.ndarray) -> np.ndarray:
    return kernel.reshape(len(kernel), -1)


NAMES: Table = {
    "encoder.conv1.weight": _kernel("encoder.first_convolution.weight"),
    "encoder.conv1.bias": "encoder.first_convolution.bias",
    "encoder.conv2.weight": _kernel("encoder.second_convolution.weight"),
    "encoder.conv2.bias": "encoder.second_convolution.bias",
    POSITIONS: "encoder.position_embedding.weight",
    "decoder.embed_tokens.weight": "decoder.token_embedding.weight",
    "decoder.embed_positions.weight": "decoder.position_embedding.weight",
    "proj_out.weight": "head.weight",
    **linears(bart.stack_names("encoder") | bart.stack_names("decoder")),
    **linears({f"{stack}.layer_norm": f"{stack}.final_norm" for stack in ("encoder", "decoder")}),
}


def _configure(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    return {
        "num_frames": 2 * whole(fields, "max_source_positions"),
        "num_heads": same(fields, "encoder_attention_heads", "decoder_attention_heads"),
        "feed_forward_dim": same(fields, "encoder_ffn_dim", "decoder_ffn_dim"),
        "activation": activation(fields, "activation_function"),
        "encoder_positions": "learned" if POSITIONS in names else "sinusoidal",
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    both = {"attention_heads": config.num_heads, "ffn_dim": config.feed_forward_dim}
    return {f"{stack}_{name}": value for name, value in both.items() for stack in ("encoder", "decoder")} | {
        "activation_function": activation_name(config),
        "max_source_positions": config.frame_positions,
    }


def _sinusoids(config: TransformerConfig) -> np.ndarray:
    """The encoder's positions: all sines, then all cosines, of timescales from 1 to 10,000."""
    return sinusoidal_positions(config.frame_positions, config.embed_dim, layout="halves", timescales="inclusive")


WHISPER = Family(
    always={
        "architecture": "encoder-decoder",
        "norm": "layer",
        "norm_position": "pre",
        "final_norm": True,
        "key_bias": False,
        "positions": "learned",
        "rope_layout": "halves",
        "sinusoidal_timescales": "inclusive",
        "head_bias": False,
    },
    fields={
        "vocab_size": "target_vocab_size",
        "num_mel_bins": "mel_bins",
        "max_target_positions": "max_length",
        "d_model": "embed_dim",
        "encoder_layers": "num_encoder_layers",
        "decoder_layers": "num_decoder_layers",
        "tie_word_embeddings": "tied_head",
    },
    configure=_configure,
    write=_write,
    model="WhisperForConditionalGeneration",
    reads=(
        *("encoder_attention_heads", "decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim"),
        *("activation_function", "max_source_positions"),
    ),
    defaults={
        "num_mel_bins": 80,
        "max_source_positions": 1500,
        "max_target_positions": 448,
        "activation_function": "gelu",
        "tie_word_embeddings": True,
        "pad_token_id": 50_256,
        "bos_token_id": 50_256,
        "eos_token_id": 50_256,
        "decoder_start_token_id": 50_257,
    },
    unneeded=(
        *bart.UNNEEDED,
        *("scale_embedding", "use_weighted_layer_sum", "classifier_proj_size", "median_filter_width"),
        *("apply_spec_augment", "mask_time_prob", "mask_time_length", "mask_time_min_masks"),
        *("mask_feature_prob", "mask_feature_length", "mask_feature_min_masks"),
    ),
    names=NAMES,
    prefixes=("model.",),
    computed={POSITIONS: _sinusoids},
)

FAMILIES = {"whisper": WHISPER}
