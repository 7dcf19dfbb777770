"""Faults in drawing a token: temperature, top-k, top-p, and the choice among the remaining tokens."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from transparity.sampling import Sampling
from transparity_conformance.capabilities.faults import SimulatedFault
from transparity_conformance.capabilities.faults.generation import simulate_generation
from transparity_numpy.arithmetic.functional import softmax
from transparity_numpy.decoding.generation import filter_logits

Cut = Callable[[np.ndarray, Sampling], np.ndarray]
"""The logits (batch, vocab) that remain; −inf for a token that may not be drawn."""

Pick = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""The tokens (batch,) that uniform numbers (batch,) pick of probabilities (batch, vocab)."""


def _with(**fields: Callable[[Sampling], Any]) -> Cut:
    """Cut as if other options had been given, each made from those that were."""
    return lambda logits, sampling: filter_logits(
        logits, replace(sampling, **{name: make(sampling) for name, make in fields.items()})
    )


def _temperature_last(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    return filter_logits(logits, replace(sampling, temperature=1.0)) / sampling.temperature


def _top_p_first(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    of_all = filter_logits(logits, replace(sampling, top_k=None))
    return np.where(np.isfinite(of_all), filter_logits(logits, replace(sampling, top_p=1.0)), -np.inf)


def _top_k_moved(by: int) -> Cut:
    return _with(top_k=lambda given: None if given.top_k is None else max(1, given.top_k + by))


def _top_p_moved(by: int) -> Cut:
    """Keep `by` more tokens than top-p leaves, of those that top-k left."""

    def cut(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
        by_top_k = filter_logits(logits, replace(sampling, top_p=1.0))
        if sampling.top_p == 1:
            return by_top_k
        count = np.isfinite(filter_logits(logits, sampling)).sum(axis=-1, keepdims=True)
        rank = np.argsort(np.argsort(-logits, axis=-1, kind="stable"), axis=-1)
        return np.where(rank < np.maximum(1, count + by), by_top_k, -np.inf)

    return cut


def _passed(probability: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """Count the tokens whose cumulative probability does not exceed the uniform number."""
    below: np.ndarray = (probability.cumsum(axis=-1) <= uniforms[:, None]).sum(axis=-1)
    return below


def _moved(by: int) -> Pick:
    """Take the token that is `by` after the right one."""
    return lambda probability, uniforms: np.clip(_passed(probability, uniforms) + by, 0, probability.shape[-1] - 1)


_in_vocabulary_order = _moved(0)


def _in_order_of_likelihood(probability: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    order = np.argsort(-probability, axis=-1, kind="stable")
    rank = _in_vocabulary_order(np.take_along_axis(probability, order, axis=-1), uniforms)
    return np.take_along_axis(order, rank[:, None], axis=-1)[:, 0]


def _from_the_end(probability: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    return probability.shape[-1] - 1 - _in_vocabulary_order(probability[:, ::-1], uniforms)


def _or_the_first(probability: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    return _passed(probability, uniforms) % probability.shape[-1]


def _all_by_the_first(probability: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    return _in_vocabulary_order(probability, np.full_like(uniforms, uniforms[0]))


def draw_tokens(
    logits: np.ndarray,
    uniforms: np.ndarray,
    sampling: Sampling,
    *,
    cut: Cut = filter_logits,
    pick: Pick = _in_vocabulary_order,
    renormalizes: bool = True,
) -> np.ndarray:
    """Draw tokens (batch,) as the reference does, except where an option says otherwise.

    Args:
        cut: applies temperature, top-k and top-p.
        pick: the choice of a token, given probabilities and uniform numbers.
        renormalizes: whether the probabilities that remain are scaled to add up to 1.
    """
    left = cut(logits, sampling)
    if renormalizes:
        return pick(softmax(left), uniforms)
    return pick(np.where(np.isfinite(left), softmax(logits / sampling.temperature), 0.0), uniforms)


def _fault(id: str, says: str, **options: Any) -> SimulatedFault:
    draw = functools.partial(draw_tokens, **options)
    return SimulatedFault(id, says, functools.partial(simulate_generation, draw=draw))


_MULTIPLIED = _with(temperature=lambda given: 1 / given.temperature)
_OF_ALL = "top-p filters by the probabilities of all tokens, not of those that top-k left"
_BEYOND = "the remaining probabilities are not normalised again: draws beyond their sum take the {} token"
_LIKELY = "probabilities are added up in the order of likelihood, not of the vocabulary"
_ARGMAX = "the uniform numbers are ignored: the likeliest token is taken"

SAMPLING_FAULTS = (
    _fault("sampling-temperature", "the logits are multiplied by the temperature, not divided", cut=_MULTIPLIED),
    _fault("sampling-temperature", "the temperature is ignored", cut=_with(temperature=lambda _: 1.0)),
    _fault("sampling-order", "the temperature is applied after top-k and top-p, not before", cut=_temperature_last),
    _fault("sampling-order", _OF_ALL, cut=_top_p_first),
    _fault("sampling-top-k", "top-k is ignored", cut=_with(top_k=lambda _: None)),
    _fault("sampling-top-k", "top-k leaves one token more", cut=_top_k_moved(1)),
    _fault("sampling-top-k", "top-k leaves one token less", cut=_top_k_moved(-1)),
    _fault("sampling-top-p", "top-p is ignored", cut=_with(top_p=lambda _: 1.0)),
    _fault("sampling-top-p", "the token that reaches top_p is dropped", cut=_top_p_moved(-1)),
    _fault("sampling-top-p", "the token after the one that reaches top_p may be drawn", cut=_top_p_moved(1)),
    _fault("sampling-normalization", _BEYOND.format("last"), renormalizes=False),
    _fault("sampling-normalization", _BEYOND.format("first"), pick=_or_the_first, renormalizes=False),
    _fault("sampling-draw", _LIKELY, pick=_in_order_of_likelihood),
    _fault("sampling-draw", "probabilities are added up from the end of the vocabulary", pick=_from_the_end),
    _fault("sampling-draw", "the token after the drawn one is taken", pick=_moved(1)),
    _fault("sampling-draw", "the token before the drawn one is taken", pick=_moved(-1)),
    _fault("sampling-draw", _ARGMAX, pick=lambda probability, _: probability.argmax(axis=-1)),
    _fault("sampling-draw", "every row is drawn by the first row's uniform number", pick=_all_by_the_first),
)
