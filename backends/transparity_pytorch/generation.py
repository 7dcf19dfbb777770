"""Generation: one token after another, the likeliest or a drawn one."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transparity_pytorch.transformer import Transformer


def greedy_tokens(logits: Float[Tensor, "batch vocab"]) -> Int[Tensor, " batch"]:
    """The likeliest token of each row (document 004); of equals the first."""
    return logits.argmax(dim=-1)


def sampled_tokens(logits: Float[Tensor, "batch vocab"], uniforms: Float[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """A token of each row, drawn from softmax(logits) (document 001): the first whose cumulative probability exceeds
    the row's uniform number in [0, 1)."""
    cumulative = logits.softmax(dim=-1).cumsum(dim=-1)
    passed = cumulative <= uniforms.to(cumulative.dtype)[:, None] * cumulative[:, -1:]
    return passed.sum(dim=-1).clamp(max=logits.shape[-1] - 1)


@torch.no_grad()
def generate(
    model: Transformer,
    prompt: Int[Tensor, "batch length"],
    max_new_tokens: int,
    *,
    source: Int[Tensor, "batch keys"] | None = None,
    uniforms: Float[Tensor, "batch new_tokens"] | None = None,
) -> Int[Tensor, "batch total_length"]:
    """`prompt` and what the model adds to it: greedily, or drawn by `uniforms`.

    The model sees the last `max_length` tokens (document 001). Where there is an `eos_id`, a row that reached it is
    filled with `pad_id`, and generation ends with the last row (document 004).
    """
    config = model.config
    tokens = prompt
    ended = torch.zeros(len(prompt), dtype=torch.bool, device=prompt.device)
    for step in range(max_new_tokens):
        context = tokens[:, -config.max_length :]
        inputs = {"tokens": context} if source is None else {"source": source, "target": context}
        logits = model(**inputs)[:, -1]
        token = greedy_tokens(logits) if uniforms is None else sampled_tokens(logits, uniforms[:, step])
        if config.eos_id is not None:
            token = token.masked_fill(ended, config.eos_id if config.pad_id is None else config.pad_id)
            ended = ended | (token == config.eos_id)
        tokens = torch.cat([tokens, token[:, None]], dim=1)
        if ended.all():
            break
    return tokens
