"""Beam search: after each new token, only the continuations with the best scores are kept."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from transparity.config import TransformerConfig
from transparity_flax.arithmetic.precision import upcast
from transparity_flax.decoding.generation import allocate
from transparity_flax.decoding.steps import cache_for, next_logits
from transparity_flax.fast.structure import SplitModel
from transparity_flax.shapes import GeneratedIds, Lengths, PerBeam, SourceIds, TokenIds
from transparity_flax.state.cache import Cache, select_rows


class BeamState(NamedTuple):
    """For each beam of each row: the score, the number of added tokens, and whether the beam has ended."""

    score: Float[Array, "batch beams"]
    added: PerBeam
    ended: Bool[Array, "batch beams"]


def extend_beams(
    config: TransformerConfig, state: BeamState, following: Float[Array, "batch beams vocab"], length_penalty: float
) -> tuple[BeamState, PerBeam, PerBeam]:
    """Extend every beam by one token and keep the best beams; return their state, parent beams and new tokens.

    `following` has the log probability of each token as the next token. A beam that has ended is extended only by
    `filling_id`, and keeps its score.
    """
    score, added, ended = state
    batch, beams, vocab_size = following.shape
    staying = jnp.where(jnp.arange(vocab_size) == config.filling_id, 0.0, -jnp.inf)
    scores = score[:, :, None] + jnp.where(ended[:, :, None], staying, following)
    added = added + ~ended
    ranked = (scores / _penalty(added, length_penalty)[:, :, None]).reshape(batch, -1)
    best = jnp.argsort(-ranked, axis=-1, stable=True)[:, :beams]
    beam, token = best // vocab_size, best % vocab_size
    score = jnp.take_along_axis(scores.reshape(batch, -1), best, axis=-1)
    added = jnp.take_along_axis(added, beam, axis=-1)
    ended = jnp.take_along_axis(ended, beam, axis=-1) | (token == config.ending_id)
    return BeamState(score, added, ended), beam, token


def beam_search(
    split: SplitModel,
    prompt: TokenIds,
    max_new_tokens: int,
    beams: int,
    *,
    length_penalty: float = 0.0,
    lengths: Lengths | None = None,
    source: SourceIds | None = None,
) -> tuple[GeneratedIds, Float[Array, " batch"]]:
    """Return each row of `prompt` with the best of `beams` continuations, and the continuation's score.

    The score is log P / ((5 + tokens added) / 6)^length_penalty (Wu et al. 2016, eq. 14). Continuations that have ended
    still compete with unfinished continuations. If two extensions have the same score, the extension of the better beam
    wins, then the lower token id. `generate` in `transparity.protocol` explains `lengths` and `source`.
    """
    (config, _, _), batch = split, len(prompt)
    tokens, lengths, _ = allocate(config, prompt, lengths, max_new_tokens)
    each = jnp.repeat(jnp.arange(batch), beams)
    tokens, lengths, source = tokens[each], lengths[each], None if source is None else source[each]
    longest = prompt.shape[1]
    cache, new = cache_for(split, tokens, longest, source), longest
    # All beams of a row start with the same tokens. Only the first has a finite score, so that continuations differ.
    score = jnp.where(jnp.arange(beams) == 0, 0.0, -jnp.inf) * jnp.ones((batch, 1))
    state = BeamState(score, jnp.zeros((batch, beams), int), jnp.zeros((batch, beams), bool))
    for _ in range(max_new_tokens):
        cache = cache if longest <= config.max_length else None
        logits = next_logits(split, tokens, lengths, cache, source, new)
        state, tokens, cache = _extended(config, state, logits, tokens, lengths, cache, length_penalty)
        lengths, longest, new = lengths + 1, longest + 1, 1
        if state.ended.all():
            break
    final = state.score / _penalty(state.added, length_penalty)
    return tokens[jnp.arange(batch) * beams + final.argmax(axis=-1), :longest], final.max(axis=-1)


@functools.partial(jax.jit, static_argnames=("config", "length_penalty"))
def _extended(
    config: TransformerConfig,
    state: BeamState,
    logits: Float[Array, "rows vocab"],
    tokens: Int[Array, "rows length"],
    lengths: Int[Array, " rows"],
    cache: Cache | None,
    length_penalty: float,
) -> tuple[BeamState, Int[Array, "rows length"], Cache | None]:
    batch, beams = state.score.shape
    following = jax.nn.log_softmax(upcast(logits), axis=-1).reshape(batch, beams, -1)
    state, beam, token = extend_beams(config, state, following, length_penalty)
    kept = (jnp.arange(batch)[:, None] * beams + beam).reshape(-1)
    tokens = tokens[kept].at[jnp.arange(len(tokens)), lengths].set(token.reshape(-1))
    return state, tokens, None if cache is None else select_rows(cache, kept)


def _penalty(added: PerBeam, power: float) -> Float[Array, "batch beams"]:
    """Return the divisor of the score of a continuation with `added` tokens (Wu et al. 2016, eq. 14)."""
    return ((5 + added) / 6) ** power
