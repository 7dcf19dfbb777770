"""Match a model's tensors with the reference's parameters: draw random weights, then record a run of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.diagnosis.search.clock import BUDGET, Clock
from transparity_conformance.identify.adapting.search import FoundAdapter, search
from transparity_conformance.identify.alignment.heard import aligned_probe
from transparity_conformance.identify.alignment.values.loops import without_loops
from transparity_conformance.matching.recorded import Recorded
from transparity_conformance.oracle.probes import SOURCE, TARGET, Probe, mixed_inputs, probe_parameters
from transparity_conformance.running.adapters.model import Make, made_by
from transparity_conformance.running.process.running import run_listening

MIDDLE, SPREAD = 0.6, 0.3
"""Mean and standard deviation of random vectors, which may be gains or biases."""


def drawn(tensors: Mapping[str, np.ndarray], seed: int = 0) -> dict[str, np.ndarray]:
    """Draw distinct random numbers; scale matrices by their smaller side, because their orientation is unknown."""
    random = np.random.default_rng(seed)
    values = {}
    for name, tensor in tensors.items():
        value = random.normal(size=tensor.shape)
        long = [size for size in tensor.shape if size > 1]
        value = value / min(long) ** 0.5 if len(long) > 1 else MIDDLE + SPREAD * value
        values[name] = (np.abs(value) if name.endswith("running_var") else value).astype(np.float32)
    return values


def match(make: Make, config: TransformerConfig, clock: Clock | None = None) -> FoundAdapter:
    """Match the tensors of a model in this process; raise `PortError` if it cannot be built or run."""
    model = made_by(make, config)
    return matched(model, model.tensors(), model.assign, config, clock or Clock(BUDGET, lambda *_: None))


def matched(
    forward: Callable[..., Any],
    tensors: Mapping[str, np.ndarray],
    assign: Callable[[dict[str, np.ndarray]], None],
    config: TransformerConfig,
    clock: Clock,
) -> FoundAdapter:
    """Match the tensors of a model in this process or another process.

    Args:
        forward: a forward pass of the model.
        tensors: the model's tensors, by name.
        assign: writes values into the tensors.
        config, clock: as for `search`.
    """
    values = drawn(tensors)
    assign(values)
    lengths = (min(length, config.max_length) for length in (SOURCE, TARGET))
    inputs = mixed_inputs(config, 0, *lengths)
    probe = aligned_probe(Probe("adapting", "drawn", "weights of the port", config, probe_parameters(config), inputs))
    taps, operations = run_listening(forward, probe)
    best: FoundAdapter | None = None
    for heard in (operations, without_loops(probe, operations)):
        found = search(config, values, probe.inputs, Recorded(heard, taps["logits"], config.num_heads), clock)
        best = found if best is None or len(found.lines) > len(best.lines) else best
        if found.lost_at is None or len(heard) < len(operations):
            break
    assert best is not None
    return best
