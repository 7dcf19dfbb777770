"""Faults in the structure of layers: residuals, activations, the order of sublayers, the places of norms."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.catalogue import sites
from transparity_conformance.catalogue.fault import OTHER_FACTORS, Fault, Patch, WalkState, fault, made, row
from transparity_conformance.catalogue.feed_forward import activated, gate_faults, is_activated, other_activations
from transparity_conformance.catalogue.normalization import normed_input
from transparity_conformance.catalogue.sites import Value
from transparity_conformance.oracle.budgets import rounded_to
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.undetermined import split
from transparity_numpy.arithmetic.functional import log_softmax, softmax


def whole_model_faults(config: TransformerConfig) -> Iterator[Fault]:
    if config.norm_position == "sandwich":
        yield fault("norm-placement", "pre", fields={"norm_position": "pre"})
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
    if config.is_recurrent and config.decoder_mask != config.target_mask:  # the recurrences also ignore the mask
        yield fault("padding-ignored", "everywhere", fields={"padding": "token"})
    for kind in ("bfloat16", "float16", "TF32"):
        yield fault("low-precision", f"{kind} weights", alter=partial(_rounded, kind.lower()))


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
        if config.norm_position in ("post", "post-branch"):
            yield fault("residual-source", "parallel", formula=activated, source=sites.layer_input)
        if config.branches == "parallel-one-norm":
            behind = partial(_behind_attention, "self_attention_norm")
            yield fault("residual-source", "sequential", formula=activated, source=behind)
        yield from gate_faults(config) if config.gated else ()
    if sublayer and site == sites.branch_end(config, ".".join(sites.sublayer_of(site))):
        right = config.residual_multiplier
        for name, factor in OTHER_FACTORS.items() if right != 1 else ():
            downstream = partial(_multiplied, factor)
            yield fault("residual-multiplier", name, words={"right": right}, downstream=downstream)
        yield from _residual_faults(config, site)
        if config.norm_position in sites.ENDS:
            yield fault("norm-placement", "behind the residual", patch=_normed_sum, downstream=_without_stream)
    if sublayer.endswith("_norm") and sublayer != "memory_norm" and config.norm_position == "post":
        yield fault("norm-placement", "before the residual", patch=_normed_output)
    if sublayer == "feed_forward_norm" and config.branches == "parallel":
        behind = partial(_behind_attention, "feed_forward_norm")
        patch: Patch = lambda state, site, value: behind(state, site.rpartition(".")[0])
        yield fault("residual-source", "sequential", patch=patch)
    elif sublayer == "feed_forward_norm" and config.norm_position in ("pre", "sandwich"):
        yield fault("residual-source", "parallel", patch=_normed_layer_input)
    if re.fullmatch(r"\w+\.layers\.\d+\.output", site):
        skipped: Patch = lambda state, site, value: sites.layer_input(state, site.removesuffix(".output"))
        yield fault("layer-missing", "skipped", patch=skipped)
        around: Patch = lambda state, site, value: value + sites.layer_input(state, site.removesuffix(".output"))
        yield fault("residual-source", "around the layer", patch=around)
    if site == "logits" and config.head in ("logits", "classes"):
        yield from made(LOGIT_CHANGES, config, lambda settings, state, site, value: settings["change"](value))


LOGIT_CHANGES = (
    row("logit-shift", "log-softmax", change=log_softmax),
    row("logit-shift", "largest 0", change=lambda x: x - x.max(-1, keepdims=True)),
    row("logit-shift", "mean 0", change=lambda x: x - x.mean(-1, keepdims=True)),
    row("probabilities", "softmax", change=softmax),
)


def _residual_faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    sublayer = sites.sublayer_of(site)[1]
    if config.branches != "sequential" and sublayer == "self_attention":
        return  # Parallel branches share one residual.
    if config.norm_position in ("pre", "sandwich") and sites.is_normed(config, site):
        yield _residual("normalised", sites.sublayer_input)
    yield _residual("missing", lambda state, scope, name: 0)
    yield _residual("twice", lambda state, scope, name: 2 * sites.stream(state, scope, name))
    if sublayer in ("feed_forward", "cross_attention") and config.branches == "sequential":
        yield _residual("layer input", lambda state, scope, name: sites.stream(state, scope, "self_attention"))
        yield _residual("attention's output", _attention_output)


def _attention_output(state: WalkState, scope: str, sublayer: str) -> Value:
    attention = {"feed_forward": sites.sublayers(state.config, scope)[-2], "cross_attention": "self_attention"}
    return state.taps[sites.branch_end(state.config, f"{scope}.{attention[sublayer]}")]


def _multiplied(factor: Callable[[float], float], state: WalkState, site: str, flow: Value) -> Value:
    right = state.config.residual_multiplier
    return flow * flow.dtype.type(factor(right) / right)


def _residual(variant: str, source: Callable[[WalkState, str, str], Value]) -> Fault:

    def downstream(state: WalkState, site: str, flow: Value) -> Value:
        scope, sublayer = sites.sublayer_of(site)
        change = source(state, scope, sublayer) - sites.stream(state, scope, sublayer)
        return flow + change / flow.dtype.type(state.config.residual_multiplier)

    return fault("residual-source", variant, downstream=downstream)


def _rounded(kind: str, config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    return {name: rounded_to(value, kind) for name, value in parameters.items()}


def _normed_output(state: WalkState, site: str, value: Value) -> Value:
    scope, name = site.rpartition(".")[::2]
    sublayer = name.removesuffix("_norm")
    out = state.taps[sites.output_of(state.config, f"{scope}.{sublayer}")]
    return sites.stream(state, scope, sublayer) + normed_input(state, site, state.config.residual_multiplier * out)


def _normed_sum(state: WalkState, site: str, value: Value) -> Value:
    scope, sublayer = sites.sublayer_of(site)
    out = state.taps[sites.output_of(state.config, f"{scope}.{sublayer}")]
    return normed_input(state, site, sites.added(state, sites.stream(state, scope, sublayer), out))


def _without_stream(state: WalkState, site: str, flow: Value) -> Value:
    right = state.config.residual_multiplier
    return (flow - sites.stream(state, *sites.sublayer_of(site))) / flow.dtype.type(right)


def _behind_attention(norm: str, state: WalkState, scope: str) -> Value:
    x = sites.added(state, sites.layer_input(state, scope), state.taps[f"{scope}.self_attention.output"])
    return normed_input(state, f"{scope}.{norm}", x)


def _normed_layer_input(state: WalkState, site: str, value: Value) -> Value:
    scope, name = site.rpartition(".")[::2]
    before = [each for each in sites.sublayers(state.config, scope) if f"{each}_norm" != name]
    ends = {end: state.taps[end] for end in (sites.branch_end(state.config, f"{scope}.{each}") for each in before)}
    state.taps.update({end: np.zeros_like(added) for end, added in ends.items()})
    behind = normed_input(state, site, sites.norm_input(state, site))
    state.taps.update(ends)
    return behind
