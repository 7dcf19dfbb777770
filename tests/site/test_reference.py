"""The pages of the reference and of the five documents are complete, and show the numbers that were printed."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import typer
from docs.site import documents
from docs.site.documents import DOCUMENTS, NUMBERS, PLACE
from docs.site.pages import ROOT
from docs.site.reference import api, command_line, model, schema

import transparity
import transparity_conformance
from transparity.config import TransformerConfig
from transparity.presets import PRESETS, departures
from transparity_conformance import cli


def headings(text: str) -> list[str]:
    return re.findall(r"(?m)^##+ `?([\w.]+)`?", text)


def test_every_command_and_every_option_is_listed() -> None:
    text = command_line.page()
    commands = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    assert headings(text) == [*commands, "Exit"]
    options = {flag for command in commands.values() for each in command.params for flag in each.opts if "--" in flag}
    assert [flag for flag in options if f"`{flag}`" not in text] == []
    assert sorted(command_line.EXIT_CODES) == sorted(cli.EXIT_CODES)
    assert "| `--dtype` `float32` or `float64` or `bfloat16` or `float16` |" in text


def test_every_field_of_a_report_is_listed() -> None:
    text = schema.page()
    found = json.loads((ROOT / "docs/report.schema.json").read_text(encoding="utf-8"))
    for part in (found, *found["$defs"].values()):
        assert [name for name in part.get("properties", {}) if f"| `{name}`" not in text] == []
    assert "| `verdict` | [verdict](#verdict) |" in text


def test_every_field_parameter_and_tap_is_listed() -> None:
    pages = model.pages()
    listed = re.findall(r"(?m)^\| `(\w+)` \|", model.fields())
    assert listed == list(TransformerConfig.__dataclass_fields__)
    for page, names in (("parameters", transparity.parameter_shapes), ("taps", model._tap_shapes)):
        shown = set(re.findall(r"(?m)^\| `([\w.{}]+)` \|", pages[f"reference/{page}.md"]))
        of_systems = {
            re.sub(r"layers\.\d+", "layers.{i}", name) for each in model.systems().values() for name in names(each)
        }
        assert shown == of_systems


def test_every_public_name_is_listed_with_its_docstring() -> None:
    text = api.page()
    for package in (transparity, transparity_conformance):
        assert [name for name in package.__all__ if f"### `{name}` {{#{package.__name__}-{name}}}" not in text] == []
    assert "load_parameters(\n    path: str | os.PathLike[str],\n" in text
    assert "### `load_port`" in text
    assert "- `build`: `build(config, parameters)`" in text


def test_every_document_has_its_presets_and_their_departures() -> None:
    assert {system.document[:3] for system in PRESETS.values()} == set(DOCUMENTS)
    for name in DOCUMENTS:
        assert (ROOT / f"docs/documents/{name}.md").read_text(encoding="utf-8").count(PLACE) == 1
    text = documents.section("001")
    for name in ("notes-lm", "notes-attention"):
        assert f"## The preset `{name}`" in text
        assert all(f"- {sentence}\n" in text for sentence in departures(PRESETS[name].config))
    assert "The document prints no numbers." in text


def test_printed_numbers_are_those_of_every_column() -> None:
    for each in (number for listed in NUMBERS.values() for number in listed):
        assert "as the document prints it; NumPy, PyTorch, JAX compute exactly these numbers" in documents._numbers(
            each
        )
    wrong = documents.Printed("`split_heads`", np.zeros((2, 4, 2)), documents.HEADS)
    with pytest.raises(ValueError, match=r"`split_heads`: numpy computes .*, not what the document prints"):
        documents._numbers(wrong)
