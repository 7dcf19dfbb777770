"""The reference of a model: a module of PyTorch, or a function or an object of any framework."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from transparity.errors import TransparityError, shown
from transparity_conformance.against.reference import Inputs, Reference
from transparity_conformance.against.references.held import arrays_of
from transparity_conformance.against.rounding import neighbours
from transparity_conformance.capabilities.port_calls import PortCallError, call_port
from transparity_conformance.listening.program import Program, Recorder
from transparity_conformance.matching.values import apart
from transparity_conformance.report.comparison import as_numbers
from transparity_conformance.running.forward import called_by_its_names
from transparity_conformance.running.frameworks.modules import initialised
from transparity_conformance.running.inputs import answer_in, arrays, framework_of, is_instance, settings_of, takes_of

LARGEST = 8
"""The number of cached programs; it limits only memory."""


def reference_of(name: str, made: Any, dtype: str = "float32") -> Reference:
    """Return the reference of an object that a user's function made; raise `TransparityError` if it is not callable.

    Args:
        name: Its name in messages.
        made: A module of PyTorch, flax or Equinox, a function of arrays, a callable object, or a pair (function,
            parameters), called with the parameters first.
        dtype: The precision of the port.
    """
    if is_instance(made, "torch.nn", "Module"):
        return Reference(name, made.float(), dtype)
    if is_instance(made, "flax.linen", "Module"):
        made = initialised(made)
    if isinstance(made, tuple) and len(made) == 2 and callable(made[0]):
        function, parameters = made
        made = functools.partial(function, parameters)
    if not callable(made):
        raise TransparityError(f"{name} made {shown(made)}; expected a module, or a function of its inputs.")
    return TracedReference(name, made, dtype)


class TracedReference(Reference):
    """A function or an object of any framework, which takes `inputs` by the names of its arguments."""

    def __init__(self, name: str, model: Any, dtype: str = "float32") -> None:
        self.name, self.model, self.dtype, self.others = name, model, dtype, 0
        self.framework = _framework_of(model)
        if self.framework not in RECORDERS:
            raise TransparityError(f"{name} uses {self.framework}; expected PyTorch, JAX or NumPy.")
        self.forward = call_port(called_by_its_names, model)  # in evaluation mode
        self._programs: dict[bytes, Program] = {}

    def answer(self, inputs: Inputs) -> tuple[np.ndarray, float]:
        """Return the answer in float64, and the largest difference that rounding explains of the numbers that count."""
        program, answer = self.program(inputs), self.truth(inputs)
        pairs = ((exact[program.answer], rounded[program.answer]) for exact, rounded in neighbours(program, self.dtype))
        points = [(exact.double().numpy(), rounded.double().numpy()) for exact, rounded in pairs]
        self._check(inputs, answer, self.budget(inputs, answer, points, "float32"))
        return answer, self.budget(inputs, answer, points)

    def truth(self, inputs: Inputs) -> np.ndarray:
        """Return the answer in float64."""
        program = self.program(inputs)
        return np.asarray(program.values[program.answer].double().numpy())

    def near(self, inputs: Inputs) -> tuple[np.ndarray, float]:
        """Return the same as `answer`, because neighboring points are cheap."""
        return self.answer(inputs)

    def _check(self, inputs: Inputs, answer: np.ndarray, budget: float) -> None:
        """Raise `TransparityError` unless the reference itself gives the answer of its program."""
        own = np.asarray(call_port(as_numbers, call_port(self.forward, **inputs)), np.float64)
        if apart(answer, own, self.kept(inputs, answer.shape)).max() > budget:
            raise TransparityError(
                f"{self.name} cannot be followed: its recorded operations give another answer than the original. "
                "Return a deterministic function of its inputs that keeps no state between calls."
            )

    def program(self, inputs: Inputs, experts: str = "") -> Program:
        """Record a call in float64."""
        key = b"".join(name.encode() + str(value.shape).encode() + value.tobytes() for name, value in inputs.items())
        if key not in self._programs:
            if len(self._programs) == LARGEST:
                self._programs.pop(next(iter(self._programs)))
            record = functools.partial(RECORDERS[self.framework], self.model, dict(inputs))
            try:
                self._programs[key] = call_port(record)
            except PortCallError as error:
                raise TransparityError(f"{self.name} cannot be recorded: it raised {error}.") from error.__cause__
        return self._programs[key]

    @property
    def experts(self) -> tuple[str, ...]:
        return ("",)

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """Return every tensor by its name."""
        return {name: as_numbers(array) for name, array in arrays_of(self.model)}

    @property
    def learned(self) -> dict[str, np.ndarray]:
        return self.weights

    @functools.cached_property
    def numbers(self) -> list[float]:
        return []


def _framework_of(model: Any) -> str:
    """Return the framework of the model's arrays, or of the names in its file."""
    held = [array for _, array in arrays_of(model)]
    kinds = (("torch", "torch", "Tensor"), ("jax", "jax", "Array"))
    found = (name for name, package, kind in kinds if any(is_instance(each, package, kind) for each in held))
    return next(found, None) or call_port(framework_of, model)


def _with_settings(model: Any) -> Callable[..., Any]:
    """Return a model with arguments that switch training off."""
    settings = settings_of(takes_of(model))
    return functools.partial(model, **settings) if settings else model


def _of_torch(model: Any, inputs: Inputs) -> Program:
    array, _ = arrays(model, "torch")
    given = {name: array(value) for name, value in inputs.items()}
    held = dict(arrays_of(model))
    names = {id(value): name for name, value in (held | given).items()}
    call = _with_settings(model)
    return Recorder(names).recorded(lambda: answer_in(call(**given)), held.keys())


def _of_jax(model: Any, inputs: Inputs) -> Program:
    from transparity_conformance.against.references.jaxpr import record

    return record(_with_settings(model), inputs, dict(arrays_of(model)), answer_in)


def _of_numpy(model: Any, inputs: Inputs) -> Program:
    from transparity_conformance.against.references.arrays import record

    return record(_with_settings(model), inputs, answer_in)


RECORDERS: Mapping[str, Callable[[Any, Inputs], Program]] = {"torch": _of_torch, "jax": _of_jax, "numpy": _of_numpy}
"""Recorders by the framework of a model's arrays."""
