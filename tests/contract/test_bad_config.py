import dataclasses
import math
from typing import Any, Literal, get_origin

import numpy as np
import pytest
from tests.helpers import table
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
REFUSED: dict[str, list[tuple[Any, str]]] = table(__file__, "fields.toml")["refused"]
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


@for_each(("fields", "says"), REFUSED["fields"])
def test_fields_that_do_not_go_together_or_are_out_of_range(fields: dict[str, Any], says: str) -> None:
    given = {name: None if value == "null" else value for name, value in fields.items()}
    assert refusal(**given).startswith(says)


@for_each(("text", "says"), [*REFUSED["texts"], ("[" * 100_000, "The configuration is not JSON")])
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
    with pytest.raises(ConfigError, match=r"^resized\(\) was given heads; expected fields of a configuration\.$"):
        CONFIG.resized(heads=value)


def test_a_decoder_has_all_its_relative_buckets_for_one_direction() -> None:
    fields: dict[str, Any] = {"positions": "relative", "relative_buckets": 32}
    says = refusal(**fields, relative_max_distance=16, architecture="encoder-decoder")
    assert says.endswith("and a distance greater than 16.")
    assert dataclasses.replace(CONFIG, **fields, relative_max_distance=17).relative_max_distance == 17


@for_each(("overrides", "says"), REFUSED["overrides"])
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
