"""The pool `adapters`: ports with a bug, which `adapt` must not match wrongly.

Each bug is an edit of a port's source. The lines of the buggy port's adapter are compared with the lines of the correct
port's adapter. `adapt` must mark every line that differs as undetermined.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meta.adapting.catalogue import FILES, PORTS
from meta.adapting.measure import adapted
from meta.pool.bug import edited, rows
from meta.trial import Answer, Measure
from transparity.config import TransformerConfig
from transparity_conformance.identify.adapting.adapt import Adapted, adapt

BUGS = rows(Path(__file__).with_name("wrong.toml"), "fault")
"""The bugs: each row names a port, the text to replace in its file, and the replacement."""

KINDS = ("no bug", "asked", "settled", "wrong")
"""The possible outcomes for a bug.

`no bug`: the edit only changes a layout, or has no effect. `asked`: the adapter marks lines as undetermined.
`settled`: every line is right. `wrong`: a line is wrong and is not marked.
"""


def broken(folder: Path, port: str, old: str, new: str, nth: int | None = None) -> Callable[[TransformerConfig], Any]:
    """Write the port's file with one edit into `folder`, and return the port from there."""
    text = Path(str(FILES[port].__file__)).read_text(encoding="utf-8")
    text = text.replace("__file__", repr(FILES[port].__file__))
    path = folder / f"wrong_{port.replace('-', '_')}_{abs(hash((old, new)))}.py"
    path.write_text(edited(text, old, new, nth, port), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    made: Callable[[TransformerConfig], Any] = module.PORTS[port]
    return made


@dataclass(frozen=True)
class WrongTrial:
    """A trial: `adapt` gets a port with one bug."""

    port: str
    old: str
    new: str
    nth: int | None = None

    def __str__(self) -> str:
        return f"{self.port}: {self.new!r}"

    def run(self) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            make = broken(Path(folder), **vars(self))
            result = adapt(make, PORTS[self.port][1], budget=8)
        right, lines = adapted(self.port).found.lines, result.found.lines
        wrong = [name for name, text in lines.items() if right[name] != text]
        return {"kind": kind_of(result, wrong), "wrong": wrong, "told": _told(result)}


def kind_of(result: Adapted, wrong: Sequence[str]) -> str:
    """Return the outcome for a bug; `wrong` lists the wrong lines of the adapter."""
    if result.is_proved:
        return "no bug"
    return "wrong" if wrong else "settled" if result.is_settled else "asked"


def _told(result: Adapted) -> str:
    known, faults = result.found, {each.fault.id for each in result.found.faults}
    return (
        f"{len(known.unsettled)} undetermined lines, no match from {known.lost_at} on"
        if known.lost_at
        else f"{faults or ''}"
    )


def trials(options: argparse.Namespace) -> list[WrongTrial]:
    return [WrongTrial(**bug) for bug in BUGS]


def _came_to(kind: str) -> Callable[[WrongTrial, Answer], bool]:
    return lambda _, answer: answer["kind"] == kind


MEASURES = [Measure(kind, _came_to(kind)) for kind in KINDS]
