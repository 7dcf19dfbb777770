"""Find the place where two backward passes diverge: between a wrong gradient and the next function."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from transparity_conformance.listening.backward import Backward
from transparity_conformance.listening.operation import Source
from transparity_conformance.matching.values import Known, fingerprint
from transparity_conformance.oracle.budgets import RULES, epsilon
from transparity_conformance.report.report import Cause


class Place:
    """The last value of the port whose gradient is wrong, and the function that reads this value."""

    def __init__(self, exact: Backward, rounded: Backward, port: Backward, dtype: str) -> None:
        self.theirs, self.port = exact, port
        rule, ulp = RULES[dtype], epsilon(dtype)

        def within(a: np.ndarray | None, b: np.ndarray | None) -> float:
            return 0.0 if a is None or b is None else rule.budget(_apart(a, b), ulp, 1.0)

        values = zip(exact.operations, rounded.operations, strict=True)
        self.shares = [within(a.value, b.value) for a, b in values]
        self.shares_of_gradients = [within(a, b) for a, b in zip(exact.gradients, rounded.gradients, strict=True)]
        known = Known({index: fingerprint(each.value) for index, each in enumerate(port.operations)})
        self.alike: list[list[int]] = [[] for _ in port.operations]
        for index, each in enumerate(exact.operations):
            for counterpart in known.equal_to(each.value, self.shares[index]):
                self.alike[counterpart].append(index)

    def backwards(self) -> list[str]:
        """Return the names of the reference's parameters in the order in which a backward pass reaches them."""
        last: dict[int, int] = {}
        for index, operation in enumerate(self.theirs.operations):
            last |= dict.fromkeys(operation.inputs, index)
        learned = [index for index, each in enumerate(self.theirs.operations) if not each.inputs and not each.stack]
        return [self.theirs.operations[index].name for index in sorted(learned, key=lambda index: -last.get(index, -1))]

    def _is_wrong(self, index: int) -> bool:
        """Return whether the gradient of a value of the port differs from the gradients of all its counterparts."""
        given, theirs = self.port.gradients[index], self.theirs.gradients
        expected = {each: gradient for each in self.alike[index] if (gradient := theirs[each]) is not None}
        if not expected or len(expected) < len(self.alike[index]) or not self.port.passes[index]:
            return False
        shares = self.shares_of_gradients
        return given is None or all(_apart(gradient, given) > shares[each] for each, gradient in expected.items())

    def _is_cut(self, index: int) -> bool:
        """Return whether no gradient reaches a value of the port, although a gradient reaches its counterparts."""
        alike = self.alike[index]
        return not self.port.passes[index] and (not alike or any(self.theirs.passes[each] for each in alike))

    def found(self) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None, tuple[Cause, ...]]:
        """Return the lines of the port and the reference, and the cause if a function passes no gradient on."""
        wrong = [index for index in range(len(self.port.operations)) if self._is_wrong(index)]
        if not wrong:
            return None, None, ()
        readers = [i for i, each in enumerate(self.port.operations) if wrong[-1] in each.inputs]
        cut = [reader for reader in readers if self._is_cut(reader)]
        culprit = next(iter([*cut, *readers]), wrong[-1])
        operation, theirs = self.port.operations[culprit], self._counterpart(culprit, wrong[-1])
        causes: tuple[Cause, ...] = ()
        if cut:
            says = f"no gradient passes through `{operation.name}` in your port, but one does in theirs"
            causes = (Cause("gradient-missing", says, None, 0.0, 0.0),)
        return _line(operation.source), theirs, causes

    def _counterpart(self, culprit: int, given: int) -> Mapping[str, Any] | None:
        """Return the reference's line of the first counterpart of a value that depends on `culprit`.

        Values with the counterparts of `given` are skipped.
        """
        for index in self._following(culprit):
            for each in self.alike[index] if self.alike[index] != self.alike[given] else ():
                return _line(self.theirs.operations[each].source)
        return None

    def _following(self, index: int) -> Iterator[int]:
        """Yield the index of a value, and the indices of all values that depend on it."""
        after = {index}
        for number, operation in enumerate(self.port.operations):
            if number == index or not after.isdisjoint(operation.inputs):
                after.add(number)
                yield number


def _line(source: Source | None) -> Mapping[str, Any] | None:
    return None if source is None else dataclasses.asdict(source)


def _apart(exact: np.ndarray, other: np.ndarray) -> float:
    """Return the largest difference of the sorted numbers, as a share of the largest number."""
    a, b = np.sort(exact, axis=None), np.sort(other, axis=None)
    scale = float(np.abs(a).max(initial=0.0))
    if a.shape != b.shape:
        return float("inf")
    return float(np.abs(a - b).max(initial=0.0)) / scale if scale else float(np.abs(b).max(initial=0.0))
