"""Positions in attention: windows, learned (T5) or linear (ALiBi) biases, rotary tables, a query temperature."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jaxtyping import Float64, Int

from transparity.config import TransformerConfig, WindowKind
from transparity_flax.rotary.tables import rotary_tables
from transparity_flax.shapes import DistanceBias, Integers, MaskArray, Positions, Temperature
from transparity_flax.state.context import Context, Mask, MaskKind


def distances(positions: Positions, keys: int) -> Int[Array, "#batch queries keys"]:
    """Return key position − query position, for the keys at 0 … `keys` − 1."""
    return jnp.arange(keys) - positions[..., None]


def window_mask(positions: Positions, keys: int, window: int, kind: WindowKind = "sliding") -> MaskArray:
    """Return a mask that shows keys nearer than `window` (Beltagy et al. 2020, §3.1) or in the same chunk (Llama 4)."""
    if kind == "chunked":
        return (jnp.arange(keys) // window == positions[..., None] // window)[:, None]
    return (jnp.abs(distances(positions, keys)) < window)[:, None]


def relative_buckets(distances: Integers, buckets: int, max_distance: int, *, both: bool) -> Integers:
    """Return the bucket of each distance (Raffel et al. 2020).

    With `both`, half of the buckets are for later keys; otherwise, later keys have the distance 0. With n buckets in a
    direction, let e = ⌊n / 2⌋. A distance d < e has the bucket d. A larger d has the bucket e + ⌊(n − e) · log(d / e) /
    log(max_distance / e)⌋, but at most n − 1.
    """
    offset = buckets // 2 * (distances > 0) if both else 0
    buckets, distances = (buckets // 2, jnp.abs(distances)) if both else (buckets, jnp.maximum(-distances, 0))
    exact = buckets // 2
    shares = np.arange(1, buckets - exact) / (buckets - exact)
    # If a bucket starts at a whole distance, rounding must not move its start to just above this distance.
    begins = np.ceil(exact * (max_distance / exact) ** shares * (1 - 1e-12)).astype(int)
    return offset + jnp.where(distances < exact, distances, exact + jnp.searchsorted(begins, distances, side="right"))


def relative_bias(
    config: TransformerConfig, table: nnx.Embed, positions: Positions, keys: int, *, both: bool
) -> DistanceBias:
    """table[bucket(key − query)] for each head; with `both`, queries also see later keys."""
    limits = (config.relative_buckets, config.relative_max_distance)
    buckets = relative_buckets(distances(positions, keys), *limits, both=both)
    return jnp.moveaxis(table.embedding[buckets], -1, 1)


def alibi_slopes(num_heads: int) -> Float64[np.ndarray, " heads"]:
    """2^(−8 i / num_heads) for the heads i = 1 … num_heads (Press et al. 2022, §3, and their code).

    If `num_heads` is no power of two, let n be the next lower power of two. The first n heads get the slopes for n
    heads, and the remaining heads get every second slope for 2n heads.
    """
    below = 2 ** int(math.log2(num_heads))
    slopes = 2.0 ** (-8 / below * np.arange(1, below + 1))
    between = 2.0 ** (-4 / below * np.arange(1, 2 * (num_heads - below) + 1, 2))
    return np.concatenate([slopes, between])


def alibi_bias(config: TransformerConfig, positions: Positions, keys: int, dtype: jnp.dtype) -> DistanceBias:
    """−slope · |key − query|."""
    slopes = jnp.asarray(alibi_slopes(config.num_heads), dtype)
    return -slopes[:, None, None] * jnp.abs(distances(positions, keys)).astype(dtype)[:, None]


def score_bias(
    config: TransformerConfig, module: Any, positions: Positions, keys: int, dtype: jnp.dtype, *, both: bool
) -> DistanceBias:
    """Return the bias of the scores of queries at `positions` and keys at 0 … `keys` − 1.

    With `both`, queries also see later keys. `module` is the stack.
    """
    if config.has_relative_bias:
        return relative_bias(config, module.relative_bias, positions, keys, both=both)
    return alibi_bias(config, positions, keys, dtype)


def query_temperature(config: TransformerConfig, positions: Positions, keys: int, dtype: jnp.dtype) -> Temperature:
    """1 + t · ln(1 + ⌊(position + first) / length⌋), as `config.query_temperature` explains.

    NumPy computes this factor in float64, for the positions 0 … `keys` − 1.
    """
    pieces = (np.arange(keys) + config.query_temperature_first) // config.query_temperature_length
    factors = jnp.asarray(1 + config.query_temperature * np.log1p(pieces), dtype)
    return factors[positions][:, None, :, None]


def layer_context(config: TransformerConfig, context: Context, dtype: jnp.dtype) -> Context:
    """Return `context` with the mask, the rotary tables and the query temperature of a layer with this `config`."""
    mask, keys = context.mask, context.mask.array.shape[-1]
    if config.sliding_window is not None:
        window = window_mask(context.positions, keys, config.sliding_window, config.window_kind)
        kind: MaskKind | None = None if mask.kind is None else "some"  # with a window, each query still sees itself
        mask = Mask(mask.array & window, kind)
    given = context.positions, keys, dtype
    rotary = rotary_tables(config, *given) if config.positions == "rotary" else None
    temperature = query_temperature(config, *given) if config.query_temperature else None
    return context._replace(mask=mask, rotary=rotary, temperature=temperature)


def contexts_by_kind(name: str, module: Any, context: Context, dtype: jnp.dtype) -> dict[str, Context]:
    """Return the context of each kind of layer in the stack `name`, whose module is `module`."""
    config = module.config
    if config.has_score_bias:
        place, both = (context.positions, context.mask.array.shape[-1], dtype), name == "encoder"
        context = context._replace(bias=score_bias(config, module, *place, both=both))
    return {kind: layer_context(layer_config, context, dtype) for kind, layer_config in config.layer_kinds.items()}
