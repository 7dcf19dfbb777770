"""How a model is trained: the optimizer and its numbers, the same for every column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from transparity.config import TransformerConfig
from transparity.taps import tap_shapes


@dataclass(frozen=True)
class Training:
    """An optimizer, with what it is given: defaults are those of Vaswani et al. 2017, §5.3, where it says."""

    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    """`sgd`: with momentum. `adam`: Kingma and Ba 2015. `adamw`: and weight decay (Loshchilov and Hutter 2019)."""
    learning_rate: float = 1e-3
    """What every step is multiplied by; with `warmup_steps` it is the factor of the schedule."""
    momentum: float = 0.0
    """Of `sgd`: the share of the last step that goes into the next."""
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-9
    """Added to the root of the second moment, outside it."""
    weight_decay: float = 0.0
    """Of `adamw`: each step takes this share, times the rate, off every parameter."""
    max_norm: float | None = None
    """All gradients together, as one vector, are scaled to this length if they are longer."""
    warmup_steps: int | None = None
    """The rate rises for so many steps, and falls with 1/√step from there (§5.3, eq. 3)."""

    def rate(self, step: int, embed_dim: int) -> float:
        """The learning rate of a step, the first being 1. With warm-up:
        learning_rate · embed_dim^−½ · min(step^−½, step · warmup_steps^−3⁄2)."""
        if self.warmup_steps is None:
            return self.learning_rate
        return self.learning_rate * embed_dim**-0.5 * min(step**-0.5, step * self.warmup_steps**-1.5)


def dropout_masks(
    config: TransformerConfig, random: np.random.Generator, batch: int, **lengths: int
) -> dict[str, np.ndarray]:
    """What training keeps of every tap that it drops from: True with the probability 1 − dropout, by the tap's name and
    in its shape. `lengths` are those of the inputs, as for `tap_shapes`."""
    shapes = dropout_shapes(config, batch, **lengths)
    return {name: random.random(shape) >= config.dropout for name, shape in shapes.items()}


def dropout_shapes(config: TransformerConfig, batch: int, **lengths: int) -> dict[str, tuple[int, ...]]:
    """Every tap that training drops from, with its shape."""
    shapes = tap_shapes(config, batch, **lengths)
    return {name: shape for name, shape in shapes.items() if name.endswith(config.dropout_at)}
