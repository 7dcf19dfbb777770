"""The oracle of a training."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from transparity.config import TransformerConfig
from transparity.taps import Tap
from transparity.training import Training
from transparity_conformance.oracle.differentiation.gradients import loss_and_gradients
from transparity_conformance.oracle.oracle import Arrays, Oracle
from transparity_numpy.training.optimization import train

_train = functools.partial(train, differentiate=loss_and_gradients)


def training_oracle(
    config: TransformerConfig,
    parameters: Arrays,
    batches: Sequence[Arrays],
    training: Training,
    by: Callable[..., tuple[list[float], Arrays]] | None = None,
) -> Oracle:
    """The oracle of a training from `parameters`, one step for each batch: its `losses`, and what is learned; of the
    reference's, or `by` another."""

    def run(arrays: Arrays, tap: Tap) -> None:
        losses, learned = (by or _train)(config, arrays, batches, training)
        for name, value in {"losses": np.array(losses), **learned}.items():
            tap(name, value)

    return Oracle(run, parameters, neighbours=2)
