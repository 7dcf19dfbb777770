"""Generation: one token after another, the likeliest or a drawn one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float, Inexact, Int
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity.sampling import Sampling
from transparity_numpy.decoding import cache_for, next_logits
from transparity_numpy.functional import softmax
from transparity_numpy.precision import upcast


def greedy_tokens(logits: Inexact[Array, "batch vocab"]) -> Int[Array, " batch"]:
    """The likeliest token of each row (document 004); of equals the first."""
    return logits.real.argmax(axis=-1)


def drawable(logits: Float[Array, "batch vocab"], sampling: Sampling) -> Float[Array, "batch vocab"]:
    """The logits, less the largest, divided by the temperature, and −inf for what may not be drawn: by `top_k`, then by
    `top_p`; in at least float32."""
    logits = upcast(logits)
    logits = (logits - logits.max(axis=-1, keepdims=True)) / logits.dtype.type(sampling.temperature)
    order = np.argsort(-logits, axis=-1, kind="stable")
    ranked = np.take_along_axis(logits, order, axis=-1)
    if sampling.top_k is not None:
        ranked[:, sampling.top_k :] = -np.inf
    if sampling.top_p < 1:
        probability = softmax(ranked)
        before = np.cumsum(probability, axis=-1) - probability
        ranked = np.where(before < sampling.top_p, ranked, -np.inf)
    return np.take_along_axis(ranked, np.argsort(order, axis=-1), axis=-1)


def sampled_tokens(logits: Inexact[Array, "batch vocab"], uniforms: Float[Array, " batch"]) -> Int[Array, " batch"]:
    """A token of each row, drawn from softmax(logits) (document 001): the first whose cumulative probability exceeds
    the row's uniform number in [0, 1)."""
    cumulative = softmax(upcast(logits)).cumsum(axis=-1)
    total = cumulative[:, -1:]
    # A number next to 1 may be rounded to it: what adds nothing to the total is not drawn all the same.
    passed = (cumulative <= uniforms.astype(cumulative.dtype)[:, None] * total) & (cumulative < total)
    return passed.sum(axis=-1)


def with_room(
    config: TransformerConfig, prompt: Int[Array, "batch length"], lengths: Int[Array, " batch"] | None, more: int
) -> tuple[Int[Array, "batch total_length"], Int[Array, " batch"]]:
    """The tokens with room for `more`, filled where there is nothing yet, and how many there are."""
    batch, length = prompt.shape
    lengths = np.full(batch, length) if lengths is None else lengths
    tokens = np.pad(prompt, ((0, 0), (0, more)))
    return np.where(np.arange(length + more) < lengths[:, None], tokens, config.filling_id), lengths


def appended(
    config: TransformerConfig,
    logits: Float[Array, "batch vocab"],
    tokens: Int[Array, "batch total_length"],
    lengths: Int[Array, " batch"],
    ended: Bool[Array, " batch"],
    uniforms: Float[Array, " batch"] | None,
    sampling: Sampling,
) -> tuple[Int[Array, "batch total_length"], Int[Array, " batch"], Bool[Array, " batch"]]:
    """The tokens with the next one of each row, the likeliest or the one drawn by `uniforms`, how many they are, and
    which rows have ended. What had ended before goes on with `filling_id`."""
    token = greedy_tokens(logits) if uniforms is None else sampled_tokens(drawable(logits, sampling), uniforms)
    token = np.where(ended, config.filling_id, token)
    ended = ended | (token == config.ending_id)
    tokens[np.arange(len(tokens)), lengths] = token
    return tokens, lengths + 1, ended


def generate(
    config: TransformerConfig,
    parameters: Mapping[str, Array],
    prompt: Int[Array, "batch length"],
    max_new_tokens: int,
    *,
    lengths: Int[Array, " batch"] | None = None,
    source: Int[Array, "batch keys"] | None = None,
    uniforms: Float[Array, "batch new_tokens"] | None = None,
    sampling: Sampling | None = None,
) -> Int[Array, "batch total_length"]:
    """The first `lengths` tokens of each row of `prompt` (all, without it) and what the model adds to them: greedily,
    or drawn by `uniforms` as `sampling` says.

    The model sees the last `max_length` tokens (document 001). Where there is an `eos_id`, a row that reached it is
    filled with `filling_id`, and generation ends with the last row (document 004); so are rows with a shorter prompt.
    """
    tokens, lengths = with_room(config, prompt, lengths, max_new_tokens)
    longest = prompt.shape[1]
    cache, unseen = cache_for(config, parameters, tokens, longest, source), longest
    ended = np.zeros(len(prompt), bool)
    for new in range(max_new_tokens):
        cache = cache if longest <= config.max_length else None
        logits = next_logits(config, parameters, tokens, lengths, cache, source, unseen)
        drawn = None if uniforms is None else uniforms[:, new]
        tokens, lengths, ended = appended(config, logits, tokens, lengths, ended, drawn, sampling or Sampling())
        longest, unseen = longest + 1, 1
        if config.eos_id is not None and ended.all():
            break
    return tokens[:, :longest]
