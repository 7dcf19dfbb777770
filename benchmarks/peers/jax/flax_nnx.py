"""A transformer of `flax.nnx`'s blocks: `MultiHeadAttention`, `Linear`, `LayerNorm`, `Embed`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from benchmarks.peers.jax.flax_linen import placed
from benchmarks.peers.jax.tasks import tasks
from benchmarks.task import Run, Task
from flax import nnx

from transparity.config import TransformerConfig
from transparity.protocol import Arrays


class Layer(nnx.Module):
    """Of an encoder, or of a decoder with or without an encoder."""

    def __init__(self, config: TransformerConfig, *, cross: bool, rngs: nnx.Rngs) -> None:
        self.pre = config.norm_position == "pre"
        self.self_attention = _attention(config, rngs)
        self.self_attention_norm = nnx.LayerNorm(config.embed_dim, epsilon=config.norm_eps, rngs=rngs)
        self.cross = cross
        if cross:
            self.cross_attention = _attention(config, rngs)
            self.cross_attention_norm = nnx.LayerNorm(config.embed_dim, epsilon=config.norm_eps, rngs=rngs)
        self.up = nnx.Linear(config.embed_dim, config.feed_forward_dim, rngs=rngs)
        self.down = nnx.Linear(config.feed_forward_dim, config.embed_dim, rngs=rngs)
        self.feed_forward_norm = nnx.LayerNorm(config.embed_dim, epsilon=config.norm_eps, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array | None, memory: jax.Array | None = None) -> jax.Array:
        x = self.residual(x, self.self_attention_norm, lambda x: self.self_attention(x, mask=mask))
        if self.cross:
            x = self.residual(x, self.cross_attention_norm, lambda x: self.cross_attention(x, memory))
        return self.residual(x, self.feed_forward_norm, lambda x: self.down(nnx.relu(self.up(x))))

    def residual(self, x: jax.Array, norm: nnx.LayerNorm, sublayer: Any) -> jax.Array:
        return x + sublayer(norm(x)) if self.pre else norm(x + sublayer(x))


def _attention(config: TransformerConfig, rngs: nnx.Rngs) -> nnx.MultiHeadAttention:
    return nnx.MultiHeadAttention(config.num_heads, config.embed_dim, decode=False, rngs=rngs)


class Stack(nnx.Module):
    """Embeddings and layers."""

    def __init__(self, config: TransformerConfig, stack: str, rngs: nnx.Rngs) -> None:
        layers = config.stack_num_layers(stack)
        cross = stack == "decoder" and config.has_encoder
        self.token_embedding = nnx.Embed(config.stack_vocab_size(stack), config.embed_dim, rngs=rngs)
        self.position_embedding = nnx.Embed(config.max_length, config.embed_dim, rngs=rngs)
        self.layers = nnx.List([Layer(config, cross=cross, rngs=rngs) for _ in range(layers)])
        self.final_norm = (
            nnx.LayerNorm(config.embed_dim, epsilon=config.norm_eps, rngs=rngs) if config.final_norm else None
        )

    def __call__(self, tokens: jax.Array, mask: jax.Array | None, memory: jax.Array | None = None) -> jax.Array:
        x = self.token_embedding(tokens) + self.position_embedding(jnp.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x, mask, memory)
        return x if self.final_norm is None else self.final_norm(x)


class Transformer(nnx.Module):
    """One stack or two, and a head."""

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs) -> None:
        self.encoder = Stack(config, "encoder", rngs) if config.has_encoder else None
        self.decoder = Stack(config, "decoder", rngs)
        self.head = nnx.Linear(config.embed_dim, config.vocab_size, rngs=rngs)

    def __call__(self, tokens: jax.Array, source: jax.Array | None = None) -> jax.Array:
        memory = None if self.encoder is None or source is None else self.encoder(source, None)
        return self.head(self.decoder(tokens, nnx.make_causal_mask(tokens, dtype=bool), memory))


def load(model: Transformer, config: TransformerConfig, parameters: Arrays) -> None:
    """Put the weights in; none may be left out, none over."""
    left = {".".join(map(str, path)): variable for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param))}
    for name, value in parameters.items():
        path, shaped = placed(config, name, value)
        left.pop(".".join(path)).set_value(jnp.asarray(shaped))
    assert not left, left.keys()


def build(task: Task) -> Run:
    """Jitted."""
    model = Transformer(task.config, nnx.Rngs(0))
    load(model, task.config, task.parameters)
    graph, state = nnx.split(model)

    def apply(state: Any, tokens: jax.Array, source: jax.Array | None) -> jax.Array:
        return nnx.merge(graph, state)(tokens, source)

    return tasks(task, apply, state)
