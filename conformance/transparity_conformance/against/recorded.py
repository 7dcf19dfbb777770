"""A call of a port: its operations in order, and its answer."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transparity_conformance.against.flow import ancestors
from transparity_conformance.against.values import fingerprint
from transparity_conformance.listening.operation import Operation
from transparity_conformance.oracle.budgets import rounded_to


@dataclass(frozen=True, eq=False)
class Recorded:
    """A recorded call of a port."""

    operations: Sequence[Operation]
    answer: np.ndarray

    @functools.cached_property
    def prints(self) -> dict[int, np.ndarray | None]:
        """The fingerprints of all operations; whole numbers that are computed from others, such as chosen experts, may
        be equal by chance: they have none."""
        found, has_fraction = dict[int, np.ndarray | None](), set[int]()
        for index, each in enumerate(self.operations):
            is_whole = np.array_equal(each.value, np.round(each.value))
            if not is_whole or not has_fraction.isdisjoint(each.inputs):
                has_fraction.add(index)
            found[index] = None if is_whole and index in has_fraction else fingerprint(each.value)
        return found

    @functools.cached_property
    def relevant(self) -> frozenset[int]:
        """The operations that the answer is computed from."""
        equal = [
            index
            for index, each in enumerate(self.operations)
            if each.value.size == self.answer.size
            and np.array_equal(np.ravel(each.value), np.ravel(self.answer), equal_nan=True)
        ]
        last = equal[-1] if equal else len(self.operations) - 1
        return ancestors(last, lambda index: self.operations[index].inputs)

    @functools.cached_property
    def readers(self) -> Mapping[int, Sequence[int]]:
        """The operations that are given the value of each."""
        found: dict[int, list[int]] = {}
        for index, operation in enumerate(self.operations):
            for each in operation.inputs:
                found.setdefault(each, []).append(index)
        return found

    @functools.cached_property
    def rounded(self) -> dict[str, list[np.ndarray]]:
        """The values that a shorter dtype can hold, by its name."""
        values = [self.operations[i].value for i in sorted(self.relevant) if self.prints[i] is not None]
        with np.errstate(over="ignore"):
            return {
                dtype: [value for value in values if np.array_equal(rounded_to(value, dtype), value)]
                for dtype in ("bfloat16", "float16")
            }
