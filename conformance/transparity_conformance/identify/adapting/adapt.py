"""Find the adapter of a port by running the port, and prove the adapter with random weights."""

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
    """A port's model, in this process or another process."""

    def __call__(self, **tokens: np.ndarray) -> Any: ...

    def tensors(self) -> dict[str, np.ndarray]: ...

    def buffers(self) -> dict[str, np.ndarray]: ...

    def assign(self, values: Mapping[str, np.ndarray]) -> None: ...


@dataclass(frozen=True)
class Adapted:
    """An adapter, and the result of its proof."""

    adapter: Adapter
    found: FoundAdapter
    wrong: str | None
    """How the logits differ with the adapter; None if they agree or were not compared."""
    misplaced: tuple[Misplaced, ...] = ()
    """Parameters that the port's loader stores in other tensors, or in another layout, than the model reads."""

    @property
    def is_settled(self) -> bool:
        """Return whether every parameter has a line."""
        return not self.adapter.asked and ABSENT not in self.adapter.lines.values()

    @property
    def is_proved(self) -> bool:
        """Return whether the port's logits agree with the reference on every probe."""
        return self.is_settled and self.wrong is None


def adapt(
    make: Make, config: TransformerConfig, *, budget: float = BUDGET, progress: Progress | None = None
) -> Adapted:
    """Find the adapter of a port, and prove it.

    Args:
        make: the port, as a class of modules or a function that returns a module, called as `Model()` or
            `Model(config)`; or as `build(config, parameters)`, whose mapping of parameters is then also checked.
        config: the port's configuration.
        budget: the time limit of the search, in seconds.
        progress: receives the progress of the search.

    Raises `PortError` if the port cannot be built, or raises an error.
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
    """Find the adapter of an existing model; see `adapt`.

    Args:
        model: the model.
        config: its configuration.
        given: the parameters that the model's own loader read, if any.
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
    if any(own.values()):  # If no parameter is found, the port has kept its own weights.
        result = dataclasses.replace(result, misplaced=tuple(misplaced(own, found.lines, config, tensors)))
    if result.is_settled:
        told("running the port with the adapter", 0, 1)
        result = dataclasses.replace(result, wrong=proof_of(model, tensors, own_probes(config), adapter).difference)
    return result


def _fitting(
    found: FoundAdapter, buffers: Mapping[str, np.ndarray], config: TransformerConfig
) -> dict[str, np.ndarray]:
    """Return the buffers whose size fits a parameter that no tensor matches."""
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
    """Compare a model with the reference on random weights, which the adapter writes.

    Args:
        model: the model.
        tensors: the model's tensors before weights are written.
        probes: the inputs.
        adapter: the tensor of each parameter.
    """

    def answer(probe: Probe) -> np.ndarray:
        model.assign(adapter.tensors(probe.config, probe.parameters, tensors))
        return run(model, probe, logits_only=True)["logits"]

    return proved(probes, answer)
