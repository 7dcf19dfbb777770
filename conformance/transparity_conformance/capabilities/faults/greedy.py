"""Mistakes in greedy generation: what the model is shown, where the next token is read, and when it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.transformer import transformer

Choose = Callable[[np.ndarray, int], np.ndarray]
"""The tokens (batch,) that logits (batch, vocab) say at a step."""

Crop = Callable[[np.ndarray, int], np.ndarray]
"""What the model sees of the tokens (batch, length), at most `max_length` of them."""


def _likeliest(logits: np.ndarray, step: int) -> np.ndarray:
    return logits.argmax(axis=-1)


def _last(tokens: np.ndarray, most: int) -> np.ndarray:
    return tokens[:, -most:]


def _first(tokens: np.ndarray, most: int) -> np.ndarray:
    return tokens[:, :most]


def _one_less(tokens: np.ndarray, most: int) -> np.ndarray:
    return tokens[:, -max(1, most - 1) :]


@dataclass(frozen=True)
class Generation:
    """How tokens are generated: as the reference does, but for what is said here."""

    id: str = ""
    says: str = ""
    crop: Crop = _last
    read: int = -1
    """The position whose logits say the next token."""
    ends: str = "all rows"
    """What ends the generation: `all rows`, `any row`, or `nothing`."""
    fills: bool = True
    """Whether a row that has ended is filled with padding."""
    keeps_end: bool = True
    """Whether the end token stands in what is returned."""
    keeps_prompt: bool = True


GENERATIONS = (
    Generation("generation-crop", "of a long context the first max_length tokens are read, not the last", crop=_first),
    Generation("generation-crop", "of a long context max_length − 1 tokens are read", crop=_one_less),
    Generation("generation-stop", "the end token is ignored: rows go on", ends="nothing", fills=False),
    Generation("generation-stop", "rows go on behind their end token until all have ended", fills=False),
    Generation("generation-stop", "generation ends with the first row that ends, not the last", ends="any row"),
    Generation("generation-stop", "the end token is dropped from what is returned", keeps_end=False),
    Generation("generation-prompt", "the prompt is left out of what is returned", keeps_prompt=False),
    Generation("generation-position", "the next token is read from the logits before the last ones", read=-2),
    Generation("generation-position", "the next token is read from the first position's logits", read=0),
)
"""The likeliest first."""


def generated(
    config: TransformerConfig,
    parameters: Arrays,
    prompt: np.ndarray,
    steps: int,
    source: np.ndarray | None,
    how: Generation,
    choose: Choose = _likeliest,
) -> np.ndarray:
    """What a port that generates so would return; tokens (batch, length)."""
    tokens, ended = prompt, np.zeros(len(prompt), bool)
    pad_id = config.pad_id if config.pad_id is not None else (config.eos_id or 0)
    for step in range(steps):
        context = how.crop(tokens, config.max_length)
        inputs: dict[str, Any] = {"tokens": context} if source is None else {"source": source, "target": context}
        logits = transformer(config, parameters, **inputs)
        token = choose(logits[:, max(how.read, -logits.shape[1])], step)
        if config.eos_id is not None:
            token = np.where(ended & how.fills, pad_id, token)
            ended = ended | (token == config.eos_id)
        tokens = np.concatenate([tokens, token[:, None]], axis=1)
        if (ended.all() and how.ends == "all rows") or (ended.any() and how.ends == "any row"):
            break
    if not how.keeps_end and config.eos_id is not None:
        new = tokens[:, prompt.shape[1] :]
        tokens = np.concatenate([prompt, np.where(new == config.eos_id, pad_id, new)], axis=1)
    return tokens if how.keeps_prompt else tokens[:, prompt.shape[1] :]
