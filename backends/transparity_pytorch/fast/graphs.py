"""CUDA graphs: many small kernels, which take longer to launch than to run, are launched at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def recorded(change: Callable[[], None]) -> Callable[[], None]:
    """Record the kernels that `change` launches, without running them, and return a function that runs them.

    `change` changes tensors on the GPU in place, with shapes that do not depend on values. It must have run once with
    these tensors, so that libraries are initialized and everything is compiled. Other threads, such as JAX's, may use
    the GPU during the recording.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        change()
    return graph.replay


Run = Callable[..., Tensor]
"""A function `run(model, inputs)` that returns the result for inputs by name, of which some are None."""


class Replayed:
    """A forward pass on a GPU, whose kernels are recorded in the second call with the same shapes, then replayed.

    A recording has its own memory, and only one thread at a time may use it. If there is too little memory, kernels are
    launched one by one.
    """

    def __init__(self, run: Run) -> None:
        self.run = self.again = run
        self.shapes: dict[str, Any] = {}

    def __call__(self, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        shapes = {name: None if value is None else (value.shape, value.dtype) for name, value in inputs.items()}
        if shapes != self.shapes:
            self.shapes, self.again = shapes, self._record
            return self.run(model, inputs)
        return self.again(model, inputs)

    def _record(self, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        try:
            self.again = _recording(self.run, model, inputs)
        except torch.cuda.OutOfMemoryError:
            self.again = self.run
        return self.again(model, inputs)


def _recording(run: Run, model: Any, inputs: Mapping[str, Any]) -> Run:
    held = {name: None if value is None else value.clone() for name, value in inputs.items()}
    results: dict[str, Tensor] = {}

    def write() -> None:
        results["run"] = run(model, held)

    write()
    replay = recorded(write)

    def again(model: Any, inputs: Mapping[str, Any]) -> Tensor:
        for name, value in held.items():
            if value is not None:
                value.copy_(inputs[name])
        replay()
        return results["run"].clone()

    return again
