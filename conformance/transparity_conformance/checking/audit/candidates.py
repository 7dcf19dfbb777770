"""Other values of each field of a configuration, one change at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from transparity.config import FIELD_TYPES, TransformerConfig, full_attention_every
from transparity.errors import ConfigError
from transparity_conformance.oracle.reach.features import OPERATIONS, is_choice

NUMBERS: dict[type, tuple[str, ...]] = {
    float: ("*10", "/10", "*2", "/2", "+1", "-1", "off"),
    int: ("+1", "*2", "/2", "-1", "off"),
}
"""Operations on a number, in the order in which they are tried."""


def candidates(config: TransformerConfig) -> Iterator[list[TransformerConfig]]:
    """Yield the configurations that make each change, any of which will do; none twice."""
    fields = dataclasses.fields(config)
    alone = [[{field.name: value} for value in values] for field in fields for values in _values(config, field)]
    seen: set[TransformerConfig | None] = {None}
    for alternatives in [*alone, *([changes] for changes in _together(config))]:
        made = [_changed(config, changes) for changes in alternatives]
        new = [each for each in dict.fromkeys(made) if each is not None and each not in seen]
        seen.update(new)
        if new:
            yield new


def _values(config: TransformerConfig, field: dataclasses.Field[Any]) -> Iterator[list[Any]]:
    """The values of each change of a field: every other choice is a change of its own, a number has one."""
    value, kind = getattr(config, field.name), FIELD_TYPES[field.name]
    if is_choice(field.name):
        yield from ([choice] for choice in get_args(kind) if choice != value)
    elif kind is bool:
        yield [not value]
    elif isinstance(value, int | float):
        tried = [each for each in field.metadata.get("tried", ()) if each is not None]
        yield [OPERATIONS[name](value) for name in NUMBERS[type(value)]] + tried
    elif value is None:
        yield [each for each in reversed(field.metadata.get("tried", ())) if each is not None]


def _together(config: TransformerConfig) -> Iterator[dict[str, Any]]:
    """Changes of several fields of ours that are one of config.json."""
    yield {"embed_dim": 2 * config.embed_dim, "feed_forward_dim": 2 * config.feed_forward_dim}
    yield {"rotary_scaling": "linear", "rotary_factor": 3.0}
    # the fastest angle makes 13 / 2π turns in the original length: between the two, so that each of them shows
    llama3 = {"rotary_factor": 3.0, "rotary_low_frequency": 1.5, "rotary_high_frequency": 2.5}
    yield {"rotary_scaling": "llama3", **llama3, "rotary_original_length": 13}
    yield {"attention_head_dim": config.head_dim + 2}
    yield {"num_key_value_heads": 1 if config.key_value_heads > 1 else config.num_heads}
    yield {"sliding_window": 3, **full_attention_every(2)}
    yield {"sliding_window": None, "layer_types": (), "layer_overrides": {}}
    yield {"layer_types": config.layer_types[::-1]}
    attention = dict.fromkeys(("qkv_bias", "output_bias"), not config.qkv_bias)
    yield attention
    yield {**attention, "feed_forward_bias": not config.feed_forward_bias}
    yield {"tied_head": not config.tied_head, "head_scale": "none" if config.tied_head else "embed_dim"}
    yield {"norm_position": "post", "final_norm": False}
    if config.source_vocab_size is not None and config.source_vocab_size == config.target_vocab_size:
        yield dict.fromkeys(("target_vocab_size", "source_vocab_size"), config.vocab_size + 1)
    if config.pad_id is not None:
        counted = {"position_offset": config.position_offset + 3, "max_length": config.max_length - 3}
        yield {"pad_id": config.pad_id + 3, **counted}
    for activation in get_args(FIELD_TYPES["activation"]):
        yield {"gated": not config.gated, "activation": activation}


def _changed(config: TransformerConfig, changes: Mapping[str, Any]) -> TransformerConfig | None:
    """The configuration with `changes`; None if it is impossible, or the same."""
    try:
        other = dataclasses.replace(config, **changes)
    except ConfigError:
        return None
    return None if other == config else other
