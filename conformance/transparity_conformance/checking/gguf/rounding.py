"""The rounding error of a GGUF type: one step of its grid, without a change of order."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np

from transparity_conformance.report.comparison import share

KINDS = gguf.GGMLQuantizationType

FLOATS = {KINDS.F32: 0.0, KINDS.F64: 0.0, KINDS.F16: 2.0**-11, KINDS.BF16: 2.0**-8}
"""The relative error of rounding to nearest."""

LEAST = {KINDS.F16: 2.0**-25}
"""The absolute error of rounding near zero."""

OF_BITS = {
    2: (KINDS.Q2_K,),
    3: (KINDS.Q3_K,),
    4: (KINDS.Q4_0, KINDS.Q4_1, KINDS.Q4_K, KINDS.IQ4_NL, KINDS.IQ4_XS),
    5: (KINDS.Q5_0, KINDS.Q5_1, KINDS.Q5_K),
    6: (KINDS.Q6_K,),
    8: (KINDS.Q8_0,),
}
BITS = {kind: bits for bits, kinds in OF_BITS.items() for kind in kinds}
"""Bits of each number, besides the scale of its block."""

AT_ONCE = 2**16
"""The number of blocks sorted at once."""

OF_16 = dict.fromkeys((KINDS.Q2_K, KINDS.Q3_K, KINDS.Q6_K), 16)
"""Types in which 16 numbers share a scale; in others, 32 do."""


def step(right: np.ndarray, kind: Any) -> np.ndarray | None:
    """Return one step of the type's grid at every number of `right`; None for a type without its own grid.

    The grid has 2ᵇ points over the numbers that share a scale. Quantizers choose the scale with the least error, so a
    number at the end may be a step away. The root-mean-square error of a block stays below a step.

    The quantizers of llama.cpp leave at most 0.71 of a step in a row of random ±1, and otherwise 0.36. Another row's
    numbers differ by at least 1.1 steps in 2 bits.
    """
    if kind in FLOATS:
        return np.abs(right) * FLOATS[kind] + LEAST.get(kind, 0.0)
    if kind not in BITS:
        return None
    blocks = right.reshape(-1, OF_16.get(kind, 32))
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    # For a block whose scale is the least number of half precision; in some types it is a scale of scales.
    least = 2.0**-25 * 2 ** BITS[kind] * (64 if kind.name.endswith("_K") else 1)
    steps = 2 * largest / (2 ** BITS[kind] - 1) + least
    return np.broadcast_to(steps, blocks.shape).reshape(right.shape)


def worst_block(found: np.ndarray, right: np.ndarray, steps: np.ndarray, kind: Any) -> tuple[float, float]:
    """Return the root-mean-square error of the worst block, and its root-mean-square step.

    A block is quantized at once; for floats, it is a single number. Errors in one block would vanish in a longer part.
    """
    size = 1 if kind in FLOATS else gguf.GGML_QUANT_SIZES[kind][0]
    errors, allowed = _of_blocks(found - right, size), _of_blocks(steps, size)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(errors == 0, 0.0, errors / allowed)
    worst = int(np.argmax(np.where(np.isnan(shares), np.inf, shares)))
    return float(errors[worst]), float(allowed[worst])


def is_within(found: np.ndarray, right: np.ndarray, kind: Any) -> bool:
    """Return whether numbers can be `right` in a type with a grid, with one more rounding allowed."""
    steps = step(right, kind)
    if steps is None or found.shape != right.shape:
        return False
    return share(*worst_block(found, right, steps + np.spacing(np.abs(right)), kind)) <= 1


def disorder(found: np.ndarray, right: np.ndarray, kind: Any) -> float:
    """Return how far numbers that share a scale are in another order than in `right`.

    Quantization keeps the order, because it rounds all of them to one grid; the result is then 0. Equal numbers of
    `right` may be in any order.
    """
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
