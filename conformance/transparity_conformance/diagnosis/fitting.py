"""Faults with a number in them: the number is fitted first, and then named."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.diagnosis.fault import Fault, Hypothesis
from transparity_conformance.diagnosis.faults import output_head as heads
from transparity_conformance.diagnosis.faults import positions
from transparity_conformance.diagnosis.faults.attention import named_scale, other_cap, scaled
from transparity_conformance.diagnosis.faults.embedding import based
from transparity_conformance.diagnosis.faults.embedding import scaled as embedding_scaled
from transparity_conformance.diagnosis.faults.normalization import other_eps
from transparity_conformance.diagnosis.faults.scopes import groups
from transparity_conformance.diagnosis.faults.sites import is_norm
from transparity_numpy.attention import score_scale

PROMISING = 12
"""After so many steps the right number is found to within a three-hundredth of the grid's distance."""


Family = tuple[Callable[[float], Fault], list[float], tuple[str, ...]]
"""Faults that differ by a number: what makes one, a grid of numbers, and where it is made."""


def fitted(config: TransformerConfig, sites: list[str], left: Callable[[Hypothesis], float]) -> Iterator[Hypothesis]:
    """Every fault with a number in it that can be made at `sites`, its number such that least is `left`."""
    for family in _families(config, sites):
        if (hypothesis := fit(family, left)) is not None:
            yield hypothesis


def fit(family: Family, left: Callable[[Hypothesis], float]) -> Hypothesis | None:
    """The one of a family with which least is `left`; None if there is none such."""
    make, grid, chosen = family
    number = _minimize(lambda number: left(Hypothesis(make(number), chosen)), grid)
    return None if number is None else Hypothesis(make(number), chosen)


def widest(config: TransformerConfig, sites: list[str]) -> list[Family]:
    """Of every kind of fault with a number, that which is made at most `sites`."""
    found: dict[str, Family] = {}
    for family in _families(config, sites):
        found.setdefault(family[0](1.0).id, family)
    return list(found.values())


def _families(config: TransformerConfig, sites: list[str]) -> Iterator[Family]:
    scores = [site for site in sites if site.endswith(".scores")]
    right = score_scale(config)
    for chosen in groups(scores):
        grid = [right * 2.0**power for power in range(-8, 9)]
        yield lambda scale: scaled(config, scale, named_scale(config, scale)), grid, chosen
    for chosen in groups([site for site in sites if is_norm(config, site)]):
        yield lambda eps: other_eps(config, eps), [10.0**power for power in range(-14, 2)], chosen
    embeddings = [site for site in sites if site.endswith(".embedding")]
    for chosen in groups(embeddings):
        grid = [2.0**power for power in range(-10, 11)]
        yield lambda factor: embedding_scaled(config, factor, f"{factor:.6g}"), grid, chosen
        if config.positions == "sinusoidal":
            yield (
                lambda base: based(config, base, f"{base:.6g}"),
                [10.0**power for power in np.linspace(0.5, 8, 31)],
                chosen,
            )

    yield from _further_families(config, sites)


def _further_families(config: TransformerConfig, sites: list[str]) -> Iterator[Family]:
    """Numbers of what only some models have."""
    for chosen in groups([site for site in sites if site.endswith("_rotated")]):
        yield lambda base: positions.other_base(config, base), [10.0**power for power in range(9)], chosen
        if config.rotary_scaling != "none":
            grid = [config.rotary_factor * 2.0**power for power in range(-6, 7)]
            yield lambda factor: positions.other_factor(config, factor), grid, chosen
    if config.attention_softcap is not None:
        grid = [config.attention_softcap * 2.0**power for power in range(-4, 7)]
        for chosen in groups([site for site in sites if site.endswith(".scores")]):
            yield lambda cap: other_cap(config, cap), grid, chosen
    if config.final_softcap is not None and "logits" in sites:
        grid = [config.final_softcap * 2.0**power for power in range(-4, 7)]
        yield lambda cap: heads.other_cap(config, cap), grid, ("logits",)


def _minimize(function: Callable[[float], float], grid: list[float], steps: int = 40) -> float | None:
    """The positive number where `function` is least: the best of the grid, then a golden section between its
    neighbours, on a logarithmic axis. None if it is not this number: all of the grid is alike, or a nearer number
    leaves as much."""
    values = [function(number) for number in grid]
    if not np.nanmin(values) < np.nanmax(values):
        return None
    best = int(np.nanargmin(values))
    low, high = math.log(grid[max(0, best - 1)]), math.log(grid[min(len(grid) - 1, best + 1)])
    ratio = (math.sqrt(5) - 1) / 2
    inner, outer = high - ratio * (high - low), low + ratio * (high - low)
    at_inner, at_outer = function(math.exp(inner)), function(math.exp(outer))
    for step in range(steps):
        if step == PROMISING and min(at_inner, at_outer) > max(min(values) / 2, float(np.nanmedian(values)) / 100):
            return None
        if at_inner < at_outer:
            high, outer, at_outer = outer, inner, at_inner
            inner = high - ratio * (high - low)
            at_inner = function(math.exp(inner))
        else:
            low, inner, at_inner = inner, outer, at_outer
            outer = low + ratio * (high - low)
            at_outer = function(math.exp(outer))
    return math.exp((low + high) / 2)
