"""Transformers made of blocks (attention, linear map, norm, embedding) of equinox, `flax.linen` or `flax.nnx`."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from benchmarks.peers.jax.tasks import tasks
from benchmarks.peers.skeleton import LEAVES, Blocks, Weights, by_block, kind_of, transformer
from benchmarks.workloads import Run, Task

from transparity.config import TransformerConfig

Modules = dict[str, Any]


def blocks_of(modules: Modules, each: Callable[[Any], Any] = lambda call: call) -> Blocks:
    """Return blocks that call the modules by name. If the modules take one position, `each` must be `jax.vmap`."""

    def embed(name: str, tokens: jax.Array) -> Any:
        return each(modules[name])(jnp.arange(tokens.shape[-1]) if "position" in name else tokens)

    def attention(name: str, x: jax.Array, memory: jax.Array, mask: jax.Array | None) -> Any:
        return modules[name](x, memory, memory, mask=mask)

    def call(name: str, x: jax.Array) -> Any:
        return each(modules[name])(x)

    return Blocks(embed, call, call, attention, jax.nn.relu)


def apply(config: TransformerConfig, blocks: Blocks, tokens: jax.Array, source: jax.Array | None = None) -> jax.Array:
    """Return the logits of a batch, or of a single sequence."""
    logits: jax.Array = transformer(config, blocks, jnp.tri(tokens.shape[-1], dtype=bool), tokens, source)
    return logits


def equinox(task: Task) -> Run:
    """Build a model of equinox's blocks for a single sequence; `vmap` maps it over the batch, as equinox recommends."""
    import equinox as eqx

    config, key = task.config, jax.random.key(0)

    def linear(weights: Weights, role: str = "") -> Any:
        weight, bias = (jnp.asarray(weights[f"{role}{leaf}"]) for leaf in LEAVES)
        module = eqx.nn.Linear(weight.shape[1], weight.shape[0], key=key)
        return eqx.tree_at(lambda module: (module.weight, module.bias), module, (weight, bias))

    def norm(weights: Weights) -> Any:
        module = eqx.nn.LayerNorm(config.embed_dim, eps=config.norm_eps)
        return eqx.tree_at(lambda it: (it.weight, it.bias), module, tuple(jnp.asarray(weights[x]) for x in LEAVES))

    def attention(weights: Weights) -> Any:
        biases = dict.fromkeys((f"use_{role}_bias" for role in ("query", "key", "value", "output")), True)
        module = eqx.nn.MultiheadAttention(config.num_heads, config.embed_dim, **biases, key=key)
        roles = tuple(linear(weights, f"{role}.") for role in ("query", "key", "value", "output"))
        return eqx.tree_at(lambda it: (it.query_proj, it.key_proj, it.value_proj, it.output_proj), module, roles)

    def embedding(weights: Weights) -> Any:
        return eqx.nn.Embedding(weight=jnp.asarray(weights["weight"]))

    make = {"linear": linear, "norm": norm, "attention": attention, "embedding": embedding}
    modules = {scope: make[kind_of(scope)](weights) for scope, weights in by_block(task.parameters).items()}
    arrays, static = eqx.partition(modules, eqx.is_array)

    def run(arrays: Any, *given: jax.Array | None) -> jax.Array:
        model = functools.partial(apply, config, blocks_of(eqx.combine(arrays, static), jax.vmap))
        return jax.vmap(model)(*(each for each in given if each is not None))

    return tasks(task, run, arrays)


def flax_shapes(config: TransformerConfig, kind: str, weights: Weights) -> dict[str, np.ndarray]:
    """Return the weights of a block with Flax's names and shapes: (in, out), with a separate axis for heads."""
    leaves = {"norm": {"weight": "scale", "bias": "bias"}, "embedding": {"weight": "embedding"}}
    names, heads = leaves.get(kind, {"weight": "kernel", "bias": "bias"}), (config.num_heads, config.head_dim)
    found = {}
    for name, value in weights.items():
        role, _, leaf = name.rpartition(".")
        turned = value if kind == "embedding" else value.T
        if role in ("query", "key", "value"):
            turned = turned.reshape(*turned.shape[:-1], *heads)
        elif role == "output":
            role, turned = "out", turned.reshape(*heads, -1) if leaf == "weight" else turned
        found[f"{role}.{names[leaf]}".lstrip(".")] = turned
    return found


def flax_linen(task: Task) -> Run:
    """Build a model of `flax.linen`'s `MultiHeadDotProductAttention`, `Dense`, `LayerNorm` and `Embed`."""
    from flax import linen as nn
    from flax.traverse_util import unflatten_dict

    config = task.config
    make: dict[str, Callable[[Weights], nn.Module]] = {
        "attention": lambda w: nn.MultiHeadDotProductAttention(config.num_heads),
        "linear": lambda w: nn.Dense(w["kernel"].shape[1]),
        "norm": lambda w: nn.LayerNorm(config.norm_eps),
        "embedding": lambda w: nn.Embed(*w["embedding"].shape),
    }
    modules, weights = {}, {}
    for scope, ours in by_block(task.parameters).items():
        shaped = flax_shapes(config, kind_of(scope), ours)
        modules[scope] = make[kind_of(scope)](shaped)
        weights[scope] = {"params": jax.tree.map(jnp.asarray, unflatten_dict(shaped, sep="."))}

    def run(weights: Any, tokens: jax.Array, source: jax.Array | None) -> jax.Array:
        bound = {scope: functools.partial(module.apply, weights[scope]) for scope, module in modules.items()}
        return apply(config, blocks_of(bound), tokens, source)

    return tasks(task, run, weights)


def flax_nnx(task: Task) -> Run:
    """Build a model of `flax.nnx`'s `MultiHeadAttention`, `Linear`, `LayerNorm` and `Embed`."""
    from flax import nnx

    config, rngs = task.config, nnx.Rngs(0)
    make: dict[str, Callable[[Weights], Any]] = {
        "attention": lambda w: nnx.MultiHeadAttention(config.num_heads, config.embed_dim, decode=False, rngs=rngs),
        "linear": lambda w: nnx.Linear(*w["kernel"].shape, rngs=rngs),
        "norm": lambda w: nnx.LayerNorm(config.embed_dim, epsilon=config.norm_eps, rngs=rngs),
        "embedding": lambda w: nnx.Embed(*w["embedding"].shape, rngs=rngs),
    }
    modules = {}
    for scope, ours in by_block(task.parameters).items():
        shaped = flax_shapes(config, kind_of(scope), ours)
        modules[scope] = module = make[kind_of(scope)](shaped)
        left = {".".join(map(str, path)): leaf for path, leaf in nnx.to_flat_state(nnx.state(module, nnx.Param))}
        for name, value in shaped.items():
            left.pop(name).set_value(jnp.asarray(value))
        assert not left, left.keys()
    graph, state = nnx.split(modules)

    def run(state: Any, tokens: jax.Array, source: jax.Array | None) -> jax.Array:
        return apply(config, blocks_of(nnx.merge(graph, state)), tokens, source)

    return tasks(task, run, state)
