"""Small decoders with a property that `fit` cannot see: their eps, a buffer, a fixed length, or the batch axis."""

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
    """An RMSNorm with a lower bound for the mean square instead of an added eps."""

    def __init__(self) -> None:
        super().__init__(1e-5)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True).clamp_min(self.eps))


def in_place(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
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


class Attention(nn.Module):
    def __init__(self, attend: Attend, *, by_head: bool) -> None:
        super().__init__()
        self.attend, self.by_head = attend, by_head
        self.packed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        made = self.packed(x).unflatten(-1, (HEADS, 3, -1) if self.by_head else (3, HEADS, -1))
        parts = (each.transpose(1, 2) for each in made.unbind(-2 if self.by_head else -3))
        return self.out(self.attend(*parts).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, norm: Callable[[], nn.Module], attention: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.before, self.between, self.attention = norm(), norm(), attention
        self.feed = nn.Sequential(nn.Linear(WIDTH, 40), activation, nn.Linear(40, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        return x + self.feed(self.between(x))


class Decoder(nn.Module):
    def __init__(
        self,
        norm: Callable[[], nn.Module] | None = None,
        attend: Attend = in_place,
        *activations: nn.Module,
        by_head: bool = False,
    ) -> None:
        super().__init__()
        make, each = norm or functools.partial(nn.LayerNorm, WIDTH), activations or (nn.ReLU(), nn.ReLU())
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.blocks = nn.ModuleList(Block(make, Attention(attend, by_head=by_head), function) for function in each)
        self.end, self.head = make(), nn.Linear(WIDTH, VOCABULARY)

    def positions(self, length: int) -> Tensor:
        return self.places(torch.arange(length))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(ids.shape[1])
        for block in self.blocks:
            x = block(x)
        return self.head(self.end(x))


class GPT(Decoder):
    """A GPT with a tied head and a mask in a buffer, which returns a pair."""

    mask: Tensor

    def __init__(self, *activations: nn.Module) -> None:
        super().__init__(None, self.masked, *(activations or (nn.GELU("tanh"), nn.GELU("tanh"))))
        self.register_buffer("mask", torch.ones(PLACES, PLACES).tril()[None, None])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def masked(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        length = query.shape[2]
        scores = query @ key.transpose(-2, -1) / key.shape[-1] ** 0.5
        return scores.masked_fill(self.mask[:, :, :length, :length] == 0, -torch.inf).softmax(-1) @ value

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Any:
        return super().forward(idx), None


def of_two_kinds() -> GPT:
    """Return a GPT whose two layers have different activations, which no configuration describes."""
    return GPT(nn.ReLU(), nn.SiLU())


def needs(width: int) -> GPT:
    raise NotImplementedError(width)


def no_module() -> int:
    return 3


class Bag(nn.Module):
    """A model that averages the embeddings up to each token, without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.embed(tokens).cumsum(1)


class TwoMasks(Decoder):
    """A decoder that hides later tokens by −∞, then adds −1e9 to the scores of padding."""

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

    def positions(self, length: int) -> Tensor:
        return self.places.weight


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
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids.T) + self.places(torch.arange(ids.shape[1]))[:, None]
        return self.head(self.layers(x, nn.Transformer.generate_square_subsequent_mask(len(x)))).transpose(0, 1)


class Narrow(Decoder):
    """A decoder whose second linear layer has two unused outputs."""

    def __init__(self) -> None:
        super().__init__()
        wide = nn.Linear(40, WIDTH + 2), nn.ZeroPad1d((0, -2))
        self.blocks[1].feed = nn.Sequential(nn.Linear(WIDTH, 40), nn.ReLU(), *wide)


class Images(nn.Module):
    """An image model without attention, whose argument has an unusual name."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, WIDTH, 4, 4), nn.Linear(WIDTH, 10)

    def forward(self, img: Tensor) -> Tensor:
        return self.head(self.patches(img).flatten(2).mean(2))
