"""A draft: the independent port with several bugs in its text, written to a folder and imported from there."""

from __future__ import annotations

import functools
import importlib.util
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meta.drafts.bugs import BUGS, Bug
from meta.independent.measure import CONFIGS
from transparity.config import TransformerConfig
from transparity_conformance.oracle.probes import Probe, probes_of

FILES = {name: (Path(__file__).parents[1] / "independent" / name).read_text() for name in ("model.py", "positions.py")}
"""The text of the port."""

FEWEST, MOST = 3, 6


@dataclass(frozen=True)
class Draft:
    """A port of one configuration with several bugs."""

    case: str
    bugs: tuple[Bug, ...]

    @property
    def config(self) -> TransformerConfig:
        return CONFIGS[self.case]

    def without(self, mended: Sequence[Bug]) -> Draft:
        return Draft(self.case, tuple(bug for bug in self.bugs if bug not in mended))

    def __str__(self) -> str:
        return f"{self.case}: {'; '.join(map(str, self.bugs)) or 'right'}"


def text_of(file: str, bugs: Sequence[Bug]) -> str:
    """The text of a file with all `bugs` in it; an edit whose text is not there once is refused."""
    text = FILES[file]
    for bug in bugs:
        if bug.file == file:
            if text.count(bug.old) != 1:
                raise ValueError(f"{file} has {text.count(bug.old)} places with {bug.old!r}; expected one.")
            text = text.replace(bug.old, bug.new)
    return text


def are_apart(bugs: Sequence[Bug]) -> bool:
    """Return whether no two bugs change the same line."""
    lines = [(bug.file, line) for bug in bugs for line in lines_with(FILES[bug.file], bug.old)]
    return len(lines) == len(set(lines))


def lines_with(text: str, part: str) -> list[int]:
    """The numbers of the lines, from 1, over which `part` reaches, of all its places."""
    found: list[int] = []
    begin = text.find(part)
    while begin >= 0:
        first = text.count("\n", 0, begin) + 1
        found += range(first, first + part.rstrip("\n").count("\n") + 1)
        begin = text.find(part, begin + 1)
    return found


def right_lines(draft: Draft, bug: Bug) -> set[tuple[str, int]]:
    """The lines of the draft that are right to point at for `bug`: its own and those that run what it changes."""
    found = {(bug.file, line) for line in lines_with(text_of(bug.file, draft.bugs), bug.new)}
    for file in FILES:
        text = text_of(file, draft.bugs)
        found |= {(file, line) for part in bug.at for line in lines_with(text, part)}
    return found


def written(draft: Draft, folder: Path) -> Any:
    """Write the draft to `folder`, import it from there, and return its class `Model`."""
    name = f"draft_{folder.name}"
    folder.mkdir(parents=True)
    for module, file in ((f"{name}_positions", "positions.py"), (name, "model.py")):
        text = text_of(file, draft.bugs).replace("meta.independent.positions", f"{name}_positions")
        (folder / file).write_text(text)
        spec = importlib.util.spec_from_file_location(module, folder / file)
        assert spec is not None and spec.loader is not None
        sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])
    return sys.modules[name].Model


@functools.cache
def probes_called(case: str) -> dict[str, Probe]:
    return dict(probes_of(CONFIGS[case], case))


def answers(draft: Draft, folder: Path) -> list[np.ndarray]:
    """The logits of the draft on all probes, in float64."""
    model = written(draft, folder)
    probes = probes_called(draft.case).values()
    with np.errstate(all="ignore"):
        return [model(probe.config, probe.parameters, "float64")(**probe.inputs).numpy() for probe in probes]


def differ(case: str, one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> bool:
    """Return whether two ports differ by more than float32 rounds, on some probe."""
    probes = probes_called(case).values()
    return any(
        bool(np.any(~(np.abs(a - b) <= probe.oracle.budget("logits", "float32"))))
        for probe, a, b in zip(probes, one, other, strict=True)
    )


def drafts(number: int, folder: Path, seed: int = 0) -> Iterator[Draft]:
    """Draw drafts; every bug of one changes its answers beside the others, and alone.

    Args:
        folder: for the files of ports whose answers are compared.
    """
    draw, count = random.Random(seed), 0
    cases = list(CONFIGS)
    while count < number:
        case = cases[count % len(cases)]
        able = [bug for bug in BUGS if bug.acts(CONFIGS[case])]
        size = min(draw.randint(FEWEST, MOST), len(able))
        draft = Draft(case, tuple(draw.sample(able, size)))
        tried = folder / f"drawn_{seed}_{draw.getrandbits(48):012x}"
        if are_apart(draft.bugs) and _all_act(draft, tried):
            count += 1
            yield draft


def _all_act(draft: Draft, folder: Path) -> bool:
    """Return whether every bug acts; a draft that ends in an exception shows no number."""
    try:
        right, wrong = answers(Draft(draft.case, ()), folder / "right"), answers(draft, folder / "wrong")
        for number, bug in enumerate(draft.bugs):
            alone = answers(Draft(draft.case, (bug,)), folder / f"alone{number}")
            others = answers(draft.without([bug]), folder / f"others{number}")
            if not (differ(draft.case, right, alone) and differ(draft.case, wrong, others)):
                return False
    except IndexError:  # a position beyond the table
        return False
    return True
