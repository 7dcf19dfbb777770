"""Positions that depend on a convention: what a query returns that sees no key at all.

Ours weighs all keys alike, fused kernels return zeros, an additive mask leaves the scores. Where masked keys weigh
exactly nothing, no document decides between them, so such positions are judged apart from all others. Which positions
these are is measured: two other conventions are put into the reference, and every position that changes depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from transparity.taps import tap_shapes
from transparity_conformance.diagnosis.fault import WalkState
from transparity_conformance.diagnosis.faults.masks import right_mask
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.report.comparison import gap
from transparity_numpy.transformer import transformer

Convention = Callable[[np.ndarray], np.ndarray]
"""From the weights to those of the rows that see no key."""

_MEASURED: WeakKeyDictionary[Probe, Arrays] = WeakKeyDictionary()


def free_positions(probe: Probe) -> Arrays:
    """By tap, True where a value depends on the convention; taps without such a position are left out."""
    if probe not in _MEASURED:
        _MEASURED[probe] = _measure(probe) if probe.config.mask_is_exact else {}
    return _MEASURED[probe]


def judged(probe: Probe, tap: str, actual: np.ndarray, ours: np.ndarray) -> np.ndarray:
    """Return `actual` with ours in place of every finite value that depends on the convention."""
    free = free_positions(probe).get(tap)
    if free is None or not free.shape == actual.shape == ours.shape:
        return actual
    return np.where(free & np.isfinite(actual), ours, actual)


def judged_gap(probe: Probe, tap: str, actual: np.ndarray, ours: np.ndarray) -> float:
    """The largest difference where no convention decides."""
    return gap(judged(probe, tap, actual, ours), ours)


def _measure(probe: Probe) -> Arrays:
    if not blind_rows(probe).any():
        return {}
    random, free = np.random.default_rng(0), Arrays()
    conventions: tuple[Convention, ...] = (np.zeros_like, lambda weights: random.uniform(size=weights.shape))
    for convention in conventions:
        changed = _changed(probe, convention)
        if not changed:
            return {}
        free = {tap: where | free.get(tap, False) for tap, where in changed.items()}
    return {tap: where for tap, where in free.items() if where.any()}


def blind_rows(probe: Probe) -> np.ndarray:
    """The rows in which a query sees no key, in any layer, as bools (rows,): the inputs alone tell."""
    state, rows = WalkState(probe.config, {}, probe.inputs), len(next(iter(probe.inputs.values())))
    lengths = {name: tokens.shape[1] for name, tokens in probe.inputs.items()}
    taps = tap_shapes(probe.config, rows, **lengths)
    weights = (name for name in taps if name.endswith("attention.weights"))
    blind = np.zeros(rows, bool)
    for name in weights:
        mask = np.asarray(right_mask(state, name))
        blind |= ~mask.any(-1).reshape(len(mask), -1).all(1)
    return blind


def _changed(probe: Probe, convention: Convention) -> Arrays:
    """By tap, True where `convention` changes more than float64 rounds; empty if every row sees some key."""
    state = WalkState(probe.config, {}, probe.inputs)
    apart, is_used = Arrays(), False

    def tap(name: str, value: np.ndarray) -> np.ndarray:
        nonlocal is_used
        if name.endswith("attention.weights"):
            blind = ~np.broadcast_to(right_mask(state, name), value.shape).any(-1, keepdims=True)
            is_used = is_used or bool(blind.any())
            value = np.where(blind, convention(value), value)
        if is_used and (probe.kept is None or name in probe.kept):  # before that nothing has changed
            apart[name] = _apart(probe, name, value)
        return value

    tokens: dict[str, Any] = dict(probe.inputs)
    with np.errstate(all="ignore"):
        transformer(probe.config, probe.exact, tap=tap, **tokens)
    return apart


def _apart(probe: Probe, tap: str, value: np.ndarray) -> np.ndarray:
    oracle = probe.oracle
    apart = np.abs(value - oracle.expected[tap]) > oracle.budget(tap, "float64")
    if tap.endswith((".scores", ".weights")):
        return apart
    # a unit may be zero by chance under both conventions: a position depends on it as a whole
    return np.broadcast_to(apart.any(-1, keepdims=True), apart.shape)
