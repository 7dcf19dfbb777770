"""T5 (Raffel et al. 2020), the first version and the gated one, and its encoder alone."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.fields import (
    Family,
    Fields,
    activation,
    activation_name,
    flag,
    head_width,
    wrong,
)
from transparity_conformance.checkpoints.naming import Table

GATED = "gated-"


def _stack(stack: str, *, last: int) -> dict[str, str]:
    """The names of a stack, whose feed-forward is sublayer `last` of each block."""
    block, layer = f"{stack}.block.{{i}}.layer", f"{stack}.layers.{{i}}"
    sublayers = [("SelfAttention", "self_attention"), ("EncDecAttention", "cross_attention")][:last]
    names = {
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
        for short, role in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output")):
            names[f"{block}.{index}.{theirs}.{short}.weight"] = f"{layer}.{ours}.{role}.weight"
    return names


NAMES: Table = {
    "shared.weight": "encoder.token_embedding.weight",
    "lm_head.weight": "head.weight",
    **_stack("encoder", last=1),
    **_stack("decoder", last=2),
}


def _configure(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    found = _feed_forward(fields) | head_width(fields, "d_model", "num_heads", "d_kv")
    if not any(name.startswith("decoder.block.") for name in names):
        return found | {"architecture": "encoder", "head": "hidden"}
    layers = fields["num_layers"] if fields["num_decoder_layers"] is None else fields["num_decoder_layers"]
    return (
        found
        | _head(fields, names)
        | {
            "architecture": "encoder-decoder",
            "target_vocab_size": fields["vocab_size"],
            "num_decoder_layers": layers,
            "shared_embedding": True,
        }
    )


def _feed_forward(fields: Fields) -> dict[str, Any]:
    """`relu`, or `gated-gelu`, which is the approximation by a tanh."""
    given = fields["feed_forward_proj"]
    if not isinstance(given, str):
        raise wrong("feed_forward_proj", given, "an activation, such as relu or gated-gelu")
    if given == "gated-gelu":
        return {"gated": True, "activation": "gelu-tanh"}
    ungated = {"feed_forward_proj": given.removeprefix(GATED)}
    return {"gated": given.startswith(GATED), "activation": activation(ungated, "feed_forward_proj")}


def _head(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    """A tied head is scaled. With `scale_decoder_outputs` (transformers 5), `tie_word_embeddings` is always true: then,
    and if a head is missing, the tensors tell whether it is tied."""
    field = "tie_word_embeddings" if fields["scale_decoder_outputs"] is None else "scale_decoder_outputs"
    is_tied = field == "tie_word_embeddings" and flag(fields, field)
    return {
        "tied_head": is_tied or "lm_head.weight" not in names,
        "head_scale": "embed_dim" if flag(fields, field) else "none",
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    name = "gelu" if config.gated and config.activation == "gelu-tanh" else activation_name(config)
    found = {"d_kv": config.head_dim, "feed_forward_proj": GATED * config.gated + name}
    if not config.has_decoder:
        return found | {"architectures": ["T5EncoderModel"]}
    is_scaled = config.head_scale == "embed_dim"
    tying = {"tie_word_embeddings": config.tied_head}
    if config.tied_head != is_scaled:  # which transformers 4 cannot express
        tying = {"tie_word_embeddings": True, "scale_decoder_outputs": is_scaled}
    return found | tying | {"num_decoder_layers": config.num_decoder_layers}


def _absent(config: TransformerConfig) -> Collection[str]:
    return [
        f"{stack}.block.{{i}}.layer.{last}.DenseReluDense.{'wi' if config.gated else 'wi_1'}.weight"
        for stack, last in (("encoder", 1), ("decoder", 2))
    ]


T5 = Family(
    always={
        "norm": "rms",
        "norm_position": "pre",
        "final_norm": True,
        "positions": "relative",
        "attention_scale": "none",
        "qkv_bias": False,
        "output_bias": False,
        "feed_forward_bias": False,
        "head_bias": False,
    },
    fields={
        "vocab_size": "source_vocab_size",
        "n_positions": "max_length",
        "d_model": "embed_dim",
        "num_heads": "num_heads",
        "num_layers": "num_encoder_layers",
        "d_ff": "feed_forward_dim",
        "layer_norm_epsilon": "norm_eps",
        "relative_attention_num_buckets": "relative_buckets",
        "relative_attention_max_distance": "relative_max_distance",
    },
    configure=_configure,
    write=_write,
    model="T5ForConditionalGeneration",
    absent=_absent,
    reads=("d_kv", "num_decoder_layers", "feed_forward_proj", "tie_word_embeddings", "scale_decoder_outputs"),
    defaults={
        "n_positions": 512,  # of the training; T5 has no limit
        "d_kv": 64,
        "num_decoder_layers": None,
        "layer_norm_epsilon": 1e-6,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "feed_forward_proj": "relu",
        "tie_word_embeddings": True,
        "scale_decoder_outputs": None,
        "pad_token_id": 0,
        "eos_token_id": 1,
    },
    unneeded=("dense_act_fn", "is_gated_act", "dropout_rate"),
    names=NAMES,
    no_parameters=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),  # nothing reads it
)

FAMILIES = {"t5": T5}
