"""Gradients at the edges: a model whose stacks have no layers, and one in training."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from transparity.parameters import is_learned
from transparity.presets import preset
from transparity.protocol import Backend
from transparity_conformance.oracle.differentiation.derivatives import targets_of
from transparity_conformance.oracle.probes import mixed_inputs, probe_parameters


@pytest.fixture(params=["pytorch", "flax"])
def differentiating(request: pytest.FixtureRequest) -> Backend:
    """The backends whose framework differentiates."""
    from transparity_conformance.oracle.backends import backend

    return backend(request.param)


def test_what_the_loss_does_not_depend_on_has_a_gradient_of_zero(differentiating: Backend) -> None:
    config = preset("translation").resized(num_encoder_layers=1, num_decoder_layers=0)
    parameters = probe_parameters(config, 1)
    inputs: dict[str, Any] = dict(mixed_inputs(config))
    forward = differentiating(config, parameters, dtype="float64", mode="eager")
    _, gradients = forward.loss_and_gradients(targets_of(config, inputs), **inputs)
    assert {name: value.shape for name, value in gradients.items()} == {
        name: value.shape for name, value in parameters.items()
    }
    assert not any(gradient.any() for name, gradient in gradients.items() if name.startswith("encoder."))
    assert gradients["head.weight"].any()


@pytest.mark.sampled(2)
def test_training_leaves_the_model_as_it_was(differentiating: Backend) -> None:
    config = dataclasses.replace(preset("notes-lm").resized(num_decoder_layers=1), norm="batch")
    parameters = probe_parameters(config, 1)
    inputs: dict[str, Any] = dict(mixed_inputs(config))
    forward = differentiating(config, parameters, dtype="float32", mode="eager")
    before = np.asarray(forward.logits(**inputs))
    _, gradients = forward.loss_and_gradients(targets_of(config, inputs), training=True, **inputs)
    assert sorted(gradients) == sorted(filter(is_learned, parameters))
    np.testing.assert_array_equal(np.asarray(forward.logits(**inputs)), before)
