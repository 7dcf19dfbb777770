"""Granite 3 (Granite Team 2024): Llama with factors of the embeddings, the residuals, the scores and the logits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.families import llama
from transparity_conformance.checkpoints.fields import Fields, number

MULTIPLIERS = ("embedding_multiplier", "residual_multiplier", "attention_multiplier")
"""Fields that are called alike here and there."""


def _configure(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    found = llama.LLAMA.configure(fields, names)
    factors = {name: number(fields, name) for name in MULTIPLIERS}
    return found | factors | {"head_multiplier": 1 / number(fields, "logits_scaling")}


def _write(config: TransformerConfig) -> dict[str, Any]:
    factors = {name: getattr(config, name) for name in MULTIPLIERS}
    return {**llama.LLAMA.write(config), **factors, "logits_scaling": reciprocal(config.head_multiplier)}


def reciprocal(factor: float) -> float:
    """The number of which `factor` is exactly the reciprocal; rounding may leave a neighbour of it."""
    found = 1 / factor
    candidates = (found, math.nextafter(found, 0), math.nextafter(found, math.inf))
    return next((each for each in candidates if 1 / each == factor), found)


GRANITE = dataclasses.replace(
    llama.LLAMA,
    always={**llama.LLAMA.always, "attention_scale": "none"},
    configure=_configure,
    write=_write,
    model="GraniteForCausalLM",
    reads=(*llama.LLAMA.reads, *MULTIPLIERS, "logits_scaling"),
    defaults={**llama.LLAMA.defaults, **dict.fromkeys((*MULTIPLIERS, "logits_scaling"), 1.0)},
)

FAMILIES = {"granite": GRANITE}
