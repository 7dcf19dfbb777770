"""The door to the NumPy column: `build(config, parameters)`, with all that `transparity.protocol` has but gradients."""

from __future__ import annotations

import functools
import importlib
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.inputs import (
    check_batch,
    check_beams,
    check_draws,
    check_inputs,
    check_prompt,
    check_step,
    check_targets,
)
from transparity.parameters import check_parameters, is_learned
from transparity.protocol import Arrays, check_choice
from transparity.sampling import Sampling
from transparity.taps import chained, identity, recording
from transparity.training import Training
from transparity_numpy.beams import beam_search
from transparity_numpy.decoding import start, step
from transparity_numpy.functional import nest
from transparity_numpy.generation import generate
from transparity_numpy.loss import cross_entropy
from transparity_numpy.optimization import train
from transparity_numpy.rounding import rounding
from transparity_numpy.spreading import can_be_spread, spread
from transparity_numpy.transformer import transformer


class NumpyForward:
    """`transparity.protocol.Forward` in NumPy."""

    def __init__(
        self,
        config: TransformerConfig,
        parameters: Arrays,
        dtype: str,
        weights: str | None = None,
        activations: str | None = None,
    ) -> None:
        check_parameters(config, parameters)
        self.config = config
        self.parameters = {
            name: np.asarray(value).astype(weights or dtype).astype(dtype) for name, value in parameters.items()
        }
        self.tap = rounding(activations) if activations else identity

    def __call__(self, **tokens: Any) -> dict[str, Any]:
        taps: dict[str, Any] = {}
        inputs = check_inputs(self.config, tokens)
        transformer(self.config, self.parameters, **inputs, tap=chained(self.tap, recording(taps)))
        return taps

    def logits(self, **tokens: Any) -> Any:
        inputs = check_inputs(self.config, tokens)
        forward = functools.partial(transformer, self.config, self.parameters, tap=self.tap)
        return spread(forward, inputs) if can_be_spread(inputs) else forward(**inputs)

    def loss(self, targets: Any, **tokens: Any) -> float:
        expected = check_targets(self.config, targets, check_inputs(self.config, tokens))
        return float(cross_entropy(self.logits(**tokens), expected, self.config.pad_id))

    def train(
        self, batches: Sequence[Mapping[str, Any]], training: Training
    ) -> tuple[list[float], dict[str, np.ndarray]]:
        checked = [check_batch(self.config, batch) for batch in batches]
        losses, parameters = train(self.config, self.parameters, checked, training)
        return losses, {name: value for name, value in parameters.items() if is_learned(name)}

    def step(
        self, tokens: Any, cache: Any = None, *, source: Any = None, counts: Any = None, attention_mask: Any = None
    ) -> tuple[Any, Any]:
        lengths = None if cache is None else cache["lengths"]
        inputs = check_step(self.config, tokens, lengths, source, counts, attention_mask)
        tokens, source, mask = inputs["tokens"], inputs.get("source"), inputs["attention_mask"]
        if cache is None:
            batch, capacity, of_source = len(tokens), self.config.max_length, None if source is None else mask
            cache = start(self.config, self.parameters, batch, capacity, source=source, attention_mask=of_source)
        mask = mask if source is None else None
        return step(self.config, self.parameters, tokens, cache, counts=inputs["counts"], attention_mask=mask), cache

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
        steps, uniforms = check_draws(len(prompt), max_new_tokens, uniforms)
        return generate(self.config, self.parameters, prompt, steps, **inputs, uniforms=uniforms, sampling=sampling)

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
        beams, power = check_beams(beams, length_penalty)
        return beam_search(self.config, self.parameters, prompt, steps, beams, length_penalty=power, **inputs)

    def ready(self, result: Any) -> None:
        """NumPy answers when it has finished."""


class NumpyModule:
    """`transparity.protocol.Module`: a function of the column with its configuration and parameters in it."""

    def __init__(self, function: Callable[..., Any], config: TransformerConfig, parameters: Arrays, dtype: str) -> None:
        self.function, self.config, self.dtype = function, config, dtype
        self.state = {name: np.asarray(value).astype(dtype) for name, value in parameters.items()}
        self.training: dict[str, bool] = {}

    def __call__(self, *arrays: Any, taps: dict[str, Any] | None = None, **named: Any) -> Any:
        heard: dict[str, Any] = {}
        arrays = tuple(_in_dtype(array, self.dtype) for array in arrays)
        flat = self.function is transformer
        parameters = self.state if flat else nest(self.state)
        result = self.function(self.config, parameters, *arrays, **named, **self.training, tap=recording(heard))
        self.state |= {name: value for name, value in heard.items() if name in self.state}
        if taps is not None:
            taps |= heard
        return result

    def train(self) -> None:
        self.training = {"training": True}

    def parameters(self) -> dict[str, np.ndarray]:
        return dict(self.state)


class NumpyBackend:
    """`transparity.protocol.Backend` in NumPy."""

    name = "numpy"
    dtypes = ("float64", "float32", "float16")
    modes = ("eager",)

    def __call__(
        self,
        config: TransformerConfig,
        parameters: Arrays,
        *,
        dtype: str = "float64",
        device: str = "cpu",
        mode: str = "eager",
        weights: str | None = None,
        activations: str | None = None,
    ) -> NumpyForward:
        check_choice(self.name, "dtype", dtype, self.dtypes)
        check_choice(self.name, "device", device, self.devices())
        check_choice(self.name, "mode", mode, self.modes)
        check_choice(self.name, "weights", weights or dtype, self.dtypes)
        check_choice(self.name, "activations", activations or dtype, self.dtypes)
        return NumpyForward(config, parameters, dtype, weights, activations)

    def function(self, name: str, *, dtype: str = "float64", device: str = "cpu") -> Callable[..., Any]:
        check_choice(self.name, "dtype", dtype, self.dtypes)
        check_choice(self.name, "device", device, self.devices())
        function = _named(name)

        def on_arrays(*arrays: Any, **named: Any) -> Any:
            keywords = {name: _in_dtype(array, dtype) for name, array in named.items()}
            return function(*(_in_dtype(array, dtype) for array in arrays), **keywords)

        return functools.wraps(function)(on_arrays)

    def module(
        self,
        name: str,
        config: TransformerConfig,
        parameters: Arrays,
        *,
        dtype: str = "float64",
        device: str = "cpu",
    ) -> NumpyModule:
        check_choice(self.name, "dtype", dtype, self.dtypes)
        check_choice(self.name, "device", device, self.devices())
        return NumpyModule(_named(name), config, parameters, dtype)

    def einsum(self, subscripts: str, *arrays: np.ndarray) -> np.ndarray:
        result: np.ndarray = np.einsum(subscripts, *arrays)
        return result

    def devices(self) -> tuple[str, ...]:
        return ("cpu",)

    def describe(self, device: str) -> dict[str, str]:
        return {"numpy": np.__version__, "device": platform.machine(), "matmul": "full precision"}

    def pinned(self) -> AbstractContextManager[None]:
        return nullcontext()


def _named(name: str) -> Callable[..., Any]:
    """`layers.EncoderLayer` is `layers.encoder_layer` here: a module with its weights elsewhere is a function."""
    file, attribute = name.split(".")
    snake_case = re.sub(r"(?<!^)(?=[A-Z])", "_", attribute).lower()
    function: Callable[..., Any] = getattr(importlib.import_module(f"transparity_numpy.{file}"), snake_case)
    return function


def _in_dtype(value: Any, dtype: str) -> Any:
    return value.astype(dtype) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value


build = NumpyBackend()
