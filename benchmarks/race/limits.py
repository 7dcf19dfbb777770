"""The machine's limits, measured in several libraries: the fastest matrix product, and the fastest read of memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.race.timing import WORK, seconds
from benchmarks.workloads import Run, Task

PRODUCTS = ((1024, 512, 512), (1024, 512, 2048), (1024, 768, 3072), (1024, 1024, 1024), (2048, 2048, 2048))
"""Sizes (m, k, n) of the timed matrix products; the limit is the highest rate (FLOPs per second)."""

PRODUCTS_ON_A_GPU = ((4096, 4096, 4096), (8192, 8192, 8192))
"""The sizes on a GPU, where smaller products would leave cores idle."""

MATRIX, MATRIX_ON_A_GPU = (8192, 8192), (16384, 32768)
"""Shapes of matrices that are far larger than the caches: in float32, 256 MB on a CPU and 2 GB on a GPU."""

TRIALS = 3


@dataclass(frozen=True)
class Limit:
    """A `Run` that measures a limit of the machine. `runs` has several products, each with its FLOPs or bytes."""

    runs: Sequence[tuple[Run, float]]
    device: str = "cpu"

    def __call__(self) -> float:
        """Time all products. Return the time that the fastest product would take for `WORK` FLOPs or bytes."""
        return min(_quickest(run, self.device) / work for run, work in self.runs) * WORK


def _quickest(run: Run, device: str) -> float:
    run()
    return min(seconds(run, device) for _ in range(TRIALS))


def product(task: Task, library: str) -> Run:
    """Return a run that measures the speed of a library's fastest matrix product, in the workload's precision."""
    random = np.random.default_rng(0)
    runs = []
    for m, k, n in PRODUCTS if task.device == "cpu" else PRODUCTS_ON_A_GPU:
        a, b = (random.normal(size=shape).astype(np.float32) for shape in ((m, k), (k, n)))
        runs.append((MULTIPLICATIONS[library](task, a, b), 2 * m * k * n))
    return Limit(runs, task.device)


def bandwidth(task: Task, library: str) -> Run:
    """Return a run that measures a library's memory bandwidth: a matrix-vector product reads each element once."""
    matrix = np.ones(MATRIX if task.device == "cpu" else MATRIX_ON_A_GPU, np.float32)
    run = MULTIPLICATIONS[library](task, matrix, np.ones(matrix.shape[1], np.float32))
    return Limit([(run, matrix.nbytes)], task.device)


def _torch(task: Task, a: np.ndarray, b: np.ndarray) -> Run:
    import torch

    dtype = getattr(torch, task.workload.dtype)
    left, right = (torch.as_tensor(x).to(task.device, dtype) for x in (a, b))

    def run() -> Any:
        found = left @ right
        if task.device == "cuda":
            torch.cuda.synchronize()
        return found

    return run


def _packed(task: Task, a: np.ndarray, b: np.ndarray) -> Run:
    """Return a run of oneDNN's product; the right matrix is packed into oneDNN's layout before the run."""
    import torch

    left, right = (torch.as_tensor(x).to(getattr(torch, task.workload.dtype)) for x in (a, b))
    packed = torch.ops.mkldnn._reorder_linear_weight(right.T.contiguous())
    return lambda: torch.ops.mkldnn._linear_pointwise(left, packed, None, "none", [], "")


def _jax(task: Task, a: np.ndarray, b: np.ndarray) -> Run:
    import jax
    import jax.numpy as jnp

    multiply = jax.jit(jnp.matmul)
    left, right = (jnp.asarray(x, task.workload.dtype) for x in (a, b))
    return lambda: jax.block_until_ready(multiply(left, right))


MULTIPLICATIONS: dict[str, Callable[[Task, np.ndarray, np.ndarray], Run]] = {
    "torch": _torch,
    "packed": _packed,
    "numpy": lambda task, a, b: lambda: a @ b,
    "jax": _jax,
}
