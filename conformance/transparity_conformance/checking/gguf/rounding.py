"""The rounding errors of GGUF types. Rounding changes a number by at most one grid step, and preserves the order of
numbers that share a scale."""

from typing import Any

import gguf
import numpy as np

from transparity_conformance.report.comparison import share

KINDS = gguf.GGMLQuantizationType

FLOATS = {KINDS.F32: 0.0, KINDS.F64: 0.0, KINDS.F16: 2.0**-11, KINDS.BF16: 2.0**-8}
"""The largest relative rounding error of each float type."""

LEAST = {KINDS.F16: 2.0**-25}
"""The largest absolute rounding error of numbers near zero, in float types with a small range."""

QUANTIZED = ("Q2_K", "Q3_K", "Q4_0", "Q4_1", "Q4_K", "IQ4_NL", "IQ4_XS", "Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0")

BITS = {KINDS[name]: int(name.removeprefix("I")[1]) for name in QUANTIZED}
"""The bits per number, not counting the scale of the block."""

AT_ONCE = 2**16
"""The number of blocks to sort at once, to limit memory."""

OF_16 = dict.fromkeys((KINDS.Q2_K, KINDS.Q3_K, KINDS.Q6_K), 16)
"""Types in which 16 numbers share a scale. In other types, 32 numbers share a scale."""


def step(right: np.ndarray, kind: Any) -> np.ndarray | None:
    """Return the grid step of the type at every number of `right`; None for a type with an unknown grid. Numbers with a
    shared scale are rounded to a grid of 2ᵇ points for b bits. With llama.cpp's quantizers, a block's root-mean-square
    error is at most 0.71 steps for rows of random ±1, and 0.36 steps for other rows. If a block contains the values of
    another row, the error is at least 1.1 steps in a type of 2 bits."""
    if kind in FLOATS:
        return np.abs(right) * FLOATS[kind] + LEAST.get(kind, 0.0)
    if kind not in BITS:
        return None
    blocks = right.reshape(-1, OF_16.get(kind, 32))
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    # Half-precision scales are at least 2⁻²⁵, which limits the step of small blocks. `_K` types also scale the scales.
    least = 2.0**-25 * 2 ** BITS[kind] * (64 if kind.name.endswith("_K") else 1)
    steps = 2 * largest / (2 ** BITS[kind] - 1) + least
    return np.broadcast_to(steps, blocks.shape).reshape(right.shape)


def worst_block(found: np.ndarray, right: np.ndarray, steps: np.ndarray, kind: Any) -> tuple[float, float]:
    """Return the root-mean-square error of the worst block, and the root-mean-square step of this block. In float
    types, each number is a block. A mean over several blocks would hide one wrong block."""
    size = 1 if kind in FLOATS else gguf.GGML_QUANT_SIZES[kind][0]
    errors, allowed = _of_blocks(found - right, size), _of_blocks(steps, size)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(errors == 0, 0.0, errors / allowed)
    worst = int(np.argmax(np.where(np.isnan(shares), np.inf, shares)))
    return float(errors[worst]), float(allowed[worst])


def is_within(found: np.ndarray, right: np.ndarray, kind: Any) -> bool:
    """Return whether each block's error is at most one step of the type, plus one rounding to float32."""
    steps = step(right, kind)
    if steps is None or found.shape != right.shape:
        return False
    return share(*worst_block(found, right, steps + np.spacing(np.abs(right)), kind)) <= 1


def disorder(found: np.ndarray, right: np.ndarray, kind: Any) -> float:
    """Return by how much numbers with a shared scale violate their order in `right`. Rounding to one grid preserves
    this order. Numbers that are equal in `right` may have any order."""
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
