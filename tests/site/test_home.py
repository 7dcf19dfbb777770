"""The home page shows a port next to the code that it differs from; notebooks have all code of their scripts."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from docs import three_columns
from docs.site import build, kept
from docs.site.checked import HEAVIEST
from docs.site.notebooks import FOLDER as NOTEBOOKS
from docs.site.notebooks import SCRIPTS, Cell, as_notebook, cells, executed
from docs.site.pages import ROOT, site_text, written_pages
from docs.site.side_by_side import home
from tests.looping import for_each


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


def test_the_home_page_has_the_heading_that_the_answer_comes_before() -> None:
    assert (ROOT / "README.md").read_text(encoding="utf-8").count(home.BEFORE) == 1


def test_the_picture_of_the_columns_is_text_on_the_home_page() -> None:
    text = site_text("README.md", written_pages())
    assert len(home.PICTURE.findall(text)) == 1
    for title, file in three_columns.COLUMNS.items():
        assert f'title="{title}"' in home.textbook()
        assert "query @ key.mT" in (ROOT / file).read_text(encoding="utf-8")
    assert home.textbook().count("query @ key.mT") == 3


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
