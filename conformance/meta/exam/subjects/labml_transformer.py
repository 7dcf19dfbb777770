"""labml's annotated implementation of the transformer, with the norm before each sublayer."""

from typing import Any

import torch
from labml_nn.transformers.feed_forward import FeedForward
from labml_nn.transformers.mha import MultiHeadAttention
from labml_nn.transformers.models import (
    Decoder,
    EmbeddingsWithPositionalEncoding,
    Encoder,
    EncoderDecoder,
    Generator,
    TransformerLayer,
)
from labml_nn.transformers.utils import subsequent_mask

from meta.exam.subjects import renamed, tables
from transparity import TransformerConfig

_TABLES = tables("labml_transformer")
CONFIG = TransformerConfig(**_TABLES["config"], pad_id=None)


def build(config: TransformerConfig, parameters: dict[str, Any]) -> Any:
    """Return the model with our parameters; its inputs have the shape (length, batch)."""
    model = _model(config)
    tables = {name: value for name, value in model.state_dict().items() if name.endswith("positional_encodings")}
    model.load_state_dict(
        tables | {renamed(name, _TABLES["names"]): torch.tensor(value) for name, value in parameters.items()}
    )
    model.eval()

    def forward(source: Any, target: Any) -> Any:
        src, tgt = torch.tensor(source).T, torch.tensor(target).T
        return model.generator(model(src, tgt, None, subsequent_mask(len(tgt)))).transpose(0, 1)

    return forward


def _model(c: TransformerConfig) -> Any:
    return EncoderDecoder(
        Encoder(_layer(c, cross=False), c.num_encoder_layers),
        Decoder(_layer(c, cross=True), c.num_decoder_layers),
        EmbeddingsWithPositionalEncoding(c.embed_dim, c.source_vocab_size, c.max_length),
        EmbeddingsWithPositionalEncoding(c.embed_dim, c.target_vocab_size, c.max_length),
        Generator(c.target_vocab_size, c.embed_dim),
    )


def _layer(c: TransformerConfig, *, cross: bool) -> Any:
    attentions = [MultiHeadAttention(c.num_heads, c.embed_dim, 0.0) for _ in range(1 + cross)]
    return TransformerLayer(
        d_model=c.embed_dim,
        self_attn=attentions[0],
        src_attn=attentions[1] if cross else None,
        feed_forward=FeedForward(c.embed_dim, c.feed_forward_dim, 0.0),
        dropout_prob=0.0,
    )
