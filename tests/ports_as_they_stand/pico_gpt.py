# mypy: ignore-errors
"""A GPT-2 in the style of picoGPT: NumPy functions of one row, a list of heads, and nested dicts of weights."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def norm(x, g, b):
    mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    return g * (x - mean) / np.sqrt(variance + 1e-5) + b


def linear(x, w, b):
    return x @ w + b


def attend(q, k, v, mask):
    return softmax(q @ k.T / np.sqrt(q.shape[-1]) + mask) @ v


def attention(x, c_attn, c_proj, heads):
    q, k, v = np.split(linear(x, **c_attn), 3, axis=-1)
    apart = [np.split(each, heads, axis=-1) for each in (q, k, v)]
    mask = (1 - np.tri(len(x), dtype=x.dtype)) * -1e10
    out = [attend(*head, mask) for head in zip(*apart, strict=True)]
    return linear(np.hstack(out), **c_proj)


def mlp(x, c_fc, c_proj):
    return linear(gelu(linear(x, **c_fc)), **c_proj)


def gpt(ids, wte, wpe, blocks, ln_f, heads):
    x = wte[ids] + wpe[range(len(ids))]
    for block in blocks:
        x = x + attention(norm(x, **block["ln_1"]), **block["attn"], heads=heads)
        x = x + mlp(norm(x, **block["ln_2"]), **block["mlp"])
    return norm(x, **ln_f) @ wte.T


def load(folder):
    config = json.loads(Path(folder, "config.json").read_text())
    params = {"blocks": [{} for _ in range(config["n_layer"])]}
    for name, value in load_file(f"{folder}/model.safetensors").items():
        *path, leaf = name.removeprefix("transformer.").split(".")
        at, path = (params["blocks"][int(path[1])], path[2:]) if path[0] == "h" else (params, path)
        if path[0] in ("wte", "wpe"):
            at[path[0]] = value
        else:
            for part in path:
                at = at.setdefault(part, {})
            at["b" if leaf == "bias" else "g" if path[-1].startswith("ln") else "w"] = value
    return lambda ids: np.stack([gpt(row, **params, heads=config["n_head"]) for row in ids])
