"""A transformer in plain JAX, written by hand: functions of a dict of weights, matrices (in, out)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from benchmarks.peers.jax.tasks import tasks
from benchmarks.task import Run, Task

from transparity.config import TransformerConfig

Weights = dict[str, Any]
Cache = dict[str, jax.Array]


def weights_of(task: Task) -> Weights:
    """The weights by their names, matrices (in, out), and those of self-attention's query, key and value side by
    side."""
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


def linear(w: Weights, name: str, x: jax.Array) -> jax.Array:
    return x @ w[f"{name}.weight"] + w[f"{name}.bias"]


def norm(config: TransformerConfig, w: Weights, name: str, x: jax.Array) -> jax.Array:
    x = x - x.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + config.norm_eps)
    return x * scale * w[f"{name}.weight"] + w[f"{name}.bias"]


def split(config: TransformerConfig, x: jax.Array) -> jax.Array:
    return x.reshape(*x.shape[:2], config.num_heads, -1).swapaxes(1, 2)


def attend(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None) -> jax.Array:
    scores = query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    seen = (jax.nn.softmax(scores) @ value).swapaxes(1, 2)
    return seen.reshape(*seen.shape[:2], -1)


def self_attention(
    config: TransformerConfig, w: Weights, at: str, x: jax.Array, mask: jax.Array | None, past: Cache, start: Any
) -> jax.Array:
    query, key, value = (split(config, part) for part in jnp.split(linear(w, f"{at}.packed", x), 3, -1))
    if past:
        key = past[f"{at}.key"] = jax.lax.dynamic_update_slice_in_dim(past[f"{at}.key"], key, start, 2)
        value = past[f"{at}.value"] = jax.lax.dynamic_update_slice_in_dim(past[f"{at}.value"], value, start, 2)
    return linear(w, f"{at}.output", attend(query, key, value, mask))


def cross_attention(config: TransformerConfig, w: Weights, at: str, x: jax.Array, memory: jax.Array) -> jax.Array:
    query, key, value = (
        split(config, linear(w, f"{at}.{role}", y)) for role, y in (("query", x), ("key", memory), ("value", memory))
    )
    return linear(w, f"{at}.output", attend(query, key, value, None))


def feed_forward(w: Weights, at: str, x: jax.Array) -> jax.Array:
    return linear(w, f"{at}.down", jax.nn.relu(linear(w, f"{at}.up", x)))


def stack(
    config: TransformerConfig,
    w: Weights,
    name: str,
    tokens: jax.Array,
    mask: jax.Array | None,
    memory: jax.Array | None = None,
    past: Cache | None = None,
    start: Any = 0,
) -> jax.Array:
    positions = jax.lax.dynamic_slice_in_dim(w[f"{name}.position_embedding.weight"], start, tokens.shape[1])
    x = w[f"{name}.token_embedding.weight"][tokens] + positions
    layers = config.stack_num_layers(name)
    for at in (f"{name}.layers.{index}" for index in range(layers)):
        sublayers: dict[str, Callable[[jax.Array], jax.Array]] = {
            "self_attention": partial(
                self_attention, config, w, f"{at}.self_attention", mask=mask, past=past or {}, start=start
            )
        }
        if memory is not None:
            sublayers["cross_attention"] = partial(cross_attention, config, w, f"{at}.cross_attention", memory=memory)
        sublayers["feed_forward"] = partial(feed_forward, w, f"{at}.feed_forward")
        for sublayer, call in sublayers.items():
            normalize = partial(norm, config, w, f"{at}.{sublayer}_norm")
            x = x + call(normalize(x)) if config.norm_position == "pre" else normalize(x + call(x))
    return norm(config, w, f"{name}.final_norm", x) if config.final_norm else x


def apply(config: TransformerConfig, w: Weights, tokens: jax.Array, source: jax.Array | None) -> jax.Array:
    """The logits."""
    memory = None if source is None else stack(config, w, "encoder", source, None)
    mask = jnp.tri(tokens.shape[1], dtype=bool)
    return linear(w, "head", stack(config, w, "decoder", tokens, mask, memory))


def generate(config: TransformerConfig, new_tokens: int, w: Weights, prompt: jax.Array) -> jax.Array:
    """The whole decoding as one program: the prompt at once, then a scan of steps."""
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
        x = stack(config, w, "decoder", tokens, mask, past=past, start=start)
        return past, linear(w, "head", x[:, -1:]).argmax(-1)

    def step(carried: tuple[Cache, jax.Array], start: jax.Array) -> tuple[tuple[Cache, jax.Array], jax.Array]:
        carried = likeliest(*carried, start)
        return carried, carried[1][:, 0]

    past, first = likeliest(past, prompt, 0)
    _, others = jax.lax.scan(step, (past, first), length + jnp.arange(new_tokens - 1))
    return jnp.concatenate([prompt, first, others.T], 1)


def build(task: Task) -> Run:
    """Jitted."""
    weights = weights_of(task)
    if task.workload.kind == "decode":
        written = jax.jit(partial(generate, task.config, task.workload.new_tokens))
        return lambda: jax.block_until_ready(written(weights, jnp.asarray(task.inputs["tokens"])))
    return tasks(task, partial(apply, task.config), weights)
