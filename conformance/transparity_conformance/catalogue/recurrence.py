"""Faults of a recurrence: its convolutions, the length of queries and keys, decay and strength of what is written, the
rule of the state, and the norm with a gate behind it; and the gate of attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.catalogue.fault import Fault, Settings, WalkState
from transparity_conformance.catalogue.feed_forward import ACTIVATIONS
from transparity_conformance.catalogue.normalization import norm_with
from transparity_conformance.catalogue.sites import (
    Value,
    apply_linear,
    parameters_of,
    recurrence_input,
    sublayer_input,
    unpadded,
)
from transparity_conformance.oracle.masks import own_config, split
from transparity_numpy.arithmetic.functional import sigmoid, silu, softplus
from transparity_numpy.attention import merge_heads, repeat_heads, split_heads
from transparity_numpy.recurrent.recurrence import causal_convolution

Kernel = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From the weights (features, width) and what is convolved to the result, in front of the activation."""


def _centred(weight: np.ndarray, x: np.ndarray) -> np.ndarray:
    behind = (weight.shape[1] - 1) // 2
    padded = np.pad(x, ((0, 0), (0, behind), (0, 0)))
    before = np.zeros((len(x), weight.shape[1] - 1, x.shape[-1]), x.dtype)
    return causal_convolution(weight, padded, before)[:, behind:]


def _causal(weight: np.ndarray, x: np.ndarray) -> np.ndarray:
    return causal_convolution(weight, x, np.zeros((len(x), weight.shape[1] - 1, x.shape[-1]), x.dtype))


CONVOLUTIONS: Mapping[str, tuple[str, Kernel]] = {
    "centred": ("the convolution is centred: it reads later positions, too", _centred),
    "future": (
        "the end of the padded result is kept, not its begin: later positions are read",
        lambda weight, x: _causal(weight[:, ::-1], x[:, ::-1])[:, ::-1],
    ),
    "missing": ("there is no convolution", lambda weight, x: x),
    "turned": (
        "the kernel is turned in time: its first column meets the newest position",
        lambda weight, x: _causal(weight[:, ::-1], x),
    ),
    "late": (
        "the convolution is one position late: it does not read its own",
        lambda weight, x: np.pad(_causal(weight, x), ((0, 0), (1, 0), (0, 0)))[:, :-1],
    ),
}

LENGTHS: Mapping[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "missing": ("are not normalised", lambda x: x),
    "of the mean": (
        "are divided by the root of the mean of their squares, as by an RMS norm, not by that of their sum",
        lambda x: x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6),
    ),
}

STEPS: Mapping[str, tuple[str, Callable[..., np.ndarray]]] = {
    "softplus missing": ("there is no softplus", lambda x, bias, bounded: bounded(x + bias)),
    "sigmoid": ("there is a sigmoid in place of the softplus", lambda x, bias, bounded: bounded(sigmoid(x + bias))),
    "bias missing": ("there is no bias (dt_bias)", lambda x, bias, bounded: bounded(softplus(x))),
    "bias behind": (
        "the bias is added behind the softplus, not in front of it",
        lambda x, bias, bounded: bounded(softplus(x) + bias),
    ),
}

BOUNDS: Mapping[str, tuple[str, Callable[..., np.ndarray]]] = {
    "bounds missing": ("there are no bounds (time_step_limit)", lambda x, bias, bounded: softplus(x + bias)),
    "bounds in front": (
        "the bounds are in front of the softplus, not behind it",
        lambda x, bias, bounded: softplus(bounded(x + bias)),
    ),
}

DECAYS: Mapping[str, tuple[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "exp missing": ("the rate is A_log itself, not its exponential", lambda rate, step: rate * step),
    "grows": ("the sign is missing: the state grows", lambda rate, step: np.exp(rate) * step),
    "rate missing": ("there is no rate (A_log) of each head", lambda rate, step: -step),
    "step missing": ("the rate is not multiplied by the time step", lambda rate, step: -np.exp(rate) + 0 * step),
}

BETAS: Mapping[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "sigmoid missing": ("there is no sigmoid", lambda x: x),
    "twice": ("it is doubled, to go from 0 to 2", lambda x: 2 * sigmoid(x)),
    "softplus": ("there is a softplus in place of the sigmoid", softplus),
}

RULES: Mapping[str, tuple[str, str, Settings]] = {
    "scale missing": (
        "read-out-scale",
        "what is read is not divided by the root of the key's features",
        {"scale": 0.0},
    ),
    "scale of values": (
        "read-out-scale",
        "what is read is divided by the root of the value's features, not of the key's",
        {"of_values": True},
    ),
    "decay missing": ("state-decay", "the state does not decay", {"decays": np.ones_like}),
    "not exp": (
        "state-decay",
        "the state is multiplied by the decay itself, not by its exponential",
        {"decays": lambda g: g},
    ),
    "behind": (
        "state-decay",
        "the state decays behind what is written, which decays with it",
        {"order": "decay behind"},
    ),
    "no correction": (
        "delta-rule",
        "values are written as they are: what the key finds in the state is not subtracted (linear attention)",
        {"order": "no correction"},
    ),
    "before the decay": (
        "delta-rule",
        "what is subtracted is what the key finds in the state before it decays",
        {"order": "early correction"},
    ),
    "strength of values alone": (
        "delta-rule",
        "beta multiplies the value alone, not what is subtracted from it",
        {"order": "beta of values"},
    ),
    "read first": ("delta-rule", "queries read the state before their token is written", {"order": "read first"}),
}

STATES: Mapping[str, tuple[str, str, Settings]] = {
    **{name: RULES[name] for name in ("decay missing", "not exp", "behind")},
    "read first": ("state-space", *RULES["read first"][1:]),
    "step missing": ("state-space", "what is written is not multiplied by the time step", {"strength": np.ones_like}),
    "step twice": ("state-space", "what is written is multiplied by the time step twice", {"strength": np.square}),
    "exchanged": (
        "state-space",
        "what is written is of the queries' direction (C), and is read in that of the keys (B)",
        {"exchanged": True},
    ),
    "scaled": (
        "read-out-scale",
        "what is read is divided by the root of the features of a head's query",
        {"scaled": True},
    ),
    "missing": ("skip", "the values are not added (D)", {"skip": lambda skip, step: 0 * skip}),
    "all alike": ("skip", "the values are added without a factor of each head (D)", {"skip": lambda skip, step: 1.0}),
    "of the step": (
        "skip",
        "what is added is the value times the time step, as it is written",
        {"skip": lambda skip, step: skip * step},
    ),
}

GATED: Mapping[str, tuple[str, str, Settings]] = {
    "gate first": ("gated-norm", "the gate is in front of the norm, not behind it", {"order": "gate first"}),
    "one plus": ("gated-norm", "the gain is 1 + the weight, as of the other norms, not the weight", {"offset": 1.0}),
    "all heads": ("gated-norm", "the norm is over the features of all heads, not of each", {"over": "all"}),
    "missing": ("gated-norm", "there is no norm", {"order": "no norm"}),
    "weight alone": ("gated-norm", "what is read is multiplied by the weight, but not normalised", {"order": "weight"}),
    "gate missing": ("recurrent-gate", "there is no gate", {"gate": np.ones_like}),
    "sigmoid": ("recurrent-gate", "the gate is a sigmoid, not silu", {"gate": sigmoid}),
    "linear": ("recurrent-gate", "there is no activation of the gate", {"gate": lambda z: z}),
}

GROUPED: Mapping[str, tuple[str, str, Settings]] = {
    **{name: row for name, row in GATED.items() if name not in ("gate first", "one plus", "all heads")},
    "gate behind": ("gated-norm", "the gate is behind the norm, not in front of it", {"order": "gate behind"}),
    "not grouped": ("gated-norm", "the norm is over all features, not those of each group", {"over": "all"}),
    "each head": ("gated-norm", "the norm is over the features of each head, not of each group", {"over": "head"}),
}
"""Those of a state-space model, whose gate is in front of the norm, which is over groups of heads."""

ATTENTION_GATES: Mapping[str, tuple[str, Callable[[np.ndarray], Any]]] = {
    "missing": ("the context is not multiplied by its gate", lambda z: 1.0),
    "silu": ("the gate is silu, not a sigmoid", silu),
    "linear": ("there is no sigmoid of the gate", lambda z: z),
    "tanh": ("the gate is a tanh, not a sigmoid", np.tanh),
}


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    _, sublayer, tap = split(site)
    own = own_config(config, site)
    if own.attention_gate and tap == "gated_context" and sublayer.endswith("attention"):
        for name, (says, gate) in ATTENTION_GATES.items():
            yield Fault("attention-gate", name, says, formula=_attention_gate, settings={"gate": gate})
    if sublayer != "recurrence":
        return
    is_delta = own.mixer == "gated-delta"
    if tap.endswith("_convolved"):
        yield from _of_convolution(own, site)
    elif tap.endswith("_normalized"):
        for name, (says, change) in LENGTHS.items():
            description = f"{'queries' if tap.startswith('query') else 'keys'} {says}"
            yield Fault("unit-length", name, description, formula=_unit, settings={"change": change})
    elif tap == "beta":
        for name, (says, written) in BETAS.items():
            yield Fault("beta", name, f"in beta, {says}", formula=_beta, settings={"change": written})
    elif tap == "context":
        for name, (identity, says, settings) in (RULES if is_delta else STATES).items():
            yield Fault(identity, name, says, formula=_read if is_delta else _selected, settings=settings)
        if 1 < own.recurrent_key_heads < own.recurrent_heads:
            says = "key heads are repeated as a whole (0 1 0 1), not each for consecutive heads (0 0 1 1)"
            formula = _read if is_delta else _selected
            yield Fault("recurrent-heads", "tiled", says, formula=formula, settings={"tiled": True})
    elif tap == "gated_context":
        yield from _of_norm(own)
    else:
        yield from _of_rates(own, tap)


def _of_rates(own: TransformerConfig, tap: str) -> Iterator[Fault]:
    """Faults of the time step, which with the delta rule shows in the decay alone, and of the decay."""
    bounded = own.time_step_least > 0 or own.time_step_most is not None
    if tap == ("log_decay" if own.mixer == "gated-delta" else "time_step"):
        for name, (says, change) in {**STEPS, **(BOUNDS if bounded else {})}.items():
            yield Fault("time-step", name, f"in the time step, {says}", formula=_step, settings={"step": change})
    if tap == "log_decay":
        for name, (says, decayed) in DECAYS.items():
            yield Fault("decay", name, f"in the decay, {says}", formula=_step, settings={"decay": decayed})


def _of_norm(own: TransformerConfig) -> Iterator[Fault]:
    without: set[str] = set() if own.recurrent_key_heads > 1 else {"not grouped"}
    without |= {"each head"} if own.recurrent_key_heads == own.recurrent_heads else set()
    for name, (identity, says, settings) in (GATED if own.mixer == "gated-delta" else GROUPED).items():
        if name not in without:
            yield Fault(identity, name, says, formula=norm_with, settings=settings)


def _of_convolution(own: TransformerConfig, site: str) -> Iterator[Fault]:
    for name, (says, kernel) in CONVOLUTIONS.items() if own.convolution_width > 1 else ():
        if name != "centred" or own.convolution_width > 2:
            yield Fault("recurrent-convolution", name, says, formula=_convolved, settings={"kernel": kernel})
    if own.mixer == "state-space" and own.decoder_mask == "causal-and-padding":
        says = "padding has zeros in front of the convolution alone, not behind it, too"
        yield Fault("recurrent-padding", "in front", says, formula=_convolved, settings={"unpadded": False})
    others = {name: row for name, row in ACTIVATIONS.items() if name != "silu"}
    for name, (function, says) in {**others, "missing": (lambda x: x, "no activation")}.items():
        description = f"{says} instead of {ACTIVATIONS['silu'][1]} behind the convolution"
        yield Fault("recurrent-activation", name, description, formula=_convolved, settings={"function": function})


def _scope(site: str) -> str:
    return site.rpartition(".")[0]


def _convolved(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    """A convolution and its activation, with other settings."""
    part, own = site.removesuffix("_convolved"), own_config(state.config, site)
    kernel = parameters_of(state, f"{part}_convolution")
    y = settings.get("kernel", _causal)(kernel["weight"], apply_linear(state, part, recurrence_input(state, site)))
    y = settings.get("function", ACTIVATIONS["silu"][0])(y + kernel.get("bias", 0))
    masked = own.mixer == "state-space" and settings.get("unpadded", True)
    return (unpadded(state, site, y) if masked else y).astype(value.dtype)


def _unit(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    x = state.taps[site.replace("_normalized", "_convolved")]
    return settings["change"](split_heads(x, value.shape[1])).astype(value.dtype)


def _step(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    """The time step or, at its own tap, the decay, with other settings."""
    own, scope = own_config(state.config, site), _scope(site)
    x = apply_linear(state, f"{scope}.decay", recurrence_input(state, site))
    bias = state.parameters[f"{scope}.time_step_bias"]
    bounded = partial(np.clip, a_min=own.time_step_least, a_max=own.time_step_most)
    step = settings.get("step", lambda x, bias, bounded: bounded(softplus(x + bias)))(x, bias, bounded)
    if site.endswith("time_step"):
        return step.astype(value.dtype)
    step = state.taps.get(f"{scope}.time_step", step)
    decay = settings.get("decay", lambda rate, step: -np.exp(rate) * step)
    return decay(state.parameters[f"{scope}.log_rate"], step).astype(value.dtype)


def _beta(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    return settings["change"](apply_linear(state, site, recurrence_input(state, site))).astype(value.dtype)


def _read(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    """What is read from the state, by a rule with other settings."""
    own, scope = own_config(state.config, site), _scope(site)
    heads = own.recurrent_heads
    repeat = _tiled if settings.get("tiled") else repeat_heads
    query, key = (repeat(state.taps[f"{scope}.{role}_normalized"], heads) for role in ("query", "key"))
    values = split_heads(state.taps[f"{scope}.value_convolved"], heads)
    decay, beta = (state.taps[f"{scope}.{name}"].swapaxes(1, 2) for name in ("log_decay", "beta"))
    decay = settings.get("decays", np.exp)(decay)
    features = values.shape[-1] if settings.get("of_values") else key.shape[-1]
    scale = features ** (-0.5 if settings.get("scale", 1.0) else 0)
    order = settings.get("order", "")
    corrects = order != "no correction"
    read = _by_rule(order, query * scale, key, values, decay, beta, corrects=corrects)
    return merge_heads(read).astype(value.dtype)


def _selected(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    """What is read from the state of a state-space model, and what is added to it, with other settings."""
    own, scope = own_config(state.config, site), _scope(site)
    heads, repeat = own.recurrent_heads, _tiled if settings.get("tiled") else repeat_heads
    roles = ("key", "query") if settings.get("exchanged") else ("query", "key")
    query, key = (
        repeat(split_heads(state.taps[f"{scope}.{role}_convolved"], own.recurrent_key_heads), heads) for role in roles
    )
    values = split_heads(state.taps[f"{scope}.value_convolved"], heads)
    decay, step = (state.taps[f"{scope}.{name}"].swapaxes(1, 2) for name in ("log_decay", "time_step"))
    query = query * query.shape[-1] ** (-0.5 if settings.get("scaled") else 0)
    strength, kept = settings.get("strength", lambda step: step)(step), settings.get("decays", np.exp)(decay)
    order = settings.get("order", "")
    read = _by_rule(order, query, key, values, kept, strength, corrects=False)
    skip = state.parameters[f"{scope}.skip"][:, None, None]
    read = read + settings.get("skip", lambda skip, step: skip)(skip, step[..., None]) * values
    return merge_heads(read).astype(value.dtype)


def _tiled(x: np.ndarray, heads: int) -> np.ndarray:
    return np.tile(x, (1, heads // x.shape[1], 1, 1))


def _by_rule(
    order: str,
    query: np.ndarray,
    key: np.ndarray,
    values: np.ndarray,
    decay: np.ndarray,
    beta: np.ndarray,
    *,
    corrects: bool = True,
) -> np.ndarray:
    state = np.zeros((*key.shape[:2], key.shape[-1], values.shape[-1]), values.dtype)
    read = np.zeros_like(values)
    for i in range(key.shape[2]):
        q, k, v = (x[:, :, i, None] for x in (query, key, values))
        kept, strength = decay[:, :, i, None, None], beta[:, :, i, None, None]
        if order == "read first":
            read[:, :, i] = (q @ state)[:, :, 0]
        before = state
        state = state if order == "decay behind" else state * kept
        found = k @ (before if order == "early correction" else state)
        change = strength * (v - found if corrects else v)
        change = strength * v - found if order == "beta of values" else change
        state = state + k.swapaxes(-1, -2) @ change
        state = state * kept if order == "decay behind" else state
        if order != "read first":
            read[:, :, i] = (q @ state)[:, :, 0]
    return read


def _attention_gate(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    scope, sublayer, _ = split(site)
    z = apply_linear(state, f"{_scope(site)}.gate", sublayer_input(state, scope, sublayer))
    return (state.taps[f"{_scope(site)}.context"] * settings["gate"](z)).astype(value.dtype)
