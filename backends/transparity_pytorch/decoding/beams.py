"""Beam search: after each new token, only the continuations with the best scores are kept."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from transparity.config import TransformerConfig
from transparity_pytorch.decoding.generation import allocate
from transparity_pytorch.decoding.steps import Step, cache_for, next_logits, step
from transparity_pytorch.shapes import GeneratedIds, Lengths, PerBeam, SourceIds, TokenIds
from transparity_pytorch.state.cache import select_rows
from transparity_pytorch.transformer import Transformer


class BeamState(NamedTuple):
    """For each beam of each row: the score, the number of added tokens, and whether the beam has ended."""

    score: Float[Tensor, "batch beams"]
    added: PerBeam
    ended: Bool[Tensor, "batch beams"]


def extend_beams(
    config: TransformerConfig, state: BeamState, following: Float[Tensor, "batch beams vocab"], length_penalty: float
) -> tuple[BeamState, PerBeam, PerBeam]:
    """Extend every beam by one token and keep the best beams; return their state, parent beams and new tokens.

    `following` has the log probability of each token as the next token. A beam that has ended is extended only by
    `filling_id`, and keeps its score.
    """
    score, added, ended = state
    batch, beams, vocab_size = following.shape
    vocabulary = torch.arange(vocab_size, device=following.device)
    staying = torch.where(vocabulary == config.filling_id, 0.0, -torch.inf).to(score.dtype)
    scores = score[:, :, None] + torch.where(ended[:, :, None], staying, following)
    added = added + ~ended
    ranked = (scores / _penalty(added, length_penalty)[:, :, None]).reshape(batch, -1)
    best = ranked.argsort(dim=-1, descending=True, stable=True)[:, :beams]
    beam, token = best // vocab_size, best % vocab_size
    score = scores.reshape(batch, -1).gather(-1, best)
    added = added.gather(-1, beam)
    ended = ended.gather(-1, beam) | (token == config.ending_id)
    return BeamState(score, added, ended), beam, token


@torch.no_grad()
def beam_search(
    model: Transformer,
    prompt: TokenIds,
    max_new_tokens: int,
    beams: int,
    *,
    length_penalty: float = 0.0,
    lengths: Lengths | None = None,
    source: SourceIds | None = None,
    step: Step = step,
) -> tuple[GeneratedIds, Float[Tensor, " batch"]]:
    """Return each row of `prompt` with the best of `beams` continuations, and the continuation's score.

    The score is log P / ((5 + tokens added) / 6)^length_penalty (Wu et al. 2016, eq. 14). Continuations that have ended
    still compete with unfinished continuations. If two extensions have the same score, the extension of the better beam
    wins, then the lower token id. `generate` in `transparity.protocol` explains `lengths` and `source`.
    """
    config, batch, device = model.config, len(prompt), prompt.device
    tokens, lengths, _ = allocate(config, prompt, lengths, max_new_tokens)
    each = torch.arange(batch, device=device).repeat_interleave(beams)
    tokens, lengths, source = tokens[each], lengths[each], None if source is None else source[each]
    longest = prompt.shape[1]
    cache, new = cache_for(model, tokens, longest, source), longest
    # All beams of a row start with the same tokens. Only the first has a finite score, so that continuations differ.
    begin = torch.where(torch.arange(beams, device=device) == 0, 0.0, -torch.inf).expand(batch, beams)
    score = begin.to(torch.promote_types(next(model.parameters()).dtype, torch.float32))
    state = BeamState(score, torch.zeros_like(score, dtype=torch.long), torch.zeros_like(score, dtype=torch.bool))
    for _ in range(max_new_tokens):
        cache = cache if longest <= config.max_length else None
        logits = next_logits(model, tokens, lengths, cache, source, new, step)
        following = logits.log_softmax(dim=-1, dtype=score.dtype).reshape(batch, beams, -1)
        state, beam, token = extend_beams(config, state, following, length_penalty)
        kept = (torch.arange(batch, device=device)[:, None] * beams + beam).reshape(-1)
        tokens, cache = tokens[kept], None if cache is None else select_rows(cache, kept)
        tokens[torch.arange(len(tokens), device=device), lengths] = token.reshape(-1)
        lengths, longest, new = lengths + 1, longest + 1, 1
        if state.ended.all():
            break
    final, best = (state.score / _penalty(state.added, length_penalty)).max(dim=-1)
    return tokens[torch.arange(batch, device=device) * beams + best, :longest], final


def _penalty(added: PerBeam, power: float) -> Float[Tensor, "batch beams"]:
    """Return the divisor of the score of a continuation with `added` tokens (Wu et al. 2016, eq. 14)."""
    return ((5 + added.double()) / 6) ** power
