"""Small configurations of the families that people port, which together have every part that no preset has.

Each has the parts of a family (Llama's rotary positions and grouped heads, T5's relative bias and tied head …), not its
sizes: these are different from each other, so that no two axes can be taken for one another. They are rows of
`cases.json`: the fields of a configuration, or those in which it differs from the one that it is `like`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transparity.config import TransformerConfig

_ROWS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

_BASES = ("decoder", "rotary", "translation", "pooled")
"""Rows that others are like, and that are no cases themselves."""

_NO_TEXT = ("vit", "whisper", "clip-text", "clip-vision")
"""Encoders of images and of audio, and CLIP's decoder of texts, whose first end token is pooled."""


def _fields(name: str) -> dict[str, Any]:
    row = dict(_ROWS[name])
    return (_fields(row.pop("like")) if "like" in row else {}) | row


MODELS = {name: TransformerConfig.from_dict(_fields(name)) for name in _ROWS if name not in _BASES}
"""All of them, also those whose inputs are no tokens."""

CASES = {name: config for name, config in MODELS.items() if name not in _NO_TEXT}

IMAGES, AUDIO, CLIP_TEXT, CLIP_IMAGES = (MODELS[name] for name in ("vit", "whisper", "clip-text", "clip-vision"))
