"""Proofs: a model with drawn weights is right if its logits agree with the reference on the probes of a check."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.identify.alignment.heard import wrong_logits
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe, probes_of
from transparity_conformance.report.comparison import share
from transparity_conformance.report.formatting import format_share
from transparity_conformance.report.report import Divergence


@dataclass(frozen=True, eq=False)
class Proof:
    """The outputs of a model on probes, compared with the reference."""

    probes: Mapping[str, Probe]
    answers: Mapping[str, np.ndarray]

    @functools.cached_property
    def misshapen(self) -> str | None:
        """Return the first probe whose answer has another shape."""
        expected = {key: probe.oracle.expected["logits"].shape for key, probe in self.probes.items()}
        return next((key for key, answer in self.answers.items() if answer.shape != expected[key]), None)

    @functools.cached_property
    def wrong(self) -> Divergence | None:
        """Return the largest divergence of the logits over all probes; None if they are right or have another shape."""
        return wrong_logits(self.probes, {key: {"logits": each} for key, each in self.answers.items()}, "float32")

    @property
    def share(self) -> float:
        """Return the largest difference of the logits as a share of the budget if it exceeds 1; otherwise 0."""
        if self.misshapen is not None:
            return math.inf
        return 0.0 if self.wrong is None else share(self.wrong.error, self.wrong.budget)

    @property
    def difference(self) -> str | None:
        """Return how far the logits are from the reference's; None if they agree on every probe."""
        if (key := self.misshapen) is not None:
            expected = self.probes[key].oracle.expected["logits"].shape
            return f"they have the shape {self.answers[key].shape}, expected {expected}"
        if self.wrong is None:
            return None
        return f"by {format_share(self.share)} the budget on the probe {self.wrong.probe}"


def own_probes(config: TransformerConfig) -> dict[str, Probe]:
    """Return the probes of a check that have the sizes of the configuration."""
    return {key: probe for key, probe in probes_of(config, "config").items() if probe.config == config and key != "hot"}


def proved(probes: Mapping[str, Probe], answer: Callable[[Probe], np.ndarray]) -> Proof:
    """Run a model on probes."""
    return Proof(probes, {key: answer(probe) for key, probe in probes.items()})


def write_through(tensors: Arrays, parameters: Arrays, values: Arrays) -> tuple[Arrays, Arrays]:
    """Write parameter values into a copy of a model's tensors; return the tensors and the resulting parameters.

    Args:
        tensors: the tensors, which share no memory.
        parameters: the reference's parameters; those that are views of tensors are written, the others stay unchanged.
        values: the values of the parameters.
    """
    written = {name: value.copy() for name, value in tensors.items()}
    views = {name: _view(each, tensors, written) for name, each in parameters.items()}
    for name, view in views.items():
        if view is not None:
            view[...] = values[name]
    return written, {
        name: parameters[name] if view is None else view.astype(np.float32) for name, view in views.items()
    }


def _view(parameter: np.ndarray, tensors: Arrays, written: Arrays) -> np.ndarray | None:
    """Return a parameter's view into the written tensors; None if it is not a view."""
    for name, tensor in tensors.items():
        if np.may_share_memory(parameter, tensor):
            offset = parameter.__array_interface__["data"][0] - tensor.__array_interface__["data"][0]
            return np.ndarray(parameter.shape, parameter.dtype, written[name], offset, parameter.strides)
    return None
