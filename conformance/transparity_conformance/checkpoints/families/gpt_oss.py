"""gpt-oss (OpenAI 2025): attention sinks, windows in alternate layers, clamped gates; all experts are one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.families.llama import LAYER, NAMES, PLAIN, WIDE
from transparity_conformance.checkpoints.families.mixtral import FEED
from transparity_conformance.checkpoints.naming import StoredTensor, Table, linears, without
from transparity_conformance.checkpoints.tables.kinds import windows_in_turn
from transparity_conformance.checkpoints.tables.rotary import rope, rotary
from transparity_conformance.checkpoints.tables.rows import flag, rename
from transparity_conformance.checkpoints.tables.values import Fields

EXPERTS = "layers.{i}.mlp.experts"

YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
YARN |= {"original_max_position_embeddings": 4096}
"""The rotary scaling that transformers uses for a file without any."""


def _part(expert: int, first: int, step: int, tensor: np.ndarray) -> np.ndarray:
    """Return a weight or bias of one expert: every `step`-th output feature, starting at `first`."""
    return tensor[expert, ..., first::step].T


def _gates_and_ups(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Interleave the features of `gate` and `up` for each expert, as the file stores them."""
    pairs = [np.stack([gate.T, up.T], axis=-1) for gate, up in zip(parts[::2], parts[1::2], strict=True)]
    return np.stack([pair.reshape(*pair.shape[:-2], -1) for pair in pairs])


def _downs(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.stack([part.T for part in parts])


def _packed(config: TransformerConfig) -> Table:
    """Return the tensors that contain all experts: (experts, in, out)."""
    found: dict[str, str | StoredTensor] = {}
    for ending, leaf in (("", "weight"), ("_bias", "bias")):
        experts = [(f"{FEED}.experts.{expert}", expert) for expert in range(config.num_experts)]
        roles = [(f"{scope}.{role}.{leaf}", expert) for scope, expert in experts for role in ("gate", "up")]
        pairs = tuple((name, partial(_part, expert, place % 2, 2)) for place, (name, expert) in enumerate(roles))
        found[f"{EXPERTS}.gate_up_proj{ending}"] = StoredTensor(pairs, _gates_and_ups)
        downs = tuple((f"{scope}.down.{leaf}", partial(_part, expert, 0, 1)) for scope, expert in experts)
        found[f"{EXPERTS}.down_proj{ending}"] = StoredTensor(downs, _downs)
    return found


def _rotary(fields: Fields) -> dict[str, Any]:
    given = fields["rope_parameters"] or fields["rope_scaling"]
    return rotary(fields if given else {**fields, "rope_parameters": YARN})


GPT_OSS = PLAIN.variant(
    model="GptOssForCausalLM",
    example=WIDE
    | {"num_hidden_layers": 3, "sliding_window": 5, "num_local_experts": 5, "num_experts_per_tok": 2}
    | {"rope_theta": 150_000.0},
    always={"activation": "gelu-quick", "up_offset": 1.0, "feed_forward_bias": True, "attention_sinks": True}
    | {"router_bias": True, "normalize_topk": True},
    rows=(
        rename("num_local_experts", "num_experts", 128),
        rename("num_experts_per_tok", "experts_per_token", 4),
        rename("swiglu_limit", "gate_limit", 7.0),
        rope(_rotary, rope_theta=150_000.0),
        windows_in_turn(128),
        flag("attention_bias", ("qkv_bias", "output_bias"), True),
    ),
    without=("hidden_act",),
    defaults={"max_position_embeddings": 131_072, "num_key_value_heads": 8, "head_dim": 64, "rms_norm_eps": 1e-5},
    only={"swiglu_alpha": (1.702,)},
    unneeded=(
        *("attention_dropout", "hidden_act", "initial_context_length", "output_router_logits"),
        *("router_aux_loss_coef", "experts_per_token"),
    ),
    names={
        **without(NAMES, ".mlp."),
        "layers.{i}.self_attn.sinks": f"{LAYER}.self_attention.sinks",
        **linears({"layers.{i}.mlp.router": f"{FEED}.router"}),
    },
    packed=_packed,
)

FAMILIES = {"gpt_oss": GPT_OSS}
