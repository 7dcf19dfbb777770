"""The adapter of a port: found by running it, and proved with weights of ours."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity_conformance.diagnosis.judge import Progress, ignore_progress
from transparity_conformance.diagnosis.search.clock import BUDGET, Clock
from transparity_conformance.identify.adapting.matching import matched
from transparity_conformance.identify.adapting.own import Misplaced, misplaced, own_lines
from transparity_conformance.identify.adapting.search import FoundAdapter
from transparity_conformance.identify.proof import Proof, own_probes, proved
from transparity_conformance.oracle.probes import Probe, probe_parameters
from transparity_conformance.running.adapters.adapter import ASKED, Adapter
from transparity_conformance.running.adapters.model import Make, made_by
from transparity_conformance.running.adapters.notation import ABSENT, for_all_layers
from transparity_conformance.running.process.running import run


class Tensors(Protocol):
    """A model of a port, here or in a process of its own."""

    def __call__(self, **tokens: np.ndarray) -> Any:
        """Run the model."""

    def tensors(self) -> dict[str, np.ndarray]:
        """Its tensors by name."""

    def buffers(self) -> dict[str, np.ndarray]:
        """Its buffers by name."""

    def assign(self, values: Mapping[str, np.ndarray]) -> None:
        """Write into its tensors or buffers."""


@dataclass(frozen=True)
class Adapted:
    """An adapter, and what is known of it."""

    adapter: Adapter
    found: FoundAdapter
    wrong: str | None
    """How the logits differ with the adapter; None: they agree, or were not compared."""
    misplaced: tuple[Misplaced, ...] = ()
    """Of a port that loads parameters by itself, those that it keeps elsewhere than it computes with them."""

    @property
    def is_settled(self) -> bool:
        """Return whether every parameter has a line."""
        return not self.adapter.asked and ABSENT not in self.adapter.lines.values()

    @property
    def is_proved(self) -> bool:
        """Return whether the port agrees with the reference by its logits, on every probe."""
        return self.is_settled and self.wrong is None


def adapt(
    make: Make, config: TransformerConfig, *, budget: float = BUDGET, progress: Progress | None = None
) -> Adapted:
    """Find the adapter of a port, and prove it.

    Args:
        make: the port, `Model()` or `Model(config)`: a class of modules, or a function that makes one; or a
            `build(config, parameters)`, whose own mapping is held to what it computes.
        config: the configuration that it has.
        budget: seconds for the search.
        progress: receives every step.

    Raises `PortError` if the port cannot be made, or raises.
    """
    parameters = probe_parameters(config)
    return adapt_model(made_by(make, config, parameters), config, parameters, budget=budget, progress=progress)


def adapt_model(
    model: Tensors,
    config: TransformerConfig,
    given: Mapping[str, np.ndarray] | None = None,
    *,
    budget: float = BUDGET,
    progress: Progress | None = None,
) -> Adapted:
    """Find the adapter of a model that is made already; as `adapt`.

    Args:
        model: the model.
        config: its configuration.
        given: the parameters that it was built with, if it loads them by itself.
        budget, progress: as for `adapt`.
    """
    told = progress or ignore_progress
    told("listening to the port", 0, 1)
    tensors = model.tensors()
    own = {} if given is None else own_lines(config, given, tensors)
    clock = Clock(budget)
    found = matched(model, tensors, model.assign, config, clock)
    if buffers := _fitting(found, model.buffers(), config):
        tensors = {**tensors, **buffers}
        found = matched(model, tensors, model.assign, config, clock)
    adapter = _adapter(found, tensors)
    result = Adapted(adapter, found, None)
    if any(own.values()):  # else it keeps weights of its own
        result = dataclasses.replace(result, misplaced=tuple(misplaced(own, found.lines, config, tensors)))
    if result.is_settled:
        told("running the port with the adapter", 0, 1)
        result = dataclasses.replace(result, wrong=proof_of(model, tensors, own_probes(config), adapter).difference)
    return result


def _fitting(
    found: FoundAdapter, buffers: Mapping[str, np.ndarray], config: TransformerConfig
) -> dict[str, np.ndarray]:
    """The buffers that may be parameters for which no tensor was found."""
    shapes = parameter_shapes(config)
    sizes = {math.prod(shapes[name]) for name, line in found.lines.items() if line == ABSENT}
    return {name: value for name, value in buffers.items() if value.size in sizes}


def _adapter(found: FoundAdapter, tensors: Mapping[str, np.ndarray]) -> Adapter:
    shapes = {name: value.shape for name, value in tensors.items()}
    asked = dict.fromkeys(found.unsettled, ASKED)
    lines = for_all_layers(found.lines, shapes)
    zero = for_all_layers(found.zero, shapes)
    return Adapter(lines | asked, tuple(dict.fromkeys(zero.values())), found.unused, found.unsettled)


def proof_of(model: Tensors, tensors: Mapping[str, np.ndarray], probes: Mapping[str, Probe], adapter: Adapter) -> Proof:
    """A model with weights of ours by an adapter, beside the reference.

    Args:
        model: the model.
        tensors: its tensors, as they are without an adapter.
        probes: what it is run on.
        adapter: where it keeps each parameter.
    """

    def answer(probe: Probe) -> np.ndarray:
        model.assign(adapter.tensors(probe.config, probe.parameters, tensors))
        return run(model, probe, logits_only=True)["logits"]

    return proved(probes, answer)
