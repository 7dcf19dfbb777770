# mypy: ignore-errors
"""A GPT of flax.linen, a module with a maximum length, and modules that no configuration describes."""

import dataclasses
import functools
from unittest import mock

import torch
import torch.nn.functional as F
from tests.fitting.decoders import CONFIG
from torch import nn
from transformers import WhisperForConditionalGeneration

from meta.fitting.drawn import module


class Short(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = module(dataclasses.replace(CONFIG, positions="rotary"))

    def forward(self, tokens):
        assert tokens.shape[1] <= 37
        return self.inner(tokens)


def linen():
    import jax
    import jax.numpy as jnp
    from flax import linen

    class Block(linen.Module):
        @linen.compact
        def __call__(self, x, *, train: bool):
            (b, t, d), norm = x.shape, functools.partial(linen.LayerNorm, epsilon=1e-5)
            q, k, v = (
                each.reshape(b, t, 3, -1).transpose(0, 2, 1, 3)
                for each in jnp.split(linen.Dense(3 * d)(norm()(x)), 3, -1)
            )
            scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), q @ k.swapaxes(-1, -2) / (d // 3) ** 0.5, -jnp.inf)
            y = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(b, t, d)
            x = x + linen.Dropout(0.1, deterministic=not train)(linen.Dense(d)(y))
            return x + linen.Dense(d)(linen.gelu(linen.Dense(40)(norm()(x))))

    class GPTOfLinen(linen.Module):
        @linen.compact
        def __call__(self, idx, *, train: bool, targets=None):
            embed = linen.Embed(53, 24)
            x = embed(idx) + linen.Embed(40, 24)(jnp.arange(idx.shape[1]))
            for _ in range(2):
                x = Block()(x, train=train)
            return embed.attend(linen.LayerNorm(epsilon=1e-5)(x)), targets

    return GPTOfLinen()


class ReluWhisper(WhisperForConditionalGeneration):
    """A Whisper with ReLU after its convolutions."""

    def forward(self, input_features, decoder_input_ids):
        with mock.patch("torch.nn.functional.gelu", F.relu):
            return super().forward(input_features=input_features, decoder_input_ids=decoder_input_ids)


class Broken(nn.Module):
    def forward(self, tokens: torch.Tensor):
        raise RuntimeError("no")


class Three(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)

    def forward(self, src, tgt, src_mask):
        return self.embed(src) + self.embed(tgt) + src_mask


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(53, 24).bfloat16(), nn.Linear(24, 53).bfloat16()

    def forward(self, tokens):
        return self.out(self.embed(tokens).bfloat16())


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.images = nn.Linear(2, 2)

    def forward(self, input_ids, pixel_values):
        return self.images(pixel_values)


class Pixels(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(5, 5)

    def forward(self, pixel_values):
        return self.map(pixel_values)
