"""Assign the input features of recurrences to roles, such as query or gate, until the reference computes the result."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.taps import recording
from transparity_conformance.checkpoints.families.recurrent import LINEAR
from transparity_conformance.checkpoints.tables.kinds import FULL, repeating
from transparity_conformance.identify.fitting.subject import FitError, FittedModel, ForeignError, RecordedCall
from transparity_conformance.identify.fitting.values.convolutions import Convolution
from transparity_conformance.identify.fitting.values.found import FoundFields
from transparity_conformance.identify.fitting.values.linears import Columns, Linear
from transparity_conformance.identify.fitting.values.numbers import SAME, is_same, settled
from transparity_conformance.listening.operation import Operation
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.arithmetic.functional import nest, softplus
from transparity_numpy.mixers import MIXERS
from transparity_numpy.state.context import Context

USUAL = (("query", "key", "value"), ("value", "key", "query"))
"""The orders in Qwen3-Next and in Mamba-2, which are tried first."""


@dataclass(frozen=True, eq=False)
class Recurrence:
    convolutions: Sequence[Convolution]
    maps: Sequence[Linear]
    output: Linear

    @property
    def given(self) -> np.ndarray:
        return self.maps[0].given

    @property
    def result(self) -> tuple[int, np.ndarray]:
        return self.output.at, self.output.made

    @property
    def names(self) -> set[str]:
        maps = (name for each in self.maps for name in (each.name, each.bias_name) if name is not None)
        return {*maps, *(name for each in self.convolutions for name in each.names)}


@dataclass(frozen=True, eq=False)
class Rates:
    """The time steps of all heads, and the parameters of the decay."""

    features: list[int]
    """The features from which the time steps are computed."""
    names: tuple[str, str]
    step: np.ndarray
    """The time steps before clipping (batch, length, heads)."""
    bounded: np.ndarray


@dataclass(frozen=True, eq=False)
class Taken:
    fields: Mapping[str, Any]
    linears: Mapping[str, Linear]
    parameters: Arrays
    used: set[str]
    rates: Rates

    def context(self, found: FoundFields, rows: int) -> np.ndarray:
        """Return the input of the output map, as the reference computes it for the first `rows` rows."""
        bounds = {"time_step_min": self.rates.bounded.min(), "time_step_max": self.rates.bounded.max()}
        config = found.config(**{**self.fields, **bounds})
        own = FoundFields(parameters=dict(self.parameters))
        for role, linear in self.linears.items():
            own.put(role, linear, bias=self.fields["recurrent_bias"])
        batch, length, _ = self.rates.step.shape
        x = self.linears["decay"].given.reshape(batch, length, -1)[:rows]
        made: Arrays = {}
        mask, visible = np.ones((1, 1, 1, 1), bool), np.ones(x.shape[:2], bool)
        given = Context(mask, np.arange(length)[None], visible, tap=recording(made))
        MIXERS[config.mixer_name](config, nest(own.parameters), x, given)
        return made["gated_context"]


def taken_apart(found: FoundFields, one: Recurrence, operations: Sequence[Operation], values: Arrays) -> Taken:
    own = operations[min(each.at for each in one.maps) : one.output.at]
    left = {name: value for name, value in values.items() if name not in found.used}
    given = np.concatenate([each.given for each in one.convolutions], axis=2)
    rows = given.reshape(-1, given.shape[2])
    for columns in _readings(one.maps):
        convolved = columns.matching(rows)
        if convolved is None:
            continue
        layer = _Layer(one, columns, convolved, own, left)
        for rates in (rates for features, bias in layer.time_steps() for rates in layer.rates(features, bias)):
            expected = one.output.given.reshape(*rates.step.shape[:2], -1)
            for taken in layer.ways(rates):
                if all(is_same(taken.context(found, count), expected[:count]) for count in (1, len(expected))):
                    return taken
    raise ForeignError(
        f"The recurrence with the convolution of {one.convolutions[0].names[0]} was not recognized; expected "
        "a gated delta network (Qwen3-Next) or Mamba-2, followed by a gated norm."
    )


def _readings(maps: Sequence[Linear]) -> Iterator[Columns]:
    """Yield the linear maps unchanged, and then without a bias that may belong to the time steps."""
    yield Columns(maps)
    for place, one in enumerate(maps):
        if one.bias is not None:
            plain = dataclasses.replace(one, made=one.made - one.bias, bias=None, bias_name=None)
            yield Columns([*maps[:place], plain, *maps[place + 1 :]])


@dataclass(frozen=True, eq=False)
class _Layer:
    one: Recurrence
    columns: Columns
    convolved: list[int]
    operations: Sequence[Operation]
    values: Arrays

    @property
    def wide(self) -> int:
        return self.one.output.weight.shape[1]

    @functools.cached_property
    def kernels(self) -> tuple[np.ndarray, np.ndarray | None]:
        every = self.one.convolutions
        biases = [np.zeros(len(each.kernel)) if each.bias is None else each.bias for each in every]
        has_bias = any(each.bias is not None for each in every)
        return np.concatenate([each.kernel for each in every]), np.concatenate(biases) if has_bias else None

    def time_steps(self) -> Iterator[tuple[list[int], str]]:
        """Yield features that may be time steps, and a vector that an operation adds to them, one number per head."""
        rows = len(self.one.given)
        tried: set[tuple[str, tuple[int, ...]]] = set()
        for name, vector in self.values.items():
            sums = [each.value for each in self.operations if each.value.shape[-1:] == vector.shape]
            for value in sums if vector.ndim == 1 and self.wide % len(vector) == 0 else ():
                if value.size != rows * len(vector):
                    continue
                steps = self.columns.matching(value.reshape(rows, -1) - vector)
                if steps is not None and (name, tuple(steps)) not in tried:
                    tried.add((name, tuple(steps)))
                    yield steps, name

    def rates(self, features: list[int], bias: str) -> Iterator[Rates]:
        """Yield rates for which an operation computed −exp(rate) · time step; time steps may be clipped."""
        step = softplus(self.columns.made[:, features] + self.values[bias])
        step = step.reshape(*self.one.convolutions[0].made.shape[:2], -1)
        seen = [each.value.reshape(step.shape) for each in self.operations if each.value.size == step.size]
        for name, rate in self.values.items():
            if rate.shape != step.shape[2:] or name == bias:
                continue
            for value in seen:
                bounded = value / -np.exp(rate)
                least, most, near = bounded.min(), bounded.max(), SAME * np.abs(bounded).max()
                inside = (bounded > least + near) & (bounded < most - near)
                wrong = (
                    np.abs(bounded - np.clip(step, least, most)).max(),
                    np.abs(bounded - step)[inside].max(initial=0),
                )
                if inside.any() and max(wrong) <= near:
                    yield Rates(features, (bias, name), step, np.clip(step, least, most))
                    break

    def ways(self, rates: Rates) -> Iterator[Taken]:
        """Yield every assignment of the other features and vectors to roles. Beta is before or after the gate in a
        gated delta network; Mamba-2 has a skip vector instead."""
        heads = rates.step.shape[2]
        left = self.columns.without(self.convolved, rates.features)
        betas, mixer = [left[-heads:], left[:heads]], "gated-delta"
        skips: list[str | None] = [None]
        if len(left) == self.wide:
            betas, mixer = [[]], "state-space"
            skips = [each for each, x in self.values.items() if x.shape == (heads,) and each not in rates.names]
        elif len(left) != self.wide + heads:
            return
        keys = (len(self.convolved) - self.wide) // 2
        groups = [each for each in range(1, heads + 1) if heads % each == 0 and keys % each == 0]
        widths, orders = {"query": keys, "key": keys, "value": self.wide}, list[dict[str, slice]]()
        for order in dict.fromkeys((*USUAL, *itertools.permutations(widths))):
            ends = itertools.accumulate((widths[role] for role in order), initial=0)
            orders.append({role: slice(*pair) for role, pair in zip(order, itertools.pairwise(ends), strict=True)})
        for beta, places, shared, skip in itertools.product(betas, orders, groups, skips):
            gate = [each for each in left if each not in beta]
            size = self.wide // heads if mixer == "gated-delta" else self.wide
            for gain in [name for name, value in self.values.items() if value.shape == (size,)]:
                vectors = {"dt_bias": rates.names[0], "A_log": rates.names[1], "gated_norm.weight": gain}
                vectors |= {"D": skip} if skip else {}
                roles = {role: self.convolved[at] for role, at in places.items()}
                roles |= {"decay": rates.features, "gate": gate} | ({"beta": beta} if beta else {})
                yield self._taken(rates, mixer, shared, places, roles, vectors)

    def _taken(
        self,
        rates: Rates,
        mixer: str,
        groups: int,
        order: Mapping[str, slice],
        roles: Mapping[str, list[int]],
        vectors: Mapping[str, str],
    ) -> Taken:
        kernel, bias = self.kernels
        linears = {role: self.columns.linear(features) for role, features in roles.items()} | {
            "output": self.one.output
        }
        parameters = {role: self.values[name] for role, name in vectors.items()}
        parameters |= {f"{role}_convolution.weight": kernel[at] for role, at in order.items()}
        parameters |= {} if bias is None else {f"{role}_convolution.bias": bias[at] for role, at in order.items()}
        fields = {
            "mixer": mixer,
            "recurrent_heads": rates.step.shape[2],
            "recurrent_key_heads": groups,
            "recurrent_key_dim": len(roles["key"]) // groups,
            "recurrent_value_dim": self.wide // rates.step.shape[2],
            "convolution_width": kernel.shape[1],
            "convolution_bias": bias is not None,
            "recurrent_bias": any(each.bias is not None for each in linears.values()),
        }
        return Taken(fields, linears, parameters, {*vectors.values(), *self.one.names}, rates)


def read_recurrences(
    found: FoundFields,
    subject: FittedModel,
    heard: RecordedCall,
    named: Sequence[tuple[str, Recurrence]],
    mixers: Sequence[object],
) -> None:
    """Add the fields and parameters of the recurrences. `mixers` has each layer's recurrence or attention."""
    if not named:
        return
    every: list[tuple[str, Taken]] = []
    for name, each in named:
        every.append((name, taken_apart(found, each, heard.operations, subject.values)))
        found.used |= every[-1][1].used
    first = every[0][1].fields
    has_bias = any(taken.fields["recurrent_bias"] for _, taken in every)
    found.fields |= {**first, "recurrent_bias": has_bias, **_bounds(found, [taken for _, taken in every])}
    for name, taken in every:
        found.parameters |= {f"{name}.{leaf}": value for leaf, value in taken.parameters.items()}
        for role, linear in taken.linears.items():
            found.put(f"{name}.{role}", linear, bias=has_bias)
    _kinds(found, mixers, first["mixer"])


def _bounds(found: FoundFields, every: list[Taken]) -> dict[str, Any]:
    """Return the bounds of the time step; a bound is known only if a time step is clipped."""
    step = np.concatenate([each.rates.step.ravel() for each in every])
    bounded = np.concatenate([each.rates.bounded.ravel() for each in every])
    fields: dict[str, Any] = {"time_step_min": 0.0, "time_step_max": None}
    for name, bound, is_beyond in (
        ("time_step_min", float(bounded.min()), step < bounded.min() * (1 - SAME)),
        ("time_step_max", float(bounded.max()), step > bounded.max() * (1 + SAME)),
    ):
        if is_beyond.any():
            fields[name] = settled(bound)
        else:
            side = "short" if name == "time_step_min" else "long"
            found.untold[name] = f"no time step is {side} enough to reach a bound"
    return fields


def _kinds(found: FoundFields, mixers: Sequence[object], mixer: str) -> None:
    types = [LINEAR if isinstance(each, Recurrence) else FULL for each in mixers]
    if FULL not in types:
        return
    if "layer_types" in found.fields:
        raise FitError(
            "Layers differ both in their windows and in having a recurrence; expected one kind of difference."
        )
    unwindowed = {"sliding_window": None} if found.fields.get("sliding_window") is not None else {}
    found.fields |= {
        "mixer": "attention",
        "layer_types": repeating(types),
        "layer_overrides": {LINEAR: {"mixer": mixer, **unwindowed}},
    }
