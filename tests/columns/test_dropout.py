"""Test where each document applies dropout, and what dropout masks change."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from tests.helpers import table
from tests.looping import for_each

from transparity.config import TransformerConfig
from transparity.errors import ConfigError, InputError
from transparity.presets import preset
from transparity.training import dropout_masks
from transparity_conformance.oracle.backends import REFERENCE, backend, installed
from transparity_conformance.oracle.probes import mixed_inputs, probe_parameters

PLACES = table(__file__, "columns.toml")["dropped"]
BACKENDS = [name for name in installed() if name != REFERENCE]


def small(case: str) -> TransformerConfig:
    return preset(case).resized(num_encoder_layers=1, num_decoder_layers=1)


def masks_of(config: TransformerConfig) -> dict[str, np.ndarray]:
    lengths = dict.fromkeys(config.input_names, 9) | ({"target": 7} if config.has_encoder else {})
    return dropout_masks(config, np.random.default_rng(0), 8, **lengths)


@for_each("case", PLACES)
def test_a_preset_drops_where_its_document_does(case: str) -> None:
    assert sorted(masks_of(small(case))) == PLACES[case]


@for_each("name", BACKENDS)
@for_each(
    ("change", "says"),
    [
        (
            {"logits": np.ones((8, 9, 31), bool)},
            "masks has 'logits'; expected only activations in dropout_at: attention.weights",
        ),
        (
            {"decoder.layers.9.feed_forward.output": np.ones((8, 9, 24), bool)},
            "expected only activations in dropout_at",
        ),
        ({"decoder.layers.0.feed_forward.output": np.ones((8, 9), bool)}, "expected (8, 9, 24) bool"),
        ({"decoder.layers.0.feed_forward.output": np.ones((8, 9, 24))}, "dtype float64; expected"),
    ],
)
def test_a_mask_that_fits_nothing_is_refused(name: str, change: dict[str, np.ndarray], says: str) -> None:
    config = small("notes-lm")
    forward = backend(name)(config, probe_parameters(config))
    tokens: dict[str, Any] = dict(mixed_inputs(config))
    with pytest.raises(InputError) as raised:
        forward.loss_and_gradients(tokens["tokens"], masks=change, **tokens)
    assert says in str(raised.value) and "\n" not in str(raised.value)


@for_each("value", ["embedding", ["scores"], [None], 3, [["embedding"]]])
def test_a_place_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"dropout_at is .*; it should list some of embedding, attention\.weights"):
        dataclasses.replace(small("notes-lm"), dropout_at=value)


def test_places_have_no_order() -> None:
    one = dataclasses.replace(small("notes-lm"), dropout_at=("feed_forward.output", "embedding"))
    other = dataclasses.replace(small("notes-lm"), dropout_at=["embedding", "feed_forward.output"])  # type: ignore[arg-type]
    assert one == other == TransformerConfig.from_json(one.to_json())
