"""BART (Lewis et al., 2020), Marian (Junczys-Dowmunt et al., 2018), OPT (Zhang et al., 2022) and Whisper.

Marian is a translation model. OPT has only a decoder: BART's decoder with pre-norm. Whisper (Radford et al., 2022) has
an encoder of log-mel frames and a text decoder; the reference does not compute the spectrogram.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.naming import StoredTensor, Table, flat, linears, projections
from transparity_conformance.checkpoints.reading import as_json
from transparity_conformance.checkpoints.tables import rows as row
from transparity_conformance.checkpoints.tables.codecs import SIZES, Family
from transparity_conformance.checkpoints.tables.rows import Fields


def stack_names(stack: str) -> dict[str, str | StoredTensor]:
    """Return the table entries for a stack's linear layers and norms, including cross-attention (only in decoders)."""
    layer = f"{stack}.layers.{{i}}"
    attentions = {"self_attn": "self_attention", "encoder_attn": "cross_attention"}
    names = linears({"layernorm_embedding": "embedding_norm"}, stack, stack)
    names |= linears({"fc1": "up", "fc2": "down"}, layer, f"{layer}.feed_forward")
    names |= linears({"final_layer_norm": "feed_forward_norm"}, layer, layer)
    for theirs, ours in attentions.items():
        names |= linears({f"{theirs}_layer_norm": f"{ours}_norm"}, layer, layer)
        projected = projections("q_proj", "k_proj", "v_proj", "out_proj")
        names |= linears(projected, f"{layer}.{theirs}", f"{layer}.{ours}")
    return names


NAMES: Table = {
    "shared.weight": "encoder.token_embedding.weight",
    "encoder.embed_tokens.weight": "encoder.token_embedding.weight",
    "decoder.embed_tokens.weight": "decoder.token_embedding.weight",
    "encoder.embed_positions.weight": "encoder.position_embedding.weight",
    "decoder.embed_positions.weight": "decoder.position_embedding.weight",
    "lm_head.weight": "head.weight",
    "final_logits_bias": flat("head.bias"),
    **stack_names("encoder"),
    **stack_names("decoder"),
}

EXAMPLE: dict[str, Any] = {"vocab_size": 37, "d_model": 24, "encoder_layers": 2, "decoder_layers": 3}
EXAMPLE |= {"encoder_attention_heads": 3, "decoder_attention_heads": 3, "max_position_embeddings": 29}
EXAMPLE |= {"encoder_ffn_dim": 40, "decoder_ffn_dim": 40}

STACKS = (
    row.rename("d_model", "embed_dim"),
    row.rename("encoder_layers", "num_encoder_layers"),
    row.rename("decoder_layers", "num_decoder_layers"),
    row.rename("tie_word_embeddings", "tied_head", True),
    row.same("encoder_attention_heads", "decoder_attention_heads", "num_heads"),
    row.same("encoder_ffn_dim", "decoder_ffn_dim", "feed_forward_dim"),
    row.activation("activation_function", "gelu"),
)

UNNEEDED = (
    *("activation_dropout", "attention_dropout", "dropout", "encoder_layerdrop", "decoder_layerdrop"),
    *("num_hidden_layers", "extra_pos_embeddings"),  # other fields determine these values
)

ONLY: dict[str, tuple[Any, ...]] = {
    "normalize_before": (False,),
    "add_final_layer_norm": (False,),
    "add_bias_logits": (False,),
}
"""Fields of older config.json files, with the only values that `transformers` implements."""


def _copies(config: TransformerConfig) -> Mapping[str, str]:
    """Return the copies of `shared.weight` that `transformers` stores if `tie_word_embeddings` is false."""
    is_untied = config.shared_embedding and not config.tied_head
    return {f"{stack}.embed_tokens.weight": "shared.weight" for stack in config.stacks if is_untied}


BART = Family(
    model="BartForConditionalGeneration",
    example=EXAMPLE,
    always={"architecture": "encoder-decoder", "norm": "layer", "norm_position": "post", "positions": "learned"}
    | {"position_offset": 2, "embedding_norm": True, "shared_embedding": True},
    rows=(
        row.rename("vocab_size", ("source_vocab_size", "target_vocab_size")),
        row.rename("max_position_embeddings", "max_length", 1024),
        *STACKS,
        row.switch("scale_embedding", "embedding_scale", "embed_dim", "none", False),
        row.by_tensors(lambda fields, names: {"head_bias": "final_logits_bias" in names}, row.unwritten),
        row.tokens(pad=1, bos=0, eos=2, decoder_start=2),
    ),
    copies=_copies,
    only=ONLY | {"normalize_embedding": (True,), "static_position_embeddings": (False,)},
    unneeded=UNNEEDED,
    names=NAMES,
    prefixes=("model.",),
    no_parameters=("encoder.version", "decoder.version"),
)


def _vocabularies(fields: Fields) -> dict[str, Any]:
    shares, own = fields["share_encoder_decoder_embeddings"], fields["decoder_vocab_size"]
    size = fields["vocab_size"] if shares or own is None else own
    return {"shared_embedding": shares, "target_vocab_size": size}


def _write_vocabularies(config: TransformerConfig) -> dict[str, Any]:
    return {
        "share_encoder_decoder_embeddings": config.shared_embedding,
        "decoder_vocab_size": config.target_vocab_size,
        "static_position_embeddings": True,
    }


MARIAN = Family(
    model="MarianMTModel",
    example=EXAMPLE
    | {"activation_function": "swish", "scale_embedding": True}
    | {"pad_token_id": 36, "eos_token_id": 0, "decoder_start_token_id": 36},
    always={"architecture": "encoder-decoder", "norm": "layer", "norm_position": "post"}
    | {"positions": "sinusoidal", "rope_layout": "halves"},
    rows=BART.variant(
        rows=(
            row.rename("vocab_size", "source_vocab_size"),
            row.derived(
                *(_vocabularies, _write_vocabularies), share_encoder_decoder_embeddings=True, decoder_vocab_size=None
            ),
            row.tokens(pad=58_100, eos=0, decoder_start=58_100),
        )
    ).rows,
    absent=lambda config: () if config.shared_embedding else ("shared.weight",),
    copies=_copies,
    only=ONLY | {"normalize_embedding": (False,), "static_position_embeddings": (True,)},
    unneeded=UNNEEDED,
    names=NAMES,
    prefixes=("model.",),
    no_parameters=("encoder.embed_positions.weight", "decoder.embed_positions.weight"),
)


def _norms(fields: Fields) -> dict[str, Any]:
    before = row.as_flag(fields, "do_layer_norm_before")
    last = before and not row.as_flag(fields, "_remove_final_layer_norm")
    return {"norm_position": "pre" if before else "post", "final_norm": last}


def _write_norms(config: TransformerConfig) -> dict[str, Any]:
    before = config.norm_position == "pre"
    return {"do_layer_norm_before": before, "_remove_final_layer_norm": before and not config.final_norm}


def _width(fields: Fields) -> dict[str, Any]:
    """Refuse embeddings that are narrower than the layers (as in OPT-350m), which need another linear map."""
    width, own = fields["hidden_size"], fields["word_embed_proj_dim"]
    if own not in (None, width):
        raise row.wrong("word_embed_proj_dim", own, f"{as_json(width)}, the value of hidden_size")
    return {}


# transformers derives padding from the attention mask; the reference derives it from `pad_id`, like a tokenizer.
OPT = Family(
    model="OPTForCausalLM",
    example=SIZES | {"ffn_dim": 96, "num_attention_heads": 3},
    always={"architecture": "decoder", "target_mask": "causal-and-padding", "norm": "layer", "head_bias": False}
    | {"positions": "learned", "position_offset": 2, "position_count": "visible"},
    rows=(
        *row.sizes("decoder", 2048, "ffn_dim"),
        row.rename("tie_word_embeddings", "tied_head", True),
        row.activation("activation_function", "relu"),
        row.derived(_norms, _write_norms, do_layer_norm_before=True, _remove_final_layer_norm=False),
        row.flag("enable_bias", ("qkv_bias", "output_bias", "feed_forward_bias"), True),
        row.derived(_width, lambda config: {"word_embed_proj_dim": config.embed_dim}, word_embed_proj_dim=None),
        row.tokens(pad=1, bos=2, eos=2),
    ),
    only={"layer_norm_elementwise_affine": (True,)},
    unneeded=("activation_dropout", "attention_dropout", "dropout", "layerdrop"),
    names={**NAMES, **linears({"decoder.final_layer_norm": "decoder.final_norm"})},
    prefixes=("model.",),
)


POSITIONS = "encoder.embed_positions.weight"


def _frame_positions(config: TransformerConfig) -> np.ndarray:
    from transparity_numpy.positions.sinusoidal import sinusoidal_positions  # slows the start of a port's process

    size = config.frame_positions, config.embed_dim
    return sinusoidal_positions(*size, layout="halves", timescales="inclusive")


WHISPER = Family(
    model="WhisperForConditionalGeneration",
    example=EXAMPLE
    | {"num_mel_bins": 5, "max_source_positions": 7, "max_target_positions": 11}
    | {"pad_token_id": 36, "bos_token_id": 36, "eos_token_id": 36, "decoder_start_token_id": 35},
    always={"architecture": "encoder-decoder", "norm": "layer", "norm_position": "pre", "final_norm": True}
    | {"key_bias": False, "positions": "learned", "rope_layout": "halves", "sinusoidal_timescales": "inclusive"}
    | {"head_bias": False},
    rows=(
        row.rename("vocab_size", "target_vocab_size"),
        row.rename("num_mel_bins", "mel_bins", 80),
        row.derived(
            lambda fields: {"num_frames": 2 * row.as_whole(fields, "max_source_positions")},
            lambda config: {"max_source_positions": config.frame_positions},
            max_source_positions=1500,
        ),
        row.rename("max_target_positions", "max_length", 448),
        *STACKS,
        row.by_tensors(
            lambda fields, names: {"encoder_positions": "learned" if POSITIONS in names else "sinusoidal"},
            row.unwritten,
        ),
        row.tokens(pad=50_256, bos=50_256, eos=50_256, decoder_start=50_257),
    ),
    unneeded=(
        *UNNEEDED,
        *("scale_embedding", "use_weighted_layer_sum", "classifier_proj_size", "median_filter_width"),
        *("apply_spec_augment", "mask_time_prob", "mask_time_length", "mask_time_min_masks"),
        *("mask_feature_prob", "mask_feature_length", "mask_feature_min_masks"),
    ),
    names={
        "encoder.conv1.weight": "encoder.first_convolution.weight",
        "encoder.conv1.bias": "encoder.first_convolution.bias",
        "encoder.conv2.weight": "encoder.second_convolution.weight",
        "encoder.conv2.bias": "encoder.second_convolution.bias",
        POSITIONS: "encoder.position_embedding.weight",
        "decoder.embed_tokens.weight": "decoder.token_embedding.weight",
        "decoder.embed_positions.weight": "decoder.position_embedding.weight",
        "proj_out.weight": "head.weight",
        **stack_names("encoder"),
        **stack_names("decoder"),
        **linears({f"{stack}.layer_norm": f"{stack}.final_norm" for stack in ("encoder", "decoder")}),
    },
    prefixes=("model.",),
    computed={POSITIONS: _frame_positions},
)
FAMILIES = {"bart": BART, "marian": MARIAN, "opt": OPT, "whisper": WHISPER}
