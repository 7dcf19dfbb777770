"""Ports with one generic mistake on one line, and right twins, made from modeling files of transformers.

`python -m meta.against.mutants FAMILY … --n 12 --out FOLDER` writes for each family `model/`, a folder with `port.py`
for each mutant and twin, and `mutants.json`.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import transformers
from torch import Tensor

from meta.against.copies import (
    FAMILIES,
    build,
    copied,
    difference,
    example_inputs,
    loaded,
    model_class,
    outputs,
    standalone,
)
from meta.against.equivalents import EQUIVALENTS
from meta.against.rewrites import MISTAKES, Key, Observed, Rewrite, Site, Value, described, key_of

WRONG = 1e-4
"""Smallest difference of a mistake, relative to the largest logit."""
RIGHT = 1e-5
"""Largest difference of a right twin, relative to the largest logit."""
CRASHES = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError)
ATTEMPTS = 10
"""Rewrites that are tried, at most, for each that is asked for."""


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
    model = build(name)
    model.save_pretrained(folder)
    text, calls = standalone(model_class(name)), example_inputs(model)
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

    def shows(found: dict[str, float]) -> list[str]:
        return [name for name, value in found.items() if WRONG < value < float("inf")]

    return _chosen(family, {**_rewritten(family, MISTAKES), "exchanged": list(_exchanged(family))}, shows, n, seed)


def twins(family: Family, n: int, seed: int) -> list[Mutant]:
    """Return up to `n` ports with one rewrite that computes the same."""

    def agrees(found: dict[str, float]) -> list[str]:
        return list(found) if all(value < RIGHT for value in found.values()) else []

    return _chosen(family, _rewritten(family, EQUIVALENTS), agrees, n, seed)


Edit = tuple[int, str]
"""The line of an edit and the whole text after it."""


def _chosen(family: Family, edits: Mapping[str, list[Edit]], judge: Any, n: int, seed: int) -> list[Mutant]:
    draw, tried, found = random.Random(f"{family.name} {seed}"), Counter[int](), list[Mutant]()
    kinds = [kind for kind in edits if edits[kind]]
    draw.shuffle(kinds)
    left = {kind: draw.sample(edits[kind], len(edits[kind])) for kind in kinds}
    for _ in range(n * ATTEMPTS):
        kinds = [kind for kind in kinds if left[kind]]
        if not kinds or len(found) == n:
            break
        taken = Counter(each.kind for each in found)
        kind = min(kinds, key=lambda kind: taken[kind])
        edit = min(left[kind], key=lambda edit: tried[edit[0]])
        left[kind].remove(edit)
        line, text = edit
        if uses := judge(family.differences(text) or {}):
            tried[line] += 1
            old, new = (each.splitlines()[line - 1].strip() for each in (family.text, text))
            name = f"{'t' if judge.__name__ == 'agrees' else 'm'}{len(found) + 1:02d}-{kind.replace(' ', '-')}"
            found.append(Mutant(name, kind, line, old, new, text, tuple(uses)))
    return found


def _rewritten(family: Family, rewrites: Mapping[str, Rewrite]) -> dict[str, list[Edit]]:
    site = Site(ast.parse(family.text), family.seen)
    found: dict[str, list[Edit]] = {kind: [] for kind in rewrites}
    for kind, rewrite in rewrites.items():
        for node in ast.walk(site.tree):
            for target, new in rewrite(site, node):
                text = _applied(family.text, site, target, new)
                if text and _is_reached(family, target) and (target.lineno, text) not in found[kind]:  # type: ignore[attr-defined]
                    found[kind].append((target.lineno, text))  # type: ignore[attr-defined]
    return found


def _is_reached(family: Family, node: ast.AST) -> bool:
    return any(isinstance(part, ast.expr) and key_of(part) in family.seen for part in ast.walk(node)) or True


def _applied(text: str, site: Site, target: ast.AST, new: ast.AST) -> str | None:
    """Return the text with one node on one line replaced, in parentheses where precedence needs them."""
    row, start, last_row, end = key_of(target)
    lines = text.splitlines(keepends=True)
    line = lines[row - 1].encode()
    written = ast.unparse(ast.fix_missing_locations(new))
    if row != last_row:
        return None
    around = line[start - 1 : start] == b"(" and line[end : end + 1] == b")"
    compound = isinstance(new, ast.BinOp | ast.UnaryOp | ast.Compare)
    within = isinstance(site.parents.get(target), ast.BinOp | ast.UnaryOp | ast.Attribute | ast.Subscript)
    if compound and within and not around:
        written = f"({written})"
    lines[row - 1] = (line[:start] + written.encode() + line[end:]).decode()
    return "".join(lines)


def _exchanged(family: Family) -> Iterator[Edit]:
    """Exchange two neighbouring assignments of one line each, if the second reads what the first assigns."""
    lines = family.text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(family.text)):
        body = getattr(node, "body", None)
        for first, second in zip(body[:-1], body[1:], strict=True) if isinstance(body, list) else ():
            if not all(isinstance(each, ast.Assign) and key_of(each.value) in family.seen for each in (first, second)):
                continue
            if first.lineno != first.end_lineno or second.lineno != second.end_lineno:
                continue
            parts = lines.copy()
            parts[first.lineno - 1], parts[second.lineno - 1] = lines[second.lineno - 1], lines[first.lineno - 1]
            yield first.lineno, "".join(parts)


def write_pool(name: str, out: Path, n: int, seed: int) -> list[dict[str, object]]:
    """Write the folder of a family, and return the rows of its `mutants.json`."""
    family = original(name, out / name / "model")
    rows: list[dict[str, object]] = []
    for each in [*mutants(family, n, seed), *twins(family, 2, seed)]:
        copied(model_class(name), out / name / each.id, each.text)
        row = {"family": name, "id": each.id, "kind": each.kind, "line": each.line, "old": each.old, "new": each.new}
        rows.append({**row, "uses": list(each.uses), "twin": each.id.startswith("t")})
    (out / name / "mutants.json").write_text(json.dumps(rows, indent=1) + "\n")
    return rows


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
