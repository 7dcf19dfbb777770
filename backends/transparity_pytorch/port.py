"""The door to the PyTorch column: `build(config, parameters)`, with everything offered."""

from __future__ import annotations

import copy
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

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
from transparity.taps import chained, identity, recording
from transparity.training import Training
from transparity_pytorch.beams import beam_search
from transparity_pytorch.decoding import Step, start, step
from transparity_pytorch.differentiation import loss_and_gradients
from transparity_pytorch.dropout import dropping
from transparity_pytorch.generation import generate
from transparity_pytorch.loss import cross_entropy
from transparity_pytorch.optimization import train
from transparity_pytorch.packing import can_be_packed, compiled_for_one_row, learning, packed
from transparity_pytorch.parameters import dump, load, to_numpy
from transparity_pytorch.rounding import rounding
from transparity_pytorch.transformer import Transformer


class PytorchForward:
    """`transparity.protocol.Forward` in PyTorch."""

    def __init__(self, model: Transformer, device: str, mode: str, activations: torch.dtype | None = None) -> None:
        self.model, self.device, self.mode = model, device, mode
        tap = rounding(activations) if activations else identity

        def fast(fastest: Transformer, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
            logits: torch.Tensor = fastest(**inputs, tap=tap)
            return logits

        def traced(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            taps: dict[str, torch.Tensor] = {}
            model(**inputs, tap=chained(tap, recording(taps)))
            return taps

        compiled = mode == "compile"
        self.fast: Callable[..., torch.Tensor] = torch.compile(fast) if compiled else fast
        self.traced: Callable[..., dict[str, torch.Tensor]] = torch.compile(traced) if compiled else traced
        self.stepped: Step = compiled_for_one_row(step) if compiled else step

    @functools.cached_property
    def fastest(self) -> Transformer:
        """The model for all that needs no gradients and is not looked into."""
        return self._by_onednn(self.model, packed)

    @torch.no_grad()
    def __call__(self, **tokens: Any) -> dict[str, Any]:
        return self.traced(self._inputs(tokens))

    @torch.no_grad()
    def logits(self, **tokens: Any) -> torch.Tensor:
        return self.fast(self.fastest, self._inputs(tokens))

    def loss(self, targets: Any, **tokens: Any) -> float:
        config = self.model.config
        expected = _tensor(check_targets(config, targets, check_inputs(config, tokens)), None, self.device)
        return float(cross_entropy(self.logits(**tokens), expected, config.pad_id))

    def loss_and_gradients(
        self, targets: Any, *, training: bool = False, masks: Arrays | None = None, **tokens: Any
    ) -> tuple[float, dict[str, np.ndarray]]:
        config, inputs = self.model.config, self._inputs(tokens)
        expected = _tensor(check_targets(config, targets, inputs), None, self.device)
        tap = dropping(self._tensors(check_masks(config, masks, inputs)), config.dropout) if masks else identity
        model = self._by_onednn(self.model, learning).train(training)
        try:
            loss, gradients = loss_and_gradients(model, expected, tap=tap, **inputs)
        finally:
            model.eval()
        return float(loss), {name: to_numpy(gradient) for name, gradient in gradients.items()}

    def train(
        self, batches: Sequence[Mapping[str, Any]], training: Training
    ) -> tuple[list[float], dict[str, np.ndarray]]:
        checked = [check_batch(self.model.config, batch) for batch in batches]
        tensors = [self._tensors(batch) for batch in checked]
        model = self._by_onednn(copy.deepcopy(self.model).train(), learning)
        losses, parameters = train(model, tensors, training)
        return losses, {name: to_numpy(value) for name, value in parameters.items()}

    @torch.no_grad()
    def step(
        self, tokens: Any, cache: Any = None, *, source: Any = None, counts: Any = None, attention_mask: Any = None
    ) -> tuple[Any, Any]:
        config = self.model.config
        lengths = None if cache is None else to_numpy(cache["lengths"])
        inputs = self._tensors(check_step(config, tokens, lengths, source, counts, attention_mask))
        tokens, source, mask = inputs["tokens"], inputs.get("source"), inputs["attention_mask"]
        if cache is None:
            of_source = None if source is None else mask
            cache = start(self.fastest, len(tokens), config.max_length, source=source, attention_mask=of_source)
        mask = mask if source is None else None
        return self.stepped(self.fastest, tokens, cache, counts=inputs["counts"], attention_mask=mask), cache

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
        inputs = self._tensors(check_prompt(self.model.config, prompt, source, lengths))
        prompt = inputs.pop("prompt")
        steps, uniforms = check_draws(len(prompt), max_new_tokens, uniforms)
        drawn = _tensor(uniforms, torch.float64, self.device)
        beside: dict[str, Any] = {"uniforms": drawn, "sampling": sampling, "step": self.stepped}
        return to_numpy(generate(self.fastest, prompt, steps, **inputs, **beside))

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
        inputs = self._tensors(check_prompt(self.model.config, prompt, source, lengths))
        prompt = inputs.pop("prompt")
        steps, _ = check_draws(len(prompt), max_new_tokens, None)
        beams, power = check_beams(beams, length_penalty)
        beside: dict[str, Any] = {"length_penalty": power, "step": self.stepped}
        tokens, scores = beam_search(self.fastest, prompt, steps, beams, **inputs, **beside)
        return to_numpy(tokens), to_numpy(scores)

    def ready(self, result: Any) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize(self.device)

    def _by_onednn(self, model: Transformer, through: Callable[[nn.Module], nn.Module]) -> Transformer:
        """`model`, multiplied by oneDNN if it can be."""
        if not can_be_packed(model.token_embedding.weight.dtype, self.device):
            return model
        changed = through(model)
        assert isinstance(changed, Transformer)
        return changed

    def _inputs(self, tokens: dict[str, Any]) -> dict[str, torch.Tensor]:
        return self._tensors(check_inputs(self.model.config, tokens))

    def _tensors(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: _tensor(value, None, self.device) for name, value in values.items()}


class PytorchModule:
    """`transparity.protocol.Module`: an `nn.Module` of the column, between NumPy arrays."""

    def __init__(self, module: nn.Module, dtype: torch.dtype, device: str) -> None:
        self.module, self.dtype, self.device = module, dtype, device

    @torch.no_grad()
    def __call__(self, *arrays: Any, taps: dict[str, Any] | None = None, **named: Any) -> Any:
        heard: dict[str, torch.Tensor] = {}
        listening = {} if taps is None else {"tap": recording(heard)}
        given = [_tensor(array, self.dtype, self.device) for array in arrays]
        keywords = {name: _tensor(array, self.dtype, self.device) for name, array in named.items()}
        result = self.module(*given, **keywords, **listening)
        if taps is not None:
            taps |= {name: to_numpy(value) for name, value in heard.items()}
        return to_numpy(result)

    def train(self) -> None:
        self.module.train()

    def parameters(self) -> dict[str, np.ndarray]:
        return dump(self.module)


class PytorchBackend:
    """`transparity.protocol.Backend` in PyTorch."""

    name = "pytorch"
    dtypes = ("float32", "float64", "bfloat16", "float16")
    modes = ("eager", "compile")

    def __call__(
        self,
        config: TransformerConfig,
        parameters: Arrays,
        *,
        dtype: str = "float32",
        device: str = "cpu",
        mode: str = "eager",
        weights: str | None = None,
        activations: str | None = None,
    ) -> PytorchForward:
        check_choice(self.name, "mode", mode, self.modes)
        check_parameters(config, parameters)
        if weights:
            rounded = check_choice(self.name, "weights", weights, self.dtypes)
            parameters = {
                name: to_numpy(torch.as_tensor(value).to(getattr(torch, rounded))) for name, value in parameters.items()
            }
        if activations:
            check_choice(self.name, "activations", activations, self.dtypes)
        model = self._load(Transformer, config, parameters, dtype, device)
        return PytorchForward(model, device, mode, getattr(torch, activations) if activations else None)

    def function(self, name: str, *, dtype: str = "float32", device: str = "cpu") -> Callable[..., Any]:
        function, torch_dtype = _named(name), self._dtype(dtype)

        def on_arrays(*arrays: Any, **named: Any) -> Any:
            given = [_tensor(array, torch_dtype, device) for array in arrays]
            keywords = {name: _tensor(array, torch_dtype, device) for name, array in named.items()}
            result = function(*given, **keywords)
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
    ) -> PytorchModule:
        return PytorchModule(self._load(_named(name), config, parameters, dtype, device), self._dtype(dtype), device)

    def einsum(self, subscripts: str, *arrays: np.ndarray) -> np.ndarray:
        return to_numpy(torch.einsum(subscripts, *map(torch.as_tensor, arrays)))

    def devices(self) -> tuple[str, ...]:
        return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)

    def describe(self, device: str) -> dict[str, str]:
        name = torch.cuda.get_device_name() if device == "cuda" else torch.backends.cpu.get_cpu_capability()
        matmul = f"float32 {torch.get_float32_matmul_precision()}"
        return {"torch": torch.__version__, "device": name, "matmul": matmul}

    @contextmanager
    def pinned(self) -> Iterator[None]:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)

    def _load(
        self, module: Callable[..., Any], config: TransformerConfig, parameters: Arrays, dtype: str, device: str
    ) -> Any:
        check_choice(self.name, "device", device, self.devices())
        # What is drawn here is overwritten at once. Under the meta device nothing would be drawn, but to draw nothing
        # PyTorch imports its compiler, which takes seconds.
        with torch.random.fork_rng(devices=[]):
            model = module(config).to(device, self._dtype(dtype)).eval()
        load(model, parameters)
        return model

    def _dtype(self, dtype: str) -> torch.dtype:
        torch_dtype: torch.dtype = getattr(torch, check_choice(self.name, "dtype", dtype, self.dtypes))
        return torch_dtype


def _named(name: str) -> Callable[..., Any]:
    file, attribute = name.split(".")
    found: Callable[..., Any] = getattr(importlib.import_module(f"transparity_pytorch.{file}"), attribute)
    return found


def _tensor(value: Any, dtype: torch.dtype | None, device: str) -> Any:
    """An array as a tensor on `device`, floats in `dtype`; anything else as it is."""
    if not isinstance(value, np.ndarray):
        return value
    return torch.as_tensor(value, dtype=dtype if value.dtype.kind == "f" else None).to(device)


def _array(value: Any) -> Any:
    return to_numpy(value) if isinstance(value, torch.Tensor) else value


build = PytorchBackend()
