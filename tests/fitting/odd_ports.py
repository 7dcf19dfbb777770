"""Small decoders that hide a property from `fit`: their eps, a buffer, a fixed length, or the batch axis."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

WIDTH, HEADS, PLACES, VOCABULARY = 24, 3, 40, 53

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class RmsNorm(nn.Module):
    """An RMSNorm like Llama's, which computes in float32 for every dtype."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(WIDTH)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class Bounded(RmsNorm):
    """An RMSNorm that bounds the mean square from below in place of adding eps."""

    def __init__(self) -> None:
        super().__init__(1e-5)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True).clamp_min(self.eps))


def in_place(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend to the given tokens."""
    return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def in_buffer(query: Tensor, key: Tensor, value: Tensor, fill: float = 0.0, *, by_hand: bool = False) -> Tensor:
    """Attend to a buffer for the maximum number of tokens; unused entries contain `fill`."""
    length = query.shape[2]
    keys, values = (torch.full((*each.shape[:2], PLACES, each.shape[3]), fill) for each in (key, value))
    keys[:, :, :length], values[:, :, :length] = key, value
    mask = torch.ones(PLACES, PLACES).tril().bool()[:length]
    if not by_hand:
        return nn.functional.scaled_dot_product_attention(query, keys.to(query), values.to(query), attn_mask=mask)
    scores = torch.einsum("bhqd,bhkd->bhqk", query, keys.to(query)) * query.shape[-1] ** -0.5
    return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ values.to(query)


class Block(nn.Module):
    def __init__(self, norm: Callable[[], nn.Module], attend: Attend, *, by_head: bool) -> None:
        super().__init__()
        self.before, self.between, self.attend, self.by_head = norm(), norm(), attend, by_head
        self.packed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 40), nn.Linear(40, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        shape = (HEADS, 3, -1) if self.by_head else (3, HEADS, -1)
        made = self.packed(self.before(x)).unflatten(-1, shape)
        parts = (each.transpose(1, 2) for each in made.unbind(-2 if self.by_head else -3))
        x = x + self.out(self.attend(*parts).transpose(1, 2).flatten(2))
        return x + self.down(torch.relu(self.up(self.between(x))))


class Decoder(nn.Module):
    def __init__(
        self, norm: Callable[[], nn.Module] | None = None, attend: Attend = in_place, *, by_head: bool = False
    ) -> None:
        super().__init__()
        make = norm or functools.partial(nn.LayerNorm, WIDTH)
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.blocks = nn.ModuleList(Block(make, attend, by_head=by_head) for _ in range(2))
        self.end, self.head = make(), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.end(x))


class TwoMasks(Decoder):
    """A decoder that hides later tokens by −∞, and then adds −1e9 to the scores of padding."""

    def __init__(self) -> None:
        super().__init__(attend=self.masked)
        self.mask = torch.ones(1, 1)

    def masked(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
        scores = scores + torch.full(scores.shape[-2:], -torch.inf).triu(1)
        return (scores + (1.0 - self.mask[:, None, None]) * -1e9).softmax(-1) @ value

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        self.mask = torch.ones(ids.shape) if attention_mask is None else attention_mask
        return super().forward(ids)


def rms(eps: float) -> Decoder:
    return Decoder(functools.partial(RmsNorm, eps))


class Whole(Decoder):
    """A decoder that always processes the maximum number of positions."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.end(x))


def padded() -> Callable[[Tensor], Tensor]:
    model = Whole()

    def forward(ids: Tensor) -> Tensor:
        return model(nn.functional.pad(ids, (0, PLACES - ids.shape[1])))[:, : ids.shape[1]]

    return forward


class RowsSecond(nn.Module):
    """PyTorch's layers with their default order of axes: positions before rows."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(PLACES, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 40, 0.0, **options)
        self.layers, self.head = (
            nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            nn.Linear(WIDTH, VOCABULARY),
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids.T) + self.places(torch.arange(ids.shape[1]))[:, None]
        return self.head(self.layers(x, nn.Transformer.generate_square_subsequent_mask(len(x)))).transpose(0, 1)


class Narrow(Decoder):
    """A decoder whose second linear layer has two outputs too many, which are discarded."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[1].down = nn.Sequential(nn.Linear(40, WIDTH + 2), nn.ZeroPad1d((0, -2)))


class Images(nn.Module):
    """An image model without attention, whose argument has an unusual name."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, WIDTH, 4, 4), nn.Linear(WIDTH, 10)

    def forward(self, img: Tensor) -> Tensor:
        return self.head(self.patches(img).flatten(2).mean(2))
