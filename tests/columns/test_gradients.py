import dataclasses
from typing import Any

import numpy as np
import pytest
from tests.helpers import table
from tests.looping import for_each

from transparity.config import TransformerConfig
from transparity.errors import ConfigError, InputError
from transparity.parameters import is_learned
from transparity.presets import preset
from transparity.protocol import Backend
from transparity.training import dropout_masks
from transparity_conformance.oracle.backends import REFERENCE, backend, installed
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.differentiation.derivatives import Derivatives, targets_of
from transparity_conformance.oracle.oracle import Arrays, Oracle
from transparity_conformance.oracle.probes import mixed_inputs, probe_parameters
from transparity_conformance.report.comparison import difference, share


@pytest.fixture(params=["pytorch", "flax"])
def differentiating(request: pytest.FixtureRequest) -> Backend:
    return backend(request.param)


def test_training_leaves_the_model_as_it_was(differentiating: Backend) -> None:
    config = dataclasses.replace(preset("notes-lm").resized(num_decoder_layers=1), norm="batch")
    parameters = probe_parameters(config, 1)
    inputs: dict[str, Any] = dict(mixed_inputs(config))
    forward = differentiating(config, parameters, dtype="float32")
    before = np.asarray(forward.logits(**inputs))
    _, gradients = forward.loss_and_gradients(targets_of(config, inputs), training=True, **inputs)
    assert sorted(gradients) == sorted(filter(is_learned, parameters))
    np.testing.assert_array_equal(np.asarray(forward.logits(**inputs)), before)


# the reference runs a forward pass for each parameter, so the model has few parameters
SMALL: dict[str, Any] = {
    "embed_dim": 4,
    "num_decoder_layers": 1,
    "target_vocab_size": 6,
    "recurrent_heads": 2,
    "recurrent_key_heads": 1,
}
SMALL |= {"recurrent_key_dim": 2, "recurrent_value_dim": 3, "convolution_width": 2}
RECURRENT = {
    "gated-delta": dataclasses.replace(CASES["qwen3-next"], feed_forward_dim=3, **SMALL),
    "state-space": dataclasses.replace(CASES["mamba2"], **SMALL),
}


def assert_agree(actual: Arrays, oracle: Oracle | Derivatives, dtype: str) -> None:
    assert sorted(actual) == sorted(oracle.expected)
    for name, expected in oracle.expected.items():
        assert share(difference(actual[name], expected), oracle.budget(name, dtype)) <= 1, name


EACH = pytest.mark.parametrize(
    ("differentiating", "mixer"),
    [("pytorch", mixer) for mixer in RECURRENT]
    + [pytest.param("flax", mixer, marks=pytest.mark.long) for mixer in RECURRENT],
    indirect=["differentiating"],
)


@EACH
def test_gradients_of_a_recurrence_are_its_derivatives(mixer: str, differentiating: Backend) -> None:
    """Use more than 64 positions, so that a second chunk continues from the state of the first."""
    config = dataclasses.replace(RECURRENT[mixer], max_length=70)
    parameters = probe_parameters(config, 6)
    inputs = {name: value[1:3] for name, value in mixed_inputs(config, 0, 70).items()}
    ours = Derivatives(config, parameters, inputs)
    forward = differentiating(config, parameters, dtype="float64", mode="eager")
    _, gradients = forward.loss_and_gradients(ours.targets, **dict[str, Any](ours.inputs))
    assert_agree(ours.along(gradients), ours, "float64")


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
