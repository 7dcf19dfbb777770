"""ONNX's own reference, operator by operator in NumPy, on the exported PyTorch peer."""

from __future__ import annotations

from benchmarks.peers.runtimes.onnx_export import exported
from benchmarks.task import Run, Task
from onnx.reference import ReferenceEvaluator


def build(task: Task) -> Run:
    """As it comes."""
    session, inputs = ReferenceEvaluator(str(exported(task))), task.tokens
    return lambda: session.run(["logits"], inputs)[0]
