"""The door to the JAX column: `build(config, parameters)`, with everything offered."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from transparity.config import TransformerConfig
from transparity.inputs import (
    check_batch,
    check_beams,
    check_draws,
    check_inputs,
    check_masks,
    check_prompt,
    check_step,
    check_targets,
)
from transparity.parameters import check_parameters
from transparity.protocol import Arrays, check_choice
from transparity.sampling import Sampling
from transparity.taps import Tap, chained, identity, recording, tap_shapes
from transparity.training import Training
from transparity_flax.beams import beam_search
from transparity_flax.cache import Cache
from transparity_flax.decoding import start, step
from transparity_flax.differentiation import loss_and_gradients
from transparity_flax.dropout import dropping
from transparity_flax.generation import generate
from transparity_flax.loss import cross_entropy
from transparity_flax.optimization import train
from transparity_flax.packing import Split, learning, packed
from transparity_flax.parameters import State, dump, load, rounded, to_numpy
from transparity_flax.rounding import rounding
from transparity_flax.spreading import can_be_spread, copied, spread
from transparity_flax.transformer import Transformer

Graph = nnx.GraphDef[Transformer]


def _fast(graph: Graph, state: State, inputs: dict[str, Any], activations: str | None) -> jax.Array:
    return nnx.merge(graph, state)(**inputs, tap=_rounding(activations))


def _traced(graph: Graph, state: State, inputs: dict[str, Any], activations: str | None) -> dict[str, jax.Array]:
    taps: dict[str, jax.Array] = {}
    nnx.merge(graph, state)(**inputs, tap=chained(_rounding(activations), recording(taps)))
    return taps


def _rounding(activations: str | None) -> Tap:
    return rounding(activations) if activations else identity


def _differentiated(
    graph: Graph, state: State, targets: jax.Array, inputs: dict[str, Any], masks: dict[str, jax.Array]
) -> tuple[jax.Array, dict[str, jax.Array]]:
    model = nnx.merge(graph, state, copy=True)
    tap = dropping(masks, model.config.dropout) if masks else identity
    return loss_and_gradients(model, targets, tap=tap, **inputs)


def _started(
    graph: Graph, state: State, batch: int, capacity: int, source: jax.Array | None, mask: jax.Array | None
) -> Cache:
    return start(nnx.merge(graph, state), batch, capacity, source=source, attention_mask=mask)


def _stepped(
    graph: Graph, state: State, tokens: jax.Array, cache: Cache, counts: jax.Array | None, mask: jax.Array | None
) -> tuple[jax.Array, Cache]:
    return step(nnx.merge(graph, state), tokens, cache, counts=counts, attention_mask=mask), cache


# The graph is what the program depends on, the state what it is given: two models of one configuration share a program.
_fast_jit, _traced_jit = jax.jit(_fast, static_argnums=(0, 3)), jax.jit(_traced, static_argnums=(0, 3))
_differentiated_jit = jax.jit(_differentiated, static_argnums=0)
_cross_entropy_jit = jax.jit(cross_entropy, static_argnums=2)
_started_jit, _stepped_jit = jax.jit(_started, static_argnums=(0, 2, 3)), jax.jit(_stepped, static_argnums=0)


class FlaxForward:
    """`transparity.protocol.Forward` in JAX."""

    def __init__(
        self, model: Transformer, dtype: str, device: jax.Device, mode: str, activations: str | None = None
    ) -> None:
        self.model, self.dtype, self.device, self.activations = model, dtype, device, activations
        self.graph, state = nnx.split(model)
        # As what is computed from it is: else the same program would be compiled for both.
        self.state: State = jax.device_put(state, device)
        self.fast: Callable[..., jax.Array] = _fast_jit if mode == "jit" else _fast
        self.traced: Callable[..., dict[str, jax.Array]] = _traced_jit if mode == "jit" else _traced
        self.cross_entropy = _cross_entropy_jit if mode == "jit" else cross_entropy
        self.differentiated = _differentiated_jit if mode == "jit" else _differentiated
        self.started = _started_jit if mode == "jit" else _started
        self.stepped = _stepped_jit if mode == "jit" else _stepped

    def __call__(self, **tokens: Any) -> dict[str, Any]:
        inputs = check_inputs(self.model.config, tokens)
        with x64_for(self.dtype):
            taps = self.traced(self.graph, self.state, self._arrays(inputs), self.activations)
        # jit returns a dict with its keys sorted; the shapes have them in the order of the forward pass.
        return {name: taps[name] for name in _in_order(self.model.config, inputs, taps)}

    @functools.cached_property
    def split(self) -> Split:
        """The model as it is decoded with."""
        return packed(nnx.merge(self.graph, self.state))

    @functools.cached_property
    def learner(self) -> Graph:
        """What the model is when it learns, without its numbers."""
        return nnx.graphdef(learning(nnx.merge(self.graph, self.state)))

    @functools.cached_property
    def everywhere(self) -> State:
        """The state on every device of the CPU: there is more than one if the user asked for it."""
        return copied(self.state, jax.devices("cpu"))

    def logits(self, **tokens: Any) -> jax.Array:
        inputs = check_inputs(self.model.config, tokens)
        with x64_for(self.dtype):
            devices = jax.devices("cpu")
            if self.device in devices and can_be_spread(inputs, devices):
                return self.fast(self.graph, self.everywhere, spread(inputs, devices), self.activations)
            return self.fast(self.graph, self.state, self._arrays(inputs), self.activations)

    def loss(self, targets: Any, **tokens: Any) -> float:
        config = self.model.config
        expected = check_targets(config, targets, check_inputs(config, tokens))
        logits = self.logits(**tokens)
        with x64_for(self.dtype):
            here = jax.device_put(logits, self.device)  # from wherever it was spread
            return float(self.cross_entropy(here, self._array(expected), config.pad_id))

    def loss_and_gradients(
        self, targets: Any, *, training: bool = False, masks: Arrays | None = None, **tokens: Any
    ) -> tuple[float, dict[str, np.ndarray]]:
        inputs = check_inputs(self.model.config, tokens)
        expected = check_targets(self.model.config, targets, inputs)
        kept = check_masks(self.model.config, masks, inputs)
        model = nnx.merge(self.learner, self.state, copy=True)
        model.set_attributes(use_running_average=not training, raise_if_not_found=False)
        graph, state = nnx.split(model)
        with x64_for(self.dtype):
            arrays = self._array(expected), self._arrays(inputs), self._arrays(kept)
            loss, gradients = self.differentiated(graph, state, *arrays)
            return float(loss), {name: to_numpy(gradient) for name, gradient in gradients.items()}

    def train(
        self, batches: Sequence[Mapping[str, Any]], training: Training
    ) -> tuple[list[float], dict[str, np.ndarray]]:
        checked = [check_batch(self.model.config, batch) for batch in batches]
        model = nnx.merge(self.learner, self.state, copy=True)
        model.set_attributes(use_running_average=False, raise_if_not_found=False)
        with x64_for(self.dtype):
            losses, parameters = train(model, [self._arrays(batch) for batch in checked], training)
            return losses, {name: to_numpy(value) for name, value in parameters.items()}

    def step(
        self, tokens: Any, cache: Any = None, *, source: Any = None, counts: Any = None, attention_mask: Any = None
    ) -> tuple[Any, Any]:
        config = self.model.config
        lengths = None if cache is None else to_numpy(cache["lengths"])
        inputs = check_step(config, tokens, lengths, source, counts, attention_mask)
        with x64_for(self.dtype):
            arrays = self._arrays(inputs)
            tokens, source, mask = arrays["tokens"], arrays.get("source"), arrays["attention_mask"]
            if cache is None:
                batch, of_source = len(inputs["tokens"]), None if source is None else mask
                cache = self.started(self.graph, self.state, batch, config.max_length, source, of_source)
            mask = mask if source is None else None
            return self.stepped(self.graph, self.state, tokens, cache, arrays["counts"], mask)

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
        inputs = check_prompt(self.model.config, prompt, source, lengths)
        steps, uniforms = check_draws(len(inputs["prompt"]), max_new_tokens, uniforms)
        with x64_for(self.dtype):
            arrays = self._arrays(inputs | {"uniforms": uniforms})
            return np.asarray(generate(self.split, arrays.pop("prompt"), steps, **arrays, sampling=sampling))

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
        inputs = check_prompt(self.model.config, prompt, source, lengths)
        steps, _ = check_draws(len(inputs["prompt"]), max_new_tokens, None)
        beams, power = check_beams(beams, length_penalty)
        with x64_for(self.dtype):
            arrays = self._arrays(inputs)
            prompt = arrays.pop("prompt")
            tokens, scores = beam_search(self.split, prompt, steps, beams, length_penalty=power, **arrays)
            return np.asarray(tokens), to_numpy(scores)

    def ready(self, result: Any) -> None:
        jax.block_until_ready(result)

    def _array(self, value: Any) -> Any:
        return None if value is None else jax.device_put(np.array(value), self.device)

    def _arrays(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._array(value) for name, value in values.items()}


class FlaxModule:
    """`transparity.protocol.Module`: an `nnx.Module` of the column, between NumPy arrays, compiled as a whole."""

    def __init__(self, module: nnx.Module, dtype: str, device: jax.Device) -> None:
        self.module, self.dtype, self.device = module, dtype, device

    def __call__(self, *arrays: Any, taps: dict[str, Any] | None = None, **named: Any) -> Any:
        graph, state = nnx.split(self.module)
        with x64_for(self.dtype):
            given = [_placed(array, self.dtype, self.device) for array in arrays]
            keywords = {name: _placed(array, self.dtype, self.device) for name, array in named.items()}
            result, heard, state = _applied(
                graph, taps is not None, jax.device_put(state, self.device), given, keywords
            )
            nnx.update(self.module, state)
        if taps is not None:
            taps |= {name: to_numpy(value) for name, value in heard.items()}
        return to_numpy(result)

    def train(self) -> None:
        self.module.train()

    def parameters(self) -> dict[str, np.ndarray]:
        return dump(self.module)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _applied(
    graph: Graph, listening: bool, state: State, arrays: list[Any], named: dict[str, Any]
) -> tuple[jax.Array, dict[str, jax.Array], State]:
    """What a part makes of arrays, its activations if one listens, and its state afterwards: a batch norm learns."""
    part: Any = nnx.merge(graph, state)
    heard: dict[str, jax.Array] = {}
    result = part(*arrays, **named, **({"tap": recording(heard)} if listening else {}))
    return result, heard, nnx.state(part)


class FlaxBackend:
    """`transparity.protocol.Backend` in JAX."""

    name = "flax"
    dtypes = ("float32", "float64", "bfloat16", "float16")
    modes = ("jit", "eager")

    def __call__(
        self,
        config: TransformerConfig,
        parameters: Arrays,
        *,
        dtype: str = "float32",
        device: str = "cpu",
        mode: str = "jit",
        weights: str | None = None,
        activations: str | None = None,
    ) -> FlaxForward:
        check_choice(self.name, "mode", mode, self.modes)
        check_parameters(config, parameters)
        if weights:
            check_choice(self.name, "weights", weights, self.dtypes)
            parameters = {name: to_numpy(rounded(value, weights)) for name, value in parameters.items()}
        if activations:
            check_choice(self.name, "activations", activations, self.dtypes)
        model = self._load(Transformer, config, parameters, dtype, device)
        return FlaxForward(model, dtype, _device(device), mode, activations)

    def function(self, name: str, *, dtype: str = "float32", device: str = "cpu") -> Callable[..., Any]:
        function = _named(name)
        check_choice(self.name, "dtype", dtype, self.dtypes)

        def on_arrays(*arrays: Any, **named: Any) -> Any:
            with x64_for(dtype):
                given = [_placed(array, dtype, _device(device)) for array in arrays]
                keywords = {name: _placed(array, dtype, _device(device)) for name, array in named.items()}
                result = _compiled(function, given, keywords)(*given, **keywords)
                return tuple(map(_array, result)) if isinstance(result, tuple) else _array(result)

        return on_arrays

    def module(
        self,
        name: str,
        config: TransformerConfig,
        parameters: Arrays,
        *,
        dtype: str = "float32",
        device: str = "cpu",
    ) -> FlaxModule:
        return FlaxModule(self._load(_named(name), config, parameters, dtype, device), dtype, _device(device))

    def einsum(self, subscripts: str, *arrays: np.ndarray) -> np.ndarray:
        return to_numpy(jnp.einsum(subscripts, *arrays))

    def devices(self) -> tuple[str, ...]:
        return ("cpu",) if jax.default_backend() == "cpu" else ("cpu", "cuda")

    def describe(self, device: str) -> dict[str, str]:
        precision = jax.config.jax_default_matmul_precision or "default"  # type: ignore[attr-defined]
        versions = {"jax": jax.__version__, "flax": flax.__version__, "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}
        return versions | {"device": _device(device).device_kind, "matmul": f"float32 {precision}"}

    @contextmanager
    def pinned(self) -> Iterator[None]:
        with jax.default_matmul_precision("highest"):
            yield

    def _load(
        self, module: Callable[..., Any], config: TransformerConfig, parameters: Arrays, dtype: str, device: str
    ) -> Any:
        check_choice(self.name, "device", device, self.devices())
        check_choice(self.name, "dtype", dtype, self.dtypes)
        model = nnx.merge(*_shapes_of(module, config), copy=True)
        with x64_for(dtype), jax.default_device(_device(device)):
            load(model, parameters, dtype)
        return model


def x64_for(dtype: str) -> Any:
    """While it is entered, JAX has float64 if that is the `dtype`; outside, the user's own setting stands."""
    return jax.enable_x64(dtype == "float64")


@functools.cache
def _shapes_of(module: Callable[..., Any], config: TransformerConfig) -> tuple[Graph, State]:
    """A module without numbers: none is initialised that would be overwritten at once, and none is traced twice."""
    return nnx.split(nnx.eval_shape(lambda: module(config, rngs=_OneKey(0))))


class _OneKey(nnx.Rngs):
    """The same key for every parameter: nothing is drawn, and to split keys would take most of the time."""

    def params(self) -> jax.Array:
        return jax.random.key(0)


def _device(device: str) -> jax.Device:
    return jax.devices(device)[0]


def _in_order(config: TransformerConfig, inputs: dict[str, np.ndarray], taps: dict[str, Any]) -> list[str]:
    order = list(tap_shapes(config, 1, **{name: tokens.shape[1] for name, tokens in inputs.items()}))
    return sorted(taps, key=order.index)


def _named(name: str) -> Callable[..., Any]:
    file, attribute = name.split(".")
    found: Callable[..., Any] = getattr(importlib.import_module(f"transparity_flax.{file}"), attribute)
    return found


def _compiled(function: Callable[..., Any], arguments: list[Any], named: dict[str, Any]) -> Callable[..., Any]:
    """`function` as one program, which depends on what is no array among its arguments; without any there is none."""
    if not any(isinstance(value, jax.Array) for value in [*arguments, *named.values()]):
        return function
    numbers = [place for place, value in enumerate(arguments) if not isinstance(value, jax.Array)]
    names = [name for name, value in named.items() if not isinstance(value, jax.Array)]
    return jax.jit(function, static_argnums=numbers, static_argnames=names)


def _placed(value: Any, dtype: str, device: jax.Device) -> Any:
    """An array on `device`, floats in `dtype`; anything else as it is."""
    if not isinstance(value, np.ndarray):
        return value
    return jax.device_put(rounded(value, dtype if value.dtype.kind == "f" else value.dtype), device)


def _array(value: Any) -> Any:
    return to_numpy(value) if isinstance(value, jax.Array) else value


build = FlaxBackend()
