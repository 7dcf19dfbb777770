"""Qwen3-Next (Qwen team 2025): gated delta networks, gated attention in every fourth layer, and experts."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from transparity.config import FULL, TransformerConfig
from transparity_conformance.checkpoints.families.llama import LAYER, PLAIN, WIDE
from transparity_conformance.checkpoints.families.mixtral import (
    EXPERTS,
    NAMES_WITH_EXPERTS,
    ROUTER,
    SHARED_EXPERT,
    UNNEEDED,
    sparse,
    write_sparse,
)
from transparity_conformance.checkpoints.naming import StoredTensor, Table, by_group, without
from transparity_conformance.checkpoints.tables.kinds import by_both, kinds_every, own_layers
from transparity_conformance.checkpoints.tables.rotary import rope, rotary, rotary_fields
from transparity_conformance.checkpoints.tables.rows import derived, rename, whole
from transparity_conformance.checkpoints.tables.values import Fields, as_whole

LINEAR = "linear_attention"
"""The value of `layer_types` for a layer with a recurrence."""

RECURRENCE = f"{LAYER}.recurrence"
ATTENTION = f"{LAYER}.self_attention"


def _kernel(first: int, count: int, tensor: np.ndarray) -> np.ndarray:
    return tensor[first : first + count, 0]


def _kernels(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts)[:, np.newaxis]


def convolution(widths: Mapping[str, int]) -> StoredTensor:
    """Return the fused convolution (features, 1, width); each role has this number of features, in this order."""
    begins = itertools.accumulate(widths.values(), initial=0)
    return StoredTensor(
        tuple(
            (f"{RECURRENCE}.{role}_convolution.weight", partial(_kernel, begin, widths[role]))
            for role, begin in zip(widths, begins, strict=False)
        ),
        _kernels,
    )


def _packed(config: TransformerConfig) -> Table:
    """Return the fused projections of a recurrence by head group, and the queries fused with their gates.

    All heads of a group share a key.
    """
    groups = config.recurrent_key_heads
    shares = config.recurrent_heads // groups
    rows = {"query": config.recurrent_key_dim, "key": config.recurrent_key_dim}
    rows |= dict.fromkeys(("value", "gate"), shares * config.recurrent_value_dim)
    projected = {f"{RECURRENCE}.{role}.weight": count for role, count in rows.items()}
    numbers = {f"{RECURRENCE}.{role}.weight": shares for role in ("beta", "decay")}
    queries = {
        f"layers.{{i}}.self_attn.q_proj.{leaf}": by_group(
            {f"{ATTENTION}.{role}.{leaf}": config.head_dim for role in ("query", "gate")}, config.num_heads
        )
        for leaf in ("weight", "bias")
    }
    return queries | {
        "layers.{i}.linear_attn.in_proj_qkvz.weight": by_group(projected, groups),
        "layers.{i}.linear_attn.in_proj_ba.weight": by_group(numbers, groups),
        "layers.{i}.linear_attn.conv1d.weight": convolution(config.convolution_dims),
    }


MIXERS = {LINEAR: {"mixer": "gated-delta"}, FULL: {"mixer": "attention"}}


def _layers(fields: Fields) -> dict[str, Any]:
    found = sparse(fields)
    return by_both(found, kinds_every(fields, "full_attention_interval", (LINEAR, FULL)), MIXERS, EXPERTS)


def _write_layers(config: TransformerConfig) -> dict[str, Any]:
    kinds = [FULL if each.mixer == "attention" else LINEAR for each in own_layers(config)]
    return write_sparse(config) | {"layer_types": kinds}


QWEN3_NEXT = PLAIN.variant(
    model="Qwen3NextForCausalLM",
    example=WIDE
    | {"num_hidden_layers": 3, "full_attention_interval": 2, "partial_rotary_factor": 0.4, "num_experts": 5}
    | {"num_experts_per_tok": 2, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 28}
    | {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 5, "linear_value_head_dim": 7},
    always={"norm_gain": "one-plus-weight", "query_key_norm": True, "attention_gate": True, "activation": "silu"}
    | {"shared_expert_gate": True},
    rows=(
        rename("linear_num_value_heads", "recurrent_heads", 32),
        rename("linear_num_key_heads", "recurrent_key_heads", 16),
        rename("linear_key_head_dim", "recurrent_key_dim", 128),
        rename("linear_value_head_dim", "recurrent_value_dim", 128),
        rename("linear_conv_kernel_dim", "convolution_width", 4),
        rope(
            lambda fields: rotary(fields, as_whole(fields, "head_dim")),
            lambda config: {"partial_rotary_factor": 1.0} | rotary_fields(config),
            partial_rotary_factor=0.25,
        ),
        derived(lambda fields: {}, lambda config: {"hidden_act": "silu"}, hidden_act="silu"),
        *ROUTER,
        derived(
            *(_layers, _write_layers),
            intermediate_size=5632,
            moe_intermediate_size=512,
            num_experts=512,
            num_local_experts=None,
            mlp_only_layers=None,
            decoder_sparse_step=1,
            layer_types=None,
            full_attention_interval=4,
        ),
        whole("shared_expert_intermediate_size", "shared_expert_dim", 512),
    ),
    without=("intermediate_size",),
    defaults={"max_position_embeddings": 32_768, "num_key_value_heads": 2, "head_dim": 256}
    | {"num_experts_per_tok": 10, "norm_topk_prob": True},
    only={"hidden_act": ("silu",)},
    unneeded=UNNEEDED,
    names={
        **without({**NAMES_WITH_EXPERTS, **SHARED_EXPERT}, ".q_proj."),
        "layers.{i}.linear_attn.A_log": f"{RECURRENCE}.A_log",
        "layers.{i}.linear_attn.dt_bias": f"{RECURRENCE}.dt_bias",
        "layers.{i}.linear_attn.norm.weight": f"{RECURRENCE}.gated_norm.weight",
        "layers.{i}.linear_attn.out_proj.weight": f"{RECURRENCE}.output.weight",
    },
    packed=_packed,
)

FAMILIES = {"qwen3_next": QWEN3_NEXT}
