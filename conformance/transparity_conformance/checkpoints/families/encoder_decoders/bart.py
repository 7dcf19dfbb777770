"""BART (Lewis et al. 2020) and Marian's translators (Junczys-Dowmunt et al. 2018)."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.fields import Family, Fields, activation, activation_name, flag, same
from transparity_conformance.checkpoints.naming import Table, flat, linears


def stack_names(stack: str) -> dict[str, str]:
    """The names of a stack's linear maps and norms; an encoder has no tensors of cross-attention."""
    layer = f"{stack}.layers.{{i}}"
    attentions = {"self_attn": "self_attention", "encoder_attn": "cross_attention"}
    names = {
        f"{stack}.layernorm_embedding": f"{stack}.embedding_norm",
        f"{layer}.fc1": f"{layer}.feed_forward.up",
        f"{layer}.fc2": f"{layer}.feed_forward.down",
        f"{layer}.final_layer_norm": f"{layer}.feed_forward_norm",
    }
    for theirs, ours in attentions.items():
        names[f"{layer}.{theirs}_layer_norm"] = f"{layer}.{ours}_norm"
        for short, role in (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value"), ("out_proj", "output")):
            names[f"{layer}.{theirs}.{short}"] = f"{layer}.{ours}.{role}"
    return names


NAMES: Table = {
    "shared.weight": "encoder.token_embedding.weight",
    "encoder.embed_tokens.weight": "encoder.token_embedding.weight",
    "decoder.embed_tokens.weight": "decoder.token_embedding.weight",
    "encoder.embed_positions.weight": "encoder.position_embedding.weight",
    "decoder.embed_positions.weight": "decoder.position_embedding.weight",
    "lm_head.weight": "head.weight",
    "final_logits_bias": flat("head.bias"),
    **linears(stack_names("encoder") | stack_names("decoder")),
}

FIELDS = {
    "vocab_size": "source_vocab_size",
    "max_position_embeddings": "max_length",
    "d_model": "embed_dim",
    "encoder_layers": "num_encoder_layers",
    "decoder_layers": "num_decoder_layers",
    "tie_word_embeddings": "tied_head",
}

ALWAYS: dict[str, Any] = {"architecture": "encoder-decoder", "norm": "layer", "norm_position": "post"}

READS = (
    *("encoder_attention_heads", "decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim"),
    *("activation_function", "scale_embedding"),
)

DEFAULTS: dict[str, Any] = {
    "max_position_embeddings": 1024,
    "activation_function": "gelu",
    "scale_embedding": False,
    "tie_word_embeddings": True,
}

UNNEEDED = (
    *("activation_dropout", "attention_dropout", "dropout", "encoder_layerdrop", "decoder_layerdrop"),
    *("num_hidden_layers", "extra_pos_embeddings"),  # other names of fields above
)

ONLY: dict[str, tuple[Any, ...]] = {
    "normalize_before": (False,),
    "add_final_layer_norm": (False,),
    "add_bias_logits": (False,),
}
"""Fields of older files; transformers builds these variants only."""


def _common(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    return {
        "num_heads": same(fields, "encoder_attention_heads", "decoder_attention_heads"),
        "feed_forward_dim": same(fields, "encoder_ffn_dim", "decoder_ffn_dim"),
        "activation": activation(fields, "activation_function"),
        "embedding_scale": "embed_dim" if flag(fields, "scale_embedding") else "none",
        "head_bias": "final_logits_bias" in names,
    }


def _bart(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    return _common(fields, names) | {"target_vocab_size": fields["vocab_size"]}


def _marian(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    shares = fields["share_encoder_decoder_embeddings"]
    size = fields["vocab_size"] if shares or fields["decoder_vocab_size"] is None else fields["decoder_vocab_size"]
    return _common(fields, names) | {"shared_embedding": shares, "target_vocab_size": size}


def _write_bart(config: TransformerConfig) -> dict[str, Any]:
    both = {"attention_heads": config.num_heads, "ffn_dim": config.feed_forward_dim}
    return {f"{stack}_{name}": value for name, value in both.items() for stack in ("encoder", "decoder")} | {
        "activation_function": activation_name(config),
        "scale_embedding": config.embedding_scale == "embed_dim",
    }


def _write_marian(config: TransformerConfig) -> dict[str, Any]:
    return _write_bart(config) | {
        "share_encoder_decoder_embeddings": config.shared_embedding,
        "decoder_vocab_size": config.target_vocab_size,
        "static_position_embeddings": True,
    }


def _absent(config: TransformerConfig) -> Collection[str]:
    return () if config.shared_embedding else ("shared.weight",)


def _copies(config: TransformerConfig) -> Mapping[str, str]:
    """Without `tie_word_embeddings`, transformers ties no embeddings either."""
    is_untied = config.shared_embedding and not config.tied_head
    return {f"{stack}.embed_tokens.weight": "shared.weight" for stack in config.stacks if is_untied}


BART = Family(
    always=ALWAYS | {"positions": "learned", "position_offset": 2, "embedding_norm": True, "shared_embedding": True},
    fields=FIELDS,
    configure=_bart,
    write=_write_bart,
    model="BartForConditionalGeneration",
    copies=_copies,
    reads=READS,
    defaults=DEFAULTS | {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2},
    only=ONLY | {"normalize_embedding": (True,), "static_position_embeddings": (False,)},
    unneeded=UNNEEDED,
    names=NAMES,
    prefixes=("model.",),
    no_parameters=("encoder.version", "decoder.version"),
)

MARIAN = dataclasses.replace(
    BART,
    always=ALWAYS | {"positions": "sinusoidal", "rope_layout": "halves"},
    configure=_marian,
    write=_write_marian,
    model="MarianMTModel",
    absent=_absent,
    reads=(*READS, "share_encoder_decoder_embeddings", "decoder_vocab_size"),
    defaults=DEFAULTS
    | {
        "share_encoder_decoder_embeddings": True,
        "decoder_vocab_size": None,
        "pad_token_id": 58_100,
        "eos_token_id": 0,
        "decoder_start_token_id": 58_100,
    },
    only=ONLY | {"normalize_embedding": (False,), "static_position_embeddings": (True,)},
    no_parameters=("encoder.embed_positions.weight", "decoder.embed_positions.weight"),
)

FAMILIES = {"bart": BART, "marian": MARIAN}
