"""Adam's correction of the bias in float32, as Optax computes it; PyTorch and the reference take Python's numbers.

1 − βᵗ is the difference of two numbers near 1: with β of 0.999, float32 errs by 1e-5 of it at the first step, and a
learned parameter by half of that times the learning rate. That is rounding, so it belongs to the noise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

import numpy as np


def weight_so_far(beta: float, step: int) -> float:
    """The reference's 1 − betaᵗ, in float32."""
    return float(np.float32(1) - np.float32(beta) ** np.float32(step))


@contextlib.contextmanager
def corrected_in_float32() -> Iterator[None]:
    """Within the context, the reference's Adam corrects the bias in float32."""
    # The specification has no switch for this; it is measured here only.
    with mock.patch("transparity_numpy.training.optimization._weight_so_far", weight_so_far):
        yield
