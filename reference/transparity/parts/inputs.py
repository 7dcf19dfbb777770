"""The form of each input, and the parameters and activations of the input's embedding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from transparity.errors import ConfigError
from transparity.parts.part import NOTHING, Cut, Part, joined, linear, tapped
from transparity.parts.variants import Input, check_needed

if TYPE_CHECKING:
    from transparity.config import TransformerConfig


def tokens(config: TransformerConfig, stack: str, length: str) -> Part:
    """Describe the table of token embeddings; if the decoder uses the encoder's table, return an empty part."""
    if config.shared_embedding and stack == "decoder":
        return NOTHING
    return linear("token_embedding", config.stack_vocab_size(stack), config.embed_dim, bias=False, cut=Cut(0))


def patches(config: TransformerConfig, stack: str, length: str) -> Part:
    """Describe the linear map of patches, and the class token if there is one."""
    projected = linear("patch_projection", config.embed_dim, config.patch_dim, bias=config.patch_bias)
    return joined(
        projected, Part({"class_embedding.weight": (1, config.embed_dim)}, {}, {}) if config.class_token else NOTHING
    )


def frames(config: TransformerConfig, stack: str, length: str) -> Part:
    """Describe the two convolutions of width 3 that embed a spectrogram."""
    into, out = config.mel_bins or 0, config.embed_dim
    first, second = ("batch", config.num_frames, out), ("batch", length, out)
    return joined(
        _convolution("first_convolution", out, into),
        _convolution("second_convolution", out, out),
        tapped({"first_convolution": first, "second_convolution": second}),
    )


def _convolution(name: str, out: int, into: int) -> Part:
    return Part({f"{name}.weight": (out, into, 3), f"{name}.bias": (out,)}, {}, {})


def _check_pixels(config: TransformerConfig) -> None:
    patches = config.max_length - config.class_token
    if math.isqrt(patches) ** 2 != patches or not patches:
        raise ConfigError(
            f"max_length is {config.max_length}, but a square image has a square number of patches"
            f"{', and the class_token adds one position' * config.class_token}; {4 + config.class_token} would fit."
        )
    needed: dict[str, Any] = {"architecture": "encoder", "source_vocab_size": None, "pad_id": None, "padding": "token"}
    needed |= {"num_token_types": 0, "position_count": "all", "embedding_scale": "none", "embedding_multiplier": 1.0}
    check_needed(config, needed, "with patch_size, the input is an image, which has no tokens and no padding")
    if config.head == "logits":
        raise ConfigError("head is 'logits', but an image has no vocabulary; expected 'hidden', 'pooled' or 'classes'.")


def _check_frames(config: TransformerConfig) -> None:
    if config.num_frames % 2:
        raise ConfigError(
            f"num_frames is {config.num_frames}, but the second convolution turns two frames into one position; "
            f"expected an even number, such as {config.num_frames + 1}."
        )
    needed: dict[str, Any] = {"architecture": "encoder-decoder", "source_vocab_size": None, "padding": "token"}
    needed |= {"shared_embedding": False, "position_count": "all", "embedding_scale": "none"}
    needed |= {"embedding_multiplier": 1.0, "patch_size": None}
    why = "with mel_bins, the source of an encoder-decoder is audio, which has no tokens and no padding"
    check_needed(config, needed, why)


TOKENS = Input(tokens, lambda config, stack: True)

PATCHES = Input(
    patches,
    lambda config, stack: config.patch_size is not None,
    name="pixels",
    axes=lambda config: (config.image_channels, config.image_size, config.image_size),
    expected="(batch, channels, height, width), {} channels of {} × {} pixels",
    positions=lambda config: config.max_length,
    check=_check_pixels,
    # 3 × 3 patches
    probe_sizes=lambda config: {"source_vocab_size": None, "patch_size": 2, "max_length": 9 + config.class_token},
)

FRAMES = Input(
    frames,
    lambda config, stack: config.mel_bins is not None and stack == config.stacks[0],
    axes=lambda config: (config.mel_bins or 0, config.num_frames),
    expected="(batch, mel_bins, frames), {} bins of {} frames",
    positions=lambda config: config.frame_positions,
    check=_check_frames,
    # the length, 7 positions, differs from the target's
    probe_sizes=lambda config: {"source_vocab_size": None, "mel_bins": 5, "num_frames": 14},
)
