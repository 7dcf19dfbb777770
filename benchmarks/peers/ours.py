"""The project's own implementations, and any other installed backend."""

import numpy as np
from benchmarks.workloads import TRAINING, Run, Task

from transparity_conformance.oracle.backends import backend


def build(task: Task, name: str, mode: str) -> Run:
    workload, inputs = task.workload, task.inputs
    forward = backend(name)(task.config, task.parameters, dtype=workload.dtype, device=task.device, mode=mode)

    def logits() -> object:
        result = forward.logits(**inputs)
        forward.ready(result)
        return result

    runs: dict[str, Run] = {
        "forward": logits,
        "decode": lambda: forward.generate(inputs["tokens"], workload.new_tokens),
        "train": lambda: np.array(forward.train([inputs] * workload.steps, TRAINING)[0]),
    }
    return runs[workload.kind]
