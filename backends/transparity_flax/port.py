"""The entry point of the JAX column: `build(config, parameters)`, with every capability."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Concatenate, ParamSpec, TypeVar

import jax
import numpy as np
from flax import nnx

from transparity.checked import CheckedBackend, DifferentiableForward, Execution, Inputs
from transparity.config import TransformerConfig
from transparity.protocol import Arrays
from transparity.sampling import Sampling
from transparity.taps import Tap, chained, identity, lengths_of, recording, tap_shapes
from transparity.training import Training
from transparity_flax.arithmetic.changes import dropping, rounding
from transparity_flax.decoding.beams import beam_search
from transparity_flax.decoding.generation import generate
from transparity_flax.decoding.steps import compiled_prefill, step
from transparity_flax.fast.fast_linear import for_training, packed
from transparity_flax.fast.sharding import can_shard, replicate, shard
from transparity_flax.fast.structure import ModelStructure, SplitModel, Weights, split
from transparity_flax.state.cache import Cache
from transparity_flax.state.parameters import State, load, to_numpy
from transparity_flax.training.loss import Loss, cross_entropy, loss_and_gradients, loss_of
from transparity_flax.training.optimization import Start, train
from transparity_flax.transformer import Transformer

F = TypeVar("F", bound="FlaxForward")
P = ParamSpec("P")
R = TypeVar("R")


def x64_for(dtype: str) -> AbstractContextManager[Any]:
    """Return a context manager that enables float64 in JAX if `dtype` is float64, and otherwise disables float64."""
    return jax.enable_x64(dtype == "float64")


def in_its_precision(method: Callable[Concatenate[F, P], R]) -> Callable[Concatenate[F, P], R]:
    """Make a method of `FlaxForward` run with float64 enabled only if the model's dtype is float64."""

    @functools.wraps(method)
    def within(self: F, /, *given: P.args, **named: P.kwargs) -> R:
        with x64_for(self.dtype):
            return method(self, *given, **named)

    return within


# The structure is a static argument and the weights are not, so models with equal configurations share a compiled
# program.
@functools.partial(jax.jit, static_argnums=(0, 3))
def _fast(structure: ModelStructure, weights: Weights, inputs: dict[str, Any], activations: str | None) -> jax.Array:
    return structure.model(weights)(**inputs, tap=_rounding(activations))


@functools.partial(jax.jit, static_argnums=(0, 4), donate_argnums=3, keep_unused=True)
def _fast_into(
    structure: ModelStructure, weights: Weights, inputs: dict[str, Any], out: jax.Array, activations: str | None
) -> jax.Array:
    return _fast(structure, weights, inputs, activations)  # `out` is donated, so that the result can use its memory


@functools.partial(jax.jit, static_argnums=(0, 3))
def _traced(
    structure: ModelStructure, weights: Weights, inputs: dict[str, Any], activations: str | None
) -> dict[str, jax.Array]:
    taps: dict[str, jax.Array] = {}
    structure.model(weights)(**inputs, tap=chained(_rounding(activations), recording(taps)))
    return taps


def _rounding(activations: str | None) -> Tap:
    return rounding(activations) if activations else identity


@functools.partial(jax.jit, static_argnums=(0, 1))
def _differentiated(
    loss_of: Loss,
    structure: ModelStructure,
    weights: Weights,
    targets: jax.Array,
    inputs: dict[str, Any],
    masks: dict[str, jax.Array],
) -> tuple[jax.Array, dict[str, jax.Array]]:
    model = structure.model(weights, copy=True)
    tap = dropping(masks, model.config.dropout) if masks else identity
    return loss_and_gradients(model, targets, loss_of=loss_of, tap=tap, **inputs)


@functools.partial(jax.jit, static_argnums=0)
def _stepped(
    structure: ModelStructure,
    weights: Weights,
    tokens: jax.Array,
    cache: Cache,
    valid_lengths: jax.Array | None,
    mask: jax.Array | None,
) -> tuple[jax.Array, Cache]:
    return step(structure.model(weights), tokens, cache, valid_lengths=valid_lengths, attention_mask=mask), cache


_cross_entropy = jax.jit(cross_entropy, static_argnums=2)


class FlaxForward(DifferentiableForward):
    """A `transparity.protocol.Forward` in JAX."""

    array = jax.Array
    loss_of = staticmethod(loss_of)
    start: Start | None = None
    """The function that starts training on a mesh; None if the model is on one device."""

    def __init__(
        self, model: Transformer, dtype: str, device: jax.Device, mode: str, activations: str | None = None
    ) -> None:
        self.model, self.config, self.dtype, self.device = model, model.config, dtype, device
        self.mode, self.activations = mode, activations
        self.structure, self.weights = split(model)

    def _in_mode(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return a compiled function or, in the mode `eager`, the Python function from which it is compiled."""
        return function if self.mode == "jit" else inspect.unwrap(function)

    @functools.cached_property
    def split(self) -> SplitModel:
        return packed(self.structure.model(self.weights))

    @functools.cached_property
    def learners(self) -> dict[bool, ModelStructure]:
        """The model's structures for gradients: with the key True, batch norms use the batch's statistics; with False,
        the running statistics."""
        model, found = for_training(self.structure.model(self.weights, copy=True)), {}
        for training in (False, True):
            model.set_attributes(use_running_average=not training, raise_if_not_found=False)
            found[training] = split(model)[0]
        return found

    @functools.cached_property
    def everywhere(self) -> Weights:
        """The weights on every CPU device; there is one device, unless the user asked XLA for more."""
        return replicate(self.weights, jax.devices("cpu"))

    @in_its_precision
    def _taps(self, inputs: Inputs) -> dict[str, jax.Array]:
        taps = self._in_mode(_traced)(self.structure, self.weights, self._rows(inputs), self.activations)
        # jit returns a dict with sorted keys; this restores the order of the forward pass.
        order = list(tap_shapes(self.config, 1, **lengths_of(self.config, inputs)))
        return {name: taps[name] for name in sorted(taps, key=order.index)}

    @in_its_precision
    def _logits(self, inputs: Inputs, out: jax.Array | None = None) -> jax.Array:
        if out is not None and self.mode == "jit" and out.devices() == {self.device}:
            return _fast_into(self.structure, self.weights, self._arrays(inputs), out, self.activations)
        devices = jax.devices("cpu")
        if self.device in devices and can_shard(inputs, devices):
            weights, arrays = self.everywhere, shard(inputs, devices)
        else:
            weights, arrays = self.weights, self._rows(inputs)
        logits = self._in_mode(_fast)(self.structure, weights, arrays, self.activations)
        if out is not None:
            out.delete()  # the jitted function donates `out`, which also deletes it
        return logits

    @in_its_precision
    def _loss(self, targets: np.ndarray, inputs: Inputs) -> float:
        logits = jax.device_put(self._logits(inputs), self.device)  # the logits may be sharded
        return float(self._in_mode(_cross_entropy)(logits, self._array(targets), self.config.pad_id))

    @in_its_precision
    def _loss_and_gradients(
        self, targets: np.ndarray, inputs: Inputs, masks: Inputs, *, training: bool
    ) -> tuple[float, dict[str, np.ndarray]]:
        arrays = self._array(targets), self._rows(inputs, training=training), self._rows(masks, training=training)
        loss, gradients = self._in_mode(_differentiated)(self.loss_of, self.learners[training], self.weights, *arrays)
        return float(loss), {name: to_numpy(gradient) for name, gradient in gradients.items()}

    @in_its_precision
    def _train(self, batches: list[Inputs], training: Training) -> tuple[list[float], dict[str, np.ndarray]]:
        model = self.learners[True].model(self.weights)
        rows = [self._rows(batch, training=True) | {"targets": self._array(batch["targets"])} for batch in batches]
        losses, parameters = train(model, rows, training, loss_of=self.loss_of, start=self.start)
        return losses, {name: to_numpy(value) for name, value in parameters.items()}

    @in_its_precision
    def _start(self, batch: int, source: np.ndarray | None, source_mask: np.ndarray | None) -> Any:
        capacity, given = self.config.max_length, (self._array(source), self._array(source_mask))
        return self._in_mode(compiled_prefill)(self.structure, self.weights, batch, capacity, *given)

    @in_its_precision
    def _step(
        self, tokens: np.ndarray, cache: Any, valid_lengths: np.ndarray | None, mask: np.ndarray | None
    ) -> tuple[jax.Array, Any]:
        given = self._array(valid_lengths), self._array(mask)
        return self._in_mode(_stepped)(self.structure, self.weights, self._array(tokens), cache, *given)

    @in_its_precision
    def _generate(self, prompt: np.ndarray, steps: int, inputs: Inputs, sampling: Sampling | None) -> np.ndarray:
        arrays = self._arrays(inputs)
        return np.asarray(generate(self.split, self._array(prompt), steps, **arrays, sampling=sampling))

    @in_its_precision
    def _beam_search(
        self, prompt: np.ndarray, steps: int, inputs: Inputs, beams: int, length_penalty: float
    ) -> tuple[np.ndarray, np.ndarray]:
        begin, arrays = self._array(prompt), self._arrays(inputs)
        tokens, scores = beam_search(self.split, begin, steps, beams, length_penalty=length_penalty, **arrays)
        return np.asarray(tokens), to_numpy(scores)

    def ready(self, result: Any) -> None:
        jax.block_until_ready(result)

    def _array(self, value: Any) -> Any:
        return None if value is None else jax.device_put(np.array(value), self.device)

    def _arrays(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._array(value) for name, value in values.items()}

    def _rows(self, values: Inputs, *, training: bool = False) -> dict[str, jax.Array]:
        """Return the inputs or masks of a forward pass as arrays; `ShardedForward` distributes the rows over
        devices."""
        return self._arrays(values)


class FlaxBackend(CheckedBackend[FlaxForward]):
    """A `transparity.protocol.Backend` in JAX."""

    name = "flax"
    dtypes = ("float32", "float64", "bfloat16", "float16")
    modes = ("jit", "eager")

    def devices(self) -> tuple[str, ...]:
        return ("cpu",) if jax.default_backend() == "cpu" else ("cpu", "cuda")

    def _build(self, config: TransformerConfig, parameters: Arrays, execution: Execution) -> FlaxForward:
        dtype, device = execution.dtype, jax.devices(execution.device)[0]
        model = loaded(Transformer, config, parameters, dtype, device)
        return FlaxForward(model, dtype, device, execution.mode, execution.activations)


def loaded(
    module: Callable[..., Any], config: TransformerConfig, parameters: Arrays, dtype: str, device: jax.Device
) -> Any:
    """Return a module of the column, with its parameters committed to `device`.

    JAX commits the results of computations, and would compile a second program for uncommitted parameters.
    """
    model = nnx.merge(*shapes_of(module, config), copy=True)
    with x64_for(dtype):
        load(model, parameters, dtype, device)
    return model


@functools.cache
def shapes_of(module: Callable[..., Any], config: TransformerConfig) -> tuple[nnx.GraphDef[Any], State]:
    """Return a module's structure and its abstract parameters.

    Initial values are not computed, because the given parameters would overwrite them.
    """
    return nnx.split(nnx.eval_shape(lambda: module(config, rngs=_OneKey(0))))


class _OneKey(nnx.Rngs):
    """One random key for all parameters, because splitting keys is slow and the initial values are never used. Dropout
    needs no key, because a tap function applies it.
    """

    dropout = None

    def params(self) -> jax.Array:
        return jax.random.key(0)


build = FlaxBackend()
