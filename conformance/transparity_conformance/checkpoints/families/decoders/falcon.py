"""Falcon (Almazrouei et al. 2023): parallel branches with one norm or two, projections fused by groups of heads."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.fields import (
    ROTARY,
    Family,
    Fields,
    activation,
    activation_name,
    flag,
    rotary,
    rotary_fields,
    whole,
    wrong,
)
from transparity_conformance.checkpoints.naming import Table, by_group, linears
from transparity_conformance.checkpoints.reading import CheckpointError

LAYER = "decoder.layers.{i}"

NAMES: Table = {
    "word_embeddings.weight": "decoder.token_embedding.weight",
    "lm_head.weight": "head.weight",
    **linears(
        {
            "h.{i}.self_attention.dense": f"{LAYER}.self_attention.output",
            "h.{i}.mlp.dense_h_to_4h": f"{LAYER}.feed_forward.up",
            "h.{i}.mlp.dense_4h_to_h": f"{LAYER}.feed_forward.down",
            "ln_f": "decoder.final_norm",
        }
    ),
}

TWO_NORMS = linears({"h.{i}.ln_attn": f"{LAYER}.self_attention_norm", "h.{i}.ln_mlp": f"{LAYER}.feed_forward_norm"})

ONE_NORM = linears({"h.{i}.input_layernorm": f"{LAYER}.self_attention_norm"})

SEQUENTIAL = ONE_NORM | linears({"h.{i}.post_attention_layernorm": f"{LAYER}.feed_forward_norm"})


def _packed(config: TransformerConfig) -> Table:
    """The norms by their number, and queries, keys and values side by side in each group of heads."""
    shared = config.num_heads // config.key_value_heads
    rows = {"query": shared * config.head_dim, "key": config.head_dim, "value": config.head_dim}
    fused = {
        f"h.{{i}}.self_attention.query_key_value.{leaf}": by_group(
            {f"{LAYER}.self_attention.{role}.{leaf}": count for role, count in rows.items()}, config.key_value_heads
        )
        for leaf in ("weight", "bias")
    }
    return {**NORMS[config.branches], **fused}


NORMS: dict[str, Table] = {"parallel": TWO_NORMS, "parallel-one-norm": ONE_NORM, "sequential": SEQUENTIAL}
"""The names of a layer's norms, by `branches`."""


def _configure(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    heads, grouped = whole(fields, "num_attention_heads"), flag(fields, "new_decoder_architecture")
    if grouped and not flag(fields, "parallel_attn"):
        raise wrong("parallel_attn", fields["parallel_attn"], "true, by new_decoder_architecture")
    given = heads if fields["num_kv_heads"] is None else whole(fields, "num_kv_heads")
    norms = fields["num_ln_in_parallel_attn"]
    if norms not in (None, 1, 2):
        raise wrong("num_ln_in_parallel_attn", norms, "1, 2 or none")
    branches = "parallel" if grouped and norms != 1 else "parallel-one-norm"
    inner = fields["ffn_hidden_size"]
    return rotary(fields) | {
        "num_key_value_heads": given if grouped else 1 if flag(fields, "multi_query") else heads,
        "branches": branches if flag(fields, "parallel_attn") else "sequential",
        "activation": activation(fields, "activation"),
        "feed_forward_dim": 4 * whole(fields, "hidden_size") if inner is None else whole(fields, "ffn_hidden_size"),
        **dict.fromkeys(("qkv_bias", "output_bias", "feed_forward_bias"), flag(fields, "bias")),
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    heads, is_whole = config.key_value_heads, config.attention_dim == config.embed_dim
    grouped = config.branches == "parallel" or heads not in (1, config.num_heads)
    if not is_whole or (grouped and config.branches == "sequential"):
        raise CheckpointError(
            f"The family falcon cannot express {heads} heads of keys and values, of {config.head_dim} features, with "
            f"branches {config.branches!r}; expected heads that cut embed_dim, and parallel branches for groups."
        )
    rope = {name: value for name, value in rotary_fields(config).items() if name != "head_dim"}
    return rope | {
        "new_decoder_architecture": grouped,
        "num_kv_heads": heads,
        "num_ln_in_parallel_attn": {"parallel": 2, "parallel-one-norm": 1}.get(config.branches),
        "multi_query": heads == 1,
        "parallel_attn": config.branches != "sequential",
        "activation": activation_name(config),
        "ffn_hidden_size": config.feed_forward_dim,
        "bias": config.qkv_bias,
    }


FALCON = Family(
    always={"architecture": "decoder", "norm_position": "pre", "final_norm": True, "head_bias": False},
    fields={
        "vocab_size": "target_vocab_size",
        "max_position_embeddings": "max_length",
        "hidden_size": "embed_dim",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_decoder_layers",
        "layer_norm_epsilon": "norm_eps",
        "tie_word_embeddings": "tied_head",
    },
    configure=_configure,
    write=_write,
    model="FalconForCausalLM",
    reads=(
        *(*ROTARY, "num_kv_heads", "new_decoder_architecture", "num_ln_in_parallel_attn"),
        *("multi_query", "parallel_attn", "activation", "ffn_hidden_size", "bias"),
    ),
    defaults={
        "max_position_embeddings": 2048,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "rope_theta": 10_000.0,
        "num_kv_heads": None,
        "new_decoder_architecture": False,
        "num_ln_in_parallel_attn": None,
        "multi_query": True,
        "parallel_attn": True,
        "activation": "gelu",
        "ffn_hidden_size": None,
        "bias": False,
        "bos_token_id": 11,
        "eos_token_id": 11,
    },
    # its linear biases are added before the scale, and rounded to bfloat16
    only={"alibi": (False,), "apply_residual_connection_post_layernorm": (False,)},
    unneeded=("attention_dropout", "hidden_dropout"),
    names=NAMES,
    packed=_packed,
    prefixes=("transformer.",),
    no_parameters=("h.{i}.self_attention.rotary_emb.inv_freq",),
)

FAMILIES = {"falcon": FALCON}
