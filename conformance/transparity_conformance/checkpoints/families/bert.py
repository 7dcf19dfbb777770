"""BERT and similar encoders: RoBERTa, XLM-R, DistilBERT and MPNet.

References: BERT (Devlin et al., 2019), RoBERTa (Liu et al., 2019), XLM-R (Conneau et al., 2020). DistilBERT (Sanh et
al., 2019) has half of BERT's layers, no token types and no pooler. MPNet (Song et al., 2020) has the positions and
heads of RoBERTa, and the relative bias of T5.
"""

from collections.abc import Collection
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.naming import linears, projections, without
from transparity_conformance.checkpoints.tables import rows as row
from transparity_conformance.checkpoints.tables.codecs import SIZES, Classifier, Family
from transparity_conformance.checkpoints.tables.rows import FieldRow, Fields

LAYER = "encoder.layers.{i}"
BLOCK = "encoder.layer.{i}"
ATTENTION, OURS = f"{BLOCK}.attention", f"{LAYER}.self_attention"

EXAMPLE = SIZES | {"num_attention_heads": 3, "intermediate_size": 40}

OF_CLASSES: dict[str, Any] = {"pooling": "first", "head_transform": False, "tied_head": False}


def masked_head(model: str, tensor: str, *, with_gelu: bool = False) -> FieldRow:
    """Return the row that chooses the output: `pooled` if a file has a pooler, else `logits` if it has a
    masked-language head, else `hidden`.

    An untied masked-language head is not imported, because `transformers` never reads one of its two biases. `model` is
    the class with this head, and `tensor` is a weight that only this head has. `with_gelu` means that the head always
    uses GELU, even if the layers have another activation function.
    """

    def read(fields: Fields, names: Collection[str]) -> dict[str, Any]:
        is_masked = tensor in names and not (with_gelu and row.as_activation(fields, "hidden_act") != "gelu")
        is_masked = is_masked and row.as_flag(fields, "tie_word_embeddings")
        head = "pooled" if "pooler.dense.weight" in names else "logits" if is_masked else "hidden"
        return {"head": head} | ({"head_transform": True, "tied_head": True} if is_masked else {})

    def write(config: TransformerConfig) -> dict[str, Any]:
        return {"architectures": [model]} if config.head == "logits" else {}

    return row.by_tensors(read, write, tie_word_embeddings=True)


BERT = Family(
    model="BertModel",
    example=EXAMPLE,
    always={"architecture": "encoder", "norm": "layer", "norm_position": "post", "positions": "learned"}
    | {"embedding_norm": True},
    rows=(
        *row.sizes("encoder", 512),
        row.rename("layer_norm_eps", "norm_eps", 1e-12),
        row.rename("type_vocab_size", "num_token_types", 2),
        row.activation("hidden_act", "gelu"),
        masked_head("BertForMaskedLM", "cls.predictions.transform.dense.weight"),
        row.tokens(pad=0),
    ),
    only={"position_embedding_type": ("absolute",)},
    unneeded=(
        *("attention_probs_dropout_prob", "hidden_dropout_prob"),
        *("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"),
        *("pooler_size_per_head", "pooler_type"),
    ),
    names={
        "embeddings.word_embeddings.weight": "encoder.token_embedding.weight",
        "embeddings.token_type_embeddings.weight": "encoder.token_type_embedding.weight",
        "embeddings.position_embeddings.weight": "encoder.position_embedding.weight",
        **linears({"embeddings.LayerNorm": "encoder.embedding_norm", "pooler.dense": "pooler"}),
        **linears(projections("self.query", "self.key", "self.value", "output.dense"), ATTENTION, OURS),
        **linears({"attention.output.LayerNorm": "self_attention_norm"}, BLOCK, LAYER),
        **linears({"intermediate.dense": "feed_forward.up", "output.dense": "feed_forward.down"}, BLOCK, LAYER),
        **linears({"output.LayerNorm": "feed_forward_norm"}, BLOCK, LAYER),
        **linears({"dense": "head_transform", "LayerNorm": "head_norm"}, "cls.predictions.transform"),
        "cls.predictions.decoder.weight": "head.weight",
        "cls.predictions.bias": "head.bias",
        "cls.predictions.decoder.bias": "head.bias",
    },
    prefixes=("bert.",),
    no_parameters=("embeddings.position_ids", "embeddings.token_type_ids"),
    classifier=Classifier(
        names=linears({"pooler.dense": "pooler", "classifier": "head"}), fields={"pooler": "tanh", **OF_CLASSES}
    ),
)


def _counted(fields: Fields) -> dict[str, Any]:
    """Return the fields for positions that start at pad_token_id + 1 and do not count padding."""
    pad = fields["pad_token_id"]
    if not isinstance(pad, int):
        raise row.wrong("pad_token_id", pad, "a token id, because the first position is pad_token_id + 1")
    length = row.as_whole(fields, "max_position_embeddings") - pad - 1
    return {"position_offset": pad + 1, "position_count": "visible", "max_length": length}


def _write_counted(config: TransformerConfig) -> dict[str, Any]:
    return {"max_position_embeddings": config.num_positions}


ROBERTA = BERT.variant(
    model="RobertaModel",
    example=EXAMPLE | {"max_position_embeddings": 31, "type_vocab_size": 1},
    rows=(
        row.derived(_counted, _write_counted, max_position_embeddings=512),
        masked_head("RobertaForMaskedLM", "lm_head.dense.weight", with_gelu=True),
        row.tokens(pad=1, bos=0, eos=2),
    ),
    names={
        **without(BERT.names, "cls.predictions"),
        **linears({"lm_head.dense": "head_transform", "lm_head.layer_norm": "head_norm"}),
        "lm_head.decoder.weight": "head.weight",
        "lm_head.bias": "head.bias",
        "lm_head.decoder.bias": "head.bias",
    },
    prefixes=("roberta.",),
    classifier=Classifier(
        names=linears({"classifier.dense": "pooler", "classifier.out_proj": "head"}),
        fields={"pooler": "tanh", **OF_CLASSES},
    ),
)

XLM_ROBERTA = ROBERTA.variant(
    model="XLMRobertaModel", rows=(masked_head("XLMRobertaForMaskedLM", "lm_head.dense.weight", with_gelu=True),)
)

DISTILBERT = BERT.variant(
    model="DistilBertModel",
    example={"vocab_size": 37, "dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 40}
    | {"max_position_embeddings": 29},
    always={"norm_eps": 1e-12},
    rows=(
        row.rename("dim", "embed_dim"),
        row.rename("n_layers", "num_encoder_layers"),
        row.rename("n_heads", "num_heads"),
        row.rename("hidden_dim", "feed_forward_dim"),
        row.activation("activation", "gelu"),
        masked_head("DistilBertForMaskedLM", "vocab_transform.weight"),
    ),
    without=(
        *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act"),
        *("layer_norm_eps", "type_vocab_size"),
    ),
    only={},
    # If sinusoidal_pos_embds is true, the file also contains the table of positions.
    unneeded=(
        *("dropout", "attention_dropout", "qa_dropout", "seq_classif_dropout"),
        *("sinusoidal_pos_embds", "tie_weights_"),
    ),
    names={
        "embeddings.word_embeddings.weight": "encoder.token_embedding.weight",
        "embeddings.position_embeddings.weight": "encoder.position_embedding.weight",
        **linears(projections("q_lin", "k_lin", "v_lin", "out_lin"), "transformer.layer.{i}.attention", OURS),
        **linears({"sa_layer_norm": "self_attention_norm"}, "transformer.layer.{i}", LAYER),
        **linears({"output_layer_norm": "feed_forward_norm"}, "transformer.layer.{i}", LAYER),
        **linears({"lin1": "up", "lin2": "down"}, "transformer.layer.{i}.ffn", f"{LAYER}.feed_forward"),
        **linears({"embeddings.LayerNorm": "encoder.embedding_norm", "vocab_transform": "head_transform"}),
        **linears({"vocab_layer_norm": "head_norm", "vocab_projector": "head"}),
    },
    prefixes=("distilbert.",),
    no_parameters=("embeddings.position_ids",),
    classifier=Classifier(
        names=linears({"pre_classifier": "pooler", "classifier": "head"}), fields={"pooler": "relu", **OF_CLASSES}
    ),
)

PAD, BUCKETS, DISTANCE = 1, 32, 128
"""Constants of MPNet in `transformers`: the padding token, the number of buckets and the largest distance."""


def _counted_from_pad(fields: Fields) -> dict[str, Any]:
    if fields["pad_token_id"] is None:
        raise row.wrong("pad_token_id", None, f"{PAD}, which transformers always uses for MPNet")
    return _counted({**fields, "pad_token_id": PAD})


MPNET: Family = ROBERTA.variant(
    model="MPNetModel",
    example=EXAMPLE | {"max_position_embeddings": 31},
    always={"relative_bias": True, "relative_buckets": BUCKETS, "relative_max_distance": DISTANCE},
    rows=(
        row.derived(
            _counted_from_pad,
            lambda config: _write_counted(config) | {"relative_attention_num_buckets": BUCKETS},
            max_position_embeddings=512,
        ),
        masked_head("MPNetForMaskedLM", "lm_head.dense.weight", with_gelu=True),
    ),
    without=("type_vocab_size",),
    only={"relative_attention_num_buckets": (BUCKETS,), "pad_token_id": (PAD,)},
    unneeded=("attention_probs_dropout_prob", "hidden_dropout_prob"),
    names={
        **without(ROBERTA.names, f"{ATTENTION}.", "token_type"),
        "encoder.relative_attention_bias.weight": "encoder.relative_bias.weight",
        **linears(projections("attn.q", "attn.k", "attn.v", "attn.o"), ATTENTION, OURS),
        **linears({"LayerNorm": "self_attention_norm"}, ATTENTION, LAYER),
    },
    prefixes=("mpnet.",),
    no_parameters=("embeddings.position_ids",),
)

FAMILIES = {"bert": BERT, "roberta": ROBERTA, "xlm-roberta": XLM_ROBERTA, "distilbert": DISTILBERT, "mpnet": MPNET}
