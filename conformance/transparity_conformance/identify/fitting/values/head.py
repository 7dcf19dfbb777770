"""Recognize the head by value: the activation of a linear map, a final softcap, and the pooling of hidden states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
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


def activation_of(ups: Sequence[np.ndarray], hidden: np.ndarray) -> tuple[str, bool]:
    """Return the activation that turns one or two linear maps into `hidden`, and whether the second is the gate."""
    tried: list[tuple[float, str, bool]] = []
    for name, function in ACTIVATIONS.items():
        for is_swapped, (gate, *up) in ((False, ups), (True, ups[::-1])):
            tried.append((difference(function(gate) * (up[0] if up else 1), hidden), name, is_swapped))
    error, name, is_swapped = min(tried)
    if error > SAME:
        known = ", ".join(ACTIVATIONS)
        raise FitError(f"The feed-forward's activation was not recognized; expected one of {known}, gated or not.")
    return name, is_swapped


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
    """The kind of the output, and the linear maps after the last layer: a pooler or a transform, then the head."""

    fields: Mapping[str, Any]
    maps: Mapping[str, Linear] = field(default_factory=dict)
    norm: Norm | None = None

    @property
    def kind(self) -> str:
        return str(self.fields["head"])

    @property
    def is_pooled(self) -> bool:
        return self.kind in ("pooled", "classes")

    def given(self, output: np.ndarray, width: int) -> np.ndarray:
        """Return the input (rows, width) of the head's first linear map; without linear maps, return `output`."""
        first = next(iter(self.maps.values()), None)
        return output.reshape(-1, width) if first is None else first.given


def head_of(rest: Sequence[Linear], output: np.ndarray, embed_dim: int, norms: Norms) -> Head:
    if output.ndim == 2:
        return _pooled_head(rest, output, embed_dim)
    if not rest:
        return Head({"head": "hidden"})
    *before, last = rest
    if output.size == last.made.size:
        for one in before[-1:] if before and before[-1].made.shape == last.given.shape else ():
            for function in ACTIVATIONS.values():
                norm = norms.between(function(one.made), last.given)
                if norm is not None:
                    return Head({"head": "logits"}, {"head_transform": one, "head": last}, norm)
        return Head({"head": "logits"}, {"head": last})
    if output.ndim == 3 and output.shape[-1] == last.given.shape[-1]:  # the linear map is an unused pooler
        return Head({"head": "hidden"})
    raise FitError(
        f"The output has the shape {output.shape}, but the last linear map returns {last.made.shape}; expected logits, "
        "hidden states, classes or a pooled state."
    )


def _pooled_head(rest: Sequence[Linear], output: np.ndarray, embed_dim: int) -> Head:
    """Return the head of a model with one vector per row: a pooled state or classes."""
    for one in reversed(rest):
        activation = _pooler(one, output)
        if activation is not None:
            return Head({"head": "pooled", "pooler": activation}, {"pooler": one})
        is_of_rows = one.made.shape[1] == output.shape[1] and len(one.made) % len(output) == 0
        own = zip(np.split(one.made, len(output)), output, strict=True) if is_of_rows else ()
        # The map's result may have one vector per row, or several positions, of which one is the output.
        if is_same(one.made, output) or (
            is_of_rows and all(any(is_same(row, wanted) for row in rows) for rows, wanted in own)
        ):
            before = rest[: rest.index(one)][-1:]
            activation = _pooler(before[0], one.given) if before else None
            pooler = {"pooler": before[0]} if activation else {}
            fields = {"head": "classes", "pooler": activation or "none", "num_classes": len(one.weight)}
            return Head(fields, {**pooler, "head": one})
    if output.shape[1] == embed_dim:
        return Head({"head": "pooled", "pooler": "none"})
    raise FitError(f"No linear map after the last layer returns the output, which has the shape {output.shape}.")


def _pooler(linear: Linear, made: np.ndarray) -> str | None:
    if linear.made.size != made.size or linear.weight.shape[0] != linear.weight.shape[1]:
        return None
    return next((name for name, function in POOLERS.items() if is_same(function(linear.made), made)), None)


def pooling_fields(tokens: Iterable[int], pads: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the fields of each kind of pooling, the simplest first. `tokens` may end a text; `pads` are the fields of
    possible padding."""
    yield {"pooling": "first"}
    yield from ({"pooling": pooling, **pad} for pooling in ("mean", "last") for pad in pads)
    for number, token in enumerate(tokens):
        if not number:
            yield {"pooling": "largest"}
        yield {"pooling": "eos", "eos_id": token}


def pooled_states(fields: Mapping[str, Any], states: np.ndarray, inputs: Arrays) -> np.ndarray:
    tokens = inputs.get("tokens")
    size = 1 + max(
        0 if tokens is None else int(tokens.max()), *(fields.get(name) or 0 for name in ("pad_id", "eos_id"))
    )
    config = TransformerConfig(
        architecture="encoder", source_vocab_size=size, head="pooled", **{"pad_id": None, **fields}
    )
    read, positions = (states, states.shape[1]) if tokens is None else (tokens, None)
    return pool(config, states, visible_keys(read, config.pad_id, inputs.get("attention_mask"), positions), tokens)
