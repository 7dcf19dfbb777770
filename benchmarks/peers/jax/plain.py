"""A transformer in plain JAX: functions of a dict of weights, with matrices of shape (in, out)."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from benchmarks.peers.jax.tasks import tasks
from benchmarks.peers.skeleton import Blocks, stack, transformer
from benchmarks.workloads import Run, Task

from transparity.config import TransformerConfig

Weights = dict[str, Any]
Cache = dict[str, jax.Array]


def weights_of(task: Task) -> Weights:
    """Return the weights by name, with matrices as (in, out) and self-attention's query, key and value fused."""
    named = {
        name: jnp.asarray(value.T if value.ndim == 2 and "embedding" not in name else value, task.workload.dtype)
        for name, value in task.parameters.items()
    }
    packed: Weights = {}
    for name, value in named.items():
        scope, _, rest = name.partition("self_attention.")
        role, _, leaf = rest.partition(".")
        if role == "query":
            roles = [named[f"{scope}self_attention.{each}.{leaf}"] for each in ("query", "key", "value")]
            packed[f"{scope}self_attention.packed.{leaf}"] = jnp.concatenate(roles, -1)
        elif role not in ("key", "value"):
            packed[name] = value
    return packed


def blocks_of(config: TransformerConfig, w: Weights, past: Cache | None = None, start: Any = 0) -> Blocks:
    """Return blocks with the weights `w`; keys and values are written into the cache `past` from index `start` on."""

    def embed(name: str, tokens: jax.Array) -> jax.Array:
        table = w[f"{name}.weight"]
        if "position" in name:
            return jax.lax.dynamic_slice_in_dim(table, start, tokens.shape[1])
        return table[tokens]

    def linear(name: str, x: jax.Array) -> jax.Array:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    def norm(name: str, x: jax.Array) -> jax.Array:
        x = x - x.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + config.norm_eps)
        return x * scale * w[f"{name}.weight"] + w[f"{name}.bias"]

    def split(x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:2], config.num_heads, -1).swapaxes(1, 2)

    def attention(at: str, x: jax.Array, memory: jax.Array, mask: jax.Array | None) -> jax.Array:
        if at.endswith("self_attention"):
            query, key, value = (split(part) for part in jnp.split(linear(f"{at}.packed", x), 3, -1))
        else:
            roles = ("query", x), ("key", memory), ("value", memory)
            query, key, value = (split(linear(f"{at}.{role}", y)) for role, y in roles)
        if past:
            key = past[f"{at}.key"] = jax.lax.dynamic_update_slice_in_dim(past[f"{at}.key"], key, start, 2)
            value = past[f"{at}.value"] = jax.lax.dynamic_update_slice_in_dim(past[f"{at}.value"], value, start, 2)
        scores = query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
        scores = scores if mask is None else jnp.where(mask, scores, -jnp.inf)
        seen = (jax.nn.softmax(scores) @ value).swapaxes(1, 2)
        return linear(f"{at}.output", seen.reshape(*seen.shape[:2], -1))

    return Blocks(embed, linear, norm, attention, jax.nn.relu)


def apply(config: TransformerConfig, w: Weights, tokens: jax.Array, source: jax.Array | None) -> jax.Array:
    mask = jnp.tri(tokens.shape[1], dtype=bool)
    logits: jax.Array = transformer(config, blocks_of(config, w), mask, tokens, source)
    return logits


def generate(config: TransformerConfig, new_tokens: int, w: Weights, prompt: jax.Array) -> jax.Array:
    """Decode greedily in one XLA program: the whole prompt in one step, then a scan over the new tokens."""
    batch, length = prompt.shape
    room = (batch, config.num_heads, length + new_tokens, config.head_dim)
    past = {
        f"decoder.layers.{index}.self_attention.{role}": jnp.zeros(room, w["head.weight"].dtype)
        for index in range(config.num_decoder_layers)
        for role in ("key", "value")
    }

    def likeliest(past: Cache, tokens: jax.Array, start: Any) -> tuple[Cache, jax.Array]:
        past, queries = dict(past), start + jnp.arange(tokens.shape[1])
        mask = jnp.arange(room[2]) <= queries[:, None]
        blocks = blocks_of(config, w, past, start)
        x = stack(config, blocks, "decoder", tokens, mask)
        return past, blocks.linear("head", x[:, -1:]).argmax(-1)

    def step(carried: tuple[Cache, jax.Array], start: jax.Array) -> tuple[tuple[Cache, jax.Array], jax.Array]:
        carried = likeliest(*carried, start)
        return carried, carried[1][:, 0]

    past, first = likeliest(past, prompt, 0)
    _, others = jax.lax.scan(step, (past, first), length + jnp.arange(new_tokens - 1))
    return jnp.concatenate([prompt, first, others.T], 1)


def build(task: Task) -> Run:
    weights = weights_of(task)
    if task.workload.kind == "decode":
        written = jax.jit(partial(generate, task.config, task.workload.new_tokens))
        return lambda: jax.block_until_ready(written(weights, jnp.asarray(task.inputs["tokens"])))
    return tasks(task, partial(apply, task.config), weights)
