"""The parameters and activations of a feed-forward, and of a mixture of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transparity.parts.part import NOTHING, Cut, Part, joined, linear, tapped, vector

if TYPE_CHECKING:
    from transparity.config import TransformerConfig

ROUTER_CHOSEN = "router_chosen"
"""The activation with a router's choice: 1 for the experts that a token uses, 0 for the others."""

NOT_YET = Cut(why_whole="experts are not distributed yet")


def feed_forward(
    config: TransformerConfig, length: str, wide: int | None = None, cuts: tuple[Cut, Cut] = (Cut(0), Cut(1))
) -> Part:
    wide, bias, into = wide or config.feed_forward_dim, config.feed_forward_bias, config.embed_dim
    up, down = cuts
    return joined(
        linear("gate", wide, into, bias=bias, cut=up) if config.gated else NOTHING,
        linear("up", wide, into, bias=bias, cut=up),
        linear("down", into, wide, bias=bias, cut=down),
        tapped({"hidden": ("batch", length, wide), "output": ("batch", length, into)}),
    )


def experts(config: TransformerConfig, length: str) -> Part:
    """Describe a mixture of experts, in which only the router and the shared expert have activations."""
    count, into, cuts = config.num_experts, config.embed_dim, (NOT_YET, NOT_YET)
    each = feed_forward(config, length, cuts=cuts)._replace(taps={})
    shared = NOTHING
    if config.shared_expert_dim:
        shared = feed_forward(config, length, config.shared_expert_dim, cuts).under("shared_expert")
    if config.shared_expert_dim and config.shared_expert_gate:
        shared = joined(shared, linear("shared_expert_gate", 1, into, bias=False, cut=NOT_YET))
    routed = dict.fromkeys(("router_logits", ROUTER_CHOSEN, "router_weights"), ("batch", length, count))
    return joined(
        linear("router", count, into, bias=config.router_bias, cut=NOT_YET),
        vector("router_score_bias", count) if config.router_score_bias else NOTHING,
        tapped(routed),
        *(each.under(f"experts.{expert}") for expert in range(count)),
        shared,
        tapped({"output": ("batch", length, into)}),
    )
