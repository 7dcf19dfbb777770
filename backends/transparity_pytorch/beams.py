"""Beam search: the continuation whose tokens are likeliest together."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transparity_pytorch.cache import taken
from transparity_pytorch.decoding import Step, cache_for, next_logits, step
from transparity_pytorch.generation import with_room
from transparity_pytorch.transformer import Transformer


@torch.no_grad()
def beam_search(
    model: Transformer,
    prompt: Int[Tensor, "batch length"],
    max_new_tokens: int,
    beams: int,
    *,
    length_penalty: float = 0.0,
    lengths: Int[Tensor, " batch"] | None = None,
    source: Int[Tensor, "batch keys"] | None = None,
    step: Step = step,
) -> tuple[Int[Tensor, "batch total_length"], Float[Tensor, " batch"]]:
    """`prompt` and what is likeliest together to follow it, as far as `beams` continuations of each row show, with its
    score: log P / ((5 + tokens added) / 6)^length_penalty (Wu et al. 2016, eq. 14), by which they are ranked.

    A continuation that ended stays among them as it is. Of equal ones the first stays: of the better beam, then with
    the lower token. `lengths`, the context and the end are those of `generate`.
    """
    config, batch, device = model.config, len(prompt), prompt.device
    vocab_size = config.vocab_size
    tokens, lengths = with_room(config, prompt, lengths, max_new_tokens)
    each = torch.arange(batch, device=device).repeat_interleave(beams)
    tokens, lengths, source = tokens[each], lengths[each], None if source is None else source[each]
    longest = prompt.shape[1]
    cache, unseen = cache_for(model, tokens, longest, source), longest
    ended = torch.zeros(batch, beams, dtype=torch.bool, device=device)
    added = torch.zeros(batch, beams, dtype=torch.long, device=device)
    # All beams of a row begin alike: only the first counts, until they differ.
    begin = torch.where(torch.arange(beams, device=device) == 0, 0.0, -torch.inf).expand(batch, beams)
    score = begin.to(torch.promote_types(model.token_embedding.weight.dtype, torch.float32))
    vocabulary = torch.arange(vocab_size, device=device)
    for _ in range(max_new_tokens):
        cache = cache if longest <= config.max_length else None
        logits = next_logits(model, tokens, lengths, cache, source, unseen, step)
        following = logits.log_softmax(dim=-1, dtype=score.dtype).reshape(batch, beams, vocab_size)
        staying = torch.where(vocabulary == config.filling_id, 0.0, -torch.inf).to(score.dtype)
        scores = score[:, :, None] + torch.where(ended[:, :, None], staying, following)
        added = added + ~ended
        ranked = (scores / _penalty(added, length_penalty)[:, :, None]).reshape(batch, -1)
        best = ranked.argsort(dim=-1, descending=True, stable=True)[:, :beams]
        beam, token = best // vocab_size, best % vocab_size
        score = scores.reshape(batch, -1).gather(-1, best)
        added = added.gather(-1, beam)
        ended = ended.gather(-1, beam) | (token == config.ending_id)
        kept = (torch.arange(batch, device=device)[:, None] * beams + beam).reshape(-1)
        tokens, cache = tokens[kept], None if cache is None else taken(cache, kept)
        tokens[torch.arange(len(tokens), device=device), lengths] = token.reshape(-1)
        lengths, longest, unseen = lengths + 1, longest + 1, 1
        if ended.all():
            break
    final = score / _penalty(added, length_penalty)
    best = final.argmax(dim=-1)
    return tokens[torch.arange(batch, device=device) * beams + best, :longest], final.gather(-1, best[:, None])[:, 0]


def _penalty(added: Int[Tensor, "batch beams"], power: float) -> Float[Tensor, "batch beams"]:
    """By what the score of so many tokens is divided (Wu et al. 2016, eq. 14)."""
    return ((5 + added.double()) / 6) ** power
