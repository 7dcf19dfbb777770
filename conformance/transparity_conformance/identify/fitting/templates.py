"""Templates: the presets of documents, the imported families, and the model of the original paper."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping
from typing import Any

from transparity.config import FIELD_TYPES, TransformerConfig
from transparity.errors import ConfigError
from transparity.parameters import parameter_shapes
from transparity.presets import PRESETS
from transparity_conformance.checkpoints.examples import EXAMPLES, example_config

OF_KINDS = frozenset(
    ["bos_id", "eos_id", "kv_lora_rank", "num_experts", "pad_id", "position_offset", "q_lora_rank", "router_groups"]
) | {"query_temperature_first", "query_temperature_length", "shared_expert_dim", "sliding_window", "topk_groups"}
"""Fields with whole numbers that are not sizes: models with different numbers are of different kinds."""

WHOLE = {name for name, kind in FIELD_TYPES.items() if kind in (int, int | None)}
SIZES = WHOLE - OF_KINDS - {"value_head_dim"} | {"rotary_short_factors", "rotary_long_factors"}
"""Fields that are sizes of a model, such as `embed_dim`. Models of one family may differ in these fields."""

NOT_RUN = {"dropout", "dropout_at", "norm_momentum", "bos_id", "eos_id"}
"""Fields that a forward pass in evaluation mode does not read."""

VANILLA = dataclasses.replace(
    PRESETS["translation"].config,
    attention_scale="head_dim",
    mask_order="after-scale",
    mask_value=-float("inf"),
    target_mask="causal-and-padding",
    positions="sinusoidal",
    embedding_scale="embed_dim",
    shared_embedding=True,
    tied_head=True,
    head_bias=False,
    dropout=0.1,
    dropout_at=("embedding", "attention.output", "feed_forward.output"),
)


@functools.cache
def templates() -> Mapping[str, TransformerConfig]:
    """Return every template by name; a family's template is its small example model."""
    families = {name: example_config(name) for name in EXAMPLES}
    return {"vanilla": VANILLA, **families, **{name: each.config for name, each in PRESETS.items()}}


def differences(config: TransformerConfig, template: TransformerConfig) -> dict[str, tuple[object, object]]:
    """Return the fields, except sizes, that differ, as pairs (template's value, own value).

    The number of experts counts as a size if both have experts.
    """
    names = [name for name in FIELD_TYPES if name not in SIZES | NOT_RUN]
    pairs = {name: (getattr(template, name), getattr(config, name)) for name in names}
    is_size = all(pairs["num_experts"])
    return {
        name: pair for name, pair in pairs.items() if pair[0] != pair[1] and not (is_size and name == "num_experts")
    }


def nearest(config: TransformerConfig, untold: Collection[str] = ()) -> tuple[str, dict[str, tuple[object, object]]]:
    """Return the nearest template's name and its differences, ignoring undetermined fields."""
    every = {
        name: {field: pair for field, pair in differences(config, template).items() if field not in untold}
        for name, template in templates().items()
    }
    name = min(every, key=lambda each: len(every[each]))
    return name, every[name]


def changed(config: TransformerConfig, fields: Mapping[str, Any]) -> TransformerConfig | None:
    """Replace fields of `config`; return None if this is invalid or changes the parameters or inputs."""
    try:
        made = dataclasses.replace(config, **fields)
    except ConfigError:
        return None
    is_alike = parameter_shapes(made) == parameter_shapes(config) and made.further_inputs == config.further_inputs
    return made if is_alike else None
