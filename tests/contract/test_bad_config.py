"""Test that the error for an invalid configuration is one sentence: the field, its value, and what is expected."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, get_origin

import numpy as np
import pytest
from tests.looping import for_each

from transparity import TransformerConfig, preset
from transparity.config import FIELD_TYPES
from transparity.config.earlier import FIELDS
from transparity.errors import ConfigError
from transparity_conformance.checkpoints.examples import example_config

CONFIG = preset("pre-norm").resized()
WHOLE_NUMBERS = [name for name, kind in FIELD_TYPES.items() if kind is int or kind == int | None]
CHOICES = [name for name, kind in FIELD_TYPES.items() if get_origin(kind) is Literal]
SWITCHES = [name for name, kind in FIELD_TYPES.items() if kind is bool]
NUMBERS = [name for name, kind in FIELD_TYPES.items() if kind is float]
OPTIONAL = [name for name, kind in FIELD_TYPES.items() if kind == int | None and not name.endswith("_id")]
LISTS = [name for name, kind in FIELD_TYPES.items() if kind == tuple[float, ...]]
CAPS = [name for name, kind in FIELD_TYPES.items() if kind == float | None]


def test_every_field_is_of_a_kind_that_is_tested() -> None:
    tested = {*WHOLE_NUMBERS, *CHOICES, *SWITCHES, *NUMBERS, *CAPS, "dropout_at", "layer_types", "layer_overrides"}
    assert tested | set(LISTS) == set(FIELD_TYPES)


def refusal(**fields: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        dataclasses.replace(CONFIG, **fields)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


NONE_OF: tuple[tuple[list[str], list[Any], str], ...] = (
    (WHOLE_NUMBERS, [-1, 1.5, "8", True, [8], math.nan, 10**30, np.ones((2, 2))], ""),
    (["max_length", "embed_dim", "num_heads", "image_channels", "source_vocab_size"], [0], "0; it should be between 1"),
    (OPTIONAL, [0, -1, 1.5, "8", True], ""),
    (LISTS, [3.0, "1", [0.0], [-1.0], ["1"], [math.inf], [math.nan], [True], [[1.0]]], ""),
    (CAPS, [0.0, -1.0, "1", math.inf, math.nan, True], "a finite number > 0."),
    (CHOICES, ["no such choice", None, 1, ["layer"], np.ones((2, 2))], ""),
    (SWITCHES, [None, 1, "yes", [True]], "it should be true or false."),
    (NUMBERS, [None, "0.1", math.nan, math.inf, True, [0.1]], ""),
    (["layer_types"], ["full", [1], [""], [None], {"a": 1}, 3], ""),
)
"""Fields of one type, values that are invalid for each of these fields, and a part of the message."""


@for_each(
    ("field", "value", "says"),
    [(field, value, says) for fields, values, says in NONE_OF for field in fields for value in values],
)
def test_a_value_that_a_field_cannot_have(field: str, value: Any, says: str) -> None:
    message = refusal(**{field: value})
    assert message.startswith(f"{field} is ") and says in message
    assert field not in CHOICES or getattr(CONFIG, field) in message, "the message must list the choices"


@for_each(
    ("fields", "says"),
    [
        ({"norm_eps": -1e-5}, "norm_eps is -1e-05; it should be a finite number ≥ 0."),
        ({"norm_momentum": 1.1}, "norm_momentum is 1.1; it should be between 0 and 1."),
        ({"mask_value": 1}, "mask_value is 1.0; it should be 0 or less (−inf allowed)."),
        ({"dropout": 1}, "dropout is 1.0; it should be at least 0 and less than 1."),
        ({"embed_dim": 26}, "embed_dim is 26, which 3 heads (num_heads) do not divide evenly; 24 would be right."),
        ({"embed_dim": 25, "num_heads": 5}, "embed_dim is 25, but sinusoidal positions pair each sine with a cosine"),
        ({"num_key_value_heads": 2}, "num_key_value_heads is 2, which does not divide the 3 heads (num_heads) evenly"),
        ({"projection": "shared-per-head", "num_key_value_heads": 1}, "projection is 'shared-per-head', which splits"),
        ({"projection": "shared-per-head", "attention_head_dim": 4}, "projection is 'shared-per-head', which splits"),
        ({"positions": "rotary", "attention_head_dim": 5}, "head_dim is 5, but rotary positions rotate pairs"),
        ({"positions": "rotary", "rotary_dim": 3}, "rotary_dim is 3, but rotary positions rotate pairs of a head's 8"),
        (
            {"positions": "rotary", "rotary_dim": 10},
            "rotary_dim is 10, but rotary positions rotate pairs of a head's 8",
        ),
        (
            {"position_count": "visible"},
            "position_offset is 0; expected at least 1, because with position_count 'visible', padding has",
        ),
        ({"rotary_slow_turns": 4.0}, "rotary_slow_turns is 4.0; it should be less than rotary_fast_turns"),
        (
            {"positions": "rotary", "rotary_scaling": "yarn", "rope_theta": 1},
            "rope_theta is 1, but rotary_scaling 'yarn'",
        ),
        (
            {"positions": "rotary", "rotary_scaling": "longrope"},
            "rotary_short_factors has 0 numbers, but rotary_scaling",
        ),
        ({"positions": "rotary", "relative_bias": True}, "relative_bias is true and positions is 'rotary';"),
        ({"positions": "relative", "relative_buckets": 3}, "relative_buckets is 3 and relative_max_distance is 128;"),
        (
            {"positions": "relative", "relative_max_distance": 8},
            "relative_buckets is 32 and relative_max_distance is 8;",
        ),
        ({"shared_embedding": True}, "shared_embedding is true, source_vocab_size is 37 and target_vocab_size is 31"),
        ({"num_token_types": 2}, "num_token_types is 2, which only an encoder-only model has"),
        ({"head": "hidden"}, "head is 'hidden', which only an encoder-only model has"),
        ({"head": "classes"}, "head is 'classes', which needs a single stack, but architecture is 'encoder-decoder'"),
        (
            {"attention_norm": False, "norm_position": "post-branch"},
            "attention_norm is false, norm_position is 'post-branch' and branches is 'sequential'; a layer",
        ),
        (
            {"head_transform": True, "norm": "batch"},
            "head_transform is true, head is 'logits' and norm is 'batch'; the transform",
        ),
        ({"source_vocab_size": None}, "source_vocab_size is missing: the architecture 'encoder-decoder' needs it."),
        ({"target_vocab_size": None}, "target_vocab_size is missing: the architecture 'encoder-decoder' needs it."),
        ({"pad_id": 31}, "pad_id is 31, outside the vocabulary of 31 tokens."),
        ({"bos_id": 99}, "bos_id is 99, outside the vocabulary of 31 tokens."),
        ({"eos_id": -1}, "eos_id is -1; it should be between 0 and"),
    ],
)
def test_fields_that_do_not_go_together_or_are_out_of_range(fields: dict[str, Any], says: str) -> None:
    assert refusal(**fields).startswith(says)


def test_the_quoted_value_is_short() -> None:
    assert len(refusal(norm="x" * 10_000)) < 150


@for_each(
    ("text", "says"),
    [
        ("", "The configuration is not JSON"),
        ("{", "The configuration is not JSON"),
        ("[" * 100_000, "The configuration is not JSON"),
        ("[]", "The configuration is of type list; expected an object of fields."),
        ("{}", "architecture is missing; it should be one of encoder-decoder, decoder, encoder."),
        ('{"architecture": "decoder", "heads": 3}', "A configuration has no field 'heads'; "),
        ('{"architecture": "decoder", "target_vocab_size": NaN}', "target_vocab_size is nan"),
        (
            '{"architecture": "decoder", "architecture": "encoder"}',
            "The configuration is not JSON: a field is repeated",
        ),
    ],
)
def test_json_that_is_no_configuration(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TransformerConfig.from_json(text)
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)


@for_each("name", ["no-such-preset", None, ["walkthrough"]])
def test_a_preset_that_does_not_exist(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"^There is no preset .*; the presets are walkthrough, .*\.$"):
        preset(name)


@for_each("value", ["x", None, 0, 2.5])
def test_a_size_that_resized_cannot_use(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^embed_dim is "):
        CONFIG.resized(embed_dim=value)
    with pytest.raises(ConfigError, match=r"^resized\(\) was given heads, which no configuration has\.$"):
        CONFIG.resized(heads=value)


def test_a_decoder_has_all_its_relative_buckets_for_one_direction() -> None:
    fields: dict[str, Any] = {"positions": "relative", "relative_buckets": 32}
    says = refusal(**fields, relative_max_distance=16, architecture="encoder-decoder")
    assert says.endswith("and a distance greater than 16.")
    assert dataclasses.replace(CONFIG, **fields, relative_max_distance=17).relative_max_distance == 17


def test_a_lone_stack_shares_no_embedding() -> None:
    decoder = dataclasses.replace(CONFIG, architecture="decoder", num_encoder_layers=0)
    with pytest.raises(ConfigError, match=r"^shared_embedding is true, .*an encoder-decoder"):
        dataclasses.replace(decoder, source_vocab_size=7, target_vocab_size=7, shared_embedding=True)


@for_each(
    ("overrides", "says"),
    [
        ("full", "layer_overrides is 'full'; it should be {kind: {field: value}}"),
        ({"full": 3}, "layer_overrides is {'full': 3}; it should be {kind: {field: value}}"),
        (
            {"full": {"norm": "rms"}},
            "layer_overrides has 'norm' for layers of the kind 'full'; expected a field in which layers may differ",
        ),
        ({"other": {"rope_theta": 5.0}}, "layer_overrides has the kind 'other', which is not in layer_types (full"),
        ({"full": {"rope_theta": -1}}, "layer_overrides for layers of the kind 'full' is not valid: rope_theta is -1"),
        (
            {"full": {"positions": "alibi"}},
            "layer_overrides changes positions from 'sinusoidal' to 'alibi' for layers of the kind 'full'",
        ),
        ({"full": {"sliding_window": 3}}, "layer_overrides has a sliding_window of 3 for layers of"),
    ],
)
def test_layers_that_cannot_differ_like_this(overrides: Any, says: str) -> None:
    assert refusal(layer_types=["full"], layer_overrides=overrides).startswith(says)


def test_fields_of_earlier_versions_are_read() -> None:
    config = TransformerConfig.from_dict(example_config("deepseek_v3").as_dict() | {"norm_position": "sandwich"})
    now = config.as_dict()
    earlier = {current: name for name, current in FIELDS.items()}
    old = {earlier.get(name, name): value for name, value in now.items()} | {"norm_position": "both"}
    assert len({*old} - {*now}) == len(FIELDS)
    assert TransformerConfig.from_dict(old) == config
    with pytest.raises(ConfigError, match="has no field 'query_rank'"):
        TransformerConfig.from_dict(now | {"query_rank": 3})
