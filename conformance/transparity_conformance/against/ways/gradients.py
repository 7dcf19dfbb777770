"""Compare gradients, for each parameter, of the inner product of the answer with random numbers."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.text import describe_error
from transparity_conformance.against.reference import Inputs, Reference, exactly
from transparity_conformance.against.ways.backward import Place
from transparity_conformance.against.ways.way import Sides, why_not
from transparity_conformance.capabilities.port_calls import PortError, call_port
from transparity_conformance.capabilities.table import failed
from transparity_conformance.listening.backward import Backward, from_lists
from transparity_conformance.oracle.budgets import RULES, epsilon
from transparity_conformance.report.comparison import as_numbers, gap, share
from transparity_conformance.report.report import CapabilityResult, ClaimResult, Divergence, not_compared
from transparity_conformance.running.gradients import located
from transparity_conformance.running.process.running import ask
from transparity_conformance.running.ways import COTANGENT, backward, gradients

CLAIM = "gradients"

Gradients = dict[str, np.ndarray]


def compare_gradients(sides: Sides, probes: Mapping[str, Inputs]) -> CapabilityResult:
    """Compare the gradients of every parameter on the first inputs."""
    if reason := why_not(CLAIM, sides):
        return not_compared(f"{CLAIM}: {reason}")
    name, inputs = next(iter(probes.items()))
    expected = Expected(sides.reference, _with_cotangent(sides.reference, inputs))
    try:
        expected.near  # noqa: B018 - which computes the reference's
    except Exception as error:  # noqa: BLE001 - the result may have no derivative
        return not_compared(f"{CLAIM}: the reference raises {describe_error(error)}")
    try:
        actual, unknown = _of_port(sides, expected)
        found = _judged(sides, expected, actual, name)
    except PortError as error:
        return failed(CLAIM, name, error)
    return found + not_compared(*(f"{CLAIM} of {each}: the port has no parameter with its numbers" for each in unknown))


def _with_cotangent(reference: Reference, inputs: Inputs) -> Inputs:
    """Return the inputs, and a random number for each number of the answer; 0 at padding."""
    answer, _ = reference.near(inputs)
    drawn = np.random.default_rng(answer.size).standard_normal(answer.shape).astype(np.float32)
    kept = reference.kept(inputs, answer.shape)
    return {**inputs, COTANGENT: drawn if kept is None else drawn * kept}


@dataclass(frozen=True, eq=False)
class Expected:
    """The gradients of the reference on some inputs."""

    reference: Reference
    inputs: Inputs

    def _called(self, model: Any, way: Any) -> Any:
        return way(model, self.reference.given(model, self.inputs))

    def _gradients(self, model: Any) -> Gradients:
        found = self._called(model, gradients)
        learned = {name: value for name, value in model.named_parameters() if value.requires_grad}
        given = found["gradients"]
        return {
            name: np.zeros(tuple(value.shape)) if name not in given else given[name].double().numpy()
            for name, value in learned.items()
        }

    def _pair(self, exact: Any, rounded: Any) -> tuple[Gradients, Gradients]:
        with exactly():
            true = self._gradients(exact)
        return true, self._gradients(rounded)

    @functools.cached_property
    def own(self) -> tuple[Gradients, Gradients]:
        """Return the gradients in float64, and in the precision of the reference."""
        return self._pair(self.reference.exact, self.reference.rounded)

    @property
    def exact(self) -> Gradients:
        return self.own[0]

    @functools.cached_property
    def scale(self) -> float:
        """Return the largest absolute value in all gradients."""
        return max(float(np.abs(value).max(initial=0.0)) for value in self.exact.values())

    def _budgets(self, pairs: list[tuple[Gradients, Gradients]]) -> dict[str, float]:
        rule, ulp, scale = RULES[self.reference.dtype], epsilon(self.reference.dtype), self.scale
        return {
            name: rule.budget(max(gap(rounded[name], exact[name]) for exact, rounded in pairs), ulp, scale)
            for name in self.exact
        }

    @functools.cached_property
    def near(self) -> dict[str, float]:
        """Return, for each parameter, the difference that the rounding of the reference explains."""
        return self._budgets([self.own])

    @functools.cached_property
    def budgets(self) -> dict[str, float]:
        """Return, for each parameter, the difference that rounding explains for slightly different weights.

        For a single set of weights, the error may be small by chance.
        """
        return self._budgets([self.own, *(self._pair(*pair) for pair in self.reference.neighbours)])

    def traces(self) -> tuple[Backward, Backward]:
        """Return the records of the backward pass, in float64 and in the precision of the reference."""
        model = self.reference.exact
        with exactly():
            exact = from_lists(self._called(model, backward))
        return exact, from_lists(self._called(self.reference.rounded, backward))


def _of_port(sides: Sides, expected: Expected) -> tuple[Gradients, list[str]]:
    """Return the port's gradients by the reference's names, and the names that have no parameter in the port."""
    answer = ask(sides.forward, CLAIM, **expected.inputs)
    places, found = ({name: call_port(as_numbers, value) for name, value in answer[part].items()} for part in answer)
    whole = {name: found.get(name, np.zeros_like(value)).astype(np.float64) for name, value in places.items()}
    if unknown := [name for name in expected.exact if name not in places]:
        tensors = {name: value for name, value in sides.reference.weights.items() if name in expected.exact}
        taken = located(tensors, places)
        return {name: each.take(whole) for name, each in taken.items()}, [n for n in unknown if n not in taken]
    return {name: whole[name] for name in expected.exact}, []


def _judged(sides: Sides, expected: Expected, actual: Gradients, probe: str) -> CapabilityResult:
    errors = {name: gap(actual[name], value) for name, value in expected.exact.items() if name in actual}
    budgets = expected.near
    if any(share(error, budgets[name]) > 1 for name, error in errors.items()):
        budgets = expected.budgets
    shares = {name: share(error, budgets[name]) for name, error in errors.items()}
    worst = max(shares, key=lambda name: shares[name])
    verdict: Any = "diverges" if shares[worst] > 1 else "agrees"
    claim = ClaimResult(CLAIM, verdict, errors[worst], budgets[worst], f"{worst} ({len(shares)} parameters, {probe})")
    if shares[worst] <= 1:
        return CapabilityResult((claim,))
    wrong = [name for name in shares if shares[name] > 1]
    place = Place(
        *expected.traces(), from_lists(ask(sides.forward, "backward", **expected.inputs)), sides.reference.dtype
    )
    first = next(name for name in place.backwards() if name in wrong)
    source, theirs, causes = place.found()
    fault = Divergence(
        f"gradient of {first}",
        errors[first],
        budgets[first],
        causes,
        probe=probe,
        source=source,
        reference_source=theirs,
    )
    says = f"gradients: {len(wrong)} of {len(shares)} differ; {first} is the first in the backward pass"
    return CapabilityResult((claim,), (fault,), notes=(says,))
