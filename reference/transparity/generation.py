"""Generation: one token after another, the likeliest or a drawn one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Inexact, Int
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity.functional import softmax
from transparity.transformer import transformer


def greedy_tokens(logits: Inexact[Array, "batch vocab"]) -> Int[Array, " batch"]:
    """The likeliest token of each row (document 004); of equals the first."""
    return logits.real.argmax(axis=-1)


def sampled_tokens(logits: Inexact[Array, "batch vocab"], uniforms: Float[Array, " batch"]) -> Int[Array, " batch"]:
    """A token of each row, drawn from softmax(logits) (document 001): the first whose cumulative probability exceeds
    the row's uniform number in [0, 1)."""
    cumulative = softmax(logits).cumsum(axis=-1)
    passed = cumulative <= uniforms.astype(cumulative.dtype)[:, None] * cumulative[:, -1:]
    return np.minimum(passed.sum(axis=-1), logits.shape[-1] - 1)


def generate(
    config: TransformerConfig,
    parameters: Mapping[str, Array],
    prompt: Int[Array, "batch length"],
    max_new_tokens: int,
    *,
    source: Int[Array, "batch keys"] | None = None,
    uniforms: Float[Array, "batch new_tokens"] | None = None,
) -> Int[Array, "batch total_length"]:
    """`prompt` and what the model adds to it: greedily, or drawn by `uniforms`.

    The model sees the last `max_length` tokens (document 001). Where there is an `eos_id`, a row that reached it is
    filled with `pad_id`, and generation ends with the last row (document 004).
    """
    tokens = prompt
    ended = np.zeros(len(prompt), bool)
    for step in range(max_new_tokens):
        context = tokens[:, -config.max_length :]
        inputs: dict[str, Any] = {"tokens": context} if source is None else {"source": source, "target": context}
        logits = transformer(config, parameters, **inputs)[:, -1]
        token = greedy_tokens(logits) if uniforms is None else sampled_tokens(logits, uniforms[:, step])
        if config.eos_id is not None:
            token = np.where(ended, config.eos_id if config.pad_id is None else config.pad_id, token)
            ended = ended | (token == config.eos_id)
        tokens = np.concatenate([tokens, token[:, None]], axis=1)
        if ended.all():
            break
    return tokens
