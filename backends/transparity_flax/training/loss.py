"""The loss: the cross-entropy of the targets under the logits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from transparity_flax.arithmetic.precision import upcast
from transparity_flax.shapes import TokenIds


def cross_entropy(
    logits: Float[Array, "batch length vocab"], targets: TokenIds, pad_id: int | None, label_smoothing: float = 0.0
) -> Float[Array, ""]:
    """Return the mean of −log softmax(logits)[target] over the targets that are not padding (document 001), in at least
    float32.

    With `label_smoothing`, this share of each target is spread evenly over the vocabulary (Szegedy et al. 2016, §7).
    The loss of a batch with only padding is NaN, as in the frameworks.
    """
    log_probabilities = jax.nn.log_softmax(upcast(logits), axis=-1)
    picked = jnp.take_along_axis(log_probabilities, targets[..., None], axis=-1)[..., 0]
    if label_smoothing:
        picked = (1 - label_smoothing) * picked + label_smoothing * log_probabilities.mean(axis=-1)
    counted = targets != pad_id if pad_id is not None else jnp.ones_like(targets, dtype=bool)
    return (-jnp.where(counted, picked, 0).sum() / counted.sum()).astype(logits.dtype)
