"""Generation, one token at a time, greedily or by sampling."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from transparity.config import TransformerConfig
from transparity.sampling import Sampling
from transparity_pytorch.arithmetic.precision import upcast
from transparity_pytorch.decoding.steps import Step, cache_for, next_logits, step
from transparity_pytorch.shapes import GeneratedIds, Lengths, NextIds, NextLogits, SourceIds, TokenIds
from transparity_pytorch.transformer import Transformer


def greedy_tokens(logits: NextLogits) -> NextIds:
    """Return the most likely token of each row (document 004); in a tie, the token with the lower id."""
    return logits.argmax(dim=-1)


def filter_logits(logits: NextLogits, sampling: Sampling) -> NextLogits:
    """Apply temperature, top-k and top-p, and return logits in at least float32.

    The logits of each row are shifted so that the largest is 0; removed logits are −inf.
    """
    logits = upcast(logits)
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / sampling.temperature
    ranked, order = logits.sort(dim=-1, descending=True, stable=True)
    if sampling.top_k is not None:
        ranked[:, sampling.top_k :] = -torch.inf
    if sampling.top_p < 1:
        probability = ranked.softmax(dim=-1)
        before = probability.cumsum(dim=-1) - probability
        ranked = ranked.masked_fill(before >= sampling.top_p, -torch.inf)
    return ranked.gather(-1, order.argsort(dim=-1))


def sampled_tokens(logits: NextLogits, uniforms: Float[Tensor, " batch"]) -> NextIds:
    """Return each row's first token whose cumulative probability exceeds the row's random number (document 001)."""
    cumulative = upcast(logits).softmax(dim=-1).cumsum(dim=-1)
    total = cumulative[:, -1:]
    # A uniform number close to 1 may be rounded to 1. Even then, a token with a probability of 0 must not be sampled.
    passed = (cumulative <= uniforms.to(cumulative.dtype)[:, None] * total) & (cumulative < total)
    return passed.sum(dim=-1)


class Written(NamedTuple):
    """The tokens, the number of valid tokens of each row, and which rows have ended; all are updated in place."""

    tokens: GeneratedIds
    lengths: Lengths
    ended: Bool[Tensor, " batch"]


def allocate(config: TransformerConfig, prompt: TokenIds, lengths: Lengths | None, more: int) -> Written:
    """Return the prompt, padded on the right by `more` tokens, with no row marked as ended."""
    batch, length = prompt.shape
    lengths = torch.full((batch,), length, device=prompt.device) if lengths is None else lengths.long().clone()
    nothing = torch.arange(length + more, device=prompt.device) >= lengths[:, None]
    tokens = F.pad(prompt, (0, more)).masked_fill(nothing, config.filling_id)
    return Written(tokens, lengths, torch.zeros(batch, dtype=torch.bool, device=prompt.device))


def append_token(
    config: TransformerConfig,
    logits: NextLogits,
    written: Written,
    uniforms: Float[Tensor, " batch"] | None,
    sampling: Sampling,
) -> None:
    """Append the next token of each row, greedily or sampled with `uniforms`; rows that have ended get `filling_id`."""
    tokens, lengths, ended = written
    token = greedy_tokens(logits) if uniforms is None else sampled_tokens(filter_logits(logits, sampling), uniforms)
    token = token.masked_fill(ended, config.filling_id)
    tokens[torch.arange(len(tokens), device=tokens.device), lengths] = token
    lengths += 1
    ended |= token == config.ending_id


@torch.no_grad()
def generate(
    model: Transformer,
    prompt: TokenIds,
    max_new_tokens: int,
    *,
    lengths: Lengths | None = None,
    source: SourceIds | None = None,
    uniforms: Float[Tensor, "batch new_tokens"] | None = None,
    sampling: Sampling | None = None,
    step: Step = step,
) -> GeneratedIds:
    """Continue each row of `prompt` by up to `max_new_tokens` tokens, greedily or sampled with `uniforms`.

    At each step, the model reads only the last `max_length` tokens (document 001). `filling_id` pads rows that have a
    shorter prompt or end earlier at `eos_id`. Generation stops when all rows have ended (document 004).
    `transparity.protocol.Forward.generate` explains the arguments.
    """
    config, longest, sampling = model.config, prompt.shape[1], sampling or Sampling()
    written = allocate(config, prompt, lengths, max_new_tokens)
    cache, new = cache_for(model, written.tokens, longest, source), longest
    for i in range(max_new_tokens):
        cache = cache if longest <= config.max_length else None
        logits = next_logits(model, written.tokens, written.lengths, cache, source, new, step)
        drawn = None if uniforms is None else uniforms[:, i]
        append_token(config, logits, written, drawn, sampling)
        longest, new = longest + 1, 1
        if config.eos_id is not None and written.ended.all():
            break
    return written.tokens[:, :longest]
