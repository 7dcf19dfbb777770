"""Optimizers: SGD, Adam and AdamW by `torch.optim`, with gradient clipping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from transparity.training import Training
from transparity_pytorch.training.loss import loss_and_gradients
from transparity_pytorch.transformer import Transformer


def clip_by_global_norm(gradients: Mapping[str, Tensor], max_norm: float) -> dict[str, Tensor]:
    """Scale all gradients by one factor, so that their norm together is at most `max_norm` (Pascanu et al. 2013).

    `torch.nn.utils.clip_grad_norm_` is not used, because it divides by the norm plus 1e-6.
    """
    norm = torch.nn.utils.get_total_norm(gradients.values())
    factor = (max_norm / norm).clamp(max=1.0)
    return {name: gradient * factor for name, gradient in gradients.items()}


def train(
    model: Transformer, batches: Sequence[Mapping[str, Tensor]], training: Training
) -> tuple[list[float], dict[str, Tensor]]:
    """Take one step per batch (inputs and `targets`); return the loss before each step and the learned parameters.

    Batch norms normalize by the batch, and running statistics do not change.
    """
    parameters = dict(model.named_parameters())
    optimizer = optimizer_of(list(parameters.values()), training)
    losses = [
        _step(model, training, training.rate(step, model.config.embed_dim), parameters, optimizer, batch)
        for step, batch in enumerate(batches, 1)
    ]
    return losses, {name: parameter.detach() for name, parameter in parameters.items()}


def _step(
    model: Transformer,
    training: Training,
    rate: float,
    parameters: Mapping[str, Tensor],
    optimizer: torch.optim.Optimizer,
    batch: Mapping[str, Tensor],
) -> float:
    loss, gradients = loss_and_gradients(model, **batch)
    if training.max_norm is not None:
        gradients = clip_by_global_norm(gradients, training.max_norm)
    for name, gradient in gradients.items():
        parameters[name].grad = gradient
    optimizer.param_groups[0]["lr"] = rate
    optimizer.step()
    optimizer.zero_grad()  # otherwise these gradients and the next step's would be in memory together
    return float(loss)


def optimizer_of(parameters: list[torch.nn.Parameter], training: Training) -> torch.optim.Optimizer:
    if training.optimizer == "sgd":
        return torch.optim.SGD(parameters, momentum=training.momentum, fused=True)
    betas, eps = training.betas, training.eps
    if training.optimizer == "adam":
        return torch.optim.Adam(parameters, betas=betas, eps=eps, fused=True)
    return torch.optim.AdamW(parameters, betas=betas, eps=eps, weight_decay=training.weight_decay, fused=True)
