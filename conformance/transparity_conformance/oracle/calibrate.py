"""Measure the constants in `budgets`: `python -m transparity_conformance.oracle.calibrate`, or `nox -s calibrate`. The
reference runs on arrays that permute the terms of every sum, as another right program may do. Backends are not
measured, because a backend must not determine its own tolerance."""

from __future__ import annotations

import argparse
import functools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from rich.console import Console
from rich.progress import track
from rich.table import Table

from transparity.config import TransformerConfig
from transparity.presets import PRESETS
from transparity.taps import recording
from transparity_conformance.oracle.budgets import RULES, BudgetRule, epsilon, neighbours_of_drawn
from transparity_conformance.oracle.oracle import Arrays, Oracle, forward_oracle
from transparity_conformance.oracle.probes import probe_parameters, probes
from transparity_conformance.oracle.strategies import models
from transparity_numpy.transformer import transformer


class Permuted(np.ndarray[Any, np.dtype[Any]]):
    """An array whose sums and matrix products add terms in another order."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        given = [_plain(each) for each in inputs]
        if ufunc is np.matmul:
            order = _order(given[0].shape[-1])
            given = [given[0][..., order], given[1][..., order, :]]
        elif ufunc is np.add and method == "reduce" and isinstance(axis := options.get("axis"), int):
            given[0] = np.take(given[0], _order(given[0].shape[axis]), axis)
        if "out" in options:
            options["out"] = tuple(map(_plain, options["out"]))
        result = getattr(ufunc, method)(*given, **options)
        return result.view(Permuted) if isinstance(result, np.ndarray) else result


def _plain(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, Permuted) else value


@functools.cache
def _order(terms: int) -> np.ndarray:
    return np.random.default_rng(terms).permutation(terms)


def evaluated(config: TransformerConfig, parameters: Arrays, inputs: Arrays, dtype: str) -> Arrays:
    """Return each activation in `dtype`, with permuted sums."""
    taps: Arrays = {}
    tokens: dict[str, Any] = dict(inputs)
    cast: Arrays = {name: value.astype(dtype).view(Permuted) for name, value in parameters.items()}
    with np.errstate(over="ignore"):
        transformer(config, cast, tap=recording(taps), **tokens)
    return taps


@dataclass(frozen=True)
class Sample:
    error: float
    noise: float
    """The reference's own error, as the oracle measures it."""
    ulp: float
    """The spacing of floating-point numbers near the largest expected value."""

    def ratio(self, floor: float) -> float:
        """Return (error − floor × ulp) / noise, at least 0."""
        over = max(0.0, self.error - floor * self.ulp)
        return over / self.noise if self.noise else (0.0 if over == 0 else math.inf)


def samples(
    config: TransformerConfig, parameters: Arrays, inputs: Arrays, oracle: Oracle, dtype: str
) -> Iterator[Sample]:
    for name, value in evaluated(config, parameters, inputs, dtype).items():
        expected = oracle.expected[name]
        error = np.abs(np.asarray(value, np.float64) - expected).max()
        ulp = epsilon(dtype) * float(np.abs(expected).max())
        yield Sample(float(error), oracle.noise(dtype)[name], ulp)


def measure(dtype: str, drawn: int, seeds: int, cases: Sequence[str] = tuple(PRESETS)) -> list[Sample]:
    found: list[Sample] = []
    for case in track(cases, f"{dtype}: presets"):
        for probe in probes(case).values():
            if probe.name == "hot" and dtype not in ("float32", "float64"):
                continue
            for seed in range(seeds):
                parameters = probe_parameters(probe.config, 100 + seed) if seed else probe.parameters
                oracle = forward_oracle(probe.config, parameters, probe.inputs, neighbours=probe.neighbours)
                found += samples(probe.config, parameters, probe.inputs, oracle, dtype)
    if drawn:
        found += _measure_drawn(dtype, drawn)
    return found


def _measure_drawn(dtype: str, drawn: int) -> list[Sample]:
    found: list[Sample] = []

    @settings(
        max_examples=drawn,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(models())
    def add(model: tuple[TransformerConfig, int, Arrays]) -> None:
        config, seed, inputs = model
        parameters = probe_parameters(config, seed)
        oracle = forward_oracle(config, parameters, inputs, neighbours=neighbours_of_drawn(inputs))
        found.extend(samples(config, parameters, inputs, oracle, dtype))

    add()
    return found


@dataclass(frozen=True)
class CalibratedConstant:
    name: str
    dtype: str
    constant: float
    values: np.ndarray
    share: float = 1.0
    """The share of the measurements that the constant must cover."""

    def quantile(self, share: float) -> float:
        return float(np.quantile(self.values, share, method="lower"))

    @property
    def covers(self) -> bool:
        return self.quantile(self.share) <= self.constant


def rows(dtype: str, found: Sequence[Sample], rule: BudgetRule) -> list[CalibratedConstant]:
    """Return the measurements of the factor and of the floor, which is measured where the reference makes no error. In
    float16, the factor must cover only 99 %: in the other 1 %, a variance underflows, because NumPy rounds every
    sum."""
    over = np.array([sample.ratio(rule.floor) for sample in found])
    bare = np.array([sample.error / sample.ulp for sample in found if not sample.noise and sample.ulp] or [0.0])
    factor = CalibratedConstant("factor", dtype, rule.factor, over, 0.99 if dtype == "float16" else 1.0)
    return [factor, CalibratedConstant("floor", dtype, rule.floor, bare)]


def as_table(measured: Sequence[CalibratedConstant]) -> Table:
    heads = ("constant", "precision", "taps", "median", "99 %", "to cover", "value", "covers")
    table = Table(*heads, title="constants of tolerances")
    for row in measured:
        shown = [f"{row.quantile(share):.2f}" for share in (0.5, 0.99, row.share)]
        covers = "yes" if row.covers else "NO"
        table.add_row(row.name, row.dtype, f"{len(row.values):,}", *shown, f"{row.constant:g}", covers)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--drawn", type=int, default=300, help="number of drawn configurations")
    parser.add_argument("--seeds", type=int, default=3, help="number of random sets of weights per probe")
    options = parser.parse_args()
    measured: list[CalibratedConstant] = []
    for dtype in (dtype for dtype in RULES if dtype != "bfloat16"):  # NumPy has no bfloat16 arithmetic
        measured += rows(dtype, measure(dtype, options.drawn, options.seeds), RULES[dtype])
    Console().print(as_table(measured))
    return 0 if all(row.covers for row in measured) else 1


if __name__ == "__main__":
    sys.exit(main())
