"""Examples as notebooks: scripts are split into cells and run; each becomes a file and a page of the site."""

import ast
import contextlib
import io
import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from docs.site.kept import kept
from docs.site.pages import ROOT, SOURCES

FOLDER = ROOT / "examples/checks"
SCRIPTS = ("torch_module", "flax_module", "hub_loader", "mlx_model")
"""The examples that the site shows as notebooks; the other two are a test file and a program in C."""


IMPORTS = (ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Cell:
    """A cell of a notebook: text, or code with its output."""

    kind: str
    source: str
    printed: str = ""


def cells(script: str) -> Iterator[Cell]:
    """Yield the cells of a script: its docstring, its imports, each definition, and its main program. Comments above
    a definition become a cell of text. The last line of the main program, which exits, is left out."""
    tree = ast.parse(script)
    yield Cell("markdown", ast.get_docstring(tree) or "")
    for nodes in _grouped(tree.body[1:]):
        if text := _comments_above(script, nodes[0]):
            yield Cell("markdown", text)
        parts = nodes[0].body if isinstance(nodes[0], ast.If) else nodes
        texts = [_text(script, part) for part in parts]
        yield Cell("code", "\n".join(text for text in texts if not text.startswith("sys.exit(")))


def _grouped(nodes: list[ast.stmt]) -> Iterator[list[ast.stmt]]:
    """Yield groups of statements that become one cell: imports, a definition, or an assignment with its docstring."""
    group: list[ast.stmt] = []
    for node in nodes:
        goes_on = isinstance(node, ast.Expr) or (
            bool(group) and isinstance(node, IMPORTS) and isinstance(group[-1], IMPORTS)
        )
        if group and not goes_on:
            yield group
            group = []
        group.append(node)
    yield group


def _comments_above(script: str, node: ast.stmt) -> str:
    above = script.splitlines()[: _begin(node) - 1][::-1]
    found = [*itertools.takewhile(lambda line: line.startswith("# "), above)]
    return "\n".join(line.removeprefix("# ") for line in found[::-1])


def _begin(node: ast.stmt) -> int:
    return min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])


def _text(script: str, node: ast.stmt) -> str:
    lines = script.splitlines()[_begin(node) - 1 : node.end_lineno]
    return "\n".join(line[node.col_offset :] for line in lines)


def executed(listed: Iterator[Cell]) -> list[Cell]:
    """Run the cells one after another; return them with their output."""
    module = ModuleType("notebook")
    sys.modules[module.__name__] = module
    done = []
    try:
        for cell in listed:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                if cell.kind == "code":
                    exec(compile(cell.source, "<cell>", "exec"), module.__dict__)
            done.append(Cell(cell.kind, cell.source, printed.getvalue()))
    finally:
        del sys.modules[module.__name__]
    return done


def as_notebook(done: list[Cell]) -> dict[str, Any]:
    return {
        "cells": [_cell(index, cell) for index, cell in enumerate(done)],
        "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _cell(index: int, cell: Cell) -> dict[str, Any]:
    found: dict[str, Any] = {"id": f"cell-{index}", "cell_type": cell.kind, "metadata": {}}
    found["source"] = cell.source.splitlines(keepends=True)
    if cell.kind == "code":
        stream = {"output_type": "stream", "name": "stdout", "text": cell.printed.splitlines(keepends=True)}
        found |= {"execution_count": index, "outputs": [stream] if cell.printed else []}
    return found


def page_of(name: str) -> str:
    return f"examples/{name.replace('_', '-')}.md"


def notebooks() -> dict[str, str]:
    """Return the notebook and the page of every script, by path in the site."""
    found = {}
    for name in SCRIPTS:
        path, place = FOLDER / f"{name}.py", page_of(name).removesuffix(".md")
        text = kept(f"notebook-{name}", [path.read_bytes(), Path(__file__).read_bytes()], partial(_run, path))
        found[f"{place}.ipynb"] = text
        found[f"{place}.md"] = _page(path, json.loads(text))
    return found


def _run(path: Path) -> str:
    done = executed(cells(path.read_text(encoding="utf-8")))
    return json.dumps(as_notebook(done), indent=1, ensure_ascii=False) + "\n"


def _page(path: Path, notebook: dict[str, Any]) -> str:
    first, *rest = notebook["cells"]
    title, _, told = "".join(first["source"]).partition("\n\n")
    links = f"[As a notebook]({path.stem.replace('_', '-')}.ipynb) · [as a script]({SOURCES}/{path.relative_to(ROOT)})"
    parts = [f"# {title.rstrip('.')}", told, links]
    for cell in rest:
        source = "".join(cell["source"])
        parts.append(f"```python\n{source}\n```" if cell["cell_type"] == "code" else source)
        parts += ["```text\n" + "".join(each["text"]).rstrip() + "\n```" for each in cell.get("outputs", [])]
    return "\n\n".join(part for part in parts if part) + "\n"
