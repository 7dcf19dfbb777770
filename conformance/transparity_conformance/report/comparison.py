"""Compare arrays. Each comparison has an error and a budget, which is the largest error that rounding explains."""

from __future__ import annotations

import importlib
import math
import operator
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Expectation = Literal["holds", "breaks"]

BLOCK = 2**14
"""Elements compared at once: 128 KB in float64, which fit the processor's cache. With larger blocks, comparing 50
million elements takes four times as long."""


@dataclass(frozen=True)
class Column:
    backend: str
    dtype: str
    device: str = "cpu"

    @property
    def where(self) -> str:
        return "" if self.device == "cpu" else f" on {self.device}"

    @property
    def family(self) -> str:
        return f"{self.backend}{self.where}"

    def __str__(self) -> str:
        return f"{self.backend} {self.dtype}{self.where}"


@dataclass(frozen=True)
class BackendSubject(Column):
    mode: str = "eager"

    def __str__(self) -> str:
        return f"{self.backend} {self.dtype} {self.mode}{self.where}"


class Compared:
    """A comparison, which agrees if its error is at most its budget."""

    error: float
    budget: float

    @property
    def share(self) -> float:
        return share(self.error, self.budget)

    @property
    def is_wrong(self) -> bool:
        return self.share > 1


SHARE = operator.attrgetter("share")


@dataclass(frozen=True)
class ClaimEvidence(Compared):
    """The comparison of a backend's value with a claim's expected value."""

    claim: str
    """The id, such as `attention.weights`."""
    subject: BackendSubject
    case: str
    where: str
    """The name of the compared activation or other value."""
    error: float
    """The largest absolute difference; infinite for NaN and for incomparable values."""
    budget: float
    """The largest difference that rounding explains; 0 if the claim is exact."""
    expectation: Expectation = "holds"
    """`breaks` if the claim must fail, because the preset's document contains a mistake."""
    note: str = ""

    @property
    def agrees(self) -> bool:
        return self.is_wrong == (self.expectation == "breaks")

    def __str__(self) -> str:
        expected = "" if self.expectation == "holds" else ", although the document's mistake should break this claim"
        note = f" ({self.note})" if self.note else ""
        return (
            f"{self.claim}, {self.subject}, {self.case}: {self.where} differs by {self.error:.3g}, "
            f"{self.share:.3g} × its budget of {self.budget:.3g}{expected}{note}"
        )


def share(error: float, budget: float) -> float:
    """Return error / budget; above 1, the values disagree. The share is infinite for NaN and for an infinite budget:
    without a bound, nothing agrees."""
    if math.isnan(error) or not math.isfinite(budget):
        return math.inf
    if error == 0:
        return 0.0
    return error / budget if budget else math.inf


def difference(actual: Any, expected: Any) -> float:
    """Return the largest |actual − expected|, without broadcasting; for bools, the number of different elements.
    Different shapes, empty arrays, NaN, and elements that are finite in only one array give infinity."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape or actual.size == 0:
        return math.inf
    if actual.dtype.kind == "b" or expected.dtype.kind == "b":
        return float(np.count_nonzero(actual != expected)) if actual.dtype == expected.dtype else math.inf
    return math.inf if np.isnan(expected).any() else gap(actual, expected)


def as_numbers(value: Any) -> np.ndarray:
    """Convert an array of any framework, device and dtype to NumPy. Every process with a shard must call this function,
    which gathers the shards."""
    if hasattr(value, "full_tensor"):  # PyTorch's DTensor
        value = value.full_tensor()
    if not (getattr(value, "is_fully_addressable", True) or value.is_fully_replicated):  # a global array of JAX
        value = importlib.import_module("jax.experimental.multihost_utils").process_allgather(value, tiled=True)
    if hasattr(value, "detach"):  # a PyTorch tensor; the test does not import PyTorch
        if (torch := sys.modules.get("torch")) and isinstance(value, torch.Tensor):
            with torch._C.DisableTorchFunctionSubclass():  # read a subclass as a plain tensor
                value = torch.Tensor.as_subclass(value, torch.Tensor)
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    if str(getattr(value, "dtype", "")) == "mlx.core.bfloat16":
        value = value.astype(sys.modules["mlx.core"].float32)
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def dtype_name(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.")


def less(actual: np.ndarray, ours: np.ndarray) -> np.ndarray:
    """Return actual − ours: 0 where both are NaN or the same infinity, infinite at all other NaNs and infinities."""
    if actual.shape != ours.shape:
        return np.array([np.inf])
    with np.errstate(invalid="ignore"):
        left = np.subtract(actual, ours, dtype=np.float64)
    if np.isfinite(left).all():
        return left  # the usual case: the lines below are slow
    same = (actual == ours) | (np.isnan(actual) & np.isnan(ours))
    return np.where(same, 0.0, np.where(np.isnan(left), np.inf, left))


def gap(actual: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest absolute difference; infinite if an element is NaN or infinite in only one array."""
    if actual.size > BLOCK and actual.shape == expected.shape:
        return max(gap(*blocks) for blocks in _in_blocks(actual, expected))
    return float(np.abs(less(actual, expected)).max(initial=0.0))


def largest(value: np.ndarray) -> float:
    """Return the largest absolute value; 0 for an empty array."""
    return max(float(value.max(initial=0.0)), -float(value.min(initial=0.0)))


def _in_blocks(*arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    flat = [each.reshape(-1) for each in arrays]
    for begin in range(0, flat[0].size, BLOCK):
        yield tuple(each[begin : begin + BLOCK] for each in flat)
