"""The pool `mutants`: every line of a column is mutated, and the test suite must notice.

The first failing claim kills a mutant. The claims about its file run first, then the others, then the claims about the
file in every dtype, and finally random configurations. A survivor is a gap in the suite, or a mutant that computes the
same. `equivalents.toml` lists the latter; they are not run.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from meta.mutation.equivalents import equivalents
from meta.mutation.mutants import Mutant, mutants
from meta.planting.planted import DRAWN, REFERENCE_COLUMN, as_reference, caught, file_path, files, planted, topic
from meta.trial import Measure
from transparity.protocol import Backend
from transparity_conformance.oracle.backends import backend
from transparity_conformance.suite.claims import all_claims


def killer(column: str, mutant: Mutant, *, quick: bool) -> str | None:
    """Return the first claim that fails for the mutant, or None; with `quick`, only quick claims run."""
    claims = {name: claim for name, claim in all_claims().items() if not claim.needs or column == REFERENCE_COLUMN}
    near = f"{topic(mutant.file)}."
    names = sorted(
        claims,
        key=lambda name: (
            not name.startswith(near),
            not claims[name].quick,
            name.startswith(("documents.printed", "metamorphic")),
        ),
    )
    try:
        with planted(column, mutant.file, mutant.source) as build, ExitStack() as stack:
            subjects: list[Backend] = [build]
            if column == REFERENCE_COLUMN:
                stack.enter_context(as_reference(build))
                subjects.append(backend("pytorch"))  # correct, so a disagreement is the mutant's
            for name, subject, dtype in _questions(names, subjects, near, quick=quick):
                if caught(name, subject, dtype):
                    return f"{name} ({dtype})" if dtype else name
    except Exception as error:  # noqa: BLE001 - a mutant that cannot even be imported is noticed by everybody
        return f"import: {type(error).__name__}"
    return None


def _questions(
    names: Sequence[str], subjects: Sequence[Backend], near: str, *, quick: bool
) -> Iterator[tuple[str, Backend, str | None]]:
    """Yield the claims to test, each with its subject and dtype; None stands for the default dtype."""
    claims = all_claims()
    asked = [(name, it) for name in names for it in subjects if claims[name].of_reference or it.name != "numpy"]
    yield from ((name, it, None) for name, it in asked if claims[name].quick or not quick)
    if quick:
        return
    for name, it in asked:
        if name.startswith(near):
            yield from ((name, it, dtype) for dtype in claims[name].dtypes if dtype in it.dtypes)
    yield from ((DRAWN, it, None) for it in subjects if it.name != "numpy")


@dataclass(frozen=True)
class MutantTrial:
    """A trial: the suite must notice a mutant of a column.

    With `quick`, only the quick claims run, so a survivor may be noticed by another claim.
    """

    column: str
    mutant: Mutant
    quick: bool

    def __str__(self) -> str:
        return f"{self.column}/{self.mutant.file}.py:{self.mutant.line}: {self.mutant.change}"

    def run(self) -> dict[str, Any]:
        return {"killer": killer(self.column, self.mutant, quick=self.quick)}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--column", default="transparity_pytorch")
    parser.add_argument("--file", action="append", help="mutate only these files of the column, such as `attention`")
    parser.add_argument("--quick", action="store_true", help="test only the quick claims")


def trials(options: argparse.Namespace) -> list[MutantTrial]:
    """Return the mutants of a column, except those that compute the same."""
    same = {(entry.file, entry.becomes) for entry in equivalents() if entry.column == options.column}
    paths = {file: file_path(options.column, file) for file in options.file or files(options.column)}
    drawn = [mutant for file, path in paths.items() for mutant in mutants(file, path.read_text())]
    tried = [mutant for mutant in drawn if (mutant.file, mutant.becomes) not in same]
    return [MutantTrial(options.column, mutant, options.quick) for mutant in tried]


MEASURES = (Measure("killed", lambda _, answer: bool(answer["killer"])),)
