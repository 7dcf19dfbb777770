"""Find mixtures of experts. A router is a linear map whose result a later operation reduces to its top k."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transparity_conformance.identify.fitting.subject import ForeignError
from transparity_conformance.identify.fitting.values.found import FoundFields
from transparity_conformance.identify.fitting.values.linears import Linear
from transparity_conformance.identify.fitting.values.numbers import SAME, is_same
from transparity_conformance.listening.operation import Operation
from transparity_numpy.activations import ACTIVATIONS
from transparity_numpy.experts import SCORES, highest

FEW = 4
"""The number of rows to compare first, which excludes most wrong candidates."""


@dataclass(frozen=True, eq=False)
class Maps:
    """One linear map per expert (experts, features out, features in), and the parameters' names."""

    weights: np.ndarray
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Experts:
    router: Linear
    per_token: int
    scores: str
    is_normalized: bool
    activation: str
    gate: Maps | None
    up: Maps
    down: Maps
    result: tuple[int, np.ndarray]
    """The operation that completes the sum of the experts' outputs, and the sum."""

    @property
    def given(self) -> np.ndarray:
        return self.router.given

    @property
    def maps(self) -> Mapping[str, Maps]:
        every = {"gate": self.gate, "up": self.up, "down": self.down}
        return {role: each for role, each in every.items() if each is not None}

    @property
    def fields(self) -> dict[str, object]:
        return {
            "num_experts": len(self.up.weights),
            "experts_per_token": self.per_token,
            "router_scores": self.scores,
            "normalize_topk": self.is_normalized,
            "activation": self.activation,
            "gated": self.gate is not None,
            "feed_forward_dim": self.up.weights.shape[1],
        }

    @property
    def names(self) -> set[str]:
        return {name for each in self.maps.values() for name in each.names}


def experts_in(
    maps: Sequence[Linear], operations: Sequence[Operation], values: Mapping[str, np.ndarray]
) -> list[Experts]:
    found: list[Experts] = []
    for one in maps:
        count = _chosen(one, operations)
        if count is None:
            continue
        taken = {name for each in found for name in each.names}
        left = {name: value for name, value in values.items() if name not in taken}
        made = next(_readings(one, count, operations[one.at + 1 :], one.at + 1, left), None)
        if made is None:
            raise ForeignError(
                f"{_unknown(one)}: no operation computes a weighted sum of feed-forwards without biases; {BY_HAND}."
            )
        own = {one.name, *made.names}
        if beside := [each.name for each in maps if each.name not in own and is_same(each.given, one.given)]:
            raise ForeignError(
                f"{_unknown(one)}: {beside[0]} reads the router's input, as a shared expert would; {BY_HAND}."
            )
        found.append(made)
    return found


BY_HAND = "fit a dense model, and write the fields of experts by hand"


def _unknown(one: Linear) -> str:
    return f"The experts of the router {one.name} were not recognized"


def _chosen(one: Linear, operations: Sequence[Operation]) -> int | None:
    rows, count = one.made.shape
    scores = [np.sort(each, axis=1)[:, ::-1] for each in (one.made, *(made(one.made) for made in SCORES.values()))]
    for operation in operations[one.at + 1 : one.at + 12]:
        most = operation.value.shape[-1] if operation.value.ndim > 1 else 0
        if 0 < most < count and operation.value.size == rows * most:
            chosen = operation.value.reshape(rows, most)
            if any(is_same(each[:, :most], chosen) for each in scores):
                return most
    return None


def _readings(
    router: Linear, per_token: int, operations: Sequence[Operation], begin: int, values: Mapping[str, np.ndarray]
) -> Iterator[Experts]:
    rows, width = router.given.shape
    like = [(begin + i, each.value) for i, each in enumerate(operations) if each.value.size == router.given.size]
    seen = [(at, value.reshape(rows, width)) for at, value in like if value.shape[-1] == width]
    few = np.linspace(0, rows - 1, FEW).astype(int)
    sums = np.stack([value[few] for _, value in seen]) if seen else np.empty((0, FEW, width))
    weighed: list[tuple[str, bool, np.ndarray]] = []
    for kind, is_normalized in itertools.product(SCORES, (True, False)):
        every = SCORES[kind](router.made)
        chosen = np.where(highest(every, per_token) != 0, every, 0.0)
        weighed.append((kind, is_normalized, chosen / chosen.sum(axis=1, keepdims=True) if is_normalized else chosen))
    for gate, up, down in _maps(router, values):
        for activation, (scores, is_normalized, weights) in itertools.product(ACTIVATIONS, weighed):
            made = _sum(router.given[few], weights[few], activation, gate, up, down)
            near = np.abs(sums - made).max((1, 2), initial=0.0) <= SAME * np.abs(made).max()
            for index in np.flatnonzero(near)[::-1]:  # take the last of several equal values
                at, value = seen[index]
                if is_same(_sum(router.given, weights, activation, gate, up, down), value):
                    yield Experts(router, per_token, scores, is_normalized, activation, gate, up, down, (at, value))


def _sum(x: np.ndarray, weights: np.ndarray, activation: str, gate: Maps | None, up: Maps, down: Maps) -> np.ndarray:
    """Return Σ weight · down(activation(gate(x)) · up(x)) over all experts."""
    function, raised = ACTIVATIONS[activation], np.einsum("rd,ehd->erh", x, up.weights)
    hidden = function(raised) if gate is None else function(np.einsum("rd,ehd->erh", x, gate.weights)) * raised
    return np.einsum("re,erh,edh->rd", weights, hidden, down.weights, optimize=True)


def _maps(router: Linear, values: Mapping[str, np.ndarray]) -> Iterator[tuple[Maps | None, Maps, Maps]]:
    width = router.given.shape[1]
    every = list(_of_each_expert(router.made.shape[1], values))
    downs = [each for each in every if each.weights.shape[1] == width]
    ups = [each for each in every if each.weights.shape[2] == width]
    for down, up in itertools.product(downs, ups):
        hidden, raised = down.weights.shape[2], up.weights.shape[1]
        if set(down.names) & set(up.names):
            continue
        if raised == 2 * hidden:  # gate and up are fused: concatenated or interleaved, in either order
            cuts = (slice(0, hidden), slice(hidden, None)), (slice(0, None, 2), slice(1, None, 2))
            for one, other in ((first, second) for cut in cuts for first, second in (cut, cut[::-1])):
                yield Maps(up.weights[:, one], up.names), Maps(up.weights[:, other], up.names), down
        elif raised == hidden:
            yield None, up, down
            gates = [each for each in ups if each.weights.shape == up.weights.shape]
            yield from ((gate, up, down) for gate in gates if not set(gate.names) & {*up.names, *down.names})


def _of_each_expert(count: int, values: Mapping[str, np.ndarray]) -> Iterator[Maps]:
    """Yield each stack of `count` matrices and its transpose; a stack is one array, or matrices with numbered names."""
    found = [Maps(value, (name,)) for name, value in values.items() if value.ndim == 3 and len(value) == count]
    groups = [names for names in _numbered(values) if len(names) == count]
    alike = [names for names in groups if len({values[name].shape for name in names}) == 1]
    found += [Maps(np.stack([values[name] for name in names]), tuple(names)) for names in alike]
    for each in found:
        yield each
        yield Maps(each.weights.swapaxes(1, 2), each.names)


def _numbered(values: Mapping[str, np.ndarray]) -> Iterator[list[str]]:
    groups: dict[tuple[str, str], dict[int, str]] = {}
    for name in (name for name, value in values.items() if value.ndim == 2):
        for number in re.finditer(r"\d+", name):
            groups.setdefault((name[: number.start()], name[number.end() :]), {})[int(number[0])] = name
    for group in groups.values():
        if sorted(group) == list(range(len(group))):
            yield [group[number] for number in range(len(group))]


def read_experts(found: FoundFields, named: Sequence[tuple[str, Experts]], *, beside_others: bool) -> None:
    """Add the fields and parameters of the experts. `beside_others`: other layers have a plain feed-forward."""
    if not named:
        return
    fields = [each.fields for _, each in named]
    if beside_others or any(each != fields[0] for each in fields):
        raise ForeignError(
            "Layers differ in the fields of their experts, or some have no experts; expected equal fields everywhere."
        )
    has_bias = any(each.router.bias is not None for _, each in named)
    found.fields |= {**fields[0], "router_bias": has_bias, "feed_forward_bias": False}
    for name, each in named:
        found.put(f"{name}.router", each.router, bias=has_bias)
        for role, maps in each.maps.items():
            found.parameters |= {f"{name}.experts.{i}.{role}.weight": own for i, own in enumerate(maps.weights)}
        found.used |= each.names
