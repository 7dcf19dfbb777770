"""The embedding of images: a linear map of square patches (Dosovitskiy et al. 2021)."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_pytorch.shapes import Hidden, Pixels


def patch_parts(config: TransformerConfig, stack: str) -> dict[str, nn.Module]:
    """Return the modules of `embed_patches`: a linear map, and the class token if there is one."""
    projection = {"patch_projection": nn.Linear(config.patch_dim, config.embed_dim, bias=config.patch_bias)}
    return projection | ({"class_embedding": nn.Embedding(1, config.embed_dim)} if config.class_token else {})


def patches(config: TransformerConfig, pixels: Pixels) -> Float[Tensor, "batch patches patch_dim"]:
    """Return square patches, row by row; the values of a patch are ordered by channel, then row, then column."""
    size, (batch, channels, height, width) = config.patch_size or 1, pixels.shape
    cut = pixels.reshape(batch, channels, height // size, size, width // size, size)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * size * size)


def embed_patches(config: TransformerConfig, module: Any, pixels: Pixels, tap: Tap = identity) -> Hidden:
    """patch Wᵀ + b for each patch; a class token, if any, precedes the patches (Dosovitskiy et al. 2021, eq. 1)."""
    x = module.patch_projection(patches(config, pixels.to(module.patch_projection.weight.dtype)))
    if not config.class_token:
        return x
    return torch.cat([module.class_embedding.weight.expand(len(x), 1, config.embed_dim), x], dim=1)
