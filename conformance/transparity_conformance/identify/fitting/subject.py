"""The module to fit: draw random weights that distinguish its parameters, call the module, and record the call."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from transparity_conformance.capabilities.port_calls import PortCallError, PortError, call_port
from transparity_conformance.identify.proof import Model
from transparity_conformance.listening.listen import listen
from transparity_conformance.listening.operation import Operation
from transparity_conformance.matching.forms import stacked, within_sequence
from transparity_conformance.matching.recorded import Recorded
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.report.comparison import as_numbers
from transparity_conformance.running.process.isolation import RemotePort

SPREAD = 0.3
"""The standard deviation of a vector's random elements. Their mean is the mean of the initial values, clipped to ±1.
Without clipping, the initial values of a recurrence would give time steps so short that its states hardly change."""


Loops = Literal["none", "batch second", "rows", "heads"]
"""How a model's code loops. `batch second` means no loop, but the axes (positions, rows, …)."""

KERNEL = 4

MOST_HEADS = 64


class FitError(PortError):
    """The module cannot be fitted; the message names the reason."""

    known: Mapping[str, Any] = {}
    """The fields that were found before the error."""


class ForeignError(FitError):
    """A recognized part has no configuration; the search stops."""


class ModuleError(FitError):
    """The module raised an exception when it was called."""


@dataclass(frozen=True, eq=False)
class RecordedCall:
    inputs: Arrays
    output: np.ndarray
    operations: Sequence[Operation]
    lengths: Mapping[str, int]
    """The number of positions of each input: tokens, patches or audio."""

    @property
    def batch(self) -> int:
        return len(next(iter(self.inputs.values())))

    def shows(self, activation: np.ndarray) -> bool:
        return self._computed.nearest(activation) is not None

    @functools.cached_property
    def _computed(self) -> Recorded:
        return Recorded(self.operations, self.output)


class FittedModel:
    def __init__(self, model: Model, seed: int = 0) -> None:
        self.model, self.names = model, model.inputs()
        self.loops: Loops = "none"
        self.positions: dict[str, int] = {}
        self.loose: set[str] = set()
        """The image or audio inputs for which the module accepts any size."""
        self.renamed: dict[str, str] = {}
        """The previous name of each input that turned out to be an image."""
        self.random = np.random.default_rng(seed)
        self.values = {name: self._drawn(name, tensor) for name, tensor in model.tensors().items()}
        model.assign(self.values)
        self.is_low = any((value != self.values[name]).any() for name, value in model.tensors().items())
        """Whether weights have a lower precision than float32, whose rounded values no fit can match."""
        if self.is_low and call_port(model.widen):
            model.assign(self.values)

    @property
    def inputs(self) -> tuple[str, ...]:
        if "pixels" in self.names:
            return ("pixels",)
        return ("source", "target") if "target" in self.names else ("tokens",)

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(name for name in self.inputs if name not in self.positions)

    def lengths(self, inputs: Arrays) -> dict[str, int]:
        return {name: self.positions.get(name) or inputs[name].shape[1] for name in self.inputs}

    def widen(self, inputs: Arrays) -> None:
        """Convert the module to float64, unless the output changes: a fused kernel may misread a float32 mask."""
        if self.is_low:  # the model already computes in float64, or cannot
            return
        before = self.call(inputs)
        try:
            if call_port(self.model.widen):
                after = self.call(inputs)
                if after.dtype == np.float64 and Recorded((), after).agree(after, before):
                    return
        except PortError:
            pass
        self.model.narrow()

    def narrow(self) -> None:
        if not self.is_low:
            self.model.narrow()

    def takes(self, inputs: Arrays) -> bool:
        try:
            self.call(inputs)
        except ModuleError:
            return False
        return True

    def call(self, inputs: Arrays) -> np.ndarray:
        with self._described(inputs):
            return as_numbers(call_port(self.model, **self._named(inputs)))

    def hear(self, inputs: Arrays) -> RecordedCall:
        with self._described(inputs):
            named = self._named(inputs)
            if isinstance(self.model, RemotePort):
                output, operations = call_port(self.model.listened, **named)
            else:
                output, operations = call_port(listen, lambda: self.model(**named))
        operations = within_sequence(operations, self.lengths(inputs).values())
        if self.loops == "batch second":
            operations = [dataclasses.replace(each, value=self._rows_first(each.value, inputs)) for each in operations]
        elif self.loops != "none":
            operations = self._together(operations, inputs)
        answer = as_numbers(output).astype(np.float64)
        ends = [i for i, each in enumerate(operations, 1) if np.array_equal(each.value, answer)]
        operations = operations[: max(ends, default=len(operations))]  # the output depends on no later operation
        return RecordedCall(inputs, answer, operations, self.lengths(inputs))

    def _named(self, inputs: Arrays) -> Arrays:
        return {self.renamed.get(name, name): value for name, value in inputs.items()}

    def _rows_first(self, value: np.ndarray, inputs: Arrays) -> np.ndarray:
        """Put rows before positions if the first two axes are (positions, rows), possibly merged."""
        for name, length in self.lengths(inputs).items():
            rows = len(inputs[name])
            if value.shape[:2] == (length, rows):
                return value.swapaxes(0, 1)
            if value.shape[:1] == (length * rows,) and value.ndim == 2:
                return value.reshape(length, rows, -1).swapaxes(0, 1).reshape(value.shape)
        return value

    def _together(self, operations: Sequence[Operation], inputs: Arrays) -> Sequence[Operation]:
        """Stack the results of loops; rows become the first axis."""
        shapes = [(len(inputs[name]), length) for name, length in self.lengths(inputs).items()]
        found = stacked(operations, shapes, range(2, MOST_HEADS + 1))
        if self.loops == "rows":
            return found
        return [
            dataclasses.replace(each, value=each.value.swapaxes(0, 1)) if each.value.ndim > 3 else each
            for each in found
        ]

    @contextlib.contextmanager
    def _described(self, inputs: Arrays) -> Iterator[None]:
        try:
            yield
        except PortCallError as error:
            shapes = ", ".join(f"{name} {value.shape}" for name, value in inputs.items())
            hint = (
                "; its weights have less than float32's precision: build it with dtype float32" if self.is_low else ""
            )
            raise ModuleError(f"The module raised {error} when it was called with {shapes}{hint}.") from error

    def _drawn(self, name: str, tensor: np.ndarray) -> np.ndarray:
        """Draw float32 numbers that saturate no activation."""
        value = self.random.normal(size=tensor.shape)
        if tensor.ndim < 2:
            with np.errstate(all="ignore"):  # memory that is not initialized
                mean = np.nan_to_num(tensor.mean(dtype=np.float64))
            value = np.clip(mean, -1, 1) + SPREAD * value
            value = np.abs(value) + SPREAD if name.endswith("var") else value
        elif "emb" not in name.lower():
            value = value / np.prod(tensor.shape[1 if tensor.ndim == KERNEL else -1 :]) ** 0.5
        return value.astype(np.float32).astype(np.float64)
