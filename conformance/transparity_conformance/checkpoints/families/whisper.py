"""Whisper (Radford et al. 2022): an encoder of log-mel frames and a text decoder; the spectrogram is not computed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.families import bart
from transparity_conformance.checkpoints.naming import StoredTensor, linears
from transparity_conformance.checkpoints.tables.codecs import Family
from transparity_conformance.checkpoints.tables.rows import by_tensors, derived, rename, tokens, unwritten
from transparity_conformance.checkpoints.tables.values import Fields, as_whole
from transparity_numpy.positions.added import sinusoidal_positions

POSITIONS = "encoder.embed_positions.weight"


def _kernel(name: str) -> StoredTensor:
    """Return a convolution kernel, stored as (features_out, features_in, 3); the parameter is a matrix."""
    return StoredTensor(((name, _as_matrix),), lambda parts: parts[0].reshape(len(parts[0]), -1, 3))


def _as_matrix(kernel: np.ndarray) -> np.ndarray:
    return kernel.reshape(len(kernel), -1)


def _frames(fields: Fields) -> dict[str, Any]:
    return {"num_frames": 2 * as_whole(fields, "max_source_positions")}


def _positions(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    return {"encoder_positions": "learned" if POSITIONS in names else "sinusoidal"}


def _sinusoids(config: TransformerConfig) -> np.ndarray:
    """Return the encoder's position table: all sines, then all cosines, with timescales from 1 to 10,000."""
    return sinusoidal_positions(config.frame_positions, config.embed_dim, layout="halves", timescales="inclusive")


WHISPER = Family(
    model="WhisperForConditionalGeneration",
    example=bart.EXAMPLE
    | {"num_mel_bins": 5, "max_source_positions": 7, "max_target_positions": 11}
    | {"pad_token_id": 36, "bos_token_id": 36, "eos_token_id": 36, "decoder_start_token_id": 35},
    always={"architecture": "encoder-decoder", "norm": "layer", "norm_position": "pre", "final_norm": True}
    | {"key_bias": False, "positions": "learned", "rope_layout": "halves", "sinusoidal_timescales": "inclusive"}
    | {"head_bias": False},
    rows=(
        rename("vocab_size", "target_vocab_size"),
        rename("num_mel_bins", "mel_bins", 80),
        derived(_frames, lambda config: {"max_source_positions": config.frame_positions}, max_source_positions=1500),
        rename("max_target_positions", "max_length", 448),
        *bart.STACKS,
        by_tensors(_positions, unwritten),
        tokens(pad=50_256, bos=50_256, eos=50_256, decoder_start=50_257),
    ),
    unneeded=(
        *bart.UNNEEDED,
        *("scale_embedding", "use_weighted_layer_sum", "classifier_proj_size", "median_filter_width"),
        *("apply_spec_augment", "mask_time_prob", "mask_time_length", "mask_time_min_masks"),
        *("mask_feature_prob", "mask_feature_length", "mask_feature_min_masks"),
    ),
    names={
        "encoder.conv1.weight": _kernel("encoder.first_convolution.weight"),
        "encoder.conv1.bias": "encoder.first_convolution.bias",
        "encoder.conv2.weight": _kernel("encoder.second_convolution.weight"),
        "encoder.conv2.bias": "encoder.second_convolution.bias",
        POSITIONS: "encoder.position_embedding.weight",
        "decoder.embed_tokens.weight": "decoder.token_embedding.weight",
        "decoder.embed_positions.weight": "decoder.position_embedding.weight",
        "proj_out.weight": "head.weight",
        **bart.stack_names("encoder"),
        **bart.stack_names("decoder"),
        **linears({f"{stack}.layer_norm": f"{stack}.final_norm" for stack in ("encoder", "decoder")}),
    },
    prefixes=("model.",),
    computed={POSITIONS: _sinusoids},
)

FAMILIES = {"whisper": WHISPER}
