"""ModernBERT (Warner et al. 2024): rotary positions with two bases, windows in most layers, gated, almost no biases."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from transparity.config import FULL, SLIDING, TransformerConfig
from transparity.errors import is_whole
from transparity_conformance.checkpoints.fields import (
    SCALING,
    Classifier,
    Family,
    Fields,
    activation,
    activation_name,
    by_kind,
    flag,
    kinds_given,
    layers,
    number,
    rotary,
    whole,
    written_scaling,
    wrong,
)
from transparity_conformance.checkpoints.naming import Table, linears, stacked

POOLINGS = {"first": "cls", "mean": "mean"}

LAYER = "encoder.layers.{i}"

FIRST = "first"
"""The kind of the first layer, which has no norm in front of its attention."""

NAMES: Table = {
    "embeddings.tok_embeddings.weight": "encoder.token_embedding.weight",
    **linears(
        {
            "embeddings.norm": "encoder.embedding_norm",
            "layers.{i}.attn_norm": f"{LAYER}.self_attention_norm",
            "layers.{i}.attn.Wo": f"{LAYER}.self_attention.output",
            "layers.{i}.mlp_norm": f"{LAYER}.feed_forward_norm",
            "layers.{i}.mlp.Wo": f"{LAYER}.feed_forward.down",
            "final_norm": "encoder.final_norm",
            "head.dense": "head_transform",
            "head.norm": "head_norm",
            "decoder": "head",
        }
    ),
}


def _packed(config: TransformerConfig) -> Table:
    roles = {"query": config.attention_dim, "key": config.attention_dim, "value": config.attention_dim}
    halves = {"gate": config.feed_forward_dim, "up": config.feed_forward_dim}
    return {
        f"layers.{{i}}.{theirs}.{leaf}": stacked({f"{LAYER}.{ours}.{name}.{leaf}": rows[name] for name in rows})
        for theirs, ours, rows in (("attn.Wqkv", "self_attention", roles), ("mlp.Wi", "feed_forward", halves))
        for leaf in ("weight", "bias")
    }


def _configure(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    """The head is that of masked words, if there is one, with the activation of the layers."""
    found = activation(fields, "hidden_activation")
    is_masked = {"head.dense.weight", "decoder.bias" if flag(fields, "decoder_bias") else "head.norm.weight"} <= {
        *names
    }
    is_masked = is_masked and found == activation(fields, "classifier_activation") and "classifier.weight" not in names
    head = {"head": "logits", "head_transform": True, "tied_head": flag(fields, "tie_word_embeddings")}
    return (
        {"activation": found, **(head if is_masked else {"head": "hidden"})}
        | {"qkv_bias": flag(fields, "attention_bias"), "output_bias": flag(fields, "attention_bias")}
        | {"norm_bias": flag(fields, "norm_bias"), "feed_forward_bias": flag(fields, "mlp_bias")}
        | {"pooling": _pooling(fields)}
        | {"head_transform_bias": flag(fields, "classifier_bias"), "head_bias": flag(fields, "decoder_bias")}
        | _layers(fields)
    )


def _pooling(fields: Fields) -> str:
    found = fields["classifier_pooling"]
    if found not in POOLINGS.values():
        raise wrong("classifier_pooling", found, f"one of {', '.join(POOLINGS.values())}")
    return next(ours for ours, theirs in POOLINGS.items() if theirs == found)


def _layers(fields: Fields) -> dict[str, Any]:
    """Windows and rotary positions by the kind of a layer, and the first layer without its norm."""
    given = fields["rope_parameters"] or {}
    if not isinstance(given, dict) or not set(given) <= {SLIDING, FULL}:
        raise wrong("rope_parameters", given, f"an object for each of {SLIDING} and {FULL}")
    if not is_whole(fields["local_attention"], 0):
        raise wrong("local_attention", fields["local_attention"], "a whole number")
    facts: dict[str, dict[str, Any]] = {}
    rotated: dict[str, Any] = {}
    for kind, theta, window in (
        (SLIDING, "local_rope_theta", int(fields["local_attention"]) // 2 + 1),
        (FULL, "global_rope_theta", None),
    ):
        own = {**fields, "rope_theta": number(fields, theta), "rope_parameters": given.get(kind)}
        rotated = SCALING | rotary(own)
        facts[kind] = {name: rotated[name] for name in ("rope_theta", *SCALING)}
        facts[kind] |= {"sliding_window": window, "attention_norm": True}
    kinds = _kinds(fields)
    if kinds:
        facts |= {FIRST: {**facts[kinds[0]], "attention_norm": False}}
    return rotated | by_kind([FIRST, *kinds[1:]] if kinds else [], facts)


def _kinds(fields: Fields) -> list[str]:
    """The kinds of all layers: `layer_types`, or full attention in every layer `global_attn_every_n_layers`."""
    count = layers(fields)
    if fields["layer_types"] is not None:
        return kinds_given(fields["layer_types"], count)
    every = whole(fields, "global_attn_every_n_layers")
    return [SLIDING if i % every else FULL for i in range(count)]


def _write(config: TransformerConfig) -> dict[str, Any]:
    own = [config.for_layer("encoder", i) for i in range(config.num_encoder_layers)]
    kinds = [FULL if each.sliding_window is None else SLIDING for each in own]
    rotated = {
        kind: next((each for each, its in zip(own, kinds, strict=True) if its == kind), config)
        for kind in (SLIDING, FULL)
    }
    window = rotated[SLIDING].sliding_window
    return {
        "hidden_activation": activation_name(config),
        "classifier_activation": activation_name(config),
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.feed_forward_bias,
        "norm_bias": config.norm_bias,
        "classifier_bias": config.head_transform_bias,
        "classifier_pooling": POOLINGS.get(config.pooling),
        "decoder_bias": config.head_bias,
        "tie_word_embeddings": config.tied_head or config.head in ("hidden", "pooled"),
        "layer_types": kinds,
        "local_attention": 2 * (window - 1) if window else 128,
        "rope_parameters": {
            kind: {"rope_theta": each.rope_theta} | written_scaling(each) for kind, each in rotated.items()
        },
        "architectures": ["ModernBertForMaskedLM" if config.head == "logits" else "ModernBertModel"],
    }


MODERNBERT = Family(
    always={
        "architecture": "encoder",
        "norm": "layer",
        "norm_position": "pre",
        "final_norm": True,
        "gated": True,
        "embedding_norm": True,
    },
    fields={
        "vocab_size": "source_vocab_size",
        "max_position_embeddings": "max_length",
        "hidden_size": "embed_dim",
        "num_hidden_layers": "num_encoder_layers",
        "num_attention_heads": "num_heads",
        "intermediate_size": "feed_forward_dim",
        "norm_eps": "norm_eps",
    },
    configure=_configure,
    write=_write,
    model="ModernBertModel",
    reads=(
        *("hidden_activation", "classifier_activation", "attention_bias", "mlp_bias", "norm_bias", "classifier_bias"),
        *("decoder_bias", "tie_word_embeddings", "local_attention", "layer_types", "global_attn_every_n_layers"),
        *("classifier_pooling", "rope_parameters", "global_rope_theta", "local_rope_theta"),
    ),
    defaults={
        "max_position_embeddings": 8192,
        "norm_eps": 1e-5,
        "hidden_activation": "gelu",
        "classifier_activation": "gelu",
        "attention_bias": False,
        "mlp_bias": False,
        "norm_bias": False,
        "classifier_bias": False,
        "classifier_pooling": "cls",
        "decoder_bias": True,
        "tie_word_embeddings": True,
        "local_attention": 128,
        "layer_types": None,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160_000.0,
        "local_rope_theta": 10_000.0,
        "pad_token_id": 50_283,
        "bos_token_id": 50_281,
        "eos_token_id": 50_282,
    },
    only={"rope_scaling": (), "partial_rotary_factor": (1,)},
    unneeded=(
        *("attention_dropout", "embedding_dropout", "mlp_dropout", "cls_token_id"),
        *("initializer_cutoff_factor", "deterministic_flash_attn", "sparse_prediction", "sparse_pred_ignore_index"),
        *("reference_compile", "repad_logits_with_grad", "layer_norm_eps", "position_embedding_type"),
    ),
    names=NAMES,
    packed=_packed,
    prefixes=("model.",),
    classifier=Classifier(
        names=linears({"classifier": "head"}),
        fields={"pooler": "none", "head_transform": True, "head_bias": True},
    ),
)

FAMILIES = {"modernbert": MODERNBERT}
