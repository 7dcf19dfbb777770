# mypy: ignore-errors
"""A small GPT with different signatures and outputs, and modules that no configuration describes."""

import functools

import torch
from tests.fitting.decoders import GPT
from torch import nn

from transparity.config import TransformerConfig

CONFIG = TransformerConfig(
    architecture="decoder",
    target_vocab_size=53,
    max_length=40,
    embed_dim=24,
    num_heads=3,
    num_decoder_layers=2,
    feed_forward_dim=40,
    activation="gelu-tanh",
    norm_position="pre",
    final_norm=True,
    tied_head=True,
    head_bias=False,
)


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = GPT()


class Cached(Wrapped):
    """A GPT whose second argument is the start position, which `fit` must not mistake for the targets."""

    def forward(self, tokens, start_pos: int):
        assert start_pos == 0
        return self.inner(tokens)


class KeysFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.key, self.query, self.value, self.out = (nn.Linear(24, 24) for _ in range(4))

    def forward(self, x):
        k, q, v = (each(x).view(*x.shape[:2], 3, -1).transpose(1, 2) for each in (self.key, self.query, self.value))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


def keys_first():
    model = GPT()
    for block in model.blocks:
        block.attention = KeysFirst()
    return model


def frozen():
    model = GPT()
    for parameter in model.parameters():
        parameter.requires_grad = parameter.ndim < 2
    return model


def of_two_eps():
    model = GPT()
    model.end.eps = 1e-3
    return model


class Scaled(nn.Embedding):
    def forward(self, ids):
        return super().forward(ids) * 0.25


def scaled():
    model = GPT()
    model.places = Scaled(40, 24)
    return model


class RowMask(nn.Module):
    """A GPT that masks padding in the rows of the scores."""

    def __init__(self, of):
        super().__init__()
        self.inner = of
        self.is_padding = torch.zeros(1, 1, dtype=torch.bool)

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (3, -1)).transpose(1, 2) for each in self.inner.packed(x).split(24, 2))
        scores = q @ k.transpose(-2, -1) / 8**0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1) | self.is_padding[:, None, :, None]
        y = scores.masked_fill(hidden, -1e4).softmax(-1) @ v
        return self.inner.out(y.transpose(1, 2).flatten(2))


class PaddedRows(Wrapped):
    def __init__(self):
        super().__init__()
        for block in self.inner.blocks:
            block.attention = RowMask(block.attention)

    def forward(self, tokens):
        for block in self.inner.blocks:
            block.attention.is_padding = tokens == 5
        return self.inner(tokens)[0]


class Short(nn.Module):
    def __init__(self):
        super().__init__()
        import dataclasses

        from meta.fitting.drawn import module

        self.inner = module(dataclasses.replace(CONFIG, positions="rotary"))

    def forward(self, tokens):
        assert tokens.shape[1] <= 37
        return self.inner(tokens)


class Translation(nn.Module):
    """`nn.Transformer` with the sequence axis before the batch axis."""

    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(53, 24), nn.Embedding(51, 24)
        self.before, self.behind = nn.Embedding(40, 24), nn.Embedding(40, 24)
        self.transformer = nn.Transformer(24, 3, 2, 2, 40, activation="gelu", batch_first=True)
        self.head = nn.Linear(24, 51)

    def forward(self, source, target):
        future = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=self.head.weight.dtype)
        x = self.source(source) + self.before(torch.arange(source.shape[1]))
        y = self.target(target) + self.behind(torch.arange(target.shape[1]))
        hidden = {"src_key_padding_mask": source == 1, "memory_key_padding_mask": source == 1}
        return self.head(self.transformer(x, y, tgt_mask=future, **hidden))


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
