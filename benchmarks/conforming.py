"""The gate: a forward pass is timed only after the very same one was held to the oracle."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from benchmarks.cases import Case, Workload

from transparity.config import TransformerConfig
from transparity.protocol import Forward
from transparity_conformance.oracle.backends import backend
from transparity_conformance.oracle.oracle import Arrays, Oracle, forward_oracle
from transparity_conformance.oracle.probes import probe_parameters
from transparity_conformance.report.comparison import Evidence, as_numbers, difference, dtype_name

Run = Callable[[], Any]

CALLS = 2
"""How many calls are held to the oracle: the first compiles, the second shows that the first left nothing behind."""


POINTS = 1
"""Where the reference's own error is measured: a preset at its full size has so many logits that the largest error of
one point is no luck, and its neighbours would take minutes."""


@functools.lru_cache(maxsize=1)
def parameters_of(preset: str, config: TransformerConfig) -> Arrays:
    """Weights that show mistakes; one preset's are kept, for its workloads follow each other."""
    return probe_parameters(config)


def inputs_of(workload: Workload) -> Arrays:
    """Tokens by name, none of them padding: every token that is counted is one."""
    config, random = workload.config, np.random.default_rng(0)
    inputs = {}
    for name in config.input_names:
        size = config.stack_vocab_size(config.input_stack(name))
        tokens = np.setdiff1d(np.arange(size), [] if config.pad_id is None else [config.pad_id])
        inputs[name] = random.choice(tokens, (workload.batch, workload.length))
    return inputs


@functools.lru_cache(maxsize=1)
def oracle_of(workload: Workload) -> Oracle:
    """What the reference says of a workload in float64; one is kept, for its cases follow each other."""
    config = workload.config
    parameters = parameters_of(workload.preset, config)
    return forward_oracle(config, parameters, inputs_of(workload), neighbours=POINTS)


def forward_of(case: Case) -> Forward:
    """The model that is checked and then timed."""
    config = case.workload.config
    parameters = parameters_of(case.preset, config)
    return backend(case.backend)(config, parameters, dtype=case.dtype, device=case.device, mode=case.mode)


def ready_run(forward: Forward, inputs: Mapping[str, np.ndarray]) -> Run:
    """The forward pass by its fast path, from tokens in NumPy until the logits are computed on their device: what is
    checked, and what is timed."""

    def run() -> Any:
        result = forward.logits(**inputs)
        forward.ready(result)
        return result

    return run


def conformity(case: Case, run: Run) -> Evidence:
    """The worst of the first calls of `run`, held to the oracle."""
    oracle = oracle_of(case.workload)
    budget = oracle.budget("logits", case.dtype)
    evidence = [_held(case, run(), oracle.expected["logits"], budget) for _ in range(CALLS)]
    return max(evidence, key=lambda item: item.share)


def _held(case: Case, logits: Any, expected: np.ndarray, budget: float) -> Evidence:
    if (dtype := dtype_name(logits)) != case.dtype:
        return _evidence(case, np.inf, budget, f"the logits are {dtype}")
    return _evidence(case, difference(as_numbers(logits), expected), budget)


def _evidence(case: Case, error: float, budget: float, note: str = "") -> Evidence:
    return Evidence("benchmark.forward", case.subject, str(case.workload), "logits", error, budget, note=note)
