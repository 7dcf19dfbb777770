"""A decoder with two layers in NumPy."""

import numpy as np


class Layer:
    def __init__(self, weights):
        for name, value in weights.items():
            setattr(self, name, value)

    def rms(self, x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight

    def rotate(self, x):
        angles = np.arange(x.shape[2])[:, None] * 10000.0 ** (-np.arange(3) / 3)
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        a, b = x[..., :3], x[..., 3:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def heads(self, x):
        return x.reshape(*x.shape[:2], 4, 6).swapaxes(1, 2)

    def softmax(self, x):
        x = np.exp(x - x.max(-1, keepdims=True))
        return x / x.sum(-1, keepdims=True)

    def silu(self, x):
        return x / (1 + np.exp(-x))

    def attention(self, x):
        q, k, v = self.heads(x @ self.query), self.heads(x @ self.key), self.heads(x @ self.value)
        scores = self.rotate(q) @ self.rotate(k).swapaxes(2, 3) / 6**0.5
        seen = np.tril(np.ones((x.shape[1], x.shape[1]), bool))
        weights = self.softmax(np.where(seen, scores, -np.inf))
        return (weights @ v).swapaxes(1, 2).reshape(x.shape) @ self.out

    def __call__(self, x):
        x = x + self.attention(self.rms(x, self.norm))
        h = self.rms(x, self.norm2)
        h = self.silu(h @ self.gate) * (h @ self.up)
        return x + h @ self.down


class Model:
    def __init__(self, weights):
        self.embedding = weights["embedding"]
        layers = [{n[2:]: w for n, w in weights.items() if n[:2] == f"{i}."} for i in range(2)]
        self.layers = [Layer(each) for each in layers]
        self.norm = weights["norm"]

    def __call__(self, tokens):
        x = self.embedding[tokens]
        for layer in self.layers:
            x = layer(x)
        return layer.rms(x, self.norm) @ self.embedding.T


def load(folder):
    return Model(dict(np.load(f"{folder}/weights.npz")))
