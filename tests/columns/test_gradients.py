"""Test gradients and training in special cases: stacks without layers, training mode, recurrences in several chunks."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from transparity.parameters import is_learned
from transparity.presets import preset
from transparity.protocol import Backend
from transparity.training import Training
from transparity_conformance.oracle.backends import backend
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.differentiation.derivatives import Derivatives, targets_of, training_oracle
from transparity_conformance.oracle.oracle import Arrays, Oracle
from transparity_conformance.oracle.probes import mixed_inputs, probe_parameters
from transparity_conformance.report.comparison import difference, share


@pytest.fixture(params=["pytorch", "flax"])
def differentiating(request: pytest.FixtureRequest) -> Backend:
    return backend(request.param)


def test_what_the_loss_does_not_depend_on_has_a_gradient_of_zero(differentiating: Backend) -> None:
    config = preset("translation").resized(num_encoder_layers=1, num_decoder_layers=0)
    parameters = probe_parameters(config, 1)
    inputs: dict[str, Any] = dict(mixed_inputs(config))
    forward = differentiating(config, parameters, dtype="float64")
    _, gradients = forward.loss_and_gradients(targets_of(config, inputs), **inputs)
    assert {name: value.shape for name, value in gradients.items()} == {
        name: value.shape for name, value in parameters.items()
    }
    assert not any(gradient.any() for name, gradient in gradients.items() if name.startswith("encoder."))
    assert gradients["head.weight"].any()


def test_training_leaves_the_model_as_it_was(differentiating: Backend) -> None:
    config = dataclasses.replace(preset("notes-lm").resized(num_decoder_layers=1), norm="batch")
    parameters = probe_parameters(config, 1)
    inputs: dict[str, Any] = dict(mixed_inputs(config))
    forward = differentiating(config, parameters, dtype="float32")
    before = np.asarray(forward.logits(**inputs))
    _, gradients = forward.loss_and_gradients(targets_of(config, inputs), training=True, **inputs)
    assert sorted(gradients) == sorted(filter(is_learned, parameters))
    np.testing.assert_array_equal(np.asarray(forward.logits(**inputs)), before)


# the reference runs a forward pass for each parameter, so the model has few parameters
SMALL: dict[str, Any] = {
    "embed_dim": 4,
    "num_decoder_layers": 1,
    "target_vocab_size": 6,
    "recurrent_heads": 2,
    "recurrent_key_heads": 1,
}
SMALL |= {"recurrent_key_dim": 2, "recurrent_value_dim": 3, "convolution_width": 2}
RECURRENT = {
    "gated-delta": dataclasses.replace(CASES["qwen3-next"], feed_forward_dim=3, **SMALL),
    "state-space": dataclasses.replace(CASES["mamba2"], **SMALL),
}


def assert_agree(actual: Arrays, oracle: Oracle | Derivatives, dtype: str) -> None:
    assert sorted(actual) == sorted(oracle.expected)
    for name, expected in oracle.expected.items():
        assert share(difference(actual[name], expected), oracle.budget(name, dtype)) <= 1, name


EACH = pytest.mark.parametrize(
    ("differentiating", "mixer"),
    [("pytorch", mixer) for mixer in RECURRENT]
    + [pytest.param("flax", mixer, marks=pytest.mark.long) for mixer in RECURRENT],
    indirect=["differentiating"],
)


@EACH
def test_gradients_of_a_recurrence_are_its_derivatives(mixer: str, differentiating: Backend) -> None:
    """Use more than 64 positions, so that a second chunk continues from the state of the first."""
    config = dataclasses.replace(RECURRENT[mixer], max_length=70)
    parameters = probe_parameters(config, 6)
    inputs = {name: value[1:3] for name, value in mixed_inputs(config, 0, 70).items()}
    ours = Derivatives(config, parameters, inputs)
    forward = differentiating(config, parameters, dtype="float64", mode="eager")
    _, gradients = forward.loss_and_gradients(ours.targets, **dict[str, Any](ours.inputs))
    assert_agree(ours.along(gradients), ours, "float64")


@pytest.mark.parametrize(
    ("mixer", "compiler"),
    [("state-space", "aot_eager")] + [pytest.param(mixer, "inductor", marks=pytest.mark.long) for mixer in RECURRENT],
)
def test_gradients_of_a_compiled_recurrence_are_its_derivatives(mixer: str, compiler: str) -> None:
    """Compile recurrences of PyTorch, in one chunk and in several."""
    import torch

    from transparity_pytorch.port import build, tensor
    from transparity_pytorch.state.parameters import to_numpy
    from transparity_pytorch.training.loss import cross_entropy

    config = dataclasses.replace(RECURRENT[mixer], max_length=70)
    parameters = probe_parameters(config, 6)
    ours = Derivatives(config, parameters, {name: x[1:3] for name, x in mixed_inputs(config, 0, 70).items()})
    model = build(config, parameters, dtype="float64").model
    given = {name: tensor(value, None, "cpu") for name, value in {"targets": ours.targets, **ours.inputs}.items()}

    @torch.compile(backend=compiler, fullgraph=True)
    def loss(targets: torch.Tensor, **inputs: torch.Tensor) -> torch.Tensor:
        return cross_entropy(model(**inputs), targets, config.pad_id)

    loss(**given).backward()
    found = {name: to_numpy(value.grad) for name, value in model.named_parameters() if value.grad is not None}
    assert_agree(ours.along(found), ours, "float64")


@EACH
def test_a_recurrence_learns_what_the_reference_learns(mixer: str, differentiating: Backend) -> None:
    """Use a large eps for Adam: the rounding of a gradient near eps is multiplied by up to rate / eps."""
    config, training = RECURRENT[mixer], Training("adamw", learning_rate=0.05, eps=1e-3, weight_decay=0.1)
    parameters, drawn = probe_parameters(config, 6), np.random.default_rng(3).integers(0, 6, (2, 3, 5))
    seen = np.ones((3, 4), np.int64)
    batches = [{"tokens": row[:, :-1], "attention_mask": seen, "targets": row[:, 1:]} for row in drawn]
    oracle = training_oracle(config, parameters, batches, training)
    losses, learned = differentiating(config, parameters, dtype="float32", mode="eager").train(batches, training)
    assert_agree({"losses": np.array(losses), **learned}, oracle, "float32")
