"""Mixture of experts: several feed-forwards, of which a router chooses some for each token."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from transparity.config import TransformerConfig
from transparity.taps import ROUTER_CHOSEN, Tap, identity, scoped
from transparity_pytorch.arithmetic.precision import upcast
from transparity_pytorch.feed_forward import FeedForward
from transparity_pytorch.shapes import ByExpert, Hidden

SCORES: dict[str, Callable[[Tensor], Tensor]] = {"softmax": partial(F.softmax, dim=-1), "sigmoid": torch.sigmoid}


def highest(x: ByExpert, count: int) -> ByExpert:
    """Return 1 for the `count` highest values along the last axis, else 0. In a tie, the first values win."""
    order = x.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    return F.one_hot(order, x.shape[-1]).sum(dim=-2).to(x.dtype)


def best_groups(config: TransformerConfig, scores: ByExpert) -> ByExpert:
    """Return 1 for experts in the best groups, ranked by the sum of their two highest scores, else 0 (DeepSeek-V3)."""
    groups = scores.unflatten(-1, (config.router_groups, -1))
    best = highest(groups.topk(2, dim=-1).values.sum(dim=-1), config.topk_groups)
    return best.repeat_interleave(groups.shape[-1], dim=-1)


def choose(
    config: TransformerConfig, scores: ByExpert, correction: Float[Tensor, " experts"] | None = None
) -> ByExpert:
    """Return 1 for the experts with the highest score + correction in the best groups, else 0."""
    corrected = scores if correction is None else scores + upcast(correction)
    if config.router_groups > 1:
        corrected = corrected.masked_fill(best_groups(config, corrected) != 1, -torch.inf)
    return highest(corrected, config.experts_per_token)


def router_weights(config: TransformerConfig, scores: ByExpert, chosen: ByExpert) -> ByExpert:
    """router_scale · score for chosen experts, else 0; `normalize_topk` divides the chosen scores by their sum."""
    weights = scores.masked_fill(chosen == 0, 0)
    if config.normalize_topk:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights * config.router_scale


def shared_expert(module: MixtureOfExperts, x: Hidden, tap: Tap = identity) -> Hidden:
    """expert(x) of the shared expert, or σ(x Gᵀ) · expert(x) with `shared_expert_gate` (Qwen 2 MoE)."""
    y: Tensor = module.shared_expert(x, scoped(tap, "shared_expert"))
    return torch.sigmoid(module.shared_expert_gate(x)) * y if module.config.shared_expert_gate else y


class MixtureOfExperts(nn.Module):
    """Σ weight · expert(x) over the chosen experts (Shazeer et al. 2017, eq. 1), plus the shared expert, if any.

    Every expert runs on every token, because in compiled code, no shape may depend on the router's choice.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.router = nn.Linear(config.embed_dim, config.num_experts, bias=config.router_bias)
        correction = torch.zeros(config.num_experts) if config.router_score_bias else None
        self.router_score_bias: Tensor | None
        self.register_buffer("router_score_bias", correction)
        self.experts = nn.ModuleList(FeedForward(config) for _ in range(config.num_experts))
        if config.shared_expert_dim:
            self.shared_expert = FeedForward(config, config.shared_expert_dim)
        if config.shared_expert_dim and config.shared_expert_gate:
            self.shared_expert_gate = nn.Linear(config.embed_dim, 1, bias=False)

    def forward(self, x: Hidden, tap: Tap = identity) -> Hidden:
        logits = tap("router_logits", self.router(x))
        scores = SCORES[self.config.router_scores](upcast(logits))
        chosen = tap(ROUTER_CHOSEN, choose(self.config, scores, self.router_score_bias).to(x.dtype))
        weights = tap("router_weights", router_weights(self.config, scores, chosen).to(x.dtype))
        y = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            y = y + weights[..., index, None] * expert(x)
        if self.config.shared_expert_dim:
            y = y + shared_expert(self, x, tap)
        return tap("output", y)
