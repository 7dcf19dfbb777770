"""CUDA graphs: many small kernels, which take longer to launch than to run, are launched at once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def recorded(change: Callable[[], None]) -> Callable[[], None]:
    """Record the kernels that `change` launches, without running them, and return a function that runs them.

    `change` changes tensors on the GPU in place, with shapes that do not depend on values. `change` must have run once
    with these tensors, so that libraries are initialized and everything is compiled. Other threads, such as JAX's, may
    use the GPU during the recording.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        change()
    return graph.replay


Run = Callable[[Any, dict[str, Any]], Tensor]
"""A function `run(model, inputs)` that returns the result for inputs by name, some of which are not tensors."""

Prepare = Callable[[Any, dict[str, Any]], tuple[Callable[[], None], Callable[[], Tensor]]]
"""A function `prepare(model, inputs)` that returns two functions: one to record, and one that returns the result after
the recording was replayed."""


class Replayed:
    """A `run` on a GPU that records its kernels in the second consecutive call with the same shapes, then replays them.

    A recording has its own memory, and only one thread at a time may use it. If there is too little memory, kernels are
    launched one by one.
    """

    def __init__(self, run: Run, prepare: Prepare | None = None) -> None:
        self.run = self.again = run
        self.prepare = prepare or functools.partial(_whole, run)
        self.shapes: dict[str, Any] = {}

    def __call__(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        shapes = {name: (it.shape, it.dtype) if isinstance(it, Tensor) else it for name, it in inputs.items()}
        if shapes != self.shapes:
            self.shapes, self.again = shapes, self._record
            return self.run(model, inputs)
        return self.again(model, inputs)

    def _record(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        try:
            self.again = _recording(self.prepare, model, inputs)
        except torch.cuda.OutOfMemoryError:
            self.again = self.run
        return self.again(model, inputs)


def _whole(run: Run, model: Any, inputs: dict[str, Any]) -> tuple[Callable[[], None], Callable[[], Tensor]]:
    results: dict[str, Tensor] = {}

    def write() -> None:
        results["run"] = run(model, inputs)

    def copied() -> Tensor:
        return results["run"].clone()

    return write, copied


def _recording(prepare: Prepare, model: Any, inputs: dict[str, Any]) -> Run:
    held = {name: value.clone() if isinstance(value, Tensor) else value for name, value in inputs.items()}
    change, result = prepare(model, held)
    change()
    replay = recorded(change)

    def again(model: Any, inputs: dict[str, Any]) -> Tensor:
        for name, value in held.items():
            if isinstance(value, Tensor):
                value.copy_(inputs[name])
        replay()
        return result()

    return again
