"""Forward pass, decoding and training of PyTorch modules; a timed run starts from NumPy arrays, and waits for the
result."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from benchmarks.workloads import TRAINING, Run, Task
from torch import Tensor, nn
from torch.nn import functional as F


def tasks(task: Task, model: nn.Module, forward: Callable[..., Any] | None = None) -> Run:
    """Return a run of the workload's task. In a forward pass, `forward` (a compiled model) replaces the model."""
    if task.workload.kind == "train":
        return train(task, model)
    if task.workload.kind == "decode":
        return decode(task, model.generate)  # type: ignore[arg-type]
    return logits(task, model if forward is None else forward)


def logits(task: Task, forward: Callable[..., Any]) -> Run:
    def run() -> Tensor:
        with torch.inference_mode():
            return ready(forward(**tensors(task)))

    return run


def decode(task: Task, generate: Callable[[Tensor, int], Tensor]) -> Run:
    def run() -> Tensor:
        with torch.inference_mode():
            return ready(generate(tensors(task)["tokens"], task.workload.new_tokens))

    return run


def train(task: Task, model: nn.Module) -> Run:
    """Return a run that trains a copy of `model` with AdamW, and returns the loss before each step."""

    def run() -> Tensor:
        trained = copy.deepcopy(model).train()
        settings = (TRAINING.learning_rate, TRAINING.betas, TRAINING.eps, TRAINING.weight_decay)
        optimizer = torch.optim.AdamW(trained.parameters(), *settings, fused=True)
        inputs, targets = tensors(task), _tensor(task, task.inputs["targets"])
        losses = []
        for _ in range(task.workload.steps):
            optimizer.zero_grad()
            loss = F.cross_entropy(trained(**inputs).flatten(0, 1), targets.flatten())
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return ready(torch.stack(losses))

    return run


def tensors(task: Task) -> dict[str, Tensor]:
    return {name: _tensor(task, array) for name, array in task.tokens.items()}


def ready(result: Tensor) -> Tensor:
    if result.is_cuda:
        torch.cuda.synchronize()
    return result


def _tensor(task: Task, array: np.ndarray) -> Tensor:
    return torch.as_tensor(array).to(task.device)
