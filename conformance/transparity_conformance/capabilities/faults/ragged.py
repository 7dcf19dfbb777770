"""Mistakes in generation from prompts of different lengths: where a shorter one goes on, what it sees, when it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.decoding import next_logits
from transparity_numpy.generation import with_room

Read = Callable[[TransformerConfig, Arrays, np.ndarray, np.ndarray, np.ndarray | None], np.ndarray]
"""The logits (batch, vocab) of what follows the first `lengths` of the tokens; and there may be a source."""


def _behind_each(
    config: TransformerConfig, parameters: Arrays, tokens: np.ndarray, lengths: np.ndarray, source: np.ndarray | None
) -> np.ndarray:
    return next_logits(config, parameters, tokens, lengths, None, source, 0)


def _behind_the_longest(
    config: TransformerConfig, parameters: Arrays, tokens: np.ndarray, lengths: np.ndarray, source: np.ndarray | None
) -> np.ndarray:
    return _behind_each(config, parameters, tokens, np.full_like(lengths, lengths.max()), source)


def _filled_on_the_left(
    config: TransformerConfig, parameters: Arrays, tokens: np.ndarray, lengths: np.ndarray, source: np.ndarray | None
) -> np.ndarray:
    longest = lengths.max()
    at = np.arange(longest) - (longest - lengths[:, None])
    moved = np.where(at < 0, config.filling_id, np.take_along_axis(tokens, np.maximum(at, 0), axis=1))
    return _behind_the_longest(config, parameters, moved, lengths, source)


@dataclass(frozen=True)
class Ragged:
    """How prompts of different lengths are gone on with: as the reference does, but for what is said here."""

    id: str = ""
    says: str = ""
    read: Read = _behind_each
    minds_lengths: bool = True
    """Whether a shorter prompt goes on where it ends, and not where the longest does."""
    ends_together: bool = False
    """Whether all rows go on to one length."""


RAGGEDS = (
    Ragged("ragged-end", "a shorter prompt goes on behind what fills it up", minds_lengths=False),
    Ragged("ragged-read", "the next token of every row is read behind the longest row", _behind_the_longest),
    Ragged(
        "ragged-position", "shorter prompts are filled up on the left, which moves their positions", _filled_on_the_left
    ),
    Ragged("ragged-steps", "shorter rows go on to the end of the longest, by more tokens", ends_together=True),
)
"""The likeliest first."""


def continued(
    config: TransformerConfig,
    parameters: Arrays,
    prompt: np.ndarray,
    lengths: np.ndarray,
    steps: int,
    source: np.ndarray | None,
    how: Ragged,
) -> np.ndarray:
    """What a port that goes on so would return; tokens (batch, length)."""
    longest, rows = prompt.shape[1], np.arange(len(prompt))
    tokens, at = with_room(config, prompt, lengths if how.minds_lengths else None, steps)
    width, ended = tokens.shape[1], np.zeros(len(prompt), bool)
    for _ in range(steps + (longest - at.min() if how.ends_together else 0)):
        token = how.read(config, parameters, tokens, at, source).argmax(axis=-1)
        token = np.where(ended, config.filling_id, token)
        ended = ended | (token == config.ending_id)
        going = at < width
        tokens[rows[going], at[going]] = token[going]
        at = np.minimum(at + 1, width)
        if ended.all():
            break
    return tokens[:, : at.max()]
