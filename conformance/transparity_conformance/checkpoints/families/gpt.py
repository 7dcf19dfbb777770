"""GPT-2, GPT-J, GPT-NeoX, Pythia and Falcon.

References: GPT-2 (Radford et al., 2019), GPT-J (Wang and Komatsuzaki, 2021), GPT-NeoX (Black et al., 2022), Falcon
(Almazrouei et al., 2023). In GPT-J, attention and feed-forward read the same norm. GPT-NeoX and Pythia have two norms,
and one matrix with the rows of query, key and value, head by head. Falcon has one or two norms, and one matrix with the
rows of queries, key and value, head group by head group.
"""

from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.naming import (
    StoredTensor,
    Table,
    fused,
)
from transparity_conformance.checkpoints.reading import CheckpointError
from transparity_conformance.checkpoints.tables import rows as row
from transparity_conformance.checkpoints.tables.rotary import ROTARY, read_rotary, write_rotary
from transparity_conformance.checkpoints.tables.rows import Fields

LAYER = "decoder.layers.{i}"

ROLES = [f"{LAYER}.self_attention.{role}" for role in ("query", "key", "value")]


def read_inner_gpt2(fields: Fields) -> dict[str, Any]:
    inner = fields["n_inner"]
    return {"feed_forward_dim": 4 * row.as_whole(fields, "n_embd") if inner is None else inner}


def write_inner_gpt2(config: TransformerConfig) -> dict[str, Any]:
    inner = config.feed_forward_dim
    return {"n_inner": None if inner == 4 * config.embed_dim else inner}


def read_rotary_neox(fields: Fields) -> dict[str, Any]:
    given = {"rope_theta": fields["rotary_emb_base"], "partial_rotary_factor": fields["rotary_pct"]}
    given |= {name: value for name, value in fields.items() if name in ("rope_theta", *ROTARY) and value is not None}
    head_dim = row.as_whole(fields, "hidden_size") // row.as_whole(fields, "num_attention_heads")
    return read_rotary({**fields, **given}, head_dim)


def write_rotary_neox(config: TransformerConfig) -> dict[str, Any]:
    whole_heads = (config.key_value_heads, config.attention_dim) == (config.num_heads, config.embed_dim)
    if not whole_heads or config.projection != "full":
        raise CheckpointError(
            f"The family gpt_neox cannot express {config.key_value_heads} key heads of {config.head_dim} features with "
            f"projection {config.projection!r}; expected 'full', and {config.num_heads} heads that divide embed_dim."
        )
    found = write_rotary(config)
    part = found.get("partial_rotary_factor", 1.0)
    rope = found["rope_parameters"] | {"partial_rotary_factor": part}
    return {"rope_parameters": rope, "rotary_emb_base": config.rope_theta, "rotary_pct": part}


def packed_falcon(config: TransformerConfig) -> Table:
    counts = (config.num_heads // config.key_value_heads, 1, 1)
    rows = {role: count * config.head_dim for role, count in zip(ROLES, counts, strict=True)}
    packed = fused("h.{i}.self_attention.query_key_value", rows, groups=config.key_value_heads)
    names = ("ln_attn", "ln_mlp") if config.branches == "parallel" else ("input_layernorm", "post_attention_layernorm")
    norms = zip(names, ("self_attention_norm", "feed_forward_norm"), strict=True)
    return packed | {
        f"h.{{i}}.{theirs}.{leaf}": f"{LAYER}.{ours}.{leaf}" for theirs, ours in norms for leaf in ("weight", "bias")
    }


def read_heads(fields: Fields) -> dict[str, Any]:
    heads, grouped = row.as_whole(fields, "num_attention_heads"), row.as_flag(fields, "new_decoder_architecture")
    if grouped and not row.as_flag(fields, "parallel_attn"):
        raise row.wrong("parallel_attn", fields["parallel_attn"], "true, because new_decoder_architecture is true")
    given = heads if fields["num_kv_heads"] is None else row.as_whole(fields, "num_kv_heads")
    norms = fields["num_ln_in_parallel_attn"]
    if norms not in (None, 1, 2):
        raise row.wrong("num_ln_in_parallel_attn", norms, "1, 2 or null")
    branches = "parallel" if grouped and norms != 1 else "parallel-one-norm"
    return {
        "num_key_value_heads": given if grouped else 1 if row.as_flag(fields, "multi_query") else heads,
        "branches": branches if row.as_flag(fields, "parallel_attn") else "sequential",
    }


def write_heads(config: TransformerConfig) -> dict[str, Any]:
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


def read_inner_falcon(fields: Fields) -> dict[str, Any]:
    name, times = ("hidden_size", 4) if fields["ffn_hidden_size"] is None else ("ffn_hidden_size", 1)
    return {"feed_forward_dim": times * row.as_whole(fields, name)}


def packed_gpt2(config: TransformerConfig) -> Table:
    return {f"h.{{i}}.attn.c_attn.{leaf}": _thirds(leaf) for leaf in ("weight", "bias")}


def _thirds(leaf: str) -> StoredTensor:
    parts = tuple(
        (f"{role}.{leaf}", lambda packed, i=i: np.split(packed, 3, axis=-1)[i].T) for i, role in enumerate(ROLES)
    )
    return StoredTensor(parts, lambda thirds: np.concatenate([third.T for third in thirds], axis=-1))


def packed_neox(config: TransformerConfig) -> Table:
    rows = dict.fromkeys(ROLES, config.head_dim)
    return fused("layers.{i}.attention.query_key_value", rows, groups=config.num_heads)


def write_inner_falcon(config: TransformerConfig) -> dict[str, Any]:
    return {"ffn_hidden_size": config.feed_forward_dim}
