"""The loss (the cross-entropy of the targets under the logits), and its gradients."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from transparity_pytorch.arithmetic.precision import upcast
from transparity_pytorch.shapes import TokenIds
from transparity_pytorch.transformer import Transformer


def cross_entropy(
    logits: Float[Tensor, "batch length vocab"], targets: TokenIds, pad_id: int | None, label_smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """Return the mean −log softmax(logits)[target] of targets that are not padding, summed in at least float32
    (document 001).

    With `label_smoothing`, this share of each target is spread evenly over the vocabulary (Szegedy et al. 2016, §7).
    The loss of a batch with only padding is NaN, as in PyTorch.
    """
    ignored = -100 if pad_id is None else pad_id  # −100 is no token id
    return F.cross_entropy(
        upcast(logits).flatten(0, 1), targets.flatten(), ignore_index=ignored, label_smoothing=label_smoothing
    )


def loss_of(model: Transformer, targets: TokenIds, **tokens: Any) -> Float[Tensor, ""]:
    """Return the loss of a model without changing running statistics; in training, batch norms normalize by the
    batch."""
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
