"""A port's optimizers: a wrong step is found and named, and one that nobody knows has no name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from transparity.config import TransformerConfig
from transparity.presets import preset
from transparity.training import Training
from transparity_conformance import check
from transparity_conformance.capabilities.capability import BuiltPort, ForwardPass
from transparity_conformance.capabilities.compare import compare_capability
from transparity_conformance.capabilities.faults import SimulatedFault
from transparity_conformance.capabilities.faults.optimization import OPTIMIZER_FAULTS
from transparity_conformance.capabilities.learning.training import TRAINING
from transparity_conformance.oracle.backends import backend, installed
from transparity_conformance.oracle.probes import probes_of
from transparity_conformance.report.capability_result import CapabilityResult
from transparity_conformance.report.check.findings import sentence
from transparity_numpy.port import build as numpy_build
from transparity_numpy.training.optimization import train

Arrays = dict[str, np.ndarray]
Became = tuple[Sequence[float], Arrays]


class Learning:
    """A right forward pass, and a way to train."""

    def __init__(self, config: TransformerConfig, parameters: Arrays, how: Callable[..., Became]) -> None:
        self.config, self.how = config, how
        self.parameters = {name: value.astype(np.float32) for name, value in parameters.items()}
        self.forward = numpy_build(config, parameters, dtype="float32")

    def __call__(self, **tokens: Any) -> Any:
        return self.forward(**tokens)

    def train(self, batches: Sequence[Arrays], training: Training) -> Became:
        return self.how(self.config, self.parameters, batches, training)


def learning(how: Callable[..., Became]) -> Callable[[TransformerConfig, Arrays], Learning]:
    return lambda config, parameters: Learning(config, parameters, how)


def with_mistake(how: SimulatedFault) -> Callable[[TransformerConfig, Arrays], Learning]:
    return learning(how.simulate)


def compare_training(build: Callable[..., Any], config: TransformerConfig, dtype: str) -> CapabilityResult:
    """Compare the training of a port of `config`."""
    key, probe = next(iter(probes_of(config, "config").items()))
    port = BuiltPort(build, build(config, probe.parameters))
    return compare_capability(TRAINING, port, ForwardPass({key: probe}, {}, dtype))


CONFIG = dataclasses.replace(preset("notes-lm"), qkv_bias=True)
"""Key biases change no weight of attention: what no gradient reaches hides no mistake, though where eps is missing its
rounding alone is divided by itself."""


@pytest.mark.long
@pytest.mark.parametrize("how", OPTIMIZER_FAULTS, ids=lambda how: how.says)
def test_a_wrong_optimizer_is_named(how: SimulatedFault) -> None:
    found = compare_training(with_mistake(how), CONFIG, "float32")
    (held,), (fault,) = found.claims, found.faults
    assert held.verdict == "diverges"
    assert [cause.says for cause in fault.causes] == [how.says]
    assert fault.indistinguishable == ()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", installed())
def test_every_backend_trains_as_the_reference_does(name: str) -> None:
    found = compare_training(
        lambda config, parameters: backend(name)(config, parameters, dtype="float32"), CONFIG, "float32"
    )
    assert ([held.verdict for held in found.claims], found.faults) == (["agrees"], ())


def grown(*given: Any) -> Became:
    losses, became = train(*given)
    return losses, {name: value * np.float32(1.001) for name, value in became.items()}


@pytest.mark.long
def test_a_wrong_step_that_nobody_knows_has_no_name() -> None:
    report = check(learning(grown), config=CONFIG, logits_only=True)
    (fault,) = report.faults
    assert (report.verdict, fault.where, fault.causes) == ("diverges", "train", ())
    assert sentence(report).startswith("train: wrong by") and "unexplained" in sentence(report)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (lambda *given: 1, "it raised TypeError"),
        (lambda *given: ([0.0], train(*given)[1]), "losses of the shape (1,), expected (3,)"),
        (lambda *given: (train(*given)[0], {}), "it raised TypeError: no decoder."),
    ],
)
def test_a_training_in_the_wrong_form_diverges(how: Callable[..., Became], says: str) -> None:
    report = check(learning(how), preset="notes-lm", logits_only=True)
    (fault,) = report.faults
    assert (report.verdict, fault.where, fault.causes[0].mistake) == ("diverges", "train", "raises")
    assert says in fault.causes[0].says
