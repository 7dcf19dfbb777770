"""The contract of a candidate: it is built from a `Task`, and returns a function that does the task once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.workloads import Workload

from transparity.config import TransformerConfig
from transparity_conformance.oracle.oracle import Arrays

Run = Callable[[], Any]
"""Do the whole task once and return its computed result: logits, tokens (with those of the prompt), or the losses
before each step of training."""


@dataclass(frozen=True)
class Task:
    """A workload with its weights and inputs, and where to compute it."""

    workload: Workload
    parameters: Arrays
    inputs: Arrays
    folder: str
    """A folder for files of the workload that candidates share."""
    device: str = "cpu"

    @property
    def config(self) -> TransformerConfig:
        return self.workload.config

    @property
    def tokens(self) -> Arrays:
        """The arguments of a peer: `tokens`, of which it computes the logits, and the `source` if there is one."""
        named = {"tokens": self.inputs[self.config.input_names[-1]]}
        return named | {"source": self.inputs["source"]} if self.config.has_encoder else named


Build = Callable[[Task], Run]
