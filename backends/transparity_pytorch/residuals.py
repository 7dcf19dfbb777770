"""Residuals: a sublayer's result is added to its input, with norms at different places."""

from __future__ import annotations

from collections.abc import Callable

from transparity.config import TransformerConfig
from transparity_pytorch.shapes import Hidden

Sublayer = Callable[[Hidden], Hidden]


def add_residual(config: TransformerConfig, x: Hidden, y: Hidden) -> Hidden:
    """x + y, or x + multiplier · y (Granite)."""
    return x + y if config.residual_multiplier == 1 else x + y * config.residual_multiplier


def pre(config: TransformerConfig, x: Hidden, sublayer: Sublayer, norm: Sublayer, post_norm: Sublayer) -> Hidden:
    """x + f(norm(x)) (Xiong et al. 2020)."""
    return add_residual(config, x, sublayer(norm(x)))


def post(config: TransformerConfig, x: Hidden, sublayer: Sublayer, norm: Sublayer, post_norm: Sublayer) -> Hidden:
    """norm(x + f(x)) (Vaswani et al. 2017, §3.1)."""
    return norm(add_residual(config, x, sublayer(x)))


def sandwich(config: TransformerConfig, x: Hidden, sublayer: Sublayer, norm: Sublayer, post_norm: Sublayer) -> Hidden:
    """x + post_norm(f(norm(x))) (Gemma 2)."""
    return add_residual(config, x, post_norm(sublayer(norm(x))))


def post_branch(
    config: TransformerConfig, x: Hidden, sublayer: Sublayer, norm: Sublayer, post_norm: Sublayer
) -> Hidden:
    """x + norm(f(x)) (OLMo 2)."""
    return add_residual(config, x, norm(sublayer(x)))


RESIDUALS = {"pre": pre, "post": post, "sandwich": sandwich, "post-branch": post_branch}
"""The function for each `config.norm_position`."""
