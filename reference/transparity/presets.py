"""Presets: the transformers that five documents build, as configurations.

A preset has the same sizes as its document, and repeats the document's mistakes. `departures` lists how a preset
differs from "Attention is all you need".
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any

from transparity.config import TransformerConfig
from transparity.errors import ConfigError, shown


@dataclass(frozen=True)
class Preset:
    """A document's transformer: the configuration, the document's number, and our decisions on the document's gaps."""

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
    "the document prints no sizes and has no padding: the sizes are from the lecture that the document adapts, "
    "and token 0 is padding"
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
        "the document does not generate text; in its example batch, <bos> is 1 and <eos> is 2",
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
        "the document omits its embedding class and vocabulary sizes; the preset scales tokens by √embed_dim, as in "
        "the paper, and has vocabularies of 10,000 tokens",
    ),
    "translation": Preset(_TRANSLATION, "004"),
}


def preset(name: str) -> TransformerConfig:
    """Return the configuration of the preset `name`, with the sizes of its document."""
    if not isinstance(name, str) or name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, 1) if isinstance(name, str) else []
        meant = f"did you mean {near[0]!r}? The presets are" if near else "the presets are"
        raise ConfigError(f"There is no preset {shown(name)}; {meant} {', '.join(PRESETS)}.")
    return PRESETS[name].config


@functools.cache
def _rows() -> list[dict[str, Any]]:
    text = resources.files("transparity").joinpath("departures.toml").read_text("utf-8")
    return list(tomllib.loads(text)["departures"])


def departures(config: TransformerConfig) -> list[str]:
    """Return one clause for each difference of `config` from "Attention is all you need"."""
    kinds = config.layer_kinds
    others = [kind for kind, own in kinds.items() if own.sliding_window != config.sliding_window]
    derived = {
        "keeps_masked": config.mask_value > -1e3,
        "scale": config.attention_scale if config.num_heads > 1 or config.attention_scale == "none" else "head_dim",
        "feed_forward_ratio": config.feed_forward_dim / config.embed_dim,
        "heads_ratio": config.attention_dim / config.embed_dim,
        "key_value_ratio": config.key_value_heads / config.num_heads,
        "window": config.window_kind if config.sliding_window else "none",
        "tempered": any(own.query_temperature for own in kinds.values()),
        "attention_norms": all(own.attention_norm for own in kinds.values()),
        "timescales": "sinusoidal" in (config.positions, config.encoder_positions) and config.sinusoidal_timescales,
        "lacks_norm_bias": not config.norm_bias and config.norm != "rms",
        "pools": config.is_pooled and config.pooling,
        "sees_padding": config.architecture == "encoder-decoder" and config.target_mask == "causal",
        "root_embed": f"{config.embed_dim**0.5:.3g}",
        "root_head": f"{config.head_dim**0.5:.3g}",
        "but_for": f", except in layers of kind {' and '.join(others)}" if others else "",
    }

    def departs(row: dict[str, Any]) -> bool:
        name = row["of"]
        value = derived[name] if name in derived else getattr(config, name)
        return value == row["is"] if "is" in row else value not in row.get("paper", (None, False, 0))

    return [row["says"].format(c=config, **derived) for row in _rows() if departs(row)]
