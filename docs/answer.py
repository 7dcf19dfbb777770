"""Draw docs/answer.svg: a terminal with the checker's answer from docs/gallery.md, for light and dark themes.

`python -m docs.answer` writes the picture. tests/project/test_pages.py compares the picture with the page.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs/answer.svg"
PAGE = ROOT / "docs/gallery.md"

COLUMNS = 82
ADVANCE, LINE, PADDING, BAR = 8.43, 20, 20, 36
"""The width of a character, the height of a line, the space around the text and the title bar's height, in pixels."""

STYLE = """
  text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
         fill: #1f2328; white-space: pre }
  .window { fill: #ffffff; stroke: #d1d9e0 } .bar { fill: #f6f8fa } .dot { fill: #d1d9e0 }
  .wrong { fill: #cf222e } .strong { font-weight: 700 } .place { fill: #0969da; font-weight: 700 }
  .soft { fill: #59636e } .good { fill: #1a7f37 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .window { fill: #0d1117; stroke: #3d444d } .bar { fill: #151b23 } .dot { fill: #3d444d }
    .wrong { fill: #ff7b72 } .place { fill: #79c0ff } .soft { fill: #9198a1 } .good { fill: #7ee787 }
  }
"""

STYLES = (
    (r"\$ .*", "strong"),
    (r"✗ .*", "wrong strong"),
    (r"  \S+\.py:\d+", "place"),
    (r"[ ~^]+", "wrong"),
    (r"  With this fixed.*", "good"),
    (r" +at \S+,?| {20,}\S+|  (transparity|--).*", "soft"),
)
"""Patterns of lines, each with the CSS classes of matching lines."""


def answer() -> str:
    found = re.search(r"(?ms)^```console\n(.*?)^```$", PAGE.read_text(encoding="utf-8"))
    assert found, f"{PAGE} has no console block"
    return found[1].removesuffix("…\n").rstrip()


def picture() -> str:
    lines = answer().splitlines()
    lines.insert(1, "")
    width, height = round(COLUMNS * ADVANCE + 2 * PADDING), BAR + len(lines) * LINE + 2 * PADDING
    frame = [f'<rect class="window" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>']
    frame += [f'<path class="bar" d="M1 {BAR}V9a8 8 0 0 1 8-8H{width - 9}a8 8 0 0 1 8 8v{BAR - 9}z"/>']
    frame += [f'<circle class="dot" cx="{22 + 20 * i}" cy="{BAR // 2}" r="6"/>' for i in range(3)]
    body = "\n".join([*frame, *_texts(lines)])
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    title = f"<title>{escape(lines[0].removeprefix('$ '))}</title>"
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>'
    return f"{opening}\n{title}\n<style>{STYLE}</style>\n{body}\n</svg>\n"


def _texts(lines: list[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        if not line:
            continue
        style = next((style for form, style in STYLES if re.fullmatch(form, line)), "")
        text, y = line.lstrip(), BAR + PADDING + (number + 0.7) * LINE
        x = PADDING + (len(line) - len(text)) * ADVANCE
        stretched = f'textLength="{len(text) * ADVANCE:.1f}" lengthAdjust="spacingAndGlyphs"'
        yield f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" {stretched}>{escape(text)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
