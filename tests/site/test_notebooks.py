"""A notebook contains the code of its script, in order, and the output of its cells."""

from __future__ import annotations

import ast

from docs.site.notebooks import FOLDER, SCRIPTS, Cell, as_notebook, cells, executed
from tests.looping import for_each

SCRIPT = '''"""A title.

More.
"""

import sys
from math import pi

NUMBER = 3
"""What it is."""


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
        Cell("code", 'NUMBER = 3\n"""What it is."""'),
        Cell("markdown", "A function.\nIt has two lines of text."),
        Cell("code", "@staticmethod\ndef half(x):\n    # not text\n    return x / 2"),
        Cell("code", "print(half(NUMBER))", "1.5\n"),
    ]
    last = as_notebook(done)["cells"][-1]
    assert last["source"] == ["print(half(NUMBER))"]
    assert last["outputs"] == [{"output_type": "stream", "name": "stdout", "text": ["1.5\n"]}]


@for_each("name", SCRIPTS)
def test_nothing_of_a_script_is_lost(name: str) -> None:
    script = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    code = "\n".join(cell.source for cell in cells(script) if cell.kind == "code")
    body = ast.parse(script).body[1:]
    (last,) = (node for node in body if isinstance(node, ast.If))
    expected = [*(node for node in body if node is not last), *last.body[:-1]]
    assert ast.dump(ast.parse(code)) == ast.dump(ast.Module(expected, []))
