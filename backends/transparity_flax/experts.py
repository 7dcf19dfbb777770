"""Mixture of experts: several feed-forwards, of which a router chooses some for each token."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from transparity.config import TransformerConfig
from transparity.taps import ROUTER_CHOSEN, Tap, identity, scoped
from transparity_flax.arithmetic.precision import upcast
from transparity_flax.feed_forward import FeedForward
from transparity_flax.shapes import ByExpert, Hidden

Experts = ByExpert

SCORES = {"softmax": jax.nn.softmax, "sigmoid": jax.nn.sigmoid}


def highest(x: Experts, count: int) -> Experts:
    """Return 1 for the `count` highest values along the last axis, else 0. In a tie, the first values win."""
    _, order = jax.lax.top_k(jax.lax.stop_gradient(x), count)
    return jax.nn.one_hot(order, x.shape[-1], dtype=x.dtype).sum(axis=-2)


def best_groups(config: TransformerConfig, scores: Experts) -> Experts:
    """Return 1 for experts in the best groups, ranked by the sum of their two highest scores, else 0 (DeepSeek-V3)."""
    groups = scores.reshape(*scores.shape[:-1], config.router_groups, -1)
    best = highest(jax.lax.top_k(groups, 2)[0].sum(axis=-1), config.topk_groups)
    return jnp.repeat(best, groups.shape[-1], axis=-1)


def choose(config: TransformerConfig, scores: Experts, correction: Float[Array, " experts"] | None = None) -> Experts:
    """Return 1 for the experts with the highest score + correction in the best groups, else 0."""
    corrected = scores if correction is None else scores + upcast(correction)
    if config.router_groups > 1:
        corrected = jnp.where(best_groups(config, corrected) == 1, corrected, -jnp.inf)
    return highest(corrected, config.experts_per_token)


def router_weights(config: TransformerConfig, scores: Experts, chosen: Experts) -> Experts:
    """router_scale · score for chosen experts, else 0; `normalize_topk` divides the chosen scores by their sum."""
    weights = jnp.where(chosen != 0, scores, 0)
    if config.normalize_topk:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return weights * config.router_scale


def shared_expert(module: MixtureOfExperts, x: Hidden, tap: Tap = identity) -> Hidden:
    """expert(x) of the shared expert, or σ(x Gᵀ) · expert(x) with `shared_expert_gate` (Qwen 2 MoE)."""
    y = module.shared_expert(x, scoped(tap, "shared_expert"))
    return jax.nn.sigmoid(module.shared_expert_gate(x)) * y if module.config.shared_expert_gate else y


class MixtureOfExperts(nnx.Module):
    """Σ weight · expert(x) over the chosen experts (Shazeer et al. 2017, eq. 1), plus the shared expert, if any.

    Every expert runs on every token, because in compiled code, no shape may depend on the router's choice.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.router = nnx.Linear(config.embed_dim, config.num_experts, use_bias=config.router_bias, rngs=rngs)
        if config.router_score_bias:
            self.router_score_bias = nnx.BatchStat(jnp.zeros(config.num_experts))
        self.experts = nnx.List(FeedForward(config, rngs=rngs) for _ in range(config.num_experts))
        if config.shared_expert_dim:
            self.shared_expert = FeedForward(config, config.shared_expert_dim, rngs=rngs)
        if config.shared_expert_dim and config.shared_expert_gate:
            self.shared_expert_gate = nnx.Linear(config.embed_dim, 1, use_bias=False, rngs=rngs)

    def __call__(self, x: Hidden, tap: Tap = identity) -> Hidden:
        logits = tap("router_logits", self.router(x))
        scores = SCORES[self.config.router_scores](upcast(logits))
        correction = self.router_score_bias[...] if self.config.router_score_bias else None
        chosen = tap(ROUTER_CHOSEN, choose(self.config, scores, correction).astype(x.dtype))
        weights = tap("router_weights", router_weights(self.config, scores, chosen).astype(x.dtype))
        y = jnp.zeros_like(x)
        for i, expert in enumerate(self.experts):
            y = y + weights[..., i, None] * expert(x)
        if self.config.shared_expert_dim:
            y = y + shared_expert(self, x, tap)
        return tap("output", y)
