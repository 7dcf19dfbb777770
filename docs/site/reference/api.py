"""The page of the public API: the names that the packages export, and other names that the documentation imports."""

import importlib
import inspect
import re
from typing import Any

from docs.site.pages import ROOT

INTRODUCTION = """# Public API

The names that the two packages export, and other names that this documentation imports. The columns' functions are on
[separate pages](../columns.md).
"""

PACKAGES = ("transparity_conformance", "transparity")
IMPORT = re.compile(r"(?m)^from (transparity[\w.]*) import (.+)$")
COLUMN = re.compile(r"transparity_(numpy|pytorch|flax)")


def page() -> str:
    parts = [INTRODUCTION]
    for module, names in public().items():
        parts += [f"## `{module}` {{#{module.replace('.', '-')}}}\n", *(_entry(module, name) for name in names)]
    return "\n".join(parts)


def public() -> dict[str, list[str]]:
    """Return the public names of each module: exported names, then other names that pages import."""
    found = {package: list(importlib.import_module(package).__all__) for package in PACKAGES}
    imported: dict[str, set[str]] = {}
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for module, names in IMPORT.findall(path.read_text(encoding="utf-8")):
            if not COLUMN.match(module):
                imported.setdefault(module, set()).update(name.strip() for name in names.split(","))
    exported = {(id(getattr(importlib.import_module(module), name))) for module in found for name in found[module]}
    for module, listed in sorted(imported.items()):
        own = [name for name in sorted(listed) if id(getattr(importlib.import_module(module), name)) not in exported]
        found[module] = [*found.get(module, []), *own]
    return {module: names for module, names in found.items() if names}


def _entry(module: str, name: str) -> str:
    value = getattr(importlib.import_module(module), name)
    heading = f"### `{name}` {{#{module.replace('.', '-')}-{name}}}\n"
    if not callable(value):
        return f"{heading}\n`{type(value).__name__}`\n"
    doc = inspect.getdoc(value) or ""
    return f"{heading}\n```python\n{_signature(name, value)}\n```\n\n{_documentation(doc)}\n"


def _signature(name: str, value: Any) -> str:
    """Return a function's signature, one argument per line if long; for a class with many fields, return its name."""
    parameters = list(inspect.signature(value).parameters.values())
    if inspect.isclass(value) and len(parameters) > 12:
        return f"{name}(…)  # {len(parameters)} fields"
    words, returned = [_plain(str(parameter)) for parameter in parameters], _returned(value)
    line = f"{name}({', '.join(words)}){returned}"
    return line if len(line) <= 88 else f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){returned}"


def _returned(value: Any) -> str:
    annotation = "" if inspect.isclass(value) else inspect.signature(value).return_annotation
    return f" -> {_plain(inspect.formatannotation(annotation))}" if annotation else ""


def _plain(text: str) -> str:
    text = re.sub(r"<function (\w+) at \w+>", r"\1", text)
    return re.sub(r"transparity[\w.]*\.(\w+)", r"\1", re.sub(r"(^|: )'([^']*)'", r"\1\2", text))


def _documentation(doc: str) -> str:
    """Return a docstring as Markdown, in which the lines of `Args:`, `Returns:` and `Raises:` are lists."""
    text = re.sub(r"(?m)^(Args|Returns|Yields|Raises):\n", r"**\1:**\n\n", doc)
    return re.sub(r"(?m)^    (\w+(?:, \w+)*): (.*)$", _arguments, text)


def _arguments(line: re.Match[str]) -> str:
    names, clauses = line[1].split(", "), [line[2].removesuffix(".")]
    if len(names) > 1:
        clauses = [clause.removeprefix("and ") for clause in clauses[0].split("; ")]
    clauses = [f"{clause[:1].lower()}{clause[1:]}" for clause in clauses]
    return "\n".join(f"- `{name}`: {clause}" for name, clause in zip(names, clauses, strict=True))
