"""Attention: queries weigh keys and gather their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Inexact, Int
from numpy import ndarray as Array

from transparity.config import EXACT_MASK_BELOW, Projection, TransformerConfig
from transparity.taps import Tap, identity
from transparity_numpy.cache import Cache, remember
from transparity_numpy.functional import linear, softmax
from transparity_numpy.head import capped
from transparity_numpy.normalization import head_norm
from transparity_numpy.positions import NOWHERE, Places, rotate

BLOCK = 128
"""So many queries at a time keep their scores in the processor's cache."""


def split_heads(
    x: Inexact[Array, "batch length embed_dim"], num_heads: int
) -> Inexact[Array, "batch heads length head_dim"]:
    """The features cut into `num_heads` consecutive pieces, one a head (document 003)."""
    batch, length, embed_dim = x.shape
    return x.reshape(batch, length, num_heads, embed_dim // num_heads).swapaxes(1, 2)


def merge_heads(x: Inexact[Array, "batch heads length head_dim"]) -> Inexact[Array, "batch length embed_dim"]:
    """The heads side by side again: what `split_heads` undoes."""
    batch, heads, length, head_dim = x.shape
    return x.swapaxes(1, 2).reshape(batch, length, heads * head_dim)


def project_heads(
    parameters: Mapping[str, Array],
    x: Inexact[Array, "batch length embed_dim"],
    num_heads: int,
    projection: Projection,
) -> Inexact[Array, "batch heads length head_dim"]:
    """The query, key or value of every head: projected and split, or split and projected by one map for all heads
    (document 002)."""
    if projection == "shared-per-head":
        return linear(parameters, split_heads(x, num_heads))
    return split_heads(linear(parameters, x), num_heads)


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
    x: Inexact[Array, "batch key_heads keys head_dim"], num_heads: int
) -> Inexact[Array, "batch heads keys head_dim"]:
    """Each head of keys or values, for all consecutive query heads that share it (Ainslie et al. 2023, §2.2)."""
    return x if x.shape[1] == num_heads else x.repeat(num_heads // x.shape[1], axis=1)


def attention_scores(
    query: Inexact[Array, "batch heads queries head_dim"],
    key: Inexact[Array, "batch heads keys head_dim"],
    scale: float,
    cap: float | None = None,
    bias: Inexact[Array, "#batch heads #queries keys"] | None = None,
) -> Inexact[Array, "batch heads queries keys"]:
    """query · keyᵀ · scale, held below `cap`, plus `bias`."""
    scores = query @ key.swapaxes(-2, -1)
    scores = np.multiply(scores, query.dtype.type(scale), out=scores)
    scores = scores if cap is None else capped(scores, cap)
    return scores if bias is None else scores + bias


def attention_weights(
    scores: Inexact[Array, "batch heads queries keys"], mask: Bool[Array, "#batch 1 #queries keys"], hidden: float
) -> Inexact[Array, "batch heads queries keys"]:
    """softmax of the scores over the keys, after `hidden` has replaced those that `mask` hides.

    `hidden` is held at half the lowest number of the dtype: exp(that − largest) is exactly 0, as it is for −inf, and
    a row that sees nothing weighs all keys alike instead of being NaN.
    """
    lowest = float(np.finfo(scores.dtype).min) / 2
    return softmax(np.where(mask, scores, scores.dtype.type(max(hidden, lowest))))


def _fused_attention(
    query: Inexact[Array, "batch heads queries head_dim"],
    key: Inexact[Array, "batch heads keys head_dim"],
    value: Inexact[Array, "batch heads keys head_dim"],
    mask: Bool[Array, "#batch 1 #queries keys"],
    scale: float,
    hidden: float,
    cap: float | None,
    bias: Inexact[Array, "#batch heads #queries keys"] | None,
) -> Inexact[Array, "batch heads queries head_dim"]:
    """A block of queries at a time, without the keys behind the last that they see, and the weights where the scores
    were: they are divided by their sum once they have gathered the values, which are fewer numbers.

    A row that sees nothing weighs all keys alike, as in the explicit path, so a block with such a row leaves none out.
    """
    given = [query, key, value] if bias is None else [query, key, value, bias]
    result = np.empty((*query.shape[:-1], value.shape[-1]), np.result_type(*given))
    lowest = float(np.finfo(query.dtype).min) / 2
    for begin in range(0, query.shape[2], BLOCK):
        queries = slice(begin, begin + BLOCK)
        seen = mask[:, :, queries] if mask.shape[2] > 1 else mask
        visible = np.flatnonzero(seen.any(axis=(0, 1, 2)))[-1] + 1 if seen.any(axis=-1).all() else seen.shape[-1]
        seen, near = seen[..., :visible], None if bias is None else bias[:, :, queries, :visible]
        weights = attention_scores(query[:, :, queries], key[:, :, :visible], scale, cap, near)
        if not seen.all():
            np.copyto(weights, weights.dtype.type(max(hidden, lowest)), where=~seen)
        weights -= weights.real.max(axis=-1, keepdims=True)
        np.exp(weights, out=weights)
        context = np.matmul(weights, value[:, :, :visible], out=result[:, :, queries])
        context /= weights.sum(axis=-1, keepdims=True)
    return result


def attention(
    query: Inexact[Array, "batch heads queries head_dim"],
    key: Inexact[Array, "batch key_heads keys head_dim"],
    value: Inexact[Array, "batch key_heads keys head_dim"],
    mask: Bool[Array, "#batch 1 #queries keys"],
    *,
    scale: float,
    hidden: float,
    cap: float | None = None,
    bias: Inexact[Array, "#batch heads #queries keys"] | None = None,
    tap: Tap = identity,
) -> Inexact[Array, "batch queries attention_dim"]:
    """softmax(query · keyᵀ · scale) · value, the heads merged (Vaswani et al. 2017, eq. 1)."""
    key, value = (repeat_heads(x, query.shape[1]) for x in (key, value))
    if tap is identity and hidden < EXACT_MASK_BELOW:
        return merge_heads(_fused_attention(query, key, value, mask, scale, hidden, cap, bias))
    scores = tap("scores", attention_scores(query, key, scale, cap, bias))
    weights = tap("weights", attention_weights(scores, mask, hidden))
    return tap("context", merge_heads(weights @ value))


def keys_and_values(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    memory: Inexact[Array, "batch keys embed_dim"],
    tap: Tap = identity,
    at: Places = NOWHERE,
) -> tuple[Inexact[Array, "batch key_heads keys head_dim"], Inexact[Array, "batch key_heads keys head_dim"]]:
    """What there is to look at in `memory`: the key and the value of every head."""
    heads, projection = config.key_value_heads, config.projection
    key = tap("key", project_heads(parameters["key"], memory, heads, projection))
    value = tap("value", project_heads(parameters["value"], memory, heads, projection))
    return placed(config, parameters, "key", key, at, tap), value


def placed(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    name: str,
    x: Inexact[Array, "batch any_heads length head_dim"],
    at: Places,
    tap: Tap,
) -> Inexact[Array, "batch any_heads length head_dim"]:
    """The `query` or `key` as they meet: normalised and turned, where there is such."""
    if config.query_key_norm:
        x = tap(f"{name}_norm", head_norm(config, parameters[f"{name}_norm"], x))
    return x if at.rotation is None else tap(f"{name}_rotated", rotate(x, at.rotation, config.rope_layout))


def multi_head_attention(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    x: Inexact[Array, "batch queries embed_dim"],
    memory: Inexact[Array, "batch memory embed_dim"] | None,
    mask: Bool[Array, "#batch 1 #queries keys"],
    tap: Tap = identity,
    cache: Cache | None = None,
    positions: Int[Array, "batch queries"] | None = None,
    at: Places = NOWHERE,
) -> Inexact[Array, "batch queries embed_dim"]:
    """`x` looks at `memory` (at itself, in self-attention, where it stands `at`) with several heads (Vaswani et al.
    2017, §3.2.2).

    With a `cache`, at all that is in it: what `memory` gives is kept there first, at `positions`; None gives nothing.
    """
    query = tap("query", project_heads(parameters["query"], x, config.num_heads, config.projection))
    query = placed(config, parameters, "query", query, at, tap)
    if memory is None:
        assert cache is not None
        key, value = cache["key"], cache["value"]
    else:
        key, value = keys_and_values(config, parameters, memory, tap, at)
        if cache is not None:
            assert positions is not None
            key, value = remember(cache, key, value, positions)
    scale, hidden = score_scale(config), masked_score(config)
    cap = config.attention_softcap
    context = attention(query, key, value, mask, scale=scale, hidden=hidden, cap=cap, bias=at.bias, tap=tap)
    return tap("output", linear(parameters["output"], context))
