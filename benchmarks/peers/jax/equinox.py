"""A transformer of equinox's blocks, written for one sequence and mapped over the batch, as its manual has it."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from benchmarks.peers.jax.tasks import tasks
from benchmarks.task import Run, Task

from transparity.config import TransformerConfig
from transparity.protocol import Arrays

KEY = jax.random.key(0)


class Layer(eqx.Module):
    """Of an encoder, or of a decoder with or without an encoder."""

    self_attention: eqx.nn.MultiheadAttention
    self_attention_norm: eqx.nn.LayerNorm
    cross_attention: eqx.nn.MultiheadAttention | None
    cross_attention_norm: eqx.nn.LayerNorm | None
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    feed_forward_norm: eqx.nn.LayerNorm
    pre: bool = eqx.field(static=True)

    def __init__(self, config: TransformerConfig, parameters: Arrays, scope: str) -> None:
        cross = f"{scope}.cross_attention.query.weight" in parameters
        self.pre = config.norm_position == "pre"
        self.self_attention = _attention(config, parameters, f"{scope}.self_attention")
        self.self_attention_norm = _norm(config, parameters, f"{scope}.self_attention_norm")
        self.cross_attention = _attention(config, parameters, f"{scope}.cross_attention") if cross else None
        self.cross_attention_norm = _norm(config, parameters, f"{scope}.cross_attention_norm") if cross else None
        self.up = _linear(parameters, f"{scope}.feed_forward.up")
        self.down = _linear(parameters, f"{scope}.feed_forward.down")
        self.feed_forward_norm = _norm(config, parameters, f"{scope}.feed_forward_norm")

    def __call__(self, x: jax.Array, mask: jax.Array | None, memory: jax.Array | None = None) -> jax.Array:
        x = self.residual(x, self.self_attention_norm, lambda x: self.self_attention(x, x, x, mask))
        if self.cross_attention is not None:
            attention = self.cross_attention
            x = self.residual(x, self.cross_attention_norm, lambda x: attention(x, memory, memory))
        return self.residual(x, self.feed_forward_norm, jax.vmap(lambda x: self.down(jax.nn.relu(self.up(x)))))

    def residual(self, x: jax.Array, norm: Any, sublayer: Any) -> jax.Array:
        norm = jax.vmap(norm)
        return x + sublayer(norm(x)) if self.pre else norm(x + sublayer(x))


class Stack(eqx.Module):
    """Embeddings and layers, for one sequence."""

    tokens: eqx.nn.Embedding
    positions: eqx.nn.Embedding
    layers: list[Layer]
    final_norm: eqx.nn.LayerNorm | None

    def __init__(self, config: TransformerConfig, parameters: Arrays, stack: str) -> None:
        layers = config.stack_num_layers(stack)
        self.tokens = eqx.nn.Embedding(weight=jnp.asarray(parameters[f"{stack}.token_embedding.weight"]))
        self.positions = eqx.nn.Embedding(weight=jnp.asarray(parameters[f"{stack}.position_embedding.weight"]))
        self.layers = [Layer(config, parameters, f"{stack}.layers.{index}") for index in range(layers)]
        self.final_norm = _norm(config, parameters, f"{stack}.final_norm") if config.final_norm else None

    def __call__(self, tokens: jax.Array, mask: jax.Array | None, memory: jax.Array | None = None) -> jax.Array:
        x = jax.vmap(self.tokens)(tokens) + jax.vmap(self.positions)(jnp.arange(len(tokens)))
        for layer in self.layers:
            x = layer(x, mask, memory)
        return x if self.final_norm is None else jax.vmap(self.final_norm)(x)


class Transformer(eqx.Module):
    """One stack or two, and a head, for one sequence."""

    encoder: Stack | None
    decoder: Stack
    head: eqx.nn.Linear

    def __init__(self, config: TransformerConfig, parameters: Arrays) -> None:
        self.encoder = Stack(config, parameters, "encoder") if config.has_encoder else None
        self.decoder = Stack(config, parameters, "decoder")
        self.head = _linear(parameters, "head")

    def __call__(self, tokens: jax.Array, source: jax.Array | None = None) -> jax.Array:
        memory = None if self.encoder is None or source is None else self.encoder(source, None)
        return jax.vmap(self.head)(self.decoder(tokens, jnp.tri(len(tokens), dtype=bool), memory))


def _linear(parameters: Arrays, scope: str) -> eqx.nn.Linear:
    weight, bias = (jnp.asarray(parameters[f"{scope}.{leaf}"]) for leaf in ("weight", "bias"))
    linear = eqx.nn.Linear(weight.shape[1], weight.shape[0], key=KEY)
    return eqx.tree_at(lambda linear: (linear.weight, linear.bias), linear, (weight, bias))


def _norm(config: TransformerConfig, parameters: Arrays, scope: str) -> eqx.nn.LayerNorm:
    norm = eqx.nn.LayerNorm(config.embed_dim, eps=config.norm_eps)
    weight, bias = (jnp.asarray(parameters[f"{scope}.{leaf}"]) for leaf in ("weight", "bias"))
    return eqx.tree_at(lambda norm: (norm.weight, norm.bias), norm, (weight, bias))


def _attention(config: TransformerConfig, parameters: Arrays, scope: str) -> eqx.nn.MultiheadAttention:
    biases = dict.fromkeys(("use_query_bias", "use_key_bias", "use_value_bias", "use_output_bias"), True)
    attention = eqx.nn.MultiheadAttention(config.num_heads, config.embed_dim, **biases, key=KEY)
    return eqx.tree_at(
        lambda attention: (attention.query_proj, attention.key_proj, attention.value_proj, attention.output_proj),
        attention,
        tuple(_linear(parameters, f"{scope}.{role}") for role in ("query", "key", "value", "output")),
    )


def build(task: Task) -> Run:
    """Jitted, mapped over the batch."""
    arrays, static = eqx.partition(Transformer(task.config, task.parameters), eqx.is_array)

    def apply(arrays: Any, tokens: jax.Array, source: jax.Array | None) -> jax.Array:
        model = eqx.combine(arrays, static)
        return jax.vmap(model)(tokens) if source is None else jax.vmap(model)(tokens, source)

    return tasks(task, apply, arrays)
