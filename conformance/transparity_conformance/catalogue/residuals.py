"""Faults in the structure of layers: residuals, activations, the order of sublayers, the places of norms."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.catalogue import sites
from transparity_conformance.catalogue.fault import Fault, Settings, WalkState, fault, made
from transparity_conformance.catalogue.feed_forward import activated, gate_faults, is_activated, other_activations
from transparity_conformance.catalogue.normalization import normed_input
from transparity_conformance.catalogue.sites import Value
from transparity_conformance.oracle.budgets import rounded_to
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.undetermined import split


def whole_model_faults(config: TransformerConfig) -> Iterator[Fault]:
    others = [place for place in ("pre", "post", "post-branch") if place != config.norm_position]
    is_usual = config.branches == "sequential" and all(own.attention_norm for own in config.layer_kinds.values())
    others = others if is_usual else []
    for other in others[1:] if config.norm_position == "sandwich" else others:
        description = f"norms are {PLACES[other]}, not {PLACES[config.norm_position]}"
        yield fault("norm-placement", other, says=description, fields={"norm_position": other})
        if config.final_norm:
            description += ", without the final norm"
            fields = {"norm_position": other, "final_norm": False}
            yield fault("norm-placement", f"{other}, no final norm", says=description, fields=fields)
    yield from made("whole models", config, __name__)


PLACES = {
    "pre": "before the sublayers (pre-norm)",
    "post": "after the residual is added (post-norm)",
    "sandwich": "before and after the sublayers",
    "post-branch": "after the sublayers, before the residual is added",
}
"""The places of norms in words, by `norm_position`."""


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    sublayer = split(site)[1]
    if is_activated(config, site):
        yield from other_activations("activation", config.activation, activated)
        yield from made("inputs of feed-forwards", config, activated, module=__name__)
        yield from gate_faults(config) if config.gated else ()
    if sublayer and site == sites.branch_end(config, ".".join(sites.sublayer_of(site))):
        yield from made("ends of sublayers", config, __name__)
        yield from _residual_faults(config, site)
    if sublayer.endswith("_norm") and sublayer != "memory_norm":
        yield from made("norms after residuals", config, __name__)
    if sublayer == "feed_forward_norm":
        yield from made("norms of feed-forwards", config, __name__)
    if re.fullmatch(r"\w+\.layers\.\d+\.output", site):
        yield from made("outputs of layers", config, __name__)
    if site == "logits" and config.head in ("logits", "classes"):
        yield from made("results", config, _results)


def _results(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    return settings["change"](value)


def _residual_faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    sublayer = sites.sublayer_of(site)[1]
    if config.branches != "sequential" and sublayer == "self_attention":
        return  # Parallel branches share one residual.
    if config.norm_position in ("pre", "sandwich") and sites.is_normed(config, site):
        yield from made("residuals after norms", config, __name__)
    yield from made("residuals", config, __name__)
    if sublayer in ("feed_forward", "cross_attention") and config.branches == "sequential":
        yield from made("later residuals", config, __name__)


def attention_output(state: WalkState, scope: str, sublayer: str) -> Value:
    attention = {"feed_forward": sites.sublayers(state.config, scope)[-2], "cross_attention": "self_attention"}
    return state.taps[sites.branch_end(state.config, f"{scope}.{attention[sublayer]}")]


def multiplied(factor: Callable[[float], float], state: WalkState, site: str, flow: Value) -> Value:
    right = state.config.residual_multiplier
    return flow * flow.dtype.type(factor(right) / right)


def residual(source: Callable[[WalkState, str, str], Value], state: WalkState, site: str, flow: Value) -> Value:
    """Return the sum of a sublayer's output and the value that `source` returns in place of the residual."""
    scope, sublayer = sites.sublayer_of(site)
    change = source(state, scope, sublayer) - sites.stream(state, scope, sublayer)
    return flow + change / flow.dtype.type(state.config.residual_multiplier)


def rounded(kind: str, config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    return {name: rounded_to(value, kind) for name, value in parameters.items()}


def normed_output(state: WalkState, site: str, value: Value) -> Value:
    scope, name = site.rpartition(".")[::2]
    sublayer = name.removesuffix("_norm")
    out = state.taps[sites.output_of(state.config, f"{scope}.{sublayer}")]
    return sites.stream(state, scope, sublayer) + normed_input(state, site, state.config.residual_multiplier * out)


def normed_sum(state: WalkState, site: str, value: Value) -> Value:
    scope, sublayer = sites.sublayer_of(site)
    out = state.taps[sites.output_of(state.config, f"{scope}.{sublayer}")]
    return normed_input(state, site, sites.added(state, sites.stream(state, scope, sublayer), out))


def without_stream(state: WalkState, site: str, flow: Value) -> Value:
    right = state.config.residual_multiplier
    return (flow - sites.stream(state, *sites.sublayer_of(site))) / flow.dtype.type(right)


def behind_attention(norm: str, state: WalkState, scope: str) -> Value:
    x = sites.added(state, sites.layer_input(state, scope), state.taps[f"{scope}.self_attention.output"])
    return normed_input(state, f"{scope}.{norm}", x)


def layer_input_of(state: WalkState, site: str) -> Value:
    return sites.layer_input(state, site.removesuffix(".output"))


def normed_behind_attention(state: WalkState, site: str, value: Value) -> Value:
    return behind_attention("feed_forward_norm", state, site.rpartition(".")[0])


def normed_layer_input(state: WalkState, site: str, value: Value) -> Value:
    scope, name = site.rpartition(".")[::2]
    before = [each for each in sites.sublayers(state.config, scope) if f"{each}_norm" != name]
    ends = {end: state.taps[end] for end in (sites.branch_end(state.config, f"{scope}.{each}") for each in before)}
    state.taps.update({end: np.zeros_like(added) for end, added in ends.items()})
    behind = normed_input(state, site, sites.norm_input(state, site))
    state.taps.update(ends)
    return behind
