"""BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019) and XLM-R (Conneau et al. 2020), as encoders."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.fields import Family, Fields, activation, activation_name, whole, wrong
from transparity_conformance.checkpoints.naming import Table, linears

LAYER = "encoder.layers.{i}"

NAMES: Table = {
    "embeddings.word_embeddings.weight": "encoder.token_embedding.weight",
    "embeddings.token_type_embeddings.weight": "encoder.token_type_embedding.weight",
    "embeddings.position_embeddings.weight": "encoder.position_embedding.weight",
    **linears(
        {
            "embeddings.LayerNorm": "encoder.embedding_norm",
            "encoder.layer.{i}.attention.self.query": f"{LAYER}.self_attention.query",
            "encoder.layer.{i}.attention.self.key": f"{LAYER}.self_attention.key",
            "encoder.layer.{i}.attention.self.value": f"{LAYER}.self_attention.value",
            "encoder.layer.{i}.attention.output.dense": f"{LAYER}.self_attention.output",
            "encoder.layer.{i}.attention.output.LayerNorm": f"{LAYER}.self_attention_norm",
            "encoder.layer.{i}.intermediate.dense": f"{LAYER}.feed_forward.up",
            "encoder.layer.{i}.output.dense": f"{LAYER}.feed_forward.down",
            "encoder.layer.{i}.output.LayerNorm": f"{LAYER}.feed_forward_norm",
            "pooler.dense": "pooler",
        }
    ),
}


def _bert(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    """The head is the pooler, if there is one: the head of masked words has a layer that no configuration has."""
    return {
        "max_length": fields["max_position_embeddings"],
        "activation": activation(fields, "hidden_act"),
        "head": "pooled" if "pooler.dense.weight" in names else "hidden",
    }


def _roberta(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    """Positions count tokens that are not padding, from pad_token_id + 1 on."""
    pad = fields["pad_token_id"]
    if not isinstance(pad, int):
        raise wrong("pad_token_id", pad, "a token: positions are counted from it")
    counted = {"position_offset": pad + 1, "position_count": "visible"}
    return _bert(fields, names) | counted | {"max_length": whole(fields, "max_position_embeddings") - pad - 1}


def _write_bert(config: TransformerConfig) -> dict[str, Any]:
    return {"max_position_embeddings": config.max_length, "hidden_act": activation_name(config)}


def _write_roberta(config: TransformerConfig) -> dict[str, Any]:
    return _write_bert(config) | {"max_position_embeddings": config.num_positions}


BERT = Family(
    always={
        "architecture": "encoder",
        "norm": "layer",
        "norm_position": "post",
        "positions": "learned",
        "embedding_norm": True,
    },
    fields={
        "vocab_size": "source_vocab_size",
        "hidden_size": "embed_dim",
        "num_hidden_layers": "num_encoder_layers",
        "num_attention_heads": "num_heads",
        "intermediate_size": "feed_forward_dim",
        "layer_norm_eps": "norm_eps",
        "type_vocab_size": "num_token_types",
    },
    configure=_bert,
    write=_write_bert,
    model="BertModel",
    reads=("max_position_embeddings", "hidden_act"),
    defaults={
        "max_position_embeddings": 512,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 2,
        "pad_token_id": 0,
    },
    only={"position_embedding_type": ("absolute",)},
    unneeded=(
        *("attention_probs_dropout_prob", "hidden_dropout_prob", "tie_word_embeddings"),
        *("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"),
        *("pooler_size_per_head", "pooler_type"),
    ),
    names=NAMES,
    prefixes=("bert.",),
    no_parameters=("embeddings.position_ids", "embeddings.token_type_ids"),
)

ROBERTA = dataclasses.replace(
    BERT,
    configure=_roberta,
    write=_write_roberta,
    model="RobertaModel",
    defaults={**BERT.defaults, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
    prefixes=("roberta.",),
)

XLM_ROBERTA = dataclasses.replace(ROBERTA, model="XLMRobertaModel")

FAMILIES = {"bert": BERT, "roberta": ROBERTA, "xlm-roberta": XLM_ROBERTA}
