"""A decoder that JAX shards over processes, with a mesh, `shard_map`, and explicit sums over the ranks.

`build` is correct. In the model of `build_bias`, every rank wrongly adds the whole bias before the sum over ranks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transparity.config import TransformerConfig

RANKS = int(os.environ.get("WORLD_SIZE", "1"))

if RANKS > 1 and not jax.distributed.is_initialized():
    jax.distributed.initialize(os.environ["JAX_COORDINATOR_ADDRESS"], RANKS, int(os.environ["RANK"]))

MESH = Mesh(np.array(jax.devices()[:RANKS]), ("model",))

COLUMNS, ROWS = ("query", "key", "value", "up", "head"), ("output", "down")


def placement(name: str) -> PartitionSpec:
    role, kind = name.split(".")[-2:]
    if role in COLUMNS:
        return PartitionSpec("model")
    return PartitionSpec(None, "model") if role in ROWS and kind == "weight" else PartitionSpec()


def placed(value: Any, spec: PartitionSpec) -> jax.Array:
    """Return an array over the mesh, from a value that every process has in full."""
    array = np.asarray(value)
    return jax.make_array_from_callback(array.shape, NamedSharding(MESH, spec), lambda index: array[index])


def norm(p: Mapping[str, Any], at: str, x: jax.Array, eps: float) -> jax.Array:
    centered = x - x.mean(-1, keepdims=True)
    return centered / jnp.sqrt((centered**2).mean(-1, keepdims=True) + eps) * p[f"{at}.weight"] + p[f"{at}.bias"]


def row(p: Mapping[str, Any], at: str, x: jax.Array, *, early: bool) -> jax.Array:
    """Apply a linear layer with sharded inputs; `early` adds the bias before the sum, which is the mistake."""
    if early:
        return jax.lax.psum(x @ p[f"{at}.weight"].T + p[f"{at}.bias"], "model")
    return jax.lax.psum(x @ p[f"{at}.weight"].T, "model") + p[f"{at}.bias"]


def local(c: TransformerConfig, p: Mapping[str, Any], tokens: jax.Array, *, early: bool) -> jax.Array:
    length = tokens.shape[1]
    x = p["decoder.token_embedding.weight"][tokens] + p["decoder.position_embedding.weight"][:length]
    for i in range(c.num_decoder_layers):
        at = f"decoder.layers.{i}"
        y = norm(p, f"{at}.self_attention_norm", x, c.norm_eps)
        maps = (y @ p[f"{at}.self_attention.{role}.weight"].T for role in ("query", "key", "value"))
        q, k, v = (z.reshape(*z.shape[:2], -1, c.head_dim).swapaxes(1, 2) for z in maps)
        scores = jnp.where(jnp.tri(length, dtype=bool), q @ k.swapaxes(-1, -2) * c.score_scale, -jnp.inf)
        context = (jax.nn.softmax(scores) @ v).swapaxes(1, 2)
        x = x + row(p, f"{at}.self_attention.output", context.reshape(*context.shape[:2], -1), early=early)
        y = norm(p, f"{at}.feed_forward_norm", x, c.norm_eps)
        hidden = jax.nn.relu(y @ p[f"{at}.feed_forward.up.weight"].T + p[f"{at}.feed_forward.up.bias"])
        x = x + row(p, f"{at}.feed_forward.down", hidden, early=early)
    x = norm(p, "decoder.final_norm", x, c.norm_eps)
    return x @ p["head.weight"].T + p["head.bias"]


def build(config: TransformerConfig, parameters: Mapping[str, np.ndarray], *, early: bool = False) -> Any:
    specs = {name: placement(name) for name in parameters}
    given = {name: placed(value, specs[name]) for name, value in parameters.items()}
    one = partial(local, config, early=early)
    logits = PartitionSpec(None, None, "model")
    mapped = jax.jit(jax.shard_map(one, mesh=MESH, in_specs=(specs, PartitionSpec()), out_specs=logits))

    def forward(tokens: Any) -> Any:
        return mapped(given, placed(tokens, PartitionSpec()))

    return forward


def build_bias(config: TransformerConfig, parameters: Mapping[str, np.ndarray]) -> Any:
    """Return the port with the mistake: every rank adds the biases."""
    return build(config, parameters, early=True)
