"""Draw docs/three-columns.svg: attention in NumPy, PyTorch and JAX side by side, cut from the columns' sources.

`python -m docs.three_columns` writes the picture; tests/project/test_documentation.py holds it to the sources.
"""

from __future__ import annotations

import ast
import re
from itertools import zip_longest
from pathlib import Path
from xml.sax.saxutils import escape

from docs.site.side_by_side.lines import broken, joined

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs/three-columns.svg"
COLUMNS = {
    "NumPy": "reference/transparity_numpy/attention.py",
    "PyTorch": "backends/transparity_pytorch/attention.py",
    "JAX": "backends/transparity_flax/attention.py",
}
FUNCTIONS = ("attention_scores", "attention_weights", "attention")

CHARACTERS = 52
"""Characters in a line of the picture; longer lines of the source are broken at their brackets."""

ADVANCE, LINE, PADDING = 7.25, 18, 16
"""Width of a character, height of a line and space around the text, in pixels."""

WIDTH = round(2 * PADDING + CHARACTERS * ADVANCE)

STYLE = """
  text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
         fill: #1f2328; white-space: pre }
  .page { fill: #ffffff } .column { fill: #f6f8fa } .differs { fill: #fff3c4 }
  .title { font-weight: 700 } .file { fill: #59636e } .keyword { fill: #cf222e }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .page { fill: #0d1117 } .column { fill: #151b23 } .differs { fill: #3d3000 }
    .file { fill: #9198a1 } .keyword { fill: #ff7b72 }
  }
"""


def picture() -> str:
    """Return the SVG. Lines that are not the same in all three columns are tinted."""
    columns = [functions((ROOT / file).read_text(encoding="utf-8")) for file in COLUMNS.values()]
    rows = [row for same in zip(*columns, strict=True) for row in (*zip_longest(*same, fillvalue=""), ("", "", ""))]
    height = (len(rows) + 3) * LINE + PADDING + LINE // 2
    size = f'width="{3 * WIDTH}" height="{height}"'
    parts = [f'<rect class="page" {size}/>']
    for index, (title, file) in enumerate(COLUMNS.items()):
        others = [{line for function in column for line in function} for column in columns]
        lines = [(row[index], not all(row[index] in other for other in others)) for row in rows]
        parts += drawn(title, file, lines, left=index * WIDTH, height=height)
    body = "\n".join(parts)
    view = f'viewBox="0 0 {3 * WIDTH} {height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {view} {size}>\n<style>{STYLE}</style>\n{body}\n</svg>\n'


def functions(source: str) -> list[list[str]]:
    """Return the lines of each of `FUNCTIONS`, without annotations, docstrings and comments."""
    found = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    return [function(found[name], source) for name in FUNCTIONS]


def function(node: ast.FunctionDef, source: str) -> list[str]:
    """Return the lines of a function: its name and its statements."""
    body = node.body[1:] if ast.get_docstring(node) else node.body
    return [f"def {node.name}(…):", *(line for part in body for line in statement(part, source))]


def statement(node: ast.stmt, source: str, indent: str = "    ") -> list[str]:
    """Return the lines of a statement, and of those in it."""
    if isinstance(node, ast.If):
        inner = [line for part in node.body for line in statement(part, source, indent + "    ")]
        return broken(f"if {joined(node.test, source)}:", indent, width=CHARACTERS) + inner
    return broken(joined(node, source), indent, width=CHARACTERS)


def drawn(title: str, file: str, lines: list[tuple[str, bool]], *, left: int, height: int) -> list[str]:
    """Return the SVG elements of one column: its background, its title and its lines."""
    x, top = left + PADDING, PADDING + LINE // 2
    parts = [
        f'<rect class="column" x="{left + 6}" y="6" width="{WIDTH - 12}" height="{height - 12}" rx="6"/>',
        f'<text class="title" x="{x}" y="{top + 4}">{title}</text>',
        f'<text class="file" x="{x}" y="{top + 22}">{file}</text>',
    ]
    for y, (line, differs) in enumerate(lines, start=3):
        below = top + y * LINE
        if differs and line:
            box = f'x="{left + 6}" y="{below - 13}" width="{WIDTH - 12}" height="{LINE}"'
            parts.append(f'<rect class="differs" {box}/>')
        if line:
            parts.append(f'<text x="{x}" y="{below}">{highlighted(line)}</text>')
    return parts


def highlighted(line: str) -> str:
    """Return a line of code as SVG text, its keywords marked."""
    return re.sub(r"\b(def|return|if|else|for|in|is|and|None)\b", r'<tspan class="keyword">\1</tspan>', escape(line))


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
