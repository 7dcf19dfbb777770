"""DistilBERT (Sanh et al. 2019): half of BERT's layers, without token types and without a pooler."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.families.bert import OF_CLASSES, masked_head, written_head
from transparity_conformance.checkpoints.fields import Classifier, Family, Fields, activation, activation_name
from transparity_conformance.checkpoints.naming import Table, linears

LAYER = "encoder.layers.{i}"

NAMES: Table = {
    "embeddings.word_embeddings.weight": "encoder.token_embedding.weight",
    "embeddings.position_embeddings.weight": "encoder.position_embedding.weight",
    **linears(
        {
            "embeddings.LayerNorm": "encoder.embedding_norm",
            "transformer.layer.{i}.attention.q_lin": f"{LAYER}.self_attention.query",
            "transformer.layer.{i}.attention.k_lin": f"{LAYER}.self_attention.key",
            "transformer.layer.{i}.attention.v_lin": f"{LAYER}.self_attention.value",
            "transformer.layer.{i}.attention.out_lin": f"{LAYER}.self_attention.output",
            "transformer.layer.{i}.sa_layer_norm": f"{LAYER}.self_attention_norm",
            "transformer.layer.{i}.ffn.lin1": f"{LAYER}.feed_forward.up",
            "transformer.layer.{i}.ffn.lin2": f"{LAYER}.feed_forward.down",
            "transformer.layer.{i}.output_layer_norm": f"{LAYER}.feed_forward_norm",
            "vocab_transform": "head_transform",
            "vocab_layer_norm": "head_norm",
            "vocab_projector": "head",
        }
    ),
}


def _configure(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    is_masked = "vocab_transform.weight" in names
    return {"activation": activation(fields, "activation")} | masked_head(fields, names, is_masked=is_masked)


def _write(config: TransformerConfig) -> dict[str, Any]:
    return {"activation": activation_name(config)} | written_head(config, "DistilBertForMaskedLM")


DISTILBERT = Family(
    always={
        "architecture": "encoder",
        "norm": "layer",
        "norm_eps": 1e-12,
        "norm_position": "post",
        "positions": "learned",
        "embedding_norm": True,
    },
    fields={
        "vocab_size": "source_vocab_size",
        "max_position_embeddings": "max_length",
        "dim": "embed_dim",
        "n_layers": "num_encoder_layers",
        "n_heads": "num_heads",
        "hidden_dim": "feed_forward_dim",
    },
    configure=_configure,
    write=_write,
    model="DistilBertModel",
    reads=("activation", "tie_word_embeddings"),
    defaults={
        "max_position_embeddings": 512,
        "activation": "gelu",
        "tie_word_embeddings": True,
        "pad_token_id": 0,
    },
    # with sinusoidal_pos_embds too, the file has a table of positions
    unneeded=(
        *("dropout", "attention_dropout", "qa_dropout", "seq_classif_dropout"),
        *("sinusoidal_pos_embds", "tie_weights_"),
    ),
    names=NAMES,
    prefixes=("distilbert.",),
    no_parameters=("embeddings.position_ids",),
    classifier=Classifier(
        names=linears({"pre_classifier": "pooler", "classifier": "head"}), fields={"pooler": "relu", **OF_CLASSES}
    ),
)

FAMILIES = {"distilbert": DISTILBERT}
