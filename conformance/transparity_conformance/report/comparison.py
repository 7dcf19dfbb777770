"""Evidence: one comparison, with its error, its budget and its expectation."""

from __future__ import annotations

import dataclasses
import importlib
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from transparity.limits.mapped import BLOCK

Expectation = Literal["holds", "breaks"]


@dataclass(frozen=True)
class BackendSubject:
    """A backend in one precision, on one device and in one mode."""

    backend: str
    dtype: str
    device: str = "cpu"
    mode: str = "eager"

    def __str__(self) -> str:
        where = "" if self.device == "cpu" else f" on {self.device}"
        return f"{self.backend} {self.dtype} {self.mode}{where}"


@dataclass(frozen=True)
class ClaimEvidence:
    """One elementwise comparison of `subject` with its expectation: the worst element."""

    claim: str
    """The claim, such as `attention.weights`."""
    subject: BackendSubject
    case: str
    """A preset, or the name of an example."""
    where: str
    """A tap, or another value that was compared."""
    error: float
    """The largest absolute difference; infinite for NaN and values that cannot be compared."""
    budget: float
    """The largest difference that rounding explains; 0 where the claim is exact."""
    expectation: Expectation = "holds"
    """`breaks`: the claim has to fail here, by a mistake that the document prints."""
    note: str = ""

    @property
    def share(self) -> float:
        """The share of the budget that the error uses: above 1 is a disagreement."""
        return share(self.error, self.budget)

    @property
    def agrees(self) -> bool:
        """Return whether the expectation is met."""
        return (self.share <= 1) == (self.expectation == "holds")

    def __str__(self) -> str:
        expected = "" if self.expectation == "holds" else ", where the document's own mistake should have broken it"
        note = f" ({self.note})" if self.note else ""
        return (
            f"{self.claim}, {self.subject}, {self.case}: {self.where} differs by {self.error:.3g}, "
            f"{self.share:.3g} × its budget of {self.budget:.3g}{expected}{note}"
        )

    def as_dict(self) -> dict[str, Any]:
        """JSON values; an infinite number is the string `"inf"`, because JSON has none."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields |= dataclasses.asdict(fields.pop("subject"))
        fields |= {"share": self.share, "agrees": self.agrees}
        numbers = ("error", "budget", "share")
        return fields | {name: "inf" for name in numbers if not math.isfinite(fields[name])}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ClaimEvidence:
        """Return evidence from the fields of `as_dict`."""
        fields = dict(fields) | {name: float(fields[name]) for name in ("error", "budget")}
        subject = BackendSubject(*(fields[field.name] for field in dataclasses.fields(BackendSubject)))
        names = [field.name for field in dataclasses.fields(cls) if field.name != "subject"]
        return cls(subject=subject, **{name: fields[name] for name in names})


def share(error: float, budget: float) -> float:
    """The share of its budget that an error uses: above 1 is a disagreement.

    It is infinite if either is NaN or the budget is infinite, because nothing can agree without a bound.
    """
    if math.isnan(error) or not math.isfinite(budget):
        return math.inf
    if error == 0:
        return 0.0
    return error / budget if budget else math.inf


def difference(actual: Any, expected: Any) -> float:
    """The largest |actual − expected|.

    It is infinite if the shapes differ, if only one side is finite at a place, or if the arrays are empty. Nothing is
    transposed, truncated or broadcast.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape or actual.size == 0:
        return math.inf
    if actual.dtype.kind == "b" or expected.dtype.kind == "b":
        return float(np.count_nonzero(actual != expected)) if actual.dtype == expected.dtype else math.inf
    if actual.size > BLOCK and actual.ndim > 1:
        return max(difference(*rows) for rows in zip(actual, expected, strict=True))
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    same = (actual == expected) & ~np.isnan(actual)  # two infinities of one sign, too
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(actual - expected))
    return float(np.where(np.isnan(apart), math.inf, apart).max())


def as_numbers(value: Any) -> np.ndarray:
    """Convert an array of any framework, device and dtype to NumPy.

    A sharded array is gathered; every process of its framework takes part in this.
    """
    if hasattr(value, "full_tensor"):  # PyTorch's DTensor
        value = value.full_tensor()
    if not (getattr(value, "is_fully_addressable", True) or value.is_fully_replicated):  # a global array of JAX
        value = importlib.import_module("jax.experimental.multihost_utils").process_allgather(value, tiled=True)
    if hasattr(value, "detach"):  # a torch tensor, without importing torch
        if (torch := sys.modules.get("torch")) and isinstance(value, torch.Tensor):
            with torch._C.DisableTorchFunctionSubclass():  # the numbers, whatever a subclass makes of them
                value = torch.Tensor.as_subclass(value, torch.Tensor)
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    if str(getattr(value, "dtype", "")) == "mlx.core.bfloat16":
        value = value.astype(sys.modules["mlx.core"].float32)
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def dtype_name(value: Any) -> str:
    """`float32`, in every framework."""
    return str(value.dtype).removeprefix("torch.")


def less(actual: np.ndarray, ours: np.ndarray) -> np.ndarray:
    """Return actual − ours: 0 where both are NaN or the same infinity, infinite where only one is."""
    if actual.shape != ours.shape:
        return np.array([np.inf])
    with np.errstate(invalid="ignore"):
        left = np.subtract(actual, ours, dtype=np.float64)
    if np.isfinite(left).all():
        return left  # as nearly always: what follows takes most of the time of measuring a budget
    same = (actual == ours) | (np.isnan(actual) & np.isnan(ours))
    return np.where(same, 0.0, np.where(np.isnan(left), np.inf, left))


def gap(actual: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference; values that are not finite must be equal on both sides, including NaN."""
    if actual.size > BLOCK and actual.ndim > 1 and actual.shape == expected.shape:
        return max(gap(*rows) for rows in zip(actual, expected, strict=True))
    return float(np.abs(less(actual, expected)).max(initial=0.0))
