"""Generation: one token after another, the likeliest or a drawn one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Bool, Float, Int

from transparity_flax.attention import LEAVES_OUT, hidden_score
from transparity_flax.precision import widened
from transparity_flax.transformer import Transformer


def greedy_tokens(logits: Float[Array, "batch vocab"]) -> Int[Array, " batch"]:
    """The likeliest token of each row (document 004); of equals the first."""
    return logits.argmax(axis=-1)


def sampled_tokens(logits: Float[Array, "batch vocab"], uniforms: Float[Array, " batch"]) -> Int[Array, " batch"]:
    """A token of each row, drawn from softmax(logits) (document 001): the first whose cumulative probability exceeds
    the row's uniform number in [0, 1)."""
    cumulative = jax.nn.softmax(widened(logits), axis=-1).cumsum(axis=-1)
    passed = cumulative <= uniforms.astype(cumulative.dtype)[:, None] * cumulative[:, -1:]
    return jnp.minimum(passed.sum(axis=-1), logits.shape[-1] - 1)


@nnx.jit(static_argnames="width")
def _step(
    model: Transformer,
    tokens: Int[Array, "batch total_length"],
    length: Int[Array, ""],
    ended: Bool[Array, " batch"],
    source: Int[Array, "batch keys"] | None,
    uniforms: Float[Array, " batch"] | None,
    *,
    width: int,
) -> tuple[Int[Array, "batch total_length"], Bool[Array, " batch"]]:
    """`tokens` with its next one written at `length`, by what the model says of `width` tokens up to there or, at the
    beginning, past it."""
    config = model.config
    start = jnp.maximum(length - width, 0)
    context = jax.lax.dynamic_slice_in_dim(tokens, start, width, axis=1)
    inputs: dict[str, Any] = {"tokens": context} if source is None else {"source": source, "target": context}
    logits = jax.lax.dynamic_index_in_dim(model(**inputs), length - start - 1, axis=1, keepdims=False)
    token = greedy_tokens(logits) if uniforms is None else sampled_tokens(logits, uniforms)
    if config.eos_id is not None:
        token = jnp.where(ended, config.eos_id if config.pad_id is None else config.pad_id, token)
        ended = ended | (token == config.eos_id)
    return jax.lax.dynamic_update_index_in_dim(tokens, token, length, axis=1), ended


def generate(
    model: Transformer,
    prompt: Int[Array, "batch length"],
    max_new_tokens: int,
    *,
    source: Int[Array, "batch keys"] | None = None,
    uniforms: Float[Array, "batch new_tokens"] | None = None,
) -> Int[Array, "batch total_length"]:
    """`prompt` and what the model adds to it: greedily, or drawn by `uniforms`.

    The model sees the last `max_length` tokens (document 001). Where there is an `eos_id`, a row that reached it is
    filled with `pad_id`, and generation ends with the last row (document 004).
    """
    batch, length = prompt.shape
    tokens = jnp.pad(prompt, ((0, 0), (0, max_new_tokens)))
    ended = jnp.zeros(batch, bool)
    # A width that does not change lets one program serve every step: what is not yet written is shown, too, and not
    # seen, for it lies in the future. A mask that hides nothing (walkthrough's) needs a program for each length.
    hides = hidden_score(model.config) < LEAVES_OUT
    for step in range(max_new_tokens):
        width = min(model.config.max_length, tokens.shape[1] if hides else length)
        drawn = None if uniforms is None else uniforms[:, step]
        tokens, ended = _step(model, tokens, jnp.asarray(length), ended, source, drawn, width=width)
        length += 1
        if ended.all():
            break
    return tokens[:, :length]
