"""BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019) and XLM-R (Conneau et al. 2020), as encoders."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.fields import (
    Classifier,
    Family,
    Fields,
    activation,
    activation_name,
    flag,
    whole,
    wrong,
)
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

MASKED: Table = {
    **linears(
        {
            "cls.predictions.transform.dense": "head_transform",
            "cls.predictions.transform.LayerNorm": "head_norm",
        }
    ),
    "cls.predictions.decoder.weight": "head.weight",
    "cls.predictions.bias": "head.bias",
    "cls.predictions.decoder.bias": "head.bias",
}
"""BERT's head of masked words."""

MASKED_OF_ROBERTA: Table = {
    **linears({"lm_head.dense": "head_transform", "lm_head.layer_norm": "head_norm"}),
    "lm_head.decoder.weight": "head.weight",
    "lm_head.bias": "head.bias",
    "lm_head.decoder.bias": "head.bias",
}

OF_CLASSES: dict[str, Any] = {"pooling": "first", "head_transform": False, "tied_head": False}

CLASSES = Classifier(
    names=linears({"pooler.dense": "pooler", "classifier": "head"}), fields={"pooler": "tanh", **OF_CLASSES}
)

CLASSES_OF_ROBERTA = Classifier(
    names=linears({"classifier.dense": "pooler", "classifier.out_proj": "head"}),
    fields={"pooler": "tanh", **OF_CLASSES},
)


def _bert(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    """The head is the pooler, if there is one, else that of masked words, if there is one."""
    is_masked = "cls.predictions.transform.dense.weight" in names
    return _encoder(fields) | masked_head(fields, names, is_masked=is_masked)


def _encoder(fields: Fields) -> dict[str, Any]:
    return {"max_length": fields["max_position_embeddings"], "activation": activation(fields, "hidden_act")}


def masked_head(fields: Fields, names: Collection[str], *, is_masked: bool) -> dict[str, Any]:
    """The output of an encoder; what a head of masked words has goes with its logits alone. An untied head, which has
    two biases of which one is not read, is left out."""
    is_masked = is_masked and flag(fields, "tie_word_embeddings")
    head = "pooled" if "pooler.dense.weight" in names else "logits" if is_masked else "hidden"
    return {"head": head} | ({"head_transform": True, "tied_head": True} if is_masked else {})


def _roberta(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    """Positions count tokens that are not padding, from pad_token_id + 1 on; the head has GELU, whatever the layers
    have."""
    pad = fields["pad_token_id"]
    if not isinstance(pad, int):
        raise wrong("pad_token_id", pad, "a token: positions are counted from it")
    counted = {"position_offset": pad + 1, "position_count": "visible"}
    found = _encoder(fields) | counted | {"max_length": whole(fields, "max_position_embeddings") - pad - 1}
    is_masked = "lm_head.dense.weight" in names and found["activation"] == "gelu"
    return found | masked_head(fields, names, is_masked=is_masked)


def _write_bert(config: TransformerConfig) -> dict[str, Any]:
    written = {"max_position_embeddings": config.max_length, "hidden_act": activation_name(config)}
    return written | written_head(config, "BertForMaskedLM")


def written_head(config: TransformerConfig, model: str) -> dict[str, Any]:
    """The class of a model with a head of masked words."""
    return {"architectures": [model]} if config.head == "logits" else {}


def _write_roberta(config: TransformerConfig) -> dict[str, Any]:
    found = _write_bert(config) | {"max_position_embeddings": config.num_positions}
    return found | written_head(config, "RobertaForMaskedLM")


def _write_xlm_roberta(config: TransformerConfig) -> dict[str, Any]:
    return _write_roberta(config) | written_head(config, "XLMRobertaForMaskedLM")


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
    reads=("max_position_embeddings", "hidden_act", "tie_word_embeddings"),
    defaults={
        "tie_word_embeddings": True,
        "max_position_embeddings": 512,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 2,
        "pad_token_id": 0,
    },
    only={"position_embedding_type": ("absolute",)},
    unneeded=(
        *("attention_probs_dropout_prob", "hidden_dropout_prob"),
        *("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"),
        *("pooler_size_per_head", "pooler_type"),
    ),
    names={**NAMES, **MASKED},
    prefixes=("bert.",),
    no_parameters=("embeddings.position_ids", "embeddings.token_type_ids"),
    classifier=CLASSES,
)

ROBERTA = dataclasses.replace(
    BERT,
    configure=_roberta,
    write=_write_roberta,
    model="RobertaModel",
    defaults={**BERT.defaults, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
    names={**NAMES, **MASKED_OF_ROBERTA},
    prefixes=("roberta.",),
    classifier=CLASSES_OF_ROBERTA,
)

XLM_ROBERTA = dataclasses.replace(ROBERTA, model="XLMRobertaModel", write=_write_xlm_roberta)

FAMILIES = {"bert": BERT, "roberta": ROBERTA, "xlm-roberta": XLM_ROBERTA}
