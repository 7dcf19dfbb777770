"""The loss: the cross-entropy of the targets under the logits."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from transparity_pytorch.arithmetic.precision import upcast
from transparity_pytorch.shapes import TokenIds


def cross_entropy(
    logits: Float[Tensor, "batch length vocab"], targets: TokenIds, pad_id: int | None, label_smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """Return the mean of −log softmax(logits)[target] over the targets that are not padding (document 001), in at least
    float32.

    With `label_smoothing`, this share of each target is spread evenly over the vocabulary (Szegedy et al. 2016, §7).
    The loss of a batch with only padding is NaN, as in the frameworks.
    """
    ignored = -100 if pad_id is None else pad_id  # −100 is no token id
    return F.cross_entropy(
        upcast(logits).flatten(0, 1), targets.flatten(), ignore_index=ignored, label_smoothing=label_smoothing
    )
