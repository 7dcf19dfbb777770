# mypy: ignore-errors
"""A Llama in NumPy."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file


def rms_norm(x, weight, eps):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def softmax(x):
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def rotate(x, theta):
    length, width = x.shape[-2:]
    angles = np.outer(np.arange(length), theta ** (-np.arange(0, width, 2) / width))
    cos, sin = (np.tile(part, 2).astype(x.dtype) for part in (np.cos(angles), np.sin(angles)))
    first, second = np.split(x, 2, axis=-1)
    return x * cos - np.concatenate([-second, first], axis=-1) * sin


def split(x, heads):
    batch, length, _ = x.shape
    return x.reshape(batch, length, heads, -1).transpose(0, 2, 1, 3)


class Llama:
    def __init__(self, folder):
        self.c = json.loads(Path(folder, "config.json").read_text())
        self.w = load_file(Path(folder, "model.safetensors"))

    def linear(self, name, x):
        return x @ self.w[f"{name}.weight"].T

    def norm(self, name, x):
        return rms_norm(x, self.w[f"{name}.weight"], self.c["rms_norm_eps"])

    def attention(self, at, x):
        heads, groups = self.c["num_attention_heads"], self.c["num_key_value_heads"]
        q = rotate(split(self.linear(f"{at}.q_proj", x), heads), self.c["rope_theta"])
        k = rotate(split(self.linear(f"{at}.k_proj", x), groups), self.c["rope_theta"])
        v = split(self.linear(f"{at}.v_proj", x), groups)
        k, v = (np.repeat(part, heads // groups, axis=1) for part in (k, v))
        scores = q @ k.swapaxes(-2, -1) / np.sqrt(q.shape[-1], dtype=x.dtype)
        future = np.triu(np.ones(scores.shape[-2:], bool), 1)
        context = softmax(np.where(future, -np.inf, scores)) @ v
        return self.linear(f"{at}.o_proj", context.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1))

    def feed_forward(self, at, x):
        gate, up = self.linear(f"{at}.gate_proj", x), self.linear(f"{at}.up_proj", x)
        return self.linear(f"{at}.down_proj", gate / (1 + np.exp(-gate)) * up)

    def __call__(self, tokens):
        x = self.w["model.embed_tokens.weight"][tokens]
        for i in range(self.c["num_hidden_layers"]):
            at = f"model.layers.{i}"
            x = x + self.attention(f"{at}.self_attn", self.norm(f"{at}.input_layernorm", x))
            x = x + self.feed_forward(f"{at}.mlp", self.norm(f"{at}.post_attention_layernorm", x))
        return self.linear("lm_head", self.norm("model.norm", x))


def load(folder):
    return Llama(folder)
