"""labml's annotated implementation of the transformer, with the norm before each sublayer."""

from __future__ import annotations

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

from transparity import TransformerConfig

CONFIG = TransformerConfig(
    architecture="encoder-decoder",
    source_vocab_size=37,
    target_vocab_size=31,
    max_length=16,
    embed_dim=24,
    num_heads=3,
    num_encoder_layers=2,
    num_decoder_layers=2,
    feed_forward_dim=40,
    norm_eps=1e-5,
    norm_position="pre",
    final_norm=True,
    positions="sinusoidal",
    embedding_scale="embed_dim",
    pad_id=None,
)

PARTS = {
    "query": "query.linear",
    "key": "key.linear",
    "value": "value.linear",
    "output": "output",
}


def build(config: TransformerConfig, parameters: dict[str, Any]) -> Any:
    """Return the model with our parameters; its inputs have the shape (length, batch)."""
    model = _model(config)
    state = _state(config, {name: torch.tensor(value) for name, value in parameters.items()})
    tables = {name: value for name, value in model.state_dict().items() if name.endswith("positional_encodings")}
    model.load_state_dict(state | tables)
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


def _state(c: TransformerConfig, p: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    state = {
        "src_embed.linear.weight": p["encoder.token_embedding.weight"],
        "tgt_embed.linear.weight": p["decoder.token_embedding.weight"],
    }
    for leaf in ("weight", "bias"):
        state[f"generator.projection.{leaf}"] = p[f"head.{leaf}"]
        for side, count in (("encoder", c.num_encoder_layers), ("decoder", c.num_decoder_layers)):
            state[f"{side}.norm.{leaf}"] = p[f"{side}.final_norm.{leaf}"]
            for i in range(count):
                at = f"{side}.layers.{i}"
                names = {"self_attn": "self_attention"} | ({"src_attn": "cross_attention"} if side == "decoder" else {})
                for theirs, ours in names.items():
                    state[f"{at}.norm_{theirs}.{leaf}"] = p[f"{at}.{ours}_norm.{leaf}"]
                    for part, to in PARTS.items():
                        state[f"{at}.{theirs}.{to}.{leaf}"] = p[f"{at}.{ours}.{part}.{leaf}"]
                state[f"{at}.norm_ff.{leaf}"] = p[f"{at}.feed_forward_norm.{leaf}"]
                state[f"{at}.feed_forward.layer1.{leaf}"] = p[f"{at}.feed_forward.up.{leaf}"]
                state[f"{at}.feed_forward.layer2.{leaf}"] = p[f"{at}.feed_forward.down.{leaf}"]
    return state
