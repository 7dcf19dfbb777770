"""A decoder with two layers in flax.nnx."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


class Layer(nnx.Module):
    def __init__(self, weights):
        for name, value in weights.items():
            setattr(self, name, nnx.Param(jnp.asarray(value)))

    def rms(self, x, weight):
        return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight

    def rotate(self, x):
        angles = jnp.arange(x.shape[2])[:, None] * 10000.0 ** (-jnp.arange(3) / 3)
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        a, b = x[..., :3], x[..., 3:]
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def heads(self, x):
        return x.reshape(*x.shape[:2], 4, 6).swapaxes(1, 2)

    def attention(self, x):
        q, k, v = self.heads(x @ self.query), self.heads(x @ self.key), self.heads(x @ self.value)
        scores = self.rotate(q) @ self.rotate(k).swapaxes(2, 3) / 6**0.5
        seen = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1)
        return (weights @ v).swapaxes(1, 2).reshape(x.shape) @ self.out

    def __call__(self, x):
        x = x + self.attention(self.rms(x, self.norm))
        h = self.rms(x, self.norm2)
        h = jax.nn.silu(h @ self.gate) * (h @ self.up)
        return x + h @ self.down


class Model(nnx.Module):
    def __init__(self, weights):
        self.embedding = nnx.Param(jnp.asarray(weights["embedding"]))
        layers = [{n[2:]: w for n, w in weights.items() if n[:2] == f"{i}."} for i in range(2)]
        self.layers = nnx.List([Layer(each) for each in layers])
        self.norm = nnx.Param(jnp.asarray(weights["norm"]))

    def __call__(self, tokens):
        x = self.embedding[tokens]
        for layer in self.layers:
            x = layer(x)
        return layer.rms(x, self.norm) @ self.embedding.T


def load(folder):
    return Model(dict(np.load(f"{folder}/weights.npz")))
