"""Faults of attention sinks: the learned number beside a head's scores, which takes part in the softmax alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.catalogue.fault import Fault, Settings, WalkState
from transparity_conformance.catalogue.masks import scores_at, sinks_at
from transparity_conformance.catalogue.sites import Value
from transparity_conformance.oracle.masks import right_mask, split
from transparity_numpy.attention import attention_weights

SINKS: dict[str, tuple[str, Callable[[Value, TransformerConfig], Value | None]]] = {
    "missing": ("the softmax is over the keys alone, without the head's sink", lambda sinks, config: None),
    "zero": ("the sink is 0 in all heads", lambda sinks, config: np.zeros_like(sinks)),
    "negated": ("the sink is subtracted: it is negated in the softmax", lambda sinks, config: -sinks),
    "scaled": (
        "the sink is multiplied by the scale of the scores",
        lambda sinks, config: sinks * sinks.dtype.type(config.score_scale),
    ),
    "divided": (
        "the sink is divided by the scale of the scores",
        lambda sinks, config: sinks / sinks.dtype.type(config.score_scale),
    ),
    "of the first head": (
        "the sink of the first head is that of all heads",
        lambda sinks, config: sinks[:1] + 0 * sinks,
    ),
    "by members": (
        "sinks are those of the groups' members in turn, not of consecutive heads",
        lambda sinks, config: sinks.reshape(config.key_value_heads, -1).T.ravel(),
    ),
}
"""Wrong sinks, in words and as functions of the right ones; None: no sink."""


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    _, sublayer, tap = split(site)
    if not sublayer.endswith("attention") or not config.attention_sinks or tap != "weights":
        return
    for name, (says, change) in SINKS.items():
        grouped = 1 < config.key_value_heads < config.num_heads
        is_another = {"scaled": config.score_scale != 1, "divided": config.score_scale != 1, "by members": grouped}
        if is_another.get(name, name != "of the first head" or config.num_heads > 1):
            yield Fault("attention-sinks", name, says, formula=sunk, settings={"sinks": change})
    says = "the weight of the sink is given to the first key, instead of being left out"
    yield Fault("attention-sinks", "to the first key", says, formula=sunk, settings={"first": True})


def sunk(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    """The weights with other `sinks`, or with that of the sink at the first key."""
    scores, mask, hidden = scores_at(state, site), right_mask(state, site), state.config.masked_score
    right = sinks_at(state, site)
    if right is None:
        raise KeyError("sinks")
    if "sinks" in settings:
        return attention_weights(scores, mask, hidden, settings["sinks"](right, state.config))
    weights = attention_weights(scores, mask, hidden, right)
    rest = 1 - weights.sum(axis=-1, keepdims=True)
    return np.concatenate([weights[..., :1] + rest, weights[..., 1:]], axis=-1)
