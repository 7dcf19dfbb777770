"""Ports with one generic mistake on one line, and right twins, made from modeling files of transformers.

`python -m meta.against.mutants FAMILY … --n 12 --out FOLDER` writes for each family `model/`, a folder with `port.py`
for each mutant and twin, and `mutants.json`.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import transformers
from torch import Tensor

from meta.against.copies import (
    FAMILIES,
    calls_of,
    copied,
    difference,
    loaded,
    model_class,
    outputs,
    small,
    standalone,
)
from meta.against.observing import Key, Observed, Site, Value, described, key_of
from meta.against.rewrites import equivalents, mistakes
from transparity_conformance.against.check import from_transformers

WRONG = 1e-4
"""Smallest difference of a mistake, relative to the largest logit."""
RIGHT = 1e-5
"""Largest difference of a right twin, relative to the largest logit."""
CRASHES = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError)
"""Exceptions of a mutant that fails to run."""
TOGETHER = 12
"""Lines that the twin with many rewrites changes, at most."""


@dataclass(frozen=True)
class Mutant:
    """A port with one rewrite; `uses` names the inputs on which the outputs differ."""

    id: str
    kind: str
    line: int
    old: str
    new: str
    text: str = field(repr=False)
    uses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Family:
    """The original of a family: its port's text, its saved model, inputs, and the outputs expected."""

    name: str
    text: str
    folder: Path
    calls: Mapping[str, Mapping[str, Tensor]]
    expected: Mapping[str, Tensor]
    seen: Mapping[Key, Value | None]

    def differences(self, text: str) -> dict[str, float] | None:
        """Return how far the outputs of a port are from the expected ones, or None if it does not run."""
        try:
            found = outputs(loaded(text, self.folder), self.calls)
        except CRASHES:
            return None
        return difference(found, self.expected)


def original(name: str, folder: Path) -> Family:
    """Build and save a small model of a family, check its copy, and observe the copy's expressions."""
    small(name).save_pretrained(folder)
    model = from_transformers(folder)
    text, calls = standalone(model_class(name)), calls_of(model)
    expected = outputs(model, calls)
    family = Family(name, text, folder, calls, expected, observed(text, folder, calls))
    if any((family.differences(text) or {"": 1.0}).values()):
        raise ValueError(f"the copy of {name} differs from the original: {family.differences(text)}")
    return family


def observed(text: str, folder: Path, calls: Mapping[str, Mapping[str, Tensor]]) -> dict[Key, Value | None]:
    """Return what each expression that the calls reach was, by its place in the text."""
    seen: dict[Key, Value | None] = {}
    running = False

    def see(key: Key, value: Any) -> Any:
        if running and seen.get(key) is None:
            seen[key] = described(value)
        return value

    tree = ast.fix_missing_locations(Observed().visit(ast.parse(text)))
    model = loaded(ast.unparse(tree), folder, _seen=see)
    running = True
    outputs(model, calls)
    return seen


def mutants(family: Family, n: int, seed: int) -> list[Mutant]:
    """Return up to `n` ports with one mistake that shows, spread over kinds and lines."""
    edits = _edits(family, mistakes)
    edits["exchanged"] = list(_exchanged(family))
    return list(itertools.islice(_chosen(family, edits, _shows, seed, "m"), n))


def twins(family: Family, n: int, seed: int) -> list[Mutant]:
    """Return up to `n` ports that compute the same: with one rewrite each, the last with one on each of many lines."""
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
    return _mutant(family, f"t{n:02d}-together", "together", Edit(min(changed), "".join(lines), max(changed)), ())


class Edit(NamedTuple):
    """The whole text after an edit, and the lines that it changes."""

    line: int
    text: str
    last: int


def _shows(found: Mapping[str, float] | None) -> tuple[str, ...]:
    return tuple(name for name, value in (found or {}).items() if WRONG < value < float("inf"))


def _agrees(found: Mapping[str, float] | None) -> tuple[str, ...]:
    return tuple(found) if found and all(value < RIGHT for value in found.values()) else ()


def _chosen(
    family: Family, edits: Mapping[str, list[Edit]], judge: Callable[[Any], tuple[str, ...]], seed: int, letter: str
) -> Iterator[Mutant]:
    """Yield edits that a judge takes, of each kind in turn, first on lines that none has changed."""
    draw, used, numbers = random.Random(f"{family.name} {seed}"), Counter[int](), itertools.count(1)
    left = {kind: draw.sample(edits[kind], len(edits[kind])) for kind in draw.sample(list(edits), len(edits))}
    while any(left.values()):
        for kind, waiting in left.items():
            while waiting:
                edit = min(waiting, key=lambda edit: used[edit.line])
                waiting.remove(edit)
                if uses := judge(family.differences(edit.text)):
                    used[edit.line] += 1
                    yield _mutant(family, f"{letter}{next(numbers):02d}-{kind.replace(' ', '-')}", kind, edit, uses)
                    break


def _mutant(family: Family, name: str, kind: str, edit: Edit, uses: tuple[str, ...]) -> Mutant:
    pairs = zip(*(text.splitlines()[edit.line - 1 : edit.last] for text in (family.text, edit.text)), strict=True)
    old, new = ("\n".join(map(str.strip, part)) for part in zip(*((a, b) for a, b in pairs if a != b), strict=True))
    return Mutant(name, kind, edit.line, old, new, edit.text, uses)


def _edits(family: Family, rewrites: Callable[..., Iterator[tuple[str, ast.AST, ast.AST]]]) -> dict[str, list[Edit]]:
    """Return the edits of each kind on lines that run; of equal ones the first."""
    site, found, texts = Site(family.text, family.seen), dict[str, list[Edit]](), {family.text}
    for node in ast.walk(site.tree):
        for kind, target, new in rewrites(site, node):
            text = _applied(family.text, site, target, new)
            if text is not None and text not in texts and site.is_reached(target):
                line = key_of(target)[0]
                texts.add(text)
                found.setdefault(kind, []).append(Edit(line, text, line))
    return found


def _applied(text: str, site: Site, target: ast.AST, new: ast.AST) -> str | None:
    """Return the text with one node of one line replaced, in parentheses only where precedence needs them."""
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
    """Swap two neighboring assignments of one line each."""
    lines = family.text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(family.text)):
        body = getattr(node, "body", None)
        for pair in itertools.pairwise(body) if isinstance(body, list) else ():
            if all(isinstance(each, ast.Assign) and key_of(each.value) in family.seen for each in pair):
                (first, end), (second, last) = ((each.lineno - 1, each.end_lineno - 1) for each in pair)
                if first == end and second == last and not "".join(lines[first + 1 : second]).strip():
                    parts = lines.copy()
                    parts[first], parts[second] = lines[second], lines[first]
                    yield Edit(first + 1, "".join(parts), second + 1)


def write_pool(name: str, out: Path, n: int, seed: int) -> list[dict[str, object]]:
    """Write the folder of a family, and return the rows of its `mutants.json`."""
    family = original(name, out / name / "model")
    rows: list[dict[str, object]] = []
    for each in [*mutants(family, n, seed), *twins(family, 2, seed)]:
        copied(model_class(name), out / name / each.id, each.text)
        row = {"family": name, "id": each.id, "kind": each.kind, "line": each.line, "old": each.old, "new": each.new}
        where = {"statement": _statement(each.text, each.line), "uses": list(each.uses)}
        rows.append({**row, **where, "twin": each.id.startswith("t")})
    (out / name / "mutants.json").write_text(json.dumps(rows, indent=1) + "\n")
    return rows


def _statement(text: str, line: int) -> list[int]:
    """Return the first and last line of the innermost statement around a line."""
    spans = [(part.lineno, part.end_lineno or 0) for part in ast.walk(ast.parse(text)) if isinstance(part, ast.stmt)]
    first, last = min((span for span in spans if span[0] <= line <= span[1]), key=lambda span: span[1] - span[0])
    return [first, last]


def main() -> None:
    """Write the pool of the families named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--n", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in given.families:
        rows = write_pool(name, given.out, given.n, given.seed)
        kinds = Counter(row["kind"] for row in rows if not row["twin"])
        print(f"{name}: {dict(kinds)}, {sum(bool(row['twin']) for row in rows)} twins", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
