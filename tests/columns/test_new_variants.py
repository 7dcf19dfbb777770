import importlib
from typing import Any

import numpy as np
import pytest
from tests.columns.made_up import described
from tests.helpers import tiny

from transparity.config import TransformerConfig
from transparity.errors import ConfigError, InputError
from transparity.parameters import initialize_parameters
from transparity.protocol import Backend
from transparity_conformance.oracle.oracle import forward_oracle
from transparity_conformance.report.comparison import as_numbers

SIZES: dict[str, Any] = {"embed_dim": 8, "num_heads": 2, "max_length": 8, "positions": "rotary", "pad_id": None}
TOKENS = np.array([[3, 200, 17, 255, 90], [128, 16, 15, 1, 240]])


@pytest.fixture(autouse=True)
def rows(column: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the rows of the made-up variants to the tables of the contract, of NumPy and of the column."""
    columns = [importlib.import_module(f"tests.columns.made_up.in_{name}") for name in {"numpy", column}]
    for file in (described, *columns):
        for table, key, value in file.ROWS:
            monkeypatch.setitem(table, key, value)


def decoder(**fields: Any) -> TransformerConfig:
    fields = {"target_vocab_size": 256, "rotary_scaling": "root", "rotary_factor": 3.0} | fields
    kinds = {"layer_types": ("mean", "full"), "layer_overrides": {"mean": {"mixer": "mean"}}}
    return tiny(**SIZES, **kinds, **fields, num_decoder_layers=2)


def encoder() -> TransformerConfig:
    given: dict[str, Any] = {"architecture": "encoder", "target_vocab_size": None, "num_encoder_layers": 1}
    return tiny(**SIZES, **given, mel_bins=3, num_frames=6, head="hidden", rotary_scaling="root", rotary_factor=3.0)


def assert_agrees(backend: Backend, config: TransformerConfig, inputs: dict[str, np.ndarray]) -> None:
    parameters = initialize_parameters(config, 7)
    oracle = forward_oracle(config, parameters, inputs)
    found = backend(config, parameters, dtype="float32")(**inputs)
    assert set(found) == set(oracle.expected)
    for name, value in found.items():
        error = np.abs(as_numbers(value) - oracle.expected[name]).max()
        assert error <= oracle.budget_for(error, name, "float32"), name


def test_a_forward_pass_agrees(backend: Backend) -> None:
    assert_agrees(backend, decoder(), {"tokens": TOKENS})


def test_a_forward_pass_of_an_input_with_its_own_name_agrees(backend: Backend) -> None:
    assert_agrees(backend, encoder(), {"features": np.random.default_rng(3).normal(size=(2, 6, 3))})


def test_a_wrong_shape_of_a_new_input_is_refused(backend: Backend) -> None:
    config = encoder()
    forward = backend(config, initialize_parameters(config))
    with pytest.raises(
        InputError, match=r"^features has .* expected \(batch, frames, mel_bins\), 6 frames of 3 bins\.$"
    ):
        forward(features=np.ones((1, 5, 3)))


def test_steps_agree_with_the_forward_pass(backend: Backend) -> None:
    """In the first chunk, the third token of the second row is not valid, so this token must not change the state."""
    config = decoder()
    parameters = initialize_parameters(config, 7)
    oracle, forward = forward_oracle(config, parameters, {"tokens": TOKENS}), backend(config, parameters)
    first, cache = forward.step(TOKENS[:, :3], None, valid_lengths=np.array([3, 2]))
    assert as_numbers(cache["layers"][0]["mean_of_past"]["sum"]).shape == (2, config.embed_dim)
    second, _ = forward.step(np.stack([TOKENS[0, 3:5], TOKENS[1, 2:4]]), cache)
    for logits, expected in (
        (first[0], oracle.expected["logits"][0, :3]),
        (first[1][:2], oracle.expected["logits"][1, :2]),
        (second[0], oracle.expected["logits"][0, 3:5]),
        (second[1], oracle.expected["logits"][1, 2:4]),
    ):
        error = np.abs(as_numbers(logits) - expected).max()
        assert error <= oracle.budget_for(error, "logits", "float32")


def test_a_scaling_changes_the_result(backend: Backend) -> None:
    config = decoder()
    parameters = initialize_parameters(config, 7)
    logits = as_numbers(backend(config, parameters, dtype="float32").logits(tokens=TOKENS))
    other = decoder(rotary_scaling="none")
    assert (as_numbers(backend(other, parameters, dtype="float32").logits(tokens=TOKENS)) != logits).any()


@pytest.mark.parametrize("field", ["mixer", "rotary_scaling"])
def test_a_message_lists_the_new_value(field: str) -> None:
    new = {"mixer": "mean", "rotary_scaling": "root"}[field]
    with pytest.raises(ConfigError, match=rf"^{field} is 'typo'; it should be one of .*, {new}\.$"):
        decoder(**{field: "typo"})


def test_a_variant_refuses_what_it_cannot_do() -> None:
    with pytest.raises(ConfigError, match="a mean over the past needs a decoder-only model"):
        tiny(**SIZES, architecture="encoder", source_vocab_size=5, num_encoder_layers=1, mixer="mean")
