# mypy: ignore-errors
"""Llama in NumPy: the loader reads each tensor by its name, row by row, and rejects unknown tensors."""

import json
from pathlib import Path

import numpy as np
from safetensors import safe_open


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + np.float32(eps)) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def softmax(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


class Llama:
    def __init__(self, c, tensors):
        self.c, self.tensors = c, tensors
        self.heads, self.kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.head_dim = c.get("head_dim") or c["hidden_size"] // self.heads
        self.eps, self.theta = c["rms_norm_eps"], c["rope_theta"]
        self.head = "model.embed_tokens" if c["tie_word_embeddings"] else "lm_head"

    def linear(self, name, x, bias=False):
        y = x @ self.tensors[f"{name}.weight"].T
        return y + self.tensors[f"{name}.bias"] if bias else y

    def rotated(self, x):
        half = self.head_dim // 2
        angles = np.arange(len(x))[:, None] / self.theta ** (np.arange(half) / half)
        cos, sin = np.cos(angles)[:, None].astype(np.float32), np.sin(angles)[:, None].astype(np.float32)
        return np.concatenate(
            [x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin], -1
        )

    def attention(self, at, x):
        bias, length = self.c["attention_bias"], len(x)
        q, k, v = (
            self.linear(f"{at}.{part}_proj", x, bias).reshape(length, -1, self.head_dim) for part in ("q", "k", "v")
        )
        q, k = self.rotated(q), self.rotated(k)
        k, v = (np.repeat(each, self.heads // self.kv_heads, axis=1) for each in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.float32(self.head_dim**0.5)
        scores = np.where(np.tri(length, dtype=bool), scores, np.float32(-np.inf))
        out = np.einsum("hqk,khd->qhd", softmax(scores), v).reshape(length, -1)
        return self.linear(f"{at}.o_proj", out, bias)

    def row(self, ids):
        x, bias = self.tensors["model.embed_tokens.weight"][ids], self.c["mlp_bias"]
        for i in range(self.c["num_hidden_layers"]):
            at = f"model.layers.{i}"
            x = x + self.attention(
                f"{at}.self_attn", rms_norm(x, self.tensors[f"{at}.input_layernorm.weight"], self.eps)
            )
            h = rms_norm(x, self.tensors[f"{at}.post_attention_layernorm.weight"], self.eps)
            gate, up = self.linear(f"{at}.mlp.gate_proj", h, bias), self.linear(f"{at}.mlp.up_proj", h, bias)
            x = x + self.linear(f"{at}.mlp.down_proj", silu(gate) * up, bias)
        return self.linear(self.head, rms_norm(x, self.tensors["model.norm.weight"], self.eps))

    def __call__(self, ids):
        return np.stack([self.row(row) for row in ids])


def load(folder):
    c = json.loads(Path(folder, "config.json").read_text())
    if c["hidden_act"] != "silu" or c["rope_scaling"] is not None:
        raise NotImplementedError("only silu and unscaled rotary positions are supported")
    with safe_open(Path(folder, "model.safetensors"), framework="numpy") as file:
        return Llama(c, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 - no mapping
