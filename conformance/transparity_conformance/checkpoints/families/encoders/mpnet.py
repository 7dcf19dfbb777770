"""MPNet (Song et al. 2020): RoBERTa's positions and heads, with T5's bias of distances beside the positions."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.families.bert import (
    BERT,
    LAYER,
    MASKED_OF_ROBERTA,
    NAMES,
    ROBERTA,
    written_head,
)
from transparity_conformance.checkpoints.fields import Fields
from transparity_conformance.checkpoints.naming import Table, linears

ATTENTION = "encoder.layer.{i}.attention."

OWN: Table = {
    **{theirs: ours for theirs, ours in NAMES.items() if ATTENTION not in theirs and "token_type" not in theirs},
    "encoder.relative_attention_bias.weight": "encoder.relative_bias.weight",
    **linears(
        {
            f"{ATTENTION}attn.q": f"{LAYER}.self_attention.query",
            f"{ATTENTION}attn.k": f"{LAYER}.self_attention.key",
            f"{ATTENTION}attn.v": f"{LAYER}.self_attention.value",
            f"{ATTENTION}attn.o": f"{LAYER}.self_attention.output",
            f"{ATTENTION}LayerNorm": f"{LAYER}.self_attention_norm",
        }
    ),
}


def _configure(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    return {**ROBERTA.configure({**fields, "pad_token_id": PAD}, names)}


def _write(config: TransformerConfig) -> dict[str, Any]:
    return {**ROBERTA.write(config), "relative_attention_num_buckets": BUCKETS, **written_head(config, CLASS)}


CLASS = "MPNetForMaskedLM"

PAD, BUCKETS, DISTANCE = 1, 32, 128
"""The token that positions are counted without, and the buckets: transformers has these numbers in its code."""

MPNET = dataclasses.replace(
    ROBERTA,
    always={**BERT.always, "relative_bias": True, "relative_buckets": BUCKETS, "relative_max_distance": DISTANCE},
    fields={theirs: ours for theirs, ours in BERT.fields.items() if theirs != "type_vocab_size"},
    configure=_configure,
    write=_write,
    model="MPNetModel",
    defaults={name: value for name, value in ROBERTA.defaults.items() if name != "type_vocab_size"},
    only={"relative_attention_num_buckets": (BUCKETS,), "pad_token_id": (PAD,)},
    unneeded=("attention_probs_dropout_prob", "hidden_dropout_prob"),
    names={**OWN, **MASKED_OF_ROBERTA},
    prefixes=("mpnet.",),
    no_parameters=("embeddings.position_ids",),
)

FAMILIES = {"mpnet": MPNET}
