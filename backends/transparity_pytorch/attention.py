"""Attention: queries weigh keys and gather their values."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from transparity.config import EXACT_MASK_BELOW, Projection, TransformerConfig
from transparity.taps import Tap, identity
from transparity_pytorch.cache import Cache, remember
from transparity_pytorch.head import capped
from transparity_pytorch.masks import causal_mask
from transparity_pytorch.normalization import HeadNorm
from transparity_pytorch.positions import NOWHERE, Places, rotate


def split_heads(
    x: Float[Tensor, "batch length embed_dim"], num_heads: int
) -> Float[Tensor, "batch heads length head_dim"]:
    """The features cut into `num_heads` consecutive pieces, one a head (document 003)."""
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def merge_heads(x: Float[Tensor, "batch heads length head_dim"]) -> Float[Tensor, "batch length embed_dim"]:
    """The heads side by side again: what `split_heads` undoes."""
    return x.transpose(1, 2).flatten(2)


def project_heads(
    linear: nn.Linear,
    x: Float[Tensor, "batch length embed_dim"],
    num_heads: int,
    projection: Projection,
) -> Float[Tensor, "batch heads length head_dim"]:
    """The query, key or value of every head: projected and split, or split and projected by one map for all heads
    (document 002)."""
    if projection == "shared-per-head":
        return linear(split_heads(x, num_heads))
    return split_heads(linear(x), num_heads)


def score_scale(config: TransformerConfig) -> float:
    """What scores are multiplied by: head_dim^−½ (Vaswani et al. 2017, eq. 1), embed_dim^−½ (001, 002, 004) or 1 (T5),
    and `attention_multiplier`."""
    if config.attention_scale == "none":
        return config.attention_multiplier
    features = config.head_dim if config.attention_scale == "head_dim" else config.embed_dim
    return float(features**-0.5) * config.attention_multiplier


def masked_score(config: TransformerConfig) -> float:
    """What takes the place of a hidden score, once scaled: masking before the scale scales the mask's value too."""
    return config.mask_value * score_scale(config) if config.mask_order == "before-scale" else config.mask_value


def repeat_heads(
    x: Float[Tensor, "batch key_heads keys head_dim"], num_heads: int
) -> Float[Tensor, "batch heads keys head_dim"]:
    """Each head of keys or values, for all consecutive query heads that share it (Ainslie et al. 2023, §2.2)."""
    return x if x.shape[1] == num_heads else x.repeat_interleave(num_heads // x.shape[1], dim=1)


def attention_scores(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch heads keys head_dim"],
    scale: float,
    cap: float | None = None,
    bias: Float[Tensor, "#batch heads #queries keys"] | None = None,
) -> Float[Tensor, "batch heads queries keys"]:
    """query · keyᵀ · scale, held below `cap`, plus `bias`."""
    scores = query @ key.transpose(-2, -1) * scale
    scores = scores if cap is None else capped(scores, cap)
    return scores if bias is None else scores + bias


def attention_weights(
    scores: Float[Tensor, "batch heads queries keys"], mask: Bool[Tensor, "#batch 1 #queries keys"], hidden: float
) -> Float[Tensor, "batch heads queries keys"]:
    """softmax of the scores over the keys, after `hidden` has replaced those that `mask` hides.

    `hidden` is held at half the lowest number of the dtype: exp(that − largest) is exactly 0, as it is for −inf, and
    a row that sees nothing weighs all keys alike instead of being NaN.
    """
    lowest = torch.finfo(scores.dtype).min / 2
    return scores.masked_fill(~mask, max(hidden, lowest)).softmax(dim=-1)


def _fused_attention(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch heads keys head_dim"],
    value: Float[Tensor, "batch heads keys head_dim"],
    mask: Bool[Tensor, "#batch 1 #queries keys"],
    scale: float,
    bias: Float[Tensor, "#batch heads #queries keys"] | None,
) -> Float[Tensor, "batch heads queries head_dim"]:
    """One kernel for all of it, which is faster where it is told that nothing is hidden, or nothing but the future.

    It would return zeros for a row that sees nothing; with that row's query zeroed and all its keys shown, it weighs
    them alike, as the explicit path does.
    """
    # Elsewhere, to look into a mask is to wait for a device; and nothing can be looked into while it is compiled.
    if bias is None and mask.device.type == "cpu" and not torch.compiler.is_compiling():
        if mask.all():
            return F.scaled_dot_product_attention(query, key, value, scale=scale)
        if mask.shape[2] == key.shape[2] and torch.equal(mask, causal_mask(key.shape[2])):
            return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
    sees = mask.any(dim=-1, keepdim=True)
    query = query.masked_fill(~sees, 0)
    shown = mask | ~sees if bias is None else bias.masked_fill(~mask, -torch.inf).masked_fill(~sees, 0)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=shown, scale=scale)


def attention(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch key_heads keys head_dim"],
    value: Float[Tensor, "batch key_heads keys head_dim"],
    mask: Bool[Tensor, "#batch 1 #queries keys"],
    *,
    scale: float,
    hidden: float,
    cap: float | None = None,
    bias: Float[Tensor, "#batch heads #queries keys"] | None = None,
    tap: Tap = identity,
) -> Float[Tensor, "batch queries attention_dim"]:
    """softmax(query · keyᵀ · scale) · value, the heads merged (Vaswani et al. 2017, eq. 1)."""
    key, value = (repeat_heads(x, query.shape[1]) for x in (key, value))
    if tap is identity and hidden < EXACT_MASK_BELOW and cap is None:
        return merge_heads(_fused_attention(query, key, value, mask, scale, bias))
    scores = tap("scores", attention_scores(query, key, scale, cap, bias))
    weights = tap("weights", attention_weights(scores, mask, hidden))
    return tap("context", merge_heads(weights @ value))


def keys_and_values(
    attention: MultiHeadAttention,
    memory: Float[Tensor, "batch keys embed_dim"],
    tap: Tap = identity,
    at: Places = NOWHERE,
) -> tuple[Float[Tensor, "batch key_heads keys head_dim"], Float[Tensor, "batch key_heads keys head_dim"]]:
    """What there is to look at in `memory`: the key and the value of every head."""
    heads, projection = attention.config.key_value_heads, attention.config.projection
    key = tap("key", project_heads(attention.key, memory, heads, projection))
    value = tap("value", project_heads(attention.value, memory, heads, projection))
    return placed(attention, "key", key, at, tap), value


def placed(
    attention: MultiHeadAttention,
    name: str,
    x: Float[Tensor, "batch any_heads length head_dim"],
    at: Places,
    tap: Tap,
) -> Float[Tensor, "batch any_heads length head_dim"]:
    """The `query` or `key` as they meet: normalised and turned, where there is such."""
    if attention.config.query_key_norm:
        x = tap(f"{name}_norm", getattr(attention, f"{name}_norm")(x))
    if at.rotation is None:
        return x
    return tap(f"{name}_rotated", rotate(x, at.rotation, attention.config.rope_layout))


class MultiHeadAttention(nn.Module):
    """`x` looks at `memory` (at itself, in self-attention, where it stands `at`) with several heads (Vaswani et al.
    2017, §3.2.2).

    With a `cache`, at all that is in it: what `memory` gives is kept there first, at `positions`; None gives nothing.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        features, into = (config.attention_dim, config.key_value_heads * config.head_dim), config.embed_dim
        if config.projection == "shared-per-head":
            features, into = (config.head_dim, config.head_dim), config.head_dim
        self.query = nn.Linear(into, features[0], bias=config.qkv_bias)
        self.key = nn.Linear(into, features[1], bias=config.qkv_bias)
        self.value = nn.Linear(into, features[1], bias=config.qkv_bias)
        if config.query_key_norm:
            self.query_norm, self.key_norm = HeadNorm(config), HeadNorm(config)
        self.output = nn.Linear(config.attention_dim, config.embed_dim, bias=config.output_bias)

    def forward(
        self,
        x: Float[Tensor, "batch queries embed_dim"],
        memory: Float[Tensor, "batch memory embed_dim"] | None,
        mask: Bool[Tensor, "#batch 1 #queries keys"],
        tap: Tap = identity,
        cache: Cache | None = None,
        positions: Int[Tensor, "batch queries"] | None = None,
        at: Places = NOWHERE,
    ) -> Float[Tensor, "batch queries embed_dim"]:
        query = tap("query", project_heads(self.query, x, self.config.num_heads, self.config.projection))
        query = placed(self, "query", query, at, tap)
        if memory is None:
            assert cache is not None
            key, value = cache["key"], cache["value"]
        else:
            key, value = keys_and_values(self, memory, tap, at)
            if cache is not None:
                assert positions is not None
                key, value = remember(cache, key, value, positions)
        scale, hidden = score_scale(self.config), masked_score(self.config)
        cap = self.config.attention_softcap
        context = attention(query, key, value, mask, scale=scale, hidden=hidden, cap=cap, bias=at.bias, tap=tap)
        return tap("output", self.output(context))
