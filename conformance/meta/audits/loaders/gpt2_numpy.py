# mypy: ignore-errors
"""GPT-2 as a few NumPy functions over a dict of tensors."""

import json
import math
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

erf = np.vectorize(math.erf, otypes=[np.float32])

ACTIVATIONS = {
    "gelu_new": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "gelu": lambda x: 0.5 * x * (1 + erf(x / np.sqrt(2))),
    "relu": lambda x: np.maximum(x, 0),
}


def norm(x, p, name, eps):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * p[f"{name}.weight"] + p[f"{name}.bias"]


def conv1d(x, p, name):
    return x @ p[f"{name}.weight"] + p[f"{name}.bias"]


def attention(x, p, at, heads, scaled):
    batch, length, width = x.shape
    q, k, v = (
        part.reshape(batch, length, heads, -1).transpose(0, 2, 1, 3)
        for part in np.split(conv1d(x, p, f"{at}.c_attn"), 3, axis=-1)
    )
    scores = q @ k.transpose(0, 1, 3, 2)
    if scaled:
        scores = scores / np.sqrt(np.float32(q.shape[-1]))
    scores = np.where(np.tri(length, dtype=bool), scores, np.finfo(np.float32).min)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return conv1d((weights @ v).transpose(0, 2, 1, 3).reshape(batch, length, width), p, f"{at}.c_proj")


def load(folder):
    c = json.loads(Path(folder, "config.json").read_text())
    p = {
        name.removeprefix("transformer."): value for name, value in load_file(Path(folder, "model.safetensors")).items()
    }
    eps, heads = np.float32(c["layer_norm_epsilon"]), c["n_head"]
    activation, scaled = ACTIVATIONS[c["activation_function"]], c["scale_attn_weights"]
    head = p["wte.weight"] if c["tie_word_embeddings"] else p["lm_head.weight"]

    def forward(ids):
        x = p["wte.weight"][ids] + p["wpe.weight"][: ids.shape[1]]
        for i in range(c["n_layer"]):
            x = x + attention(norm(x, p, f"h.{i}.ln_1", eps), p, f"h.{i}.attn", heads, scaled)
            hidden = activation(conv1d(norm(x, p, f"h.{i}.ln_2", eps), p, f"h.{i}.mlp.c_fc"))
            x = x + conv1d(hidden, p, f"h.{i}.mlp.c_proj")
        return norm(x, p, "ln_f", eps) @ head.T

    return forward
