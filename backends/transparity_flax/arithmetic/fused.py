"""Fused attention for inference and training, in blocks of queries; XLA fuses the operations of a block."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import DTypeLike, Float

from transparity.config import EXACT_MASK_BELOW
from transparity.taps import Tap, identity
from transparity_flax.arithmetic.precision import upcast
from transparity_flax.shapes import Bias, MaskArray, Queries, Sinks
from transparity_flax.state.context import Mask

DTYPES = (jnp.float32, jnp.float64, jnp.bfloat16)
"""Precisions in which XLA sums products in at least float32. float16 is missing, because XLA sums float16 products in
float16 on a CPU."""

BLOCK = 128
"""Queries per block; a block is multiplied only with the keys up to the position of its last query."""


def applies(tap: Tap, masked_score: float, softcap: float | None, dtype: DTypeLike) -> bool:
    """Return whether fused attention can replace the explicit computation.

    This requires that no tap function is used, that masked keys have the weight 0, and that scores are not capped. XLA
    must also sum products of `dtype` in at least float32.
    """
    return tap is identity and masked_score < EXACT_MASK_BELOW and softcap is None and dtype in DTYPES


def attention(
    query: Queries,
    key: Float[Array, "batch heads keys head_dim"],
    value: Float[Array, "batch heads keys value_dim"],
    mask: Mask,
    *,
    scale: float,
    bias: Bias | None = None,
    sinks: Sinks | None = None,
) -> Float[Array, "batch heads queries value_dim"]:
    """softmax(query · keyᵀ · scale + bias) · value, in blocks of queries if the mask hides later keys.

    If the kind of the mask is `some` or unknown, the compiled program checks whether the mask hides all later keys.
    """
    shown, kind = mask
    length = shown.shape[2]
    if kind == "full" or length <= BLOCK or length != shown.shape[3]:
        return _one_block(query, key, value, shown, scale, bias, sinks)

    def in_blocks() -> Array:
        blocks = []
        for begin in range(0, length, BLOCK):
            queries, keys = slice(begin, begin + BLOCK), slice(begin + BLOCK)
            near = None if bias is None else bias[:, :, queries, keys]
            given = query[:, :, queries], key[:, :, keys], value[:, :, keys], shown[:, :, queries, keys]
            blocks.append(_one_block(*given, scale, near, sinks))
        return jnp.concatenate(blocks, axis=2)

    if kind == "causal":
        return in_blocks()
    hides_the_future = shown.any(axis=-1).all() & ~jnp.triu(shown, 1).any()
    whole = partial(_one_block, query, key, value, shown, scale, bias, sinks)
    context: Array = jax.lax.cond(hides_the_future, in_blocks, whole)
    return context


def _one_block(
    query: Queries,
    key: Float[Array, "batch heads keys head_dim"],
    value: Float[Array, "batch heads keys value_dim"],
    mask: MaskArray,
    scale: float,
    bias: Bias | None,
    sinks: Sinks | None,
) -> Float[Array, "batch heads queries value_dim"]:
    """Return attention for one block of queries.

    Dividing the weighted sum of the values by the sum of the weights needs fewer divisions than dividing each weight.
    If all keys of a query are masked, their weights are equal.
    """
    scores = query @ key.swapaxes(-2, -1) * scale
    scores = upcast(scores if bias is None else scores + bias)
    shown = jnp.where(mask, scores, jnp.finfo(scores.dtype).min / 2)
    largest = jax.lax.stop_gradient(shown.max(axis=-1, keepdims=True))
    beside = None if sinks is None else upcast(sinks)[:, None, None]
    largest = largest if beside is None else jnp.maximum(largest, jax.lax.stop_gradient(beside))
    weights = jnp.exp(shown - largest)
    context = jnp.matmul(weights.astype(value.dtype), value, preferred_element_type=scores.dtype)
    total = weights.sum(axis=-1, keepdims=True)
    total = total if beside is None else total + jnp.exp(beside - largest)
    return (context / total).astype(value.dtype)
