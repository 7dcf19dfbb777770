"""BART (Lewis et al., 2020), Marian (Junczys-Dowmunt et al., 2018), OPT (Zhang et al., 2022) and Whisper.

Marian is a translation model. OPT has only a decoder: BART's decoder with pre-norm. Whisper (Radford et al., 2022) has
an encoder of log-mel frames and a text decoder; the reference does not compute the spectrogram.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.reading import as_json
from transparity_conformance.checkpoints.tables import rows as row
from transparity_conformance.checkpoints.tables.rows import Fields


def copies_of_shared(config: TransformerConfig) -> Mapping[str, str]:
    """Return the copies of `shared.weight` that `transformers` stores if `tie_word_embeddings` is false."""
    is_untied = config.shared_embedding and not config.tied_head
    return {f"{stack}.embed_tokens.weight": "shared.weight" for stack in config.stacks if is_untied}


def read_vocabularies(fields: Fields) -> dict[str, Any]:
    shares, own = fields["share_encoder_decoder_embeddings"], fields["decoder_vocab_size"]
    size = fields["vocab_size"] if shares or own is None else own
    return {"shared_embedding": shares, "target_vocab_size": size}


def write_vocabularies(config: TransformerConfig) -> dict[str, Any]:
    return {
        "share_encoder_decoder_embeddings": config.shared_embedding,
        "decoder_vocab_size": config.target_vocab_size,
        "static_position_embeddings": True,
    }


def read_norms(fields: Fields) -> dict[str, Any]:
    before = row.as_flag(fields, "do_layer_norm_before")
    last = before and not row.as_flag(fields, "_remove_final_layer_norm")
    return {"norm_position": "pre" if before else "post", "final_norm": last}


def write_norms(config: TransformerConfig) -> dict[str, Any]:
    before = config.norm_position == "pre"
    return {"do_layer_norm_before": before, "_remove_final_layer_norm": before and not config.final_norm}


def read_embedding_width(fields: Fields) -> dict[str, Any]:
    """Refuse embeddings that are narrower than the layers (as in OPT-350m), which need another linear map."""
    width, own = fields["hidden_size"], fields["word_embed_proj_dim"]
    if own not in (None, width):
        raise row.wrong("word_embed_proj_dim", own, f"{as_json(width)}, the value of hidden_size")
    return {}


POSITIONS = "encoder.embed_positions.weight"


def frame_positions(config: TransformerConfig) -> np.ndarray:
    from transparity_numpy.positions.sinusoidal import sinusoidal_positions  # slows the start of a port's process

    size = config.frame_positions, config.embed_dim
    return sinusoidal_positions(*size, layout="halves", timescales="inclusive")


def read_head_bias(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    return {"head_bias": "final_logits_bias" in names}


def absent_marian(config: TransformerConfig) -> Collection[str]:
    return () if config.shared_embedding else ("shared.weight",)


def write_embedding_width(config: TransformerConfig) -> dict[str, Any]:
    return {"word_embed_proj_dim": config.embed_dim}


def read_frames(fields: Fields) -> dict[str, Any]:
    return {"num_frames": 2 * row.as_whole(fields, "max_source_positions")}


def write_frames(config: TransformerConfig) -> dict[str, Any]:
    return {"max_source_positions": config.frame_positions}


def read_encoder_positions(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    return {"encoder_positions": "learned" if POSITIONS in names else "sinusoidal"}
