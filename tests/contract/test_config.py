import contextlib
import dataclasses
import json
from collections.abc import Iterator
from typing import Any, get_args

from hypothesis import HealthCheck, given, settings
from tests.helpers import table
from tests.looping import for_each

from transparity import TransformerConfig, departures, preset
from transparity.config import FIELD_TYPES
from transparity.errors import ConfigError
from transparity.presets import _rows as rows_of_departures
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


def test_what_a_document_does_by_mistake_is_said() -> None:
    hides = "masked scores are replaced by -1e-20, so masked keys may keep a weight (paper: −∞, §3.2.3)"
    scaled = "scores are divided by √embed_dim = 22.6, not by √head_dim = 8 (§3.2.1)"
    said = {name: departures(preset(name)) for name in ("walkthrough", "translation")}
    assert hides in said["walkthrough"] and scaled in said["translation"] and scaled not in said["walkthrough"]


PAPER = dataclasses.replace(preset("pre-norm"), norm="layer", norm_position="post", memory_norm=False, final_norm=False)


FIELDS = {field.name: field for field in dataclasses.fields(TransformerConfig)}


def other_values() -> Iterator[tuple[str, Any]]:
    """Yield each field that has a row in departures.toml, with each of its values that differ from the paper's
    value."""
    for row in (row for row in rows_of_departures() if row["of"] in FIELD_TYPES):
        name, kind = row["of"], FIELD_TYPES[row["of"]]
        tried = (False, True) if kind is bool else FIELDS[name].metadata.get("tried") or get_args(kind)
        right = {None, getattr(PAPER, name), *row.get("paper", ())}
        yield from ((name, value) for value in tried if value not in right and row.get("is", value) == value)
    yield from ((name, value) for name, values in table(__file__, "fields.toml")["departs"].items() for value in values)


def is_valid(field: str, value: Any) -> bool:
    with contextlib.suppress(ConfigError):
        return dataclasses.replace(PAPER, **{field: value}) is not None
    return False


@for_each(("field", "value"), [each for each in other_values() if is_valid(*each)])
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
