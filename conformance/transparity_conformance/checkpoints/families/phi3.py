"""Phi-3 (Abdin et al. 2024) and Phi-4 mini: Llama with fused projections and heads that may be rotated in part."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.families import llama
from transparity_conformance.checkpoints.fields import (
    Fields,
    activation,
    activation_name,
    head_width,
    rotary,
    rotary_fields,
    whole,
    wrong,
)
from transparity_conformance.checkpoints.naming import Table, stacked

FUSED = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")

NAMES: Table = {theirs: ours for theirs, ours in llama.NAMES.items() if not any(part in theirs for part in FUSED)}


def _packed(config: TransformerConfig) -> Table:
    attention, feed_forward = f"{llama.LAYER}.self_attention", f"{llama.LAYER}.feed_forward"
    keys, inner = config.key_value_heads * config.head_dim, config.feed_forward_dim
    rows = {"query": config.attention_dim, "key": keys, "value": keys}
    return {
        "layers.{i}.self_attn.qkv_proj.weight": stacked({f"{attention}.{it}.weight": n for it, n in rows.items()}),
        "layers.{i}.mlp.gate_up_proj.weight": stacked({f"{feed_forward}.{it}.weight": inner for it in ("gate", "up")}),
    }


def _configure(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    found = head_width(fields, "hidden_size", "num_attention_heads")
    own = found.get("attention_head_dim", whole(fields, "hidden_size") // whole(fields, "num_attention_heads"))
    found |= rotary(fields, own) | {"activation": activation(fields, "hidden_act")}
    if "rotary_scaling" in found:
        raise wrong("rope_parameters.rope_type", found["rotary_scaling"], "default, as transformers does for Phi-3")
    return found | {"sliding_window": fields["sliding_window"]}


def _write(config: TransformerConfig) -> dict[str, Any]:
    heads = {"num_key_value_heads": config.key_value_heads, "sliding_window": config.sliding_window}
    return rotary_fields(config) | heads | {"hidden_act": activation_name(config)}


PHI3 = dataclasses.replace(
    llama.MISTRAL,
    configure=_configure,
    write=_write,
    model="Phi3ForCausalLM",
    defaults=llama.DEFAULTS
    | {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "sliding_window": None}
    | {"pad_token_id": 32_000, "bos_token_id": 1, "eos_token_id": 32_000},
    unneeded=("attention_dropout", "embd_pdrop", "resid_pdrop"),
    names=NAMES,
    packed=_packed,
)

FAMILIES = {"phi3": PHI3}
