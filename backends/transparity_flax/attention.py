"""Attention: queries weigh keys and gather their values."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Bool, Float, Int

from transparity.config import EXACT_MASK_BELOW, Projection, TransformerConfig
from transparity.taps import Tap, identity
from transparity_flax.cache import Cache, remember
from transparity_flax.head import capped
from transparity_flax.normalization import HeadNorm
from transparity_flax.positions import NOWHERE, Places, rotate
from transparity_flax.precision import upcast

# XLA's CPU has no product of float16 that sums in float32, as the fused path asks for.
FUSED_DTYPES = (jnp.float32, jnp.float64, jnp.bfloat16)

BLOCK = 128
"""So many queries at a time are cut from the keys behind them."""


def split_heads(
    x: Float[Array, "batch length embed_dim"], num_heads: int
) -> Float[Array, "batch heads length head_dim"]:
    """The features cut into `num_heads` consecutive pieces, one a head (document 003)."""
    batch, length, embed_dim = x.shape
    return x.reshape(batch, length, num_heads, embed_dim // num_heads).swapaxes(1, 2)


def merge_heads(x: Float[Array, "batch heads length head_dim"]) -> Float[Array, "batch length embed_dim"]:
    """The heads side by side again: what `split_heads` undoes."""
    batch, heads, length, head_dim = x.shape
    return x.swapaxes(1, 2).reshape(batch, length, heads * head_dim)


def project_heads(
    linear: nnx.Linear,
    x: Float[Array, "batch length embed_dim"],
    num_heads: int,
    projection: Projection,
) -> Float[Array, "batch heads length head_dim"]:
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
    x: Float[Array, "batch key_heads keys head_dim"], num_heads: int
) -> Float[Array, "batch heads keys head_dim"]:
    """Each head of keys or values, for all consecutive query heads that share it (Ainslie et al. 2023, §2.2)."""
    return x if x.shape[1] == num_heads else x.repeat(num_heads // x.shape[1], axis=1)


def attention_scores(
    query: Float[Array, "batch heads queries head_dim"],
    key: Float[Array, "batch heads keys head_dim"],
    scale: float,
    cap: float | None = None,
    bias: Float[Array, "#batch heads #queries keys"] | None = None,
) -> Float[Array, "batch heads queries keys"]:
    """query · keyᵀ · scale, held below `cap`, plus `bias`."""
    scores = query @ key.swapaxes(-2, -1) * scale
    scores = scores if cap is None else capped(scores, cap)
    return scores if bias is None else scores + bias


def attention_weights(
    scores: Float[Array, "batch heads queries keys"], mask: Bool[Array, "#batch 1 #queries keys"], hidden: float
) -> Float[Array, "batch heads queries keys"]:
    """softmax of the scores over the keys, after `hidden` has replaced those that `mask` hides.

    `hidden` is held at half the lowest number of the dtype: exp(that − largest) is exactly 0, as it is for −inf, and
    a row that sees nothing weighs all keys alike instead of being NaN.
    """
    lowest = float(jnp.finfo(scores.dtype).min) / 2
    shown = jnp.where(mask, scores, jnp.asarray(max(hidden, lowest), scores.dtype))
    return jax.nn.softmax(upcast(shown), axis=-1).astype(scores.dtype)


def _fused_attention(
    query: Float[Array, "batch heads queries head_dim"],
    key: Float[Array, "batch heads keys head_dim"],
    value: Float[Array, "batch heads keys head_dim"],
    mask: Bool[Array, "#batch 1 #queries keys"],
    scale: float,
    bias: Float[Array, "#batch heads #queries keys"] | None,
) -> Float[Array, "batch heads queries head_dim"]:
    """A block of queries at a time, without the keys behind its last, where all that is hidden is in the future or
    more; whether it is, is known as late as the mask."""
    length = mask.shape[2]
    if length <= BLOCK or length != mask.shape[3]:
        return _gathered(query, key, value, mask, scale, bias)

    def in_blocks() -> Array:
        blocks = []
        for begin in range(0, length, BLOCK):
            queries, keys = slice(begin, begin + BLOCK), slice(begin + BLOCK)
            near = None if bias is None else bias[:, :, queries, keys]
            given = query[:, :, queries], key[:, :, keys], value[:, :, keys], mask[:, :, queries, keys]
            blocks.append(_gathered(*given, scale, near))
        return jnp.concatenate(blocks, axis=2)

    hides_the_future = mask.any(axis=-1).all() & ~jnp.triu(mask, 1).any()
    context: Array = jax.lax.cond(hides_the_future, in_blocks, lambda: _gathered(query, key, value, mask, scale, bias))
    return context


def _gathered(
    query: Float[Array, "batch heads queries head_dim"],
    key: Float[Array, "batch heads keys head_dim"],
    value: Float[Array, "batch heads keys head_dim"],
    mask: Bool[Array, "#batch 1 #queries keys"],
    scale: float,
    bias: Float[Array, "#batch heads #queries keys"] | None,
) -> Float[Array, "batch heads queries head_dim"]:
    """Divided by the sum of their weights once the values are gathered, which are fewer numbers than the weights. A row
    that sees nothing weighs all keys alike, as in the explicit path."""
    scores = upcast(attention_scores(query, key, scale, None, bias))
    shown = jnp.where(mask, scores, jnp.finfo(scores.dtype).min / 2)
    weights = jnp.exp(shown - jax.lax.stop_gradient(shown.max(axis=-1, keepdims=True)))
    context = jnp.matmul(weights.astype(value.dtype), value, preferred_element_type=scores.dtype)
    return (context / weights.sum(axis=-1, keepdims=True)).astype(value.dtype)


def attention(
    query: Float[Array, "batch heads queries head_dim"],
    key: Float[Array, "batch key_heads keys head_dim"],
    value: Float[Array, "batch key_heads keys head_dim"],
    mask: Bool[Array, "#batch 1 #queries keys"],
    *,
    scale: float,
    hidden: float,
    cap: float | None = None,
    bias: Float[Array, "#batch heads #queries keys"] | None = None,
    tap: Tap = identity,
) -> Float[Array, "batch queries attention_dim"]:
    """softmax(query · keyᵀ · scale) · value, the heads merged (Vaswani et al. 2017, eq. 1)."""
    key, value = (repeat_heads(x, query.shape[1]) for x in (key, value))
    if tap is identity and hidden < EXACT_MASK_BELOW and cap is None and query.dtype in FUSED_DTYPES:
        return merge_heads(_fused_attention(query, key, value, mask, scale, bias))
    scores = tap("scores", attention_scores(query, key, scale, cap, bias))
    weights = tap("weights", attention_weights(scores, mask, hidden))
    return tap("context", merge_heads(weights @ value))


def keys_and_values(
    attention: MultiHeadAttention,
    memory: Float[Array, "batch keys embed_dim"],
    tap: Tap = identity,
    at: Places = NOWHERE,
) -> tuple[Float[Array, "batch key_heads keys head_dim"], Float[Array, "batch key_heads keys head_dim"]]:
    """What there is to look at in `memory`: the key and the value of every head."""
    heads, projection = attention.config.key_value_heads, attention.config.projection
    key = tap("key", project_heads(attention.key, memory, heads, projection))
    value = tap("value", project_heads(attention.value, memory, heads, projection))
    return placed(attention, "key", key, at, tap), value


def placed(
    attention: MultiHeadAttention,
    name: str,
    x: Float[Array, "batch any_heads length head_dim"],
    at: Places,
    tap: Tap,
) -> Float[Array, "batch any_heads length head_dim"]:
    """The `query` or `key` as they meet: normalised and turned, where there is such."""
    if attention.config.query_key_norm:
        x = tap(f"{name}_norm", getattr(attention, f"{name}_norm")(x))
    if at.rotation is None:
        return x
    return tap(f"{name}_rotated", rotate(x, at.rotation, attention.config.rope_layout))


class MultiHeadAttention(nnx.Module):
    """`x` looks at `memory` (at itself, in self-attention, where it stands `at`) with several heads (Vaswani et al.
    2017, §3.2.2).

    With a `cache`, at all that is in it: what `memory` gives is kept there first, at `positions`; None gives nothing.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        features, into = (config.attention_dim, config.key_value_heads * config.head_dim), config.embed_dim
        if config.projection == "shared-per-head":
            features, into = (config.head_dim, config.head_dim), config.head_dim
        self.query = nnx.Linear(into, features[0], use_bias=config.qkv_bias, rngs=rngs)
        self.key = nnx.Linear(into, features[1], use_bias=config.qkv_bias, rngs=rngs)
        self.value = nnx.Linear(into, features[1], use_bias=config.qkv_bias, rngs=rngs)
        if config.query_key_norm:
            self.query_norm, self.key_norm = HeadNorm(config, rngs=rngs), HeadNorm(config, rngs=rngs)
        self.output = nnx.Linear(config.attention_dim, config.embed_dim, use_bias=config.output_bias, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "batch queries embed_dim"],
        memory: Float[Array, "batch memory embed_dim"] | None,
        mask: Bool[Array, "#batch 1 #queries keys"],
        tap: Tap = identity,
        cache: Cache | None = None,
        positions: Int[Array, "batch queries"] | None = None,
        at: Places = NOWHERE,
    ) -> Float[Array, "batch queries embed_dim"]:
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
