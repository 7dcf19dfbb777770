"""Mamba-2 (Dao and Gu 2024): state-space models without attention or feed-forwards."""

from __future__ import annotations

from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import is_number
from transparity_conformance.checkpoints.families.llama import LAYER
from transparity_conformance.checkpoints.families.qwen3_next import RECURRENCE, convolution
from transparity_conformance.checkpoints.naming import Table, linears, stacked
from transparity_conformance.checkpoints.reading import CheckpointError
from transparity_conformance.checkpoints.tables.codecs import SIZES, Family
from transparity_conformance.checkpoints.tables.rows import derived, flag, rename
from transparity_conformance.checkpoints.tables.values import Fields, as_whole, wrong

LONGEST_CHUNK = 256

LARGEST = float(np.finfo(np.float32).max)
"""The time step's upper bound in files; it has no effect. Published files have Infinity, which is not valid JSON."""


def _packed(config: TransformerConfig) -> Table:
    """Return the fused projection, and the fused convolution of values, keys and queries, in that order."""
    convolved = {role: config.convolution_dims[role] for role in ("value", "key", "query")}
    rows = {"gate": config.recurrent_dim, **convolved, "decay": config.recurrent_heads}
    projected = {
        f"layers.{{i}}.mixer.in_proj.{leaf}": stacked({f"{RECURRENCE}.{role}.{leaf}": rows[role] for role in rows})
        for leaf in ("weight", "bias")
    }
    biases = {f"{RECURRENCE}.{role}_convolution.bias": width for role, width in convolved.items()}
    return projected | {
        "layers.{i}.mixer.conv1d.weight": convolution(convolved),
        "layers.{i}.mixer.conv1d.bias": stacked(biases),
    }


def _limits(fields: Fields) -> dict[str, Any]:
    """Return the bounds of the time step; an upper bound that is infinite or the largest float32 becomes None."""
    given: Any = fields["time_step_limit"]
    least, most = given if isinstance(given, list | tuple) and len(given) == 2 else (-1.0, -1.0)
    most = LARGEST if most == {"__float__": "Infinity"} else most
    if not is_number(least) or not is_number(most) or not 0 <= least <= most:
        raise wrong("time_step_limit", given, "two numbers of at least 0, the second not less than the first")
    return {"time_step_min": float(least), "time_step_max": None if most >= LARGEST else float(most)}


def _write_limits(config: TransformerConfig) -> dict[str, Any]:
    """Return the bounds, and a `chunk_size` that is a power of two below the length; the size affects only rounding."""
    return {
        "time_step_limit": [config.time_step_min, config.time_step_max or LARGEST],
        "chunk_size": min(LONGEST_CHUNK, 1 << max(1, config.max_length // 4).bit_length() - 1),
    }


def _widths(fields: Fields) -> dict[str, Any]:
    wide, heads = as_whole(fields, "hidden_size") * as_whole(fields, "expand"), as_whole(fields, "num_heads")
    if heads * as_whole(fields, "head_dim") != wide:
        raise wrong("head_dim", fields["head_dim"], f"expand × hidden_size / num_heads = {wide} / {heads}")
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
        rename("vocab_size", "target_vocab_size", 32_768),
        rename("max_position_embeddings", "max_length", 2048),
        rename("hidden_size", "embed_dim", 4096),
        rename("num_hidden_layers", "num_decoder_layers", 64),
        rename("layer_norm_epsilon", "norm_eps", 1e-5),
        rename("tie_word_embeddings", "tied_head", False),
        rename("num_heads", "recurrent_heads", 128),
        rename("n_groups", "recurrent_key_heads", 8),
        rename("state_size", "recurrent_key_dim", 128),
        rename("head_dim", "recurrent_value_dim", 64),
        rename("conv_kernel", "convolution_width", 4),
        derived(_widths, _write_widths, expand=2),
        flag("use_conv_bias", "convolution_bias", True),
        flag("use_bias", "recurrent_bias", False),
        derived(_limits, _write_limits, time_step_limit=(0.0, LARGEST)),
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
    packed=_packed,
    prefixes=("backbone.",),
)

FAMILIES = {"mamba2": MAMBA2}
