"""Find mixtures of experts. A router is a linear map whose result a later operation reduces to its top k."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transparity_conformance.identify.fitting.subject import ForeignError
from transparity_conformance.identify.fitting.values.linears import Linear, Sublayer
from transparity_conformance.identify.fitting.values.numbers import SAME, is_same
from transparity_conformance.listening.operation import Operation
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.activations import ACTIVATIONS
from transparity_numpy.experts import SCORES, highest

FEW = 4
"""The number of rows to compare first, which excludes most wrong candidates."""

Stack = tuple[np.ndarray, tuple[str, ...]]
"""One linear map per expert (experts, features out, features in), and the parameters' names."""


@dataclass(frozen=True, eq=False)
class Experts(Sublayer):
    weights: Mapping[str, np.ndarray]
    """The maps of all experts (experts, features out, features in): `gate`, if any, `up` and `down`."""
    names: tuple[str, ...]
    fields: Mapping[str, object]
    total: tuple[int, np.ndarray]
    """The operation that completes the sum of the experts' outputs, and the sum."""

    @property
    def result(self) -> tuple[int, np.ndarray]:
        return self.total


def experts_in(maps: Sequence[Linear], operations: Sequence[Operation], values: Arrays) -> list[Experts]:
    """Return the experts of each router. Raise `ForeignError` if they are unknown, or in some layers only."""
    found: list[Experts] = []
    for one in maps:
        count = _chosen(one, operations)
        if count is None:
            continue
        taken = {name for each in found for name in each.names}
        left = {name: value for name, value in values.items() if name not in taken}
        made = next(_readings(one, count, operations, left), None)
        says = f"The experts of the router {one.name} were not recognized"
        if made is None:
            raise ForeignError(
                f"{says}: no operation computes a weighted sum of feed-forwards without biases; {BY_HAND}."
            )
        own = {one.name, *made.names}
        if beside := [each.name for each in maps if each.name not in own and is_same(each.given, one.given)]:
            raise ForeignError(f"{says}: {beside[0]} reads the router's input, as a shared expert would; {BY_HAND}.")
        found.append(made)
    return found


BY_HAND = "fit a dense model, and write the fields of experts by hand"


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


def _readings(router: Linear, per_token: int, operations: Sequence[Operation], values: Arrays) -> Iterator[Experts]:
    """Yield the experts whose weighted sum an operation computes."""
    x, (rows, width) = router.given, router.given.shape
    later = ((at, each.value) for at, each in enumerate(operations) if at > router.at and each.value.size == x.size)
    seen = [(at, value.reshape(rows, width)) for at, value in later if value.shape[-1] == width]
    few = np.linspace(0, rows - 1, FEW).astype(int)
    sums = np.stack([value[few] for _, value in seen]) if seen else np.empty((0, FEW, width))
    weighed: list[tuple[str, bool, np.ndarray]] = []
    for kind, is_normalized in itertools.product(SCORES, (True, False)):
        every = SCORES[kind](router.made)
        chosen = np.where(highest(every, per_token) != 0, every, 0.0)
        weighed.append((kind, is_normalized, chosen / chosen.sum(axis=1, keepdims=True) if is_normalized else chosen))
    for maps, names in _maps(router, values):
        for activation, (scores, is_normalized, weights) in itertools.product(ACTIVATIONS, weighed):
            made = _sum(x[few], weights[few], activation, maps)
            near = np.abs(sums - made).max((1, 2), initial=0.0) <= SAME * np.abs(made).max()
            for index in np.flatnonzero(near)[::-1]:  # take the last of several equal values
                if is_same(_sum(x, weights, activation, maps), seen[index][1]):
                    fields = {
                        "num_experts": len(maps["up"]),
                        "experts_per_token": per_token,
                        "router_scores": scores,
                        "normalize_topk": is_normalized,
                        "activation": activation,
                        "feed_forward_dim": maps["up"].shape[1],
                    }
                    yield Experts({"router": router}, maps, names, fields, seen[index])


def _sum(x: np.ndarray, weights: np.ndarray, activation: str, maps: Arrays) -> np.ndarray:
    """Return Σ weight · down(activation(gate(x)) · up(x)) over all experts."""
    function, raised = ACTIVATIONS[activation], np.einsum("rd,ehd->erh", x, maps["up"])
    hidden = function(np.einsum("rd,ehd->erh", x, maps["gate"])) * raised if "gate" in maps else function(raised)
    return np.einsum("re,erh,edh->rd", weights, hidden, maps["down"], optimize=True)


def _maps(router: Linear, values: Arrays) -> Iterator[tuple[Arrays, tuple[str, ...]]]:
    """Yield possible maps of the experts by role, and the parameters' names."""
    width = router.given.shape[1]
    every = list(_of_each_expert(router.made.shape[1], values))
    downs, ups = ([each for each in every if each[0].shape[axis] == width] for axis in (1, 2))
    for (down, own), (up, names) in itertools.product(downs, ups):
        hidden, raised = down.shape[2], up.shape[1]
        if set(own) & set(names):
            continue
        if raised == 2 * hidden:  # gate and up are fused: concatenated or interleaved, in either order
            cuts = (slice(0, hidden), slice(hidden, None)), (slice(0, None, 2), slice(1, None, 2))
            for one, other in ((first, second) for cut in cuts for first, second in (cut, cut[::-1])):
                yield {"gate": up[:, one], "up": up[:, other], "down": down}, (*names, *own)
        elif raised == hidden:
            yield {"up": up, "down": down}, (*names, *own)
            for gate, others in ups:
                if gate.shape == up.shape and not set(others) & {*names, *own}:
                    yield {"gate": gate, "up": up, "down": down}, (*others, *names, *own)


def _of_each_expert(count: int, values: Arrays) -> Iterator[Stack]:
    """Yield each stack of `count` matrices and its transpose; a stack is one array, or matrices with numbered names."""
    found: list[Stack] = [(value, (name,)) for name, value in values.items() if value.ndim == 3 and len(value) == count]
    groups: dict[tuple[str, str], dict[int, str]] = {}
    for name in (name for name, value in values.items() if value.ndim == 2):
        for number in re.finditer(r"\d+", name):
            groups.setdefault((name[: number.start()], name[number.end() :]), {})[int(number[0])] = name
    for group in groups.values():
        names = tuple(group[number] for number in sorted(group))
        if sorted(group) == list(range(count)) and len({values[name].shape for name in names}) == 1:
            found.append((np.stack([values[name] for name in names]), names))
    for weights, names in found:
        yield weights, names
        yield weights.swapaxes(1, 2), names
