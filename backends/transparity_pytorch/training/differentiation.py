"""Differentiation: gradients of the loss by autograd."""

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
    """Loss of a model; in training, a batch norm normalizes by the batch, and its running statistics do not change."""
    statistics = {name: buffer.clone() for name, buffer in model.named_buffers()}
    logits = functional_call(model, statistics, kwargs=tokens)
    return cross_entropy(logits, targets, model.config.pad_id)


def loss_and_gradients(
    model: Transformer, targets: TokenIds, **tokens: Any
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """Loss, and its gradient by every learned parameter."""
    parameters = dict(model.named_parameters())
    loss = loss_of(model, targets, **tokens)
    gradients = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
    return loss.detach(), dict(zip(parameters, gradients, strict=True))
