"""Falcon (Almazrouei et al. 2023): parallel branches with one or two norms, and projections fused by head group."""

from __future__ import annotations

from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.naming import Table, by_group, linears
from transparity_conformance.checkpoints.reading import CheckpointError
from transparity_conformance.checkpoints.tables.codecs import SIZES, Family
from transparity_conformance.checkpoints.tables.rotary import rope
from transparity_conformance.checkpoints.tables.rows import activation, derived, flag, rename, tokens
from transparity_conformance.checkpoints.tables.values import Fields, as_flag, as_whole, wrong

LAYER = "decoder.layers.{i}"

ONE_NORM = linears({"input_layernorm": "self_attention_norm"}, "h.{i}", LAYER)

NORMS: dict[str, Table] = {
    "parallel": linears({"ln_attn": "self_attention_norm", "ln_mlp": "feed_forward_norm"}, "h.{i}", LAYER),
    "parallel-one-norm": ONE_NORM,
    "sequential": ONE_NORM | linears({"post_attention_layernorm": "feed_forward_norm"}, "h.{i}", LAYER),
}
"""The tensor names of a layer's norms, by the configuration's `branches`."""


def _packed(config: TransformerConfig) -> Table:
    """Return the norms, and the fused projection; it contains the queries, keys and values of each group of heads."""
    shared = config.num_heads // config.key_value_heads
    rows = {"query": shared * config.head_dim, "key": config.head_dim, "value": config.head_dim}
    fused = {
        f"h.{{i}}.self_attention.query_key_value.{leaf}": by_group(
            {f"{LAYER}.self_attention.{role}.{leaf}": count for role, count in rows.items()}, config.key_value_heads
        )
        for leaf in ("weight", "bias")
    }
    return {**NORMS[config.branches], **fused}


def _heads(fields: Fields) -> dict[str, Any]:
    """Return the number of key and value heads, and how the branches of a layer are connected."""
    heads, grouped = as_whole(fields, "num_attention_heads"), as_flag(fields, "new_decoder_architecture")
    if grouped and not as_flag(fields, "parallel_attn"):
        raise wrong("parallel_attn", fields["parallel_attn"], "true, because new_decoder_architecture is true")
    given = heads if fields["num_kv_heads"] is None else as_whole(fields, "num_kv_heads")
    norms = fields["num_ln_in_parallel_attn"]
    if norms not in (None, 1, 2):
        raise wrong("num_ln_in_parallel_attn", norms, "1, 2 or null")
    branches = "parallel" if grouped and norms != 1 else "parallel-one-norm"
    return {
        "num_key_value_heads": given if grouped else 1 if as_flag(fields, "multi_query") else heads,
        "branches": branches if as_flag(fields, "parallel_attn") else "sequential",
    }


def _write_heads(config: TransformerConfig) -> dict[str, Any]:
    heads, is_whole = config.key_value_heads, config.attention_dim == config.embed_dim
    grouped = config.branches == "parallel" or heads not in (1, config.num_heads)
    if not is_whole or (grouped and config.branches == "sequential"):
        raise CheckpointError(
            f"The family falcon cannot express {heads} key heads of {config.head_dim} features with branches "
            f"{config.branches!r}; expected heads that divide embed_dim, and parallel branches for grouped queries."
        )
    return {
        "new_decoder_architecture": grouped,
        "num_kv_heads": heads,
        "num_ln_in_parallel_attn": {"parallel": 2, "parallel-one-norm": 1}.get(config.branches),
        "multi_query": heads == 1,
        "parallel_attn": config.branches != "sequential",
    }


def _inner(fields: Fields) -> dict[str, Any]:
    name, times = ("hidden_size", 4) if fields["ffn_hidden_size"] is None else ("ffn_hidden_size", 1)
    return {"feed_forward_dim": times * as_whole(fields, name)}


FALCON = Family(
    model="FalconForCausalLM",
    example=SIZES | {"num_attention_heads": 4, "bos_token_id": 1, "eos_token_id": 2},
    always={"architecture": "decoder", "norm_position": "pre", "final_norm": True, "head_bias": False},
    rows=(
        rename("vocab_size", "target_vocab_size"),
        rename("max_position_embeddings", "max_length", 2048),
        rename("hidden_size", "embed_dim"),
        rename("num_attention_heads", "num_heads"),
        rename("num_hidden_layers", "num_decoder_layers"),
        rename("layer_norm_epsilon", "norm_eps", 1e-5),
        rename("tie_word_embeddings", "tied_head", True),
        rope(),
        derived(
            *(_heads, _write_heads),
            num_kv_heads=None,
            new_decoder_architecture=False,
            num_ln_in_parallel_attn=None,
            multi_query=True,
            parallel_attn=True,
        ),
        activation("activation", "gelu"),
        derived(_inner, lambda config: {"ffn_hidden_size": config.feed_forward_dim}, ffn_hidden_size=None),
        flag("bias", ("qkv_bias", "output_bias", "feed_forward_bias"), False),
        tokens(bos=11, eos=11),
    ),
    # Falcon adds ALiBi biases before the scale and rounds them to bfloat16, which is not supported.
    only={"alibi": (False,), "apply_residual_connection_post_layernorm": (False,)},
    unneeded=("attention_dropout", "hidden_dropout"),
    names={
        "word_embeddings.weight": "decoder.token_embedding.weight",
        "lm_head.weight": "head.weight",
        **linears({"self_attention.dense": "self_attention.output"}, "h.{i}", LAYER),
        **linears({"dense_h_to_4h": "up", "dense_4h_to_h": "down"}, "h.{i}.mlp", f"{LAYER}.feed_forward"),
        **linears({"ln_f": "decoder.final_norm"}),
    },
    packed=_packed,
    prefixes=("transformer.",),
    no_parameters=("h.{i}.self_attention.rotary_emb.inv_freq",),
)

FAMILIES = {"falcon": FALCON}
