"""T5 (Raffel et al., 2020), T5 1.1 with gated feed-forwards, and T5's encoder without a decoder."""

from collections.abc import Collection
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.naming import StoredTensor, Table, projections, weights
from transparity_conformance.checkpoints.tables import rows as row
from transparity_conformance.checkpoints.tables.codecs import Family
from transparity_conformance.checkpoints.tables.rows import Fields

GATED = "gated-"


def _stack(stack: str, *, last: int) -> Table:
    block, layer = f"{stack}.block.{{i}}.layer", f"{stack}.layers.{{i}}"
    sublayers = [("SelfAttention", "self_attention"), ("EncDecAttention", "cross_attention")][:last]
    names: dict[str, str | StoredTensor] = {
        f"{stack}.embed_tokens.weight": f"{stack}.token_embedding.weight",
        f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight": f"{stack}.relative_bias.weight",
        f"{stack}.final_layer_norm.weight": f"{stack}.final_norm.weight",
        f"{block}.{last}.DenseReluDense.wi.weight": f"{layer}.feed_forward.up.weight",
        f"{block}.{last}.DenseReluDense.wi_0.weight": f"{layer}.feed_forward.gate.weight",
        f"{block}.{last}.DenseReluDense.wi_1.weight": f"{layer}.feed_forward.up.weight",
        f"{block}.{last}.DenseReluDense.wo.weight": f"{layer}.feed_forward.down.weight",
        f"{block}.{last}.layer_norm.weight": f"{layer}.feed_forward_norm.weight",
    }
    for index, (theirs, ours) in enumerate(sublayers):
        names[f"{block}.{index}.layer_norm.weight"] = f"{layer}.{ours}_norm.weight"
        names |= weights(projections("q", "k", "v", "o"), f"{block}.{index}.{theirs}", f"{layer}.{ours}")
    return names


def _feed_forward(fields: Fields) -> dict[str, Any]:
    given = fields["feed_forward_proj"]
    if not isinstance(given, str):
        raise row.wrong("feed_forward_proj", given, "an activation, such as relu or gated-gelu")
    if given == "gated-gelu":
        return {"gated": True, "activation": "gelu-tanh"}
    ungated = {"feed_forward_proj": given.removeprefix(GATED)}
    return {"gated": given.startswith(GATED), "activation": row.as_activation(ungated, "feed_forward_proj")}


def _write_feed_forward(config: TransformerConfig) -> dict[str, Any]:
    name = "gelu" if config.gated and config.activation == "gelu-tanh" else row.activation_name(config)
    return {"feed_forward_proj": GATED * config.gated + name}


def _decoder(fields: Fields, names: Collection[str]) -> dict[str, Any]:
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


def _write_decoder(config: TransformerConfig) -> dict[str, Any]:
    if not config.has_decoder:
        return {"architectures": ["T5EncoderModel"]}
    is_scaled = config.head_scale == "embed_dim"
    tying = {"tie_word_embeddings": config.tied_head}
    if config.tied_head != is_scaled:  # transformers 4 cannot express this
        tying = {"tie_word_embeddings": True, "scale_decoder_outputs": is_scaled}
    return tying | {"num_decoder_layers": config.num_decoder_layers}


def _absent(config: TransformerConfig) -> Collection[str]:
    return [
        f"{stack}.block.{{i}}.layer.{last}.DenseReluDense.{'wi' if config.gated else 'wi_1'}.weight"
        for stack, last in (("encoder", 1), ("decoder", 2))
    ]


T5 = Family(
    model="T5ForConditionalGeneration",
    example={"vocab_size": 37, "d_model": 24, "d_kv": 10, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 3}
    | {"num_heads": 3, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 17}
    | {"n_positions": 29, "decoder_start_token_id": 0},
    always={"norm": "rms", "norm_position": "pre", "final_norm": True, "positions": "relative"}
    | {"attention_scale": "none", "qkv_bias": False, "output_bias": False, "feed_forward_bias": False}
    | {"head_bias": False},
    rows=(
        row.rename("vocab_size", "source_vocab_size"),
        row.rename("n_positions", "max_length", 512),  # the length of training texts; T5 accepts any length
        row.rename("d_model", "embed_dim"),
        row.rename("num_heads", "num_heads"),
        row.rename("num_layers", "num_encoder_layers"),
        row.rename("d_ff", "feed_forward_dim"),
        row.rename("layer_norm_epsilon", "norm_eps", 1e-6),
        row.rename("relative_attention_num_buckets", "relative_buckets", 32),
        row.rename("relative_attention_max_distance", "relative_max_distance", 128),
        row.head_width("d_kv", 64, heads="num_heads", embed_dim="d_model"),
        row.derived(_feed_forward, _write_feed_forward, feed_forward_proj="relu"),
        row.by_tensors(
            *(_decoder, _write_decoder), num_decoder_layers=None, tie_word_embeddings=True, scale_decoder_outputs=None
        ),
        row.tokens(pad=0, eos=1),
    ),
    absent=_absent,
    unneeded=("dense_act_fn", "is_gated_act", "dropout_rate"),
    names={
        "shared.weight": "encoder.token_embedding.weight",
        "lm_head.weight": "head.weight",
        **_stack("encoder", last=1),
        **_stack("decoder", last=2),
    },
    no_parameters=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),  # never read
)

FAMILIES = {"t5": T5}
