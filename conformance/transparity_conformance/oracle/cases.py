"""Cases (small configurations of model families with parts that no preset has), and inputs of real text. All sizes of a
case differ, so that no two axes can be confused. A row of `cases.json` with `like` lists only the fields that differ
from the row of this name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from transparity.config import TransformerConfig

_ROWS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

_BASES = ("decoder", "rotary", "translation", "pooled")
"""Rows of `cases.json` that only other rows use, by `like`."""

_NO_TEXT = ("vit", "whisper", "clip-text", "clip-vision")
"""Cases without inputs of real text: models of images or audio, and CLIP's text tower, which needs an end token."""


def _fields(name: str) -> dict[str, Any]:
    row = dict(_ROWS[name])
    return (_fields(row.pop("like")) if "like" in row else {}) | row


MODELS = {name: TransformerConfig.from_dict(_fields(name)) for name in _ROWS if name not in _BASES}

CASES = {name: config for name, config in MODELS.items() if name not in _NO_TEXT}

IMAGES, AUDIO, CLIP_IMAGES = (MODELS[name] for name in ("vit", "whisper", "clip-vision"))


# Lewis Carroll, Alice's Adventures in Wonderland (1865), the first sentence.
PASSAGE = (
    "Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: once or "
    "twice she had peeped into the book her sister was reading, but it had no pictures or conversations in it, 'and "
    "what is the use of a book,' thought Alice, 'without pictures or conversations?'"
)

# The first pair is from document 000.
PAIRS = (
    ("I am going to school", "mai school jaa raha hu"),
    ("I am reading a book", "mai kitab padh raha hu"),
    ("she is going to school", "vah school jaa rahi hai"),
    ("she is reading", "vah padh rahi hai"),
    ("we are going home", "ham ghar jaa rahe hai"),
    ("they eat", "ve khate hai"),
    ("I eat an apple at home", "mai ghar par seb khata hu"),
    ("school is near", "school paas hai"),
)

SPECIAL_TOKENS = 3
"""Padding is 0, `<bos>` is 1, and `<eos>` is 2."""


def passage_tokens(vocab_size: int) -> np.ndarray:
    """Return the passage as tokens, one per character, without the rarest characters for a small vocabulary."""
    text = PASSAGE.lower()
    frequent = sorted(set(text), key=lambda character: (-text.count(character), character))
    ids = {character: index for index, character in enumerate(frequent[: vocab_size - SPECIAL_TOKENS], SPECIAL_TOKENS)}
    return np.array([ids[character] for character in text if character in ids])


def pair_tokens(side: int) -> list[list[int]]:
    """Return the sentences of one side (0: source, 1: target) as tokens, one per word. A target starts with `<bos>`,
    and a source ends with `<eos>`."""
    words: dict[str, int] = {}
    sentences = [pair[side].lower().split() for pair in PAIRS]
    for word in (word for sentence in sentences for word in sentence):
        words.setdefault(word, len(words) + SPECIAL_TOKENS)
    tokens = [[words[word] for word in sentence] for sentence in sentences]
    return [[1, *sentence] for sentence in tokens] if side else [[*sentence, 2] for sentence in tokens]


def text_inputs(config: TransformerConfig, source: int, target: int) -> dict[str, np.ndarray]:
    """Return eight rows of text: parts of the passage or, for an encoder-decoder, pairs of sentences."""
    rows = len(PAIRS)
    if "tokens" in config.input_names:
        return {"tokens": np.resize(passage_tokens(config.vocab_size), (rows, source))}
    inputs = {}
    for side, (name, length) in enumerate((("source", source), ("target", target))):
        if name not in config.token_inputs:
            continue
        padded = [[*sentence, *[config.pad_id or 0] * length][:length] for sentence in pair_tokens(side)]
        inputs[name] = np.array(padded)
    return inputs
