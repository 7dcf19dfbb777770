"""The module to be fitted: loaded, given weights that tell parameters apart, called, and listened to."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from transparity_conformance.capabilities.port_calls import PortCallError, PortError, call_port
from transparity_conformance.identify.alignment.values.loops import stacked
from transparity_conformance.listening.listen import listen
from transparity_conformance.listening.operation import Operation
from transparity_conformance.matching.recorded import Recorded
from transparity_conformance.matching.values import within_sequence
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.report.comparison import as_numbers
from transparity_conformance.running.process.running import RemotePort

SPREAD = 0.3
"""The standard deviation of drawn vectors around the mean of what they are at first, or ±1 if that is beyond: at their
first values, the time steps of a recurrence are so short, and its states decay so fast, that nothing shows."""


Loops = Literal["none", "batch second", "rows", "heads"]
"""What a model computes one at a time: nothing, the rows of a batch, or heads (and perhaps rows); or nothing, with the
positions before the rows."""

KERNEL = 4
"""The axes of the kernel of a convolution over images: features, channels, height, width."""

MOST_HEADS = 64
"""The most heads that are sought."""


class FitError(PortError):
    """A port is nothing that can be fitted."""

    known: Mapping[str, Any] = {}
    """The fields that were found before."""


class ForeignError(FitError):
    """A part is in a port that is known, and in no configuration that is found: no other way of reading helps."""


class ModuleError(FitError):
    """A module raised an exception when it was called."""


@dataclass(frozen=True, eq=False)
class RecordedCall:
    """One call: its inputs, its output and all its operations."""

    inputs: Arrays
    output: np.ndarray
    operations: Sequence[Operation]
    lengths: Mapping[str, int]
    """The positions of each stack by its input: as many as tokens, or as an image or frames of audio become."""

    def shows(self, activation: np.ndarray) -> bool:
        """Return whether an operation has the numbers of an activation, in any order of its axes."""
        return self._computed.nearest(activation) is not None

    @functools.cached_property
    def _computed(self) -> Recorded:
        return Recorded(self.operations, self.output)


class Fitted(Protocol):
    """A model that is fitted, here or in a process of its own."""

    def __call__(self, **inputs: np.ndarray) -> Any:
        """Run the model."""

    def inputs(self) -> dict[str, str]:
        """Its own name of each of its inputs."""

    def tensors(self) -> dict[str, np.ndarray]:
        """Its tensors by name."""

    def buffers(self) -> dict[str, np.ndarray]:
        """What it keeps besides, by name."""

    def assign(self, values: Mapping[str, np.ndarray]) -> None:
        """Write into its tensors."""

    def widen(self) -> bool:
        """Go on in float64; return whether it can."""

    def narrow(self) -> None:
        """Go back to the precision that it had."""


class FittedModel:
    """A model with drawn weights, in float64 if it can compute in it."""

    def __init__(self, model: Fitted, seed: int = 0) -> None:
        self.model, self.names = model, model.inputs()
        self.loops: Loops = "none"
        self.positions: dict[str, int] = {}
        """The positions that an image, or frames of audio, become, by the name of the input."""
        self.loose: set[str] = set()
        """The images or frames of audio of which the model takes any number of patches or frames."""
        self.renamed: dict[str, str] = {}
        """The input's name that the model was opened with, for one that turned out to be an image."""
        self.random = np.random.default_rng(seed)
        self.values = {name: self._drawn(name, tensor) for name, tensor in model.tensors().items()}
        model.assign(self.values)
        self.is_low = any((value != self.values[name]).any() for name, value in model.tensors().items())
        """Whether it keeps its weights in less than float32, in which values tell nothing."""
        if self.is_low and call_port(model.widen):
            model.assign(self.values)

    @property
    def inputs(self) -> tuple[str, ...]:
        """What the stacks read: `source` and `target`, `pixels`, or `tokens`."""
        if "pixels" in self.names:
            return ("pixels",)
        return ("source", "target") if "target" in self.names else ("tokens",)

    @property
    def tokens(self) -> tuple[str, ...]:
        """Those of them that are tokens."""
        return tuple(name for name in self.inputs if name not in self.positions)

    def kept(self) -> dict[str, np.ndarray]:
        """What the model keeps besides its parameters, as tables of sinusoids."""
        return call_port(self.model.buffers)

    def take_pixels(self) -> None:
        """Give the only input images from now on."""
        self.names = {"pixels": self.names["tokens"]}
        self.renamed = {"pixels": "tokens"}

    def lengths(self, inputs: Arrays) -> dict[str, int]:
        """The positions of each stack."""
        return {name: self.positions.get(name) or inputs[name].shape[1] for name in self.inputs}

    def widen(self, inputs: Arrays) -> None:
        """Go on in float64, if the model then answers `inputs`, and as before: a fused kernel may read a mask that it
        makes in float32 as if it were float64."""
        if self.is_low:  # it is wide already, or cannot be
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
        """Go back to the precision that the module was made in, unless it computes in no other."""
        if not self.is_low:
            self.model.narrow()

    def takes(self, inputs: Arrays) -> bool:
        """Return whether the model answers."""
        try:
            self.call(inputs)
        except ModuleError:
            return False
        return True

    def call(self, inputs: Arrays) -> np.ndarray:
        """The output of the model."""
        with self._described(inputs):
            return _array(call_port(self.model, **self._named(inputs)))

    def hear(self, inputs: Arrays) -> RecordedCall:
        """The output and every operation."""
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
        return RecordedCall(inputs, _array(output).astype(np.float64), operations, self.lengths(inputs))

    def _named(self, inputs: Arrays) -> Arrays:
        return {self.renamed.get(name, name): value for name, value in inputs.items()}

    def _rows_first(self, value: np.ndarray, inputs: Arrays) -> np.ndarray:
        """A value whose first axes are (positions, rows), or both in one, with the rows first."""
        for name, length in self.lengths(inputs).items():
            rows = len(inputs[name])
            if value.shape[:2] == (length, rows):
                return value.swapaxes(0, 1)
            if value.shape[:1] == (length * rows,) and value.ndim == 2:
                return value.reshape(length, rows, -1).swapaxes(0, 1).reshape(value.shape)
        return value

    def _together(self, operations: Sequence[Operation], inputs: Arrays) -> Sequence[Operation]:
        """The operations with those of all heads and rows put together, the rows first."""
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
            value = np.clip(tensor.mean(dtype=np.float64), -1, 1) + SPREAD * value
            value = np.abs(value) + SPREAD if name.endswith("var") else value
        elif "emb" not in name.lower():
            value = value / np.prod(tensor.shape[1 if tensor.ndim == KERNEL else -1 :]) ** 0.5
        return value.astype(np.float32).astype(np.float64)


def _array(answer: Any) -> np.ndarray:
    result: np.ndarray = as_numbers(answer)
    return result
