"""Test that configurations round-trip through JSON, are immutable, and can be resized for a probe."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from tests.helpers import table
from tests.looping import for_each

from transparity import PRESETS, TransformerConfig, departures, preset
from transparity.config import FIELD_TYPES
from transparity_conformance.oracle.strategies import configs

AT_ANY_SPEED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Settings without a deadline, because drawing a configuration is slow on a busy machine."""


@AT_ANY_SPEED
@given(configs())
def test_json_gives_back_the_same_configuration_and_is_json_to_everyone(config: TransformerConfig) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    assert TransformerConfig.from_json(config.to_json()) == config
    assert set(json.loads(config.to_json(), parse_constant=refuse)) == set(FIELD_TYPES)


def test_a_configuration_is_frozen_and_a_key() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        preset("translation").embed_dim = 8  # type: ignore[misc]
    assert len({preset(name) for name in PRESETS} | {preset(name) for name in PRESETS}) == len(PRESETS)


@for_each("name", PRESETS)
def test_resized_changes_only_sizes_and_tells_axes_apart(name: str) -> None:
    config, small = preset(name), preset(name).resized()
    sizes = {"source_vocab_size", "target_vocab_size", "max_length", "embed_dim", "num_heads", "feed_forward_dim"}
    sizes |= {"num_encoder_layers", "num_decoder_layers"}
    before, after = config.as_dict(), small.as_dict()
    assert {field for field in before if before[field] != after[field]} <= sizes
    assert small.feed_forward_dim * config.embed_dim == config.feed_forward_dim * small.embed_dim
    assert small.num_heads > 1
    axes = [small.max_length, small.embed_dim, small.num_heads, small.head_dim]
    axes += [small.stack_vocab_size(small.input_stack(stack)) for stack in small.input_names]
    assert len(set(axes)) == len(axes)
    named = config.resized(embed_dim=20, num_heads=5, max_length=7, dropout=0.5)
    assert (named.embed_dim, named.num_heads, named.max_length, named.dropout) == (20, 5, 7, 0.5)


def test_what_a_document_does_by_mistake_is_said() -> None:
    hides = "masked scores are replaced by -1e-20, so masked keys may keep a weight (paper: −∞, §3.2.3)"
    scaled = "scores are divided by √embed_dim = 22.6, not by √head_dim = 8 (§3.2.1)"
    said = {name: departures(preset(name)) for name in ("walkthrough", "translation")}
    assert hides in said["walkthrough"] and scaled in said["translation"] and scaled not in said["walkthrough"]


PAPER = dataclasses.replace(preset("pre-norm"), norm="layer", norm_position="post", memory_norm=False, final_norm=False)


DEPARTS: dict[str, list[Any]] = table(__file__, "fields.toml")["departs"]


@for_each(("field", "value"), [(field, value) for field in DEPARTS for value in DEPARTS[field]])
def test_what_is_otherwise_than_in_the_paper_is_said_once(field: str, value: Any) -> None:
    changes: dict[str, Any] = {field: value}
    assert departures(PAPER) == []
    assert len(departures(dataclasses.replace(PAPER, **changes))) == 1


@for_each(
    ("fields", "scale", "masked"),
    [
        ({}, 1 / 4, -100.0),
        ({"attention_scale": "embed_dim"}, 1 / 8, -100.0),
        ({"attention_scale": "none"}, 1.0, -100.0),
        ({"attention_multiplier": 2.0}, 1 / 2, -100.0),
        ({"mask_order": "before-scale"}, 1 / 4, -25.0),
        ({"mask_order": "before-scale", "attention_scale": "embed_dim"}, 1 / 8, -12.5),
    ],
)
def test_the_scale_of_scores_and_the_masked_score_are_those_of_the_fields(
    fields: dict[str, Any], scale: float, masked: float
) -> None:
    """Compare with constants, because all columns share these numbers and no claim would notice an error."""
    config = TransformerConfig(
        architecture="decoder", target_vocab_size=7, embed_dim=64, num_heads=4, mask_value=-100.0, **fields
    )
    assert config.score_scale == scale
    assert config.masked_score == masked


GEMMA_3 = TransformerConfig(
    architecture="decoder",
    target_vocab_size=9,
    positions="rotary",
    sliding_window=512,
    layer_types=["sliding"] * 5 + ["full"],  # type: ignore[arg-type]
    layer_overrides={"full": {"sliding_window": None, "rope_theta": 1e6, "rotary_scaling": "linear"}},
)


def test_a_layer_sees_its_own_facts_and_no_pattern() -> None:
    seen = [GEMMA_3.for_layer("decoder", i) for i in range(8)]
    assert [own.sliding_window for own in seen] == [512] * 5 + [None] + [512] * 2
    assert [own.rope_theta for own in seen] == [1e4] * 5 + [1e6] + [1e4] * 2
    assert all(own.layer_types == () and own.layer_overrides == {} for own in seen)
    assert seen[0].for_layer("decoder", 5) is seen[0]


def test_kinds_that_differ_in_nothing_are_none_and_a_probe_has_a_layer_of_each_kind() -> None:
    assert dataclasses.replace(GEMMA_3, layer_overrides={}).layer_types == ()
    assert dataclasses.replace(GEMMA_3, layer_overrides={"full": {"rope_theta": 1e4}}).layer_types == ()
    assert dataclasses.replace(GEMMA_3, layer_types=GEMMA_3.layer_types * 2) == GEMMA_3
    small = GEMMA_3.resized()
    assert small.layer_types == ("sliding", "full")
    assert small.for_layer("decoder", 1).rope_theta == 1e6
    assert small.for_layer("decoder", 0).sliding_window == 4
