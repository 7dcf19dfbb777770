"""Optimizers: SGD, Adam and AdamW by `torch.optim`, with gradient clipping."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from transparity.training import Training
from transparity_pytorch.training.loss import loss_and_gradients
from transparity_pytorch.transformer import Transformer


def clip_by_global_norm(gradients: Mapping[str, Tensor], max_norm: float) -> dict[str, Tensor]:
    """g · min(1, max_norm / ‖g‖), where ‖g‖ is the norm of all gradients together (Pascanu et al. 2013).

    `torch.nn.utils.clip_grad_norm_` is not used, because it divides by the norm plus 1e-6.
    """
    norm = torch.nn.utils.get_total_norm(gradients.values())
    factor = (max_norm / norm).clamp(max=1.0)
    return {name: gradient * factor for name, gradient in gradients.items()}


def train(
    model: Transformer,
    batches: Sequence[Mapping[str, Tensor]],
    training: Training,
    differentiate: Callable[..., tuple[Tensor, dict[str, Tensor]]] = loss_and_gradients,
    local: Callable[[Tensor], Tensor] = Tensor.detach,
) -> tuple[list[float], dict[str, Tensor]]:
    """Take one step per batch (inputs and `targets`); return the loss before each step and the learned parameters.

    Batch norms normalize by the batch, and running statistics do not change. `local` returns this rank's share of a
    parameter or gradient without copying it. Each rank updates only its share, because optimizers are elementwise.
    """
    parameters = dict(model.named_parameters())
    shares = {name: nn.Parameter(local(parameter)) for name, parameter in parameters.items()}
    optimizer, losses = optimizer_of(list(shares.values()), training), []
    for step, batch in enumerate(batches, 1):
        loss, gradients = differentiate(model, **batch)
        if training.max_norm is not None:
            gradients = clip_by_global_norm(gradients, training.max_norm)
        for name, gradient in gradients.items():
            shares[name].grad = local(gradient)
        optimizer.param_groups[0]["lr"] = training.rate(step, model.config.embed_dim)
        optimizer.step()
        optimizer.zero_grad()
        del gradients, gradient  # otherwise these gradients and the next step's would be in memory together
        losses.append(float(loss))
    return losses, {name: parameter.detach() for name, parameter in parameters.items()}


def optimizer_of(parameters: list[torch.nn.Parameter], training: Training) -> torch.optim.Optimizer:
    if training.optimizer == "sgd":
        return torch.optim.SGD(parameters, momentum=training.momentum, fused=True)
    betas, eps = training.betas, training.eps
    if training.optimizer == "adam":
        return torch.optim.Adam(parameters, betas=betas, eps=eps, fused=True)
    return torch.optim.AdamW(parameters, betas=betas, eps=eps, weight_decay=training.weight_decay, fused=True)
