"""The exported PyTorch peer in ONNX Runtime, in OpenVINO, and in ONNX's own reference.

`python -m benchmarks.peers.runtimes.onnx FOLDER` exports it in a separate process, so that the runtimes need no
PyTorch.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.workloads import Run, Task

FILE = "model.onnx"

PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}


def exported(task: Task) -> str:
    """Return the file, written by the first call; candidates are built one after another."""
    path = Path(task.folder, FILE)
    if not path.exists():
        command = [sys.executable, "-m", "benchmarks.peers.runtimes.onnx", task.folder]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise RuntimeError(f"it could not be exported: {made.stderr.strip().splitlines()[-1]}")
    return str(path)


def export(folder: str) -> None:
    """Write the file, in float32 and fixed to the shapes of the workload."""
    import torch
    from benchmarks.oracles import read_task
    from benchmarks.peers.torch.fused import fused_model_of
    from benchmarks.peers.torch.tasks import tensors

    task = read_task(Path(folder))
    inputs = tensors(task)
    with torch.inference_mode():
        torch.onnx.export(
            fused_model_of(task).float(),
            kwargs=inputs,
            f=Path(folder, FILE),
            input_names=list(inputs),
            output_names=["logits"],
            dynamo=True,
            external_data=True,
            verbose=False,
        )


def reference(task: Task) -> Run:
    """Build ONNX's own reference, operator by operator in NumPy."""
    from onnx.reference import ReferenceEvaluator

    session, inputs = ReferenceEvaluator(exported(task)), task.tokens
    return lambda: session.run(["logits"], inputs)[0]


def onnx_runtime(task: Task) -> Run:
    """Build ONNX Runtime with all optimizations, on as many threads as the process has cores."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
    session = onnxruntime.InferenceSession(exported(task), options, providers=["CPUExecutionProvider"])
    inputs = task.tokens
    return lambda: session.run(["logits"], inputs)[0]


def openvino(task: Task) -> Run:
    """Build OpenVINO for the least latency, in the workload's precision; its default is bfloat16 where the processor
    has it."""
    import openvino

    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": int(os.environ["OMP_NUM_THREADS"]),
        "INFERENCE_PRECISION_HINT": PRECISIONS[task.workload.dtype],
    }
    model = openvino.Core().compile_model(exported(task), "CPU", settings)
    inputs = task.tokens
    return lambda: model(inputs)[0]


if __name__ == "__main__":
    export(sys.argv[1])
