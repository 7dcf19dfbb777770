"""OpenVINO on the exported PyTorch peer."""

from __future__ import annotations

import os

import openvino
from benchmarks.peers.runtimes.onnx_export import exported
from benchmarks.task import Run, Task

PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}


def build(task: Task) -> Run:
    """For the least latency, in the workload's precision: by itself it takes bfloat16 where the processor has it."""
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": int(os.environ["OMP_NUM_THREADS"]),
        "INFERENCE_PRECISION_HINT": PRECISIONS[task.workload.dtype],
    }
    model = openvino.Core().compile_model(str(exported(task)), "CPU", settings)
    inputs = task.tokens
    return lambda: model(inputs)[0]
