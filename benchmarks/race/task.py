"""What a candidate is given, and what it gives back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.race.workloads import Workload

from transparity.config import TransformerConfig
from transparity_conformance.oracle.oracle import Arrays

Run = Callable[[], Any]
"""Does the whole task once and returns its result, computed: logits, tokens (the prompt's included), or the losses
before each step of training."""


@dataclass(frozen=True)
class Task:
    """A workload with its weights and inputs, and where to compute it."""

    workload: Workload
    parameters: Arrays
    inputs: Arrays
    folder: str
    """Where files that belong to the workload may be kept for other candidates."""
    device: str = "cpu"

    @property
    def config(self) -> TransformerConfig:
        return self.workload.config

    @property
    def tokens(self) -> Arrays:
        """What peers are called with: `tokens`, over which the logits are, and the `source` if there is one."""
        named = {"tokens": self.inputs[self.config.input_names[-1]]}
        return named | {"source": self.inputs["source"]} if self.config.has_encoder else named


Build = Callable[[Task], Run]


TRIALS = 3

WORK = 1e9
"""FLOPs, or bytes read: what a limit says its seconds of."""


@dataclass(frozen=True)
class Limit:
    """What the machine does at most, found anew at every call: the fastest of some runs, each with the FLOPs or the
    bytes that it is."""

    runs: Sequence[tuple[Run, float]]

    def __call__(self) -> float:
        """The seconds that the fastest would take for `WORK`."""
        return min(_quickest(run) / work for run, work in self.runs) * WORK


def _quickest(run: Run) -> float:
    """The shortest of a few calls, in seconds; the first, which wakes what has slept, is left out."""
    run()
    return min(_seconds(run) for _ in range(TRIALS))


def _seconds(run: Run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
