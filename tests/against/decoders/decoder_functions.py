"""A decoder with two layers, as JAX functions."""

import jax
import jax.numpy as jnp
import numpy as np


def rms(x, weight):
    return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight


def rotate(x):
    angles = jnp.arange(x.shape[2])[:, None] * 10000.0 ** (-jnp.arange(3) / 3)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    a, b = x[..., :3], x[..., 3:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def heads(x):
    return x.reshape(*x.shape[:2], 4, 6).swapaxes(1, 2)


def attention(layer, x):
    q, k, v = heads(x @ layer["query"]), heads(x @ layer["key"]), heads(x @ layer["value"])
    scores = rotate(q) @ rotate(k).swapaxes(2, 3) / 6**0.5
    seen = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1)
    return (weights @ v).swapaxes(1, 2).reshape(x.shape) @ layer["out"]


def block(layer, x):
    x = x + attention(layer, rms(x, layer["norm"]))
    h = rms(x, layer["norm2"])
    h = jax.nn.silu(h @ layer["gate"]) * (h @ layer["up"])
    return x + h @ layer["down"]


def forward(params, tokens):
    x = params["embedding"][tokens]
    for layer in params["layers"]:
        x = block(layer, x)
    return rms(x, params["norm"]) @ params["embedding"].T


def load(folder):
    weights = dict(np.load(f"{folder}/weights.npz"))
    layers = [{n[2:]: w for n, w in weights.items() if n[:2] == f"{i}."} for i in range(2)]
    params = jax.tree.map(jnp.asarray, {"embedding": weights["embedding"], "layers": layers, "norm": weights["norm"]})
    return lambda tokens: forward(params, tokens)
