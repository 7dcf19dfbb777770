"""Draw docs/three-columns.svg: the textbook's attention and encoder layer, side by side in NumPy, PyTorch and JAX.

`python -m docs.three_columns` writes the picture. tests/project/test_pages.py compares the picture with the sources.
"""

import re
from itertools import zip_longest
from pathlib import Path
from xml.sax.saxutils import escape

from docs.site.side_by_side.lines import broken
from docs.site.side_by_side.sources import definitions

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs/three-columns.svg"
COLUMNS = {
    "NumPy": "examples/textbook/attention_is_all_you_need.py",
    "PyTorch": "examples/textbook/attention_is_all_you_need_pytorch.py",
    "JAX": "examples/textbook/attention_is_all_you_need_jax.py",
}
PARTS = ("attention", "feed_forward", "encoder_layer")

CHARACTERS = 52
"""The number of characters in a line of the picture; longer lines are broken at brackets."""

ADVANCE, LINE, PADDING = 7.25, 18, 16
"""The width of a character, the height of a line, and the space around the text, in pixels."""

WIDTH = round(2 * PADDING + CHARACTERS * ADVANCE)

STYLE = """
  text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
         fill: #1f2328; white-space: pre }
  .page { fill: #ffffff } .column { fill: #f6f8fa }
  .title { font-weight: 700 } .formula { fill: #59636e } .keyword { fill: #cf222e }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .page { fill: #0d1117 } .column { fill: #151b23 }
    .formula { fill: #9198a1 } .keyword { fill: #ff7b72 }
  }
"""


def picture() -> str:
    shown = rows()
    height = (len(shown) + 2) * LINE + PADDING + LINE // 2
    size = f'width="{3 * WIDTH}" height="{height}"'
    parts = [f'<rect class="page" {size}/>']
    for index, title in enumerate(COLUMNS):
        parts += drawn(title, [row[index] for row in shown], left=index * WIDTH, height=height)
    body = "\n".join(parts)
    view = f'viewBox="0 0 {3 * WIDTH} {height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {view} {size}>\n<style>{STYLE}</style>\n{body}\n</svg>\n'


def rows() -> list[tuple[str, str, str]]:
    """Return the lines of the three columns; corresponding statements start in the same row."""
    sources = [(ROOT / file).read_text(encoding="utf-8") for file in COLUMNS.values()]
    found: list[tuple[str, str, str]] = []
    for name in PARTS:
        found += [("", "", "")] if found else []
        for statements in zip(*(statements_of(name, source) for source in sources), strict=True):
            found += zip_longest(*statements, fillvalue="")
    return found


def statements_of(name: str, source: str) -> list[list[str]]:
    """Return the lines of a function or class: its formula, its signature, and the statements of its forward pass."""
    shown = definitions(source)[name]
    head, *body = ("    " * each.depth + each.text for each in shown.statements)
    kind = re.search(rf"(?m)^class {shown.label.partition('.')[0]}\(.*:$", source)
    indent = "    " * bool(kind)
    names = [kind[0], indent + head] if kind else [""] * (name != "attention") + [head]
    return [["# " + line for line in _formula(shown.doc)], names, *(_lines(indent + line) for line in body)]


def _lines(statement: str) -> list[str]:
    text = statement.lstrip()
    return broken(text, statement.removesuffix(text), width=CHARACTERS)


def _formula(docstring: str) -> list[str]:
    """Return the first line of a docstring without references; break it at semicolons and at commas with two spaces."""
    first = re.sub(r" *\([^()]*[§.]\s*[\d§., ]+\).*", "", docstring.partition("\n")[0]).replace("; ", ";\n")
    return first.replace(",  ", ",\n").split("\n")


def drawn(title: str, lines: list[str], *, left: int, height: int) -> list[str]:
    """Return the SVG elements of a column: its background, title and lines."""
    x, top = left + PADDING, PADDING + LINE // 2 + 4
    parts = [
        f'<rect class="column" x="{left + 6}" y="6" width="{WIDTH - 12}" height="{height - 12}" rx="6"/>',
        f'<text class="title" x="{x}" y="{top}">{title}</text>',
    ]
    for y, line in enumerate(lines, start=2):
        if line:
            parts.append(f'<text x="{x}" y="{top + y * LINE - LINE // 2}">{highlighted(line)}</text>')
    return parts


def highlighted(line: str) -> str:
    """Return a line of code as SVG text, with keywords and comments marked."""
    if line.startswith("#"):
        return f'<tspan class="formula">{escape(line)}</tspan>'
    return re.sub(
        r"\b(class|def|return|if|else|for|in|is|and|None)\b", r'<tspan class="keyword">\1</tspan>', escape(line)
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
