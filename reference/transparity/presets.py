"""Presets: the transformers that five documents build, as configurations.

A preset has the same sizes as its document, and repeats the document's mistakes. `departures` lists how a preset
differs from "Attention is all you need".
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass

from transparity.config import TransformerConfig
from transparity.errors import ConfigError, shown


@dataclass(frozen=True)
class Preset:
    """A document's transformer: its configuration, its number, and our decisions where the document is silent."""

    config: TransformerConfig
    document: str
    decided: str = ""


_NOTES_LM = TransformerConfig(
    architecture="decoder",
    target_vocab_size=65,
    max_length=256,
    embed_dim=384,
    num_heads=6,
    num_decoder_layers=6,
    feed_forward_dim=4 * 384,
    norm_position="pre",
    final_norm=True,
    qkv_bias=False,
    attention_scale="embed_dim",
    mask_value=-math.inf,
    dropout=0.2,
    dropout_at=("attention.weights", "attention.output", "feed_forward.output"),
)

_TRANSLATION = TransformerConfig(
    architecture="encoder-decoder",
    source_vocab_size=10,
    target_vocab_size=10,
    max_length=100,
    embed_dim=512,
    num_heads=8,
    num_encoder_layers=6,
    num_decoder_layers=6,
    feed_forward_dim=4 * 512,
    attention_scale="embed_dim",
    mask_value=-1e20,
    mask_order="before-scale",
    dropout_at=("embedding", "attention_norm", "feed_forward_norm"),
    bos_id=1,
    eos_id=2,
)

_NOTES_DECIDED = (
    "the sizes are from the lecture that the document adapts, because the document prints none; "
    "token 0 is the padding, because the document has none"
)

PRESETS = {
    "walkthrough": Preset(
        dataclasses.replace(
            _TRANSLATION,
            source_vocab_size=8,
            target_vocab_size=8,
            max_length=10,
            feed_forward_dim=512,
            attention_scale="head_dim",
            mask_value=-1e-20,
            dropout=0.2,
            dropout_at=("embedding", "attention_norm"),
        ),
        "000",
        "<bos> is 1 and <eos> is 2, as in the document's example batch, because the document does not generate text",
    ),
    "notes-lm": Preset(_NOTES_LM, "001, the language model", _NOTES_DECIDED),
    "notes-attention": Preset(
        dataclasses.replace(_NOTES_LM, attention_scale="head_dim"), "001, the notes' own classes", _NOTES_DECIDED
    ),
    "shared-heads": Preset(
        dataclasses.replace(
            _TRANSLATION, embed_dim=256, feed_forward_dim=4 * 256, projection="shared-per-head", qkv_bias=False
        ),
        "002",
    ),
    "pre-norm": Preset(
        TransformerConfig(
            architecture="encoder-decoder",
            source_vocab_size=10_000,
            target_vocab_size=10_000,
            norm="layer-unbiased",
            norm_position="pre",
            memory_norm=True,
            qkv_bias=False,
            output_bias=False,
            mask_value=-1e9,
            target_mask="causal-and-padding",
            positions="sinusoidal",
            embedding_scale="embed_dim",
            dropout=0.1,
            dropout_at=(
                "embedding",
                "attention.weights",
                "attention.output",
                "feed_forward.hidden",
                "feed_forward.output",
            ),
            bos_id=1,
            eos_id=2,
        ),
        "003",
        "the document prints neither its embedding class (tokens are scaled by √embed_dim, as in the paper) nor its "
        "vocabularies (10,000 each)",
    ),
    "translation": Preset(_TRANSLATION, "004"),
}


def preset(name: str) -> TransformerConfig:
    """Return the configuration of the preset `name`, with the sizes of its document."""
    if not isinstance(name, str) or name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, 1) if isinstance(name, str) else []
        meant = f"did you mean {near[0]!r}? They are" if near else "the presets are"
        raise ConfigError(f"There is no preset {shown(name)}; {meant} {', '.join(PRESETS)}.")
    return PRESETS[name].config


# Differences from Vaswani et al. (2017), "Attention is all you need": a condition, and the words for it.
_DEPARTURES: tuple[tuple[Callable[[TransformerConfig], bool], str], ...] = (
    (
        lambda c: c.mask_value > -1e3,
        "masked scores are replaced by {c.mask_value:g}, which hides nothing (paper: −∞, §3.2.3)",
    ),
    (
        lambda c: c.attention_scale == "embed_dim" and c.num_heads > 1,
        "scores are divided by √embed_dim = {root_embed}, not by √head_dim = {root_head} (§3.2.1)",
    ),
    (
        lambda c: c.projection == "shared-per-head",
        "one head_dim×head_dim projection is shared by all heads (paper: one per head, §3.2.2)",
    ),
    (
        lambda c: c.feed_forward_dim != 4 * c.embed_dim,
        "the feed-forward has {c.feed_forward_dim} hidden features, not 4 × embed_dim (§3.3)",
    ),
    (lambda c: not c.feed_forward_bias, "the feed-forward has no biases (§3.3)"),
    (lambda c: c.activation != "relu", "the activation is {c.activation} (paper: ReLU, §3.3)"),
    (lambda c: c.gated, "the feed-forward is gated (paper: not gated, §3.3)"),
    (
        lambda c: c.key_value_heads != c.num_heads,
        "{c.num_heads} heads share {c.key_value_heads} heads of keys and values (§3.2.2)",
    ),
    (
        lambda c: c.head_dim * c.num_heads != c.embed_dim,
        "heads have {c.head_dim} features, not embed_dim / num_heads (§3.2.2)",
    ),
    (lambda c: c.query_key_norm, "queries and keys are normalized, over each {c.query_key_norm_over}"),
    (lambda c: c.attention_scale == "none", "scores are not divided by √head_dim (§3.2.1)"),
    (lambda c: c.attention_multiplier != 1, "scores are also multiplied by {c.attention_multiplier:g} (§3.2.1)"),
    (lambda c: c.attention_softcap is not None, "scores are bounded by a softcap of {c.attention_softcap:g}"),
    (
        lambda c: c.sliding_window is not None and c.window_kind == "sliding",
        "positions {c.sliding_window} or more away are masked{but_for}",
    ),
    (
        lambda c: c.sliding_window is not None and c.window_kind == "chunked",
        "positions in other chunks of {c.sliding_window} are masked{but_for}",
    ),
    (
        lambda c: any(own.query_temperature for own in c.layer_kinds.values()),
        "the query temperature grows with position, from {c.query_temperature_length} positions on",
    ),
    (lambda c: c.norm_position == "pre", "norms come before the sublayers (paper: after the residual, §3.1)"),
    (
        lambda c: c.norm_position == "sandwich",
        "norms come before and after the sublayers (paper: after the residual, §3.1)",
    ),
    (lambda c: c.branches != "sequential", "attention and feed-forward are parallel branches of a layer (§3.1)"),
    (lambda c: c.residual_multiplier != 1, "sublayers are multiplied by {c.residual_multiplier:g} (§3.1)"),
    (
        lambda c: c.norm_position == "post-branch",
        "norms come after the sublayers, before the residual is added (paper: after it, §3.1)",
    ),
    (lambda c: c.norm == "layer-unbiased", "the norm divides by the standard deviation (with n − 1) + eps"),
    (lambda c: c.norm == "batch", "the norm is a batch norm (paper: layer norm, §3.1)"),
    (lambda c: c.norm == "rms", "the norm is an RMS norm (paper: layer norm, §3.1)"),
    (lambda c: not c.norm_bias and c.norm != "rms", "the norms have no biases (paper: layer norm, §3.1)"),
    (
        lambda c: not all(own.attention_norm for own in c.layer_kinds.values()),
        "not every layer has a norm before its attention",
    ),
    (lambda c: c.final_norm, "each stack ends with an additional norm"),
    (lambda c: c.memory_norm, "each decoder layer normalizes the encoder's output once more"),
    (
        lambda c: "sinusoidal" in (c.positions, c.encoder_positions) and c.sinusoidal_timescales == "inclusive",
        "the longest timescale of positions is {c.rope_theta:g} itself (paper: below it, §3.5)",
    ),
    (lambda c: c.positions == "learned", "positions are learned (paper: sinusoidal, §3.5)"),
    (
        lambda c: c.positions == "rotary",
        "queries and keys are rotated by their positions (paper: sinusoidal ones, §3.5)",
    ),
    (lambda c: c.positions == "relative", "distances have learned biases (paper: sinusoidal positions, §3.5)"),
    (lambda c: c.relative_bias, "distances have learned biases, in addition to positions (paper: none)"),
    (lambda c: c.positions == "alibi", "distances are subtracted from scores (paper: sinusoidal positions, §3.5)"),
    (lambda c: c.positions == "none", "there are no positions (paper: sinusoidal, §3.5)"),
    (lambda c: c.embedding_scale == "none", "token embeddings are not multiplied by √embed_dim (§3.4)"),
    (
        lambda c: c.embedding_multiplier != 1,
        "token embeddings are also multiplied by {c.embedding_multiplier:g} (§3.4)",
    ),
    (lambda c: c.num_token_types > 0, "tokens have {c.num_token_types} types, each with an embedding"),
    (lambda c: c.embedding_norm, "embeddings are normalized"),
    (lambda c: c.architecture != "encoder-decoder", "the model has only one stack: {c.architecture}"),
    (
        lambda c: c.has_decoder and c.has_encoder and c.target_mask == "causal",
        "the decoder masks later tokens, but not padding",
    ),
    (lambda c: c.head != "logits", "the output is {c.head!r}, not logits"),
    (
        lambda c: c.is_pooled and c.pooling != "first",
        "the pooled state is the {c.pooling} of the positions, not the first",
    ),
    (lambda c: c.head_transform, "a linear map, an activation and a norm precede the head"),
    (lambda c: c.head_multiplier != 1, "the input of the head is multiplied by {c.head_multiplier:g}"),
    (lambda c: c.final_softcap is not None, "logits are bounded by a softcap of {c.final_softcap:g}"),
)


def departures(config: TransformerConfig) -> list[str]:
    """Return one clause for each difference of `config` from "Attention is all you need"."""
    windows = {kind: own.sliding_window for kind, own in config.layer_kinds.items()}
    others = [kind for kind, window in windows.items() if window != config.sliding_window]
    words = {
        "root_embed": f"{config.embed_dim**0.5:.3g}",
        "root_head": f"{config.head_dim**0.5:.3g}",
        "but_for": f", but for layers of {' and '.join(others)}" if others else "",
    }
    return [says.format(c=config, **words) for holds, says in _DEPARTURES if holds(config)]
