"""What a candidate is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.race.workloads import Workload

from transparity.config import TransformerConfig
from transparity_conformance.oracle import Arrays

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


@dataclass(frozen=True)
class Limit:
    """A `Run` of which it is known how much it does: FLOPs, or bytes read."""

    run: Run
    work: float

    def __call__(self) -> Any:
        return self.run()
