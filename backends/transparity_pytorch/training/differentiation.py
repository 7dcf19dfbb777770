"""Gradients of the loss by autograd."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call

from transparity_pytorch.shapes import TokenIds
from transparity_pytorch.training.loss import cross_entropy
from transparity_pytorch.transformer import Transformer


def loss_of(model: Transformer, targets: TokenIds, **tokens: Any) -> Float[Tensor, ""]:
    """Return the loss of a model; in training, batch norms normalize by the batch, and running statistics do not
    change."""
    statistics = {name: buffer.clone() for name, buffer in model.named_buffers()}
    logits = functional_call(model, statistics, kwargs=tokens)
    return cross_entropy(logits, targets, model.config.pad_id)


def loss_and_gradients(
    model: Transformer, targets: TokenIds, **tokens: Any
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """Return the loss, and its gradients with respect to all learned parameters."""
    parameters = dict(model.named_parameters())
    loss = loss_of(model, targets, **tokens)
    gradients = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
    return loss.detach(), dict(zip(parameters, gradients, strict=True))
