import ast
import json
import re
from pathlib import Path

import pytest
import typer
from docs.site import build, documents, kept
from docs.site.checked import HEAVIEST
from docs.site.documents import DOCUMENTS, PLACE
from docs.site.notebooks import FOLDER as NOTEBOOKS
from docs.site.notebooks import SCRIPTS, Cell, as_notebook, cells, executed
from docs.site.pages import ROOT
from docs.site.reference import api, command_line, model, schema
from docs.site.side_by_side import home
from tests.looping import for_each

import transparity
import transparity_conformance
from transparity.config import TransformerConfig
from transparity.presets import PRESETS, departures
from transparity_conformance import cli


def test_both_lines_are_marked_with_three_around_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(home, "kept", lambda name, inputs, make: kept.kept(name, inputs, make, tmp_path))
    text = home.answer()
    for name in ("mine.py", "theirs.py"):
        assert f'title="{name}" linenums="13" hl_lines="4"' in text
    assert "departs from theirs.py:16" in text
    assert str(tmp_path) not in text


def test_the_forward_pass_is_small_and_its_model_spells_every_word_backwards() -> None:
    pages = build._forward()
    assert build.FRAME in pages["forward-pass.md"]
    assert "/*DATA*/" not in pages["assets/forward.html"]
    assert len(pages["assets/forward.html"].encode()) < HEAVIEST
    for run in json.loads((ROOT / "docs/forward.json").read_text(encoding="utf-8"))["runs"]:
        word, _, backwards = run["tokens"].partition(">")
        assert backwards == word[::-1]
        assert [best[0][0] for best in run["next"][len(word) :]] == [*backwards, "."]
        for weights in (head for layer in run["weights"] for head in layer):
            size = len(run["tokens"])
            sums = [sum(weights[q * (q + 1) // 2 : (q + 1) * (q + 2) // 2]) for q in range(size)]
            assert max(abs(each - 99) for each in sums) <= size / 2


SCRIPT = '''"""A title.

More.
"""

import sys
from math import pi

NUMBER = 3
"""The number of layers."""


# A function.
# It has two lines of text.
@staticmethod
def half(x):
    # not text
    return x / 2


if __name__ == "__main__":
    print(half(NUMBER))
    sys.exit(1)
'''


def test_a_script_becomes_cells_that_print() -> None:
    done = executed(cells(SCRIPT))
    assert done == [
        Cell("markdown", "A title.\n\nMore."),
        Cell("code", "import sys\nfrom math import pi"),
        Cell("code", 'NUMBER = 3\n"""The number of layers."""'),
        Cell("markdown", "A function.\nIt has two lines of text."),
        Cell("code", "@staticmethod\ndef half(x):\n    # not text\n    return x / 2"),
        Cell("code", "print(half(NUMBER))", "1.5\n"),
    ]
    last = as_notebook(done)["cells"][-1]
    assert last["source"] == ["print(half(NUMBER))"]
    assert last["outputs"] == [{"output_type": "stream", "name": "stdout", "text": ["1.5\n"]}]


@for_each("name", SCRIPTS)
def test_nothing_of_a_script_is_lost(name: str) -> None:
    script = (NOTEBOOKS / f"{name}.py").read_text(encoding="utf-8")
    code = "\n".join(cell.source for cell in cells(script) if cell.kind == "code")
    body = ast.parse(script).body[1:]
    (last,) = (node for node in body if isinstance(node, ast.If))
    expected = [*(node for node in body if node is not last), *last.body[:-1]]
    assert ast.dump(ast.parse(code)) == ast.dump(ast.Module(expected, []))


def test_every_command_and_every_option_is_listed() -> None:
    text = command_line.page()
    commands = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    assert re.findall(r"(?m)^##+ `?([\w.]+)`?", text) == [*commands, "Exit"]
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
