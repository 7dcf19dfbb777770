"""Command R (Cohere 2024): parallel branches behind one norm without a bias, and scaled logits; Command R7B."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from transparity.config import FULL, SLIDING, TransformerConfig
from transparity_conformance.checkpoints.families import llama
from transparity_conformance.checkpoints.fields import Fields, by_kind, kinds_by_pattern, layer_kinds, number, wrong
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


def _configure2(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    found = _configure(fields, names)
    if "attention_head_dim" in found:
        raise wrong("head_dim", fields["head_dim"], "hidden_size / num_attention_heads, or none")
    window, kinds = fields["sliding_window"], kinds_by_pattern(fields)
    positions = "none" if window is None and kinds else "rotary"  # transformers rotates layers that have a window
    facts = {SLIDING: {"sliding_window": window, "positions": positions}}
    facts |= {FULL: {"sliding_window": None, "positions": "none"}}
    return found | by_kind(kinds, facts)


def _write2(config: TransformerConfig) -> dict[str, Any]:
    return _write(config) | {"sliding_window": config.sliding_window, "layer_types": layer_kinds(config)}


COHERE2 = dataclasses.replace(
    COHERE,
    configure=_configure2,
    write=_write2,
    model="Cohere2ForCausalLM",
    reads=(*COHERE.reads, "sliding_window", "layer_types", "sliding_window_pattern"),
    defaults={**COHERE.defaults, "rope_theta": 10_000.0, "sliding_window": 4096}
    | {"layer_types": None, "sliding_window_pattern": 4},
)

FAMILIES = {"cohere": COHERE, "cohere2": COHERE2}
