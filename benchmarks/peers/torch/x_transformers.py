"""x-transformers, at the same sizes. Its norms and attentions have no biases, so that our weights do not fit."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.peers.torch.tasks import tasks
from benchmarks.workloads import Run, Task
from torch import Tensor, nn
from x_transformers import Decoder, Encoder, TransformerWrapper

from transparity.config import TransformerConfig


class Model(nn.Module):
    """Called as the others are."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.encoder = _wrapped(config, "encoder", Encoder) if config.has_encoder else None
        self.decoder = _wrapped(config, "decoder", Decoder)

    def forward(self, tokens: Tensor, source: Tensor | None = None) -> Tensor:
        if self.encoder is None:
            return self.decoder(tokens)
        return self.decoder(tokens, context=self.encoder(source, return_embeddings=True))


def _wrapped(config: TransformerConfig, stack: str, layers: Any) -> nn.Module:
    return TransformerWrapper(
        num_tokens=config.stack_vocab_size(stack),
        max_seq_len=config.max_length,
        attn_layers=layers(
            dim=config.embed_dim,
            depth=config.stack_num_layers(stack),
            heads=config.num_heads,
            attn_dim_head=config.head_dim,
            attn_flash=True,
            ff_mult=config.feed_forward_dim / config.embed_dim,
            ff_custom_activation=nn.ReLU(),
            cross_attend=stack == "decoder" and config.has_encoder,
            pre_norm=config.norm_position == "pre",
        ),
    )


def build(task: Task) -> Run:
    """With its own random weights."""
    return tasks(task, Model(task.config).to(task.device, getattr(torch, task.workload.dtype)).eval())
