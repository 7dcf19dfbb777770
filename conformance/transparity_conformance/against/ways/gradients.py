"""Compare the gradients of the inner product of the answer and random numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from transparity_conformance.against.reference import Inputs, Reference, exactly, raised
from transparity_conformance.against.ways.way import Sides, why_not
from transparity_conformance.capabilities.port_calls import PortError, call_port
from transparity_conformance.capabilities.table import failed
from transparity_conformance.listening.backward import Backward
from transparity_conformance.listening.operation import Source
from transparity_conformance.matching.graph import ancestors, readers_of
from transparity_conformance.matching.values import Known, fingerprint
from transparity_conformance.oracle.budgets import RULES, epsilon
from transparity_conformance.report.comparison import as_numbers, gap, share
from transparity_conformance.report.formatting import count
from transparity_conformance.report.report import CapabilityResult, Cause, ClaimResult, Divergence, not_compared
from transparity_conformance.running.gradients import located
from transparity_conformance.running.process.running import ask
from transparity_conformance.running.ways import COTANGENT, backward, gradients

CLAIM = "gradients"

Gradients = dict[str, np.ndarray]
Result = TypeVar("Result")


def compare_gradients(sides: Sides, probes: Mapping[str, Inputs]) -> CapabilityResult:
    if reason := why_not(CLAIM, sides):
        return not_compared(f"{CLAIM}: {reason}")
    name, inputs = next(iter(probes.items()))
    answer, _ = sides.reference.near(inputs)
    drawn = np.random.default_rng(answer.size).standard_normal(answer.shape).astype(np.float32)
    kept = sides.reference.kept(inputs, answer.shape)  # 0 at padding
    expected = Expected(sides.reference, {**inputs, COTANGENT: drawn if kept is None else drawn * kept})
    try:
        own = expected.pair(_gradients, sides.reference.exact, sides.reference.rounded)
    except Exception as error:  # noqa: BLE001 - the result may have no derivative
        return not_compared(f"{CLAIM}: the reference raises {raised(error)}")
    try:
        actual, unknown = _of_port(sides, expected, own[0])
        found = _judged(sides, expected, own, actual, name)
    except PortError as error:
        return failed(CLAIM, name, error)
    unused = [each for each, value in own[0].items() if not value.any()]
    if unused:
        others = f" and {count(len(unused) - 1, 'further parameter')}" if unused[1:] else ""
        found += not_compared(f"{unused[0]}{others}: without effect on the answer for {name}")
    return found + not_compared(
        *(f"{CLAIM} of {each}: no parameter of the port has this parameter's values" for each in unknown)
    )


@dataclass(frozen=True, eq=False)
class Expected:
    reference: Reference
    inputs: Inputs

    def pair(self, way: Callable[[Any, Any], Result], exact: Any, rounded: Any) -> tuple[Result, Result]:
        with exactly():
            true = way(exact, self.reference.given(exact, self.inputs))
        return true, way(rounded, self.reference.given(rounded, self.inputs))

    def budgets(self, pairs: Sequence[tuple[Gradients, Gradients]]) -> dict[str, float]:
        """Return the budget of each gradient. A pair contains the exact and the rounded gradients of one model."""
        rule, ulp = RULES[self.reference.dtype], epsilon(self.reference.dtype)
        scale = max(float(np.abs(value).max(initial=0.0)) for value in pairs[0][0].values())
        return {
            name: rule.budget(max(gap(rounded[name], exact[name]) for exact, rounded in pairs), ulp, scale)
            for name in pairs[0][0]
        }


def _gradients(model: Any, given: Any) -> Gradients:
    learned = {name: value for name, value in model.named_parameters() if value.requires_grad}
    made = {name: value.double().numpy() for name, value in gradients(model, given)["gradients"].items()}
    return {name: np.zeros(tuple(value.shape)) for name, value in learned.items()} | made


def _of_port(sides: Sides, expected: Expected, exact: Gradients) -> tuple[Gradients, list[str]]:
    answer = ask(sides.forward, CLAIM, **expected.inputs)
    places, found = ({name: call_port(as_numbers, value) for name, value in answer[part].items()} for part in answer)
    whole = {name: found.get(name, np.zeros_like(value)).astype(np.float64) for name, value in places.items()}
    weights = sides.reference.weights
    same = [name for name in exact if name in places and is_same(places[name], weights[name])]
    others = {name: weights[name] for name in exact if name not in same and name in weights}
    taken = located(others, places) if others else {}  # a parameter of the same name may have its rows in another order
    by_value = {name: each.take(whole) for name, each in taken.items()}
    found = {name: whole[name] for name in same} | by_value
    return found, [name for name in exact if name not in found]


def is_same(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two parameters are equal, or one of them is rounded to bfloat16."""
    return one.shape == other.shape and gap(one, other) <= epsilon("bfloat16") * float(np.abs(other).max(initial=0.0))


def _judged(
    sides: Sides, expected: Expected, own: tuple[Gradients, Gradients], actual: Gradients, probe: str
) -> CapabilityResult:
    errors = {name: gap(actual[name], value) for name, value in own[0].items() if name in actual}
    budgets = expected.budgets([own])
    if any(share(error, budgets[name]) > 1 for name, error in errors.items()):
        neighbours = [expected.pair(_gradients, *pair) for pair in sides.reference.neighbours]
        budgets = expected.budgets([own, *neighbours])
    shares = {name: share(error, budgets[name]) for name, error in errors.items()}
    if not shares:
        return not_compared(f"{CLAIM}: not compared, because no parameter matches the reference's parameters")
    worst = max(shares, key=lambda name: shares[name])
    used = sum(bool(own[0][name].any()) for name in shares)
    claim = ClaimResult.of(CLAIM, errors[worst], budgets[worst], f"{worst} ({count(used, 'parameter')}, {probe})")
    if shares[worst] <= 1:
        return CapabilityResult((claim,))
    wrong = [name for name in shares if shares[name] > 1]
    port: Backward = ask(sides.forward, "backward", **expected.inputs)
    if not any(value.any() for value in actual.values()) and not port.computes_gradients:
        return not_compared(f"{CLAIM}: not compared, because the port turns gradients off")
    traces: tuple[Backward, Backward] = expected.pair(backward, sides.reference.exact, sides.reference.rounded)
    place = Place(*traces, port, sides.reference.dtype)
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
    wrong_of = f"wrong for {len(wrong)} of {count(len(shares), 'parameter')}"
    says = f"gradients: {wrong_of}; the first of them in the backward pass is {first}"
    return CapabilityResult((claim,), (fault,), notes=(says,))


class Place:
    """A search for the function at which the backward pass becomes wrong."""

    def __init__(self, exact: Backward, rounded: Backward, port: Backward, dtype: str) -> None:
        self.theirs, self.port = exact, port
        rule, ulp = RULES[dtype], epsilon(dtype)

        def within(a: np.ndarray | None, b: np.ndarray | None) -> float:
            return 0.0 if a is None or b is None else rule.budget(_apart(a, b), ulp, 1.0)

        self.shares = [within(a.value, b.value) for a, b in zip(exact.operations, rounded.operations, strict=True)]
        self.shares_of_gradients = [within(a, b) for a, b in zip(exact.gradients, rounded.gradients, strict=True)]
        known = Known({index: fingerprint(each.value) for index, each in enumerate(port.operations)})
        self.alike: list[list[int]] = [[] for _ in port.operations]
        for index, each in enumerate(exact.operations):
            for counterpart in known.equal_to(each.value, self.shares[index]):
                self.alike[counterpart].append(index)

    def backwards(self) -> list[str]:
        """Return the names of the reference's parameters in the order in which the backward pass reaches them."""
        last: dict[int, int] = {}
        for index, operation in enumerate(self.theirs.operations):
            last |= dict.fromkeys(operation.inputs, index)
        learned = [index for index, each in enumerate(self.theirs.operations) if not each.inputs and not each.stack]
        return [self.theirs.operations[index].name for index in sorted(learned, key=lambda index: -last.get(index, -1))]

    def _is_wrong(self, index: int) -> bool:
        given, theirs = self.port.gradients[index], self.theirs.gradients
        expected = {each: gradient for each in self.alike[index] if (gradient := theirs[each]) is not None}
        if not expected or len(expected) < len(self.alike[index]) or not self.port.passes[index]:
            return False
        shares = self.shares_of_gradients
        return given is None or all(_apart(gradient, given) > shares[each] for each, gradient in expected.items())

    def found(self) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None, tuple[Cause, ...]]:
        """Return the port's line and the reference's line. Add a cause if a gradient passes through a function in the
        reference, but not in the port."""
        wrong = [index for index in range(len(self.port.operations)) if self._is_wrong(index)]
        if not wrong:
            return None, None, ()
        readers = [i for i, each in enumerate(self.port.operations) if wrong[-1] in each.inputs]
        # A reading operation is cut off if a gradient reaches its value in the reference, but not in the port.
        passes = {i: not self.alike[i] or any(self.theirs.passes[each] for each in self.alike[i]) for i in readers}
        cut = [reader for reader in readers if passes[reader] and not self.port.passes[reader]]
        culprit = next(iter([*cut, *readers]), wrong[-1])
        operation, following = self.port.operations[culprit], readers_of([each.inputs for each in self.port.operations])
        after = sorted(ancestors([culprit], lambda each: following.get(each, ())))
        # Report the reference's line that computes the first later value that both implementations have.
        alike = (each for index in after if self.alike[index] != self.alike[wrong[-1]] for each in self.alike[index])
        theirs = next((_line(self.theirs.operations[each].source) for each in alike), None)
        causes: tuple[Cause, ...] = ()
        if cut:
            says = f"no gradient passes through `{operation.name}` in your port, but one does in the reference"
            causes = (Cause("gradient-missing", says, None, 0.0, 0.0),)
        return _line(operation.source), theirs, causes


def _line(source: Source | None) -> Mapping[str, Any] | None:
    return None if source is None else dataclasses.asdict(source)


def _apart(exact: np.ndarray, other: np.ndarray) -> float:
    a, b = np.sort(exact, axis=None), np.sort(other, axis=None)
    return gap(b, a) / (float(np.abs(a).max(initial=0.0)) or 1.0)
