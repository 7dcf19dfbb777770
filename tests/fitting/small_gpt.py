"""A small GPT with one linear layer for query, key and value, a tied head, and a mask in a buffer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

WIDTH, HEADS, LENGTH, VOCABULARY = 24, 3, 40, 53


class Attention(nn.Module):
    bias: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("bias", torch.ones(LENGTH, LENGTH).tril()[None, None])

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        query, key, value = (
            each.view(batch, length, HEADS, -1).transpose(1, 2) for each in self.c_attn(x).split(WIDTH, 2)
        )
        scores = query @ key.transpose(-2, -1) / math.sqrt(key.shape[-1])
        scores = scores.masked_fill(self.bias[:, :, :length, :length] == 0, -math.inf)
        context = scores.softmax(-1) @ value
        return self.c_proj(context.transpose(1, 2).reshape(batch, length, WIDTH))


class Block(nn.Module):
    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.ln_1, self.ln_2, self.attn = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH, eps=1e-5), Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 40), activation, nn.Linear(40, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, *activations: nn.Module) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.h = nn.ModuleList(Block(each) for each in activations or (nn.GELU("tanh"), nn.GELU("tanh")))
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, None]:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x)), None


def of_two_kinds() -> GPT:
    """Return a GPT whose two layers have different activations, which no configuration describes."""
    return GPT(nn.ReLU(), nn.SiLU())


def needs(width: int) -> GPT:
    raise NotImplementedError(width)


def no_module() -> int:
    return 3


class Bag(nn.Module):
    """A model that returns the mean of the embeddings so far, without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.embed(tokens).cumsum(1)
