"""GPT-2 (Radford et al. 2019)."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.fields import (
    OF_THE_LAST_TOKEN,
    Family,
    Fields,
    activation,
    activation_name,
    flag,
    whole,
)
from transparity_conformance.checkpoints.naming import Stored, Table, linears, transposed

LAYER = "decoder.layers.{i}"
ROLES = ("query", "key", "value")


def _third(packed: np.ndarray, index: int) -> np.ndarray:
    """A third of the last axis, in PyTorch's orientation: matrices are kept as (in, out)."""
    return np.split(packed, 3, axis=-1)[index].T


def _packed(leaf: str) -> Stored:
    """Query, key and value side by side."""
    names = [f"{LAYER}.self_attention.{role}.{leaf}" for role in ROLES]
    parts = tuple((name, partial(_third, index=i)) for i, name in enumerate(names))
    return Stored(parts, lambda thirds: np.concatenate([third.T for third in thirds], axis=-1))


NAMES: Table = {
    "wte.weight": "decoder.token_embedding.weight",
    "wpe.weight": "decoder.position_embedding.weight",
    "lm_head.weight": "head.weight",
    "h.{i}.attn.c_attn.weight": _packed("weight"),
    "h.{i}.attn.c_attn.bias": _packed("bias"),
    "h.{i}.attn.c_proj.weight": transposed(f"{LAYER}.self_attention.output.weight"),
    "h.{i}.attn.c_proj.bias": f"{LAYER}.self_attention.output.bias",
    "h.{i}.mlp.c_fc.weight": transposed(f"{LAYER}.feed_forward.up.weight"),
    "h.{i}.mlp.c_fc.bias": f"{LAYER}.feed_forward.up.bias",
    "h.{i}.mlp.c_proj.weight": transposed(f"{LAYER}.feed_forward.down.weight"),
    "h.{i}.mlp.c_proj.bias": f"{LAYER}.feed_forward.down.bias",
    **linears(
        {
            "h.{i}.ln_1": f"{LAYER}.self_attention_norm",
            "h.{i}.ln_2": f"{LAYER}.feed_forward_norm",
            "ln_f": "decoder.final_norm",
        }
    ),
}


def _configure(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    inner = 4 * whole(fields, "n_embd") if fields["n_inner"] is None else fields["n_inner"]
    return {
        "feed_forward_dim": inner,
        "activation": activation(fields, "activation_function"),
        "attention_scale": "head_dim" if flag(fields, "scale_attn_weights") else "none",
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    inner = config.feed_forward_dim
    return {
        "n_inner": None if inner == 4 * config.embed_dim else inner,
        "activation_function": activation_name(config),
        "scale_attn_weights": config.attention_scale == "head_dim",
    }


GPT2 = Family(
    always={
        "architecture": "decoder",
        "norm": "layer",
        "norm_position": "pre",
        "final_norm": True,
        "positions": "learned",
        "head_bias": False,
    },
    fields={
        "vocab_size": "target_vocab_size",
        "n_positions": "max_length",
        "n_embd": "embed_dim",
        "n_layer": "num_decoder_layers",
        "n_head": "num_heads",
        "layer_norm_epsilon": "norm_eps",
        "tie_word_embeddings": "tied_head",
    },
    configure=_configure,
    write=_write,
    model="GPT2LMHeadModel",
    reads=("n_inner", "activation_function", "scale_attn_weights"),
    defaults={
        "n_positions": 1024,
        "n_inner": None,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        "tie_word_embeddings": True,
    },
    only={"scale_attn_by_inverse_layer_idx": (False,)},
    unneeded=(
        *("n_ctx", "attn_pdrop", "embd_pdrop", "resid_pdrop", "reorder_and_upcast_attn", "summary_activation"),
        *("summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"),
    ),
    names=NAMES,
    prefixes=("transformer.",),
    no_parameters=("h.{i}.attn.bias", "h.{i}.attn.masked_bias"),  # the causal mask
    classifier=OF_THE_LAST_TOKEN,
)

FAMILIES = {"gpt2": GPT2}
