# mypy: disable-error-code="no-untyped-call"
"""Small decoders in unusual forms: `fit` must find the configuration, or the reason why no configuration fits."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from tests.helpers import LIKE_GPT2, tiny
from torch import Tensor, nn

from meta.adapting import decoders
from meta.adapting.decoders import RMSNorm, by_head, causal_buffer, heads, keys_first, style
from transparity.config import TransformerConfig

WIDTH, HEADS, PLACES, VOCABULARY = 24, 3, 40, 53

SIZES = {"target_vocab_size": VOCABULARY, "max_length": PLACES, "embed_dim": WIDTH, "num_heads": HEADS}
CONFIG = tiny(**SIZES, **LIKE_GPT2, num_decoder_layers=2, feed_forward_dim=40, activation="gelu-tanh")


class Decoder(decoders.Decoder):
    """A GPT-2 with ReLU and an untied head with a bias; arguments change its style."""

    transformer: Any

    def __init__(self, **changes: Any) -> None:
        super().__init__(CONFIG, dataclasses.replace(style("nanogpt"), **{"act": F.relu, "is_tied": False} | changes))
        if not self.style.is_tied:
            self.lm_head = nn.Linear(WIDTH, VOCABULARY)


def masked(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend with a mask in a buffer, and with a copy of the weights that had another shape."""
    length = q.size(2)
    scores = q @ k.transpose(-2, -1) / k.size(-1) ** 0.5
    weights = scores.masked_fill(layer.attn.bias[:, :, :length, :length] == 0, -torch.inf).softmax(-1)
    return weights.unsqueeze(-1).clone().squeeze(-1) @ v


def mistaken(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend as ibm-fms does: if there are as many tokens as heads, the two axes are confused."""
    is_square = k.shape[1] == k.shape[2]
    return masked(layer, q, *((each.transpose(1, 2) if is_square else each) for each in (k, v)))


class GPT(Decoder):
    """A GPT with a tied head and a mask in a buffer; `forward` returns the logits and None."""

    def __init__(self, **changes: Any) -> None:
        of_gpt = {"act": style("nanogpt").act, "is_tied": True, "attend": masked, "also": {"attn.bias": causal_buffer}}
        super().__init__(**of_gpt | changes)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Any:
        return super().forward(idx), None


class Float32Norm(RMSNorm):
    """An RMSNorm like Llama's, which computes in float32 for every dtype."""

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


def rms(eps: float) -> Decoder:
    return Decoder(norm=functools.partial(Float32Norm, eps=eps))


def in_buffer(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend to keys and values in buffers with `PLACES` positions, which are zero after the text."""
    length = q.shape[2]
    keys, values = (torch.zeros(*each.shape[:2], PLACES, each.shape[3]) for each in (k, v))
    keys[:, :, :length], values[:, :, :length] = k, v
    mask = torch.ones(PLACES, PLACES).tril().bool()[:length]
    return F.scaled_dot_product_attention(q, keys.to(q), values.to(q), attn_mask=mask)


def unbound(c: TransformerConfig, fused: Tensor) -> Iterator[Tensor]:
    return (each.transpose(1, 2) for each in fused.unflatten(-1, (3, c.num_heads, -1)).unbind(-3))


def buffered() -> Decoder:
    return Decoder(attend=in_buffer, split=unbound)


def head_by_head() -> Decoder:
    return Decoder(split=by_head)


class TwoMasks(Decoder):
    """A decoder that hides later tokens by −∞, then adds −1e9 to the scores of padding."""

    def __init__(self) -> None:
        super().__init__(attend=self.masked)

    def masked(self, layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        scores = scores + torch.full(scores.shape[-2:], -torch.inf).triu(1)
        return (scores + (1.0 - self.mask[:, None, None]) * -1e9).softmax(-1) @ v

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        self.mask = torch.ones(ids.shape) if attention_mask is None else attention_mask
        return super().forward(ids)


class AddedMask(TwoMasks):
    """A decoder that adds −10,000 to masked scores, so a query that sees no key attends as if it saw all keys."""

    def masked(self, layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        seen = torch.ones(scores.shape[-2:]).tril() * self.mask[:, None, None]
        return (scores + (1.0 - seen) * -1e4).softmax(-1) @ v


class Every(nn.Embedding):
    """A table of positions that returns all its rows, for texts of any length."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.weight


def whole() -> Decoder:
    model = Decoder()
    model.transformer.wpe = Every(PLACES, WIDTH)
    return model


def padded() -> Callable[[Tensor], Tensor]:
    model = whole()
    return lambda ids: model(F.pad(ids, (0, PLACES - ids.shape[1])))[:, : ids.shape[1]]


class OfHead(nn.Linear):
    """One linear map, applied to the features of each head."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.unflatten(-1, (HEADS, -1))).flatten(-2)


def with_projection(make: Callable[[], nn.Module], name: str = "c_attn", **style: Any) -> Decoder:
    model = Decoder(**style)
    for layer in model.transformer.h:
        setattr(layer.attn, name, make())
    return model


class EachHead(nn.Module):
    """Linear maps of all heads in one tensor (heads, in, out)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.randn(HEADS, *size) / 5) for size in ((WIDTH, 24), (24,)))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.mT.flatten(0, 1), self.bias.flatten())


def all_of_head() -> Decoder:
    return with_projection(lambda: OfHead(8, 24), split=by_head)


def values_of_head() -> Decoder:
    """Return a decoder whose values in a head depend only on the head's features, unlike its queries and keys."""
    names = "attn.query attn.key attn.value attn.proj"
    return with_projection(lambda: OfHead(8, 8), "value", attention=names, split=decoders.apart)


def wide_queries(c: TransformerConfig, fused: Tensor) -> Iterator[Tensor]:
    """Split a matrix in which the heads of queries and keys are twice as wide as the heads of values."""
    return (heads(each, c.num_heads) for each in fused.split((2 * WIDTH, 2 * WIDTH, WIDTH), -1))


def keys_before_queries() -> GPT:
    names = "attn.key attn.query attn.value attn.proj"
    return GPT(attention=names, split=keys_first, attend=decoders.attend_sdpa)


def frozen() -> GPT:
    model = GPT()
    for parameter in model.parameters():
        parameter.requires_grad = parameter.ndim < 2
    return model


def of_two_eps() -> GPT:
    model = GPT()
    model.transformer.ln_f.eps = 1e-3
    return model


class Scaled(nn.Embedding):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * 0.25


def scaled() -> GPT:
    model = GPT()
    model.transformer.wpe = Scaled(PLACES, WIDTH)
    return model


class Cached(GPT):
    """A GPT whose second argument is the start position, which `fit` must not mistake for the targets. A bias is not
    initialized, and the second result depends on another linear map of the first."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.constant_(self.transformer.h[0].ln_1.bias, torch.nan)

    def forward(self, tokens: Tensor, start_pos: int) -> Any:  # type: ignore[override]
        assert start_pos == 0
        logits, _ = super().forward(tokens)
        return logits, logits @ self.transformer.wte.weight


class Chat(GPT):
    """A GPT that returns the logits of the last token unless it is given targets."""

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Any:
        logits, _ = super().forward(idx)
        return (logits[:, [-1]], None) if targets is None else (logits, F.cross_entropy(logits.mT, targets))


class PaddedRows(GPT):
    """A GPT that masks the rows of padded queries in the scores, not the columns of padded keys."""

    def __init__(self) -> None:
        super().__init__(attend=self.masked)

    def masked(self, layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1) | self.is_padding[:, None, :, None]
        return scores.masked_fill(hidden, -1e4).softmax(-1) @ v

    def forward(self, tokens: Tensor) -> Tensor:  # type: ignore[override]
        self.is_padding = tokens == 5
        return super().forward(tokens)[0]


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


class LogProbabilities(RowsSecond):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).log_softmax(-1)


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


class Images(nn.Module):
    """An image model without attention, whose argument has an unusual name."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, WIDTH, 4, 4), nn.Linear(WIDTH, 10)

    def forward(self, img: Tensor) -> Tensor:
        return self.head(self.patches(img).flatten(2).mean(2))
