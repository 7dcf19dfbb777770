"""The pool `mutants`: every line of a column is mutated, and the test suite must notice.

The first failing claim kills a mutant. The claims about the mutant's file run first, then the other claims, then the
file's claims in every dtype, and finally random configurations. If a mutant survives, the suite has a gap, or the
mutant does not change results. Mutants in `equivalents.toml` do not change results, and are not run. With `--quick`,
only the quick claims run; other claims may kill the survivors.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from meta.mutation.equivalents import equivalents
from meta.mutation.mutants import Mutant, mutants
from meta.planting.planted import DRAWN, REFERENCE_COLUMN, as_reference, caught, file_path, files, planted, topic
from meta.trial import Measure, Trial
from transparity.protocol import Backend
from transparity_conformance.oracle.backends import backend
from transparity_conformance.suite.claims import all_claims


def killer(column: str, mutant: Mutant, *, quick: bool) -> dict[str, Any]:
    """Return the `killer`: the first claim that fails for the mutant, `import: …` if it cannot be imported, or None.
    With `quick`, run only quick claims."""
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
                subjects.append(backend("pytorch"))  # the other column is correct, so the mutant is wrong
            for name, subject, dtype in _questions(names, subjects, near, quick=quick):
                if caught(name, subject, dtype):
                    return {"killer": f"{name} ({dtype})" if dtype else name}
    except Exception as error:  # noqa: BLE001 - a mutant that cannot even be imported is noticed by everybody
        return {"killer": f"import: {type(error).__name__}"}
    return {"killer": None}


def _questions(
    names: Sequence[str], subjects: Sequence[Backend], near: str, *, quick: bool
) -> Iterator[tuple[str, Backend, str | None]]:
    """Yield the claims to test, each with its subject and dtype; None is the default dtype."""
    claims = all_claims()
    asked = [(name, it) for name in names for it in subjects if claims[name].of_reference or it.name != "numpy"]
    yield from ((name, it, None) for name, it in asked if claims[name].quick or not quick)
    if quick:
        return
    for name, it in asked:
        if name.startswith(near):
            yield from ((name, it, dtype) for dtype in claims[name].dtypes if dtype in it.dtypes)
    yield from ((DRAWN, it, None) for it in subjects if it.name != "numpy")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--column", default="transparity_pytorch")
    parser.add_argument("--file", action="append", help="mutate only these files of the column, such as `attention`")
    parser.add_argument("--quick", action="store_true", help="test only the quick claims")


def trials(options: argparse.Namespace) -> list[Trial]:
    same = {(entry.file, entry.becomes) for entry in equivalents() if entry.column == options.column}
    paths = {file: file_path(options.column, file) for file in options.file or files(options.column)}
    drawn = [mutant for file, path in paths.items() for mutant in mutants(file, path.read_text())]
    return [
        Trial(
            f"{options.column}/{mutant.file}.py:{mutant.line}: {mutant.change}",
            partial(killer, options.column, mutant, quick=options.quick),
        )
        for mutant in drawn
        if (mutant.file, mutant.becomes) not in same
    ]


MEASURES = (Measure("killed", lambda _, answer: bool(answer["killer"])),)
