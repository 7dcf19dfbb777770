"""A decoder that PyTorch shards: an `nn.Module` and a plan of `parallelize_module`; its logits are a DTensor.

`build` is correct. `build_fused` has a mistake: it shards the fused matrix of queries, keys and values as one matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from meta.exam.subjects import renamed
from meta.ranks.collectives import join_group
from transparity.config import TransformerConfig

RANK, RANKS = join_group()


class Block(nn.Module):
    """A layer of the preset notes-lm, with queries, keys and values in one matrix or in three."""

    def __init__(self, config: TransformerConfig, *, fused: bool) -> None:
        super().__init__()
        dim, hidden = config.embed_dim, config.feed_forward_dim
        self.scale, self.head_dim, self.fused = config.score_scale, config.head_dim, fused
        if fused:
            self.qkv: nn.Module = nn.Linear(dim, 3 * dim, bias=False)
        else:
            self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.out, self.up, self.down = nn.Linear(dim, dim), nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.norm1, self.norm2 = (nn.LayerNorm(dim, config.norm_eps) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        parts = self.qkv(y).chunk(3, -1) if self.fused else (self.q(y), self.k(y), self.v(y))
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in parts)
        scores = q @ k.mT * self.scale
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        context = scores.masked_fill(future, -torch.inf).softmax(-1) @ v
        x = x + self.out(context.transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, config: TransformerConfig, *, fused: bool) -> None:
        super().__init__()
        vocab, dim = config.target_vocab_size or 0, config.embed_dim
        self.token, self.position = nn.Embedding(vocab, dim), nn.Embedding(config.max_length, dim)
        self.blocks = nn.ModuleList(Block(config, fused=fused) for _ in range(config.num_decoder_layers))
        self.norm, self.head = nn.LayerNorm(dim, config.norm_eps), nn.Linear(dim, vocab)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


NAMES = {
    "decoder.token_embedding.": "token.",
    "decoder.position_embedding.": "position.",
    "decoder.final_norm.": "norm.",
    "decoder.layers.": "blocks.",
    "self_attention_norm.": "norm1.",
    "feed_forward_norm.": "norm2.",
    "self_attention.": "",
    "feed_forward.": "",
    "query.": "q.",
    "key.": "k.",
    "value.": "v.",
    "output.": "out.",
}


def state(config: TransformerConfig, parameters: Mapping[str, np.ndarray], *, fused: bool) -> dict[str, torch.Tensor]:
    found = {renamed(name, NAMES): torch.tensor(value) for name, value in parameters.items()}
    if fused:
        for i in range(config.num_decoder_layers):
            parts = [found.pop(f"blocks.{i}.{name}.weight") for name in "qkv"]
            found[f"blocks.{i}.qkv.weight"] = torch.cat(parts)
    return found


def sharded(model: Model) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan: dict[str, Any] = {"head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
    for name, _ in model.named_modules():
        last = name.rpartition(".")[2]
        if last in ("q", "k", "v", "qkv", "up"):
            plan[name] = ColwiseParallel()
        elif last in ("out", "down"):
            plan[name] = RowwiseParallel()
    return parallelize_module(model, init_device_mesh("cpu", (RANKS,)), plan)


def build(config: TransformerConfig, parameters: Mapping[str, np.ndarray], *, fused: bool = False) -> Any:
    """Return the correct port; it is not sharded on a single rank."""
    model = Model(config, fused=fused)
    model.load_state_dict(state(config, parameters, fused=fused))
    model = model if RANKS == 1 else sharded(model)

    def forward(tokens: Any) -> Any:
        with torch.no_grad():
            return model(torch.as_tensor(tokens))

    return forward


def build_fused(config: TransformerConfig, parameters: Mapping[str, np.ndarray]) -> Any:
    """Return the port with the mistake: the fused matrix is sharded by columns."""
    return build(config, parameters, fused=True)
