"""The bench: where one subject is tried, with everything that was built for it kept for the next claim."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from transparity.backend import Backend, Forward, Module
from transparity.config import TransformerConfig
from transparity.presets import PRESETS
from transparity.taps import Tap
from transparity_conformance.backends import REFERENCE, backend
from transparity_conformance.evidence import Evidence, Expectation, Subject, difference
from transparity_conformance.oracle import Arrays, Oracle
from transparity_conformance.probes import Probe


def as_numbers(value: Any) -> np.ndarray:
    """An array of any framework, on any device and of any dtype, as a NumPy array."""
    if hasattr(value, "detach"):  # a torch tensor, without importing torch
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def dtype_name(value: Any) -> str:
    """`float32`, whatever the framework calls it."""
    return str(value.dtype).removeprefix("torch.")


class Bench:
    """One subject, its backend, and the evidence that its claims leave."""

    def __init__(self, subject: Subject, build: Backend | None = None) -> None:
        self.subject = subject
        self.backend = build or backend(subject.backend)
        self._forwards: dict[tuple[Any, ...], tuple[Arrays, Forward]] = {}
        self.traced = functools.cache(self._traced)
        self.logits = functools.cache(self._logits)

    def forward(self, config: TransformerConfig, parameters: Arrays, **held: str | None) -> Forward:
        """The backend's model, with `weights` and `activations` held in other precisions if so asked; built once for
        the same `parameters` (the same object, kept alive here)."""
        key = id(parameters), *held.items()
        if key not in self._forwards:
            subject = self.subject
            how: dict[str, Any] = {"dtype": subject.dtype, "device": subject.device, "mode": subject.mode, **held}
            self._forwards[key] = parameters, self.backend(config, parameters, **how)
        return self._forwards[key][1]

    def function(self, name: str) -> Callable[..., Any]:
        return self.backend.function(name, dtype=self.subject.dtype, device=self.subject.device)

    def module(self, name: str, config: TransformerConfig, parameters: Arrays) -> Module:
        return self.backend.module(name, config, parameters, dtype=self.subject.dtype, device=self.subject.device)

    @property
    def fast_cases(self) -> tuple[str, ...]:
        """The presets whose fast path is tried: all; compiled in another way than usual, those that differ most. All of
        them are tried in that way, too, where there is time (`precision.taps_of_every_preset`)."""
        return tuple(PRESETS) if self._usual else ("walkthrough", "notes-lm", "pre-norm")

    @property
    def traced_cases(self) -> tuple[str, ...]:
        """The presets whose traced path is tried: all; compiled in another way than usual only one, for the traced path
        is there to be looked into, and to compile it takes many seconds."""
        return tuple(PRESETS) if self._usual else ("pre-norm",)

    @property
    def _usual(self) -> bool:
        """Whether nothing is compiled, or what a user compiles without asking for anything."""
        usual = (self.backend.dtypes[0], self.backend.modes[0])
        return self.subject.mode == "eager" or (self.subject.dtype, self.subject.mode) == usual

    def _traced(self, probe: Probe) -> dict[str, Any]:
        """Every tap of a probe, by the traced path."""
        return self.forward(probe.config, probe.parameters)(**probe.inputs)

    def _logits(self, probe: Probe) -> Any:
        """The logits of a probe, by the fast path."""
        return self.forward(probe.config, probe.parameters).logits(**probe.inputs)

    def evidence(self, claim: str, case: str) -> Record:
        return Record(claim, self.subject, case)


class Record:
    """Makes the evidence of one claim about one case."""

    def __init__(self, claim: str, subject: Subject, case: str) -> None:
        self.claim, self.subject, self.case = claim, subject, case

    def exactly(
        self, where: str, actual: Any, expected: Any, expectation: Expectation = "holds", note: str = ""
    ) -> Evidence:
        """`actual` is `expected`, to the bit."""
        return self.within(where, actual, expected, 0.0, expectation, note)

    def within(
        self,
        where: str,
        actual: Any,
        expected: Any,
        budget: float,
        expectation: Expectation = "holds",
        note: str = "",
    ) -> Evidence:
        """`actual` is `expected`, but for rounding."""
        error = difference(as_numbers(actual), as_numbers(expected))
        return Evidence(self.claim, self.subject, self.case, where, error, budget, expectation, note)

    def oracle(self, oracle: Oracle, where: str, actual: Any, name: str | None = None) -> Evidence:
        """`actual` is what the oracle says of `name` (or of `where`), within its budget."""
        name = name or where
        return self.within(where, actual, oracle.expected[name], oracle.budget(name, self.subject.dtype))

    def refused(self, where: str, error: Exception) -> Evidence:
        """What was to be compared did not come: the comparison fails."""
        sentence = str(error).splitlines()[0] if str(error) else type(error).__name__
        return Evidence(self.claim, self.subject, self.case, where, float("inf"), 0.0, "holds", sentence)


def function_oracle(name: str, arrays: Arrays, **named: Any) -> Oracle:
    """The oracle of a free function of the reference: the result is called `result`, or `result.0`, `result.1` …"""

    def run(arrays: Arrays, tap: Tap) -> None:
        dtype = next((value.dtype.name for value in arrays.values() if value.dtype.kind == "f"), "float64")
        function = backend(REFERENCE).function(name, dtype=dtype)
        result = function(*arrays.values(), **named)
        for index, value in enumerate(result) if isinstance(result, tuple) else [("", result)]:
            tap(f"result.{index}".rstrip("."), value)

    return Oracle(run, arrays)


def each(results: Any) -> Iterator[tuple[str, Any]]:
    """The results of a function by the names that `function_oracle` gives them."""
    if isinstance(results, tuple):
        yield from ((f"result.{index}", value) for index, value in enumerate(results))
    else:
        yield "result", results
