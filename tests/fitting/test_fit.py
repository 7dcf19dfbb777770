"""`transparity fit` finds the configuration of a module as it stands, says what it cannot tell, and never guesses."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from meta.fitting.drawn import module
from transparity.config import TransformerConfig
from transparity_conformance.cli import app
from transparity_conformance.identify.fitting.fit import fit, fit_port
from transparity_conformance.identify.fitting.subject import FitError
from transparity_conformance.identify.fitting.templates import templates

FILE = Path(__file__).with_name("small_gpt.py")

SIZES = {"source_vocab_size": 37, "target_vocab_size": 37, "max_length": 40, "feed_forward_dim": 40}

GPT = TransformerConfig(
    architecture="decoder",
    target_vocab_size=53,
    max_length=40,
    embed_dim=24,
    num_heads=3,
    num_decoder_layers=2,
    feed_forward_dim=40,
    activation="gelu-tanh",
    norm_position="pre",
    final_norm=True,
    tied_head=True,
    head_bias=False,
)


def small_gpt() -> Any:
    spec = importlib.util.spec_from_file_location("small_gpt", FILE)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_a_module_is_fitted_as_it_stands() -> None:
    made = fit_port(f"{FILE}:GPT")
    assert made.is_confirmed
    assert made.config == dataclasses.replace(GPT, pad_id=None)
    assert made.template == "gpt2"


def test_the_weights_of_the_module_are_not_touched() -> None:
    model = small_gpt().GPT()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fit(model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.long
def test_several_departures_are_found_together() -> None:
    changes: dict[str, Any] = {
        "norm": "rms",
        "norm_eps": 1e-6,
        "norm_position": "both",
        "positions": "rotary",
        "rope_layout": "halves",
        "rope_theta": 500.0,
        "attention_multiplier": 0.7,
        "attention_softcap": 1.5,
        "activation": "silu",
        "gated": True,
        "sliding_window": 5,
        "layer_types": ("sliding_attention", "full_attention"),
        "layer_overrides": {"full_attention": {"sliding_window": None}},
        "mask_value": -1e9,
        "mask_order": "before-scale",
    }
    config = dataclasses.replace(GPT, **changes)
    made = fit(module(config)).config
    assert {name: getattr(made, name) for name in changes} == changes


def test_chunks_and_a_bias_beside_other_positions_are_found() -> None:
    fields: dict[str, Any] = {
        "sliding_window": 5,
        "window_kind": "chunks",
        "relative_bias": True,
        "positions": "learned",
    }
    made = fit(module(dataclasses.replace(GPT, **fields)))
    assert {name: getattr(made.config, name) for name in fields} == fields
    assert made.is_confirmed


def test_a_factor_of_what_the_head_is_given_is_found() -> None:
    fields: dict[str, Any] = {"head_multiplier": 0.5, "head_scale": "embed_dim", "tied_head": True, "head_bias": False}
    for final_norm in (True, False):
        config = dataclasses.replace(GPT, norm_position="pre", final_norm=final_norm, **fields)
        made = fit(module(config))
        assert made.is_confirmed and made.config.final_norm == final_norm


@pytest.mark.long
def test_multipliers_are_found() -> None:
    factors: dict[str, Any] = {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "head_multiplier": 0.25}
    config = dataclasses.replace(GPT, positions="rotary", norm_position="pre", head_bias=False, **factors)
    made = fit(module(config))
    assert {name: getattr(made.config, name) for name in factors} == factors
    assert made.is_confirmed


def test_what_no_configuration_says_is_not_confirmed() -> None:
    made = fit(small_gpt().of_two_kinds())
    assert made.config.activation == "relu"
    assert not made.is_confirmed


@pytest.mark.long
def test_configurations_that_compute_the_same_are_named() -> None:
    made = fit(module(dataclasses.replace(GPT, num_heads=4, attention_scale="embed_dim")))
    assert made.config.attention_scale == "embed_dim"
    assert made.untold["attention_scale"] == "head_dim with the multiplier 0.5 computes the same"


@pytest.mark.long
def test_what_cannot_be_told_is_listed() -> None:
    made = fit(module(dataclasses.replace(GPT, positions="rotary", max_length=77)))
    assert {"max_length", "pad_id", "sliding_window"} <= set(made.untold)
    assert "rope_theta" not in made.untold


@pytest.mark.long
@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["vanilla", "t5", "bert", "translation", "pre-norm"])
def test_the_module_of_a_template_is_fitted_to_it(name: str) -> None:
    config = templates()[name].resized(**SIZES)
    made = fit(module(config))
    assert made.is_confirmed
    assert made.differences == {}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("needs", "needs takes 1 argument; expected none"),
        ("no_module", "made 3, in which no tensor was found; expected a module of torch.nn"),
        ("Bag", "No operation is a softmax over the tokens"),
        ("missing", "has no 'missing'"),
    ],
)
def test_what_cannot_be_fitted_is_told_in_one_sentence(name: str, says: str) -> None:
    result = CliRunner().invoke(app, ["fit", f"{FILE}:{name}"])
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_file_that_is_written_is_a_configuration(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    result = CliRunner().invoke(app, ["fit", f"{FILE}:GPT", "--json", str(file)])
    assert result.exit_code == 0
    assert TransformerConfig.from_json(file.read_text()) == dataclasses.replace(GPT, pad_id=None)
    assert "is gpt2" in result.stdout and "Confirmed" in result.stdout


def test_with_a_hyphen_nothing_but_the_configuration_is_on_standard_output() -> None:
    result = CliRunner().invoke(app, ["fit", f"{FILE}:GPT", "--json", "-"])
    assert json.loads(result.stdout)["num_heads"] == 3


def test_a_fit_that_is_not_confirmed_is_inconclusive() -> None:
    result = CliRunner().invoke(app, ["fit", f"{FILE}:of_two_kinds"])
    assert result.exit_code == 3
    assert "Not confirmed" in result.stdout


def test_a_module_that_raises_is_told_with_its_inputs() -> None:
    class Broken(torch.nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no")

    with pytest.raises(FitError, match=r"The module raised RuntimeError: no .*tokens \(3, 31\)"):
        fit(Broken())


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "scaling",
    [
        {"rotary_scaling": "llama3", "rotary_factor": 8.0, "rotary_original_length": 64},
        {"rotary_scaling": "linear", "rotary_factor": 2.0},
    ],
    ids=lambda scaling: scaling["rotary_scaling"],
)
def test_scaled_rotary_positions_are_found(scaling: dict[str, Any]) -> None:
    changes: dict[str, Any] = {"positions": "rotary", "rope_theta": 500.0, "rotary_dim": 8, **scaling}
    made = fit(module(dataclasses.replace(GPT, embed_dim=36, **changes)))
    assert made.is_confirmed
    assert {name: getattr(made.config, name) for name in changes} == changes


@pytest.mark.long
def test_heads_of_four_features_do_not_tell_the_scaling_of_their_angles() -> None:
    changes: dict[str, Any] = {"positions": "rotary", "rope_theta": 500.0, "embed_dim": 12}
    assert "rotary_scaling" in fit(module(dataclasses.replace(GPT, **changes))).untold
    assert "rotary_scaling" not in fit(module(dataclasses.replace(GPT, **changes | {"embed_dim": 24}))).untold
