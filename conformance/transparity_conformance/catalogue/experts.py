"""Faults of experts: which the router chooses, how it weighs them, what each of them computes, the shared expert."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.taps import ROUTER_CHOSEN
from transparity_conformance.catalogue.fault import Fault, Settings, WalkState
from transparity_conformance.catalogue.feed_forward import activated
from transparity_conformance.catalogue.sites import Value
from transparity_conformance.oracle.masks import own_config, split
from transparity_numpy.arithmetic.functional import softmax
from transparity_numpy.mixture.experts import SCORES, choose, highest, router_weights

Change = Mapping[str, Any]
"""Fields of the configuration, or parts of a formula, by name."""


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    scope, sublayer, tap = split(site)
    own = own_config(config, site)
    if sublayer != "feed_forward" or not own.num_experts:
        return
    if tap == ROUTER_CHOSEN:
        for identity, variant, says, change in _choices(own):
            yield Fault(identity, variant, says, formula=_chosen, settings=change)
    if tap == "router_weights":
        for identity, variant, says, change in _weights(own):
            both = (ROUTER_CHOSEN,) if identity == "router-scores" else ()
            yield Fault(identity, variant, says, formula=_weighted, settings=change, also_patched=both)
    if site == f"{scope}.feed_forward.output":
        yield from _of_experts(own)


Row = tuple[str, str, str, Change]
"""A fault's id, variant and description, and what is changed."""


def _choices(config: TransformerConfig) -> Iterator[Row]:
    count, experts = config.experts_per_token, config.num_experts
    available = experts // config.router_groups * config.router_groups_chosen
    counts = {"one": 1, "one fewer": count - 1, "one more": count + 1, "all": available}
    for number in dict.fromkeys(counts.values()):
        if 0 < number <= available and number != count:
            name = next(name for name, each in counts.items() if each == number)
            says = f"{number} of {experts} experts are chosen for a token, not {count}"
            yield "router-count", name, says, {"experts_per_token": number}
    if count < experts:
        yield "router-choice", "lowest", "the experts with the lowest scores are chosen", {"sign": -1}
        yield "router-choice", "first", "the first experts are chosen, whatever their scores", {"sign": 0}
    if config.router_correction:
        says = "the correction is not added to the scores by which experts are chosen"
        yield "router-correction", "missing", says, {"correction": 0}
        yield "router-correction", "subtracted", "the correction is subtracted from the scores", {"correction": -1}
    if config.router_groups > config.router_groups_chosen:
        all_groups = {"router_groups_chosen": config.router_groups}
        yield "router-groups", "ignored", "experts are chosen from all groups, not from the best", all_groups
        says = "groups are ranked by their highest score, not by the sum of their two highest"
        yield "router-groups", "by the highest score", says, {"ranked": 1}


def _weights(config: TransformerConfig) -> Iterator[Row]:
    if config.router_normalized:
        says = "the weights of the chosen experts are not divided by their sum (norm_topk_prob)"
    else:
        says = (
            "the weights of the chosen experts are divided by their sum, or a softmax over them alone (norm_topk_prob)"
        )
    if not (config.router_normalized and config.experts_per_token == config.num_experts):
        change = {"router_normalized": not config.router_normalized}
        yield "router-normalization", "missing" if config.router_normalized else "too much", says, change
    yield "router-weights", "missing", "the outputs of the chosen experts are added without weights", {"weights": "one"}
    yield "router-weights", "equal", "the chosen experts weigh alike, whatever their scores", {"weights": "equal"}
    says = "the softmax is applied twice to the router's logits"
    if config.router_scores == "softmax":
        yield "router-weights", "softmax twice", says, {"weights": "softmax twice"}
    yield "router-weights", "logits", "the weights are the router's logits, not scores", {"weights": "logits"}
    other = next(name for name in SCORES if name != config.router_scores)
    says = f"scores are the {other} of the router's logits, not the {config.router_scores}"
    yield "router-scores", other, says, {"router_scores": other}
    if config.router_correction:
        says = "the correction is also in the weights, not in the choice alone"
        yield "router-correction", "in the weights", says, {"weights": "corrected"}
    for name, (factor, how) in SCALES.items() if config.router_scale != 1 else ():
        right = config.router_scale
        says = f"the weights {how.format(right=right)} (routed_scaling_factor)"
        yield "router-scale", name, says, {"router_scale": factor(right)}


SCALES: dict[str, tuple[Callable[[float], float], str]] = {
    "missing": (lambda right: 1.0, "are not multiplied by {right:g}"),
    "inverse": (lambda right: 1 / right, "are divided by {right:g}, not multiplied"),
    "twice": (lambda right: right**2, "are multiplied by {right:g} twice"),
}


def _scores(state: WalkState, site: str, config: TransformerConfig) -> tuple[Value, Value, Any]:
    """The router's logits, their scores, and the correction if there is one."""
    scope = site.rpartition(".")[0]
    logits = state.taps[f"{scope}.router_logits"]
    return logits, SCORES[config.router_scores](logits), state.parameters.get(f"{scope}.router_correction")


def _changed(settings: Settings, state: WalkState, site: str) -> TransformerConfig:
    """The configuration of the layer with the fields that are changed."""
    own = own_config(state.config, site)
    fields = {name: value for name, value in settings.items() if name in vars(own)}
    return dataclasses.replace(own, **fields)


def _chosen(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    config = _changed(settings, state, site)
    _, scores, correction = _scores(state, site, config)
    if "correction" in settings:
        correction = settings["correction"] * correction
    if "sign" in settings:
        return highest(settings["sign"] * scores, config.experts_per_token).astype(value.dtype)
    if "ranked" in settings:
        return _by_groups(settings, config, scores if correction is None else scores + correction).astype(value.dtype)
    return choose(config, scores, correction).astype(value.dtype)


def _by_groups(settings: Settings, config: TransformerConfig, scores: Value) -> Value:
    """The choice from groups that are ranked by as many of their highest scores as `ranked`."""
    groups = scores.reshape(*scores.shape[:-1], config.router_groups, -1)
    ranks = np.sort(groups, axis=-1)[..., -settings["ranked"] :].sum(axis=-1)
    best = np.repeat(highest(ranks, config.router_groups_chosen), groups.shape[-1], axis=-1)
    return highest(np.where(best == 1, scores, -np.inf), config.experts_per_token)


def _weighted(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    if site.endswith(ROUTER_CHOSEN):
        return _chosen(settings, state, site, value)
    config = _changed(settings, state, site)
    logits, scores, correction = _scores(state, site, config)
    chosen = state.taps[f"{site.rpartition('.')[0]}.{ROUTER_CHOSEN}"]
    kind = settings.get("weights")
    if kind in ("one", "equal"):
        return (chosen / (config.experts_per_token if kind == "equal" else 1)).astype(value.dtype)
    if kind == "logits":
        return np.where(chosen != 0, logits, 0).astype(value.dtype)
    if kind == "corrected" and correction is not None:
        scores = scores + correction
    scores = softmax(scores) if kind == "softmax twice" else scores
    return router_weights(config, scores, chosen).astype(value.dtype)


def _exchanged_halves(x: Value) -> Value:
    """Input features that meet the weights of their neighbours."""
    return _in_blocks(x, 2)[..., ::-1].reshape(x.shape)


def _split_halves(x: Value) -> Value:
    """Input features that meet weights of which those in the lower halves of bytes are first in a block of 32."""
    return _in_blocks(x, 32).reshape(*x.shape[:-1], -1, 2, 16).swapaxes(-1, -2).reshape(x.shape)


def _in_blocks(x: Value, size: int) -> Value:
    """Features in blocks; raises `KeyError` if they are no multiple, as hidden features may be."""
    if x.shape[-1] % size:
        raise KeyError(size)
    return x.reshape(*x.shape[:-1], -1, size)


PACKINGS: dict[str, tuple[Callable[[Value], Value], str]] = {
    "high first": (_exchanged_halves, "of each byte of the experts' weights, the high half is read first"),
    "split": (_split_halves, "in each block of the experts' weights, the low halves of all bytes are read first"),
    "scale twice": (lambda x: x * 2, "the scales of the experts' weights are 2^(s − 126), not 2^(s − 127)"),
    "scale half": (lambda x: x / 2, "the scales of the experts' weights are 2^(s − 128), not 2^(s − 127)"),
}
"""Mistakes in reading weights of four bits, as what they make of the features that meet the weights."""


BLOCKS = {"high first": 2, "split": 32, "scale twice": 1, "scale half": 1}
"""The features of which each needs a multiple."""


def _of_experts(config: TransformerConfig) -> Iterator[Fault]:
    """Faults that show in the sum of the experts' outputs."""
    orders: dict[str, tuple[Callable[[int, int], int], str]] = {
        "reversed": (lambda expert, count: count - 1 - expert, "are in reverse order"),
        "next": (lambda expert, count: (expert + 1) % count, "are those of the next expert"),
        "first": (lambda expert, count: 0, "are those of the first, for all of them"),
    }
    for name, (source, says) in orders.items() if config.num_experts > 1 else ():
        if not (name == "next" and config.num_experts == 2):
            description = f"the weights of the experts {says}"
            yield Fault("expert-order", name, description, formula=activated, settings={"order": source})
    for name, (unpacked, says) in PACKINGS.items():
        if config.embed_dim % BLOCKS[name] == 0:
            yield Fault("expert-packing", name, f"{says} (MXFP4)", formula=activated, settings={"unpacked": unpacked})
    if config.shared_expert_dim:
        yield Fault(
            "shared-expert", "missing", "the shared expert is missing", formula=activated, settings={"shared": 0}
        )
        says = "the output of the shared expert is multiplied by the routers' scale, too"
        change = {"shared": config.router_scale}
        if config.router_scale != 1:
            yield Fault("shared-expert", "scaled", says, formula=activated, settings=change)
    if config.shared_expert_dim and config.shared_expert_gate:
        says = "the output of the shared expert is not multiplied by its gate"
        yield Fault("shared-expert-gate", "missing", says, formula=activated, settings={"through": np.ones_like})
        says = "the gate of the shared expert has no sigmoid"
        yield Fault("shared-expert-gate", "no sigmoid", says, formula=activated, settings={"through": lambda x: x})
