"""Command R (Cohere 2024): parallel branches behind one norm without a bias, and scaled logits."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.families import llama
from transparity_conformance.checkpoints.fields import Fields, number
from transparity_conformance.checkpoints.naming import Table

NAMES: Table = {
    theirs: ours
    for theirs, ours in llama.NAMES.items()
    if not any(part in theirs for part in ("post_attention_layernorm", "q_norm", "k_norm"))
}


def _configure(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    found = llama.LLAMA.configure({**fields, "mlp_bias": False}, names)
    return {**found, "rope_layout": "interleaved", "head_multiplier": number(fields, "logit_scale")}


def _write(config: TransformerConfig) -> dict[str, Any]:
    written = {name: value for name, value in llama.LLAMA.write(config).items() if name != "mlp_bias"}
    return written | {"logit_scale": config.head_multiplier}


COHERE = dataclasses.replace(
    llama.LLAMA,
    always=llama.ALWAYS | {"norm": "layer", "norm_bias": False, "branches": "parallel-one-norm"},
    fields={("layer_norm_eps" if ours == "norm_eps" else theirs): ours for theirs, ours in llama.FIELDS.items()},
    configure=_configure,
    write=_write,
    model="CohereForCausalLM",
    reads=(*llama.READS, "attention_bias", "logit_scale"),
    defaults={name: value for name, value in llama.DEFAULTS.items() if name != "rms_norm_eps"}
    | {"max_position_embeddings": 8192, "layer_norm_eps": 1e-5, "tie_word_embeddings": True, "rope_theta": 500_000.0}
    | {"logit_scale": 0.0625, "attention_bias": False}
    | {"pad_token_id": 0, "bos_token_id": 5, "eos_token_id": 255_001},
    only={"use_qk_norm": (False,)},
    names=NAMES,
)

FAMILIES = {"cohere": COHERE}
