"""Faults in generation: the tokens that the model reads, the position of the next one, and the end of a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.sampling import Sampling
from transparity_conformance.capabilities.faults import simulated
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.decoding.generation import allocate, filter_logits, sampled_tokens
from transparity_numpy.decoding.steps import next_logits
from transparity_numpy.transformer import transformer

Draw = Callable[[np.ndarray, np.ndarray, Sampling], np.ndarray]
"""The tokens (batch,) drawn from logits (batch, vocab) by uniform numbers (batch,)."""


@dataclass(frozen=True)
class Context:
    """The tokens (batch, length) so far, of which each row has a number of its own."""

    config: TransformerConfig
    parameters: Arrays
    tokens: np.ndarray
    lengths: np.ndarray
    source: np.ndarray | None


Read = Callable[[Context], np.ndarray]
"""The logits (batch, vocab) for the next token of each row."""


def read_each(context: Context) -> np.ndarray:
    """Read every row after its own last token, as the reference does."""
    given = (context.config, context.parameters, context.tokens, context.lengths)
    return next_logits(*given, None, context.source, 0)


def _read_longest(context: Context) -> np.ndarray:
    return read_each(replace(context, lengths=np.full_like(context.lengths, context.lengths.max())))


def _pad_left(context: Context) -> np.ndarray:
    tokens, longest = context.tokens, context.lengths.max()
    columns = np.arange(longest) - (longest - context.lengths[:, None])
    found = np.take_along_axis(tokens, np.maximum(columns, 0), axis=1)
    return _read_longest(replace(context, tokens=np.where(columns < 0, context.config.filling_id, found)))


def _cropped(crop: Callable[[np.ndarray, int], np.ndarray], position: int = -1) -> Read:
    """Run the model on the tokens that `crop` leaves, and read the logits at `position`; rows have one length."""

    def read(context: Context) -> np.ndarray:
        left = crop(context.tokens[:, : context.lengths.max()], context.config.max_length)
        source = context.source
        inputs: dict[str, Any] = {"tokens": left} if source is None else {"source": source, "target": left}
        logits = transformer(context.config, context.parameters, **inputs)
        return logits[:, max(position, -logits.shape[1])]

    return read


def _last(tokens: np.ndarray, most: int) -> np.ndarray:
    return tokens[:, -most:]


def draw(logits: np.ndarray, uniforms: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Draw as the reference does."""
    return sampled_tokens(filter_logits(logits, sampling), uniforms)


@dataclass(frozen=True)
class DecodingRules:
    """The rules of generation: the reference's by default."""

    read: Read = read_each
    draw: Draw = draw
    ends: str = "all rows"
    """The end of the generation: `all rows` have ended, `any row` has, or `nothing` but the number of steps."""
    fills: bool = True
    """Whether a row that has ended is filled with padding."""
    keeps_end: bool = True
    """Whether the result contains the end token."""
    keeps_prompt: bool = True
    """Whether the result begins with the prompt."""
    uses_lengths: bool = True
    """Whether a shorter prompt continues at its own end, not at the longest prompt's."""
    ends_together: bool = False
    """Whether all rows continue to one length."""

    def choose(self, logits: np.ndarray, uniforms: np.ndarray | None, sampling: Sampling | None) -> np.ndarray:
        """The next tokens (batch,), given logits (batch, vocab)."""
        if uniforms is None:
            return logits.argmax(axis=-1)
        return self.draw(logits.astype(np.float64), uniforms, sampling or Sampling())

    def is_over(self, ended: np.ndarray) -> bool:
        """Return whether generation stops, given the rows (batch,) that have ended."""
        return bool((ended.all() and self.ends == "all rows") or (ended.any() and self.ends == "any row"))


def simulate_generation(
    config: TransformerConfig,
    parameters: Arrays,
    prompt: np.ndarray,
    steps: int,
    *,
    source: np.ndarray | None = None,
    lengths: np.ndarray | None = None,
    uniforms: np.ndarray | None = None,
    sampling: Sampling | None = None,
    **options: Any,
) -> np.ndarray:
    """Generate tokens (batch, length) by the `DecodingRules` that `options` give."""
    rules = DecodingRules(**options)
    tokens, begins = allocate(config, prompt, lengths if rules.uses_lengths else None, steps)
    width, rows, ended, following = tokens.shape[1], np.arange(len(prompt)), np.zeros(len(prompt), bool), begins
    for step in range(steps + (prompt.shape[1] - begins.min() if rules.ends_together else 0)):
        logits = rules.read(Context(config, parameters, tokens, following, source))
        token = rules.choose(logits, None if uniforms is None else uniforms[:, step], sampling)
        token = np.where(ended & rules.fills, config.filling_id, token)
        ended = ended | (token == config.ending_id)
        going = following < width
        tokens[rows[going], following[going]] = token[going]
        following = np.minimum(following + 1, width)
        if rules.is_over(ended):
            break
    if not rules.keeps_end:
        new = np.arange(width) >= begins[:, None]
        tokens = np.where(new & (tokens == config.ending_id), config.filling_id, tokens)
    return tokens[:, 0 if rules.keeps_prompt else prompt.shape[1] : following.max()]


_FIRST = "a long context is cropped to its first max_length tokens, not to its last"
_FEWER = "a long context is cropped to max_length − 1 tokens"

GREEDY_FAULTS = simulated(
    simulate_generation,
    ("generation-crop", _FIRST, {"read": _cropped(lambda tokens, most: tokens[:, :most])}),
    ("generation-crop", _FEWER, {"read": _cropped(lambda tokens, most: tokens[:, -max(1, most - 1) :])}),
    ("generation-stop", "the end token is ignored: rows continue", {"ends": "nothing", "fills": False}),
    ("generation-stop", "rows continue after their end token until all have ended", {"fills": False}),
    ("generation-stop", "generation ends with the first row that ends, not the last", {"ends": "any row"}),
    ("generation-stop", "the end token is missing from the result", {"keeps_end": False}),
    ("generation-prompt", "the prompt is missing from the result", {"keeps_prompt": False}),
    ("generation-position", "the next token is read from the second to last logits", {"read": _cropped(_last, -2)}),
    ("generation-position", "the next token is read from the first position's logits", {"read": _cropped(_last, 0)}),
)

_TOGETHER = "shorter rows continue to the end of the longest, with more new tokens"

RAGGED_FAULTS = simulated(
    simulate_generation,
    ("ragged-end", "a shorter prompt is continued after its padding", {"uses_lengths": False}),
    ("ragged-read", "the next token of every row is read at the end of the longest row", {"read": _read_longest}),
    ("ragged-position", "shorter prompts are padded on the left, which shifts their positions", {"read": _pad_left}),
    ("ragged-steps", _TOGETHER, {"ends_together": True}),
)
