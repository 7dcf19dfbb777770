"""What the machine can do at most, by what each library does best: one matrix product, one pass over memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from benchmarks.race.task import Limit, Run, Task

PRODUCTS = ((1024, 512, 512), (1024, 512, 2048), (1024, 768, 3072), (1024, 1024, 1024), (2048, 2048, 2048))
"""(m, k, n) of the matrix products that are tried; the fastest is the limit."""

MATRIX = (8192, 8192)
"""Of the product with a vector: 256 MB in float32, far more than a cache holds."""

Multiplication = Callable[[np.ndarray, np.ndarray], Run]
"""Makes a `Run` of two matrices."""


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
