"""The rules of recurrences in chunks, as they are published and as ports compute them.

How much of the state is left between two positions of a chunk is taken there from the difference of two sums, each from
the chunk's begin: where much decays, the sums are large, and their rounding is many times that of the steps. That is
rounding, so it belongs to the noise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

import numpy as np
from jaxtyping import Inexact
from numpy import ndarray as Array

CHUNK = 64
"""The positions of a chunk, in transformers and in flash-linear-attention."""


def gated_delta_rule(
    query: Inexact[Array, "batch heads length head_dim"],
    key: Inexact[Array, "batch heads length head_dim"],
    value: Inexact[Array, "batch heads length value_dim"],
    log_decay: Inexact[Array, "batch heads length"],
    beta: Inexact[Array, "batch heads length"],
    state: Inexact[Array, "batch heads head_dim value_dim"],
) -> tuple[Inexact[Array, "batch heads length value_dim"], Inexact[Array, "batch heads head_dim value_dim"]]:
    """The reference's `gated_delta_rule`, by chunks (Yang et al. 2025, §3.3): the changes that the tokens of one make
    solve a triangular system."""
    reads, query = [], query * query.real.dtype.type(query.shape[-1] ** -0.5)
    for begin in range(0, query.shape[2], CHUNK):
        q, k, v, decays, strength = (x[:, :, begin : begin + CHUNK] for x in (query, key, value, log_decay, beta))
        (between, begun), strength = _decays(decays), strength[..., None]
        system = np.tril(strength * k @ k.swapaxes(-1, -2) * between, -1) + np.eye(k.shape[2], dtype=k.dtype)
        change = np.linalg.solve(system, strength * (v - begun * (k @ state)))
        reads.append(begun * (q @ state) + q @ k.swapaxes(-1, -2) * between @ change)
        state = begun[..., -1:, :] * state + (between[..., -1, :, None] * k).swapaxes(-1, -2) @ change
    return np.concatenate(reads, axis=2), state


def state_space_rule(
    query: Inexact[Array, "batch heads length head_dim"],
    key: Inexact[Array, "batch heads length head_dim"],
    value: Inexact[Array, "batch heads length value_dim"],
    log_decay: Inexact[Array, "batch heads length"],
    step: Inexact[Array, "batch heads length"],
    state: Inexact[Array, "batch heads head_dim value_dim"],
) -> tuple[Inexact[Array, "batch heads length value_dim"], Inexact[Array, "batch heads head_dim value_dim"]]:
    """The reference's `state_space_rule`, by chunks (Dao and Gu 2024, §6)."""
    reads = []
    for begin in range(0, query.shape[2], CHUNK):
        q, k, v, decays, strength = (x[:, :, begin : begin + CHUNK] for x in (query, key, value, log_decay, step))
        (between, begun), change = _decays(decays), strength[..., None] * v
        reads.append(begun * (q @ state) + q @ k.swapaxes(-1, -2) * between @ change)
        state = begun[..., -1:, :] * state + (between[..., -1, :, None] * k).swapaxes(-1, -2) @ change
    return np.concatenate(reads, axis=2), state


def _decays(
    log_decay: Inexact[Array, "batch heads length"],
) -> tuple[Inexact[Array, "batch heads length length"], Inexact[Array, "batch heads length 1"]]:
    """The shares of the state that stay from each position of a chunk to each later one, and from its begin."""
    since = np.cumsum(log_decay, axis=-1)
    between = np.tril(np.exp(np.tril(since[..., :, None] - since[..., None, :])))
    return between, np.exp(since)[..., None]


@contextlib.contextmanager
def in_chunks() -> Iterator[None]:
    """Within the context, the reference's recurrences go by chunks."""
    # The specification has no switch for this; it is measured here only.
    of = "transparity_numpy.recurrent.recurrence"
    with mock.patch(f"{of}.gated_delta_rule", gated_delta_rule), mock.patch(f"{of}.state_space_rule", state_space_rule):
        yield
