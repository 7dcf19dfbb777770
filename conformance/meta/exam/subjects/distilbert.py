"""transformers' DistilBERT with our parameters; the checker does not read folders of this family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from transformers import DistilBertConfig, DistilBertModel

from transparity.config import TransformerConfig

CONFIG = TransformerConfig(
    architecture="encoder",
    source_vocab_size=37,
    max_length=37,
    embed_dim=24,
    num_heads=3,
    num_encoder_layers=2,
    feed_forward_dim=40,
    activation="gelu",
    norm_position="post",
    norm_eps=1e-12,
    positions="learned",
    embedding_norm=True,
    head="hidden",
)

NAMES = {
    "encoder.token_embedding.": "embeddings.word_embeddings.",
    "encoder.position_embedding.": "embeddings.position_embeddings.",
    "encoder.embedding_norm.": "embeddings.LayerNorm.",
    "encoder.layers.": "transformer.layer.",
    "self_attention.query.": "attention.q_lin.",
    "self_attention.key.": "attention.k_lin.",
    "self_attention.value.": "attention.v_lin.",
    "self_attention.output.": "attention.out_lin.",
    "self_attention_norm.": "sa_layer_norm.",
    "feed_forward.up.": "ffn.lin1.",
    "feed_forward.down.": "ffn.lin2.",
    "feed_forward_norm.": "output_layer_norm.",
}


def build(config: TransformerConfig, parameters: Mapping[str, np.ndarray]) -> Any:
    sizes = {"dim": config.embed_dim, "hidden_dim": config.feed_forward_dim, "n_heads": config.num_heads}
    sizes |= {"vocab_size": config.vocab_size, "n_layers": config.num_encoder_layers}
    model = DistilBertModel(DistilBertConfig(**sizes, max_position_embeddings=config.max_length)).eval()
    state = {}
    for name, value in parameters.items():
        for ours, theirs in NAMES.items():
            name = name.replace(ours, theirs)  # noqa: PLW2901
        state[name] = torch.from_numpy(value)
    model.load_state_dict(state)

    @torch.no_grad()
    def forward(tokens: np.ndarray) -> Any:
        ids = torch.from_numpy(tokens)
        return model(ids, attention_mask=torch.ne(ids, config.pad_id or 0).long())

    return forward
