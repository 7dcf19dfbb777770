"""The limits of the machine: the fastest matrix product of each library, or its fastest pass over memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.task import Run, Task

PRODUCTS = ((1024, 512, 512), (1024, 512, 2048), (1024, 768, 3072), (1024, 1024, 1024), (2048, 2048, 2048))
"""(m, k, n) of the matrix products that are tried; the fastest is the limit."""

MATRIX = (8192, 8192)
"""The matrix that is multiplied by a vector: 256 MB in float32, far more than a cache holds."""

TRIALS = 3

WORK = 1e9
"""The FLOPs, or bytes read, that the seconds of a limit are of."""

Multiplication = Callable[[np.ndarray, np.ndarray], Run]


@dataclass(frozen=True)
class Limit:
    """The fastest of some runs, found anew at every call; each run comes with its FLOPs or bytes."""

    runs: Sequence[tuple[Run, float]]

    def __call__(self) -> float:
        """The seconds that the fastest run would take for `WORK`."""
        return min(_quickest(run) / work for run, work in self.runs) * WORK


def _quickest(run: Run) -> float:
    """The shortest of a few calls, in seconds, after one that is not timed."""
    run()
    return min(seconds(run) for _ in range(TRIALS))


def seconds(run: Run) -> float:
    """The duration of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def products(multiplication: Multiplication) -> Limit:
    """All of `PRODUCTS`."""
    random = np.random.default_rng(0)
    runs = []
    for m, k, n in PRODUCTS:
        a, b = (random.normal(size=shape).astype(np.float32) for shape in ((m, k), (k, n)))
        runs.append((multiplication(a, b), 2 * m * k * n))
    return Limit(runs)


def torch_product(task: Task) -> Run:
    """PyTorch's, in the workload's precision."""
    return products(lambda a, b: _torch_multiplication(task, a, b))


def torch_product_packed(task: Task) -> Run:
    """PyTorch's by oneDNN, the right matrix packed once."""
    import torch

    def multiplication(a: np.ndarray, b: np.ndarray) -> Run:
        left, right = (torch.as_tensor(x).to(getattr(torch, task.workload.dtype)) for x in (a, b))
        packed = torch.ops.mkldnn._reorder_linear_weight(right.T.contiguous())
        return lambda: torch.ops.mkldnn._linear_pointwise(left, packed, None, "none", [], "")

    return products(multiplication)


def _torch_multiplication(task: Task, a: np.ndarray, b: np.ndarray) -> Run:
    import torch

    dtype = getattr(torch, task.workload.dtype)
    left, right = (torch.as_tensor(x).to(task.device, dtype) for x in (a, b))

    def run() -> Any:
        product = left @ right
        if task.device == "cuda":
            torch.cuda.synchronize()
        return product

    return run


def numpy_product(task: Task) -> Run:
    """NumPy's, in float32."""
    return products(lambda a, b: lambda: a @ b)


def jax_product(task: Task) -> Run:
    """JAX's, jitted, in the workload's precision."""
    import jax
    import jax.numpy as jnp

    multiply = jax.jit(jnp.matmul)

    def multiplication(a: np.ndarray, b: np.ndarray) -> Run:
        left, right = (jnp.asarray(x, task.workload.dtype) for x in (a, b))
        return lambda: jax.block_until_ready(multiply(left, right))

    return products(multiplication)


def torch_bandwidth(task: Task) -> Run:
    """A large matrix in PyTorch times a vector: each number is read once."""
    run = _torch_multiplication(task, np.ones(MATRIX, np.float32), np.ones(MATRIX[1:], np.float32))
    return Limit([(run, MATRIX[0] * MATRIX[1] * (2 if task.workload.dtype == "bfloat16" else 4))])


def numpy_bandwidth(task: Task) -> Run:
    """The same in NumPy."""
    matrix, vector = np.ones(MATRIX, np.float32), np.ones(MATRIX[1], np.float32)
    return Limit([(lambda: matrix @ vector, matrix.nbytes)])


def jax_bandwidth(task: Task) -> Run:
    """The same in JAX."""
    import jax
    import jax.numpy as jnp

    multiply = jax.jit(jnp.matmul)
    matrix, vector = jnp.ones(MATRIX, jnp.float32), jnp.ones(MATRIX[1], jnp.float32)
    return Limit([(lambda: jax.block_until_ready(multiply(matrix, vector)), MATRIX[0] * MATRIX[1] * 4)])
