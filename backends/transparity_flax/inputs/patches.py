"""The embedding of images: a linear map of square patches (Dosovitskiy et al. 2021)."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_flax.shapes import Hidden, Pixels


def patches(config: TransformerConfig, pixels: Pixels) -> Float[Array, "batch patches patch_dim"]:
    """Return square patches, row by row; the values of a patch are ordered by channel, then row, then column."""
    size, (batch, channels, height, width) = config.patch_size or 1, pixels.shape
    cut = pixels.reshape(batch, channels, height // size, size, width // size, size)
    return cut.transpose(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * size * size)


class EmbedPatches(nnx.Module):
    """patch Wᵀ + b for each patch; a class token, if any, precedes the patches (Dosovitskiy et al. 2021, eq. 1)."""

    def __init__(self, config: TransformerConfig, stack: str, *, rngs: nnx.Rngs) -> None:
        self.config, bias = config, config.patch_bias
        self.patch_projection = nnx.Linear(config.patch_dim, config.embed_dim, use_bias=bias, rngs=rngs)
        if config.class_token:
            self.class_embedding = nnx.Embed(1, config.embed_dim, rngs=rngs)

    def __call__(self, pixels: Pixels, tap: Tap = identity) -> Hidden:
        x = self.patch_projection(patches(self.config, pixels.astype(self.patch_projection.kernel.dtype)))
        if not self.config.class_token:
            return x
        first = jnp.broadcast_to(self.class_embedding.embedding[...], (len(x), 1, self.config.embed_dim))
        return jnp.concatenate([first, x], axis=1)
