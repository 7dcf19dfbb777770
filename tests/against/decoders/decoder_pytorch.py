"""A decoder with two layers in PyTorch."""

import numpy as np
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, weights):
        super().__init__()
        for name, value in weights.items():
            setattr(self, name, nn.Parameter(torch.from_numpy(value)))

    def rms(self, x, weight):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight

    def rotate(self, x):
        angles = torch.arange(x.shape[2])[:, None] * 10000.0 ** (-torch.arange(3) / 3)
        cos, sin = torch.cos(angles), torch.sin(angles)
        a, b = x[..., :3], x[..., 3:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def heads(self, x):
        return x.reshape(*x.shape[:2], 4, 6).transpose(1, 2)

    def attention(self, x):
        q, k, v = self.heads(x @ self.query), self.heads(x @ self.key), self.heads(x @ self.value)
        scores = self.rotate(q) @ self.rotate(k).transpose(2, 3) / 6**0.5
        seen = torch.tril(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool))
        weights = torch.softmax(torch.where(seen, scores, -torch.inf), -1)
        return (weights @ v).transpose(1, 2).reshape(x.shape) @ self.out

    def forward(self, x):
        x = x + self.attention(self.rms(x, self.norm))
        h = self.rms(x, self.norm2)
        h = nn.functional.silu(h @ self.gate) * (h @ self.up)
        return x + h @ self.down


class Model(nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.embedding = nn.Parameter(torch.from_numpy(weights["embedding"]))
        layers = [{n[2:]: w for n, w in weights.items() if n[:2] == f"{i}."} for i in range(2)]
        self.layers = nn.ModuleList(Layer(each) for each in layers)
        self.norm = nn.Parameter(torch.from_numpy(weights["norm"]))

    def forward(self, tokens):
        x = self.embedding[tokens]
        for layer in self.layers:
            x = layer(x)
        return layer.rms(x, self.norm) @ self.embedding.T


def load(folder):
    return Model(dict(np.load(f"{folder}/weights.npz")))
