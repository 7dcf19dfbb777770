"""ModernBERT (Warner et al., 2024): two rotary bases, windows in most layers, gated feed-forwards, and few biases."""

from collections.abc import Collection
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.naming import Table, fused
from transparity_conformance.checkpoints.tables import rows as row
from transparity_conformance.checkpoints.tables.kinds import (
    FULL,
    SLIDING,
    by_kind,
    kinds_every,
    layer_kinds,
    own_layers,
)
from transparity_conformance.checkpoints.tables.rotary import rotary_by_kind, written_scaling
from transparity_conformance.checkpoints.tables.rows import Fields

LAYER = "encoder.layers.{i}"

FIRST = "first"
"""The kind of layer 0, which has no norm before attention."""


def packed_modernbert(config: TransformerConfig) -> Table:
    roles = {"query": config.attention_dim, "key": config.attention_dim, "value": config.attention_dim}
    halves = {"gate": config.feed_forward_dim, "up": config.feed_forward_dim}
    attention = fused("layers.{i}.attn.Wqkv", roles, f"{LAYER}.self_attention")
    return attention | fused("layers.{i}.mlp.Wi", halves, f"{LAYER}.feed_forward")


def read_head_modernbert(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    """Choose `logits` if the file has a complete masked-language head with the layers' activation, and no classifier;
    otherwise choose `hidden`."""
    asked = {"head.dense.weight", "decoder.bias" if row.as_flag(fields, "decoder_bias") else "head.norm.weight"}
    is_like_layers = row.as_activation(fields, "hidden_activation") == row.as_activation(
        fields, "classifier_activation"
    )
    if not asked <= {*names} or not is_like_layers or "classifier.weight" in names:
        return {"head": "hidden"}
    return {"head": "logits", "head_transform": True, "tied_head": row.as_flag(fields, "tie_word_embeddings")}


def write_head_modernbert(config: TransformerConfig) -> dict[str, Any]:
    return {
        "classifier_activation": row.activation_name(config),
        "tie_word_embeddings": config.tied_head or config.head in ("hidden", "pooled"),
        "architectures": ["ModernBertForMaskedLM" if config.head == "logits" else "ModernBertModel"],
    }


def read_layers_modernbert(fields: Fields) -> dict[str, Any]:
    window = row.as_whole(fields, "local_attention", 0, "a whole number") // 2 + 1
    thetas = {SLIDING: "local_rope_theta", FULL: "global_rope_theta"}
    own = {kind: {"rope_theta": row.as_number(fields, theta)} for kind, theta in thetas.items()}
    facts = {kind: found | {"attention_norm": True} for kind, found in rotary_by_kind(fields, own).items()}
    facts[SLIDING] |= {"sliding_window": window}
    facts[FULL] |= {"sliding_window": None}
    kinds = kinds_every(fields, "global_attn_every_n_layers", first=True)
    if kinds:
        facts |= {FIRST: {**facts[kinds[0]], "attention_norm": False}}
    found = {"rope_layout": "halves", "positions": "rotary"} | facts[FULL]
    return found | by_kind([FIRST, *kinds[1:]] if kinds else [], facts)


def write_layers_modernbert(config: TransformerConfig) -> dict[str, Any]:
    kinds = layer_kinds(config)
    own = dict(zip(reversed(kinds), reversed(own_layers(config)), strict=True))  # the first layer of each kind
    rotated = {kind: own.get(kind, config) for kind in (SLIDING, FULL)}
    window = rotated[SLIDING].sliding_window
    return {
        "layer_types": kinds,
        "local_attention": 2 * (window - 1) if window else 128,
        "rope_parameters": {
            kind: {"rope_theta": each.rope_theta} | written_scaling(each) for kind, each in rotated.items()
        },
    }
