"""Find the residual stream and the norms of each stack: try every placement of norms around the sublayers."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transparity.config import Branches, NormPosition
from transparity_conformance.identify.fitting.structure import FeedForward
from transparity_conformance.identify.fitting.subject import FitError
from transparity_conformance.identify.fitting.values.experts import Experts
from transparity_conformance.identify.fitting.values.head import pooled_states
from transparity_conformance.identify.fitting.values.linears import Sublayer
from transparity_conformance.identify.fitting.values.norms import Norm, Norms
from transparity_conformance.identify.fitting.values.numbers import factor_between, is_same
from transparity_conformance.listening.operation import Operation
from transparity_conformance.oracle.oracle import Arrays

AHEAD = 40
"""The number of later operations in which to search for a norm's result or a sum with the residual."""

PLACES: dict[NormPosition, tuple[bool, bool, bool]] = {
    "pre": (True, False, False),
    "post": (False, False, True),
    "sandwich": (True, True, False),
    "post-branch": (False, True, False),
}
"""Whether norms are applied to a sublayer's input, to its output, and to the sum of the output and the residual."""

WAYS: tuple[tuple[NormPosition, Branches], ...] = (
    *((place, "sequential") for place in PLACES),
    ("pre", "parallel"),
    ("pre", "parallel-one-norm"),
)


@dataclass
class Stream:
    position: NormPosition
    branches: Branches
    norms: dict[str, Norm] = field(default_factory=dict)
    output: np.ndarray = field(default_factory=lambda: np.empty(0))
    head_factor: float = 1.0
    """The factor between the output of the stack and the input of the head."""
    multiplier: float = 1.0
    """The factor of a sublayer's output in the sum with the residual."""

    @property
    def used(self) -> set[str]:
        return {name for norm in self.norms.values() for name in norm.names}

    @property
    def form(self) -> tuple[str, bool, bool]:
        ends = {name.partition(".")[2] for name in self.norms}
        return self.position, "embedding_norm" in ends, "final_norm" in ends


@dataclass(frozen=True, eq=False)
class End:
    """The input of the head: all states, or one vector for each row of the batch."""

    value: np.ndarray
    inputs: Arrays
    pooling: Sequence[Mapping[str, Any]] = ()
    """The fields with which the reference may pool the states, if any."""

    def of(self, x: np.ndarray) -> Iterator[tuple[np.ndarray, bool]]:
        """Yield the input that the head would read from the states `x`, and whether it is a state (not a mean), for
        each possible pooling."""
        if self.value.shape[1] != x.shape[1]:
            return
        if not self.pooling and self.value.shape == x.shape:
            yield x, True
        for fields in self.pooling:
            states = x.reshape(len(self.value), -1, x.shape[1])
            yield pooled_states(fields, states, self.inputs), fields["pooling"] != "mean"


def streams_of(
    stacks: Mapping[str, tuple[np.ndarray, Mapping[str, Sublayer]]],
    end: End,
    operations: Sequence[Operation],
    norms: Norms,
) -> dict[str, Stream]:
    """Return the stream of each stack, given the embedded inputs and the sublayers by name."""
    *memories, last = stacks
    options: list[Stream | None] = [None]
    for name in memories:
        options = list(_Walk(name, *stacks[name], None, operations, norms).streams())
    reached = 0
    for first in options:
        walk = _Walk(last, *stacks[last], end, operations, norms, first)
        for second in walk.streams():
            if first is None:
                return {last: second}
            if first.form == second.form:
                return {memories[0]: first, last: second}
        reached = max(reached, walk.reached)
    name, sublayer = list(stacks[last][1].items())[reached]
    raise FitError(
        f"The residuals and norms of the {last} were not recognized at {name} ({sublayer.tensor}); expected layer, RMS "
        "or batch norms before, after or around each sublayer."
    )


@dataclass
class _Walk:
    stack: str
    embedded: np.ndarray
    sublayers: Mapping[str, Sublayer]
    end: End | None
    operations: Sequence[Operation]
    norms: Norms
    memory: Stream | None = None
    reached: int = 0
    """The largest number of sublayers that a placement of norms explains."""

    def streams(self) -> Iterator[Stream]:
        """Yield every placement of norms that explains all values, the most plausible first."""
        rows, every = self.embedded, enumerate(self.operations)
        self.values = [(i, each.value.reshape(rows.shape)) for i, each in every if each.value.size == rows.size]
        for way, with_norm in itertools.product(WAYS, (False, True)):
            plain = Stream(*way, output=rows)
            starts = self._normed(plain, f"{self.stack}.embedding_norm", rows) if with_norm else iter([plain])
            for made in starts:
                if self._follows(made):
                    yield from self._ends(made)

    def _follows(self, made: Stream) -> bool:
        """Add the norms between the sublayers, and the output; return whether they explain every sublayer's input."""
        x = entered = attended = made.output
        added = np.zeros_like(x)
        before, behind, after = PLACES[made.position]
        for index, (name, sublayer) in enumerate(self.sublayers.items()):
            self.reached = max(self.reached, index)
            given, (at, y) = sublayer.given.reshape(x.shape), sublayer.result
            is_beside = made.branches != "sequential" and isinstance(sublayer, FeedForward | Experts)
            if not is_beside:  # a feed-forward beside attention reads the same input
                entered, attended, added = x, given, np.zeros_like(x)
            if is_beside and made.branches == "parallel-one-norm":
                is_read = is_same(attended, given)
            else:
                is_read = self._is_normed(made, f"{name}_norm", entered, given) if before else is_same(entered, given)
            if not is_read or ("cross" in name and not self._reads_memory(made, name, sublayer)):
                return False
            added = added + y
            x = y if behind else self._added(made, entered, added, at)
            if behind or after:
                place = f"{name}_post_norm" if before else f"{name}_norm"
                found = next(self._normed(made, place, x, at, at + AHEAD), None)
                if found is None:
                    return False
                made.norms, x = found.norms, found.output
            x = self._added(made, entered, x, at) if behind else x
        made.output = x
        return True

    def _norm(self, made: Stream, x: np.ndarray, result: np.ndarray) -> Norm | None:
        return self.norms.between(x, result, made.used | (self.memory.used if self.memory else set()))

    def _is_normed(self, made: Stream, name: str, x: np.ndarray, result: np.ndarray) -> bool:
        norm = self._norm(made, x, result)
        if norm is not None:
            made.norms[name] = norm
        return norm is not None

    def _normed(
        self, made: Stream, name: str, x: np.ndarray, begin: int = 0, end: int | None = None
    ) -> Iterator[Stream]:
        """Yield a stream for each value that is a norm of `x`, among the values of the operations `begin` to `end`."""
        last = len(self.operations) if end is None else end
        for value in [value for index, value in self.values if begin <= index < last and value is not x]:
            norm = self._norm(made, x, value)
            if norm is not None:
                yield dataclasses.replace(made, norms={**made.norms, name: norm}, output=value)

    def _added(self, made: Stream, x: np.ndarray, y: np.ndarray, at: int) -> np.ndarray:
        """Return `x` plus a sublayer's output `y`. If a later value is `x` plus a multiple of `y`, record the factor
        and return that value."""
        behind = [value for index, value in self.values if at < index < at + AHEAD]
        if any(is_same(x + y, value) for value in behind):
            return x + y
        for value in behind:
            factor = None if is_same(x, value) else factor_between(y, value - x)
            if factor is not None and factor > 0:
                made.multiplier = factor
                return x + factor * y
        return x + y

    def _reads_memory(self, made: Stream, name: str, sublayer: Sublayer) -> bool:
        if self.memory is None:
            return False
        x, given = self.memory.output, sublayer.maps["key"].given.reshape(self.memory.output.shape)
        return is_same(x, given) or self._is_normed(made, name.replace("cross_attention", "memory_norm"), x, given)

    def _ends(self, made: Stream) -> Iterator[Stream]:
        """Yield the stream with and without a final norm. If there is a head, yield only the first stream that leads to
        the head's input, possibly with a factor. The norm may also follow the pooling."""
        final = f"{self.stack}.final_norm"
        every = itertools.chain([made], self._normed(made, final, made.output))
        if self.end is None:
            yield from every
            return
        for ended in every:
            for given, _ in self.end.of(ended.output):
                factor = factor_between(given, self.end.value)
                if factor is not None:
                    yield dataclasses.replace(ended, head_factor=factor)
                    return
        for given, is_state in self.end.of(made.output):
            norm = self._norm(made, given, self.end.value) if is_state else None
            if norm is not None:
                yield dataclasses.replace(made, norms={**made.norms, final: norm}, output=self.end.value)
                return
