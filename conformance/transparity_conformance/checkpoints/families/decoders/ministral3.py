"""Ministral 3 (Mistral AI 2025): Mistral with a temperature of queries that grows with their positions."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from transparity.config import TransformerConfig
from transparity.errors import is_number
from transparity_conformance.checkpoints.families import llama
from transparity_conformance.checkpoints.fields import Fields, whole, wrong
from transparity_conformance.checkpoints.reading import CheckpointError

BETA, LENGTH = "llama_4_scaling_beta", "original_max_position_embeddings"

OF_ROTARY: dict[str, Any] = {"rope_type": "yarn", "rope_theta": 1_000_000.0, "factor": 16.0, LENGTH: 16_384}
OF_ROTARY |= {"beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, BETA: 0.1}
"""The `rope_parameters` of a file without any."""


def _configure(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    given = OF_ROTARY if fields["rope_parameters"] is None else fields["rope_parameters"]
    if not isinstance(given, dict):
        raise wrong("rope_parameters", given, "an object")
    if missing := [name for name in (BETA, LENGTH) if name not in given]:
        raise CheckpointError(f"rope_parameters has no {missing[0]}; expected it, for queries are multiplied by it.")
    if not is_number(given[BETA]) or not given[BETA] >= 0:
        raise wrong(f"rope_parameters.{BETA}", given[BETA], "a number, at least 0")
    rotary = {name: value for name, value in given.items() if name not in (BETA, "max_position_embeddings")}
    found = llama.MISTRAL.configure({**fields, "rope_parameters": rotary}, names)
    return found | {"query_temperature": given[BETA], "query_temperature_length": whole(given, LENGTH)}


def _write(config: TransformerConfig) -> dict[str, Any]:
    fields = llama.MISTRAL.write(config)
    own: dict[str, Any] = {BETA: config.query_temperature, LENGTH: config.query_temperature_length}
    return {**fields, "rope_parameters": fields["rope_parameters"] | own, "rope_scaling": None}


MINISTRAL3 = dataclasses.replace(
    llama.MISTRAL,
    configure=_configure,
    write=_write,
    model="Ministral3ForCausalLM",
    defaults={**llama.MISTRAL.defaults}
    | {"max_position_embeddings": 262_144, "head_dim": 128, "rms_norm_eps": 1e-5, "sliding_window": None}
    | {"rope_theta": 1_000_000.0, "rope_parameters": None},
)

FAMILIES = {"ministral3": MINISTRAL3}
