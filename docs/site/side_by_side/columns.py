"""The pages that show a file of the three columns side by side, with the values that a small model computes."""

import ast
import json
import re
import textwrap
import tomllib
from dataclasses import dataclass
from functools import cache
from html import escape
from itertools import chain
from pathlib import Path

import numpy as np
from docs.site.figures import figure, shows
from docs.site.pages import ROOT, SOURCES, SUBJECTS, TITLES, column_page, table
from docs.site.side_by_side.aligning import aligned
from docs.site.side_by_side.lines import broken
from docs.site.side_by_side.probe import LINES, Agreement, Seen
from docs.site.side_by_side.sources import Definition, Statement, definitions
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

COLUMNS = {
    "NumPy": "reference/transparity_numpy",
    "PyTorch": "backends/transparity_pytorch",
    "JAX": "backends/transparity_flax",
}
EQUATIONS = tomllib.loads(Path(__file__).with_name("equations.toml").read_text(encoding="utf-8"))
"""The main function of each page, and the function's equation, by page. A page without an entry shows public functions
first."""

CLAIMS: dict[str, str] = EQUATIONS.pop("claims")
"""The claims of docs/agreement.json on a page; other pages show the claims whose names start with the file's name."""


READING = """Rows that differ between the columns are tinted. Below a row is the value that a small model computes with
random weights, in NumPy and float64.
"""

WIDTH = 54
"""The number of characters in a line of a column."""


@dataclass(frozen=True)
class Columns:
    """The values that pages show: the results of statements, and the differences between the columns' activations."""

    seen: dict[LINES, Seen]
    agreements: dict[tuple[str, str], Agreement]


def column_pages(shown: Columns) -> dict[str, str]:
    return {column_page(subject): _page(subject, shown) for subject in SUBJECTS}


def plain_pages() -> dict[str, str]:
    """Return every page by name, as plain Markdown that shows the three columns of a function one after another."""
    return {column_page(subject): _plain(subject) for subject in SUBJECTS}


@cache
def _definitions(subject: str) -> tuple[dict[str, Definition], ...]:
    return tuple(definitions(_source(folder, subject)) for folder in COLUMNS.values())


def _source(folder: str, subject: str) -> str:
    return (ROOT / folder / f"{subject}.py").read_text(encoding="utf-8")


def _all_names(subject: str) -> list[str]:
    """Return the names in a file of all columns: the main function, its callees, other public names, then private
    names."""
    names = dict.fromkeys(name for column in _definitions(subject) for name in column)
    shown = _called(subject, main) if (main := _main(subject)) else set()
    return sorted(names, key=lambda name: (name != main, name not in shown, name.startswith("_") or "." in name))


def _introduction(subject: str) -> str:
    summary = ast.get_docstring(ast.parse(_source(COLUMNS["NumPy"], subject))) or ""
    return f"# {SUBJECTS[subject]}\n\n{summary}\n"


def _page(subject: str, shown: Columns) -> str:
    others = [
        f"**{title}**" if name == subject else f"[{title}]({column_page(name).removeprefix('columns/')})"
        for name, title in SUBJECTS.items()
    ]
    parts = [
        "---\nhide:\n  - navigation\n  - toc\n---\n",
        _introduction(subject),
        READING,
        *(_section(subject, name, shown) for name in _all_names(subject)),
        _agreement(subject),
        f'## Other pages\n\n<p class="subjects" markdown>{" · ".join(others)}</p>\n',
    ]
    return "\n".join(parts)


def _section(subject: str, name: str, shown: Columns) -> str:
    """Return a section about a definition: heading, docstring, shapes, and rows of statements. In the section of the
    page's main function, blocks of values are open. Sections of functions that the main function does not call are
    folded."""
    found = [column.get(name) for column in _definitions(subject)]
    first = next(definition for definition in found if definition)
    listed = [definition.statements if definition else () for definition in found]
    cells = [
        [statements[index] if index is not None else None for statements, index in zip(listed, row, strict=True)]
        for row in aligned([[statement.text for statement in statements] for statements in listed])
    ]
    main = _main(subject)
    body = "".join(_row(subject, row, shown) for row in cells)
    body = body.replace('<details class="value">', '<details class="value" open>') if name == main else body
    heads = "".join(_head(subject, title, definition) for title, definition in zip(COLUMNS, found, strict=True))
    equation = f"{EQUATIONS[subject]['mathml']}\n\n" if name == main else ""
    grid = f'<div class="columns highlight"><div class="row heads">{heads}</div>{body}</div>'
    parts = f"{_documentation(found)}{equation}{_shapes(first)}{grid}"
    label = first.label if found[0] else name
    if not main or name in _called(subject, main):
        anchor = name.replace(".", "-").replace("__", "")  # Markdown reads __init__ as bold
        return f"## `{label}` {{#{anchor}}}\n\n{parts}\n"
    return (
        f'<details class="variant" id="{name}"><summary><code>{escape(label)}</code></summary>\n{parts}\n</details>\n'
    )


def _main(subject: str) -> str:
    return str(EQUATIONS.get(subject, {}).get("main", ""))


def _called(subject: str, main: str) -> set[str]:
    texts = [part.text for column in _definitions(subject) if main in column for part in column[main].statements]
    return {main, *re.findall(r"\w+(?=\()", " ".join(texts[1:]))}


def _head(subject: str, title: str, definition: Definition | None) -> str:
    if definition is None:
        return f'<div class="cell">{title} has no counterpart</div>'
    path = f"{COLUMNS[title]}/{subject}.py"
    return (
        f'<div class="cell"><b>{title}</b> <a href="{SOURCES}/{path}#L{definition.line}">{definition.label}</a></div>'
    )


def _documentation(found: list[Definition | None]) -> str:
    """Return the first column's docstring, and the paragraphs and arguments that only other columns have."""
    said = {title: _paragraphs(definition.doc) for title, definition in zip(COLUMNS, found, strict=True) if definition}
    first = next(iter(said.values()))
    html = _as_html(first)
    for title, parts in said.items():
        if new := _as_html([part for part in parts if part not in first]):
            start = f"<p><b>{title}:</b> "
            html += new.replace("<p>", start, 1) if new.startswith("<p>") else f"{start}</p>{new}"
    return f"{html}\n\n"


def _paragraphs(doc: str) -> list[str]:
    """Split a docstring into paragraphs and arguments; leave out the line `Args:`."""
    parts = [part for paragraph in doc.split("\n\n") for part in re.split(r"\n(?=    \S)", paragraph)]
    return [part for part in parts if part not in ("", "Args:")]


def _as_html(parts: list[str]) -> str:
    html = ""
    for part in parts:
        text = re.sub(r"`([^`]+)`", r"<code>\1</code>", " ".join(escape(part, quote=False).split()))
        item = re.sub(r"^([\w, ]+): ", r"<code>\1</code>: ", text)
        html += f"<ul><li>{item}</li></ul>" if part.startswith("    ") else f"<p>{text}</p>"
    return html.replace("</ul><ul>", "")


def _shapes(definition: Definition) -> str:
    if not definition.shapes:
        return ""
    shapes = {name: f"<i>({escape(', '.join(shape.split()))})</i>" for name, shape in definition.shapes}
    result = f" → {shapes.pop('returns')}" if "returns" in shapes else ""
    given = [f"<code>{name}</code> {shape}" for name, shape in shapes.items()]
    return f'<p class="shapes">{" · ".join(given)}{result}</p>\n\n'


def _row(subject: str, row: list[Statement | None], shown: Columns) -> str:
    lines = [_code(statement) if statement else "" for statement in row]
    kind = "same" if len(set(lines)) == 1 else "differs"
    cells = "".join(f'<pre class="cell">{_highlighted(text)}</pre>' for text in lines)
    value = _value((subject, row[0].begin), shown) if row[0] else ""
    return f'<div class="row {kind}">{cells}</div>{value}'


def _code(statement: Statement) -> str:
    indent = "    " * statement.depth
    comments = chain(*(textwrap.wrap(comment.lstrip("# "), WIDTH - len(indent) - 2) for comment in statement.comments))
    return "\n".join([*(f"{indent}# {line}" for line in comments), *broken(statement.text, indent, width=WIDTH)])


def _highlighted(text: str) -> str:
    lexer, form = PythonLexer(stripnl=False, ensurenl=False), HtmlFormatter(nowrap=True)
    return highlight(text, lexer, form).rstrip("\n") if text else ""


def _value(key: LINES, shown: Columns) -> str:
    """Return a foldable block with the value that a statement computed; empty without a visible value."""
    seen = shown.seen.get(key)
    values = {name: value for name, value in seen.values.items() if shows(value)} if seen else {}
    if not seen or not values:
        return ""
    names = ", ".join(_named(name, value) for name, value in values.items())
    tap = f" · tap <code>{seen.tap}</code>" if seen.tap else ""
    body = "".join(figure(value) for value in values.values())
    agreement = _agreed(shown.agreements.get((seen.model, seen.tap or "")))
    return f'<details class="value"><summary>{names}{tap} · <i>{seen.model}</i></summary>{body}{agreement}</details>'


def _named(name: str, value: object) -> str:
    shape = f" {' × '.join(map(str, value.shape))}" if isinstance(value, np.ndarray) and value.ndim else ""
    return f"{name if name == 'returns' else f'<code>{name}</code>'}{shape}"


def _agreed(agreement: Agreement | None) -> str:
    if agreement is None:
        return ""
    each = ", ".join(f"{TITLES[name]} {difference:.0e}" for name, difference in agreement.differences.items())
    return f"<p>Largest differences of the columns in float32, relative to the largest element: {each}.</p>"


def _agreement(subject: str) -> str:
    """Return the last conformance run's results for the claims about this file; empty if there are none."""
    kept = json.loads((ROOT / "docs/agreement.json").read_text(encoding="utf-8"))
    pattern = CLAIMS.get(subject, rf"{subject.rpartition('/')[2]}\.")
    claims = {name: cells for name, cells in kept["cells"].items() if re.match(pattern, name)}
    if not claims:
        return ""
    used = ["numpy float64", "pytorch float64", "flax float64", "numpy float32", "pytorch float32", "flax float32"]
    titles = [f"{TITLES[column.split()[0]]} {column.split()[1]}" for column in used]
    rows = []
    for name, cells in claims.items():
        by_column = dict(zip(kept["columns"], cells, strict=True))
        rows.append((f"`{name}`", *((by_column[column] or ["–"])[0] for column in used)))
    told = "The largest error of the [last conformance run](../agreement.md), as a share of its tolerance."
    text = f"{told}\n\n{table(('claim', *titles), rows, numbers=len(used))}"
    return f'??? note "How far the columns agree here"\n\n{textwrap.indent(text, "    ")}\n'


def _plain(subject: str) -> str:
    """Return a page as Markdown without HTML, with three blocks of code for each function."""
    parts = [_introduction(subject)]
    for name in _all_names(subject):
        found = [column.get(name) for column in _definitions(subject)]
        first = next(definition for definition in found if definition)
        parts.append(f"## `{first.label}`\n\n{first.doc}\n")
        for title, definition in zip(COLUMNS, found, strict=True):
            if definition:
                code = "\n".join(_code(statement) for statement in definition.statements)
                parts.append(f"{title}, {COLUMNS[title]}/{subject}.py:\n\n```python\n{code}\n```\n")
    return "\n".join(parts)
