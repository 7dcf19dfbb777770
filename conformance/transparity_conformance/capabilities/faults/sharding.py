"""Known faults in the loss and in gradient clipping of a model on several ranks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.training import Training
from transparity_conformance.capabilities.faults import SimulatedFault
from transparity_conformance.capabilities.sharding import Placement, Sharding, split
from transparity_conformance.oracle.differentiation.derivatives import loss_and_gradients
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.training.loss import cross_entropy
from transparity_numpy.training.optimization import clip_by_global_norm, train

PADDED_TO = (8, 16, 32, 64, 128)
"""Vocabularies are padded to a multiple of one of these numbers, or of such a number times the number of ranks."""

Own = Callable[[np.ndarray, int], list[np.ndarray]]
"""Returns the part of an array (rows, positions, …) that each rank has."""

PARTS: dict[str, Own] = {
    "rows": np.array_split,
    "interleaved rows": lambda x, ranks: [x[rank::ranks] for rank in range(ranks)],
    "positions": lambda x, ranks: np.array_split(x, ranks, axis=1),
}
"""Common ways to distribute the tokens of a batch over ranks."""


def loss_faults(sharding: Sharding) -> list[SimulatedFault]:
    """Return the known faults in the loss, the most likely first; empty for one rank."""
    ranks = sharding.ranks
    if ranks == 1:
        return []
    means = [
        SimulatedFault(
            "loss-per-rank",
            f"the loss is the mean of {ranks} means, one for the {name} of each rank, although ranks have different "
            f"numbers of targets{says}",
            partial(_mean_of_ranks, own, ranks, empty),
        )
        for name, own in PARTS.items()
        for empty, says in ((0.0, ""), (math.nan, ", and the mean of no targets is NaN"))
    ]
    widths = sorted({size * each for size in PADDED_TO for each in (1, ranks)} | {ranks})
    padded = [
        SimulatedFault(
            "vocabulary-padded",
            f"the softmax of the loss runs over the padding of the vocabulary, too, to a multiple of {width}",
            partial(_over_padding, width),
        )
        for width in widths
    ]
    return [*means, *padded]


def _mean_of_ranks(
    own: Own, ranks: int, empty: float, logits: np.ndarray, targets: np.ndarray, pad_id: int | None
) -> np.ndarray:
    means = [
        cross_entropy(x, y, pad_id) if (y != pad_id).any() else logits.dtype.type(empty)
        for x, y in zip(own(logits, ranks), own(targets, ranks), strict=True)
    ]
    return np.asarray(sum(means) / logits.dtype.type(ranks))


def _over_padding(width: int, logits: np.ndarray, targets: np.ndarray, pad_id: int | None) -> np.ndarray:
    """Return the loss with additional logits of 0, which pad the vocabulary."""
    more = np.zeros((*logits.shape[:-1], -logits.shape[-1] % width), logits.dtype)
    return cross_entropy(np.concatenate([logits, more], axis=-1), targets, pad_id)


def optimizer_faults(sharding: Sharding) -> list[SimulatedFault]:
    """Return the known faults in gradient clipping; empty for one rank or without sharded parameters."""
    kinds = {placement.kind for placement in sharding.placements.values()}
    if sharding.ranks == 1 or "sharded" not in kinds:
        return []
    counts = f"the norm of all gradients counts replicas on every rank ({sharding.ranks} ×)"
    misses = "the norm of all gradients covers only each rank's own shards: the other ranks' shards are missing"
    return [
        SimulatedFault("clip-norm-of-ranks", says, partial(_train, partial(clip, sharding)))
        for says, clip in ((counts, _counted), (misses, _by_rank))
    ]


def _train(
    clip: Callable[[Arrays, float], Arrays],
    config: TransformerConfig,
    parameters: Arrays,
    batches: tuple[Arrays, ...],
    training: Training,
) -> tuple[list[float], Arrays]:
    """Train as the reference does, but clip gradients with `clip`."""

    def differentiate(*given: Any, **named: Any) -> tuple[np.ndarray, Arrays]:
        loss, gradients = loss_and_gradients(*given, **named)
        return loss, gradients if training.max_norm is None else clip(gradients, training.max_norm)

    return train(config, parameters, batches, dataclasses.replace(training, max_norm=None), differentiate)


def _counted(sharding: Sharding, gradients: Arrays, max_norm: float) -> Arrays:
    """Clip gradients by a norm that counts each replica of a parameter."""
    times = {name: 1 if sharding.is_sharded(name) else sharding.ranks for name in gradients}
    norm = math.sqrt(sum(times[name] * float((value * value).sum()) for name, value in gradients.items()))
    factor = min(1.0, max_norm / norm) if norm else 1.0
    return {name: value * value.dtype.type(factor) for name, value in gradients.items()}


def _by_rank(sharding: Sharding, gradients: Arrays, max_norm: float) -> Arrays:
    """Clip the gradients of each rank by the rank's own norm; replicated gradients come from rank 0."""
    parts = {name: split(value, sharding.of(name), sharding.ranks) for name, value in gradients.items()}
    clipped = [
        clip_by_global_norm({name: parts[name][rank] for name in parts}, max_norm) for rank in range(sharding.ranks)
    ]
    return {
        name: np.concatenate([each[name] for each in clipped], axis=sharding.of(name).number)
        if sharding.is_sharded(name)
        else clipped[0][name]
        for name in gradients
    }


_EXAMPLE = Sharding(2, {"*": Placement("sharded")})

OF_TWO_RANKS = (*loss_faults(_EXAMPLE), *optimizer_faults(_EXAMPLE))
"""All of these faults, for the catalogue of faults."""
