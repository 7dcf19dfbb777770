"""The bench of a claim: the tested backend with its dtype, device and mode, and a cache of its models."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import numpy as np

from transparity.config import TransformerConfig
from transparity.presets import PRESETS
from transparity.protocol import Backend, Forward, Harness, Module, ShardedHarness
from transparity_conformance.oracle.backends import backend, harness
from transparity_conformance.oracle.oracle import Arrays, Oracle, function_oracle
from transparity_conformance.oracle.probes import is_large
from transparity_conformance.report.comparison import BackendSubject, ClaimEvidence, Expectation, as_numbers, difference
from transparity_conformance.suite.ranks import RemoteBackend


class Bench:
    """A subject (a backend with dtype, device and mode), with cached models and access to single functions. `build`
    replaces the installed backend that has the subject's name. `parts` is the harness of `build`, or None."""

    def __init__(self, subject: BackendSubject, build: Backend | None = None, parts: Harness | None = None) -> None:
        self.subject, self.claim = subject, ""
        self.backend = build or backend(subject.backend)
        self.parts = parts if build else harness(subject.backend)
        self._forwards: dict[tuple[Any, ...], tuple[Arrays, Forward]] = {}
        self.traced = functools.cache(lambda probe: self.forward(probe.config, probe.parameters)(**probe.inputs))
        """A function (probe) → all activations, computed by the traced path, which records activations."""
        self.logits = functools.cache(lambda probe: self.forward(probe.config, probe.parameters).logits(**probe.inputs))
        """A function (probe) → logits, computed by the fast path, which records nothing."""
        self.over = functools.cache(self._over)

    def forward(self, config: TransformerConfig, parameters: Arrays, **held: str | None) -> Forward:
        """Return the backend's model; cache small models. `held` may contain a lower precision for `weights` or
        `activations`."""
        subject = self.subject
        how: dict[str, Any] = {"dtype": subject.dtype, "device": subject.device, "mode": subject.mode, **held}
        if is_large(parameters):
            return self.backend(config, parameters, **how)
        key = id(parameters), *held.items()
        if key not in self._forwards:
            self._forwards[key] = parameters, self.backend(config, parameters, **how)
        return self._forwards[key][1]

    @property
    def harness(self) -> Harness:
        """The harness, which only claims with `harness=True` may use."""
        assert self.parts is not None, "a claim that uses the harness must be declared with harness=True"
        return self.parts

    def about(self, claim: str, *, harness: bool = True) -> Bench:
        same = copy.copy(self)
        same.claim, same.parts = claim, self.parts if harness else None
        return same

    @property
    def compiles(self) -> bool:
        """Whether the backend compiles models by default."""
        return self.backend.modes[0] != "eager"

    @property
    def shards(self) -> bool:
        return hasattr(self.parts, "SHARDED")

    def _over(self, data: int, tensor: int) -> Bench:
        parts = cast(ShardedHarness, self.harness)
        return Bench(self.subject, RemoteBackend(self.backend, parts, data, tensor))

    def pinned(self) -> AbstractContextManager[None]:
        return self.parts.pinned() if self.parts else nullcontext()

    def function(self, name: str) -> Callable[..., Any]:
        return self.harness.function(name, dtype=self.subject.dtype, device=self.subject.device)

    def module(self, name: str, config: TransformerConfig, parameters: Arrays) -> Module:
        return self.harness.module(name, config, parameters, dtype=self.subject.dtype, device=self.subject.device)

    @property
    def fast_cases(self) -> tuple[str, ...]:
        """The presets whose fast path is tested. In an unusual mode, three presets are tested, to save compile time.
        The slow claim `precision.taps_in_every_precision` tests all presets in every mode."""
        return tuple(PRESETS) if self._usual else ("walkthrough", "notes-lm", "pre-norm")

    @property
    def traced_cases(self) -> tuple[str, ...]:
        """The presets whose traced path is tested: one preset in an unusual mode, otherwise all presets. The traced
        path of a preset takes many seconds to compile."""
        return tuple(PRESETS) if self._usual else ("pre-norm",)

    @property
    def _usual(self) -> bool:
        """Whether the mode is `eager`, or both dtype and mode are the backend's defaults."""
        usual = (self.backend.dtypes[0], self.backend.modes[0])
        return self.subject.mode == "eager" or (self.subject.dtype, self.subject.mode) == usual

    def same(self, case: str, function: str, arrays: Arrays, where: str = "result", **named: Any) -> ClaimEvidence:
        """Compare a function of the backend with the reference's function on the same arrays."""
        oracle = function_oracle(function, arrays, **named)
        return self.evidence(case).oracle(oracle, where, self.function(function)(*arrays.values(), **named), "result")

    def evidence(self, case: str, dtype: str = "") -> ClaimRecord:
        return ClaimRecord(self.claim, self.subject, case, dtype)


class ClaimRecord:
    """Comparisons for one claim in one case. Budgets are for `dtype` (by default, the subject's dtype)."""

    def __init__(self, claim: str, subject: BackendSubject, case: str, dtype: str = "") -> None:
        self.claim, self.subject, self.case, self.dtype = claim, subject, case, dtype or subject.dtype

    def exactly(
        self, where: str, actual: Any, expected: Any, expectation: Expectation = "holds", note: str = ""
    ) -> ClaimEvidence:
        return self.within(where, actual, expected, 0.0, expectation, note)

    def within(
        self, where: str, actual: Any, expected: Any, budget: float, expectation: Expectation = "holds", note: str = ""
    ) -> ClaimEvidence:
        error = difference(as_numbers(actual), as_numbers(expected))
        return ClaimEvidence(self.claim, self.subject, self.case, where, error, budget, expectation, note)

    def oracle(self, oracle: Oracle, where: str, actual: Any, name: str | None = None) -> ClaimEvidence:
        """Compare `actual` with the oracle's value `name` (default: `where`), within the value's budget."""
        name = name or where
        return self.within(where, actual, oracle.expected[name], oracle.budget(name, self.dtype))

    def taps(self, oracle: Oracle, taps: Mapping[str, Any], where: str = "{}") -> Iterator[ClaimEvidence]:
        """Compare `taps` with all values of the oracle; a missing value counts as wrong."""
        for name in oracle.expected:
            yield self.oracle(oracle, where.format(name), taps.get(name, np.empty(0)), name)

    def forward(self, oracle: Oracle, forward: Forward, inputs: Arrays) -> Iterator[ClaimEvidence]:
        """Compare a model's activations (traced path) and its logits (fast path) with the oracle."""
        yield from self.taps(oracle, forward(**inputs))
        yield self.oracle(oracle, "logits by the fast path", forward.logits(**inputs), "logits")
