"""A transformer in NumPy as papers write it: every product an `einsum`, every intermediate a new array."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from benchmarks.task import Run, Task

from transparity.config import TransformerConfig

Weights = Mapping[str, np.ndarray]


def linear(w: Weights, name: str, x: np.ndarray) -> np.ndarray:
    return np.einsum("btd,ed->bte", x, w[f"{name}.weight"], optimize=True) + w[f"{name}.bias"]


def norm(config: TransformerConfig, w: Weights, name: str, x: np.ndarray) -> np.ndarray:
    scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + np.float32(config.norm_eps))
    return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]


def attention(
    config: TransformerConfig, w: Weights, at: str, x: np.ndarray, memory: np.ndarray | None, mask: np.ndarray | None
) -> np.ndarray:
    seen = x if memory is None else memory
    query, key, value = (
        linear(w, f"{at}.{role}", y).reshape(*y.shape[:2], config.num_heads, -1)
        for role, y in (("query", x), ("key", seen), ("value", seen))
    )
    scores = np.einsum("bqhd,bkhd->bhqk", query, key) / np.float32(np.sqrt(config.head_dim))
    if mask is not None:
        scores = np.where(mask, scores, np.float32(-np.inf))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    return linear(w, f"{at}.output", np.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape))


def feed_forward(w: Weights, at: str, x: np.ndarray) -> np.ndarray:
    return linear(w, f"{at}.down", np.maximum(linear(w, f"{at}.up", x), 0))


def stack(
    config: TransformerConfig,
    w: Weights,
    name: str,
    tokens: np.ndarray,
    mask: np.ndarray | None = None,
    memory: np.ndarray | None = None,
) -> np.ndarray:
    x = w[f"{name}.token_embedding.weight"][tokens] + w[f"{name}.position_embedding.weight"][: tokens.shape[1]]
    layers = config.stack_num_layers(name)
    for at in (f"{name}.layers.{index}" for index in range(layers)):
        sublayers = {"self_attention": partial(attention, config, w, f"{at}.self_attention", memory=None, mask=mask)}
        if memory is not None:
            sublayers["cross_attention"] = partial(
                attention, config, w, f"{at}.cross_attention", memory=memory, mask=None
            )
        sublayers["feed_forward"] = partial(feed_forward, w, f"{at}.feed_forward")
        for sublayer, call in sublayers.items():
            normalize = partial(norm, config, w, f"{at}.{sublayer}_norm")
            x = x + call(normalize(x)) if config.norm_position == "pre" else normalize(x + call(x))
    return norm(config, w, f"{name}.final_norm", x) if config.final_norm else x


def build(task: Task) -> Run:
    """In float32."""
    config, w, inputs = task.config, dict(task.parameters), task.tokens

    def run() -> np.ndarray:
        memory = stack(config, w, "encoder", inputs["source"]) if config.has_encoder else None
        tokens = inputs["tokens"]
        mask = np.tri(tokens.shape[1], dtype=bool)
        return linear(w, "head", stack(config, w, "decoder", tokens, mask, memory))

    return run
