"""Llama (Touvron et al. 2023) and similar models: Mistral, Qwen 2, Qwen 3, Granite 3 and OLMo 2.

Granite 3 (Granite Team 2024) multiplies embeddings, residual branches and logits by factors. OLMo 2 (OLMo Team 2024)
normalizes the outputs of the sublayers.
"""

from __future__ import annotations

from typing import Any

from transparity.config import FULL, SLIDING, TransformerConfig
from transparity_conformance.checkpoints.naming import GATED, Table, linears, projections, weights, without
from transparity_conformance.checkpoints.tables.codecs import OF_THE_LAST_TOKEN, SIZES, Family
from transparity_conformance.checkpoints.tables.kinds import window_fields, windows
from transparity_conformance.checkpoints.tables.rotary import rope
from transparity_conformance.checkpoints.tables.rows import (
    activation,
    derived,
    head_width,
    number,
    rename,
    sizes,
    tokens,
)
from transparity_conformance.checkpoints.tables.values import Fields, as_flag, as_layers, as_whole, nearest, wrong

LAYER = "decoder.layers.{i}"

NAMES: Table = {
    "embed_tokens.weight": "decoder.token_embedding.weight",
    "norm.weight": "decoder.final_norm.weight",
    "lm_head.weight": "head.weight",
    **weights({"input_layernorm": "self_attention_norm"}, "layers.{i}", LAYER),
    **weights({"post_attention_layernorm": "feed_forward_norm"}, "layers.{i}", LAYER),
    **weights({"q_norm": "query_norm", "k_norm": "key_norm"}, "layers.{i}.self_attn", f"{LAYER}.self_attention"),
    **linears(projections("q_proj", "k_proj", "v_proj", "o_proj"), "layers.{i}.self_attn", f"{LAYER}.self_attention"),
    **linears(GATED, "layers.{i}.mlp", f"{LAYER}.feed_forward"),
}

EXAMPLE = SIZES | {"intermediate_size": 44, "num_attention_heads": 4, "num_key_value_heads": 2}
EXAMPLE |= {"bos_token_id": 1, "eos_token_id": 2}
WIDE = EXAMPLE | {"head_dim": 10}


ATTENTION_BIAS = rename("attention_bias", ("qkv_bias", "output_bias"), False)

LLAMA = Family(
    model="LlamaForCausalLM",
    example=EXAMPLE | {"rope_theta": 10_000.0, "rms_norm_eps": 1e-5},
    always={"architecture": "decoder", "norm": "rms", "norm_position": "pre", "final_norm": True}
    | {"gated": True, "head_bias": False},
    rows=(
        *sizes("decoder", 2048),
        rename("num_key_value_heads", "num_key_value_heads", None, written="key_value_heads"),
        rename("rms_norm_eps", "norm_eps", 1e-6),
        rename("tie_word_embeddings", "tied_head", False),
        rope(),
        head_width(),
        activation("hidden_act", "silu"),
        ATTENTION_BIAS,
        rename("mlp_bias", "feed_forward_bias", False),
    ),
    unneeded=("attention_dropout",),
    names=NAMES,
    prefixes=("model.",),
    no_parameters=("layers.{i}.self_attn.rotary_emb.inv_freq",),
)

PLAIN = LLAMA.variant(without=("mlp_bias",), always={"feed_forward_bias": False})
"""Llama without the field `mlp_bias`; its feed-forwards have no biases."""

NO_BIAS = {"qkv_bias": False, "output_bias": False, "feed_forward_bias": False}

WINDOW = rename("sliding_window", "sliding_window", 4096)

MISTRAL = PLAIN.variant(
    model="MistralForCausalLM",
    example=EXAMPLE | {"sliding_window": 5},
    always=NO_BIAS,
    rows=(WINDOW,),
    without=("attention_bias",),
    defaults={"max_position_embeddings": 131_072, "num_key_value_heads": 8},
)


def _windows(fields: Fields) -> dict[str, Any]:
    """Return Qwen's windows; by default, only the layers from number `max_window_layers` have a window."""
    window = fields["sliding_window"] if as_flag(fields, "use_sliding_window") else None
    first, count = as_whole(fields, "max_window_layers", 0, "a whole number"), as_layers(fields)
    kinds = [SLIDING if window is not None and i >= first else FULL for i in range(count)]
    kinds = kinds if fields["layer_types"] is None else fields["layer_types"]
    if window is None and kinds != [FULL] * count:
        raise wrong(
            "use_sliding_window",
            fields["use_sliding_window"],
            "true and a sliding_window, because layer_types needs a window",
        )
    return windows(kinds, window, count)


def _write_windows(config: TransformerConfig) -> dict[str, Any]:
    is_full = config.sliding_window is None
    last = config.num_decoder_layers if is_full else 0
    return {"use_sliding_window": not is_full, "max_window_layers": last} | window_fields(config)


WINDOWS: dict[str, Any] = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}

QWEN2 = PLAIN.variant(
    model="Qwen2ForCausalLM",
    example=EXAMPLE | {"tie_word_embeddings": True},
    always=NO_BIAS | {"qkv_bias": True},
    rows=(derived(_windows, _write_windows, **WINDOWS, layer_types=None),),
    without=("attention_bias",),
    defaults={"max_position_embeddings": 32_768, "num_key_value_heads": 32},
)

QWEN3 = PLAIN.variant(
    model="Qwen3ForCausalLM",
    example=WIDE,
    always={"query_key_norm": True},
    rows=(derived(_windows, _write_windows, **WINDOWS, layer_types=None),),
    defaults={"max_position_embeddings": 32_768, "num_key_value_heads": 32, "head_dim": 128},
)


def _reciprocal(factor: float) -> float:
    return 1 / factor


def _written_reciprocal(factor: float) -> float:
    return nearest(1 / factor, right=lambda found: 1 / found == factor)


MULTIPLIERS = ("embedding_multiplier", "residual_multiplier", "attention_multiplier")
"""Fields with the same name in config.json and in `TransformerConfig`."""

GRANITE = LLAMA.variant(
    model="GraniteForCausalLM",
    example=EXAMPLE
    | {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.3, "logits_scaling": 5.0},
    always={"attention_scale": "none"},
    rows=(
        *(number(name, name, 1.0) for name in MULTIPLIERS),
        number("logits_scaling", "head_multiplier", 1.0, _reciprocal, _written_reciprocal),
    ),
)

OVER_PROJECTION = {"query_key_norm": True, "query_key_norm_over": "projection"}

OLMO2 = PLAIN.variant(
    model="Olmo2ForCausalLM",
    example=EXAMPLE,
    always=OVER_PROJECTION | {"norm_position": "post-branch"},
    rows=(tokens(pad=1, bos=None, eos=50_279),),
    defaults={"rms_norm_eps": 1e-5},
    names={
        **without(NAMES, "layernorm"),
        "layers.{i}.post_attention_layernorm.weight": f"{LAYER}.self_attention_norm.weight",
        "layers.{i}.post_feedforward_layernorm.weight": f"{LAYER}.feed_forward_norm.weight",
    },
)

FAMILIES = {"granite": GRANITE, "olmo2": OLMO2} | {
    name: family.variant(classifier=OF_THE_LAST_TOKEN)
    for name, family in (("llama", LLAMA), ("mistral", MISTRAL), ("qwen2", QWEN2), ("qwen3", QWEN3))
}
