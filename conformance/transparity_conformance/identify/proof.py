"""Prove an adapter or a configuration: compare a model's logits with the reference on the probes of a check."""

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
from transparity_conformance.running.adapters.model import Model as LocalModel
from transparity_conformance.running.process.isolation import IsolatedModel

Model = LocalModel | IsolatedModel


@dataclass(frozen=True, eq=False)
class Proof:
    probes: Mapping[str, Probe]
    answers: Mapping[str, np.ndarray]

    @functools.cached_property
    def misshapen(self) -> str | None:
        expected = {key: probe.oracle.expected["logits"].shape for key, probe in self.probes.items()}
        return next((key for key, answer in self.answers.items() if answer.shape != expected[key]), None)

    @functools.cached_property
    def wrong(self) -> Divergence | None:
        return wrong_logits(self.probes, {key: {"logits": each} for key, each in self.answers.items()}, "float32")

    @property
    def share(self) -> float:
        """Return the largest difference, divided by the budget; 0 within the budget, infinity for a wrong shape."""
        if self.misshapen is not None:
            return math.inf
        return 0.0 if self.wrong is None else share(self.wrong.error, self.wrong.budget)

    @property
    def difference(self) -> str | None:
        if (key := self.misshapen) is not None:
            expected = self.probes[key].oracle.expected["logits"].shape
            return f"the shape is {self.answers[key].shape} instead of {expected}"
        if self.wrong is None:
            return None
        return f"by {format_share(self.share)} the budget on the probe {self.wrong.probe}"


def own_probes(config: TransformerConfig) -> dict[str, Probe]:
    """Return the probes with exactly this configuration, except `hot`."""
    return {key: probe for key, probe in probes_of(config, "config").items() if probe.config == config and key != "hot"}


def proved(probes: Mapping[str, Probe], answer: Callable[[Probe], np.ndarray]) -> Proof:
    return Proof(probes, {key: answer(probe) for key, probe in probes.items()})


def write_through(tensors: Arrays, parameters: Arrays, values: Arrays) -> tuple[Arrays, Arrays]:
    """Copy `tensors`, and write `values` into the copy where `parameters` are views of `tensors`. Return the copy, and
    the parameters that it contains."""
    written = {name: value.copy() for name, value in tensors.items()}
    views: Arrays = {}
    for name, each in parameters.items():
        owner = next((theirs for theirs, tensor in tensors.items() if np.may_share_memory(each, tensor)), None)
        if owner is not None:
            offset = each.__array_interface__["data"][0] - tensors[owner].__array_interface__["data"][0]
            views[name] = np.ndarray(each.shape, each.dtype, written[owner], offset, each.strides)
            views[name][...] = values[name]
    return written, {
        name: views[name].astype(np.float32) if name in views else each for name, each in parameters.items()
    }
