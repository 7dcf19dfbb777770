"""Generation, one token at a time, greedily or by sampling."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from transparity.config import TransformerConfig
from transparity.sampling import Sampling
from transparity_flax.arithmetic.precision import upcast
from transparity_flax.decoding.steps import cache_for, next_logits
from transparity_flax.fast.structure import ModelStructure, SplitModel, Weights
from transparity_flax.shapes import GeneratedIds, Lengths, NextIds, NextLogits, SourceIds, TokenIds
from transparity_flax.state.cache import Cache


def greedy_tokens(logits: NextLogits) -> NextIds:
    """Return the most likely token of each row (document 004); in a tie, the token with the lower id."""
    return logits.argmax(axis=-1)


def filter_logits(logits: NextLogits, sampling: Sampling) -> NextLogits:
    """Apply temperature, top-k and top-p, and return logits in at least float32.

    The logits of each row are shifted so that the largest is 0; removed logits are −inf.
    """
    logits = upcast(logits)
    logits = (logits - logits.max(axis=-1, keepdims=True)) / sampling.temperature
    order = jnp.argsort(-logits, axis=-1, stable=True)
    ranked = jnp.take_along_axis(logits, order, axis=-1)
    if sampling.top_k is not None:
        ranked = ranked.at[:, sampling.top_k :].set(-jnp.inf)
    if sampling.top_p < 1:
        probability = jax.nn.softmax(ranked, axis=-1)
        before = probability.cumsum(axis=-1) - probability
        ranked = jnp.where(before < sampling.top_p, ranked, -jnp.inf)
    return jnp.take_along_axis(ranked, jnp.argsort(order, axis=-1), axis=-1)


def sampled_tokens(logits: NextLogits, uniforms: Float[Array, " batch"]) -> NextIds:
    """Return each row's first token whose cumulative probability exceeds the row's random number (document 001)."""
    cumulative = jax.nn.softmax(upcast(logits), axis=-1).cumsum(axis=-1)
    total = cumulative[:, -1:]
    # A uniform number close to 1 may be rounded to 1. Even then, a token with a probability of 0 must not be sampled.
    passed = (cumulative <= uniforms.astype(cumulative.dtype)[:, None] * total) & (cumulative < total)
    return passed.sum(axis=-1)


class Written(NamedTuple):
    """The tokens, the number of valid tokens of each row, and which rows have ended."""

    tokens: GeneratedIds
    lengths: Lengths
    ended: Bool[Array, " batch"]


def allocate(config: TransformerConfig, prompt: TokenIds, lengths: Lengths | None, more: int) -> Written:
    """Return the prompt, padded on the right by `more` tokens, with no row marked as ended."""
    batch, length = prompt.shape
    lengths = jnp.full(batch, length) if lengths is None else lengths
    tokens = jnp.pad(prompt, ((0, 0), (0, more)))
    tokens = jnp.where(jnp.arange(length + more) < lengths[:, None], tokens, config.filling_id)
    return Written(tokens, lengths, jnp.zeros(batch, bool))


@functools.partial(jax.jit, static_argnums=(0, 4))
def append_token(
    config: TransformerConfig,
    logits: NextLogits,
    written: Written,
    uniforms: Float[Array, " batch"] | None,
    sampling: Sampling,
) -> Written:
    """Append the next token of each row, greedily or sampled with `uniforms`; rows that have ended get `filling_id`."""
    tokens, lengths, ended = written
    token = greedy_tokens(logits) if uniforms is None else sampled_tokens(filter_logits(logits, sampling), uniforms)
    token = jnp.where(ended, config.filling_id, token)
    ended = ended | (token == config.ending_id)
    return Written(tokens.at[jnp.arange(len(tokens)), lengths].set(token), lengths + 1, ended)


def generate(
    split: SplitModel,
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
    config, sampling, longest = split[0], sampling or Sampling(), prompt.shape[1]
    last = longest + max_new_tokens
    if max_new_tokens and config.prefixes_agree and longest <= config.max_length:
        written, added = _with_cache(*split, prompt, lengths, source, uniforms, max_new_tokens, sampling)
        longest += int(added)
    else:
        written = allocate(config, prompt, lengths, max_new_tokens)
    while longest < last and not (config.eos_id is not None and written.ended.all()):
        logits = next_logits(split, written.tokens, written.lengths, None, source, new=longest)
        drawn = None if uniforms is None else uniforms[:, longest - prompt.shape[1]]
        written, longest = append_token(config, logits, written, drawn, sampling), longest + 1
    return written.tokens[:, :longest]


Carried = tuple[Written, Cache, Int[Array, ""]]
"""The state of the decoding loop: tokens with their lengths, the cache, and the number of added tokens."""


@functools.partial(jax.jit, static_argnums=(0, 1, 7, 8))
def _with_cache(
    config: TransformerConfig,
    structure: ModelStructure,
    weights: Weights,
    prompt: TokenIds,
    lengths: Lengths | None,
    source: SourceIds | None,
    uniforms: Float[Array, "batch new_tokens"] | None,
    max_new_tokens: int,
    sampling: Sampling,
) -> tuple[Written, Int[Array, ""]]:
    """Add tokens in one compiled program, until all rows have ended or the cache is full.

    On a GPU, calling a program for each token would cost more time than computing the token. Returns the tokens and the
    number of added tokens.
    """
    split, length = (config, structure, weights), prompt.shape[1]
    most = min(max_new_tokens, config.max_length + 1 - length)

    def add(written: Written, cache: Cache, new: int, added: Int[Array, ""] | int) -> Written:
        logits = next_logits(split, written.tokens, written.lengths, cache, None, new)
        return append_token(config, logits, written, None if uniforms is None else uniforms[:, added], sampling)

    def goes_on(carried: Carried) -> Bool[Array, ""]:
        written, _, added = carried
        return added < most if config.eos_id is None else (added < most) & ~written.ended.all()

    def go_on(carried: Carried) -> Carried:
        written, cache, added = carried
        return add(written, cache, 1, added), cache, added + 1

    written = allocate(config, prompt, lengths, max_new_tokens)
    cache = cache_for(split, written.tokens, length, source)
    assert cache is not None
    first = add(written, cache, length, 0)
    written, _, added = jax.lax.while_loop(goes_on, go_on, (first, cache, jnp.ones((), int)))
    return written, added
