"""The outputs of a model."""

from collections.abc import Callable

from jax import Array

from transparity_flax.heads.classes import classes
from transparity_flax.heads.logits import hidden, logits
from transparity_flax.heads.pooled import pooled

HEADS: dict[str, Callable[..., Array]] = {"logits": logits, "hidden": hidden, "pooled": pooled, "classes": classes}
"""The function for each value of `config.head`; its argument `x` is the pooled state if `config.is_pooled` is true."""
