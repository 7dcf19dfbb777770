"""Export the PyTorch peer as an ONNX file, in a process of its own, so that the runtimes need no PyTorch.

`python -m benchmarks.peers.runtimes.onnx_export FOLDER`
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.task import Task

FILE = "model.onnx"


def exported(task: Task) -> Path:
    """The file, written by the first call; candidates are built one after the other."""
    path = Path(task.folder, FILE)
    if not path.exists():
        command = [sys.executable, "-m", "benchmarks.peers.runtimes.onnx_export", task.folder]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise RuntimeError(f"it could not be exported: {made.stderr.strip().splitlines()[-1]}")
    return path


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


if __name__ == "__main__":
    export(sys.argv[1])
