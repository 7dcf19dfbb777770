"""A transformer of `flax.linen`'s blocks: `MultiHeadDotProductAttention`, `Dense`, `LayerNorm`, `Embed`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from benchmarks.peers.jax.tasks import tasks
from benchmarks.task import Run, Task
from flax import linen as nn

from transparity.config import TransformerConfig


class Layer(nn.Module):
    """Of an encoder, or of a decoder with or without an encoder."""

    config: TransformerConfig
    cross: bool

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array | None, memory: jax.Array | None = None) -> jax.Array:
        config = self.config
        pre = config.norm_position == "pre"

        def attend(name: str, x: jax.Array, seen: jax.Array, mask: jax.Array | None) -> jax.Array:
            attention = nn.MultiHeadDotProductAttention(config.num_heads, name=name)
            return attention(x, seen, seen, mask=mask)

        def feed(x: jax.Array) -> jax.Array:
            hidden = nn.relu(nn.Dense(config.feed_forward_dim, name="up")(x))
            return nn.Dense(config.embed_dim, name="down")(hidden)

        def residual(name: str, x: jax.Array, sublayer: Any) -> jax.Array:
            norm = nn.LayerNorm(config.norm_eps, name=name)
            return x + sublayer(norm(x)) if pre else norm(x + sublayer(x))

        x = residual("self_attention_norm", x, lambda x: attend("self_attention", x, x, mask))
        if self.cross:
            assert memory is not None
            x = residual("cross_attention_norm", x, lambda x: attend("cross_attention", x, memory, None))
        return residual("feed_forward_norm", x, feed)


class Stack(nn.Module):
    """Embeddings and layers."""

    config: TransformerConfig
    stack: str

    @nn.compact
    def __call__(self, tokens: jax.Array, mask: jax.Array | None, memory: jax.Array | None = None) -> jax.Array:
        config, length = self.config, tokens.shape[1]
        layers = config.stack_num_layers(self.stack)
        x = nn.Embed(config.stack_vocab_size(self.stack), config.embed_dim, name="token_embedding")(tokens)
        x = x + nn.Embed(config.max_length, config.embed_dim, name="position_embedding")(jnp.arange(length))
        for index in range(layers):
            x = Layer(config, self.stack == "decoder" and config.has_encoder, name=str(index))(x, mask, memory)
        return nn.LayerNorm(config.norm_eps, name="final_norm")(x) if config.final_norm else x


class Transformer(nn.Module):
    """One stack or two, and a head."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, tokens: jax.Array, source: jax.Array | None = None) -> jax.Array:
        memory = None if source is None else Stack(self.config, "encoder", name="encoder")(source, None)
        mask = nn.make_causal_mask(tokens, dtype=bool)
        x = Stack(self.config, "decoder", name="decoder")(tokens, mask, memory)
        return nn.Dense(self.config.vocab_size, name="head")(x)


def variables(config: TransformerConfig, parameters: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The weights as linen nests and shapes them."""
    tree: dict[str, Any] = {}
    for name, value in parameters.items():
        path, shaped = placed(config, name, value)
        *scopes, leaf = (part for part in path if part != "layers")
        inner = tree
        for scope in scopes:
            inner = inner.setdefault(scope, {})
        inner[leaf] = jnp.asarray(shaped)
    return {"params": tree}


def placed(config: TransformerConfig, name: str, value: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Path of a weight in Flax, and its value in the shape of Flax: (in, out), heads on an axis of their own."""
    *scopes, role, leaf = name.replace("feed_forward.", "").split(".")
    heads = (config.num_heads, config.head_dim)
    if role.endswith("norm"):
        return [*scopes, role, {"weight": "scale", "bias": "bias"}[leaf]], value
    if role.endswith("embedding"):
        return [*scopes, role, "embedding"], value
    kernel, turned = {"weight": "kernel", "bias": "bias"}[leaf], value.T
    if role in ("query", "key", "value"):
        return [*scopes, role, kernel], turned.reshape(*turned.shape[:-1], *heads)
    if role == "output":
        return [*scopes, "out", kernel], turned.reshape(*heads, -1) if leaf == "weight" else turned
    return [*scopes, role, kernel], turned


def build(task: Task) -> Run:
    """Jitted."""
    model = Transformer(task.config)

    def apply(weights: Any, tokens: jax.Array, source: jax.Array | None) -> Any:
        return model.apply(weights, tokens, source)

    return tasks(task, apply, variables(task.config, task.parameters))
