"""Base classes that validate: public methods check their arguments, then call the backend's own methods.

Each backend of the project subclasses `CheckedForward`, or `DifferentiableForward` if it has gradients, and
`CheckedBackend`. Each backend implements the methods with an underscore, which receive valid NumPy arrays. Third-party
backends can use the same base classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import BackendError, InputError, shown
from transparity.inputs import (
    check_batches,
    check_beams,
    check_draws,
    check_inputs,
    check_masks,
    check_out,
    check_prompt,
    check_step,
    check_targets,
)
from transparity.limits.lazy import Lazy
from transparity.parameters import check_parameters, open_parameters
from transparity.protocol import Arrays
from transparity.sampling import Sampling
from transparity.training import Training

Inputs = dict[str, Any]
"""Checked arrays by name: tokens as int64 and masks as bool. The value of an argument that the caller left out is
None."""


class CheckedForward(ABC):
    """A `transparity.protocol.Forward` that checks every argument before it calls the column's own method."""

    config: TransformerConfig
    array: type[Any]
    """The framework's class of arrays."""
    dtype: Any

    def __call__(self, **tokens: Any) -> dict[str, Any]:
        return self._taps(check_inputs(self.config, tokens))

    def logits(self, *, out: Any = None, **tokens: Any) -> Any:
        inputs = check_inputs(self.config, tokens)
        if out is not None:
            check_kind("out", check_out(self.config, out, inputs), self.array)
            if out.dtype != self.dtype:
                raise InputError(f"out has the dtype {out.dtype}; expected {self.dtype}.")
        return self._logits(inputs, out)

    def loss(self, targets: Any, **tokens: Any) -> float:
        inputs = check_inputs(self.config, tokens)
        return self._loss(check_targets(self.config, targets, inputs), inputs)

    def train(
        self, batches: Sequence[Mapping[str, Any]], training: Training
    ) -> tuple[list[float], dict[str, np.ndarray]]:
        return self._train(check_batches(self.config, batches), check_kind("training", training, Training))

    def step(
        self,
        tokens: Any,
        cache: Any = None,
        *,
        source: Any = None,
        valid_lengths: Any = None,
        attention_mask: Any = None,
    ) -> tuple[Any, Any]:
        lengths = None if cache is None else self._checked_lengths(cache)
        inputs = check_step(self.config, tokens, lengths, source, valid_lengths, attention_mask)
        tokens, source, mask = inputs["tokens"], inputs.get("source"), inputs["attention_mask"]
        if cache is None:
            cache = self._start(len(tokens), source, None if source is None else mask)
        return self._step(tokens, cache, inputs["valid_lengths"], mask if source is None else None)

    def generate(
        self,
        prompt: Any,
        max_new_tokens: int,
        *,
        lengths: Any = None,
        source: Any = None,
        uniforms: Any = None,
        sampling: Sampling | None = None,
    ) -> np.ndarray:
        inputs = check_prompt(self.config, prompt, source, lengths)
        prompt = inputs.pop("prompt")
        steps, inputs["uniforms"] = check_draws(len(prompt), max_new_tokens, uniforms)
        sampling = None if sampling is None else check_kind("sampling", sampling, Sampling)
        return self._generate(prompt, steps, inputs, sampling)

    def beam_search(
        self,
        prompt: Any,
        max_new_tokens: int,
        beams: int,
        *,
        length_penalty: float = 0.0,
        lengths: Any = None,
        source: Any = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        inputs = check_prompt(self.config, prompt, source, lengths)
        prompt = inputs.pop("prompt")
        steps, _ = check_draws(len(prompt), max_new_tokens, None)
        return self._beam_search(prompt, steps, inputs, *check_beams(self.config, len(prompt), beams, length_penalty))

    def _checked_lengths(self, cache: Any) -> np.ndarray:
        try:
            return np.array(check_kind("lengths", cache["lengths"], self.array).tolist())
        except Exception:  # noqa: BLE001 - what is no cache may raise anything
            raise InputError(f"cache is {shown(cache)}; expected the cache that the previous step returned.") from None

    @abstractmethod
    def ready(self, result: Any) -> None: ...

    @abstractmethod
    def _taps(self, inputs: Inputs) -> dict[str, Any]: ...

    @abstractmethod
    def _logits(self, inputs: Inputs, out: Any = None) -> Any:
        """Return the logits. If `out` is given, write the logits into `out`, which has the logits' shape and dtype."""

    @abstractmethod
    def _loss(self, targets: np.ndarray, inputs: Inputs) -> float: ...

    @abstractmethod
    def _train(self, batches: list[Inputs], training: Training) -> tuple[list[float], dict[str, np.ndarray]]: ...

    @abstractmethod
    def _start(self, batch: int, source: np.ndarray | None, source_mask: np.ndarray | None) -> Any:
        """Return an empty cache for `batch` rows of `max_length` tokens; run the encoder on a `source`, if any."""

    @abstractmethod
    def _step(
        self, tokens: np.ndarray, cache: Any, valid_lengths: np.ndarray | None, mask: np.ndarray | None
    ) -> tuple[Any, Any]: ...

    @abstractmethod
    def _generate(self, prompt: np.ndarray, steps: int, inputs: Inputs, sampling: Sampling | None) -> np.ndarray:
        """Continue `prompt` by `steps` tokens; `inputs` has `lengths`, `uniforms` and, if needed, `source`."""

    @abstractmethod
    def _beam_search(
        self, prompt: np.ndarray, steps: int, inputs: Inputs, beams: int, length_penalty: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Continue `prompt` by `steps` tokens; `inputs` has `lengths` and, if needed, `source`."""


class DifferentiableForward(CheckedForward):
    """A `CheckedForward` that also computes gradients."""

    def loss_and_gradients(
        self, targets: Any, *, training: bool = False, masks: Arrays | None = None, **tokens: Any
    ) -> tuple[float, dict[str, np.ndarray]]:
        inputs = check_inputs(self.config, tokens)
        expected = check_targets(self.config, targets, inputs)
        kept = check_masks(self.config, masks, inputs)
        return self._loss_and_gradients(expected, inputs, kept, training=training)

    @abstractmethod
    def _loss_and_gradients(
        self, targets: np.ndarray, inputs: Inputs, masks: Inputs, *, training: bool
    ) -> tuple[float, dict[str, np.ndarray]]: ...


Built = TypeVar("Built", bound=CheckedForward)


@dataclass(frozen=True)
class Execution:
    """The device, mode and precisions of a model. Without `activations`, activations have the precision `dtype`."""

    dtype: str
    device: str
    mode: str
    activations: str | None = None


class CheckedBackend(ABC, Generic[Built]):
    """A `transparity.protocol.Backend` that checks every option and parameter before it builds a model."""

    name: str
    dtypes: tuple[str, ...]
    modes: tuple[str, ...]

    def __call__(
        self,
        config: TransformerConfig,
        parameters: Arrays,
        *,
        dtype: str | None = None,
        device: str = "cpu",
        mode: str | None = None,
        weights: str | None = None,
        activations: str | None = None,
    ) -> Built:
        dtype, mode = self.checked_dtype(dtype, device), self.modes[0] if mode is None else mode
        check_choice(self.name, "mode", mode, self.modes)
        check_choice(self.name, "weights", dtype if weights is None else weights, self.dtypes)
        check_choice(self.name, "activations", dtype if activations is None else activations, self.dtypes)
        check_parameters(config, parameters)
        if weights:
            given = parameters
            parameters = Lazy(given, lambda name: rounded(given[name], weights))
        return self._build(config, parameters, Execution(dtype, device, mode, activations))

    def checked_dtype(self, dtype: str | None, device: str) -> str:
        """Return `dtype`, or the default for None; raise `BackendError` for an unknown dtype or `device`."""
        check_choice(self.name, "device", device, self.devices())
        return check_choice(self.name, "dtype", self.dtypes[0] if dtype is None else dtype, self.dtypes)

    def devices(self) -> tuple[str, ...]:
        return ("cpu",)

    @abstractmethod
    def _build(self, config: TransformerConfig, parameters: Arrays, execution: Execution) -> Built: ...


class CheckedShardedBackend(CheckedBackend[Built]):
    """A `transparity.protocol.ShardedBackend` that also checks the names, shapes and dtypes of a file's parameters."""

    def from_file(self, config: TransformerConfig, path: Any, dtype: str | None = None) -> Built:
        device = self.devices()[0]
        dtype = self.checked_dtype(dtype, device)
        with open_parameters(path, config) as slices:
            return self._build(config, slices, Execution(dtype, device, self.modes[0]))


def rounded(value: Any, dtype: str) -> np.ndarray:
    """Round `value` to `dtype`. Values rounded to bfloat16, which NumPy lacks, are returned as float32."""
    with np.errstate(over="ignore"):
        if dtype != "bfloat16":
            return np.asarray(value).astype(dtype)
        import ml_dtypes  # imported here, because it is rarely needed

        return np.asarray(value).astype(ml_dtypes.bfloat16).astype(np.float32)


def check_choice(backend: str, name: str, value: str, offered: tuple[str, ...]) -> str:
    """Return `value` if it is in `offered`; otherwise raise a `BackendError` that lists `offered`."""
    if not isinstance(value, str) or value not in offered:
        raise BackendError(f"{name} is {shown(value)}; the {backend} backend offers {', '.join(offered)}.")
    return value


Kind = TypeVar("Kind")


def check_kind(name: str, value: Any, kind: type[Kind]) -> Kind:
    """Return `value` if it is an instance of `kind`; otherwise raise `InputError`."""
    if not isinstance(value, kind):
        raise InputError(f"{name} is {shown(value)}; expected a {kind.__name__}.")
    return value
