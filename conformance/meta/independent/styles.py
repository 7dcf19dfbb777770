"""Right ways to write the port, each a class in front of it; a port takes several at once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def exact(c: Any) -> bool:
    """Return whether what is masked weighs nothing."""
    return c.mask_value * (0.01 if c.mask_order == "before-scale" else 1) < -1e6


class Einsum:
    """Scores and context by einsum."""

    def weigh(self: Any, at: str, query: Tensor, key: Tensor, value: Tensor, keep: Tensor, bias: Any) -> Tensor:
        shared = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
        scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * self.scale()
        scores = self.capped(scores) if bias is None else self.capped(scores) + bias
        return torch.einsum("bhqk,bhkd->bhqd", self.shares(at, self.masked(scores, keep)), value)


class GroupedEinsum:
    """Groups of queries share their keys by an axis of their own."""

    def weigh(self: Any, at: str, query: Tensor, key: Tensor, value: Tensor, keep: Tensor, bias: Any) -> Tensor:
        grouped = query.unflatten(1, (key.shape[1], -1))
        scores = self.capped(torch.einsum("bgrqd,bgkd->bgrqk", grouped, key).flatten(1, 2) * self.scale())
        weights = self.shares(at, self.masked(scores if bias is None else scores + bias, keep))
        weights = weights.unflatten(1, (key.shape[1], -1))
        return torch.einsum("bgrqk,bgkd->bgrqd", weights, value).flatten(1, 2)


class Sdpa:
    """PyTorch's fused attention with a bool mask."""

    fits = staticmethod(lambda c: exact(c) and c.attention_softcap is None and not c.attention_sinks)

    def weigh(self: Any, at: str, query: Tensor, key: Tensor, value: Tensor, keep: Tensor, bias: Any) -> Tensor:
        shared = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
        mask = keep if bias is None else torch.where(keep, bias, torch.finfo(query.dtype).min / 2)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=self.scale())


class Online:
    """Softmax over blocks of keys, corrected as the maximum grows."""

    fits = staticmethod(exact)

    def weigh(self: Any, at: str, query: Tensor, key: Tensor, value: Tensor, keep: Tensor, bias: Any) -> Tensor:
        shared = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
        scores = self.masked(self.scores(query, key, bias), keep).to(self.wide())
        most = torch.full((*scores.shape[:-1], 1), -torch.inf, dtype=scores.dtype)
        total = torch.zeros_like(most)
        if self.c.attention_sinks:  # the first block is the sink alone, without a value
            most = self.p[f"{at.rstrip('~')}.sinks"].to(most).view(1, -1, 1, 1).expand_as(most)
            total = torch.ones_like(most)
        context = torch.zeros(*scores.shape[:-1], value.shape[-1], dtype=scores.dtype)
        for part, values in zip(scores.split(4, -1), value.to(self.wide()).split(4, 2), strict=True):
            larger = torch.maximum(most, part.amax(-1, keepdim=True))
            weights, correction = (part - larger).exp(), (most - larger).exp()
            total = total * correction + weights.sum(-1, keepdim=True)
            context, most = context * correction + weights @ values, larger
        return (context / total).to(query.dtype)

    def masked(self: Any, scores: Tensor, keep: Tensor) -> Tensor:
        """Masked scores are finite: −∞ less −∞ is no number."""
        return scores.masked_fill(~keep, self.masked_score())


class QueriesInChunks:
    """Queries are read in chunks of five."""

    def weigh(self: Any, at: str, query: Tensor, key: Tensor, value: Tensor, keep: Tensor, bias: Any) -> Tensor:
        n = query.shape[2]
        keep = keep.expand(-1, -1, n, -1)
        bias = None if bias is None else bias.expand(-1, -1, n, -1)
        parts = [slice(i, i + 5) for i in range(0, n, 5)]
        found = [
            super(QueriesInChunks, self).weigh(  # type: ignore[misc]
                f"{at}~", query[:, :, part], key, value, keep[:, :, part], None if bias is None else bias[:, :, part]
            )
            for part in parts
        ]
        return torch.cat(found, 2)


class HeadByHead:
    """A loop over heads."""

    fits = staticmethod(lambda c: not c.attention_sinks)

    def weigh(self: Any, at: str, query: Tensor, key: Tensor, value: Tensor, keep: Tensor, bias: Any) -> Tensor:
        shared = query.shape[1] // key.shape[1]
        found = []
        for i in range(query.shape[1]):
            scores = query[:, i] @ key[:, i // shared].transpose(-2, -1) * self.scale()
            scores = self.capped(scores) if bias is None else self.capped(scores) + bias[:, i]
            found.append(self.softmax(self.masked(scores, keep[:, 0])) @ value[:, i // shared])
        return torch.stack(found, 1)


class KeysBackwards:
    """Keys are read from the last to the first, so that sums are in another order."""

    def weigh(self: Any, at: str, query: Tensor, key: Tensor, value: Tensor, keep: Tensor, bias: Any) -> Tensor:
        bias = None if bias is None else bias.flip(-1)
        return super().weigh(f"{at}~", query, key.flip(2), value.flip(2), keep.flip(-1), bias)  # type: ignore[misc]


class ScaledQuery:
    """The query is multiplied by the scale, not the scores."""

    def scores(self: Any, query: Tensor, key: Tensor, bias: Any) -> Tensor:
        scores = self.capped((query * self.scale()) @ key.transpose(-2, -1))
        return scores if bias is None else scores + bias


class RootsOfTheScale:
    """Query and key are both multiplied by the root of the scale, as Whisper has it."""

    def scores(self: Any, query: Tensor, key: Tensor, bias: Any) -> Tensor:
        root = math.sqrt(self.scale())
        scores = self.capped((query * root) @ (key * root).transpose(-2, -1))
        return scores if bias is None else scores + bias


class KeysFirst:
    """Scores are (keys, queries), with a softmax over their first axis."""

    def scores(self: Any, query: Tensor, key: Tensor, bias: Any) -> Tensor:
        scores = self.capped((key @ query.transpose(-2, -1) * self.scale()).transpose(-2, -1))
        return scores if bias is None else scores + bias

    def softmax(self: Any, scores: Tensor) -> Tensor:
        return torch.softmax(scores.transpose(-2, -1).to(self.wide()), -2).transpose(-2, -1).to(scores.dtype)


class AdditiveMask:
    """−1e9 is added to masked scores."""

    fits = staticmethod(exact)

    def masked(self: Any, scores: Tensor, keep: Tensor) -> Tensor:
        return scores + (~keep).to(scores.dtype) * -1e9


class LowestMask:
    """The lowest number is added to masked scores, and clamped."""

    fits = staticmethod(exact)

    def masked(self: Any, scores: Tensor, keep: Tensor) -> Tensor:
        lowest = torch.finfo(scores.dtype).min
        return (scores + torch.where(keep, 0.0, lowest).to(scores.dtype)).clamp(min=lowest)


class InfiniteMask:
    """Masked scores are −inf; rows that see nothing are 0."""

    fits = staticmethod(exact)

    def masked(self: Any, scores: Tensor, keep: Tensor) -> Tensor:
        return scores.masked_fill(~keep, -torch.inf)

    def softmax(self: Any, scores: Tensor) -> Tensor:
        return torch.softmax(scores.to(self.wide()), -1).nan_to_num(0.0).to(scores.dtype)


class LogSoftmax:
    """exp of the log-softmax."""

    def softmax(self: Any, scores: Tensor) -> Tensor:
        return scores.to(self.wide()).log_softmax(-1).exp().to(scores.dtype)


class Exp2:
    """Powers of two of scores times log₂ e."""

    def softmax(self: Any, scores: Tensor) -> Tensor:
        wide = scores.to(self.wide())
        weights = ((wide - wide.amax(-1, keepdim=True)) * math.log2(math.e)).exp2()
        return (weights / weights.sum(-1, keepdim=True)).to(scores.dtype)


class ByHand:
    """exp(x − max) / sum."""

    def softmax(self: Any, scores: Tensor) -> Tensor:
        wide = scores.to(self.wide())
        weights = (wide - wide.max(-1, keepdim=True).values).exp()
        return (weights * (1 / weights.sum(-1, keepdim=True))).to(scores.dtype)


class FusedQkv:
    """One matrix for query, key and value."""

    fits = staticmethod(lambda c: c.projection == "full")

    def prepare(self: Any) -> None:
        super().prepare()  # type: ignore[misc]
        for name in [name for name in self.p if name.endswith("attention.query.weight")]:
            roles = [name.replace("query", role) for role in ("query", "key", "value")]
            self.p[name.replace("query", "qkv")] = torch.cat([self.p[role] for role in roles])

    def dense(self: Any, name: str, x: Tensor) -> Tensor:
        at, _, role = name.rpartition(".")
        fused = self.p.get(f"{at}.qkv.weight")
        if fused is None or role not in ("query", "key", "value"):
            return super().dense(name, x)  # type: ignore[misc]
        sizes = [len(self.p[f"{at}.{each}.weight"]) for each in ("query", "key", "value")]
        y = F.linear(x, fused).split(sizes, -1)[("query", "key", "value").index(role)]
        bias = self.p.get(f"{name}.bias")
        return y if bias is None else y + bias


class InputsFirst:
    """Weights are (in, out), as GPT-2's Conv1D has them."""

    def prepare(self: Any) -> None:
        super().prepare()  # type: ignore[misc]
        self.turned = {name: x.T.contiguous() for name, x in self.p.items() if x.ndim == 2}

    def dense(self: Any, name: str, x: Tensor) -> Tensor:
        y, bias = x @ self.turned[f"{name}.weight"], self.p.get(f"{name}.bias")
        return y if bias is None else y + bias


class ChannelsFirst:
    """Dense layers are convolutions of width 1 over (batch, features, length)."""

    def dense(self: Any, name: str, x: Tensor) -> Tensor:
        if x.ndim != 3:
            return super().dense(name, x)  # type: ignore[misc]
        weight, bias = self.p[f"{name}.weight"], self.p.get(f"{name}.bias")
        return F.conv1d(x.transpose(1, 2), weight[..., None], bias).transpose(1, 2)


class Pieces:
    """Matrix products are sums over pieces of eight features."""

    def dense(self: Any, name: str, x: Tensor) -> Tensor:
        weight, bias = self.p[f"{name}.weight"].to(self.wide()), self.p.get(f"{name}.bias")
        parts = zip(x.to(self.wide()).split(8, -1), weight.split(8, -1), strict=True)
        y = torch.stack([part @ columns.T for part, columns in parts]).sum(0)
        return (y if bias is None else y + bias).to(x.dtype)


class Addmm:
    """One product with the bias inside, on flattened rows."""

    def dense(self: Any, name: str, x: Tensor) -> Tensor:
        bias = self.p.get(f"{name}.bias")
        if bias is None:
            return super().dense(name, x)  # type: ignore[misc]
        flat = torch.addmm(bias, x.reshape(-1, x.shape[-1]), self.p[f"{name}.weight"].T)
        return flat.reshape(*x.shape[:-1], -1)


class Float64Products:
    """Dense layers accumulate in float64."""

    def dense(self: Any, name: str, x: Tensor) -> Tensor:
        bias = self.p.get(f"{name}.bias")
        y = x.double() @ self.p[f"{name}.weight"].double().T
        return (y if bias is None else y + bias).to(x.dtype)


class BuiltInNorms:
    """PyTorch's own norms."""

    fits = staticmethod(lambda c: c.norm != "layer-unbiased")

    def normalized(self: Any, x: Tensor, gain: Tensor, bias: Any) -> Tensor:
        if self.c.norm == "rms":
            return self.rms(x, gain)
        return F.layer_norm(x, gain.shape, gain, bias, self.c.norm_eps)

    def rms(self: Any, x: Tensor, gain: Tensor) -> Tensor:
        return F.rms_norm(x, gain.shape, gain, self.c.norm_eps)


class NormsInFloat64:
    """Norms compute in float64."""

    def normalized(self: Any, x: Tensor, gain: Tensor, bias: Any) -> Tensor:
        wide = None if bias is None else bias.double()
        return super().normalized(x.double(), gain.double(), wide).to(x.dtype)  # type: ignore[misc]


class FeaturesShuffled:
    """Sums of norms run over the features in another order."""

    def normalized(self: Any, x: Tensor, gain: Tensor, bias: Any) -> Tensor:
        order = torch.randperm(x.shape[-1], generator=torch.Generator().manual_seed(5))
        back = order.argsort()
        return super().normalized(x[..., order], gain[order], None if bias is None else bias[order])[..., back]  # type: ignore[misc]


class FoldedGains:
    """Gains of norms are multiplied into the weights behind them."""

    fits = staticmethod(
        lambda c: c.norm_position == "pre" and c.norm == "rms" and c.projection == "full" and not c.memory_norm
    )

    def prepare(self: Any) -> None:
        super().prepare()  # type: ignore[misc]
        for name in [name for name in self.p if name.endswith("_norm.weight") and ".layers." in name]:
            at = name.removesuffix("_norm.weight")
            gain = self.p[name] + (self.c.norm_gain == "one-plus-weight")
            roles = ["gate", "up"] if at.endswith("feed_forward") else ["query", "key", "value"]
            roles = ["query"] if "cross" in at else roles
            for role in roles:
                if f"{at}.{role}.weight" in self.p:
                    self.p[f"{at}.{role}.weight"] = self.p[f"{at}.{role}.weight"] * gain
            if not at.endswith((".query", ".key")):
                self.p[name] = torch.full_like(gain, 0.0 if self.c.norm_gain == "one-plus-weight" else 1.0)


class FoldedScale:
    """The scale is multiplied into the query's weights."""

    fits = staticmethod(lambda c: not c.query_key_norm)

    def prepare(self: Any) -> None:
        factor = super().scale()  # type: ignore[misc]
        for name in [name for name in self.p if "attention.query." in name]:
            self.p[name] = self.p[name] * factor
        super().prepare()  # type: ignore[misc] # behind it a projection may be fused or transposed

    def tap(self: Any, name: str, x: Tensor) -> Tensor:
        return x if ".query" in name else super().tap(name, x)  # type: ignore[misc]

    def masked_score(self: Any) -> float:
        factor = super().scale() if self.c.mask_order == "before-scale" else 1.0  # type: ignore[misc]
        return float(max(self.c.mask_value * factor, torch.finfo(self.dtype).min / 2))

    def scale(self: Any) -> float:
        return 1.0


class ComplexRotation:
    """Rotations are products of complex numbers."""

    fits = staticmethod(lambda c: c.positions == "rotary" and c.rope_layout == "interleaved")

    def rotated(self: Any, x: Tensor, where: Tensor) -> Tensor:
        angles = where[..., None].double() * self.frequencies(where)
        turn = torch.polar(torch.full_like(angles, self.own.rotary_attention_factor), angles).to(torch.complex64)[
            :, None
        ]
        width = 2 * angles.shape[-1]
        pairs = torch.view_as_complex(x[..., :width].float().unflatten(-1, (-1, 2)).contiguous())
        return torch.cat([torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype), x[..., width:]], -1)


class RotateHalf:
    """x cos + rotate_half(x) sin, with tables twice as wide, as Llama's code has it."""

    fits = staticmethod(lambda c: c.positions == "rotary" and c.rope_layout == "halves")

    def rotated(self: Any, x: Tensor, where: Tensor) -> Tensor:
        angles = where[..., None].float() * self.frequencies(where).float()
        both = torch.cat([angles, angles], -1)[:, None]
        cosine, sine = ((self.own.rotary_attention_factor * each).to(x.dtype) for each in (both.cos(), both.sin()))
        width = both.shape[-1]
        turned, rest = x[..., :width], x[..., width:]
        one, other = turned.chunk(2, -1)
        return torch.cat([turned * cosine + torch.cat([-other, one], -1) * sine, rest], -1)


class SinusoidsInFloat32:
    """Sinusoids by exp(−log(base) · i / d), in float32, the usual way."""

    fits = staticmethod(lambda c: c.positions == "sinusoidal")

    def sinusoids(self: Any, length: int) -> Tensor:
        d = self.c.embed_dim
        step = torch.exp(torch.arange(0, d, 2).float() * (-math.log(self.c.rope_theta) / d))
        angles = torch.arange(length).float()[:, None] * step
        both = [angles.sin(), angles.cos()]
        return torch.cat(both, -1) if self.c.rope_layout == "halves" else torch.stack(both, -1).flatten(-2)


class OneHot:
    """Embeddings are products with one-hot rows."""

    def lookup(self: Any, table: Tensor, ids: Tensor) -> Tensor:
        return F.one_hot(ids, len(table)).to(table.dtype) @ table


class Embedding:
    """`torch.nn.functional.embedding`, with 32-bit ids."""

    def lookup(self: Any, table: Tensor, ids: Tensor) -> Tensor:
        return F.embedding(ids.int(), table)


class RowByRow:
    """A loop over the rows of a batch."""

    def run(self: Any, **given: Any) -> Tensor:
        rows = len(next(iter(given.values())))
        found = []
        for i in range(rows):
            found.append(super().run(**{name: value[i : i + 1] for name, value in given.items()}))  # type: ignore[misc]
            self.apart.append(self.heard)
            self.heard = {}
        taps = list(self.apart)
        self.apart.clear()
        self.heard = {name: torch.cat([each[name] for each in taps]) for name in taps[0]}
        return torch.cat(found)

    def prepare(self: Any) -> None:
        super().prepare()  # type: ignore[misc]
        self.apart: list[dict[str, Tensor]] = []


class FeedInChunks:
    """The feed-forward runs on three positions at a time."""

    def feed(self: Any, at: str, x: Tensor) -> Tensor:
        parts = [super(FeedInChunks, self).feed(f"{at}~", part) for part in x.split(3, 1)]  # type: ignore[misc]
        return self.tap(f"{at}.output", torch.cat(parts, 1))

    def dense(self: Any, name: str, x: Tensor) -> Tensor:
        return super().dense(name.replace("~", ""), x)  # type: ignore[misc]


class HiddenShuffled:
    """The hidden features of the feed-forward are in another order."""

    def prepare(self: Any) -> None:
        order = torch.randperm(self.c.feed_forward_dim, generator=torch.Generator().manual_seed(3))
        for name in list(self.p):
            if ".feed_forward." in name and "norm" not in name:
                if ".down.weight" in name:
                    self.p[name] = self.p[name][:, order]
                elif ".down" not in name:
                    self.p[name] = self.p[name][order]
        super().prepare()  # type: ignore[misc]

    def tap(self: Any, name: str, x: Tensor) -> Tensor:
        return x if name.endswith("feed_forward.hidden") else super().tap(name, x)  # type: ignore[misc]


class ActivationsByHand:
    """Activations from their formulas."""

    def act(self: Any, x: Tensor) -> Tensor:
        wide = x.to(self.wide())
        y = {
            "relu": lambda: wide.clamp(min=0),
            "gelu": lambda: wide / 2 * (1 + torch.erf(wide / math.sqrt(2))),
            "gelu-tanh": lambda: wide / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))),
            "gelu-quick": lambda: wide / (1 + (-1.702 * wide).exp()),
            "silu": lambda: wide / (1 + (-wide).exp()),
        }[self.c.activation]()
        return y.to(x.dtype)


class ResidualSecond:
    """The sublayer's result comes first in the sum."""

    def after(self: Any, name: str, x: Tensor, y: Tensor) -> Tensor:
        return super().after(name, y, x) if self.c.norm_position == "post" else super().after(name, x, y)  # type: ignore[misc]


class BandOfOnes:
    """The window is a band: the lower triangle without the one further down."""

    fits = staticmethod(lambda c: c.sliding_window is not None)

    def near(self: Any, where: Tensor, keys: int, window: int) -> Tensor:
        ones = torch.ones(keys, keys).bool()
        return (ones.triu(1 - window) & ones.tril(window - 1))[where[0]][None, None]


class TriangleOfOnes:
    """The causal mask is a triangle."""

    def causal(self: Any, where: Tensor, keys: int) -> Tensor:
        return torch.tril(torch.ones(keys, keys)).bool()[where[0]][None, None]


class AnswersNumpy:
    """Answers NumPy arrays."""

    def __call__(self: Any, **inputs: Any) -> Any:
        found = super().__call__(**inputs)  # type: ignore[misc]
        if isinstance(found, dict):
            return {name: value.float().numpy() for name, value in found.items()}
        return np.asarray(found.float().numpy()).astype(np.float64)


STYLES: tuple[type, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, type) and value.__module__ == __name__
)


def fitting(config: Any) -> list[type]:
    """The styles that are right in a configuration."""
    return [style for style in STYLES if getattr(style, "fits", always)(config)]


def always(c: Any) -> bool:
    return True
