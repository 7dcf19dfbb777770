"""Find the residual stream and the norms of a stack: try every placement of norms around the sublayers."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from transparity.config import Branches, NormPosition
from transparity_conformance.identify.fitting.structure import Attention, FeedForward, Sublayer
from transparity_conformance.identify.fitting.values.experts import Experts
from transparity_conformance.identify.fitting.values.norms import Norm, Norms
from transparity_conformance.identify.fitting.values.numbers import factor_between, is_same
from transparity_conformance.listening.operation import Operation

AHEAD = 40
"""The number of later operations in which to search for a norm's result or a sum with the residual."""

PLACES: tuple[NormPosition, ...] = ("pre", "post", "sandwich", "post-branch")


@dataclass
class Stream:
    position: NormPosition = "pre"
    branches: Branches = "sequential"
    norms: dict[str, Norm] = field(default_factory=dict)
    embedding_norm: bool = False
    final_norm: bool = False
    memory_norm: bool = False
    output: np.ndarray = field(default_factory=lambda: np.empty(0))
    head_factor: float = 1.0
    """The factor between the output of the stack and the input of the head."""
    multiplier: float = 1.0
    """The factor of a sublayer's output in the sum with the residual."""


WAYS: tuple[tuple[NormPosition, Branches], ...] = (
    *((place, "sequential") for place in PLACES),
    ("pre", "parallel"),
    ("pre", "parallel-one-norm"),
)


@dataclass(frozen=True, eq=False)
class End:
    """The input of the head: all states, or one vector for each row of the batch."""

    value: np.ndarray
    choices: tuple[np.ndarray, ...] = ()
    """Matrices that may pool the states, if any."""

    def of(self, x: np.ndarray) -> Iterator[tuple[np.ndarray, bool]]:
        """Yield (value, is_state) for each value that the head may read; a mean of states is no state."""
        if self.value.shape[1] != x.shape[1]:
            return
        if not self.choices and self.value.shape == x.shape:
            yield x, True
        for choice in self.choices:
            yield choice @ x, bool((choice == 1).any())


@dataclass
class Walk:
    embedded: np.ndarray
    sublayers: Sequence[tuple[str, Sublayer]]
    end: End | None
    operations: Sequence[Operation]
    memory: np.ndarray | None = None
    reached: int = 0
    """The largest number of sublayers that a placement of norms explains."""

    @property
    def width(self) -> int:
        return self.embedded.shape[1]

    def streams(self, norms: Norms) -> Iterator[Stream]:
        """Yield every placement of norms that explains all values, the most plausible first."""
        rows, every = self.embedded, enumerate(self.operations)
        self.values = [(i, each.value.reshape(rows.shape)) for i, each in every if each.value.size == rows.size]
        for (place, branches), with_norm in itertools.product(WAYS, (False, True)):
            starts = self._after(norms, self.embedded, 0, len(self.operations)) if with_norm else [None]
            for start in starts:
                made = Stream(place, branches, embedding_norm=with_norm)
                own = norms.having(norms.used)
                x = self.embedded
                if start is not None:
                    norm, x = start
                    self._take(own, made, "embedding_norm", norm)
                output = self._follow(made, own, x)
                if output is not None:
                    yield from self._ends(made, own, output)

    def _follow(self, made: Stream, norms: Norms, x: np.ndarray) -> np.ndarray | None:
        entered, attended, added = x, x, np.zeros_like(x)
        for index, (name, sublayer) in enumerate(self.sublayers):
            self.reached = max(self.reached, index)
            given, (at, y) = sublayer.given.reshape(-1, self.width), sublayer.result
            is_beside = made.branches != "sequential" and isinstance(sublayer, FeedForward | Experts)
            if not is_beside:  # a feed-forward beside attention reads the same input
                entered, attended, added = x, given, np.zeros_like(x)
            if is_beside and made.branches == "parallel-one-norm":
                is_read = is_same(attended, given)
            elif made.position in ("post", "post-branch"):
                is_read = is_same(entered, given)
            else:
                is_read = self._is_normed(made, norms, f"{name}_norm", entered, given)
            if not is_read or ("cross" in name and not self._reads_memory(made, norms, name, sublayer)):
                return None
            added = added + y
            if made.position == "pre":
                x = self._added(made, entered, added, at)
                continue
            normed = self._added(made, x, y, at) if made.position == "post" else y
            found = next(self._after(norms, normed, at, at + AHEAD), None)
            if found is None:
                return None
            norm, result = found
            self._take(norms, made, f"{name}_post_norm" if made.position == "sandwich" else f"{name}_norm", norm)
            x = result if made.position == "post" else self._added(made, x, result, at)
        return x

    def _is_normed(self, made: Stream, norms: Norms, name: str, x: np.ndarray, given: np.ndarray) -> bool:
        norm = norms.between(x, given)
        if norm is not None:
            self._take(norms, made, name, norm)
        return norm is not None

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

    def _reads_memory(self, made: Stream, norms: Norms, name: str, sublayer: Sublayer) -> bool:
        if self.memory is None or not isinstance(sublayer, Attention):
            return False
        given = sublayer.key.given.reshape(-1, self.width)
        if not is_same(self.memory, given):
            made.memory_norm = True
            return self._is_normed(made, norms, name.replace("cross_attention", "memory_norm"), self.memory, given)
        return True

    def _ends(self, made: Stream, norms: Norms, x: np.ndarray) -> Iterator[Stream]:
        if self.end is None:
            yield dataclasses.replace(made, output=x)
            for norm, value in self._after(norms, x, 0, len(self.operations)):
                yield self._normed(made, norm, value)
            return
        yield from itertools.islice(self._read_ends(made, norms, x, self.end), 1)

    def _read_ends(self, made: Stream, norms: Norms, x: np.ndarray, end: End) -> Iterator[Stream]:
        """Yield each end that leads to the head's input, with or without a final norm, and with a factor."""
        normed = (self._normed(made, *each) for each in self._after(norms, x, 0, len(self.operations)))
        for ended in itertools.chain([dataclasses.replace(made, output=x)], normed):
            for given, _ in end.of(ended.output):
                factor = factor_between(given, end.value)
                if factor is not None:
                    yield dataclasses.replace(ended, head_factor=factor)
        for given, is_state in end.of(x):
            norm = norms.between(given, end.value) if is_state else None
            if norm is not None:
                yield self._normed(made, norm, end.value)

    @staticmethod
    def _normed(made: Stream, norm: Norm, value: np.ndarray) -> Stream:
        return dataclasses.replace(made, norms={**made.norms, "final_norm": norm}, final_norm=True, output=value)

    def _after(self, norms: Norms, x: np.ndarray, begin: int, end: int) -> Iterator[tuple[Norm, np.ndarray]]:
        return norms.outputs(x, [value for index, value in self.values if begin <= index < end])

    @staticmethod
    def _take(norms: Norms, made: Stream, name: str, norm: Norm) -> None:
        made.norms[name] = norm
        norms.used.update(norm.names)
