"""Optimizers and their settings, the same for every column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import ConfigError, is_finite, is_whole, shown
from transparity.taps import tap_shapes

OPTIMIZERS = ("sgd", "adam", "adamw")


@dataclass(frozen=True)
class Training:
    """An optimizer and its settings. The defaults of `betas` and `eps` are from Vaswani et al. 2017, §5.3."""

    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    """The optimizer: `sgd` with momentum, `adam` (Kingma and Ba 2015) or `adamw` (Loshchilov and Hutter 2019)."""
    learning_rate: float = 1e-3
    """The learning rate. With `warmup_steps`, this number instead multiplies the rate of the schedule."""
    momentum: float = 0.0
    """Momentum of `sgd`: the share of the last step that is added to the next step."""
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-9
    """Small number that is added to the square root of the second moment, not under the root."""
    weight_decay: float = 0.0
    """Decoupled weight decay of `adamw`: each step subtracts weight_decay · learning rate · parameter."""
    max_norm: float | None = None
    """Largest norm of all gradients together; larger gradients are scaled down to this norm. None means no clipping."""
    warmup_steps: int | None = None
    """Steps in which the learning rate rises; it then falls with 1/√step (§5.3, eq. 3). None means a constant rate."""

    def __post_init__(self) -> None:
        if not isinstance(self.optimizer, str) or self.optimizer not in OPTIMIZERS:
            raise ConfigError(f"optimizer is {shown(self.optimizer)}; it should be one of {', '.join(OPTIMIZERS)}.")
        for name in ("learning_rate", "momentum", "eps", "weight_decay", "max_norm"):
            value = getattr(self, name)
            if not ((is_finite(value) and value >= 0) or (name == "max_norm" and value is None)):
                raise ConfigError(f"{name} is {shown(value)}; it should be a finite number ≥ 0.")
        pair = self.betas if isinstance(self.betas, tuple | list) and len(self.betas) == 2 else (None,)
        if not all(is_finite(beta) and 0 <= beta < 1 for beta in pair):
            raise ConfigError(f"betas is {shown(self.betas)}; it should be two numbers, at least 0 and less than 1.")
        if self.warmup_steps is not None and not is_whole(self.warmup_steps, 1):
            raise ConfigError(f"warmup_steps is {shown(self.warmup_steps)}; it should be a whole number, at least 1.")

    def rate(self, step: int, embed_dim: int) -> float:
        """Return the learning rate at a step, counted from 1.

        With warm-up, the rate is learning_rate · embed_dim^−½ · min(step^−½, step · warmup_steps^−3⁄2).
        """
        if self.warmup_steps is None:
            return self.learning_rate
        return self.learning_rate * embed_dim**-0.5 * min(step**-0.5, step * self.warmup_steps**-1.5)


def dropout_masks(
    config: TransformerConfig, random: np.random.Generator, batch: int, **lengths: int
) -> dict[str, np.ndarray]:
    """Draw the dropout masks of one training step, by activation: True (keep) with probability 1 − dropout.

    A mask has the shape of its activation. `lengths` has the number of positions of each input, by name.
    """
    shapes = dropout_shapes(config, batch, **lengths)
    return {name: random.random(shape) >= config.dropout for name, shape in shapes.items()}


def dropout_shapes(config: TransformerConfig, batch: int, **lengths: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every activation that dropout applies to, by name."""
    shapes = tap_shapes(config, batch, **lengths)
    return {name: shape for name, shape in shapes.items() if name.endswith(config.dropout_at)}
