"""Tolerances of the values of a program, from its measured rounding errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from transparity.config import EXACT_MASK_BELOW
from transparity_conformance.listening.program import Change, Program, Values
from transparity_conformance.matching.values import HUGE, numbers_of
from transparity_conformance.oracle.budgets import NEIGHBOURS, RULES, epsilon


def shares(
    program: Program, dtype: str, changes: Mapping[int, Change] | None = None, seed: int = 0
) -> dict[int, float]:
    """Measure the rounding of each value of a program, relative to its largest number.

    The program runs at neighboring points in float64 and in `dtype`. Constants computed when the model was built, such
    as rotation frequencies, differ by the rounding of a power: |ln x| ulps.
    """
    rule, ulp = RULES[dtype], epsilon(dtype)
    noise: dict[int, float] = {}
    for exact, rounded in neighbours(program, dtype, changes, seed):
        for index, value in exact.items():
            if value.is_floating_point() or value.is_complex():
                noise[index] = max(noise.get(index, 0.0), _apart(value, rounded[index]))
    return {index: rule.budget(error, ulp, 1.0) for index, error in noise.items()}


def neighbours(
    program: Program, dtype: str, changes: Mapping[int, Change] | None = None, seed: int = 0
) -> Iterator[tuple[Values, Values]]:
    """Yield the values of a program at neighboring points, in float64 and in `dtype`."""
    import torch

    precision, ulp = getattr(torch, dtype), epsilon(dtype)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(NEIGHBOURS):
        near = {
            index: moved(value, ulp, generator, is_learned=index in program.parameters)
            for index, value in program.given.items()
        }
        points = {
            index: value if index in program.parameters else program.given[index] for index, value in near.items()
        }
        yield program.run(changes, points), program.run(changes, near, precision)


def moved(value: Any, ulp: float, generator: Any, *, is_learned: bool) -> Any:
    """Return a tensor with each number moved by up to an ulp or, if not learned, by the rounding of a power."""
    import torch

    if not value.is_floating_point():
        return value
    turned = torch.rand(value.shape, generator=generator, dtype=torch.float64) * 2 - 1
    size = 1.0 if is_learned else 1 + value.abs().clamp(1e-30, HUGE).log().abs()
    return value * (1 + ulp * size * turned)


def _apart(exact: Any, rounded: Any) -> float:
    """Return the largest difference relative to the largest number, except masked scores."""
    a, b = numbers_of(exact), numbers_of(rounded)
    if a is None or b is None or a.shape != b.shape or not a.size:
        return 0.0
    scale = np.abs(a).max()
    if scale >= -EXACT_MASK_BELOW:
        plain = (np.abs(a) < HUGE) & (a > EXACT_MASK_BELOW)
        a, b = a[plain], b[plain]
        scale = np.abs(a).max(initial=0.0)
    return float(np.abs(a - b).max(initial=0.0) / scale) if scale else 0.0
