"""Attention: each query weighs all keys, and sums their values by these weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Inexact
from numpy import ndarray as Array

from transparity.config import Projection, TransformerConfig
from transparity_numpy.arithmetic import fused
from transparity_numpy.arithmetic.functional import linear, sigmoid, softmax
from transparity_numpy.arithmetic.precision import apply_softcap
from transparity_numpy.norms.heads import normalize_and_rotate
from transparity_numpy.shapes import Bias, Heads, Hidden, Keys, Mask, Memory, Parameters, Queries, Scores, Sinks, Values
from transparity_numpy.state.cache import update
from transparity_numpy.state.context import Context


def split_heads(x: Hidden, num_heads: int) -> Heads:
    """Split the features into `num_heads` consecutive blocks, one per head."""
    batch, length, embed_dim = x.shape
    return x.reshape(batch, length, num_heads, embed_dim // num_heads).swapaxes(1, 2)


def merge_heads(x: Heads) -> Hidden:
    """Concatenate the features of all heads, as the inverse of `split_heads`."""
    batch, heads, length, head_dim = x.shape
    return x.swapaxes(1, 2).reshape(batch, length, heads * head_dim)


def project_heads(parameters: Parameters, x: Hidden, num_heads: int, projection: Projection) -> Heads:
    """Project `x` and split it into heads; with `shared-per-head`, split `x`, then project each head (document 002)."""
    if projection == "shared-per-head":
        return linear(parameters, split_heads(x, num_heads))
    return split_heads(linear(parameters, x), num_heads)


def repeat_heads(x: Heads, num_heads: int) -> Inexact[Array, "batch heads length head_dim"]:
    """x[⌊h / group⌋] for each query head h; `group` query heads share a head of x (GQA, Ainslie et al. 2023, §2.2)."""
    return x if x.shape[1] == num_heads else x.repeat(num_heads // x.shape[1], axis=1)


def attention_scores(
    query: Queries, key: Keys, scale: float, softcap: float | None = None, bias: Bias | None = None
) -> Scores:
    """softcap(query · keyᵀ · scale) + bias."""
    scores = query @ key.swapaxes(-2, -1) * scale
    scores = scores if softcap is None else apply_softcap(scores, softcap)
    return scores if bias is None else scores + bias


def attention_weights(scores: Scores, mask: Mask, masked_score: float, sinks: Sinks | None = None) -> Scores:
    """softmax(where(mask, scores, masked_score)) over the keys and the head's sink; the sink's weight is then dropped.

    A `masked_score` below half the dtype's lowest number, such as −inf, is raised to this half. Masked keys then weigh
    exactly 0, and a query whose keys are all masked gets equal weights instead of NaN.
    """
    lowest = float(np.finfo(scores.dtype).min) / 2
    shown = np.where(mask, scores, scores.dtype.type(max(masked_score, lowest)))
    if sinks is not None:
        shown = np.concatenate([shown, np.broadcast_to(sinks[:, None, None], (*shown.shape[:-1], 1))], axis=-1)
    return softmax(shown)[..., : scores.shape[-1]]


def attention(
    config: TransformerConfig, query: Queries, key: Keys, value: Values, context: Context, sinks: Sinks | None = None
) -> Inexact[Array, "batch queries attention_dim"]:
    """softmax(mask(query · keyᵀ · scale)) · value, with the heads merged (Vaswani et al. 2017, eq. 1)."""
    scale, softcap = config.score_scale, config.attention_softcap
    mask, bias, tap = context.mask, context.bias, context.tap
    key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
    if fused.applies(tap, config.masked_score):
        return merge_heads(
            fused.attention(query, key, value, mask, scale=scale, softcap=softcap, bias=bias, sinks=sinks)
        )
    scores = tap("scores", attention_scores(query, key, scale, softcap, bias))
    weights = tap("weights", attention_weights(scores, mask, config.masked_score, sinks))
    return tap("context", merge_heads(weights @ value))


def project_query(config: TransformerConfig, parameters: Parameters, x: Hidden, context: Context) -> Queries:
    query = context.tap("query", project_heads(parameters["query"], x, config.num_heads, config.projection))
    return normalize_and_rotate(config, parameters, "query", query, context)


def project_key_value(
    config: TransformerConfig, parameters: Parameters, x: Memory, context: Context
) -> tuple[Keys, Values]:
    heads, projection = config.key_value_heads, config.projection
    key = context.tap("key", project_heads(parameters["key"], x, heads, projection))
    value = context.tap("value", project_heads(parameters["value"], x, heads, projection))
    return normalize_and_rotate(config, parameters, "key", key, context), value


def self_attention(
    config: TransformerConfig,
    parameters: Parameters,
    x: Hidden,
    context: Context,
    projections: tuple[Callable[..., Queries], Callable[..., tuple[Keys, Values]]] = (project_query, project_key_value),
) -> Hidden:
    """Multi-head attention from `x` to itself and to any cached tokens (Vaswani et al. 2017, §3.2.2)."""
    of_query, of_key_value = projections
    query = of_query(config, parameters, x, context)
    query = query if context.temperature is None else query * context.temperature
    key, value = of_key_value(config, parameters, x, context)
    if context.cache is not None:
        key, value = update(context.cache, key, value, context.positions)
    return _attend(config, parameters, x, query, key, value, context)


def cross_attention(config: TransformerConfig, parameters: Parameters, x: Hidden, context: Context) -> Hidden:
    """Multi-head attention from `x` to the encoder's output; with a cache, keys and values come from the cache."""
    assert context.memory_mask is not None
    context = context._replace(mask=context.memory_mask, bias=None, rotary=None)
    query = project_query(config, parameters, x, context)
    if context.cache is not None:
        key, value = context.cache["key"], context.cache["value"]
    else:
        assert context.memory is not None
        key, value = project_key_value(config, parameters, context.memory, context)
    return _attend(config, parameters, x, query, key, value, context)


def _attend(
    config: TransformerConfig,
    parameters: Parameters,
    x: Hidden,
    query: Queries,
    key: Keys,
    value: Values,
    context: Context,
) -> Hidden:
    """Compute attention, multiply by σ(gate(x)) if `attention_gate` is true, and apply the output projection."""
    y = attention(config, query, key, value, context, parameters.get("sinks"))
    if config.attention_gate:
        y = context.tap("gated_context", y * sigmoid(linear(parameters["gate"], x)))
    return context.tap("output", linear(parameters["output"], y))
