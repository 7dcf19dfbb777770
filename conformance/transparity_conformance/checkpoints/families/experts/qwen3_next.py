"""Qwen3-Next (Qwen team 2025): gated delta networks and, in every fourth layer, gated attention, with experts."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from transparity.config import FULL, TransformerConfig
from transparity_conformance.checkpoints.families import llama
from transparity_conformance.checkpoints.families.experts.mixtral import (
    EXPERTS,
    QWEN2_MOE,
    ROUTER,
    SPARSE,
    UNNEEDED,
    sparse,
    write_sparse,
)
from transparity_conformance.checkpoints.fields import Fields, by_kind, head_width, layers, rotary, whole, wrong
from transparity_conformance.checkpoints.naming import Stored, Table, by_group, by_head

LINEAR = "linear_attention"
"""The kind of a layer with a recurrence."""

RECURRENCE = f"{llama.LAYER}.recurrence"
ATTENTION = f"{llama.LAYER}.self_attention"

NO_QUERIES = {theirs: ours for theirs, ours in QWEN2_MOE.names.items() if ".q_proj." not in theirs}


def _kernel(first: int, count: int, tensor: np.ndarray) -> np.ndarray:
    return tensor[first : first + count, 0]


def _kernels(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts)[:, np.newaxis]


def convolution(widths: Mapping[str, int]) -> Stored:
    """One convolution (features, 1, width) of queries, keys and values, each of so many features, in that order."""
    begins = itertools.accumulate(widths.values(), initial=0)
    return Stored(
        tuple(
            (f"{RECURRENCE}.{role}_convolution.weight", partial(_kernel, begin, widths[role]))
            for role, begin in zip(widths, begins, strict=False)
        ),
        _kernels,
    )


def _packed(config: TransformerConfig) -> Table:
    """Projections of a recurrence, side by side in each group of heads with one key; queries beside their gates."""
    groups = config.recurrent_key_heads
    shares = config.recurrent_heads // groups
    rows = {"query": config.recurrent_key_dim, "key": config.recurrent_key_dim}
    rows |= dict.fromkeys(("value", "gate"), shares * config.recurrent_value_dim)
    projected = {f"{RECURRENCE}.{role}.weight": count for role, count in rows.items()}
    numbers = {f"{RECURRENCE}.{role}.weight": shares for role in ("beta", "decay")}
    queries = {
        f"layers.{{i}}.self_attn.q_proj.{leaf}": by_head(
            [f"{ATTENTION}.{role}.{leaf}" for role in ("query", "gate")], config.num_heads
        )
        for leaf in ("weight", "bias")
    }
    return queries | {
        "layers.{i}.linear_attn.in_proj_qkvz.weight": by_group(projected, groups),
        "layers.{i}.linear_attn.in_proj_ba.weight": by_group(numbers, groups),
        "layers.{i}.linear_attn.conv1d.weight": convolution(config.convolution_dims),
    }


def _mixers(fields: Fields) -> list[str]:
    count, kinds = layers(fields), fields["layer_types"]
    if kinds is None:
        every = whole(fields, "full_attention_interval")
        return [LINEAR if (i + 1) % every else FULL for i in range(count)]
    if not isinstance(kinds, list) or len(kinds) != count or any(kind not in (LINEAR, FULL) for kind in kinds):
        raise wrong("layer_types", kinds, f"{LINEAR} or {FULL} for each of {count} layers")
    return list(kinds)


def _configure(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    found = rotary(fields, whole(fields, "head_dim")) | head_width(fields, "hidden_size", "num_attention_heads")
    found |= llama.biases(fields) | sparse(fields)
    found |= {"shared_expert_dim": whole(fields, "shared_expert_intermediate_size")}
    kinds = _mixers(fields)
    feeds = list(itertools.islice(itertools.cycle(found.pop("layer_types", (EXPERTS,))), len(kinds)))
    own, both = found.pop("layer_overrides", {}), list(zip(feeds, kinds, strict=True))
    facts = {
        f"{feed}_{kind}": {**own.get(feed, {}), "mixer": "gated-delta" if kind == LINEAR else "attention"}
        for feed, kind in sorted(set(both), reverse=True)  # experts first
    }
    return found | (by_kind([f"{feed}_{kind}" for feed, kind in both], facts) if both else {})


def _write(config: TransformerConfig) -> dict[str, Any]:
    mixers = [config.for_layer("decoder", i).mixer for i in range(config.num_decoder_layers)]
    return {
        "partial_rotary_factor": 1.0,
        **llama.write_common(config),
        **write_sparse(config),
        "layer_types": [FULL if mixer == "attention" else LINEAR for mixer in mixers],
        "shared_expert_intermediate_size": config.shared_expert_dim,
    }


QWEN3_NEXT = dataclasses.replace(
    QWEN2_MOE,
    always=llama.ALWAYS
    | {"norm_gain": "one-plus-weight", "query_key_norm": True, "attention_gate": True, "activation": "silu"}
    | {"shared_expert_gate": True, "feed_forward_bias": False},
    fields={theirs: ours for theirs, ours in llama.FIELDS.items() if theirs != "intermediate_size"}
    | {"linear_num_value_heads": "recurrent_heads", "linear_num_key_heads": "recurrent_key_heads"}
    | {"linear_key_head_dim": "recurrent_key_dim", "linear_value_head_dim": "recurrent_value_dim"}
    | {"linear_conv_kernel_dim": "convolution_width"},
    configure=_configure,
    write=_write,
    model="Qwen3NextForCausalLM",
    reads=(
        *(*llama.READS, "attention_bias", *ROUTER, *SPARSE, "shared_expert_intermediate_size"),
        *("layer_types", "full_attention_interval"),
    ),
    defaults=llama.DEFAULTS
    | {"max_position_embeddings": 32_768, "num_key_value_heads": 2, "head_dim": 256, "partial_rotary_factor": 0.25}
    | {"attention_bias": False, "intermediate_size": 5632, "moe_intermediate_size": 512, "num_experts": 512}
    | {"num_local_experts": None, "num_experts_per_tok": 10, "norm_topk_prob": True, "mlp_only_layers": None}
    | {"decoder_sparse_step": 1, "shared_expert_intermediate_size": 512, "layer_types": None}
    | {"full_attention_interval": 4, "linear_num_value_heads": 32, "linear_num_key_heads": 16}
    | {"linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4},
    only={"hidden_act": ("silu",)},
    unneeded=UNNEEDED,
    names={
        **NO_QUERIES,
        "layers.{i}.linear_attn.A_log": f"{RECURRENCE}.log_rate",
        "layers.{i}.linear_attn.dt_bias": f"{RECURRENCE}.time_step_bias",
        "layers.{i}.linear_attn.norm.weight": f"{RECURRENCE}.gated_norm.weight",
        "layers.{i}.linear_attn.out_proj.weight": f"{RECURRENCE}.output.weight",
    },
    packed=_packed,
    classifier=None,
)

FAMILIES = {"qwen3_next": QWEN3_NEXT}
