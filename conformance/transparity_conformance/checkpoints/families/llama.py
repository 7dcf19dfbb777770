"""Llama (Touvron et al. 2023) and models built like it: Mistral, Qwen 2, Qwen 3."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from transparity.config import FULL, SLIDING, TransformerConfig
from transparity.errors import is_whole
from transparity_conformance.checkpoints.fields import (
    OF_THE_LAST_TOKEN,
    ROTARY,
    Family,
    Fields,
    activation,
    activation_name,
    flag,
    head_width,
    layer_kinds,
    layers,
    rotary,
    rotary_fields,
    windows,
    wrong,
)
from transparity_conformance.checkpoints.naming import Table, linears

LAYER = "decoder.layers.{i}"

NAMES: Table = {
    "embed_tokens.weight": "decoder.token_embedding.weight",
    "norm.weight": "decoder.final_norm.weight",
    "lm_head.weight": "head.weight",
    "layers.{i}.input_layernorm.weight": f"{LAYER}.self_attention_norm.weight",
    "layers.{i}.post_attention_layernorm.weight": f"{LAYER}.feed_forward_norm.weight",
    "layers.{i}.self_attn.q_norm.weight": f"{LAYER}.self_attention.query_norm.weight",
    "layers.{i}.self_attn.k_norm.weight": f"{LAYER}.self_attention.key_norm.weight",
    **linears(
        {
            "layers.{i}.self_attn.q_proj": f"{LAYER}.self_attention.query",
            "layers.{i}.self_attn.k_proj": f"{LAYER}.self_attention.key",
            "layers.{i}.self_attn.v_proj": f"{LAYER}.self_attention.value",
            "layers.{i}.self_attn.o_proj": f"{LAYER}.self_attention.output",
            "layers.{i}.mlp.gate_proj": f"{LAYER}.feed_forward.gate",
            "layers.{i}.mlp.up_proj": f"{LAYER}.feed_forward.up",
            "layers.{i}.mlp.down_proj": f"{LAYER}.feed_forward.down",
        }
    ),
}

NO_PARAMETERS = ("layers.{i}.self_attn.rotary_emb.inv_freq",)

ALWAYS: dict[str, Any] = {
    "architecture": "decoder",
    "norm": "rms",
    "norm_position": "pre",
    "final_norm": True,
    "gated": True,
    "head_bias": False,
}

FIELDS = {
    "vocab_size": "target_vocab_size",
    "max_position_embeddings": "max_length",
    "hidden_size": "embed_dim",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_key_value_heads",
    "num_hidden_layers": "num_decoder_layers",
    "intermediate_size": "feed_forward_dim",
    "rms_norm_eps": "norm_eps",
    "tie_word_embeddings": "tied_head",
}

READS = (*ROTARY, "head_dim", "hidden_act")

DEFAULTS: dict[str, Any] = {
    "max_position_embeddings": 2048,
    "num_key_value_heads": None,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_theta": 10_000.0,
    "head_dim": None,
    "hidden_act": "silu",
}


def _common(fields: Fields) -> dict[str, Any]:
    found = rotary(fields) | head_width(fields, "hidden_size", "num_attention_heads")
    return found | {"activation": activation(fields, "hidden_act")}


def biases(fields: Fields) -> dict[str, Any]:
    return dict.fromkeys(("qkv_bias", "output_bias"), fields["attention_bias"])


def _llama(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    return _common(fields) | biases(fields) | {"feed_forward_bias": fields["mlp_bias"]}


def _mistral(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    return _common(fields) | {"sliding_window": fields["sliding_window"]}


def _qwen2(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    return _common(fields) | _windows(fields)


def _qwen3(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    return _qwen2(fields, names) | biases(fields)


def _windows(fields: Fields) -> dict[str, Any]:
    """Qwen's layers from `max_window_layers` on have a window, unless `layer_types` differs."""
    window = fields["sliding_window"] if flag(fields, "use_sliding_window") else None
    first, count = fields["max_window_layers"], layers(fields)
    if not is_whole(first, 0):
        raise wrong("max_window_layers", first, "a whole number")
    kinds = [SLIDING if window is not None and i >= first else FULL for i in range(count)]
    kinds = kinds if fields["layer_types"] is None else fields["layer_types"]
    if window is None and kinds != [FULL] * count:
        raise wrong("use_sliding_window", fields["use_sliding_window"], "true and a sliding_window, by layer_types")
    return windows(kinds, window, count)


def write_common(config: TransformerConfig) -> dict[str, Any]:
    """The fields of all models built like Llama; key-value heads are a number, as in published files."""
    heads = {"num_key_value_heads": config.key_value_heads, "hidden_act": activation_name(config)}
    return rotary_fields(config) | heads | {"attention_bias": config.qkv_bias}


def _write_llama(config: TransformerConfig) -> dict[str, Any]:
    return write_common(config) | {"mlp_bias": config.feed_forward_bias}


def _write_mistral(config: TransformerConfig) -> dict[str, Any]:
    return _without_bias(config) | {"sliding_window": config.sliding_window}


def _write_qwen2(config: TransformerConfig) -> dict[str, Any]:
    return _without_bias(config) | _written_windows(config)


def _write_qwen3(config: TransformerConfig) -> dict[str, Any]:
    return write_common(config) | _written_windows(config)


def _without_bias(config: TransformerConfig) -> dict[str, Any]:
    return {name: value for name, value in write_common(config).items() if name != "attention_bias"}


def _written_windows(config: TransformerConfig) -> dict[str, Any]:
    window = config.sliding_window
    return {
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "max_window_layers": config.num_decoder_layers if window is None else 0,
        "layer_types": layer_kinds(config),
    }


WINDOWS: dict[str, Any] = {
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}

LLAMA = Family(
    always=ALWAYS,
    fields=FIELDS,
    configure=_llama,
    write=_write_llama,
    model="LlamaForCausalLM",
    reads=(*READS, "attention_bias", "mlp_bias"),
    defaults=DEFAULTS | {"attention_bias": False, "mlp_bias": False},
    unneeded=("attention_dropout",),
    names=NAMES,
    prefixes=("model.",),
    no_parameters=NO_PARAMETERS,
)

MISTRAL = dataclasses.replace(
    LLAMA,
    always=ALWAYS | {"qkv_bias": False, "output_bias": False, "feed_forward_bias": False},
    configure=_mistral,
    write=_write_mistral,
    model="MistralForCausalLM",
    reads=(*READS, "sliding_window"),
    defaults=DEFAULTS | {"max_position_embeddings": 131_072, "num_key_value_heads": 8, "sliding_window": 4096},
)

QWEN2 = dataclasses.replace(
    LLAMA,
    always=ALWAYS | {"qkv_bias": True, "output_bias": False, "feed_forward_bias": False},
    configure=_qwen2,
    write=_write_qwen2,
    model="Qwen2ForCausalLM",
    reads=(*READS, *WINDOWS),
    defaults=DEFAULTS | WINDOWS | {"max_position_embeddings": 32_768, "num_key_value_heads": 32},
)

QWEN3 = dataclasses.replace(
    LLAMA,
    always=ALWAYS | {"query_key_norm": True, "feed_forward_bias": False},
    configure=_qwen3,
    write=_write_qwen3,
    model="Qwen3ForCausalLM",
    reads=(*READS, *WINDOWS, "attention_bias"),
    defaults={**QWEN2.defaults, "head_dim": 128, "attention_bias": False},
)

FAMILIES = {
    name: dataclasses.replace(family, classifier=OF_THE_LAST_TOKEN)
    for name, family in (("llama", LLAMA), ("mistral", MISTRAL), ("qwen2", QWEN2), ("qwen3", QWEN3))
}
