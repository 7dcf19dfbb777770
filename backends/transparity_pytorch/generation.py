"""Generation: one token after another, the likeliest or a drawn one."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from transparity.config import TransformerConfig
from transparity.sampling import Sampling
from transparity_pytorch.decoding import Step, cache_for, next_logits, step
from transparity_pytorch.precision import upcast
from transparity_pytorch.transformer import Transformer


def greedy_tokens(logits: Float[Tensor, "batch vocab"]) -> Int[Tensor, " batch"]:
    """The likeliest token of each row (document 004); of equals the first."""
    return logits.argmax(dim=-1)


def drawable(logits: Float[Tensor, "batch vocab"], sampling: Sampling) -> Float[Tensor, "batch vocab"]:
    """The logits, less the largest, divided by the temperature, and −inf for what may not be drawn: by `top_k`, then by
    `top_p`; in at least float32."""
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


def sampled_tokens(logits: Float[Tensor, "batch vocab"], uniforms: Float[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """A token of each row, drawn from softmax(logits) (document 001): the first whose cumulative probability exceeds
    the row's uniform number in [0, 1)."""
    cumulative = upcast(logits).softmax(dim=-1).cumsum(dim=-1)
    total = cumulative[:, -1:]
    # A number next to 1 may be rounded to it: what adds nothing to the total is not drawn all the same.
    passed = (cumulative <= uniforms.to(cumulative.dtype)[:, None] * total) & (cumulative < total)
    return passed.sum(dim=-1)


def with_room(
    config: TransformerConfig, prompt: Int[Tensor, "batch length"], lengths: Int[Tensor, " batch"] | None, more: int
) -> tuple[Int[Tensor, "batch total_length"], Int[Tensor, " batch"]]:
    """The tokens with room for `more`, filled where there is nothing yet, and how many there are."""
    batch, length = prompt.shape
    lengths = torch.full((batch,), length, device=prompt.device) if lengths is None else lengths
    tokens = F.pad(prompt, (0, more))
    nothing = torch.arange(length + more, device=prompt.device) >= lengths[:, None]
    return tokens.masked_fill(nothing, config.filling_id), lengths


def appended(
    config: TransformerConfig,
    logits: Float[Tensor, "batch vocab"],
    tokens: Int[Tensor, "batch total_length"],
    lengths: Int[Tensor, " batch"],
    ended: Bool[Tensor, " batch"],
    uniforms: Float[Tensor, " batch"] | None,
    sampling: Sampling,
) -> tuple[Int[Tensor, "batch total_length"], Int[Tensor, " batch"], Bool[Tensor, " batch"]]:
    """The tokens with the next one of each row, the likeliest or the one drawn by `uniforms`, how many they are, and
    which rows have ended. What had ended before goes on with `filling_id`."""
    token = greedy_tokens(logits) if uniforms is None else sampled_tokens(drawable(logits, sampling), uniforms)
    token = token.masked_fill(ended, config.filling_id)
    ended = ended | (token == config.ending_id)
    tokens[torch.arange(len(tokens), device=tokens.device), lengths] = token
    return tokens, lengths + 1, ended


@torch.no_grad()
def generate(
    model: Transformer,
    prompt: Int[Tensor, "batch length"],
    max_new_tokens: int,
    *,
    lengths: Int[Tensor, " batch"] | None = None,
    source: Int[Tensor, "batch keys"] | None = None,
    uniforms: Float[Tensor, "batch new_tokens"] | None = None,
    sampling: Sampling | None = None,
    step: Step = step,
) -> Int[Tensor, "batch total_length"]:
    """The first `lengths` tokens of each row of `prompt` (all, without it) and what the model adds to them: greedily,
    or drawn by `uniforms` as `sampling` says.

    The model sees the last `max_length` tokens (document 001). Where there is an `eos_id`, a row that reached it is
    filled with `filling_id`, and generation ends with the last row (document 004); so are rows with a shorter prompt.
    """
    config = model.config
    tokens, lengths = with_room(config, prompt, lengths, max_new_tokens)
    longest = prompt.shape[1]
    cache, unseen = cache_for(model, tokens, longest, source), longest
    ended = torch.zeros(len(prompt), dtype=torch.bool, device=prompt.device)
    for new in range(max_new_tokens):
        cache = cache if longest <= config.max_length else None
        logits = next_logits(model, tokens, lengths, cache, source, unseen, step)
        drawn = None if uniforms is None else uniforms[:, new]
        tokens, lengths, ended = appended(config, logits, tokens, lengths, ended, drawn, sampling or Sampling())
        longest, unseen = longest + 1, 1
        if config.eos_id is not None and ended.all():
            break
    return tokens[:, :longest]
