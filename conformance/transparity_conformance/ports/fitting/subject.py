"""The module to be fitted: loaded, given weights that tell parameters apart, called, and listened to."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from transparity_conformance.capabilities.stranger import PortCallError, PortError, call_stranger
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.ports.alignment.values.loops import stacked
from transparity_conformance.ports.listening.listen import listen
from transparity_conformance.ports.listening.operation import Operation
from transparity_conformance.ports.process.running import PortElsewhere
from transparity_conformance.report.comparison import as_numbers

SPREAD = 0.3
"""The standard deviation of drawn vectors around the mean of what they are at first."""


Loops = Literal["none", "rows", "heads"]
"""What a model computes one at a time: nothing, the rows of a batch, or heads (and perhaps rows)."""

MOST_HEADS = 64
"""The most heads that are sought."""


class FitError(PortError):
    """A port is nothing that can be fitted."""


class ModuleError(FitError):
    """A module raised an exception when it was called."""


@dataclass(frozen=True)
class Heard:
    """One call: its inputs, its output and all its operations."""

    inputs: Arrays
    output: np.ndarray
    operations: Sequence[Operation]


class Fitted(Protocol):
    """A model that is fitted, here or in a process of its own."""

    def __call__(self, **inputs: np.ndarray) -> Any:
        """Run the model."""

    def inputs(self) -> dict[str, str]:
        """Its own name of each of its inputs."""

    def tensors(self) -> dict[str, np.ndarray]:
        """Its tensors by name."""

    def assign(self, values: Mapping[str, np.ndarray]) -> None:
        """Write into its tensors."""

    def widen(self) -> bool:
        """Go on in float64; return whether it can."""

    def narrow(self) -> None:
        """Go back to the precision that it had."""


class Subject:
    """A model with drawn weights, in float64 if it can compute in it."""

    def __init__(self, model: Fitted, seed: int = 0) -> None:
        self.model, self.names = model, model.inputs()
        self.loops: Loops = "none"
        self.random = np.random.default_rng(seed)
        self.values = {name: self._drawn(name, tensor) for name, tensor in model.tensors().items()}
        model.assign(self.values)
        self.is_low = any((value != self.values[name]).any() for name, value in model.tensors().items())
        """Whether it keeps its weights in less than float32, in which values tell nothing."""
        if self.is_low and call_stranger(model.widen):
            model.assign(self.values)

    @property
    def tokens(self) -> tuple[str, ...]:
        """`source` and `target`, or `tokens`."""
        return ("source", "target") if "target" in self.names else ("tokens",)

    def widen(self, inputs: Arrays) -> None:
        """Go on in float64, if the model then answers `inputs`."""
        if self.is_low:  # it is wide already, or cannot be
            return
        try:
            if call_stranger(self.model.widen) and self.call(inputs).dtype == np.float64:
                return
        except PortError:
            pass
        self.model.narrow()

    def call(self, inputs: Arrays) -> np.ndarray:
        """The output of the model."""
        with self._described(inputs):
            return _array(call_stranger(self.model, **inputs))

    def hear(self, inputs: Arrays) -> Heard:
        """The output and every operation."""
        with self._described(inputs):
            if isinstance(self.model, PortElsewhere):
                output, operations = call_stranger(self.model.listened, **inputs)
            else:
                output, operations = call_stranger(listen, lambda: self.model(**inputs))
        if self.loops != "none":
            operations = self._together(operations, inputs)
        return Heard(inputs, _array(output).astype(np.float64), operations)

    def _together(self, operations: Sequence[Operation], inputs: Arrays) -> Sequence[Operation]:
        """The operations with those of all heads and rows put together, the rows first."""
        shapes = [inputs[name].shape for name in self.tokens]
        found = stacked(operations, shapes, range(2, MOST_HEADS + 1))
        if self.loops == "rows":
            return found
        return [
            dataclasses.replace(each, value=each.value.swapaxes(0, 1)) if each.value.ndim > 3 else each
            for each in found
        ]

    @contextlib.contextmanager
    def _described(self, inputs: Arrays) -> Iterator[None]:
        """Raise `ModuleError` with the shapes of the inputs for what the model raises."""
        try:
            yield
        except PortCallError as error:
            shapes = ", ".join(f"{name} {value.shape}" for name, value in inputs.items())
            hint = "; its weights are kept in less than float32: make it with dtype float32" if self.is_low else ""
            raise ModuleError(f"The module raised {error}, when it was called with {shapes}{hint}.") from error

    def _drawn(self, name: str, tensor: np.ndarray) -> np.ndarray:
        """Numbers that no other parameter has, of a size at which nothing saturates; they are float32 numbers."""
        value = self.random.normal(size=tensor.shape)
        if tensor.ndim < 2:
            value = tensor.mean(dtype=np.float64) + SPREAD * value
            value = np.abs(value) + SPREAD if name.endswith("var") else value
        elif "emb" not in name.lower():
            value = value / tensor.shape[-1] ** 0.5
        return value.astype(np.float32).astype(np.float64)


def _array(answer: Any) -> np.ndarray:
    result: np.ndarray = as_numbers(answer)
    return result
