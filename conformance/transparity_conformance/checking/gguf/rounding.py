"""The rounding errors of GGUF types: at most one step of the type's grid, with numbers in the same order."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np

from transparity_conformance.report.comparison import share

KINDS = gguf.GGMLQuantizationType

FLOATS = {KINDS.F32: 0.0, KINDS.F64: 0.0, KINDS.F16: 2.0**-11, KINDS.BF16: 2.0**-8}
"""The relative rounding error of each type."""

LEAST = {KINDS.F16: 2.0**-25}
"""The largest absolute error of a number near zero that is rounded to each type."""

QUANTIZED = ("Q2_K", "Q3_K", "Q4_0", "Q4_1", "Q4_K", "IQ4_NL", "IQ4_XS", "Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0")

BITS = {KINDS[name]: int(name.removeprefix("I")[1]) for name in QUANTIZED}
"""The bits per number, without the block's scale."""

AT_ONCE = 2**16
"""The number of blocks that are sorted at once."""

OF_16 = dict.fromkeys((KINDS.Q2_K, KINDS.Q3_K, KINDS.Q6_K), 16)
"""Types in which 16 numbers share a scale, instead of 32."""


def step(right: np.ndarray, kind: Any) -> np.ndarray | None:
    """Return one step of the type's grid at every number of `right`; None for an unknown grid.

    The grid has 2ᵇ points for the numbers that share a scale. Quantizers choose the scale with the smallest error, so
    the largest number may be off by a step. The root-mean-square error of a block is still below one step.

    With llama.cpp's quantizers, this error is at most 0.71 steps for a row of random ±1, and 0.36 steps otherwise. With
    another row's numbers, it is at least 1.1 steps in 2 bits.
    """
    if kind in FLOATS:
        return np.abs(right) * FLOATS[kind] + LEAST.get(kind, 0.0)
    if kind not in BITS:
        return None
    blocks = right.reshape(-1, OF_16.get(kind, 32))
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    # The error if the scale of a block is the smallest number in half precision. In `_K` types, scales are also scaled.
    least = 2.0**-25 * 2 ** BITS[kind] * (64 if kind.name.endswith("_K") else 1)
    steps = 2 * largest / (2 ** BITS[kind] - 1) + least
    return np.broadcast_to(steps, blocks.shape).reshape(right.shape)


def worst_block(found: np.ndarray, right: np.ndarray, steps: np.ndarray, kind: Any) -> tuple[float, float]:
    """Return the root-mean-square error of the worst block, and the root-mean-square step of that block. A block's
    numbers are quantized together; for floats, a block is one number. In longer parts, the error of a single block
    would vanish in the mean."""
    size = 1 if kind in FLOATS else gguf.GGML_QUANT_SIZES[kind][0]
    errors, allowed = _of_blocks(found - right, size), _of_blocks(steps, size)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(errors == 0, 0.0, errors / allowed)
    worst = int(np.argmax(np.where(np.isnan(shares), np.inf, shares)))
    return float(errors[worst]), float(allowed[worst])


def is_within(found: np.ndarray, right: np.ndarray, kind: Any) -> bool:
    """Return whether numbers equal `right` within one step of the type and one rounding to float32."""
    steps = step(right, kind)
    if steps is None or found.shape != right.shape:
        return False
    return share(*worst_block(found, right, steps + np.spacing(np.abs(right)), kind)) <= 1


def disorder(found: np.ndarray, right: np.ndarray, kind: Any) -> float:
    """Return how much the order of numbers that share a scale differs from their order in `right`; 0 for equal orders.
    Quantization keeps the order, because it rounds these numbers to one grid. Equal numbers in `right` may have any
    order."""
    if kind not in BITS:
        return 0.0
    size, worst = OF_16.get(kind, 32), 0.0
    ours, theirs = right.reshape(-1, size), found.reshape(-1, size)
    for start in range(0, len(ours), AT_ONCE):
        part = theirs[start : start + AT_ONCE]
        order = np.lexsort((part, ours[start : start + AT_ONCE]))
        ascending = np.take_along_axis(part, order, axis=1)
        worst = max(worst, float((np.maximum.accumulate(ascending, axis=1) - ascending).max()))
    return worst


def _of_blocks(values: np.ndarray, size: int) -> np.ndarray:
    return np.sqrt(np.mean(np.square(values.reshape(-1, size), dtype=np.float64), axis=-1))
