"""Experts, which are not read: a module that has some is told by its router, of whose scores the highest are taken."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from transparity_conformance.ports.fitting.subject import ForeignError
from transparity_conformance.ports.fitting.values.linears import Linear
from transparity_conformance.ports.fitting.values.numbers import is_same
from transparity_conformance.ports.listening.operation import Operation
from transparity_numpy.arithmetic.functional import sigmoid, softmax

BEHIND = 12
"""Operations behind a router's map in which the highest of its scores are sought."""


def refuse_experts(maps: Sequence[Linear], operations: Sequence[Operation]) -> None:
    """Raise `ForeignError` for a map of whose results, or of whose softmax or sigmoid, an operation has some of the
    highest in each row, in order."""
    for one in maps:
        rows, count = one.made.shape
        scores = [np.sort(each, axis=1)[:, ::-1] for each in (one.made, softmax(one.made), sigmoid(one.made))]
        for operation in operations[one.at + 1 : one.at + BEHIND]:
            most = operation.value.shape[-1] if operation.value.ndim > 1 else 0
            if 0 < most < count and operation.value.size == rows * most:
                chosen = operation.value.reshape(rows, most)
                if any(is_same(each[:, :most], chosen) for each in scores):
                    raise ForeignError(
                        f"{one.name} is a router of {count} experts, which are not understood; expected feed-forwards "
                        "without: fit the model with dense ones, and write the fields of experts by hand."
                    )
