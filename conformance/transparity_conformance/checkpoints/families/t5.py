"""T5 (Raffel et al., 2020), T5 1.1 with gated feed-forwards, and T5's encoder without a decoder."""

from collections.abc import Collection
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.tables import rows as row
from transparity_conformance.checkpoints.tables.rows import Fields

GATED = "gated-"


def read_feed_forward(fields: Fields) -> dict[str, Any]:
    given = fields["feed_forward_proj"]
    if not isinstance(given, str):
        raise row.wrong("feed_forward_proj", given, "an activation, such as relu or gated-gelu")
    if given == "gated-gelu":
        return {"gated": True, "activation": "gelu-tanh"}
    ungated = {"feed_forward_proj": given.removeprefix(GATED)}
    return {"gated": given.startswith(GATED), "activation": row.as_activation(ungated, "feed_forward_proj")}


def write_feed_forward(config: TransformerConfig) -> dict[str, Any]:
    name = "gelu" if config.gated and config.activation == "gelu-tanh" else row.activation_name(config)
    return {"feed_forward_proj": GATED * config.gated + name}


def read_decoder(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    if not any(name.startswith("decoder.block.") for name in names):
        return {"architecture": "encoder", "head": "hidden"}
    layers = fields["num_layers"] if fields["num_decoder_layers"] is None else fields["num_decoder_layers"]
    found = {"architecture": "encoder-decoder", "target_vocab_size": fields["vocab_size"], "shared_embedding": True}
    return found | {"num_decoder_layers": layers} | _head(fields, names)


def _head(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    """Return whether the head is tied to the embedding, and the scale of hidden states before the head.

    `transformers` 4 scales hidden states if `tie_word_embeddings` is true. In `transformers` 5, `tie_word_embeddings`
    is always true, and `scale_decoder_outputs` determines the scale. If a file has `scale_decoder_outputs`, the result
    does not depend on `tie_word_embeddings`. The head is always tied if the file has no `lm_head.weight`.
    """
    field = "tie_word_embeddings" if fields["scale_decoder_outputs"] is None else "scale_decoder_outputs"
    is_tied = field == "tie_word_embeddings" and row.as_flag(fields, field)
    return {
        "tied_head": is_tied or "lm_head.weight" not in names,
        "head_scale": "embed_dim" if row.as_flag(fields, field) else "none",
    }


def write_decoder(config: TransformerConfig) -> dict[str, Any]:
    if not config.has_decoder:
        return {"architectures": ["T5EncoderModel"]}
    is_scaled = config.head_scale == "embed_dim"
    tying = {"tie_word_embeddings": config.tied_head}
    if config.tied_head != is_scaled:  # transformers 4 cannot express this
        tying = {"tie_word_embeddings": True, "scale_decoder_outputs": is_scaled}
    return tying | {"num_decoder_layers": config.num_decoder_layers}


def absent_t5(config: TransformerConfig) -> Collection[str]:
    return [
        f"{stack}.block.{{i}}.layer.{last}.DenseReluDense.{'wi' if config.gated else 'wi_1'}.weight"
        for stack, last in (("encoder", 1), ("decoder", 2))
    ]


def read_key_width(fields: Fields) -> dict[str, Any]:
    return row.read_head_width(fields, "d_kv", "num_heads", "d_model")


def write_key_width(config: TransformerConfig) -> dict[str, Any]:
    return {"d_kv": config.head_dim}
