"""Attention: each query weighs all keys, and sums their values by these weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Inexact
from numpy import ndarray as Array

from transparity.config import Projection, TransformerConfig
from transparity.taps import Tap, identity
from transparity_numpy.arithmetic import fused
from transparity_numpy.arithmetic.functional import linear, sigmoid, softmax
from transparity_numpy.arithmetic.precision import apply_softcap
from transparity_numpy.norms import head_norm
from transparity_numpy.rotary import rotate
from transparity_numpy.shapes import (
    Bias,
    Heads,
    Hidden,
    Keys,
    Mask,
    Memory,
    Parameters,
    Queries,
    RecurrentKeys,
    RotaryTables,
    Scores,
    Sinks,
    Values,
)
from transparity_numpy.state.cache import update
from transparity_numpy.state.context import LayerContext


def split_heads(x: Hidden, num_heads: int) -> Heads:
    """Split the features into `num_heads` consecutive blocks, one per head (document 003)."""
    batch, length, embed_dim = x.shape
    return x.reshape(batch, length, num_heads, embed_dim // num_heads).swapaxes(1, 2)


def merge_heads(x: Heads) -> Hidden:
    """Concatenate the heads' features; this is the inverse of `split_heads`."""
    batch, heads, length, head_dim = x.shape
    return x.swapaxes(1, 2).reshape(batch, length, heads * head_dim)


def project_heads(parameters: Parameters, x: Hidden, num_heads: int, projection: Projection) -> Heads:
    """Project `x` and split it into heads; with `shared-per-head`, split `x`, then project each head (document 002)."""
    if projection == "shared-per-head":
        return linear(parameters, split_heads(x, num_heads))
    return split_heads(linear(parameters, x), num_heads)


def repeat_heads(x: Heads, num_heads: int) -> RecurrentKeys:
    """Repeat each head of keys or values once per query head that shares it (Ainslie et al. 2023, §2.2)."""
    return x if x.shape[1] == num_heads else x.repeat(num_heads // x.shape[1], axis=1)


def attention_scores(
    query: Queries, key: Keys, scale: float, softcap: float | None = None, bias: Bias | None = None
) -> Scores:
    """softcap(query · keyᵀ · scale) + bias."""
    scores = query @ key.swapaxes(-2, -1) * scale
    scores = scores if softcap is None else apply_softcap(scores, softcap)
    return scores if bias is None else scores + bias


def attention_weights(scores: Scores, mask: Mask, masked_score: float, sinks: Sinks | None = None) -> Scores:
    """softmax(where(mask, scores, masked_score)) over keys and the head's sink, whose weight is dropped (gpt-oss).

    Half the lowest number of the dtype replaces a lower `masked_score`, such as −inf. Masked keys still weigh exactly
    0. A query whose keys are all masked gets equal weights instead of NaN.
    """
    lowest = float(np.finfo(scores.dtype).min) / 2
    shown = np.where(mask, scores, scores.dtype.type(max(masked_score, lowest)))
    if sinks is not None:
        shown = np.concatenate([shown, np.broadcast_to(sinks[:, None, None], (*shown.shape[:-1], 1))], axis=-1)
    return softmax(shown)[..., : scores.shape[-1]]


def attention(
    query: Queries,
    key: Keys,
    value: Values,
    mask: Mask,
    *,
    scale: float,
    masked_score: float,
    softcap: float | None = None,
    bias: Bias | None = None,
    sinks: Sinks | None = None,
    tap: Tap = identity,
) -> Inexact[Array, "batch queries attention_dim"]:
    """softmax(query · keyᵀ · scale) · value, with the heads merged (Vaswani et al. 2017, eq. 1)."""
    key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
    if fused.applies(tap, masked_score):
        return merge_heads(
            fused.attention(query, key, value, mask, scale=scale, softcap=softcap, bias=bias, sinks=sinks)
        )
    scores = tap("scores", attention_scores(query, key, scale, softcap, bias))
    weights = tap("weights", attention_weights(scores, mask, masked_score, sinks))
    return tap("context", merge_heads(weights @ value))


def query_key_norm(config: TransformerConfig, parameters: Parameters, x: Heads) -> Heads:
    """Apply an RMS norm to queries or keys, over each head (Qwen 3) or over all heads together (OLMo 2)."""
    if config.query_key_norm_over == "head":
        return head_norm(config, parameters, x)
    return split_heads(head_norm(config, parameters, merge_heads(x)), x.shape[1])


def normalize_and_rotate(
    config: TransformerConfig, parameters: Parameters, name: str, x: Heads, rotary: RotaryTables | None, tap: Tap
) -> Heads:
    """Apply the QK norm and the rotation to the `query` or `key`, if configured."""
    if config.query_key_norm:
        x = tap(f"{name}_norm", query_key_norm(config, parameters[f"{name}_norm"], x))
    return x if rotary is None else tap(f"{name}_rotated", rotate(x, rotary, config.rope_layout))


def project_query(
    config: TransformerConfig,
    parameters: Parameters,
    x: Hidden,
    tap: Tap = identity,
    rotary: RotaryTables | None = None,
) -> Queries:
    """Return the query of every head."""
    query = tap("query", project_heads(parameters["query"], x, config.num_heads, config.projection))
    return normalize_and_rotate(config, parameters, "query", query, rotary, tap)


def project_key_value(
    config: TransformerConfig,
    parameters: Parameters,
    x: Memory,
    tap: Tap = identity,
    rotary: RotaryTables | None = None,
) -> tuple[Keys, Values]:
    """Return the key and value of every head."""
    heads, projection = config.key_value_heads, config.projection
    key = tap("key", project_heads(parameters["key"], x, heads, projection))
    value = tap("value", project_heads(parameters["value"], x, heads, projection))
    return normalize_and_rotate(config, parameters, "key", key, rotary, tap), value


def self_attention(
    config: TransformerConfig,
    parameters: Parameters,
    x: Hidden,
    context: LayerContext,
    projections: tuple[Callable[..., Queries], Callable[..., tuple[Keys, Values]]] = (project_query, project_key_value),
) -> Hidden:
    """Multi-head attention from `x` to itself and to any cached tokens (Vaswani et al. 2017, §3.2.2)."""
    of_query, of_key_value = projections
    query = of_query(config, parameters, x, context.tap, context.rotary)
    query = query if context.temperature is None else query * context.temperature
    key, value = of_key_value(config, parameters, x, context.tap, context.rotary)
    if context.cache is not None:
        key, value = update(context.cache, key, value, context.positions)
    return _attend(config, parameters, x, (query, key, value), context)


def cross_attention(config: TransformerConfig, parameters: Parameters, x: Hidden, context: LayerContext) -> Hidden:
    """Multi-head attention from `x` to the encoder's output, whose keys and values a cache already has."""
    query = project_query(config, parameters, x, context.tap)
    if context.cache is not None:
        key, value = context.cache["key"], context.cache["value"]
    else:
        assert context.memory is not None
        key, value = project_key_value(config, parameters, context.memory, context.tap)
    assert context.memory_mask is not None
    return _attend(config, parameters, x, (query, key, value), context._replace(mask=context.memory_mask, bias=None))


def _attend(
    config: TransformerConfig,
    parameters: Parameters,
    x: Hidden,
    heads: tuple[Array, Array, Array],
    context: LayerContext,
) -> Hidden:
    """Compute attention, multiply it by the gate of `x` if configured, and apply the output projection."""
    y = attention(
        *heads,
        context.mask,
        scale=config.score_scale,
        masked_score=config.masked_score,
        softcap=config.attention_softcap,
        bias=context.bias,
        sinks=parameters.get("sinks"),
        tap=context.tap,
    )
    if config.attention_gate:
        y = context.tap("gated_context", y * sigmoid(linear(parameters["gate"], x)))
    return context.tap("output", linear(parameters["output"], y))
