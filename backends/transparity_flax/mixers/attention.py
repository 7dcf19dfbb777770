"""Attention: each query weighs all keys, and sums their values by these weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from transparity.config import Projection, TransformerConfig
from transparity_flax.arithmetic import fused
from transparity_flax.arithmetic.precision import apply_softcap, upcast
from transparity_flax.norms.heads import normalize_and_rotate, query_key_norms
from transparity_flax.shapes import Bias, Heads, Hidden, Keys, MaskArray, Memory, Queries, Scores, Sinks, Values
from transparity_flax.state.cache import update
from transparity_flax.state.context import Context


def split_heads(x: Hidden, num_heads: int) -> Heads:
    """Split the features into `num_heads` consecutive blocks, one per head."""
    batch, length, embed_dim = x.shape
    return x.reshape(batch, length, num_heads, embed_dim // num_heads).swapaxes(1, 2)


def merge_heads(x: Heads) -> Hidden:
    """Concatenate the features of all heads, as the inverse of `split_heads`."""
    batch, heads, length, head_dim = x.shape
    return x.swapaxes(1, 2).reshape(batch, length, heads * head_dim)


def project_heads(linear: nnx.Linear, x: Hidden, num_heads: int, projection: Projection) -> Heads:
    """Project `x` and split it into heads; with `shared-per-head`, split `x`, then project each head (document 002)."""
    if projection == "shared-per-head":
        return linear(split_heads(x, num_heads))
    return split_heads(linear(x), num_heads)


def repeat_heads(x: Heads, num_heads: int) -> Float[Array, "batch heads length head_dim"]:
    """x[⌊h / group⌋] for each query head h; `group` query heads share a head of x (GQA, Ainslie et al. 2023, §2.2)."""
    return x if x.shape[1] == num_heads else x.repeat(num_heads // x.shape[1], axis=1)


def attention_scores(
    query: Queries, key: Keys, scale: float, softcap: float | None = None, bias: Bias | None = None
) -> Scores:
    """softcap(query · keyᵀ · scale) + bias."""
    scores = query @ key.swapaxes(-2, -1) * scale
    scores = scores if softcap is None else apply_softcap(scores, softcap)
    return scores if bias is None else scores + bias


def attention_weights(scores: Scores, mask: MaskArray, masked_score: float, sinks: Sinks | None = None) -> Scores:
    """softmax(where(mask, scores, masked_score)) over the keys and the head's sink; the sink's weight is then dropped.

    A `masked_score` below half the dtype's lowest number, such as −inf, is raised to this half. Masked keys then weigh
    exactly 0, and a query whose keys are all masked gets equal weights instead of NaN.
    """
    lowest = float(jnp.finfo(scores.dtype).min) / 2
    shown = jnp.where(mask, scores, jnp.asarray(max(masked_score, lowest), scores.dtype))
    if sinks is not None:
        shown = jnp.concatenate([shown, jnp.broadcast_to(sinks[:, None, None], (*shown.shape[:-1], 1))], axis=-1)
    return jax.nn.softmax(upcast(shown), axis=-1).astype(scores.dtype)[..., : scores.shape[-1]]


def attention(
    config: TransformerConfig, query: Queries, key: Keys, value: Values, context: Context, sinks: Sinks | None = None
) -> Float[Array, "batch queries attention_dim"]:
    """softmax(mask(query · keyᵀ · scale)) · value, with the heads merged (Vaswani et al. 2017, eq. 1)."""
    scale, softcap = config.score_scale, config.attention_softcap
    mask, bias, tap = context.mask, context.bias, context.tap
    key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
    if fused.applies(tap, config.masked_score, softcap, query.dtype):
        return merge_heads(fused.attention(query, key, value, mask, scale=scale, bias=bias, sinks=sinks))
    scores = tap("scores", attention_scores(query, key, scale, softcap, bias))
    weights = tap("weights", attention_weights(scores, mask.array, config.masked_score, sinks))
    return tap("context", merge_heads(weights @ value))


class AttentionProjections(nnx.Module):
    """The projections of multi-head attention (Vaswani et al. 2017, §3.2.2)."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config, bias = config, config.qkv_bias
        into, queries, keys = config.embed_dim, config.attention_dim, config.key_value_heads * config.head_dim
        if config.projection == "shared-per-head":
            into = queries = keys = config.head_dim
        self.query = nnx.Linear(into, queries, use_bias=bias, rngs=rngs)
        self.key = nnx.Linear(into, keys, use_bias=bias and config.key_bias, rngs=rngs)
        self.value = nnx.Linear(into, keys, use_bias=bias, rngs=rngs)
        if config.query_key_norm:
            self.query_norm, self.key_norm = query_key_norms(config, rngs=rngs)
        if config.attention_sinks:
            self.sinks = nnx.Param(jnp.zeros(config.num_heads))
        if config.attention_gate:
            self.gate = nnx.Linear(config.embed_dim, config.context_dim, use_bias=bias, rngs=rngs)
        self.output = nnx.Linear(config.context_dim, config.embed_dim, use_bias=config.output_bias, rngs=rngs)


def project_query(module: AttentionProjections, x: Hidden, context: Context) -> Queries:
    config = module.config
    query = context.tap("query", project_heads(module.query, x, config.num_heads, config.projection))
    return normalize_and_rotate(module, "query", query, context)


def project_key_value(module: AttentionProjections, x: Memory, context: Context) -> tuple[Keys, Values]:
    config = module.config
    key = context.tap("key", project_heads(module.key, x, config.key_value_heads, config.projection))
    value = context.tap("value", project_heads(module.value, x, config.key_value_heads, config.projection))
    return normalize_and_rotate(module, "key", key, context), value


class SelfAttention(AttentionProjections):
    """Multi-head attention from `x` to itself and to any cached tokens (Vaswani et al. 2017, §3.2.2)."""

    def project(self, x: Hidden, context: Context) -> tuple[Queries, Keys, Values]:
        return project_query(self, x, context), *project_key_value(self, x, context)

    def __call__(self, x: Hidden, context: Context) -> Hidden:
        query, key, value = self.project(x, context)
        query = query if context.temperature is None else query * context.temperature
        if context.cache is not None:
            key, value = update(context.cache, key, value, context.positions)
        return _attend(self, x, query, key, value, context)


class CrossAttention(AttentionProjections):
    """Multi-head attention from `x` to the encoder's output; with a cache, keys and values come from the cache."""

    def __call__(self, x: Hidden, context: Context) -> Hidden:
        assert context.memory_mask is not None
        context = context._replace(mask=context.memory_mask, bias=None, rotary=None)
        query = project_query(self, x, context)
        if context.cache is not None:
            key, value = context.cache["key"], context.cache["value"]
        else:
            assert context.memory is not None
            key, value = project_key_value(self, context.memory, context)
        return _attend(self, x, query, key, value, context)


def _attend(
    module: AttentionProjections, x: Hidden, query: Queries, key: Keys, value: Values, context: Context
) -> Hidden:
    """Compute attention, multiply by σ(gate(x)) if `attention_gate` is true, and apply the output projection."""
    config = module.config
    y = attention(config, query, key, value, context, module.sinks[...] if config.attention_sinks else None)
    if config.attention_gate:
        y = context.tap("gated_context", y * jax.nn.sigmoid(module.gate(x)))
    return context.tap("output", module.output(y))
