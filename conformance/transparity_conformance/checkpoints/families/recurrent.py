"""Models with recurrences: Qwen3-Next and Mamba-2.

Qwen3-Next (Qwen team, 2025) has gated delta networks, gated attention in every fourth layer, and experts. Mamba-2 (Dao
and Gu, 2024) is a state-space model without attention or feed-forwards.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import is_number
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
from transparity_conformance.checkpoints.naming import StoredTensor, Table, by_group, fused, linears, stacked, without
from transparity_conformance.checkpoints.reading import CheckpointError
from transparity_conformance.checkpoints.tables import rows as row
from transparity_conformance.checkpoints.tables.codecs import SIZES, Family
from transparity_conformance.checkpoints.tables.kinds import FULL, by_both, kinds_every, own_layers
from transparity_conformance.checkpoints.tables.rotary import rope, rotary, rotary_fields
from transparity_conformance.checkpoints.tables.rows import Fields

LINEAR = "linear_attention"
"""The name in `layer_types` of a layer with a recurrence."""

RECURRENCE = f"{LAYER}.recurrence"
ATTENTION = f"{LAYER}.self_attention"


def convolution(widths: Mapping[str, int]) -> StoredTensor:
    """Return the entry for a kernel (features, 1, width) that stacks the convolutions of several roles."""
    flat = stacked({f"{RECURRENCE}.{role}_convolution.weight": width for role, width in widths.items()})
    parts = tuple((name, lambda tensor, cut=cut: cut(tensor)[:, 0]) for name, cut in flat.parts)
    return StoredTensor(parts, lambda kernels: np.concatenate(kernels)[:, np.newaxis])


def _packed(config: TransformerConfig) -> Table:
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
        row.rename("linear_num_value_heads", "recurrent_heads", 32),
        row.rename("linear_num_key_heads", "recurrent_key_heads", 16),
        row.rename("linear_key_head_dim", "recurrent_key_dim", 128),
        row.rename("linear_value_head_dim", "recurrent_value_dim", 128),
        row.rename("linear_conv_kernel_dim", "convolution_width", 4),
        rope(
            lambda fields: rotary(fields, row.as_whole(fields, "head_dim")),
            lambda config: {"partial_rotary_factor": 1.0} | rotary_fields(config),
            partial_rotary_factor=0.25,
        ),
        row.derived(lambda fields: {}, lambda config: {"hidden_act": "silu"}, hidden_act="silu"),
        *ROUTER,
        row.derived(
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
        row.whole("shared_expert_intermediate_size", "shared_expert_dim", 512),
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


LONGEST_CHUNK = 256

LARGEST = float(np.finfo(np.float32).max)
"""The largest time step in written files. Published files have Infinity, which JSON does not allow."""


def _packed_mamba2(config: TransformerConfig) -> Table:
    convolved = {role: config.convolution_dims[role] for role in ("value", "key", "query")}
    rows = {"gate": config.recurrent_dim, **convolved, "decay": config.recurrent_heads}
    biases = {f"{RECURRENCE}.{role}_convolution.bias": width for role, width in convolved.items()}
    return fused("layers.{i}.mixer.in_proj", rows, RECURRENCE) | {
        "layers.{i}.mixer.conv1d.weight": convolution(convolved),
        "layers.{i}.mixer.conv1d.bias": stacked(biases),
    }


def _limits(fields: Fields) -> dict[str, Any]:
    """Return the bounds of the time step; None replaces infinity and the largest float32."""
    given: Any = fields["time_step_limit"]
    least, most = given if isinstance(given, list | tuple) and len(given) == 2 else (-1.0, -1.0)
    most = LARGEST if most == {"__float__": "Infinity"} else most
    if not is_number(least) or not is_number(most) or not 0 <= least <= most:
        raise row.wrong("time_step_limit", given, "two numbers of at least 0, the second not less than the first")
    return {"time_step_min": float(least), "time_step_max": None if most >= LARGEST else float(most)}


def _write_limits(config: TransformerConfig) -> dict[str, Any]:
    """Return the bounds of the time step, and a `chunk_size` that splits the longest text into several chunks."""
    return {
        "time_step_limit": [config.time_step_min, config.time_step_max or LARGEST],
        "chunk_size": min(LONGEST_CHUNK, 1 << max(1, config.max_length // 4).bit_length() - 1),
    }


def _widths(fields: Fields) -> dict[str, Any]:
    wide = row.as_whole(fields, "hidden_size") * row.as_whole(fields, "expand")
    heads = row.as_whole(fields, "num_heads")
    if heads * row.as_whole(fields, "head_dim") != wide:
        raise row.wrong("head_dim", fields["head_dim"], f"expand × hidden_size / num_heads = {wide} / {heads}")
    return {}


def _write_widths(config: TransformerConfig) -> dict[str, Any]:
    expand, rest = divmod(config.recurrent_dim, config.embed_dim)
    if rest:
        raise CheckpointError(
            f"The family mamba2 cannot express {config.recurrent_heads} heads of {config.recurrent_value_dim} features "
            f"with embed_dim {config.embed_dim}; expected heads × features to be a multiple of embed_dim."
        )
    return {"expand": expand}


MAMBA2 = Family(
    model="Mamba2ForCausalLM",
    example=SIZES
    | {"num_heads": 4, "head_dim": 12, "state_size": 5, "n_groups": 2, "bos_token_id": 1, "eos_token_id": 2}
    | {"time_step_limit": [0.4, 0.9]},
    always={"architecture": "decoder", "norm": "rms", "norm_position": "pre", "final_norm": True, "head_bias": False}
    | {"mixer": "state-space", "feed_forward_dim": 0, "positions": "none", "num_heads": 1},
    rows=(
        row.rename("vocab_size", "target_vocab_size", 32_768),
        row.rename("max_position_embeddings", "max_length", 2048),
        row.rename("hidden_size", "embed_dim", 4096),
        row.rename("num_hidden_layers", "num_decoder_layers", 64),
        row.rename("layer_norm_epsilon", "norm_eps", 1e-5),
        row.rename("tie_word_embeddings", "tied_head", False),
        row.rename("num_heads", "recurrent_heads", 128),
        row.rename("n_groups", "recurrent_key_heads", 8),
        row.rename("state_size", "recurrent_key_dim", 128),
        row.rename("head_dim", "recurrent_value_dim", 64),
        row.rename("conv_kernel", "convolution_width", 4),
        row.derived(_widths, _write_widths, expand=2),
        row.flag("use_conv_bias", "convolution_bias", True),
        row.flag("use_bias", "recurrent_bias", False),
        row.derived(_limits, _write_limits, time_step_limit=(0.0, LARGEST)),
    ),
    only={"hidden_act": ("silu", "swish"), "norm_before_gate": (False,), "rms_norm": (True,)},
    unneeded=(
        *("chunk_size", "residual_in_fp32", "rescale_prenorm_residual", "time_step_rank", "time_step_min"),
        *("time_step_max", "time_step_floor"),
    ),
    names={
        "embeddings.weight": "decoder.token_embedding.weight",
        "embedding.weight": "decoder.token_embedding.weight",
        "norm_f.weight": "decoder.final_norm.weight",
        "lm_head.weight": "head.weight",
        "layers.{i}.norm.weight": f"{LAYER}.self_attention_norm.weight",
        "layers.{i}.mixer.A_log": f"{RECURRENCE}.A_log",
        "layers.{i}.mixer.D": f"{RECURRENCE}.D",
        "layers.{i}.mixer.dt_bias": f"{RECURRENCE}.dt_bias",
        "layers.{i}.mixer.norm.weight": f"{RECURRENCE}.gated_norm.weight",
        **linears({"layers.{i}.mixer.out_proj": f"{RECURRENCE}.output"}),
    },
    packed=_packed_mamba2,
    prefixes=("backbone.",),
)

FAMILIES = {"mamba2": MAMBA2, "qwen3_next": QWEN3_NEXT}
