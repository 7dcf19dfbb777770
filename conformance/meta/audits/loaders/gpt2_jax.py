# mypy: ignore-errors
"""GPT-2 in JAX, as a pytree of weights and one compiled function."""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
from safetensors.flax import load_file

ACTIVATIONS = {
    "gelu_new": functools.partial(jax.nn.gelu, approximate=True),
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}


def layer_norm(x, p, eps):
    return jax.nn.standardize(x, axis=-1, epsilon=eps) * p["weight"] + p["bias"]


def dense(x, p):
    return x @ p["weight"] + p["bias"]


def block(x, p, heads, eps, act, scaled):
    q, k, v = (
        part.reshape(*x.shape[:2], heads, -1)
        for part in jnp.split(dense(layer_norm(x, p["ln_1"], eps), p["c_attn"]), 3, -1)
    )
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (q.shape[-1] ** -0.5 if scaled else 1.0)
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    out = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape)
    x = x + dense(out, p["attn_proj"])
    return x + dense(act(dense(layer_norm(x, p["ln_2"], eps), p["c_fc"])), p["mlp_proj"])


def load(folder):
    c = json.loads(Path(folder, "config.json").read_text())
    hub = {
        name.removeprefix("transformer."): value for name, value in load_file(Path(folder, "model.safetensors")).items()
    }

    def pair(name):
        return {leaf: hub[f"{name}.{leaf}"] for leaf in ("weight", "bias")}

    names = {"ln_1": "ln_1", "c_attn": "attn.c_attn", "attn_proj": "attn.c_proj", "ln_2": "ln_2"}
    names |= {"c_fc": "mlp.c_fc", "mlp_proj": "mlp.c_proj"}
    blocks = [{ours: pair(f"h.{i}.{theirs}") for ours, theirs in names.items()} for i in range(c["n_layer"])]
    weights = {"wte": hub["wte.weight"], "wpe": hub["wpe.weight"], "blocks": blocks, "ln_f": pair("ln_f")}
    weights["head"] = weights["wte"] if c["tie_word_embeddings"] else hub["lm_head.weight"]
    act, eps, scaled = ACTIVATIONS[c["activation_function"]], c["layer_norm_epsilon"], c["scale_attn_weights"]

    @jax.jit
    def apply(weights, ids):
        x = weights["wte"][ids] + weights["wpe"][: ids.shape[1]]
        for p in weights["blocks"]:
            x = block(x, p, c["n_head"], eps, act, scaled)
        return layer_norm(x, weights["ln_f"], eps) @ weights["head"].T

    return lambda ids: apply(weights, ids)
