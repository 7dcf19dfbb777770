"""Variants of the reference that imitate the rounding of other right programs.

The oracle measures rounding at several points. The index of a point determines its variant. All variants compute
position tables in float32, by each of `FORMULAS` in turn. At even indices, long sums over keys are running totals,
recurrences run in chunks, and Adam's correction is in float32. At odd indices, these computations follow the reference.

The tolerance must cover the rounding of every variant. Sums in sequence have the largest error if many attention
weights are equal, because equal rounding errors add up. Weights are equal only at point 0, where the arrays are
unchanged, so point 0 sums in sequence.

Tables: the reference computes angles in float64. Most programs use float32, in which an angle at position p has an
error of some ulps of p.

Sums: NumPy sums pairwise and BLAS in blocks, so the reference's error hardly grows with the number of keys. A running
total, as in an online softmax, rounds at every key (Milakov and Gimelshein, 2018; Dao et al., 2022). If many keys have
equal weights, such as padding under a weak mask, the errors add up. With 1,025 keys, a running total increases the
error of the preset `walkthrough` 33 times.

Recurrences: in chunks, a decay between two positions is computed from the difference of two sums. With strong decay,
the sums are large, and their rounding error is many times the error of single steps.

Adam: 1 − βᵗ is the difference of two numbers near 1. At the first step with β = 0.999, this difference has a relative
error of 1e-5 in float32 (Optax). The parameters then have an error of 5e-6 times the learning rate. PyTorch and the
reference use Python floats.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
from jaxtyping import Inexact
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity_numpy.mixers.attention import attention as in_blocks
from transparity_numpy.mixers.attention import attention_scores, merge_heads, repeat_heads
from transparity_numpy.rotary.tables import rotary_frequencies
from transparity_numpy.shapes import RotaryTables
from transparity_numpy.state.context import Context

Formula = Callable[[np.float32, np.ndarray], np.ndarray]

FORMULAS: tuple[Formula, ...] = (
    lambda base, shares: np.exp(-shares * np.log(base)),  # the Annotated Transformer, tensor2tensor, fairseq
    lambda base, shares: 1 / base**shares,  # Llama, GPT-NeoX, transformers
    lambda base, shares: base**-shares,  # RoFormer, x-transformers
)
"""Formulas of the frequencies in published code: functions of the base and of the exponents 2 i / features."""

IN_SEQUENCE = 0
"""The variant that sums in sequence; its tables use `FORMULAS[0]`."""

IN_BLOCKS = tuple(range(1, 2 * len(FORMULAS), 2))
"""The variants that sum like the reference, one for each of `FORMULAS`."""

PAIRWISE = 128
"""With at most this many keys, `np.sum` uses eight running totals, so the order of a sum makes little difference. With
129 keys, an online softmax in the preset `walkthrough` uses 70 % of a tolerance that ignores sums in sequence."""

CHUNK = 64
"""Positions per chunk in transformers and in flash-linear-attention."""


@contextlib.contextmanager
def variant(index: int) -> Iterator[None]:
    """Within the context, make the reference compute like a variant."""
    # Patch the reference, which has no options for variants, because only the oracle needs variants.
    replaced = tables_in_float32(index) | (IN_SEQUENCE_AND_CHUNKS if index % 2 == 0 else {})
    with contextlib.ExitStack() as computing:
        for name, function in replaced.items():
            computing.enter_context(mock.patch(f"transparity_numpy.{name}", function))
        yield


def frequencies(base: float, features: int, index: int, steps: int | None = None) -> np.ndarray:
    """Return float32 frequencies (features / 2,). The exponents are 2 i / steps, by default 2 i / features."""
    shares = np.arange(0, features, 2, dtype=np.float32) / np.float32(steps or features)
    return FORMULAS[index % len(FORMULAS)](np.float32(base), shares).astype(np.float32)


def has_tables(config: TransformerConfig) -> bool:
    """Return whether a stack needs tables of sines and cosines."""
    return "sinusoidal" in (config.positions, config.encoder_positions) or config.positions == "rotary"


def farthest_formula(config: TransformerConfig) -> int:
    """Return the formula whose frequencies have the largest error; 0 without position tables."""
    if not has_tables(config):
        return 0
    features = config.rotated_dim if config.positions == "rotary" else config.embed_dim
    exact = np.float64(config.rope_theta) ** -(np.arange(0, features, 2) / features)
    errors = [np.abs(frequencies(config.rope_theta, features, index) - exact).max() for index in range(len(FORMULAS))]
    return int(np.argmax(errors))


def tables_in_float32(index: int) -> dict[str, Callable[..., Any]]:
    """Return float32 replacements of the reference's functions for position tables."""

    def rotary_tables(config: TransformerConfig, positions: np.ndarray, dtype: Any) -> RotaryTables | None:
        if config.positions != "rotary":
            return None
        plain = np.float64(config.rope_theta) ** -(np.arange(0, config.rotated_dim, 2) / config.rotated_dim)
        beyond = bool(positions.max() >= config.rotary_original_length)
        scaled = (rotary_frequencies(config, beyond=beyond) / plain).astype(np.float32)
        turns = frequencies(config.rope_theta, config.rotated_dim, index) * scaled
        angles = positions.astype(np.float32)[..., None] * turns
        factor = np.float32(config.rotary_attention_factor)
        cosine, sine = np.cos(angles)[:, None] * factor, np.sin(angles)[:, None] * factor
        return cosine.astype(dtype), sine.astype(dtype)

    def sinusoidal_positions(length: int, embed_dim: int, base: float, layout: str, timescales: str) -> np.ndarray:
        steps = embed_dim if timescales == "exclusive" else embed_dim - 2
        angles = np.arange(length, dtype=np.float32)[:, None] * frequencies(base, embed_dim, index, steps)
        both = [np.sin(angles), np.cos(angles)]
        return np.stack(both, -1).reshape(length, embed_dim) if layout == "interleaved" else np.concatenate(both, -1)

    tables = {"positions.in_attention.rotary_tables": rotary_tables}
    return tables | {"positions.sinusoidal.sinusoidal_positions": sinusoidal_positions}


def softmax_in_sequence(scores: Inexact[Array, "*batch keys"]) -> Inexact[Array, "*batch keys"]:
    """Sum the exponentials of a softmax in sequence; `np.sum` would sum pairwise."""
    exponentials = np.exp(scores - scores.real.max(axis=-1, keepdims=True))
    return exponentials / np.cumsum(exponentials, axis=-1)[..., -1:]


def product_in_sequence(
    weights: Inexact[Array, "*batch queries keys"], value: Inexact[Array, "*batch keys head_dim"]
) -> Inexact[Array, "*batch queries head_dim"]:
    """Return weights · value, adding one key at a time."""
    total = np.zeros((*weights.shape[:-1], value.shape[-1]), np.result_type(weights, value))
    for key in range(weights.shape[-1]):
        total += weights[..., key : key + 1] * value[..., key : key + 1, :]
    return total


def attention(
    config: TransformerConfig,
    query: Inexact[Array, "batch heads queries head_dim"],
    key: Inexact[Array, "batch key_heads keys head_dim"],
    value: Inexact[Array, "batch key_heads keys head_dim"],
    context: Context,
    sinks: Inexact[Array, " heads"] | None = None,
) -> Inexact[Array, "batch queries attention_dim"]:
    """Compute `attention`; with more than `PAIRWISE` keys, sum in sequence."""
    if key.shape[2] <= PAIRWISE:
        return in_blocks(config, query, key, value, context, sinks)
    tap, scale, softcap = context.tap, config.score_scale, config.attention_softcap
    key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
    scores = tap("scores", attention_scores(query, key, scale, softcap, context.bias))
    masked = scores.dtype.type(max(config.masked_score, float(np.finfo(scores.dtype).min) / 2))
    shown = np.where(context.mask, scores, masked)
    if sinks is not None:
        shown = np.concatenate([shown, np.broadcast_to(sinks[:, None, None], (*shown.shape[:-1], 1))], axis=-1)
    weights = tap("weights", softmax_in_sequence(shown)[..., : key.shape[2]])
    return tap("context", merge_heads(product_in_sequence(weights, value)))


def gated_delta_rule(
    query: Inexact[Array, "batch heads length head_dim"],
    key: Inexact[Array, "batch heads length head_dim"],
    value: Inexact[Array, "batch heads length value_dim"],
    log_decay: Inexact[Array, "batch heads length"],
    beta: Inexact[Array, "batch heads length"],
    state: Inexact[Array, "batch heads head_dim value_dim"],
) -> tuple[Inexact[Array, "batch heads length value_dim"], Inexact[Array, "batch heads head_dim value_dim"]]:
    """Compute `gated_delta_rule` in chunks, by a triangular system (Yang et al., 2025, §3.3)."""

    def change(k: Array, v: Array, strength: Array, between: Array, begun: Array, state: Array) -> Array:
        system = np.tril(strength * k @ k.swapaxes(-1, -2) * between, -1) + np.eye(k.shape[2], dtype=k.dtype)
        return np.linalg.solve(system, strength * (v - begun * (k @ state)))

    return _by_chunks(
        change, query * query.real.dtype.type(query.shape[-1] ** -0.5), key, value, log_decay, beta, state
    )


def state_space_rule(
    query: Inexact[Array, "batch heads length head_dim"],
    key: Inexact[Array, "batch heads length head_dim"],
    value: Inexact[Array, "batch heads length value_dim"],
    log_decay: Inexact[Array, "batch heads length"],
    step: Inexact[Array, "batch heads length"],
    state: Inexact[Array, "batch heads head_dim value_dim"],
) -> tuple[Inexact[Array, "batch heads length value_dim"], Inexact[Array, "batch heads head_dim value_dim"]]:
    return _by_chunks(lambda k, v, strength, *_: strength * v, query, key, value, log_decay, step, state)


def _by_chunks(change: Callable[..., Array], query: Array, *given: Array) -> tuple[Array, Array]:
    """Return the outputs and the final state; `change` returns how a chunk's tokens update the state."""
    *inputs, state = given
    reads = []
    for begin in range(0, query.shape[2], CHUNK):
        q, k, v, decays, strength = (x[:, :, begin : begin + CHUNK] for x in (query, *inputs))
        since = np.cumsum(decays, axis=-1)
        # The decay from each position to each later position, and from the start of the chunk to each position.
        between = np.tril(np.exp(np.tril(since[..., :, None] - since[..., None, :])))
        begun = np.exp(since)[..., None]
        changed = change(k, v, strength[..., None], between, begun, state)
        reads.append(begun * (q @ state) + q @ k.swapaxes(-1, -2) * between @ changed)
        state = begun[..., -1:, :] * state + (between[..., -1, :, None] * k).swapaxes(-1, -2) @ changed
    return np.concatenate(reads, axis=2), state


def weight_so_far(beta: float, step: int) -> float:
    return float(np.float32(1) - np.float32(beta) ** np.float32(step))


IN_SEQUENCE_AND_CHUNKS = {
    "mixers.attention.attention": attention,
    "mixers.gated_delta.gated_delta_rule": gated_delta_rule,
    "mixers.state_space.state_space_rule": state_space_rule,
    "training.optimization._weight_so_far": weight_so_far,
}
