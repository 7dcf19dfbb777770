"""Optimizers: SGD, Adam and AdamW, with gradient clipping."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity.parameters import is_learned
from transparity.training import Training
from transparity_numpy.shapes import Parameters
from transparity_numpy.training.loss import loss_and_gradients


def clip_by_global_norm(gradients: Parameters, max_norm: float) -> dict[str, Array]:
    """g · min(1, max_norm / ‖g‖), where ‖g‖ is the norm of all gradients together (Pascanu et al. 2013)."""
    norm = math.sqrt(sum(float((gradient * gradient).sum()) for gradient in gradients.values()))
    factor = min(1.0, max_norm / norm) if norm else 1.0
    return {name: gradient * gradient.dtype.type(factor) for name, gradient in gradients.items()}


def train(
    config: TransformerConfig,
    parameters: Parameters,
    batches: Sequence[Mapping[str, Array]],
    training: Training,
    differentiate: Callable[..., tuple[Array, dict[str, Array]]] = loss_and_gradients,
) -> tuple[list[float], dict[str, Array]]:
    """Take one step per batch (inputs and `targets`); return the loss before each step and the learned parameters.

    Batch norms normalize by the batch, and running statistics do not change. `loss_and_gradients` is slow; for many
    steps, pass a faster function `differentiate`.
    """
    parameters, losses = dict(parameters), []
    first: dict[str, Array] = {}
    second: dict[str, Array] = {}
    for step, batch in enumerate(batches, 1):
        loss, gradients = differentiate(config, parameters, training=True, **batch)
        losses.append(float(loss))
        if training.max_norm is not None:
            gradients = clip_by_global_norm(gradients, training.max_norm)
        rate, (beta1, beta2) = training.rate(step, config.embed_dim), training.betas
        for name, gradient in gradients.items():
            of_dtype, zero = gradient.dtype.type, np.zeros_like(gradient)
            if training.optimizer == "sgd":
                first[name] = of_dtype(training.momentum) * first.get(name, zero) + gradient
                parameters[name] = parameters[name] - of_dtype(rate) * first[name]
                continue
            first[name] = of_dtype(beta1) * first.get(name, zero) + of_dtype(1 - beta1) * gradient
            second[name] = of_dtype(beta2) * second.get(name, zero) + of_dtype(1 - beta2) * gradient * gradient
            mean = first[name] / of_dtype(_weight_so_far(beta1, step))
            deviation = np.sqrt(second[name] / of_dtype(_weight_so_far(beta2, step)))
            decay = training.weight_decay if training.optimizer == "adamw" else 0.0
            kept = parameters[name] * of_dtype(1 - rate * decay)
            parameters[name] = kept - of_dtype(rate) * mean / (deviation + of_dtype(training.eps))
    return losses, {name: value for name, value in parameters.items() if is_learned(name)}


def _weight_so_far(beta: float, step: int) -> float:
    """1 − betaᵗ, the total weight of a running average that started with 0 (Kingma and Ba 2015, §3)."""
    return 1 - beta**step
