"""Recognize the head by value: the activation of a linear map, a final softcap, and the pooling of hidden states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.config import Activation, TransformerConfig
from transparity_conformance.identify.fitting.subject import FitError
from transparity_conformance.identify.fitting.values.linears import Linear
from transparity_conformance.identify.fitting.values.norms import Norm, Norms
from transparity_conformance.identify.fitting.values.numbers import SAME, difference, is_same
from transparity_conformance.identify.fitting.values.scores import Scale, scale_of
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.activations import ACTIVATIONS
from transparity_numpy.arithmetic.functional import log_softmax, softmax
from transparity_numpy.heads.pooled import POOLERS, pool
from transparity_numpy.masks import visible_keys


def activation_of(ups: Sequence[np.ndarray], hidden: np.ndarray) -> tuple[Activation, bool]:
    """Return the activation that turns one or two linear maps into `hidden`, and whether the second is the gate."""
    tried: list[tuple[float, str, bool]] = []
    for name, function in ACTIVATIONS.items():
        if len(ups) == 1:
            tried.append((difference(function(ups[0]), hidden), name, False))
            continue
        for swapped in (False, True):
            gate, up = ups[::-1] if swapped else ups
            tried.append((difference(function(gate) * up, hidden), name, swapped))
    error, name, swapped = min(tried)
    if error > SAME:
        known = ", ".join(ACTIVATIONS)
        raise FitError(f"The feed-forward's activation was not recognized; expected one of {known}, gated or not.")
    return name, swapped  # type: ignore[return-value]


def scale_of_logits(logits: np.ndarray, output: np.ndarray) -> Scale:
    """Return the factor and softcap that turn `logits` into the output."""
    scale = scale_of(logits, output.reshape(logits.shape))
    if is_same(scale(logits), output):
        return scale
    for name, function in (("softmax", softmax), ("log-softmax", log_softmax)):
        if is_same(function(logits), output):
            raise FitError(f"The output is the {name} of the last linear map; return the logits instead.")
    raise FitError("The output is neither the result of the last linear map nor its softcap; expected logits.")


@dataclass(frozen=True, eq=False)
class Head:
    """The kind of the output, and the linear maps after the last layer."""

    kind: str
    linear: Linear | None = None
    pooler: Linear | None = None
    activation: str = "none"
    transform: Linear | None = None
    """The linear map before an activation and `norm`."""
    norm: Norm | None = None

    @property
    def is_pooled(self) -> bool:
        return self.kind in ("pooled", "classes")

    def given(self, output: np.ndarray, width: int) -> np.ndarray:
        """Return the input (rows, width) of the head's first linear map, or `output`."""
        first = self.pooler or self.transform or self.linear
        return output.reshape(-1, width) if first is None else first.given


def of_logits(maps: Sequence[Linear], norms: Norms) -> Head:
    """Return a head that ends with the last of `maps`, possibly after a transform."""
    *before, last = maps
    for one in before[-1:] if before and before[-1].made.shape == last.given.shape else ():
        for function in ACTIVATIONS.values():
            norm = norms.between(function(one.made), last.given)
            if norm is not None:
                return Head("logits", last, transform=one, norm=norm)
    return Head("logits", last)


def activation_between(linear: Linear, made: np.ndarray) -> str | None:
    if linear.made.size != made.size or linear.weight.shape[0] != linear.weight.shape[1]:
        return None
    return next((name for name, function in POOLERS.items() if is_same(function(linear.made), made)), None)


def choices(tokens: np.ndarray | None, batch: int, length: int) -> Iterator[np.ndarray]:
    """Yield matrices (batch, batch · length) that pool each row's states: the first position, the last position, the
    position of a token, or a mean. A mean may leave out one token as padding."""
    yield picked(np.zeros(batch, int), length)
    yield picked(np.full(batch, length - 1), length)
    yield averaged(np.ones((batch, length)))
    if tokens is not None:
        yield picked(tokens.argmax(1), length)
        for token in np.unique(tokens):
            yield picked((tokens == token).argmax(1), length)
            yield averaged(tokens != token)


def picked(places: np.ndarray, length: int) -> np.ndarray:
    matrix = np.zeros((len(places), len(places) * length))
    matrix[np.arange(len(places)), np.arange(len(places)) * length + places] = 1
    return matrix


def averaged(seen: np.ndarray) -> np.ndarray:
    """Return the matrix of each row's mean over the seen positions."""
    rows = np.kron(np.eye(len(seen)), np.ones((1, seen.shape[1]))) * seen.reshape(-1)
    return np.asarray(rows / np.maximum(rows.sum(1, keepdims=True), 1))


def pooling_fields(tokens: np.ndarray | None, size: int, pads: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the fields of each kind of pooling, the simplest first. An image has no `tokens`; `pads` are possible
    padding fields."""
    yield {"pooling": "first"}
    for pooling in ("mean", "last"):
        for pad in pads:
            yield {"pooling": pooling, **pad}
    if tokens is not None:
        yield {"pooling": "largest"}
        for token in range(size):
            yield {"pooling": "eos", "eos_id": token}


def pooled_states(config: TransformerConfig, states: np.ndarray, inputs: Arrays) -> np.ndarray:
    (name,) = config.input_names
    visible = visible_keys(inputs[name], config.pad_id, inputs.get("attention_mask"), config.positions_of(name))
    return pool(config, states, visible, inputs.get("tokens"))
