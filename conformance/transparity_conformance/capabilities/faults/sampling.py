"""Mistakes in drawing a token: what temperature, top-k and top-p leave of the logits, and what is picked of that."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from transparity.config import TransformerConfig
from transparity.sampling import Sampling
from transparity_conformance.capabilities.faults.greedy import Generation, generated
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.functional import softmax
from transparity_numpy.generation import drawable

Cut = Callable[[np.ndarray, Sampling], np.ndarray]
"""What is left of logits (batch, vocab), −inf for what may not be drawn."""

Pick = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""The tokens (batch,) that uniform numbers (batch,) pick of probabilities (batch, vocab)."""


def _with(**fields: float | None) -> Cut:
    """As if other options had been asked for."""
    return lambda logits, sampling: drawable(logits, dataclasses.replace(sampling, **fields))  # type: ignore[arg-type]


def _multiplied(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    return drawable(logits, dataclasses.replace(sampling, temperature=1 / sampling.temperature))


def _temperature_last(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    return drawable(logits, dataclasses.replace(sampling, temperature=1.0)) / sampling.temperature


def _top_p_first(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    of_all = drawable(logits, dataclasses.replace(sampling, top_k=None))
    return np.where(np.isfinite(of_all), drawable(logits, dataclasses.replace(sampling, top_p=1.0)), -np.inf)


def _top_k_moved(by: int) -> Cut:
    def cut(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
        top_k = None if sampling.top_k is None else max(1, sampling.top_k + by)
        return drawable(logits, dataclasses.replace(sampling, top_k=top_k))

    return cut


def _top_p_moved(by: int) -> Cut:
    """So many tokens more than top-p leaves, of those that top-k left."""

    def cut(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
        by_top_k = drawable(logits, dataclasses.replace(sampling, top_p=1.0))
        if sampling.top_p == 1:
            return by_top_k
        count = np.isfinite(drawable(logits, sampling)).sum(axis=-1, keepdims=True)
        rank = np.argsort(np.argsort(-logits, axis=-1, kind="stable"), axis=-1)
        return np.where(rank < np.maximum(1, count + by), by_top_k, -np.inf)

    return cut


def _passed(probability: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """How many tokens end below the uniform number, the likelihood of each put behind that of those before it."""
    below: np.ndarray = (probability.cumsum(axis=-1) <= uniforms[:, None]).sum(axis=-1)
    return below


def _in_vocabulary_order(probability: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    return np.minimum(_passed(probability, uniforms), probability.shape[-1] - 1)


def _in_order_of_likelihood(probability: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    order = np.argsort(-probability, axis=-1, kind="stable")
    rank = _in_vocabulary_order(np.take_along_axis(probability, order, axis=-1), uniforms)
    return np.take_along_axis(order, rank[:, None], axis=-1)[:, 0]


def _from_the_end(probability: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    return probability.shape[-1] - 1 - _in_vocabulary_order(probability[:, ::-1], uniforms)


def _moved(by: int) -> Pick:
    return lambda probability, uniforms: np.clip(_passed(probability, uniforms) + by, 0, probability.shape[-1] - 1)


def _or_the_first(probability: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    return _passed(probability, uniforms) % probability.shape[-1]


def _likeliest(probability: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    return probability.argmax(axis=-1)


def _all_by_the_first(probability: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    return _in_vocabulary_order(probability, np.full_like(uniforms, uniforms[0]))


@dataclass(frozen=True)
class Drawing:
    """How tokens are drawn: as the reference does, but for what is said here."""

    id: str = ""
    says: str = ""
    cut: Cut = drawable
    pick: Pick = _in_vocabulary_order
    renormalizes: bool = True
    """Whether what the cuts leave is made to have the probability 1 together."""


_NOT_NORMALIZED = "what the cuts leave is not normalised anew"

DRAWINGS = (
    Drawing("sampling-temperature", "the logits are multiplied by the temperature, not divided", _multiplied),
    Drawing("sampling-temperature", "the temperature is ignored", _with(temperature=1.0)),
    Drawing("sampling-order", "the temperature comes behind the cuts, not before them", _temperature_last),
    Drawing("sampling-order", "top-p cuts by the probabilities of all tokens, not of what top-k left", _top_p_first),
    Drawing("sampling-top-k", "top-k is ignored", _with(top_k=None)),
    Drawing("sampling-top-k", "top-k leaves one token more", _top_k_moved(1)),
    Drawing("sampling-top-k", "top-k leaves one token less", _top_k_moved(-1)),
    Drawing("sampling-top-p", "top-p is ignored", _with(top_p=1.0)),
    Drawing("sampling-top-p", "the token with which top_p is reached is left out", _top_p_moved(-1)),
    Drawing("sampling-top-p", "the token behind the one with which top_p is reached may be drawn", _top_p_moved(1)),
    Drawing("sampling-normalization", f"{_NOT_NORMALIZED}: beyond it the last token is drawn", renormalizes=False),
    Drawing(
        "sampling-normalization", f"{_NOT_NORMALIZED}: beyond it the first is drawn", drawable, _or_the_first, False
    ),
    Drawing(
        "sampling-draw",
        "probabilities are added up in the order of likelihood, not of the vocabulary",
        pick=_in_order_of_likelihood,
    ),
    Drawing("sampling-draw", "probabilities are added up from the end of the vocabulary", pick=_from_the_end),
    Drawing("sampling-draw", "the token behind the drawn one is taken", pick=_moved(1)),
    Drawing("sampling-draw", "the token before the drawn one is taken", pick=_moved(-1)),
    Drawing("sampling-draw", "the uniform numbers are ignored: the likeliest token is taken", pick=_likeliest),
    Drawing("sampling-draw", "every row is drawn by the first row's uniform number", pick=_all_by_the_first),
)
"""The likeliest first."""


def drawn_tokens(logits: np.ndarray, uniforms: np.ndarray, sampling: Sampling, how: Drawing) -> np.ndarray:
    """The tokens (batch,) of a port that draws so."""
    left = how.cut(logits.astype(np.float64), sampling)
    if how.renormalizes:
        return how.pick(softmax(left), uniforms)
    return how.pick(np.where(np.isfinite(left), softmax(logits / sampling.temperature), 0.0), uniforms)


def drawn(
    config: TransformerConfig,
    parameters: Arrays,
    prompt: np.ndarray,
    source: np.ndarray | None,
    uniforms: np.ndarray,
    sampling: Sampling | None,
    how: Drawing,
) -> np.ndarray:
    """What a port that draws so would return; tokens (batch, length)."""

    def choose(logits: np.ndarray, step: int) -> np.ndarray:
        return drawn_tokens(logits, uniforms[:, step], sampling or Sampling(), how)

    return generated(config, parameters, prompt, uniforms.shape[1], source, Generation(), choose)
