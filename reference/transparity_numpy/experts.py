"""Mixture of experts: several feed-forwards, of which a router chooses some for each token."""

from __future__ import annotations

import numpy as np
from jaxtyping import Inexact
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity.taps import ROUTER_CHOSEN, Tap, identity, scoped
from transparity_numpy.arithmetic.functional import linear, sigmoid, softmax
from transparity_numpy.arithmetic.precision import upcast
from transparity_numpy.feed_forward import feed_forward
from transparity_numpy.shapes import ByExpert, Hidden, Parameters

SCORES = {"softmax": softmax, "sigmoid": sigmoid}


def highest(x: ByExpert, count: int) -> ByExpert:
    """Return 1 for the `count` highest values along the last axis, else 0. In a tie, the first values win."""
    found = np.zeros_like(x)
    np.put_along_axis(found, np.argsort(-x, axis=-1, kind="stable")[..., :count], 1, axis=-1)
    return found


def best_groups(config: TransformerConfig, scores: ByExpert) -> ByExpert:
    """Return 1 for experts in the best groups, ranked by the sum of their two highest scores, else 0 (DeepSeek-V3)."""
    groups = scores.reshape(*scores.shape[:-1], config.router_groups, -1)
    best = highest(np.sort(groups, axis=-1)[..., -2:].sum(axis=-1), config.topk_groups)
    return np.repeat(best, groups.shape[-1], axis=-1)


def choose(
    config: TransformerConfig, scores: ByExpert, correction: Inexact[Array, " experts"] | None = None
) -> ByExpert:
    """Return 1 for the experts with the highest score + correction in the best groups, else 0."""
    corrected = scores.real if correction is None else scores.real + upcast(correction.real)
    if config.router_groups > 1:
        corrected = np.where(best_groups(config, corrected) == 1, corrected, -np.inf)
    return highest(corrected, config.experts_per_token)


def router_weights(config: TransformerConfig, scores: ByExpert, chosen: ByExpert) -> ByExpert:
    """router_scale · score for chosen experts, else 0; `normalize_topk` divides the chosen scores by their sum."""
    weights = np.where(chosen != 0, scores, scores.dtype.type(0))
    if config.normalize_topk:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return weights * weights.dtype.type(config.router_scale)


def shared_expert(config: TransformerConfig, parameters: Parameters, x: Hidden, tap: Tap = identity) -> Hidden:
    """expert(x) of the shared expert, or σ(x Gᵀ) · expert(x) with `shared_expert_gate` (Qwen 2 MoE)."""
    y = feed_forward(config, parameters["shared_expert"], x, scoped(tap, "shared_expert"))
    return sigmoid(linear(parameters["shared_expert_gate"], x)) * y if config.shared_expert_gate else y


def mixture_of_experts(config: TransformerConfig, parameters: Parameters, x: Hidden, tap: Tap = identity) -> Hidden:
    """Σ weight · expert(x) over the chosen experts (Shazeer et al. 2017, eq. 1), plus the shared expert, if any.

    Each expert runs only on the tokens for which the router chose it.
    """
    logits = tap("router_logits", linear(parameters["router"], x))
    scores = SCORES[config.router_scores](upcast(logits))
    chosen = tap(ROUTER_CHOSEN, choose(config, scores, parameters.get("router_score_bias")).astype(x.real.dtype))
    weights = tap("router_weights", router_weights(config, scores, chosen).astype(logits.dtype))
    y = np.zeros_like(x)
    for expert in range(config.num_experts):
        tokens = weights[..., expert] != 0
        if tokens.any():
            part = weights[tokens, expert, None] * feed_forward(config, parameters["experts"][str(expert)], x[tokens])
            added = np.zeros(x.shape, part.dtype)
            added[tokens] = part
            y = y + added
    if config.shared_expert_dim:
        y = y + shared_expert(config, parameters, x, tap)
    return tap("output", y)
