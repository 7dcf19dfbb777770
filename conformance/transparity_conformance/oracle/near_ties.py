"""Near-ties of a router: choices between experts that rounding may change, and everything that depends on them.

The choice of experts is the one discontinuous part of a model. If the scores of two experts differ by less than
rounding, either choice is right, and later values differ by far more than rounding. So the error of rounding is
measured with the exact choice (`oracle`), and positions that depend on a near-tie are judged separately. To find them,
the other choice is put into the reference; every position that changes depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.taps import ROUTER_CHOSEN
from transparity_numpy.experts import SCORES
from transparity_numpy.transformer import transformer

Arrays = Mapping[str, np.ndarray]
Budget = Callable[[str], float]
"""Maps a tap to the largest difference that rounding explains."""


def is_choice(tap: str) -> bool:
    """Return whether a tap is the choice of a router."""
    return tap.endswith(f".{ROUTER_CHOSEN}")


def is_of_router(tap: str) -> bool:
    """Return whether a tap is a choice, or the logits that show near-ties."""
    return tap.endswith((f".{ROUTER_CHOSEN}", ".router_logits"))


def has_router(config: TransformerConfig) -> bool:
    """Return whether a layer has a router."""
    return any(own.num_experts for own in config.layer_kinds.values())


def near_ties(config: TransformerConfig, parameters: Arrays, taps: Arrays, budget: Budget) -> dict[str, np.ndarray]:
    """Return, by the tap of a choice, True for the experts that rounding may swap.

    Args:
        parameters, taps: the parameters and taps of a forward pass in float64.
        budget: returns the budget of a tap.
    """
    found: dict[str, np.ndarray] = {}
    for tap in filter(is_choice, taps):
        stack, _, layer = tap.split(".")[:3]
        scope, own = tap.removesuffix(ROUTER_CHOSEN), config.for_layer(stack, int(layer))
        logits, margin = taps[f"{scope}router_logits"], 2 * budget(f"{scope}router_logits")
        tied = _tied(own, logits, parameters.get(f"{scope}router_score_bias"), taps[tap] != 0, margin)
        if tied.any():
            found[tap] = tied
    return found


def _tied(
    config: TransformerConfig, logits: np.ndarray, correction: np.ndarray | None, chosen: np.ndarray, margin: float
) -> np.ndarray:
    """Return True (batch, length, experts) for experts in a near-tie; scores rise by less than the logits do."""
    if correction is None and config.router_groups == 1:
        return _around(logits, chosen, margin)
    scores = SCORES[config.router_scores](logits) + (0 if correction is None else correction)
    if config.router_groups == 1:
        return _around(scores, chosen, margin)
    groups = scores.reshape(*scores.shape[:-1], config.router_groups, -1)
    sums = np.sort(groups, axis=-1)[..., -2:].sum(axis=-1)
    last = np.sort(sums, axis=-1)[..., -config.topk_groups, None]
    within = np.repeat(sums >= last, groups.shape[-1], axis=-1)
    between = np.repeat(_around(sums, sums >= last, 2 * margin), groups.shape[-1], axis=-1)
    return between | _around(np.where(within, scores, -np.inf), chosen, margin)


def _around(scores: np.ndarray, chosen: np.ndarray, margin: float) -> np.ndarray:
    """Return True for chosen experts within the margin of the best other one, and for others within it of the worst
    chosen."""
    least = np.where(chosen, scores, np.inf).min(axis=-1, keepdims=True)
    most = np.where(chosen, -np.inf, scores).max(axis=-1, keepdims=True)
    return np.where(chosen, scores <= most + margin, scores >= least - margin) & (least <= most + margin)


def dependent(
    config: TransformerConfig,
    parameters: Arrays,
    inputs: Arrays,
    expected: Arrays,
    budget: Budget,
    exact: Budget,
    kept: Collection[str] | None = None,
) -> dict[str, np.ndarray]:
    """Return, by tap, True where a value depends on a near-tie; taps without such a value are left out.

    Args:
        parameters, inputs: the parameters and inputs of the forward pass, in float64.
        expected: all its taps.
        budget, exact: return the budget of a tap in the port's precision, and in float64.
        kept: the taps to compare; None for all.
    """
    ties = near_ties(config, parameters, expected, budget) if has_router(config) else {}
    free: dict[str, np.ndarray] = {}
    if not ties:
        return free

    def tap(name: str, value: np.ndarray) -> np.ndarray:
        if name in ties:
            value = np.where(ties[name], 1 - value, value)
        if kept is None or name in kept:
            apart = np.abs(value - expected[name]) > exact(name)
            if apart.any():
                is_inside = name.endswith((".scores", ".weights"))
                free[name] = apart if is_inside else np.broadcast_to(apart.any(-1, keepdims=True), apart.shape)
        return value

    tokens: dict[str, Any] = dict(inputs)
    with np.errstate(all="ignore"):
        transformer(config, parameters, tap=tap, **tokens)
    return free
