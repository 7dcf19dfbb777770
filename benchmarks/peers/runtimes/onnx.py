"""The model of `torch.fused`, exported to ONNX and run by ONNX Runtime, OpenVINO, or ONNX's reference implementation.

`python -m benchmarks.peers.runtimes.onnx FOLDER` exports the model in a separate process, to keep PyTorch out of the
timed process.
"""

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.workloads import Run, Task

FILE = "model.onnx"

PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}


def exported(task: Task) -> str:
    path = Path(task.folder, FILE)
    if not path.exists():
        command = [sys.executable, "-m", "benchmarks.peers.runtimes.onnx", task.folder]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise RuntimeError(f"the export failed: {made.stderr.strip().splitlines()[-1]}")
    return str(path)


def export(folder: str) -> None:
    """Write the ONNX file in float32, for exactly the shapes of the workload's inputs."""
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
    """Build the run with ONNX's reference implementation, which computes one operator after another in NumPy."""
    from onnx.reference import ReferenceEvaluator

    session, inputs = ReferenceEvaluator(exported(task)), task.tokens
    return lambda: session.run(["logits"], inputs)[0]


def onnx_runtime(task: Task) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
    session = onnxruntime.InferenceSession(exported(task), options, providers=["CPUExecutionProvider"])
    inputs = task.tokens
    return lambda: session.run(["logits"], inputs)[0]


def openvino(task: Task) -> Run:
    """Build the run with OpenVINO, for low latency and in the workload's precision (the default may be bfloat16)."""
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
