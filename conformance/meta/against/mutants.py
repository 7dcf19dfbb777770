"""Create mutants and twins of modeling files from transformers.

A mutant has one generic mistake in one line. A twin has rewritten lines, but computes the same outputs. A family's
folder has the saved model in `model/`, `mutants.json`, and a folder with `port.py` for each mutant and twin."""

from __future__ import annotations

import ast
import itertools
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import transformers
from torch import Tensor

from meta.against.copies import calls_of, copied, difference, loaded, model_class, outputs, small, standalone
from meta.against.rewrites import Site, equivalents, key_of, mistakes
from transparity_conformance.against.check import from_transformers

WRONG = 1e-4
"""The smallest difference that counts as a mistake, relative to the largest expected logit."""
RIGHT = 1e-5
"""The largest difference that a twin may have, relative to the largest expected logit."""
NOT_RUNNING = (AttributeError, LookupError, NameError, SyntaxError, TypeError)
CRASHES = (*NOT_RUNNING, ArithmeticError, AssertionError, RuntimeError, ValueError)
"""Exceptions that a mutant may raise; such a mutant counts as not running."""
TOGETHER = 12
"""The largest number of rewritten lines in the last twin; each of the other twins has one rewritten line."""


@dataclass(frozen=True)
class Mutant:
    id: str
    kind: str
    line: int
    old: str
    new: str
    text: str = field(repr=False)


@dataclass(frozen=True)
class Family:
    """A model of transformers: its modeling file as a port, the lines that run in the calls, and the expected
    outputs."""

    name: str
    text: str
    reached: set[int]
    folder: Path
    calls: Mapping[str, Mapping[str, Tensor]]
    expected: Mapping[str, Tensor]

    def differences(self, text: str) -> dict[str, float] | None:
        try:
            found = outputs(loaded(text, self.folder), self.calls)
        except CRASHES:
            return None
        return difference(found, self.expected)


def original(name: str, folder: Path) -> Family:
    small(name).save_pretrained(folder)
    model = from_transformers(folder)
    text, calls = standalone(model_class(name)), calls_of(model)
    family = Family(name, text, reached(text, folder, calls), folder, calls, outputs(model, calls))
    if any((family.differences(text) or {"": 1.0}).values()):
        raise ValueError(f"the copy of {name} differs from the original by {family.differences(text)}")
    return family


def reached(text: str, folder: Path, calls: Mapping[str, Mapping[str, Tensor]]) -> set[int]:
    """Return the lines of a port that run when the port answers `calls`."""
    model, lines = loaded(text, folder), set[int]()

    def trace(frame: FrameType, *_: Any) -> Any:
        if frame.f_globals["__name__"] != type(model).__module__:
            return None
        lines.add(frame.f_lineno)
        return trace

    sys.settrace(trace)
    try:
        outputs(model, calls)
    finally:
        sys.settrace(None)
    return lines


def mutants(family: Family, n: int, seed: int) -> list[Mutant]:
    """Return up to `n` mutants, spread over kinds of mistakes and over lines."""
    edits = _edits(family, mistakes)
    edits["exchanged"] = list(_exchanged(family))
    return list(itertools.islice(_chosen(family, edits, _shows, seed, "m"), n))


def twins(family: Family, n: int, seed: int) -> list[Mutant]:
    """Return up to `n` twins; each has one rewrite, except the last, which has several rewritten lines."""
    edits = _edits(family, equivalents)
    return [*itertools.islice(_chosen(family, edits, _agrees, seed, "t"), n - 1), _together(family, edits, n, seed)]


def _together(family: Family, edits: Mapping[str, list[Edit]], n: int, seed: int) -> Mutant:
    lines, changed = family.text.splitlines(keepends=True), set[int]()
    every = list(itertools.chain.from_iterable(edits.values()))
    for edit in random.Random(seed).sample(every, len(every)):
        if edit.line not in changed and len(changed) < TOGETHER:
            tried = [*lines[: edit.line - 1], edit.text.splitlines(keepends=True)[edit.line - 1], *lines[edit.line :]]
            if _agrees(family.differences("".join(tried))):
                lines = tried
                changed.add(edit.line)
    return _mutant(family, f"t{n:02d}-together", "together", Edit(min(changed), "".join(lines), max(changed)))


class Edit(NamedTuple):
    """The source after an edit, and the edit's first and last line."""

    line: int
    text: str
    last: int


def _shows(found: Mapping[str, float] | None) -> bool:
    return any(WRONG < value < float("inf") for value in (found or {}).values())


def _agrees(found: Mapping[str, float] | None) -> bool:
    return bool(found) and all(value < RIGHT for value in (found or {}).values())


def _chosen(
    family: Family, edits: Mapping[str, list[Edit]], judge: Callable[[Any], bool], seed: int, letter: str
) -> Iterator[Mutant]:
    """Yield a mutant for each edit that `judge` accepts, one kind after another; prefer lines with few mutants."""
    draw, used, numbers = random.Random(f"{family.name} {seed}"), Counter[int](), itertools.count(1)
    left = {kind: draw.sample(edits[kind], len(edits[kind])) for kind in draw.sample(list(edits), len(edits))}
    while any(left.values()):
        for kind, waiting in left.items():
            while waiting:
                edit = min(waiting, key=lambda edit: used[edit.line])
                waiting.remove(edit)
                if judge(family.differences(edit.text)):
                    used[edit.line] += 1
                    yield _mutant(family, f"{letter}{next(numbers):02d}-{kind.replace(' ', '-')}", kind, edit)
                    break


def _mutant(family: Family, name: str, kind: str, edit: Edit) -> Mutant:
    pairs = zip(*(text.splitlines()[edit.line - 1 : edit.last] for text in (family.text, edit.text)), strict=True)
    old, new = ("\n".join(map(str.strip, part)) for part in zip(*((a, b) for a, b in pairs if a != b), strict=True))
    return Mutant(name, kind, edit.line, old, new, edit.text)


def _edits(family: Family, rewrites: Callable[..., Iterator[tuple[str, ast.AST, ast.AST]]]) -> dict[str, list[Edit]]:
    site, found, texts = Site(family.text), dict[str, list[Edit]](), {family.text}
    for node in ast.walk(site.tree):
        for kind, target, new in rewrites(site, node):
            text = _applied(family.text, site, target, new)
            line = key_of(target)[0]
            if line in family.reached and text is not None and text not in texts:
                texts.add(text)
                found.setdefault(kind, []).append(Edit(line, text, line))
    return found


def _applied(text: str, site: Site, target: ast.AST, new: ast.AST) -> str | None:
    row, start, last_row, end = key_of(target)
    if row != last_row:
        return None
    lines = text.splitlines(keepends=True)
    line = lines[row - 1].encode()
    written = ast.unparse(ast.fix_missing_locations(new))
    if isinstance(site.parents.get(target), ast.BinOp | ast.UnaryOp | ast.Attribute | ast.Subscript):
        around = line[start - 1 : start] == b"(" and line[end : end + 1] == b")"
        if isinstance(new, ast.BinOp | ast.UnaryOp | ast.Compare):
            written = written if around else f"({written})"
        elif around:
            start, end = start - 1, end + 1
    lines[row - 1] = (line[:start] + written.encode() + line[end:]).decode()
    return "".join(lines)


def _exchanged(family: Family) -> Iterator[Edit]:
    lines = family.text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(family.text)):
        body = getattr(node, "body", None)
        for pair in itertools.pairwise(body) if isinstance(body, list) else ():
            if all(isinstance(each, ast.Assign) for each in pair):
                (first, end), (second, last) = ((each.lineno - 1, each.end_lineno - 1) for each in pair)
                if first == end and second == last and not "".join(lines[first + 1 : second]).strip():
                    parts = lines.copy()
                    parts[first], parts[second] = lines[second], lines[first]
                    yield Edit(first + 1, "".join(parts), second + 1)


def write_pool(name: str, out: Path, n: int, seed: int) -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    family = original(name, out / name / "model")
    rows: list[dict[str, object]] = []
    for each in [*mutants(family, n, seed), *twins(family, 2, seed)]:
        copied(model_class(name), out / name / each.id, each.text)
        row = {key: value for key, value in vars(each).items() if key != "text"}
        rows.append(row | {"statement": _statement(each.text, each.line), "twin": each.id.startswith("t")})
    (out / name / "mutants.json").write_text(json.dumps(rows, indent=1) + "\n")


def _statement(text: str, line: int) -> list[int]:
    spans = [(part.lineno, part.end_lineno or 0) for part in ast.walk(ast.parse(text)) if isinstance(part, ast.stmt)]
    first, last = min((span for span in spans if span[0] <= line <= span[1]), key=lambda span: span[1] - span[0])
    return [first, last]
