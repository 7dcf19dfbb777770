"""The capability `resized`: images of another size, for which a model interpolates its table of positions."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.capabilities.capability import ForwardPass, Requests, Way, kept_in
from transparity_conformance.capabilities.faults import SimulatedFault
from transparity_conformance.capabilities.other_logits import LogitsRequest, Part, of_logits
from transparity_conformance.oracle.budgets import WIDE
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe
from transparity_numpy.transformer import transformer

ROWS, TABLE = 2, "encoder.position_embedding.weight"

Resampling = Callable[[int, int], np.ndarray]
"""A function that returns the matrix (new, old), which interpolates the `old` entries of an axis at `new` positions."""


def cubic(a: float, x: np.ndarray) -> np.ndarray:
    """Return the kernel of bicubic interpolation at `x` with the free parameter `a` (Keys 1981 chooses −½)."""
    x = np.abs(x)
    near, far = (a + 2) * x**3 - (a + 3) * x**2 + 1, a * (x**3 - 5 * x**2 + 8 * x - 4)
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def linear(x: np.ndarray) -> np.ndarray:
    return np.maximum(0, 1 - np.abs(x))


def resampling(kernel: Callable[[np.ndarray], np.ndarray], new: int, old: int, *, corners: bool = False) -> np.ndarray:
    """Return the matrix (new, old) that interpolates with `kernel`. Positions beyond a border use the outermost entry.

    With `corners`, the centers of the first and last entries stay in place; otherwise, their outer edges stay in place.
    """
    index, matrix = np.arange(new), np.zeros((new, old))
    at = index * (old - 1) / (new - 1) if corners else (index + 0.5) * old / new - 0.5
    for step in (-1, 0, 1, 2):
        near = np.floor(at).astype(int) + step
        np.add.at(matrix, (index, np.clip(near, 0, old - 1)), kernel(at - near))
    return matrix


CUBIC = functools.partial(cubic, -0.75)
BICUBIC = functools.partial(resampling, CUBIC)
"""The bicubic interpolation of PyTorch and `transformers`."""


def without_aliasing(new: int, old: int) -> np.ndarray:
    """Return the matrix (new, old) that interpolates like PyTorch with `antialias=True` for `new` ≤ `old`."""
    scale = old / new
    matrix = cubic(-0.5, ((np.arange(old) + 0.5) - scale * (np.arange(new)[:, None] + 0.5)) / scale)
    return matrix / matrix.sum(axis=1, keepdims=True)


Grid = tuple[int, int]


def _interpolated(probe: Probe, grid: Grid, matrix: Resampling = BICUBIC) -> Arrays:
    own, table = probe.config.position_offset + probe.config.class_token, probe.exact[TABLE]
    old = math.isqrt(len(table) - own)
    down, across = (matrix(new, old) for new in grid)
    patches = np.einsum("ri,cj,ijd->rcd", down, across, table[own:].reshape(old, old, -1))
    return {**probe.exact, TABLE: np.concatenate([table[:own], patches.reshape(-1, table.shape[1])])}


_others: dict[str, Callable[[Probe, Grid], Arrays]] = {
    "positions are interpolated bilinearly, not bicubically": functools.partial(
        _interpolated, matrix=functools.partial(resampling, linear)
    ),
    "positions are interpolated with the cubic kernel for a = −0.5, not a = −0.75": functools.partial(
        _interpolated, matrix=functools.partial(resampling, functools.partial(cubic, -0.5))
    ),
    "positions are interpolated bicubically between the centers of the corner patches, not between their edges": (
        functools.partial(_interpolated, matrix=functools.partial(resampling, CUBIC, corners=True))
    ),
    "height and width are swapped when positions are interpolated": lambda probe, grid: _interpolated(
        probe, grid[::-1]
    ),
    "positions are interpolated for a square image with the same number of patches": lambda probe, grid: _interpolated(
        probe, (math.isqrt(math.prod(grid)),) * 2
    ),
}
FAULTS = [SimulatedFault("positions-resized", says, simulate) for says, simulate in _others.items()]
"""Faults of interpolation. For a grid of patches, `simulate` returns the parameters with which the reference acts like
the faulty port."""


def _grids(config: TransformerConfig) -> list[Grid]:
    """Return two grids that are not square and not smaller than the model's grid, and a smaller square grid.

    All grids have a square number of patches, because the reference has configurations only for square numbers. A port
    that computes height and width as the square root of the number of patches returns wrong results.
    """
    own = math.isqrt(config.max_length - config.class_token)
    low = math.isqrt(own - 1) + 1
    return [(low**2, (low + 1) ** 2), ((low + 1) ** 2, low**2), *[(own - 1, own - 1)] * (own > 1)]


@kept_in(0)
def _resized(probe: Probe, grid: Grid) -> LogitsRequest:
    height, width = (number * (probe.config.patch_size or 1) for number in grid)
    shape = ROWS, probe.config.image_channels, height, width
    pixels = np.random.default_rng(grid).normal(size=shape).astype(np.float32)
    config = dataclasses.replace(probe.config, max_length=math.prod(grid) + probe.config.class_token)
    whole = dataclasses.replace(
        probe, config=config, parameters=_interpolated(probe, grid), inputs={"pixels": pixels}, kept=None
    )

    def simulate(fault: SimulatedFault) -> np.ndarray:
        return transformer(config, fault.simulate(probe, grid), pixels=pixels)

    def conventions() -> Iterator[np.ndarray]:
        if math.prod(grid) < probe.config.max_length - probe.config.class_token:
            yield transformer(config, _interpolated(probe, grid, without_aliasing), pixels=pixels)

    part = Part(np.arange(ROWS), slice(None), whole)
    says = f"images of {height} × {width} pixels"
    return LogitsRequest(says, whole, (part,), simulate, (pixels,), conventions=conventions)


def _requests(forward: ForwardPass) -> Requests:
    grids = enumerate(_grids(forward.first.config))
    return {f"resized.{index}": _resized(forward.first, grid) for index, grid in grids}


def _why_not(probe: Probe, dtype: str) -> str:
    if not probe.config.reads_pixels:
        return "the model reads no images"
    if probe.config.positions != "learned":
        return "the model has no learned positions to interpolate"
    return "the reference would take too long in a model of this size" if probe.is_large else ""


RESIZED = of_logits(
    "resized",
    Way("resized", _requests, FAULTS),
    purpose="the output for images of other sizes. The table of positions is interpolated bicubically (a = −0.75), "
    "and keeps its outer edges in place",
    why_not=_why_not,
    dtypes=WIDE,
    file="resized.safetensors",
    tensors=lambda request, probe: {"pixels": request.given[0]},
    applies=lambda config: config.reads_pixels,
    sizes=None,
)
