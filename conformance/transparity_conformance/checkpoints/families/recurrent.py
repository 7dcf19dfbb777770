"""Models with recurrences: Qwen3-Next and Mamba-2.

Qwen3-Next (Qwen team, 2025) has gated delta networks, gated attention in every fourth layer, and experts. Mamba-2 (Dao
and Gu, 2024) is a state-space model without attention or feed-forwards.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import is_number
from transparity_conformance.checkpoints.families.llama import LAYER
from transparity_conformance.checkpoints.families.mixtral import (
    EXPERTS,
    read_sparse,
    write_sparse,
)
from transparity_conformance.checkpoints.naming import StoredTensor, Table, by_group, fused, stacked
from transparity_conformance.checkpoints.reading import CheckpointError
from transparity_conformance.checkpoints.tables import rows as row
from transparity_conformance.checkpoints.tables.kinds import FULL, by_both, kinds_every, own_layers
from transparity_conformance.checkpoints.tables.rotary import read_rotary, write_rotary
from transparity_conformance.checkpoints.tables.rows import Fields

LINEAR = "linear_attention"
"""The name in `layer_types` of a layer with a recurrence."""

RECURRENCE = f"{LAYER}.recurrence"

ATTENTION = f"{LAYER}.self_attention"


def convolution(widths: Mapping[str, int]) -> StoredTensor:
    """Return the table entry for a kernel (features, 1, width) that stacks the kernels of several roles, such as query
    and key."""
    flat = stacked({f"{RECURRENCE}.{role}_convolution.weight": width for role, width in widths.items()})
    parts = tuple((name, lambda tensor, cut=cut: cut(tensor)[:, 0]) for name, cut in flat.parts)
    return StoredTensor(parts, lambda kernels: np.concatenate(kernels)[:, np.newaxis])


def packed_qwen3_next(config: TransformerConfig) -> Table:
    """Return the table entries for fused tensors. In a recurrence, a group consists of the heads that share a key."""
    groups = config.recurrent_key_heads
    shares = config.recurrent_heads // groups
    rows = {"query": config.recurrent_key_dim, "key": config.recurrent_key_dim}
    rows |= dict.fromkeys(("value", "gate"), shares * config.recurrent_value_dim)
    projected = {f"{RECURRENCE}.{role}.weight": count for role, count in rows.items()}
    numbers = {f"{RECURRENCE}.{role}.weight": shares for role in ("beta", "decay")}
    gated = dict.fromkeys(("query", "gate"), config.head_dim)
    return fused("layers.{i}.self_attn.q_proj", gated, ATTENTION, config.num_heads) | {
        "layers.{i}.linear_attn.in_proj_qkvz.weight": by_group(projected, groups),
        "layers.{i}.linear_attn.in_proj_ba.weight": by_group(numbers, groups),
        "layers.{i}.linear_attn.conv1d.weight": convolution(config.convolution_dims),
    }


MIXERS = {LINEAR: {"mixer": "gated-delta"}, FULL: {"mixer": "attention"}}


def read_layers_qwen3_next(fields: Fields) -> dict[str, Any]:
    found = read_sparse(fields)
    return by_both(found, kinds_every(fields, "full_attention_interval", (LINEAR, FULL)), MIXERS, EXPERTS)


def write_layers_qwen3_next(config: TransformerConfig) -> dict[str, Any]:
    kinds = [FULL if each.mixer == "attention" else LINEAR for each in own_layers(config)]
    return write_sparse(config) | {"layer_types": kinds}


LONGEST_CHUNK = 256

LARGEST = float(np.finfo(np.float32).max)
"""The largest time step in written files. Published files have Infinity, which JSON does not allow."""


def packed_mamba2(config: TransformerConfig) -> Table:
    convolved = {role: config.convolution_dims[role] for role in ("value", "key", "query")}
    rows = {"gate": config.recurrent_dim, **convolved, "decay": config.recurrent_heads}
    biases = {f"{RECURRENCE}.{role}_convolution.bias": width for role, width in convolved.items()}
    return fused("layers.{i}.mixer.in_proj", rows, RECURRENCE) | {
        "layers.{i}.mixer.conv1d.weight": convolution(convolved),
        "layers.{i}.mixer.conv1d.bias": stacked(biases),
    }


def read_limits(fields: Fields) -> dict[str, Any]:
    """Return the bounds of the time step; None replaces infinity and the largest float32."""
    given: Any = fields["time_step_limit"]
    least, most = given if isinstance(given, list | tuple) and len(given) == 2 else (-1.0, -1.0)
    most = LARGEST if most == {"__float__": "Infinity"} else most
    if not is_number(least) or not is_number(most) or not 0 <= least <= most:
        raise row.wrong("time_step_limit", given, "two numbers of at least 0, the second not less than the first")
    return {"time_step_min": float(least), "time_step_max": None if most >= LARGEST else float(most)}


def write_limits(config: TransformerConfig) -> dict[str, Any]:
    """Return the bounds of the time step, and a `chunk_size` that splits the longest text into several chunks."""
    return {
        "time_step_limit": [config.time_step_min, config.time_step_max or LARGEST],
        "chunk_size": min(LONGEST_CHUNK, 1 << max(1, config.max_length // 4).bit_length() - 1),
    }


def read_widths(fields: Fields) -> dict[str, Any]:
    wide = row.as_whole(fields, "hidden_size") * row.as_whole(fields, "expand")
    heads = row.as_whole(fields, "num_heads")
    if heads * row.as_whole(fields, "head_dim") != wide:
        raise row.wrong("head_dim", fields["head_dim"], f"expand × hidden_size / num_heads = {wide} / {heads}")
    return {}


def write_widths(config: TransformerConfig) -> dict[str, Any]:
    expand, rest = divmod(config.recurrent_dim, config.embed_dim)
    if rest:
        raise CheckpointError(
            f"The family mamba2 cannot express {config.recurrent_heads} heads of {config.recurrent_value_dim} features "
            f"with embed_dim {config.embed_dim}; expected heads × features to be a multiple of embed_dim."
        )
    return {"expand": expand}


def read_part(fields: Fields) -> dict[str, Any]:
    return read_rotary(fields, row.as_whole(fields, "head_dim"))


def write_part(config: TransformerConfig) -> dict[str, Any]:
    return {"partial_rotary_factor": 1.0} | write_rotary(config)
