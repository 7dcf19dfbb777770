"""The oracle: the reference's results in float64, with tolerances from its own rounding errors."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.taps import Tap
from transparity_conformance.cache import digest, kept
from transparity_conformance.oracle.budgets import NEIGHBOURS, RULES, epsilon, rounded
from transparity_conformance.oracle.near_ties import is_choice, is_of_router
from transparity_conformance.oracle.variants import variant
from transparity_conformance.report.comparison import gap, largest, less, share
from transparity_conformance.storage.mapped import LARGE, Mapped
from transparity_numpy.harness import function as reference_function
from transparity_numpy.transformer import transformer

Arrays = dict[str, np.ndarray]
Computation = Callable[[Arrays, Tap], None]
"""A computation that passes each named result to a tap function."""
Room = Callable[[], MutableMapping[str, np.ndarray]]
"""A function that creates an empty mapping, in memory or on disk."""


class Oracle:
    """The results of a computation in float64, and the tolerance of each result in any precision. Errors are measured
    at a few points: at point 0, the arrays are unchanged; at others, factors between 1 − 2⁻¹⁰ and 1 + 2⁻¹⁰ multiply
    them. Each point imitates another right program (`variants`). Half precisions are computed in float32 and rounded at
    every activation, because hardware sums in float32. `watch` gets the name of each result, and `room` creates a
    mapping for results."""

    def __init__(
        self,
        run: Computation,
        arrays: Mapping[str, np.ndarray],
        *,
        neighbours: int = NEIGHBOURS,
        kept: Collection[str] | None = None,
        room: Room = dict,
    ) -> None:
        self.run, self.arrays, self.neighbours, self.kept, self.room = run, dict(arrays), neighbours, kept, room
        self.watch: Callable[[str], None] = lambda name: None
        self.given: tuple[list[Any], Mapping[str, Any]] | None = None
        """JSON settings and arrays that, with `arrays`, determine the results; None if other data matter."""
        self._noise: dict[str, dict[str, float]] = {}
        self._scales: dict[str, float] = {}

    @functools.cached_property
    def expected(self) -> Mapping[str, np.ndarray]:
        """Return all results in float64. Results outside `kept` contain only NaN."""
        return self._evaluate(self.arrays, "float64")

    def budget(self, name: str, dtype: str) -> float:
        """Return the largest difference from `expected[name]` that rounding in `dtype` explains. `float32:bfloat16`
        names the precisions of weights and of activations."""
        return budget_of(self.noise(dtype)[name], self.scale(name), dtype)

    def budget_for(self, error: float, name: str, dtype: str) -> float:
        """Measure rounding at one point after another, until the tolerance covers `error`; return the last
        tolerance."""
        budget = 0.0
        for worst in self._by_points("float32" if dtype == "float64" else dtype):
            budget = budget_of(_scaled(worst, dtype)[name], self.scale(name), dtype)
            if share(error, budget) <= 1:
                break
        return budget

    def scale(self, name: str) -> float:
        if name not in self._scales:
            self._scales[name] = largest(self.expected[name])
        return self._scales[name]

    def noise(self, dtype: str) -> dict[str, float]:
        if dtype not in self._noise:
            identity = None if self.identity is None else f"{self.identity}-{dtype.replace(':', '-')}"
            self._noise[dtype] = kept(identity, lambda: self._measure(dtype))
        return self._noise[dtype]

    @functools.cached_property
    def identity(self) -> str | None:
        """Return a hash of everything that determines the results; None for large models and parameters in files."""
        are_in_memory = all(isinstance(value, np.ndarray) for value in self.arrays.values())
        if self.given is None or not are_in_memory or sum(value.size for value in self.arrays.values()) >= LARGE:
            return None
        given, inputs = self.given
        # The order of the arrays matters, because the random factors are drawn in this order.
        kept = None if self.kept is None else sorted(self.kept)
        settings = [type(self).__name__, self.neighbours, kept, list(self.arrays)]
        return digest(json.dumps([*given, *settings]), self.arrays, inputs)

    def rounding(self, name: str, dtype: str, index: int) -> np.ndarray:
        """Return the reference's error in `dtype` at the point `index`, for each element."""
        measured = "float32" if dtype == "float64" else dtype
        arrays = neighbour(self.arrays, index)
        truth = self._evaluate(arrays, "float64") if index else self.expected
        error = less(self._evaluate(arrays, measured, index, truth)[name], truth[name])
        return error * (epsilon(dtype) / epsilon(measured))

    def _measure(self, dtype: str) -> dict[str, float]:
        if dtype == "float64":
            return _scaled(self.noise("float32"), dtype)
        *_, worst = self._by_points(dtype)
        return worst

    def _by_points(self, dtype: str) -> Iterator[dict[str, float]]:
        worst = {name: 0.0 for name in self.expected if self._keeps(name)}
        for index in range(self.neighbours):
            arrays = neighbour(self.arrays, index)
            truth = self._evaluate(arrays, "float64") if index else self.expected

            def compare(name: str, value: np.ndarray, truth: Mapping[str, np.ndarray] = truth) -> None:
                if name in worst:  # the error is infinite if only one value is NaN
                    worst[name] = max(worst[name], gap(value, truth[name]))

            self._compute(arrays, dtype, index, compare, truth)
            yield worst

    def _keeps(self, name: str) -> bool:
        return self.kept is None or name in self.kept or is_of_router(name)

    def _evaluate(
        self, arrays: Arrays, dtype: str, index: int = 0, choices: Mapping[str, np.ndarray] | None = None
    ) -> MutableMapping[str, np.ndarray]:
        results = self.room()

        def keep(name: str, value: np.ndarray) -> None:
            results[name] = value if self._keeps(name) else np.broadcast_to(np.nan, value.shape)

        self._compute(arrays, dtype, index, keep, choices)
        return results

    def _compute(
        self,
        arrays: Arrays,
        dtype: str,
        index: int,
        receive: Callable[[str, np.ndarray], None],
        choices: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Compute in `dtype` at a point, and pass each rounded result to `receive`. `choices` are the routers' experts,
        because another choice would change results by more than rounding."""
        given, _, computed = dtype.partition(":")

        def tap(name: str, value: np.ndarray) -> np.ndarray:
            if choices is not None and is_choice(name):
                value = choices[name].astype(value.dtype)
            value = rounded(value, computed or given)
            self.watch(name)
            receive(name, value)
            return value

        with variant(index) if dtype != "float64" else contextlib.nullcontext():
            self.run({name: rounded(value, given) for name, value in arrays.items()}, tap)


def _scaled(noise: Mapping[str, float], dtype: str) -> dict[str, float]:
    """Convert errors in float32 to errors in float64, if `dtype` is float64."""
    ratio = epsilon("float64") / epsilon("float32") if dtype == "float64" else 1.0
    return {name: error * ratio for name, error in noise.items()}


def budget_of(noise: float, scale: float, dtype: str) -> float:
    coarser = max(dtype.split(":"), key=epsilon)
    return RULES[coarser].budget(noise, epsilon(coarser), scale)


def forward_oracle(
    config: TransformerConfig,
    parameters: Arrays,
    inputs: Arrays,
    *,
    neighbours: int = NEIGHBOURS,
    kept: Collection[str] | None = None,
    room: Room = dict,
) -> Oracle:
    tokens: dict[str, Any] = dict(inputs)

    def run(parameters: Arrays, tap: Tap) -> None:
        transformer(config, parameters, tap=tap, **tokens)

    oracle = Oracle(run, parameters, neighbours=neighbours, kept=kept, room=room)
    oracle.given = [config.as_dict()], tokens
    return oracle


def neighbour(arrays: Arrays, index: int) -> Arrays:
    """Return slightly changed arrays in float32; at point 0, the arrays themselves."""
    if index == 0:
        return arrays
    random = np.random.default_rng(index)

    @np.errstate(over="ignore")
    def moved(value: Any) -> Any:
        if isinstance(value, Mapped):
            return value.changed(functools.partial(_moved_in_file, index))
        return (value * (1 + random.uniform(-(2**-10), 2**-10, value.shape))).astype(np.float32)

    return {name: moved(value) if value.dtype.kind == "f" else value for name, value in arrays.items()}


def _moved_in_file(index: int, block: np.ndarray) -> np.ndarray:
    """Perturb a block by factors from its bits, so that each read gives the same result."""
    bits = np.ascontiguousarray(block, np.float32).view(np.uint32) * np.uint32(2654435761 + 2 * index)
    moved = bits.view(np.int32).astype(np.float32)
    # Compute in place, because these lines take most of the time needed to read a matrix.
    moved *= np.float32(2.0**-41)
    moved += 1
    moved *= block
    return moved


def function_oracle(name: str, arrays: Arrays, **named: Any) -> Oracle:
    """Return the oracle of a function, with results `result`, or `result.0`, `result.1`, …."""

    def run(arrays: Arrays, tap: Tap) -> None:
        dtype = next((value.dtype.name for value in arrays.values() if value.dtype.kind == "f"), "float64")
        result = reference_function(name, dtype=dtype)(*arrays.values(), **named)
        for index, value in enumerate(result) if isinstance(result, tuple) else [("", result)]:
            tap(f"result.{index}".rstrip("."), value)

    return Oracle(run, arrays)


def each(results: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(results, tuple):
        yield from ((f"result.{index}", value) for index, value in enumerate(results))
    else:
        yield "result", results
