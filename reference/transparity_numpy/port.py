"""The entry point of the NumPy column: `build(config, parameters)`. The models lack `loss_and_gradients`."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from transparity.checked import CheckedBackend, CheckedForward, Execution, Inputs
from transparity.config import TransformerConfig
from transparity.protocol import Arrays
from transparity.sampling import Sampling
from transparity.taps import chained, identity, logits_shape, recording
from transparity.training import Training
from transparity_numpy.arithmetic.changes import rounding
from transparity_numpy.decoding.beams import beam_search
from transparity_numpy.decoding.generation import generate
from transparity_numpy.decoding.steps import prefill, step
from transparity_numpy.fast.fast_linear import packed
from transparity_numpy.fast.threads import can_split, split_batch
from transparity_numpy.training.loss import cross_entropy
from transparity_numpy.training.optimization import train
from transparity_numpy.transformer import transformer


class NumpyForward(CheckedForward):
    """A `transparity.protocol.Forward` in NumPy."""

    array = np.ndarray

    def __init__(
        self, config: TransformerConfig, parameters: Arrays, dtype: str, activations: str | None = None
    ) -> None:
        self.config, self.dtype = config, np.dtype(dtype)
        self.parameters = {name: np.asarray(value).astype(dtype) for name, value in parameters.items()}
        self.fastest = packed(self.parameters)  # for calls without gradients and taps
        self.tap = rounding(activations) if activations else identity

    def _taps(self, inputs: Inputs) -> dict[str, Any]:
        taps: dict[str, Any] = {}
        transformer(self.config, self.parameters, **inputs, tap=chained(self.tap, recording(taps)))
        return taps

    def _logits(self, inputs: Inputs, out: np.ndarray | None = None) -> np.ndarray:
        forward = functools.partial(transformer, self.config, self.fastest, tap=self.tap)
        if can_split(inputs):
            out = np.empty(logits_shape(self.config, inputs), self.dtype) if out is None else out
            return split_batch(forward, inputs, out)
        if out is None:
            return forward(**inputs)
        out[...] = forward(**inputs)
        return out

    def _loss(self, targets: np.ndarray, inputs: Inputs) -> float:
        return float(cross_entropy(self._logits(inputs), targets, self.config.pad_id))

    def _train(self, batches: list[Inputs], training: Training) -> tuple[list[float], dict[str, np.ndarray]]:
        return train(self.config, self.parameters, batches, training)

    def _start(self, batch: int, source: np.ndarray | None, source_mask: np.ndarray | None) -> Any:
        capacity = self.config.max_length
        return prefill(self.config, self.fastest, batch, capacity, source=source, attention_mask=source_mask)

    def _step(
        self, tokens: np.ndarray, cache: Any, valid_lengths: np.ndarray | None, mask: np.ndarray | None
    ) -> tuple[np.ndarray, Any]:
        return step(self.config, self.fastest, tokens, cache, valid_lengths=valid_lengths, attention_mask=mask), cache

    def _generate(self, prompt: np.ndarray, steps: int, inputs: Inputs, sampling: Sampling | None) -> np.ndarray:
        return generate(self.config, self.fastest, prompt, steps, **inputs, sampling=sampling)

    def _beam_search(
        self, prompt: np.ndarray, steps: int, inputs: Inputs, beams: int, length_penalty: float
    ) -> tuple[np.ndarray, np.ndarray]:
        return beam_search(self.config, self.fastest, prompt, steps, beams, length_penalty=length_penalty, **inputs)

    def ready(self, result: Any) -> None:
        """Do nothing, because NumPy returns only results that are already computed."""


class NumpyBackend(CheckedBackend[NumpyForward]):
    """A `transparity.protocol.Backend` in NumPy."""

    name = "numpy"
    dtypes = ("float64", "float32", "float16")
    modes = ("eager",)

    def _build(self, config: TransformerConfig, parameters: Arrays, execution: Execution) -> NumpyForward:
        return NumpyForward(config, parameters, execution.dtype, execution.activations)


build = NumpyBackend()
