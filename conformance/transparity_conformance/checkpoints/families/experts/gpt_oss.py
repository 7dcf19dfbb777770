"""gpt-oss (OpenAI 2025): attention sinks, windows in turn, and experts with bounded gates in one tensor for all."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import numpy as np

from transparity.config import FULL, SLIDING, TransformerConfig
from transparity_conformance.checkpoints.families import llama
from transparity_conformance.checkpoints.families.experts.mixtral import ATTENTION, FEED
from transparity_conformance.checkpoints.fields import (
    ROTARY,
    Fields,
    flag,
    head_width,
    layer_kinds,
    layers,
    rotary,
    rotary_fields,
    windows,
)
from transparity_conformance.checkpoints.naming import Stored, Table, linears

EXPERTS = "layers.{i}.mlp.experts"

YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
YARN |= {"original_max_position_embeddings": 4096}
"""The scaling of positions in a file without any."""


def _part(expert: int, first: int, step: int, tensor: np.ndarray) -> np.ndarray:
    """A weight or bias of an expert: every `step`-th of the features that it writes."""
    return tensor[expert, ..., first::step].T


def _gates_and_ups(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The features of gate and up in turn, of each expert."""
    pairs = [np.stack([gate.T, up.T], axis=-1) for gate, up in zip(parts[::2], parts[1::2], strict=True)]
    return np.stack([pair.reshape(*pair.shape[:-2], -1) for pair in pairs])


def _downs(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.stack([part.T for part in parts])


def _packed(config: TransformerConfig) -> Table:
    """The tensors of all experts, stored as (experts, in, out)."""
    found: dict[str, str | Stored] = {}
    for ending, leaf in (("", "weight"), ("_bias", "bias")):
        experts = [(f"{FEED}.experts.{expert}", expert) for expert in range(config.num_experts)]
        roles = [(f"{scope}.{role}.{leaf}", expert) for scope, expert in experts for role in ("gate", "up")]
        pairs = tuple((name, partial(_part, expert, place % 2, 2)) for place, (name, expert) in enumerate(roles))
        found[f"{EXPERTS}.gate_up_proj{ending}"] = Stored(pairs, _gates_and_ups)
        downs = tuple((f"{scope}.down.{leaf}", partial(_part, expert, 0, 1)) for scope, expert in experts)
        found[f"{EXPERTS}.down_proj{ending}"] = Stored(downs, _downs)
    return found


def _configure(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    kinds, count = fields["layer_types"], layers(fields)
    kinds = [FULL if i % 2 else SLIDING for i in range(count)] if kinds is None else kinds
    given = fields["rope_parameters"] or fields["rope_scaling"]
    scaling = {} if given else {"rope_parameters": YARN}
    found = rotary({**fields, **scaling}) | head_width(fields, "hidden_size", "num_attention_heads")
    biases = dict.fromkeys(("qkv_bias", "output_bias"), flag(fields, "attention_bias"))
    return found | windows(kinds, fields["sliding_window"], count) | biases


def _write(config: TransformerConfig) -> dict[str, Any]:
    return rotary_fields(config) | {
        "num_key_value_heads": config.key_value_heads,
        "attention_bias": config.qkv_bias,
        "sliding_window": config.sliding_window,
        "layer_types": layer_kinds(config),
    }


GPT_OSS = dataclasses.replace(
    llama.LLAMA,
    always=llama.ALWAYS
    | {"activation": "gelu-quick", "up_offset": 1.0, "feed_forward_bias": True, "attention_sinks": True}
    | {"router_bias": True, "router_normalized": True},
    fields=llama.FIELDS
    | {"num_local_experts": "num_experts", "num_experts_per_tok": "experts_per_token", "swiglu_limit": "gate_limit"},
    configure=_configure,
    write=_write,
    model="GptOssForCausalLM",
    reads=(*ROTARY, "head_dim", "attention_bias", "sliding_window", "layer_types"),
    defaults={name: value for name, value in llama.DEFAULTS.items() if name != "hidden_act"}
    | {"max_position_embeddings": 131_072, "num_key_value_heads": 8, "head_dim": 64, "rms_norm_eps": 1e-5}
    | {"rope_theta": 150_000.0, "sliding_window": 128, "layer_types": None, "attention_bias": True}
    | {"num_local_experts": 128, "num_experts_per_tok": 4, "swiglu_limit": 7.0},
    only={"swiglu_alpha": (1.702,)},
    unneeded=(
        *("attention_dropout", "hidden_act", "initial_context_length", "output_router_logits"),
        *("router_aux_loss_coef", "experts_per_token"),
    ),
    names={
        **ATTENTION,
        "layers.{i}.self_attn.sinks": f"{llama.LAYER}.self_attention.sinks",
        **linears({"layers.{i}.mlp.router": f"{FEED}.router"}),
    },
    packed=_packed,
)

FAMILIES = {"gpt_oss": GPT_OSS}
