"""The DistilBERT of transformers, built from our configuration and parameters instead of a folder."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from transformers import DistilBertConfig, DistilBertModel

from meta.exam.subjects import renamed, tables
from transparity.config import TransformerConfig

_TABLES = tables("distilbert")
CONFIG = TransformerConfig(**_TABLES["config"])


def build(config: TransformerConfig, parameters: Mapping[str, np.ndarray]) -> Any:
    sizes = {"dim": config.embed_dim, "hidden_dim": config.feed_forward_dim, "n_heads": config.num_heads}
    sizes |= {"vocab_size": config.vocab_size, "n_layers": config.num_encoder_layers}
    model = DistilBertModel(DistilBertConfig(**sizes, max_position_embeddings=config.max_length)).eval()
    state = {renamed(name, _TABLES["names"]): torch.from_numpy(value) for name, value in parameters.items()}
    model.load_state_dict(state)

    @torch.no_grad()
    def forward(tokens: np.ndarray) -> Any:
        ids = torch.from_numpy(tokens)
        return model(ids, attention_mask=torch.ne(ids, config.pad_id or 0).long())

    return forward
