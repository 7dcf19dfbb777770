"""Budgets of trained parameters cover the different ways in which correct optimizers round."""

from __future__ import annotations

import numpy as np

from transparity.config import TransformerConfig
from transparity.training import Training
from transparity_conformance.oracle.differentiation.derivatives import training_oracle
from transparity_conformance.oracle.probes import probe_parameters
from transparity_conformance.oracle.variants import weight_so_far
from transparity_conformance.report.comparison import difference, share
from transparity_flax.port import build

TINY = TransformerConfig(
    architecture="decoder",
    target_vocab_size=5,
    max_length=4,
    embed_dim=2,
    num_heads=1,
    num_decoder_layers=1,
    feed_forward_dim=2,
)
ADAM = Training("adam", learning_rate=0.05, betas=(0.9, 0.999), eps=1e-5)
BATCH = {"tokens": np.array([[1, 2, 3]]), "targets": np.array([[2, 3, 4]])}


def test_a_correction_of_the_bias_in_float32_is_rounding() -> None:
    """Check the rounding of Optax, which computes 1 − 0.999 in float32.

    The result is off by 1.3e-5, relatively; its square root divides every update of the first step.
    """
    parameters = probe_parameters(TINY, 6)
    oracle = training_oracle(TINY, parameters, [BATCH], ADAM)
    off = ADAM.learning_rate * abs(weight_so_far(0.999, 1) / 0.001 - 1) / 2
    assert oracle.noise("float32")["head.weight"] > 0.9 * off
    _, learned = build(TINY, parameters).train([BATCH], ADAM)
    for name, value in learned.items():
        assert share(difference(value, oracle.expected[name]), oracle.budget(name, "float32")) < 1, name
