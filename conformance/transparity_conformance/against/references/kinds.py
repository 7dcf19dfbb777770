"""Make the reference of a comparison from a PyTorch module, or from a callable in PyTorch, JAX or NumPy."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from transparity.errors import TransparityError, shown
from transparity_conformance.against.reference import Inputs, Reference, RefusedError, neighbours
from transparity_conformance.against.references.held import arrays_of
from transparity_conformance.capabilities.port_calls import PortCallError, call_port
from transparity_conformance.listening.program import Program, Recorder
from transparity_conformance.matching.values import apart
from transparity_conformance.report.comparison import as_numbers
from transparity_conformance.running.forward import called_by_its_names
from transparity_conformance.running.frameworks.modules import bound
from transparity_conformance.running.inputs import answer_in, arrays, framework_of, is_instance, settings_of, takes_of


def reference_of(name: str, made: Any, dtype: str = "float32") -> Reference:
    """Return a `Reference` for a module of PyTorch, flax or Equinox, a function of arrays, a callable object, or a pair
    (function, parameters). The function of a pair takes the parameters as its first argument. Raise `TransparityError`
    for an object that cannot be called."""
    if is_instance(made, "torch.nn", "Module"):
        return Reference(name, made.float(), dtype)
    if not callable(made := bound(made)):
        raise TransparityError(
            f"{name} returned {shown(made)}; expected a module, or a function of the model's inputs."
        )
    return TracedReference(name, made, dtype)


class TracedReference(Reference):
    """A callable in PyTorch, JAX or NumPy that takes its inputs as keyword arguments."""

    def __init__(self, name: str, model: Any, dtype: str = "float32") -> None:
        self.name, self.model, self.dtype = name, model, dtype
        self._forget()
        held = [array for _, array in arrays_of(model)]  # without arrays, the file's imports determine the framework
        kinds = (("torch", "torch", "Tensor"), ("jax", "jax", "Array"))
        found = (name for name, package, kind in kinds if any(is_instance(each, package, kind) for each in held))
        self.framework = next(found, None) or call_port(framework_of, model)
        if self.framework not in ("torch", "jax", "numpy"):
            raise TransparityError(f"{name} uses {self.framework}; expected PyTorch, JAX or NumPy.")
        self.forward = call_port(called_by_its_names, model)  # in evaluation mode

    def answer(self, inputs: Inputs) -> tuple[np.ndarray, float]:
        """Return the float64 answer and its budget. Raise `TransparityError` if the recorded program and a plain call
        give different answers."""
        program, answer = self.program(inputs), self.truth(inputs)
        pairs = ((exact[program.answer], rounded[program.answer]) for exact, rounded in neighbours(program, self.dtype))
        points = [(exact.double().numpy(), rounded.double().numpy()) for exact, rounded in pairs]
        own = np.asarray(call_port(as_numbers, call_port(self.forward, **inputs)), np.float64)
        within = self.budget(inputs, answer, points, "float32")
        if apart(answer, own, self.kept(inputs, answer.shape)).max() > within:
            raise RefusedError(
                f"{self.name} cannot be recorded: its recorded operations and a plain call give different results; "
                "return a deterministic function that keeps no state."
            )
        return answer, self.budget(inputs, answer, points)

    def returned(self, inputs: Inputs) -> Any:
        return call_port(self.forward, **inputs)

    def truth(self, inputs: Inputs) -> np.ndarray:
        program = self.program(inputs)
        return np.asarray(program.values[program.answer].double().numpy())

    def near(self, inputs: Inputs) -> tuple[np.ndarray, float]:
        return self.answer(inputs)

    def _recorded(self, inputs: Inputs, experts: str) -> Program:
        settings = settings_of(takes_of(self.model))  # these settings select evaluation mode
        model = functools.partial(self.model, **settings) if settings else self.model
        try:
            program: Program = call_port(_recorded, self.framework, model, dict(inputs))
        except PortCallError as error:
            raise RefusedError(f"{self.name} cannot be recorded: it raised {error}.") from error.__cause__
        return program

    @property
    def weights(self) -> dict[str, np.ndarray]:
        return {name: as_numbers(array) for name, array in arrays_of(self.model)}

    @property
    def learned(self) -> dict[str, np.ndarray]:
        return self.weights

    @functools.cached_property
    def numbers(self) -> list[float]:
        return []


def _recorded(framework: str, model: Any, inputs: Inputs) -> Program:
    if framework == "jax":
        from transparity_conformance.against.references import jaxpr

        return jaxpr.record(model, inputs, dict(arrays_of(model)), answer_in)
    if framework == "numpy":
        from transparity_conformance.against.references.arrays import record

        return record(model, inputs, answer_in)
    array, _ = arrays(model, "torch")
    given = {name: array(value) for name, value in inputs.items()}
    held = dict(arrays_of(model))
    names = {id(value): name for name, value in (held | given).items()}
    return Recorder(names).recorded(lambda: answer_in(model(**given)), held.keys())
