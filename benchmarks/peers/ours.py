"""The project's own implementations, and any other installed backend."""

from __future__ import annotations

import numpy as np
from benchmarks.workloads import TRAINING, Run, Task

from transparity.protocol import Forward
from transparity_conformance.oracle.backends import backend


def build(task: Task, name: str, mode: str) -> Run:
    forward = backend(name)(task.config, task.parameters, dtype=task.workload.dtype, device=task.device, mode=mode)
    return {"forward": _forward, "decode": _decode, "train": _train}[task.workload.kind](task, forward)


def _forward(task: Task, forward: Forward) -> Run:
    def run() -> object:
        logits = forward.logits(**task.inputs)
        forward.ready(logits)
        return logits

    return run


def _decode(task: Task, forward: Forward) -> Run:
    return lambda: forward.generate(task.inputs["tokens"], task.workload.new_tokens)


def _train(task: Task, forward: Forward) -> Run:
    batches = [task.inputs] * task.workload.steps
    return lambda: np.array(forward.train(batches, TRAINING)[0])
