"""A transformer in NumPy as in papers: every product is an `einsum`, and every intermediate result is a new array."""

import numpy as np
from benchmarks.peers.skeleton import Blocks, transformer
from benchmarks.workloads import Run, Task

from transparity.config import TransformerConfig
from transparity.protocol import Arrays


def blocks_of(config: TransformerConfig, w: Arrays) -> Blocks:
    def embed(name: str, tokens: np.ndarray) -> np.ndarray:
        table = w[f"{name}.weight"]
        return table[: tokens.shape[1]] if "position" in name else table[tokens]

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return np.einsum("btd,ed->bte", x, w[f"{name}.weight"], optimize=True) + w[f"{name}.bias"]

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + np.float32(config.norm_eps))
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def attention(at: str, x: np.ndarray, memory: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        query, key, value = (
            linear(f"{at}.{role}", y).reshape(*y.shape[:2], config.num_heads, -1)
            for role, y in (("query", x), ("key", memory), ("value", memory))
        )
        scores = np.einsum("bqhd,bkhd->bhqk", query, key) / np.float32(np.sqrt(config.head_dim))
        if mask is not None:
            scores = np.where(mask, scores, np.float32(-np.inf))
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = weights / weights.sum(-1, keepdims=True)
        return linear(f"{at}.output", np.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape))

    return Blocks(embed, linear, norm, attention, lambda x: np.maximum(x, 0))


def build(task: Task) -> Run:
    blocks, inputs = blocks_of(task.config, task.parameters), task.tokens
    return lambda: transformer(task.config, blocks, np.tri(inputs["tokens"].shape[1], dtype=bool), **inputs)
