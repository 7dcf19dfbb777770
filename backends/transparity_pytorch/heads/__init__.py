"""The outputs of a model."""

from collections.abc import Callable

from torch import Tensor

from transparity_pytorch.heads.classes import classes
from transparity_pytorch.heads.logits import hidden, logits
from transparity_pytorch.heads.pooled import pooled

HEADS: dict[str, Callable[..., Tensor]] = {"logits": logits, "hidden": hidden, "pooled": pooled, "classes": classes}
"""The function for each value of `config.head`; its argument `x` is the pooled state if `config.is_pooled` is true."""
