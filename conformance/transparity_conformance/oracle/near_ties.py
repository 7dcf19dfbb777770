"""Near-ties of a router: experts with almost equal scores, whose choice rounding may change. Both choices are right,
but all later values differ by far more than rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from transparity.config import TransformerConfig
from transparity.taps import ROUTER_CHOSEN
from transparity_numpy.experts import SCORES

Arrays = Mapping[str, np.ndarray]
Budget = Callable[[str], float]
"""A function of an activation's name that returns the largest error of rounding."""


def is_choice(tap: str) -> bool:
    return tap.endswith(f".{ROUTER_CHOSEN}")


def is_of_router(tap: str) -> bool:
    """Return whether an activation is a router's choice or logits."""
    return tap.endswith((f".{ROUTER_CHOSEN}", ".router_logits"))


def has_router(config: TransformerConfig) -> bool:
    return any(own.num_experts for own in config.layer_kinds.values())


def near_ties(config: TransformerConfig, parameters: Arrays, taps: Arrays, budget: Budget) -> dict[str, np.ndarray]:
    """Return a mask for the choice of each router with a near-tie: True for experts in the near-tie."""
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
    """Return a mask of the experts in a near-tie. `margin` is twice the tolerance of the logits."""
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
    """Return a mask of chosen experts at most `margin` above the best unchosen score. The mask also has unchosen
    experts at most `margin` below the worst chosen score."""
    least = np.where(chosen, scores, np.inf).min(axis=-1, keepdims=True)
    most = np.where(chosen, -np.inf, scores).max(axis=-1, keepdims=True)
    return np.where(chosen, scores <= most + margin, scores >= least - margin) & (least <= most + margin)
