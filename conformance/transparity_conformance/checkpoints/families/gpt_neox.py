"""GPT-NeoX (Black et al. 2022) and Pythia: parallel branches with two norms, projections fused head by head."""

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
)
from transparity_conformance.checkpoints.naming import Table, by_head, linears
from transparity_conformance.checkpoints.reading import CheckpointError

LAYER = "decoder.layers.{i}"

NAMES: Table = {
    "embed_in.weight": "decoder.token_embedding.weight",
    "embed_out.weight": "head.weight",
    **linears(
        {
            "layers.{i}.input_layernorm": f"{LAYER}.self_attention_norm",
            "layers.{i}.post_attention_layernorm": f"{LAYER}.feed_forward_norm",
            "layers.{i}.attention.dense": f"{LAYER}.self_attention.output",
            "layers.{i}.mlp.dense_h_to_4h": f"{LAYER}.feed_forward.up",
            "layers.{i}.mlp.dense_4h_to_h": f"{LAYER}.feed_forward.down",
            "final_layer_norm": "decoder.final_norm",
        }
    ),
}


def _packed(config: TransformerConfig) -> Table:
    roles = [f"{LAYER}.self_attention.{role}" for role in ("query", "key", "value")]
    return {
        f"layers.{{i}}.attention.query_key_value.{leaf}": by_head(
            [f"{role}.{leaf}" for role in roles], config.num_heads
        )
        for leaf in ("weight", "bias")
    }


def _configure(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    given = {"rope_theta": fields["rotary_emb_base"], "partial_rotary_factor": fields["rotary_pct"]} | {
        name: value for name, value in fields.items() if name in ROTARY and value is not None
    }
    head_dim = whole(fields, "hidden_size") // whole(fields, "num_attention_heads")
    found = rotary({**fields, **given}, head_dim)
    return found | {
        "activation": activation(fields, "hidden_act"),
        "branches": "parallel" if flag(fields, "use_parallel_residual") else "sequential",
        "qkv_bias": flag(fields, "attention_bias"),
        "output_bias": flag(fields, "attention_bias"),
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    whole_heads = (config.key_value_heads, config.attention_dim) == (config.num_heads, config.embed_dim)
    if not whole_heads or config.projection != "full":
        raise CheckpointError(
            f"The family gpt_neox cannot express {config.key_value_heads} heads of keys and values, of "
            f"{config.head_dim} features with the projection {config.projection!r}; expected heads that cut embed_dim."
        )
    found = rotary_fields(config)
    part = found.get("partial_rotary_factor", 1.0)
    rope = found["rope_parameters"] | {"partial_rotary_factor": part}
    written = {"rope_parameters": rope, "rotary_emb_base": config.rope_theta, "rotary_pct": part}
    return written | {
        "hidden_act": activation_name(config),
        "use_parallel_residual": config.branches == "parallel",
        "attention_bias": config.qkv_bias,
    }


GPT_NEOX = Family(
    always={"architecture": "decoder", "norm_position": "pre", "final_norm": True, "head_bias": False},
    fields={
        "vocab_size": "target_vocab_size",
        "max_position_embeddings": "max_length",
        "hidden_size": "embed_dim",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_decoder_layers",
        "intermediate_size": "feed_forward_dim",
        "layer_norm_eps": "norm_eps",
        "tie_word_embeddings": "tied_head",
    },
    configure=_configure,
    write=_write,
    model="GPTNeoXForCausalLM",
    reads=(*ROTARY, "rotary_emb_base", "rotary_pct", "hidden_act", "use_parallel_residual", "attention_bias"),
    defaults={
        "max_position_embeddings": 2048,
        "layer_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "rotary_emb_base": 10_000.0,
        "rotary_pct": 0.25,
        "hidden_act": "gelu",
        "use_parallel_residual": True,
        "attention_bias": True,
    },
    unneeded=("attention_dropout", "hidden_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob"),
    names=NAMES,
    packed=_packed,
    prefixes=("gpt_neox.",),
    no_parameters=(
        *("layers.{i}.attention.bias", "layers.{i}.attention.masked_bias"),  # the causal mask
        "layers.{i}.attention.rotary_emb.inv_freq",
    ),
)

FAMILIES = {"gpt_neox": GPT_NEOX}
