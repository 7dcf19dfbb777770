"""Mutation testing: every line of a column made wrong by rote, and the suite asked whether it notices.

    python conformance/meta/mutation/mutate.py transparity_pytorch

Each mutant is killed by the first claim that fails: the claims about its file are made first, then all others, then
those about the file in every dtype, and drawn configurations last. The survivors are printed: each is a hole in the
suite, or a mutant that computes the same. `equivalents.toml` lists those that compute the same; they are counted apart.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[2]))

from meta.mutation.equivalents import equivalents
from meta.mutation.mutants import Mutant, mutants
from meta.planting.planted import DRAWN, REFERENCE_COLUMN, as_reference, caught, file_path, files, planted, topic
from transparity.protocol import Backend
from transparity_conformance.oracle.backends import backend
from transparity_conformance.suite.claims import all_claims


def killer(column: str, mutant: Mutant, *, quick: bool) -> str | None:
    """The first claim that notices the mutant, or None; of the quick claims alone if `quick`."""
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
                subjects.append(backend("pytorch"))  # which is right: what disagrees with it is the mutant
            for name, subject, dtype in _questions(names, subjects, near, quick=quick):
                if caught(name, subject, dtype):
                    return f"{name} ({dtype})" if dtype else name
    except Exception as error:  # noqa: BLE001 - a mutant that cannot even be imported is noticed by everybody
        return f"import: {type(error).__name__}"
    return None


def _questions(
    names: Sequence[str], subjects: Sequence[Backend], near: str, *, quick: bool
) -> Iterator[tuple[str, Backend, str | None]]:
    """The claims to make, each with its subject and dtype (None: the usual one)."""
    claims = all_claims()
    asked = [(name, it) for name in names for it in subjects if claims[name].of_reference or it.name != "numpy"]
    yield from ((name, it, None) for name, it in asked if claims[name].quick or not quick)
    if quick:
        return
    for name, it in asked:
        if name.startswith(near):
            yield from ((name, it, dtype) for dtype in claims[name].dtypes if dtype in it.dtypes)
    yield from ((DRAWN, it, None) for it in subjects if it.name != "numpy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("column")
    parser.add_argument("files", nargs="*", help="by default every file of the column")
    parser.add_argument("--sample", type=int, help="the number of mutants, drawn from all (default: all)")
    parser.add_argument(
        "--quick", action="store_true", help="make the quick claims alone: others may notice a survivor"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    console, killed, survivors, started = Console(), 0, [], time.monotonic()
    paths = {file: file_path(options.column, file) for file in options.files or files(options.column)}
    drawn = [mutant for file, path in paths.items() for mutant in mutants(file, path.read_text())]
    same = {(entry.file, entry.becomes) for entry in equivalents() if entry.column == options.column}
    chosen = [mutant for mutant in drawn if (mutant.file, mutant.becomes) not in same]
    left_out = len(drawn) - len(chosen)
    if options.sample and options.sample < len(chosen):
        chosen = random.Random(0).sample(chosen, options.sample)
    for mutant in chosen:
        by = killer(options.column, mutant, quick=options.quick)
        killed += by is not None
        if by is None:
            survivors.append(f"{mutant.file}.py:{mutant.line}: {mutant.change}")
            console.print(f"[yellow]survived[/] {survivors[-1]}", highlight=False)
        if options.json:
            report = {"killed": killed, "survivors": survivors, "seconds": round(time.monotonic() - started)}
            options.json.write_text(json.dumps(report, indent=2, ensure_ascii=False))
    total = killed + len(survivors)
    console.print(f"{options.column}: {killed} of {total} mutants killed ({killed / total:.1%})")
    console.print(f"Of {len(drawn)} in all, {left_out} compute the same and were not tried (equivalents.toml).")


if __name__ == "__main__":
    main()
