"""The parameters and activations of the embedding of a stack."""

from __future__ import annotations

from transparity.config import TransformerConfig
from transparity.parts.part import NOTHING, Cut, Part, joined, linear, tapped


def tokens(config: TransformerConfig, stack: str, length: str) -> Part:
    """Return the table of token embeddings, or an empty part if the decoder uses the encoder's table."""
    if config.shared_embedding and stack == "decoder":
        return NOTHING
    return linear("token_embedding", config.stack_vocab_size(stack), config.embed_dim, bias=False, cut=Cut(0))


def patches(config: TransformerConfig, stack: str, length: str) -> Part:
    """Return the linear map of patches, and the class token if there is one."""
    projected = linear("patch_projection", config.embed_dim, config.patch_dim, bias=config.patch_bias)
    return joined(
        projected, Part({"class_embedding.weight": (1, config.embed_dim)}, {}, {}) if config.class_token else NOTHING
    )


def frames(config: TransformerConfig, stack: str, length: str) -> Part:
    """Return the two convolutions of width 3 that embed a spectrogram."""
    into, out = config.mel_bins or 0, config.embed_dim
    first, second = ("batch", config.num_frames, out), ("batch", length, out)
    return joined(
        _convolution("first_convolution", out, into),
        _convolution("second_convolution", out, out),
        tapped({"first_convolution": first, "second_convolution": second}),
    )


def _convolution(name: str, out: int, into: int) -> Part:
    return Part({f"{name}.weight": (out, into, 3), f"{name}.bias": (out,)}, {}, {})


INPUTS = {"tokens": tokens, "patches": patches, "frames": frames}
"""The function for each `config.input_kind(stack)`."""


def embedding(config: TransformerConfig, stack: str, length: str) -> Part:
    """Return the embedding of a stack: the tables or maps of its input, its token types and its positions."""
    own, width = config.for_stack(stack), config.embed_dim
    types, rows = config.num_token_types, own.num_positions
    return joined(
        INPUTS[config.input_kind(stack)](config, stack, length),
        linear("token_type_embedding", types, width, bias=False) if types else NOTHING,
        linear("position_embedding", rows, width, bias=False) if own.positions == "learned" else NOTHING,
        tapped({"embedding": ("batch", length, width)}),
    )
