"""Beam search: after each new token, only the continuations with the best scores are kept."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Inexact
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity_numpy.arithmetic.functional import log_softmax
from transparity_numpy.arithmetic.precision import upcast
from transparity_numpy.decoding.generation import allocate
from transparity_numpy.decoding.steps import cache_for, next_logits
from transparity_numpy.shapes import GeneratedIds, Lengths, Parameters, PerBeam, SourceIds, TokenIds
from transparity_numpy.state.cache import select_rows


class BeamState(NamedTuple):
    """For each beam of each row: the score, the number of added tokens, and whether the beam has ended."""

    score: Inexact[Array, "batch beams"]
    added: PerBeam
    ended: Bool[Array, "batch beams"]


def extend_beams(
    config: TransformerConfig, state: BeamState, following: Inexact[Array, "batch beams vocab"], length_penalty: float
) -> tuple[BeamState, PerBeam, PerBeam]:
    """Extend every beam by one token and keep the best beams; return their state, parent beams and new tokens.

    `following` has the log probability of each token as the next token. A beam that has ended is extended only by
    `filling_id`, and keeps its score.
    """
    score, added, ended = state
    batch, beams, vocab_size = following.shape
    staying = np.where(np.arange(vocab_size) == config.filling_id, 0.0, -np.inf)
    scores = score[:, :, None] + np.where(ended[:, :, None], staying, following)
    added = added + ~ended
    ranked = (scores / _penalty(added, length_penalty)[:, :, None]).reshape(batch, -1)
    best = np.argsort(-ranked, axis=-1, kind="stable")[:, :beams]
    beam, token = best // vocab_size, best % vocab_size
    score = np.take_along_axis(scores.reshape(batch, -1), best, axis=-1)
    added = np.take_along_axis(added, beam, axis=-1)
    ended = np.take_along_axis(ended, beam, axis=-1) | (token == config.ending_id)
    return BeamState(score, added, ended), beam, token


def beam_search(
    config: TransformerConfig,
    parameters: Parameters,
    prompt: TokenIds,
    max_new_tokens: int,
    beams: int,
    *,
    length_penalty: float = 0.0,
    lengths: Lengths | None = None,
    source: SourceIds | None = None,
) -> tuple[GeneratedIds, Inexact[Array, " batch"]]:
    """Return each row of `prompt` with the best of `beams` continuations, and the continuation's score.

    The score is log P / ((5 + tokens added) / 6)^length_penalty (Wu et al. 2016, eq. 14). Continuations that have ended
    still compete with unfinished continuations. If two extensions have the same score, the extension of the better beam
    wins, then the lower token id. `generate` in `transparity.protocol` explains `lengths` and `source`.
    """
    batch = len(prompt)
    tokens, lengths, _ = allocate(config, prompt, lengths, max_new_tokens)
    each = np.repeat(np.arange(batch), beams)
    tokens, lengths, source = tokens[each], lengths[each], None if source is None else source[each]
    longest = prompt.shape[1]
    cache, new = cache_for(config, parameters, tokens, longest, source), longest
    # All beams of a row start with the same tokens. Only the first has a finite score, so that continuations differ.
    score = np.where(np.arange(beams) == 0, 0.0, -np.inf) * np.ones((batch, 1))
    state = BeamState(score, np.zeros((batch, beams), int), np.zeros((batch, beams), bool))
    for _ in range(max_new_tokens):
        cache = cache if longest <= config.max_length else None
        logits = next_logits(config, parameters, tokens, lengths, cache, source, new)
        following = log_softmax(upcast(logits)).reshape(batch, beams, -1)
        state, beam, token = extend_beams(config, state, following, length_penalty)
        kept = (np.arange(batch)[:, None] * beams + beam).reshape(-1)
        tokens, cache = tokens[kept], None if cache is None else select_rows(cache, kept)
        tokens[np.arange(len(tokens)), lengths] = token.reshape(-1)
        lengths, longest, new = lengths + 1, longest + 1, 1
        if state.ended.all():
            break
    final = state.score / _penalty(state.added, length_penalty)
    return tokens[np.arange(batch) * beams + final.argmax(axis=-1), :longest], final.max(axis=-1)


def _penalty(added: PerBeam, power: float) -> Float[Array, "batch beams"]:
    """Return the divisor of the score of a continuation with `added` tokens (Wu et al. 2016, eq. 14)."""
    return ((5 + added) / 6) ** power
