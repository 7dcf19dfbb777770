"""OLMo 2 (OLMo Team 2024): Llama with norms behind the sublayers, and queries and keys normalised as a whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.families import llama
from transparity_conformance.checkpoints.fields import Fields
from transparity_conformance.checkpoints.naming import Table

NAMES: Table = {
    **{theirs: ours for theirs, ours in llama.NAMES.items() if "layernorm" not in theirs},
    "layers.{i}.post_attention_layernorm.weight": f"{llama.LAYER}.self_attention_norm.weight",
    "layers.{i}.post_feedforward_layernorm.weight": f"{llama.LAYER}.feed_forward_norm.weight",
}


def _configure(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    return dict(llama.LLAMA.configure({**fields, "mlp_bias": False}, names))


def _write(config: TransformerConfig) -> dict[str, Any]:
    return {name: value for name, value in llama.LLAMA.write(config).items() if name != "mlp_bias"}


OLMO2 = dataclasses.replace(
    llama.LLAMA,
    always=llama.ALWAYS | {"norm_position": "branch", "query_key_norm": True, "query_key_norm_over": "projection"},
    configure=_configure,
    write=_write,
    model="Olmo2ForCausalLM",
    reads=(*llama.READS, "attention_bias"),
    defaults=llama.DEFAULTS
    | {"rms_norm_eps": 1e-5, "attention_bias": False}
    | {"pad_token_id": 1, "bos_token_id": None, "eos_token_id": 50_279},
    names=NAMES,
)

FAMILIES = {"olmo2": OLMO2}
