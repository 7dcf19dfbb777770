"""The fields and parameters of experts, which all layers have, or none."""

from __future__ import annotations

from collections.abc import Sequence

from transparity_conformance.identify.fitting.found import FoundFields
from transparity_conformance.identify.fitting.mixture.experts import Experts
from transparity_conformance.identify.fitting.subject import ForeignError


def read_experts(found: FoundFields, named: Sequence[tuple[str, Experts]], *, beside_others: bool) -> None:
    """Add the fields and parameters of experts, if there are any.

    Args:
        found: what is known.
        named: the feed-forwards that have experts, by our names.
        beside_others: whether others have none.
    """
    if not named:
        return
    fields = [_fields(each) for _, each in named]
    if beside_others or any(each != fields[0] for each in fields):
        raise ForeignError("Layers differ in their experts, or some have none; expected the same in every layer.")
    has_bias = any(each.router.bias is not None for _, each in named)
    found.fields |= {**fields[0], "router_bias": has_bias, "feed_forward_bias": False}
    for name, each in named:
        found.put(f"{name}.router", each.router, bias=has_bias)
        for role, maps in each.maps.items():
            found.parameters |= {f"{name}.experts.{i}.{role}.weight": own for i, own in enumerate(maps.weights)}
        found.used |= each.names


def _fields(one: Experts) -> dict[str, object]:
    return {
        "num_experts": len(one.up.weights),
        "experts_per_token": one.per_token,
        "router_scores": one.scores,
        "router_normalized": one.is_normalized,
        "activation": one.activation,
        "gated": one.gate is not None,
        "feed_forward_dim": one.up.weights.shape[1],
    }
