"""Right ways to write a router, its experts and gates that are bounded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from meta.power.family_port import Acts, Config, FamilyFault, all_of, constantly, having, where
from transparity.taps import scoped
from transparity_numpy.arithmetic.functional import linear, sigmoid, softmax
from transparity_numpy.feed_forward import ACTIVATIONS, feed_forward
from transparity_numpy.mixture import experts

_ROUTED = having("num_experts")
_GROUPED = all_of(_ROUTED, lambda config: config.router_groups > 1)
_RENORMALIZED = all_of(_ROUTED, where(router_scores="softmax", router_normalized=True, router_correction=False))


def styles() -> Iterator[FamilyFault]:
    softmaxes: Acts = all_of(_ROUTED, where(router_scores="softmax"))
    sigmoids: Acts = all_of(_ROUTED, where(router_scores="sigmoid"))
    for name, acts, place, function in (
        ("every expert computes every token", _ROUTED, "layers.mixture_of_experts", every_token),
        ("token by token", _ROUTED, "layers.mixture_of_experts", by_token),
        ("tokens sorted by their experts", _ROUTED, "layers.mixture_of_experts", sorted_by_expert),
        ("top-k, then softmax", _RENORMALIZED, "layers.mixture_of_experts", softmax_of_chosen),
        ("chosen by a partition", _ROUTED, "mixture.experts.highest", by_partition),
        ("chosen by a threshold", _ROUTED, "mixture.experts.highest", by_threshold),
        ("groups by partitions", _GROUPED, "mixture.experts.best_groups", groups_by_loops),
        ("shares normalised in float64", _ROUTED, "mixture.experts.router_weights", shares_in_float64),
        ("shares by a reciprocal", _ROUTED, "mixture.experts.router_weights", shares_by_reciprocal),
        ("softmax without a shift", softmaxes, "mixture.experts.SCORES", {"softmax": plain_softmax}),
        ("softmax by its logarithm", softmaxes, "mixture.experts.SCORES", {"softmax": softmax_by_logarithm}),
        ("sigmoid by tanh", sigmoids, "mixture.experts.SCORES", {"sigmoid": lambda x: (1 + np.tanh(x / 2)) / 2}),
        ("the shared expert's gate by tanh", having("shared_expert_gate"), "mixture.experts.shared_expert", gated),
        ("bounded in the opposite order", having("gate_limit"), "feed_forward.gated", bounded),
        ("the offset multiplied out", having("up_offset"), "feed_forward.gated", offset_multiplied_out),
    ):
        yield FamilyFault((), name, ".*", acts, exchanged={place: partial(constantly, function)})


def _routed(config: Config, parameters: Mapping[str, Any], x: Any, tap: Any) -> np.ndarray:
    """Shares of all experts, (batch, length, experts), with the taps of a router."""
    logits = tap("router_logits", linear(parameters["router"], x))
    scores = experts.SCORES[config.router_scores](logits)
    chosen = tap("router_chosen", experts.choose(config, scores, parameters.get("router_correction")))
    weights: np.ndarray = tap("router_weights", experts.router_weights(config, scores, chosen))
    return weights


def _with_shared(config: Config, parameters: Mapping[str, Any], x: Any, tap: Any, y: np.ndarray) -> np.ndarray:
    result: np.ndarray = tap(
        "output", experts.shared_expert(config, parameters, x, tap) + y if config.shared_expert_dim else y
    )
    return result


def every_token(config: Config, parameters: Mapping[str, Any], x: np.ndarray, tap: Any) -> np.ndarray:
    """All experts on all tokens, most of them times 0."""
    weights = _routed(config, parameters, x, tap)
    made = np.stack([feed_forward(config, own, x) for own in parameters["experts"].values()], axis=-1)
    order = [int(name) for name in parameters["experts"]]
    return _with_shared(config, parameters, x, tap, np.einsum("blde,ble->bld", made, weights[..., order]))


def by_token(config: Config, parameters: Mapping[str, Any], x: np.ndarray, tap: Any) -> np.ndarray:
    """Each token's experts, the one with the largest share first."""
    weights, y = _routed(config, parameters, x, tap), np.zeros_like(x)
    for place in np.ndindex(x.shape[:2]):
        for expert in np.argsort(-weights[place])[: config.experts_per_token]:
            made = feed_forward(config, parameters["experts"][str(expert)], x[place][None, None])
            y[place] += weights[place][expert] * made[0, 0]
    return _with_shared(config, parameters, x, tap, y)


def sorted_by_expert(config: Config, parameters: Mapping[str, Any], x: np.ndarray, tap: Any) -> np.ndarray:
    """Copies of the tokens in the order of their experts, whose results are scattered back."""
    weights, y = _routed(config, parameters, x, tap), np.zeros_like(x)
    rows, places, chosen = np.nonzero(weights)
    order = np.argsort(chosen, kind="stable")[::-1]
    rows, places, chosen = rows[order], places[order], chosen[order]
    begins = np.flatnonzero(np.diff(chosen, prepend=-1))
    for begin, end in zip(begins, [*begins[1:], len(chosen)], strict=True):
        part = slice(begin, end)
        made = feed_forward(config, parameters["experts"][str(chosen[begin])], x[rows[part], places[part]])
        share = weights[rows[part], places[part], chosen[part]]
        np.add.at(y, (rows[part], places[part]), made * share[:, None])
    return _with_shared(config, parameters, x, tap, y)


def softmax_of_chosen(config: Config, parameters: Mapping[str, Any], x: np.ndarray, tap: Any) -> np.ndarray:
    """A softmax over the logits of the chosen experts alone, as renormalising makes of one over all."""
    logits = tap("router_logits", linear(parameters["router"], x))
    best = np.argsort(-logits, axis=-1)[..., : config.experts_per_token]
    shares, weights = softmax(np.take_along_axis(logits, best, -1)), np.zeros_like(logits)
    np.put_along_axis(weights, best, shares * logits.dtype.type(config.router_scale), axis=-1)
    tap("router_chosen", (weights > 0).astype(x.dtype))
    weights, y = tap("router_weights", weights), np.zeros_like(x)
    for name, own in parameters["experts"].items():
        y = y + feed_forward(config, own, x) * weights[..., int(name), None]
    return _with_shared(config, parameters, x, tap, y)


def by_partition(x: np.ndarray, count: int) -> np.ndarray:
    found = np.zeros_like(x)
    np.put_along_axis(found, np.argpartition(x, -count, axis=-1)[..., -count:], 1, axis=-1)
    return found


def by_threshold(x: np.ndarray, count: int) -> np.ndarray:
    return (x >= np.sort(x, axis=-1)[..., -count, None]).astype(x.dtype)


def groups_by_loops(config: Config, scores: np.ndarray) -> np.ndarray:
    flat, size = scores.reshape(-1, scores.shape[-1]), scores.shape[-1] // config.router_groups
    kept = np.zeros_like(flat)
    for row, token in zip(kept, flat, strict=True):
        sums = [float(sum(sorted(group)[-2:])) for group in np.split(token, config.router_groups)]
        for group in sorted(range(len(sums)), key=lambda i: -sums[i])[: config.router_groups_chosen]:
            row[group * size : (group + 1) * size] = 1
    return kept.reshape(scores.shape)


def shares_in_float64(config: Config, scores: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    weights = scores.astype(np.float64) * chosen
    weights = weights / weights.sum(axis=-1, keepdims=True) if config.router_normalized else weights
    return (config.router_scale * weights).astype(scores.dtype)


def shares_by_reciprocal(config: Config, scores: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """With 1e-20 in the denominator, as DeepSeek's code has it."""
    weights, scale = scores * chosen, scores.dtype.type(config.router_scale)
    if config.router_normalized:
        scale = scale * (1 / (weights.sum(axis=-1, keepdims=True) + scores.dtype.type(1e-20)))
    return weights * scale


def plain_softmax(x: np.ndarray) -> np.ndarray:
    """In float64, in which no logit of a router overflows."""
    powers = np.exp(x.astype(np.float64))
    return (powers / powers.sum(axis=-1, keepdims=True)).astype(x.dtype)


def softmax_by_logarithm(x: np.ndarray) -> np.ndarray:
    return np.exp(x - np.logaddexp.reduce(x, axis=-1, keepdims=True))


def gated(config: Config, parameters: Mapping[str, Any], x: np.ndarray, tap: Any) -> np.ndarray:
    gate = (1 + np.tanh(linear(parameters["shared_expert_gate"], x) / 2)) / 2
    return feed_forward(config, parameters["shared_expert"], x, scoped(tap, "shared_expert")) * gate


def bounded(config: Config, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """The lower bound last, and the activation of the gate behind the product."""
    limit = up.dtype.type(config.gate_limit or np.inf)
    up = np.maximum(np.minimum(up, limit), -limit) + up.dtype.type(config.up_offset)
    return up * ACTIVATIONS[config.activation](np.where(gate > limit, limit, gate))


def offset_multiplied_out(config: Config, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """g · up + g · offset."""
    if config.gate_limit is not None:
        limit = up.dtype.type(config.gate_limit)
        gate, up = np.minimum(limit, gate), np.clip(up, -limit, limit)
    quick = config.activation == "gelu-quick"
    g = gate * sigmoid(gate * gate.dtype.type(1.702)) if quick else ACTIVATIONS[config.activation](gate)
    return g * up + g * up.dtype.type(config.up_offset)
