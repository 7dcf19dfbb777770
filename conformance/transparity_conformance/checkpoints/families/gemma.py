"""Gemma (Mesnard et al. 2024), Gemma 2 (Rivière et al. 2024) and the text model of Gemma 3 (Kamath et al. 2025)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from typing import Any

from transparity.config import FULL, SLIDING, TransformerConfig
from transparity_conformance.checkpoints.families import llama
from transparity_conformance.checkpoints.fields import (
    ROTARY,
    SCALING,
    Fields,
    activation,
    activation_name,
    by_kind,
    head_width,
    kinds_by_pattern,
    layer_kinds,
    layers,
    number,
    rotary,
    rotary_fields,
    windows,
    wrong,
)
from transparity_conformance.checkpoints.naming import Table

NAMES_OF_2: Table = {
    **llama.NAMES,
    "layers.{i}.post_attention_layernorm.weight": f"{llama.LAYER}.self_attention_post_norm.weight",
    "layers.{i}.pre_feedforward_layernorm.weight": f"{llama.LAYER}.feed_forward_norm.weight",
    "layers.{i}.post_feedforward_layernorm.weight": f"{llama.LAYER}.feed_forward_post_norm.weight",
}

ALWAYS = llama.ALWAYS | {"norm_gain": "one-plus-weight", "embedding_scale": "embed_dim", "feed_forward_bias": False}

DEFAULTS: dict[str, Any] = {
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "rope_theta": 10_000.0,
    "head_dim": 256,
    "attention_bias": False,
    "hidden_activation": None,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 1,
}


ROTATED = ("rope_theta", *SCALING)


def _common(fields: Fields) -> dict[str, Any]:
    biased = {"qkv_bias": fields["attention_bias"], "output_bias": fields["attention_bias"]}
    return rotary(fields) | head_width(fields, "hidden_size", "num_attention_heads") | biased


def _gemma(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    """`gelu` in an older file means its approximation, in transformers too."""
    name = "hidden_act" if fields["hidden_activation"] is None else "hidden_activation"
    found = activation(fields, name)
    return _common(fields) | {"activation": "gelu-tanh" if found == "gelu" else found}


def _gemma2(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    kinds, count = fields["layer_types"], layers(fields)
    if kinds is None:
        kinds = [FULL if i % 2 else SLIDING for i in range(count)]
    return (
        _common(fields)
        | windows(kinds, fields["sliding_window"], count)
        | {
            "activation": activation(fields, "hidden_activation"),
            "attention_multiplier": number(fields, "query_pre_attn_scalar") ** -0.5,
        }
    )


def _write(config: TransformerConfig) -> dict[str, Any]:
    name = "gelu_pytorch_tanh" if config.activation == "gelu-tanh" else activation_name(config)
    return llama.write_common(config) | {"hidden_act": name, "hidden_activation": name}


def _write_gemma2(config: TransformerConfig) -> dict[str, Any]:
    return _write(config) | {
        "query_pre_attn_scalar": _scalar(config.attention_multiplier),
        "sliding_window": config.sliding_window,
        "layer_types": layer_kinds(config),
    }


def _gemma3(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    types, given = kinds_by_pattern(fields), fields["rope_parameters"] or {}
    if not isinstance(given, dict) or not set(given) <= {SLIDING, FULL}:
        raise wrong("rope_parameters", given, f"an object for each of {SLIDING} and {FULL}")
    of_full = {**fields, "rope_parameters": given.get(FULL)}
    # A scaling with `type` alone is read as it says, as transformers 4 does; version 5 leaves it out.
    own = {"rope_theta": fields["rope_local_base_freq"], "rope_parameters": given.get(SLIDING), "rope_scaling": None}
    of_sliding = {**fields, **own}
    rotated = {SLIDING: SCALING | rotary(of_sliding), FULL: SCALING | rotary(of_full)}
    attention = _gemma2({**fields, "rope_parameters": None, "rope_scaling": None, "layer_types": types}, names)
    window = attention["sliding_window"]
    facts = {SLIDING: {"sliding_window": window}, FULL: {"sliding_window": None}}
    per_layer = {kind: facts[kind] | {name: rotated[kind][name] for name in ROTATED} for kind in facts}
    return attention | by_kind(types, per_layer)


def _write_gemma3(config: TransformerConfig) -> dict[str, Any]:
    own = [config.for_layer("decoder", i) for i in range(config.num_decoder_layers)] or [config]
    full = next((each for each in own if each.sliding_window is None), own[0])
    sliding = next((each for each in own if each.sliding_window is not None), own[0])
    of_full, of_sliding = rotary_fields(full), rotary_fields(sliding)
    return _write_gemma2(config) | {
        **of_full,
        "rope_local_base_freq": sliding.rope_theta,
        "rope_parameters": {SLIDING: of_sliding["rope_parameters"], FULL: of_full["rope_parameters"]},
    }


def _scalar(multiplier: float) -> float:
    """The number whose power −½ is exactly `multiplier`, whole if one is; rounding may leave a neighbour of it."""
    found = multiplier**-2
    candidates = (round(found), found, math.nextafter(found, 0), math.nextafter(found, math.inf))
    return next((each for each in candidates if each and each**-0.5 == multiplier), found)


GEMMA = dataclasses.replace(
    llama.LLAMA,
    always=ALWAYS,
    configure=_gemma,
    write=_write,
    model="GemmaForCausalLM",
    reads=(*ROTARY, "head_dim", "attention_bias", "hidden_act", "hidden_activation"),
    defaults=DEFAULTS | {"num_key_value_heads": 16, "hidden_act": "gelu_pytorch_tanh"},
    only={"use_bidirectional_attention": (False,)},
)

GEMMA2 = dataclasses.replace(
    GEMMA,
    always=ALWAYS | {"norm_position": "both", "attention_scale": "none"},
    fields=llama.FIELDS | {"attn_logit_softcapping": "attention_softcap", "final_logit_softcapping": "final_softcap"},
    configure=_gemma2,
    write=_write_gemma2,
    model="Gemma2ForCausalLM",
    reads=(
        *(*ROTARY, "head_dim", "attention_bias", "hidden_activation"),
        *("query_pre_attn_scalar", "layer_types", "sliding_window"),
    ),
    defaults=DEFAULTS
    | {
        "num_key_value_heads": 4,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "layer_types": None,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    unneeded=("attention_dropout", "hidden_act"),
    names=NAMES_OF_2,
)

GEMMA3 = dataclasses.replace(
    GEMMA2,
    always={**GEMMA2.always, "query_key_norm": True},
    fields=llama.FIELDS | {"final_logit_softcapping": "final_softcap"},
    configure=_gemma3,
    write=_write_gemma3,
    model="Gemma3ForCausalLM",
    reads=(*GEMMA2.reads, "rope_local_base_freq", "sliding_window_pattern"),
    defaults={name: value for name, value in GEMMA2.defaults.items() if "softcapping" not in name}
    | {"max_position_embeddings": 131_072, "rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0}
    | {"sliding_window_pattern": 6, "final_logit_softcapping": None},
    only={**GEMMA2.only, "attn_logit_softcapping": ()},
    unneeded=(*GEMMA2.unneeded, "_sliding_window_pattern"),
)

FAMILIES = {"gemma": GEMMA, "gemma2": GEMMA2, "gemma3_text": GEMMA3}
