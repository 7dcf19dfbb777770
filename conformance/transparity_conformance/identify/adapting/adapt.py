"""Find the adapter of a port by running the port, and check the adapter with random weights."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity_conformance.diagnosis.judge import Progress, ignore_progress
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.identify.adapting.own import Misplaced, misplaced
from transparity_conformance.identify.adapting.search import FoundAdapter, search
from transparity_conformance.identify.alignment.heard import aligned_probe
from transparity_conformance.identify.proof import Model, Proof, own_probes, proved
from transparity_conformance.matching.forms import with_biases, without_loops
from transparity_conformance.matching.recorded import Recorded
from transparity_conformance.oracle.probes import SOURCE, TARGET, Probe, mixed_inputs, probe_parameters
from transparity_conformance.running.adapters.adapter import ASKED, Adapter
from transparity_conformance.running.adapters.model import Make, made_by
from transparity_conformance.running.adapters.notation import ABSENT, for_all_layers
from transparity_conformance.running.process.running import run, run_listening

MIDDLE, SPREAD = 0.6, 0.3
"""The mean and standard deviation of random vectors, which suit both gains and biases."""


def drawn(tensors: Mapping[str, np.ndarray], seed: int = 0) -> dict[str, np.ndarray]:
    """Draw random numbers; divide a matrix by the root of its smaller side, because either side may be the input."""
    random = np.random.default_rng(seed)
    values = {}
    for name, tensor in tensors.items():
        value = random.normal(size=tensor.shape)
        long = [size for size in tensor.shape if size > 1]
        value = value / min(long) ** 0.5 if len(long) > 1 else MIDDLE + SPREAD * value
        values[name] = (np.abs(value) if name.endswith("running_var") else value).astype(np.float32)
    return values


def matched(model: Model, tensors: Mapping[str, np.ndarray], config: TransformerConfig, clock: Clock) -> FoundAdapter:
    """Match each parameter of the reference with a tensor of the port; `tensors` has the port's parameters, and
    possibly buffers."""
    values = drawn(tensors)
    model.assign(values)
    inputs = mixed_inputs(config, 0, *(min(length, config.max_length) for length in (SOURCE, TARGET)))
    probe = aligned_probe(Probe("adapting", "drawn", "weights of the port", config, probe_parameters(config), inputs))
    taps, operations = run_listening(model, probe)
    best: FoundAdapter | None = None
    for heard in (operations, without_loops(probe, operations)):
        port = Recorded(with_biases(heard), taps["logits"], config.num_heads)
        found = search(config, values, probe.inputs, port, clock)
        best = found if best is None or len(found.lines) > len(best.lines) else best
        if found.lost_at is None or len(heard) < len(operations):
            break
    assert best is not None
    return best


@dataclass(frozen=True)
class Adapted:
    """An adapter, and how the port's logits then differ from the reference."""

    adapter: Adapter
    found: FoundAdapter
    wrong: str | None
    """A description of the difference; None if the logits agree or were not compared."""
    misplaced: tuple[Misplaced, ...] = ()
    """Parameters that the loader stores in another tensor, or in another layout, than the model expects."""

    @property
    def is_settled(self) -> bool:
        return not self.adapter.asked and ABSENT not in self.adapter.lines.values()

    @property
    def is_proved(self) -> bool:
        return self.is_settled and self.wrong is None


def adapt(make: Make, config: TransformerConfig, *, budget: float | None = None) -> Adapted:
    """Find the adapter of a port.

    Then write random weights into the port through the adapter, and compare the port's logits with the reference's.

    Args:
        make: a module class, or a function that returns a module, called as `Model()` or `Model(config)`; or a function
            `build(config, parameters)`. For `build`, also check the tensors into which `build` loads the parameters.
        budget: the largest processor time of the search, in seconds.

    Raise `PortError` if the port cannot be built, or if a call of the port raises an error.
    """
    parameters = probe_parameters(config)
    return adapt_model(made_by(make, config, parameters), config, parameters, budget=budget)


def adapt_model(
    model: Model,
    config: TransformerConfig,
    given: Mapping[str, np.ndarray] | None = None,
    *,
    budget: float | None = None,
    progress: Progress | None = None,
) -> Adapted:
    """Find the adapter of a built model (see `adapt`). `given` has the parameters that the loader received."""
    told = progress or ignore_progress
    told("listening to the port", 0, 1)
    tensors = model.tensors()
    clock = Clock(budget)
    found = matched(model, tensors, config, clock)
    shapes = parameter_shapes(config)
    absent = {math.prod(shapes[name]) for name, line in found.lines.items() if line == ABSENT}
    if buffers := {name: value for name, value in model.buffers().items() if value.size in absent}:
        tensors = {**tensors, **buffers}
        found = matched(model, tensors, config, clock)
    shown = {name: value.shape for name, value in tensors.items()}
    lines = for_all_layers(found.lines, shown) | dict.fromkeys(found.unsettled, ASKED)
    zero = tuple(dict.fromkeys(for_all_layers(found.zero, shown).values()))
    adapter = Adapter(lines, zero, found.unused, found.unsettled)
    result = Adapted(adapter, found, None)
    if given is not None:
        result = dataclasses.replace(result, misplaced=tuple(misplaced(found.lines, config, given, tensors)))
    if result.is_settled:
        told("running the port with the adapter", 0, 1)
        result = dataclasses.replace(result, wrong=proof_of(model, tensors, own_probes(config), adapter).difference)
    return result


def proof_of(model: Model, tensors: Mapping[str, np.ndarray], probes: Mapping[str, Probe], adapter: Adapter) -> Proof:
    def answer(probe: Probe) -> np.ndarray:
        model.assign(adapter.tensors(probe.config, probe.parameters, tensors))
        return run(model, probe, logits_only=True)["logits"]

    return proved(probes, answer)
