"""Generation, one token at a time, greedily or by sampling."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity.sampling import Sampling
from transparity_numpy.arithmetic.functional import softmax
from transparity_numpy.arithmetic.precision import upcast
from transparity_numpy.decoding.steps import cache_for, next_logits
from transparity_numpy.shapes import GeneratedIds, Lengths, NextIds, NextLogits, Parameters, SourceIds, TokenIds


def greedy_tokens(logits: NextLogits) -> NextIds:
    """Return the most likely token of each row (document 004); in a tie, the token with the lower id."""
    return logits.real.argmax(axis=-1)


def filter_logits(logits: Float[Array, "batch vocab"], sampling: Sampling) -> Float[Array, "batch vocab"]:
    """Apply temperature, top-k and top-p, and return logits in at least float32.

    The logits of each row are shifted so that the largest is 0; removed logits are −inf.
    """
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


def sampled_tokens(logits: NextLogits, uniforms: Float[Array, " batch"]) -> NextIds:
    """Return each row's first token whose cumulative probability exceeds the row's random number (document 001)."""
    cumulative = softmax(upcast(logits)).cumsum(axis=-1)
    total = cumulative[:, -1:]
    # A uniform number close to 1 may be rounded to 1. Even then, a token with a probability of 0 must not be sampled.
    passed = (cumulative <= uniforms.astype(cumulative.dtype)[:, None] * total) & (cumulative < total)
    return passed.sum(axis=-1)


class Written(NamedTuple):
    """The tokens, the number of valid tokens of each row, and which rows have ended; all are updated in place."""

    tokens: GeneratedIds
    lengths: Lengths
    ended: Bool[Array, " batch"]


def allocate(config: TransformerConfig, prompt: TokenIds, lengths: Lengths | None, more: int) -> Written:
    """Return the prompt, padded on the right by `more` tokens, with no row marked as ended."""
    batch, length = prompt.shape
    lengths = np.full(batch, length) if lengths is None else lengths.copy()
    tokens = np.pad(prompt, ((0, 0), (0, more)))
    tokens = np.where(np.arange(length + more) < lengths[:, None], tokens, config.filling_id)
    return Written(tokens, lengths, np.zeros(batch, bool))


def append_token(
    config: TransformerConfig,
    logits: Float[Array, "batch vocab"],
    written: Written,
    uniforms: Float[Array, " batch"] | None,
    sampling: Sampling,
) -> None:
    """Append the next token of each row, greedily or sampled with `uniforms`; rows that have ended get `filling_id`."""
    tokens, lengths, ended = written
    token = greedy_tokens(logits) if uniforms is None else sampled_tokens(filter_logits(logits, sampling), uniforms)
    token = np.where(ended, config.filling_id, token)
    tokens[np.arange(len(tokens)), lengths] = token
    lengths += 1
    ended |= token == config.ending_id


def generate(
    config: TransformerConfig,
    parameters: Parameters,
    prompt: TokenIds,
    max_new_tokens: int,
    *,
    lengths: Lengths | None = None,
    source: SourceIds | None = None,
    uniforms: Float[Array, "batch new_tokens"] | None = None,
    sampling: Sampling | None = None,
) -> GeneratedIds:
    """Continue each row of `prompt` by up to `max_new_tokens` tokens, greedily or sampled with `uniforms`.

    At each step, the model reads only the last `max_length` tokens (document 001). `filling_id` pads rows that have a
    shorter prompt or end earlier at `eos_id`. Generation stops when all rows have ended (document 004).
    `transparity.protocol.Forward.generate` explains the arguments.
    """
    longest, sampling = prompt.shape[1], sampling or Sampling()
    written = allocate(config, prompt, lengths, max_new_tokens)
    cache, new = cache_for(config, parameters, written.tokens, longest, source), longest
    for i in range(max_new_tokens):
        cache = cache if longest <= config.max_length else None
        logits = next_logits(config, parameters, written.tokens, written.lengths, cache, source, new)
        drawn = None if uniforms is None else uniforms[:, i]
        append_token(config, logits, written, drawn, sampling)
        longest, new = longest + 1, 1
        if config.eos_id is not None and written.ended.all():
            break
    return written.tokens[:, :longest]
