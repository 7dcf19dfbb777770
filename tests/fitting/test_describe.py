"""`transparity describe` prints every field of a configuration or family, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from transparity.config import FIELD_TYPES, TransformerConfig
from transparity.parameters import parameter_shapes
from transparity_conformance.cli import app
from transparity_conformance.identify.fitting.templates import templates
from transparity_conformance.report.describing.fields import as_rows, meanings


def described(*arguments: str) -> Any:
    result = CliRunner().invoke(app, ["describe", *arguments, "--json", "-"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_every_field_has_a_meaning_and_values() -> None:
    assert list(meanings()) == list(FIELD_TYPES)
    assert all(row["values"] for row in as_rows())


def test_the_fields_are_shown_with_their_values_and_defaults() -> None:
    shown = CliRunner().invoke(app, ["describe", "--fields"]).stdout
    shown = " ".join(shown.split())
    assert "norm_position: pre, post, sandwich, post-branch (default: post)" in shown
    assert "x + norm(f(norm(x))) (Gemma 2)" in shown


def test_the_fields_are_written_as_json() -> None:
    rows = {row["name"]: row for row in described("--fields")}
    assert rows["mask_value"]["default"] == "-inf"
    assert rows["activation"]["values"] == ["relu", "gelu", "gelu-tanh", "gelu-quick", "silu"]
    assert "default" not in rows["architecture"]


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5", "vanilla", "translation"])
def test_a_template_is_described_as_json(name: str) -> None:
    answer = described(name)
    config = TransformerConfig.from_dict(answer["config"])
    assert config == templates()[name]
    assert answer["parameters"] == {each: list(shape) for each, shape in parameter_shapes(config).items()}
    assert answer["taps"]["logits"][0] == "batch"


@pytest.mark.parametrize("arguments", [[], ["gpt2", "--fields"]])
def test_either_a_name_or_the_fields_are_asked_for(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["describe", *arguments])
    assert result.exit_code == 2
    assert "either a PRESET or --fields" in result.stderr


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["describe", "gpt2", "--json", str(tmp_path)])
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr
