"""Mistakes in the optimizers: what becomes of right gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import is_learned
from transparity.training import Training
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.differentiation import loss_and_gradients
from transparity_numpy.optimization import clip_by_global_norm

Clip = Callable[[Arrays, float], Arrays]
"""What becomes of gradients for a largest norm."""


def _each_by_itself(gradients: Arrays, max_norm: float) -> Arrays:
    return {name: clip_by_global_norm({name: value}, max_norm)[name] for name, value in gradients.items()}


def _by_value(gradients: Arrays, max_norm: float) -> Arrays:
    return {name: np.clip(value, -max_norm, max_norm) for name, value in gradients.items()}


def _always(gradients: Arrays, max_norm: float) -> Arrays:
    norm = math.sqrt(sum(float((value * value).sum()) for value in gradients.values()))
    return {name: value * value.dtype.type(max_norm / norm) for name, value in gradients.items()}


def _never(gradients: Arrays, max_norm: float) -> Arrays:
    return gradients


@dataclass(frozen=True)
class Optimizing:
    """How steps are made: as the reference does, but for what is said here."""

    id: str = ""
    says: str = ""
    clip: Clip = clip_by_global_norm
    eps: str = "behind the root"
    """`behind the root`, `inside the root`, `before the correction`, or `nowhere`."""
    decay: str = "decoupled"
    """`decoupled`, `coupled` (into the gradient), `without the rate`, `of weights alone`, or `none`."""
    corrects: bool = True
    """Whether Adam's moments are divided by 1 − betaᵗ."""
    swaps_betas: bool = False
    counts_from: int = 1
    """The number of the first step, as the schedule sees it."""
    dampens: bool = False
    """Whether SGD takes 1 − momentum of each gradient."""
    looks_ahead: bool = False
    """Whether SGD's step is Nesterov's."""


OPTIMIZINGS = (
    Optimizing("clip-norm", "every tensor is clipped by its own norm, not all by one", clip=_each_by_itself),
    Optimizing("clip-norm", "every number of a gradient is clipped, not the norm", clip=_by_value),
    Optimizing("clip-norm", "gradients are scaled to the largest norm even if they are shorter", clip=_always),
    Optimizing("clip-norm", "gradients are not clipped", clip=_never),
    Optimizing("optimizer-eps", "eps is added inside the root", eps="inside the root"),
    Optimizing("optimizer-eps", "eps is added before the second moment is corrected", eps="before the correction"),
    Optimizing("optimizer-eps", "eps is left out", eps="nowhere"),
    Optimizing("weight-decay", "weight decay is added to the gradient: it is coupled", decay="coupled"),
    Optimizing("weight-decay", "weight decay is not multiplied by the learning rate", decay="without the rate"),
    Optimizing("weight-decay", "biases and norms are left out of weight decay", decay="of weights alone"),
    Optimizing("weight-decay", "nothing decays", decay="none"),
    Optimizing("bias-correction", "the moments are not corrected for beginning at 0", corrects=False),
    Optimizing("optimizer-betas", "the betas are swapped", swaps_betas=True),
    Optimizing("warm-up", "the first step counts as the second", counts_from=2),
    Optimizing("warm-up", "the first step counts as step 0, whose rate is 0", counts_from=0),
    Optimizing("momentum", "gradients are taken times 1 − momentum", dampens=True),
    Optimizing("momentum", "the momentum is Nesterov's", looks_ahead=True),
)
"""The likeliest first."""


def trained(
    config: TransformerConfig, parameters: Arrays, batches: Sequence[Arrays], training: Training, how: Optimizing
) -> tuple[list[float], Arrays]:
    """The losses, and what the parameters become in a port that makes its steps so."""
    parameters, losses = dict(parameters), []
    first: Arrays = {}
    second: Arrays = {}
    beta1, beta2 = training.betas[::-1] if how.swaps_betas else training.betas
    for step, batch in enumerate(batches, 1):
        loss, gradients = loss_and_gradients(config, parameters, training=True, **batch)
        losses.append(float(loss))
        if training.max_norm is not None:
            gradients = how.clip(gradients, training.max_norm)
        count = step - 1 + how.counts_from
        rate = training.rate(count, config.embed_dim) if count or training.warmup_steps is None else 0.0
        for name, computed in gradients.items():
            gradient, zero = computed, np.zeros_like(computed)
            decay = training.weight_decay if training.optimizer == "adamw" else 0.0
            spared = how.decay == "none" or (how.decay == "of weights alone" and gradient.ndim < 2)
            decay = 0.0 if spared else decay
            if how.decay == "coupled":
                gradient, decay = gradient + decay * parameters[name], 0.0
            if training.optimizer == "sgd":
                share = 1 - training.momentum if how.dampens else 1.0
                first[name] = training.momentum * first.get(name, zero) + share * gradient
                ahead = gradient + training.momentum * first[name] if how.looks_ahead else first[name]
                parameters[name] = parameters[name] - rate * ahead
                continue
            first[name] = beta1 * first.get(name, zero) + (1 - beta1) * gradient
            second[name] = beta2 * second.get(name, zero) + (1 - beta2) * gradient * gradient
            corrections = (1 - beta1**step, 1 - beta2**step) if how.corrects else (1.0, 1.0)
            root = _root(second[name], corrections[1], training.eps, how.eps)
            kept = parameters[name] * (1 - (1.0 if how.decay == "without the rate" else rate) * decay)
            # Where eps is left out, what no gradient reaches is divided by 0; a port would leave it as it is.
            moved = np.divide(first[name] / corrections[0], root, out=np.zeros_like(root), where=root != 0)
            parameters[name] = kept - rate * moved
    return losses, {name: value for name, value in parameters.items() if is_learned(name)}


def _root(second: np.ndarray, correction: float, eps: float, where: str) -> np.ndarray:
    if where == "inside the root":
        return np.sqrt(second / correction + eps)
    if where == "before the correction":
        return (np.sqrt(second) + eps) / np.sqrt(correction)
    return np.sqrt(second / correction) + (0.0 if where == "nowhere" else eps)
