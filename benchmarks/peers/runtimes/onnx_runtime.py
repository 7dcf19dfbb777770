"""ONNX Runtime on the exported PyTorch peer."""

from __future__ import annotations

import os

import onnxruntime
from benchmarks.peers.runtimes.onnx_export import exported
from benchmarks.task import Run, Task


def build(task: Task) -> Run:
    """With all of its optimizations, on as many threads as the process has cores."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
    session = onnxruntime.InferenceSession(str(exported(task)), options, providers=["CPUExecutionProvider"])
    inputs = task.tokens
    return lambda: session.run(["logits"], inputs)[0]
