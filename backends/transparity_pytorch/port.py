"""The entry point of the PyTorch column: `build(config, parameters)`, with every capability."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from transparity.checked import CheckedBackend, DifferentiableForward, Execution, Inputs
from transparity.config import TransformerConfig
from transparity.protocol import Arrays
from transparity.sampling import Sampling
from transparity.taps import chained, identity, recording
from transparity.training import Training
from transparity_pytorch.arithmetic.changes import dropping, rounding
from transparity_pytorch.decoding.beams import beam_search
from transparity_pytorch.decoding.generation import generate
from transparity_pytorch.decoding.replayed import ReplayedGeneration
from transparity_pytorch.decoding.steps import Step, prefill, step
from transparity_pytorch.fast.fast_linear import can_be_packed, compiled_for_few_rows, packed
from transparity_pytorch.fast.graphs import Replayed
from transparity_pytorch.state.parameters import load, to_numpy
from transparity_pytorch.training.loss import cross_entropy, loss_and_gradients
from transparity_pytorch.training.optimization import train
from transparity_pytorch.transformer import Transformer


class PytorchForward(DifferentiableForward):
    """A `transparity.protocol.Forward` in PyTorch."""

    array = torch.Tensor

    def __init__(self, model: Transformer, device: str, mode: str, activations: torch.dtype | None = None) -> None:
        self.model, self.config, self.device = model, model.config, device
        self.dtype = next(model.parameters()).dtype
        tap = rounding(activations) if activations else identity

        def fast(fastest: Transformer, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
            logits: torch.Tensor = fastest(**inputs, tap=tap)
            return logits

        def traced(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            taps: dict[str, torch.Tensor] = {}
            model(**inputs, tap=chained(tap, recording(taps)))
            return taps

        compiled = mode == "compile"
        run: Callable[..., torch.Tensor] = torch.compile(fast) if compiled else fast
        self.fast = run if device == "cpu" else Replayed(run)
        self.generated: Callable[..., torch.Tensor] = generate if device == "cpu" else ReplayedGeneration()
        self.traced: Callable[..., dict[str, torch.Tensor]] = torch.compile(traced) if compiled else traced
        self.stepped: Step = compiled_for_few_rows(step) if compiled else step

    @functools.cached_property
    def fastest(self) -> Transformer:
        """The model with packed weights, if this is possible, for calls without gradients and taps."""
        fastest = packed(self.model) if can_be_packed(self.dtype, self.device) else self.model
        assert isinstance(fastest, Transformer)
        return fastest

    @torch.no_grad()
    def _taps(self, inputs: Inputs) -> dict[str, torch.Tensor]:
        return self.traced(self._tensors(inputs))

    @torch.no_grad()
    def _logits(self, inputs: Inputs, out: torch.Tensor | None = None) -> torch.Tensor:
        logits = self.fast(self.fastest, self._tensors(inputs))
        return logits if out is None else out.copy_(logits)

    def _loss(self, targets: np.ndarray, inputs: Inputs) -> float:
        return float(cross_entropy(self._logits(inputs), tensor(targets, None, self.device), self.config.pad_id))

    def _loss_and_gradients(
        self, targets: np.ndarray, inputs: Inputs, masks: Inputs, *, training: bool
    ) -> tuple[float, dict[str, np.ndarray]]:
        expected = tensor(targets, None, self.device)
        tap = dropping(self._tensors(masks), self.config.dropout) if masks else identity
        model = self.model.train(training)
        model.dropout.eval()  # dropout uses only the given masks
        try:
            loss, gradients = loss_and_gradients(model, expected, tap=tap, **self._tensors(inputs))
        finally:
            model.eval()
        return float(loss), {name: to_numpy(gradient) for name, gradient in gradients.items()}

    def _train(self, batches: list[Inputs], training: Training) -> tuple[list[float], dict[str, np.ndarray]]:
        model = copy.deepcopy(self.model).train()
        model.dropout.eval()
        losses, parameters = train(model, [self._tensors(batch) for batch in batches], training)
        return losses, {name: to_numpy(value) for name, value in parameters.items()}

    @torch.no_grad()
    def _start(self, batch: int, source: np.ndarray | None, source_mask: np.ndarray | None) -> Any:
        given = self._tensors({"source": source, "attention_mask": source_mask})
        return prefill(self.fastest, batch, self.config.max_length, **given)

    @torch.no_grad()
    def _step(
        self, tokens: np.ndarray, cache: Any, valid_lengths: np.ndarray | None, mask: np.ndarray | None
    ) -> tuple[torch.Tensor, Any]:
        given = self._tensors({"valid_lengths": valid_lengths, "attention_mask": mask})
        return self.stepped(self.fastest, tensor(tokens, None, self.device), cache, **given), cache

    def _generate(self, prompt: np.ndarray, steps: int, inputs: Inputs, sampling: Sampling | None) -> np.ndarray:
        begin, given = tensor(prompt, None, self.device), self._tensors(inputs)
        given["uniforms"] = tensor(inputs["uniforms"], torch.float64, self.device)
        return to_numpy(self.generated(self.fastest, begin, steps, **given, sampling=sampling, step=self.stepped))

    def _beam_search(
        self, prompt: np.ndarray, steps: int, inputs: Inputs, beams: int, length_penalty: float
    ) -> tuple[np.ndarray, np.ndarray]:
        begin, given = tensor(prompt, None, self.device), self._tensors(inputs)
        given |= {"length_penalty": length_penalty, "step": self.stepped}
        tokens, scores = beam_search(self.fastest, begin, steps, beams, **given)
        return to_numpy(tokens), to_numpy(scores)

    def ready(self, result: Any) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize(self.device)

    def _tensors(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: tensor(value, None, self.device) for name, value in values.items()}


class PytorchBackend(CheckedBackend[PytorchForward]):
    """A `transparity.protocol.Backend` in PyTorch."""

    name = "pytorch"
    dtypes = ("float32", "float64", "bfloat16", "float16")
    modes = ("eager", "compile")

    def devices(self) -> tuple[str, ...]:
        return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)

    def _build(self, config: TransformerConfig, parameters: Arrays, execution: Execution) -> PytorchForward:
        activations = getattr(torch, execution.activations) if execution.activations else None
        model = loaded(Transformer, config, parameters, execution.dtype, execution.device)
        return PytorchForward(model, execution.device, execution.mode, activations)


def loaded(module: Callable[..., Any], config: TransformerConfig, parameters: Arrays, dtype: str, device: str) -> Any:
    """Return a module of the column with these parameters, in evaluation mode."""
    # The initial values are overwritten. The meta device would skip them, but it makes PyTorch import its compiler,
    # which takes seconds.
    with torch.random.fork_rng(devices=[]):
        model = module(config).to(device, getattr(torch, dtype)).eval()
    load(model, parameters)
    return model


def tensor(value: Any, dtype: torch.dtype | None, device: str) -> Any:
    """Return an array as a tensor on `device`, with floats cast to `dtype`; return any other value unchanged."""
    if not isinstance(value, np.ndarray):
        return value
    return torch.as_tensor(value, dtype=dtype if value.dtype.kind == "f" else None).to(device)


build = PytorchBackend()
