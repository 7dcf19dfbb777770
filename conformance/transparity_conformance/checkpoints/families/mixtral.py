"""Mixtral (Jiang et al., 2024) and similar models: Qwen 2 MoE, Qwen 3 MoE, OLMoE and gpt-oss.

References: OLMoE (Muennighoff et al., 2024) and gpt-oss (OpenAI, 2025). gpt-oss has attention sinks, windows in every
other layer, and clamped gates. Files of gpt-oss store all experts of a layer as one tensor.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import is_whole
from transparity_conformance.checkpoints.families.llama import LAYER
from transparity_conformance.checkpoints.naming import StoredTensor, Table
from transparity_conformance.checkpoints.tables import kinds as layers
from transparity_conformance.checkpoints.tables import rows as row
from transparity_conformance.checkpoints.tables.kinds import FULL, SLIDING
from transparity_conformance.checkpoints.tables.rotary import read_rotary
from transparity_conformance.checkpoints.tables.rows import Fields

FEED = f"{LAYER}.feed_forward"

EXPERTS, DENSE = "experts", "dense"
"""The two kinds of layers: with experts, or with one feed-forward for all tokens."""


def _count(fields: Fields) -> int:
    name = "num_experts" if fields["num_local_experts"] is None else "num_local_experts"
    return row.as_whole(fields, name, 0, "a whole number")


def write_count(config: TransformerConfig) -> dict[str, Any]:
    return {"num_experts": max(each.num_experts for each in (config, *config.layer_kinds.values()))}


def read_sparse(fields: Fields) -> dict[str, Any]:
    """Return the fields of layers with and without experts. Every `decoder_sparse_step`-th layer has experts, except
    the layers that `mlp_only_layers` lists."""
    dense, every = fields["mlp_only_layers"] or [], row.as_whole(fields, "decoder_sparse_step")
    count = row.as_layers(fields)
    if not isinstance(dense, list) or not all(is_whole(each, 0) for each in dense):
        raise row.wrong("mlp_only_layers", dense, "the numbers of layers, from 0")
    experts = _count(fields)
    read_sparse = [experts > 0 and i not in dense and (i + 1) % every == 0 for i in range(count)]
    facts = {
        EXPERTS: {"num_experts": experts, "feed_forward_dim": row.as_whole(fields, "moe_intermediate_size")},
        DENSE: {"num_experts": 0, "feed_forward_dim": row.as_whole(fields, "intermediate_size")},
    }
    return layers.by_kind([EXPERTS if each else DENSE for each in read_sparse], facts)


def write_sparse(config: TransformerConfig) -> dict[str, Any]:
    """Invert `read_sparse`: list every layer without experts in `mlp_only_layers`."""
    own = layers.own_layers(config) or [config]
    widths = {bool(each.num_experts): each.feed_forward_dim for each in own}
    return write_count(config) | {
        "moe_intermediate_size": widths.get(True, config.feed_forward_dim),
        "intermediate_size": widths.get(False, config.feed_forward_dim),
        "mlp_only_layers": [i for i, each in enumerate(own) if not each.num_experts],
        "decoder_sparse_step": 1,
    }


def write_used_window(config: TransformerConfig) -> dict[str, Any]:
    return {"use_sliding_window": config.sliding_window is not None, "sliding_window": config.sliding_window}


def read_sparse_windows(fields: Fields) -> dict[str, Any]:
    """Return the fields for experts and windows of each layer. By default, layers 0, 2, 4, … have a window."""
    found, count = read_sparse(fields), row.as_layers(fields)
    if not row.as_flag(fields, "use_sliding_window"):
        return found
    first = row.as_whole(fields, "max_window_layers", 0, "a whole number")
    window = row.as_whole(fields, "sliding_window")
    kinds = [SLIDING if i < first and i % 2 == 0 else FULL for i in range(count)]
    kinds = kinds if fields["layer_types"] is None else layers.kinds_given(fields["layer_types"], count)
    return layers.by_both(found, kinds, {SLIDING: {"sliding_window": window}, FULL: {"sliding_window": None}}, EXPERTS)


YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}

YARN |= {"original_max_position_embeddings": 4096}
"""The rotary scaling that `transformers` uses for a file without a scaling."""


def _part(expert: int, first: int, step: int, tensor: np.ndarray) -> np.ndarray:
    return tensor[expert, ..., first::step].T


def _gates_and_ups(parts: Sequence[np.ndarray]) -> np.ndarray:
    """In each expert, interleave the gate's features and the up projection's features, as the file does."""
    pairs = [np.stack([gate.T, up.T], axis=-1) for gate, up in zip(parts[::2], parts[1::2], strict=True)]
    return np.stack([pair.reshape(*pair.shape[:-2], -1) for pair in pairs])


def packed_gpt_oss(config: TransformerConfig) -> Table:
    found: dict[str, str | StoredTensor] = {}
    for ending, leaf in (("", "weight"), ("_bias", "bias")):
        experts = [(f"{FEED}.experts.{expert}", expert) for expert in range(config.num_experts)]
        roles = [(f"{scope}.{role}.{leaf}", expert) for scope, expert in experts for role in ("gate", "up")]
        pairs = tuple((name, partial(_part, expert, place % 2, 2)) for place, (name, expert) in enumerate(roles))
        found[f"layers.{{i}}.mlp.experts.gate_up_proj{ending}"] = StoredTensor(pairs, _gates_and_ups)
        downs = tuple((f"{scope}.down.{leaf}", partial(_part, expert, 0, 1)) for scope, expert in experts)
        joined = lambda parts: np.stack([part.T for part in parts])
        found[f"layers.{{i}}.mlp.experts.down_proj{ending}"] = StoredTensor(downs, joined)
    return found


def read_rotary_gpt_oss(fields: Fields) -> dict[str, Any]:
    given = fields["rope_parameters"] or fields["rope_scaling"]
    return read_rotary(fields if given else {**fields, "rope_parameters": YARN})


def read_count(fields: Fields) -> dict[str, Any]:
    return {"num_experts": _count(fields)}


def read_used_window(fields: Fields) -> dict[str, Any]:
    return {"sliding_window": layers.used_window(fields)}


def write_sparse_windows(config: TransformerConfig) -> dict[str, Any]:
    return write_sparse(config) | write_used_window(config) | {"layer_types": layers.layer_kinds(config)}


read_unwritten_head_width = row.read_head_width
