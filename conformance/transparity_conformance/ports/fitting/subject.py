"""The module to be fitted: loaded, given weights that tell parameters apart, called, and listened to."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.errors import shown
from transparity_conformance.capabilities.stranger import PortCallError, PortError, call_stranger
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.ports.listening.listen import listen
from transparity_conformance.ports.listening.operation import Operation
from transparity_conformance.ports.loader.inputs import NAMES, is_instance
from transparity_conformance.ports.loading import load_port

SPREAD = 0.3
"""The standard deviation of drawn vectors around the mean of what they are at first."""


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


def module_of(spec: str) -> Any:
    """The module that `path/to/file.py:Model`, a function or an instance names; raises `PortError` otherwise."""
    made = load_port(spec)
    if not is_instance(made, "torch.nn", "Module"):
        try:
            made = call_stranger(made)
        except PortCallError as error:
            raise FitError(
                f"{spec} was called without arguments and raised {error}; write a function that needs none."
            ) from error
    if not is_instance(made, "torch.nn", "Module"):
        raise FitError(f"{spec} returned {shown(made)}; expected a torch.nn.Module.")
    return made


class Subject:
    """A copy of a module with drawn weights, in float64 if it can compute in it."""

    def __init__(self, module: Any, seed: int = 0) -> None:
        self.names = _input_names(module)
        self.model = call_stranger(copy.deepcopy, module).eval()
        self.random = np.random.default_rng(seed)
        self.tensors = _tensors(self.model)
        self.values = {name: self._drawn(name, tensor) for name, tensor in self.tensors.items()}
        self._load()

    @property
    def tokens(self) -> tuple[str, ...]:
        """`source` and `target`, or `tokens`."""
        return ("source", "target") if "target" in self.names else ("tokens",)

    def widen(self, inputs: Arrays) -> None:
        """Go on in float64, if the module then answers `inputs`."""
        narrow = self.model
        try:
            self.model = call_stranger(copy.deepcopy(narrow).double)
            if self.call(inputs).dtype != np.float64:
                self.model = narrow
        except PortError:
            self.model = narrow
        self.tensors = _tensors(self.model)

    def call(self, inputs: Arrays) -> np.ndarray:
        """The output of the module."""
        import torch

        given = {self.names[name]: torch.tensor(value) for name, value in inputs.items()}
        try:
            with torch.no_grad():
                return _output(call_stranger(self.model, **given))
        except PortCallError as error:
            shapes = ", ".join(f"{name} {value.shape}" for name, value in inputs.items())
            raise ModuleError(f"The module raised {error}, when it was called with {shapes}.") from error

    def hear(self, inputs: Arrays) -> Heard:
        """The output and every operation."""
        output, operations = listen(lambda: self.call(inputs), "pytorch")
        return Heard(inputs, output.astype(np.float64), operations)

    def shrink(self, names: Sequence[str], factor: float) -> Subject:
        """A copy in which the named parameters are `factor` times as large."""
        other = copy.copy(self)
        other.model = copy.deepcopy(self.model)
        other.tensors = _tensors(other.model)
        other.values = {name: value * (factor if name in names else 1) for name, value in self.values.items()}
        other._load()
        return other

    def _load(self) -> None:
        import torch

        with torch.no_grad():
            for name, tensor in self.tensors.items():
                tensor.copy_(torch.tensor(self.values[name], dtype=tensor.dtype))

    def _drawn(self, name: str, tensor: Any) -> np.ndarray:
        """Numbers that no other parameter has, of a size at which nothing saturates; they are float32 numbers."""
        value = self.random.normal(size=tuple(tensor.shape))
        if tensor.ndim < 2:
            mean = float(tensor.detach().double().mean()) if tensor.numel() else 0.0
            value = mean + SPREAD * value
            value = np.abs(value) + SPREAD if name.endswith("var") else value
        elif "emb" not in name.lower():
            value = value / tensor.shape[-1] ** 0.5
        return value.astype(np.float32).astype(np.float64)


def _tensors(model: Any) -> dict[str, Any]:
    """The parameters and running statistics by name, each once."""
    found: dict[str, Any] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        is_learned = tensor.requires_grad or any(tensor is each for each in model.parameters())
        known = any(tensor is other for other in found.values())
        if not known and tensor.is_floating_point() and (is_learned or "running" in name):
            found[name] = tensor
    return found


def _input_names(module: Any) -> dict[str, str]:
    """The module's own name of each input of ours."""
    parameters = inspect.signature(module.forward).parameters
    named = {ours: name for ours, names in NAMES.items() for name in names if name in parameters}
    further = {ours: named[ours] for ours in ("attention_mask", "token_types") if ours in named}
    plain = [name for name in parameters if name not in further.values() and name != "self"]
    required = [name for name in plain if parameters[name].default is inspect.Parameter.empty]
    required = [name for name in required if parameters[name].kind is not inspect.Parameter.VAR_KEYWORD]
    if "target" in named:
        return {"source": plain[0], "target": named["target"]} | further
    if len(required) > 2 or not plain:
        raise FitError(
            f"forward({', '.join(parameters)}) takes neither token ids alone nor those of a source and a target; wrap "
            "the module in one that does."
        )
    return (
        dict(zip(("source", "target"), required, strict=True)) if len(required) == 2 else {"tokens": plain[0]}
    ) | further


def _output(answer: Any) -> np.ndarray:
    """The logits, or hidden states, in an answer."""
    if isinstance(answer, Mapping):
        answer = next((answer[name] for name in ("logits", "last_hidden_state") if name in answer), None)
    elif hasattr(answer, "logits") or hasattr(answer, "last_hidden_state"):
        answer = getattr(answer, "logits", None) if hasattr(answer, "logits") else answer.last_hidden_state
    answer = answer[0] if isinstance(answer, tuple | list) else answer
    if not is_instance(answer, "torch", "Tensor"):
        raise FitError(f"The module returned {shown(answer)}; expected a tensor of logits.")
    result: np.ndarray = answer.detach().cpu().numpy()
    return result
