"""OPT (Zhang et al. 2022): BART's decoder, by its names too, alone and with its norms in front."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.families.encoder_decoders import bart
from transparity_conformance.checkpoints.fields import Family, Fields, activation, activation_name, flag, same
from transparity_conformance.checkpoints.naming import linears

READS: dict[str, Any] = {
    "activation_function": "relu",
    "do_layer_norm_before": True,
    "_remove_final_layer_norm": False,
    "enable_bias": True,
    "word_embed_proj_dim": None,
}


def _configure(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    if fields["word_embed_proj_dim"] is not None:  # tokens of another width go through a linear map (OPT-350m)
        same(fields, "hidden_size", "word_embed_proj_dim")
    before = flag(fields, "do_layer_norm_before")
    return dict.fromkeys(("qkv_bias", "output_bias", "feed_forward_bias"), flag(fields, "enable_bias")) | {
        "activation": activation(fields, "activation_function"),
        "norm_position": "pre" if before else "post",
        "final_norm": before and not flag(fields, "_remove_final_layer_norm"),
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    before = config.norm_position == "pre"
    return {
        "activation_function": activation_name(config),
        "do_layer_norm_before": before,
        "_remove_final_layer_norm": before and not config.final_norm,
        "enable_bias": config.qkv_bias,
        "word_embed_proj_dim": config.embed_dim,
    }


# transformers hides and counts positions by an attention mask; here `pad_id` does, like a tokenizer's mask.
OPT = Family(
    always={"architecture": "decoder", "target_mask": "causal-and-padding", "norm": "layer", "head_bias": False}
    | {"positions": "learned", "position_offset": 2, "position_count": "visible"},
    fields={
        "vocab_size": "target_vocab_size",
        "max_position_embeddings": "max_length",
        "hidden_size": "embed_dim",
        "num_hidden_layers": "num_decoder_layers",
        "num_attention_heads": "num_heads",
        "ffn_dim": "feed_forward_dim",
        "tie_word_embeddings": "tied_head",
    },
    configure=_configure,
    write=_write,
    model="OPTForCausalLM",
    reads=READS,
    defaults=READS
    | {"max_position_embeddings": 2048, "tie_word_embeddings": True}
    | {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 2},
    only={"layer_norm_elementwise_affine": (True,)},
    unneeded=("activation_dropout", "attention_dropout", "dropout", "layerdrop"),
    names={**bart.NAMES, **linears({"decoder.final_layer_norm": "decoder.final_norm"})},
    prefixes=("model.",),
)

FAMILIES = {"opt": OPT}
