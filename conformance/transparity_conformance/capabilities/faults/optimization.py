"""Faults in the optimizers, given right gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import is_learned
from transparity.training import Training
from transparity_conformance.capabilities.faults import simulated
from transparity_conformance.oracle.differentiation.gradients import loss_and_gradients
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.training.optimization import clip_by_global_norm

Clip = Callable[[Arrays, float], Arrays]
"""Clips gradients, given the largest norm."""


def _each_by_itself(gradients: Arrays, max_norm: float) -> Arrays:
    return {name: clip_by_global_norm({name: value}, max_norm)[name] for name, value in gradients.items()}


def _always(gradients: Arrays, max_norm: float) -> Arrays:
    norm = math.sqrt(sum(float((value * value).sum()) for value in gradients.values()))
    return {name: value * value.dtype.type(max_norm / norm) for name, value in gradients.items()}


@dataclass(frozen=True)
class OptimizerRules:
    """The rules of an optimizer: the reference's by default."""

    clip: Clip = clip_by_global_norm
    eps: str = "behind the root"
    """`behind the root`, `inside the root`, `before the correction`, or `nowhere`."""
    decay: str = "decoupled"
    """`decoupled`, `coupled` (added to the gradient), `without the rate`, `of weights alone`, or `none`."""
    corrects: bool = True
    """Whether Adam's moments are divided by 1 − betaᵗ."""
    swaps_betas: bool = False
    counts_from: int = 1
    """The number of the first step in the schedule."""
    dampens: bool = False
    """Whether SGD takes 1 − momentum of each gradient."""
    looks_ahead: bool = False
    """Whether SGD's step is Nesterov's."""


def simulate_training(
    config: TransformerConfig, parameters: Arrays, batches: Sequence[Arrays], training: Training, **options: Any
) -> tuple[list[float], Arrays]:
    """Train by the `OptimizerRules` that `options` give; return the losses and the learned parameters."""
    rules, parameters, losses = OptimizerRules(**options), dict(parameters), []
    first: Arrays = {}
    second: Arrays = {}
    for step, batch in enumerate(batches, 1):
        loss, gradients = loss_and_gradients(config, parameters, training=True, **batch)
        losses.append(float(loss))
        if training.max_norm is not None:
            gradients = rules.clip(gradients, training.max_norm)
        count = step - 1 + rules.counts_from
        rate = training.rate(count, config.embed_dim) if count or training.warmup_steps is None else 0.0
        for name, computed in gradients.items():
            value, gradient = parameters[name], computed
            decay = _decay(rules, training, gradient)
            if rules.decay == "coupled":
                gradient, decay = gradient + decay * value, 0.0
            if training.optimizer == "sgd":
                parameters[name] = value - rate * _momentum(rules, training, first, name, gradient)
                continue
            kept = value * (1 - (1.0 if rules.decay == "without the rate" else rate) * decay)
            parameters[name] = kept - rate * _adam(rules, training, (first, second), name, gradient, step)
    return losses, {name: value for name, value in parameters.items() if is_learned(name)}


def _decay(rules: OptimizerRules, training: Training, gradient: np.ndarray) -> float:
    spared = rules.decay == "none" or (rules.decay == "of weights alone" and gradient.ndim < 2)
    return 0.0 if spared or training.optimizer != "adamw" else training.weight_decay


def _momentum(
    rules: OptimizerRules, training: Training, moments: Arrays, name: str, gradient: np.ndarray
) -> np.ndarray:
    """The direction of SGD's step; the moment `name` is updated."""
    share = 1 - training.momentum if rules.dampens else 1.0
    moments[name] = training.momentum * moments.get(name, np.zeros_like(gradient)) + share * gradient
    return gradient + training.momentum * moments[name] if rules.looks_ahead else moments[name]


def _adam(
    rules: OptimizerRules,
    training: Training,
    moments: tuple[Arrays, Arrays],
    name: str,
    gradient: np.ndarray,
    step: int,
) -> np.ndarray:
    """The direction of Adam's step; both moments of `name` are updated."""
    first, second = moments
    beta1, beta2 = training.betas[::-1] if rules.swaps_betas else training.betas
    zero = np.zeros_like(gradient)
    first[name] = beta1 * first.get(name, zero) + (1 - beta1) * gradient
    second[name] = beta2 * second.get(name, zero) + (1 - beta2) * gradient * gradient
    corrections = (1 - beta1**step, 1 - beta2**step) if rules.corrects else (1.0, 1.0)
    root = _root(second[name], corrections[1], training.eps, rules.eps)
    # Without eps, a parameter that no gradient reaches is divided by 0; a port would leave it unchanged.
    return np.divide(first[name] / corrections[0], root, out=np.zeros_like(root), where=root != 0)


def _root(second: np.ndarray, correction: float, eps: float, where: str) -> np.ndarray:
    if where == "inside the root":
        return np.sqrt(second / correction + eps)
    if where == "before the correction":
        return (np.sqrt(second) + eps) / np.sqrt(correction)
    return np.sqrt(second / correction) + (0.0 if where == "nowhere" else eps)


OPTIMIZER_FAULTS = simulated(
    simulate_training,
    ("clip-norm", "every tensor is clipped by its own norm, not by the joint one", {"clip": _each_by_itself}),
    (
        "clip-norm",
        "every number of a gradient is clipped, not the norm",
        {"clip": lambda gradients, most: {name: np.clip(x, -most, most) for name, x in gradients.items()}},
    ),
    ("clip-norm", "gradients are scaled to the largest norm even if they are shorter", {"clip": _always}),
    ("clip-norm", "gradients are not clipped", {"clip": lambda gradients, _: gradients}),
    ("optimizer-eps", "eps is added inside the root", {"eps": "inside the root"}),
    ("optimizer-eps", "eps is added before the second moment is corrected", {"eps": "before the correction"}),
    ("optimizer-eps", "eps is missing", {"eps": "nowhere"}),
    ("weight-decay", "weight decay is added to the gradient: it is coupled", {"decay": "coupled"}),
    ("weight-decay", "weight decay is not multiplied by the learning rate", {"decay": "without the rate"}),
    ("weight-decay", "biases and norms are excluded from weight decay", {"decay": "of weights alone"}),
    ("weight-decay", "nothing decays", {"decay": "none"}),
    ("bias-correction", "the bias correction of the moments is missing", {"corrects": False}),
    ("optimizer-betas", "the betas are swapped", {"swaps_betas": True}),
    ("warm-up", "the first step counts as the second", {"counts_from": 2}),
    ("warm-up", "the first step counts as step 0, whose rate is 0", {"counts_from": 0}),
    ("momentum", "gradients are multiplied by 1 − momentum", {"dampens": True}),
    ("momentum", "the momentum is Nesterov's", {"looks_ahead": True}),
)
