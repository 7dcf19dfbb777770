"""Ports with a bug: no line of their adapters may be wrong without being asked for.

`python -m meta.adapting.wrong FOLDER` (in `conformance/`) puts each bug into the text of a port, and compares the lines
that are found with those of the right port.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meta.adapting.catalogue import FILES, PORTS
from meta.edits import edited, rows
from transparity.config import TransformerConfig
from transparity_conformance.identify.adapting.adapt import Adapted, adapt

BUGS = rows(Path(__file__).with_name("wrong.toml"), "fault")
"""A port, what is in its file, and what is written instead."""


def broken(folder: Path, port: str, old: str, new: str, nth: int | None = None) -> Callable[[TransformerConfig], Any]:
    """The port with a bug, from a file that is written into a folder."""
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


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The adapter of a port with a bug, beside that of the right port."""

    port: str
    right: Adapted
    result: Adapted

    @property
    def wrong(self) -> list[str]:
        """The lines that differ from those of the right port."""
        lines = self.result.found.lines
        return [name for name, text in lines.items() if self.right.found.lines[name] != text]


def outcome(make: Callable[[TransformerConfig], Any], config: TransformerConfig, port: str, right: Adapted) -> Outcome:
    """Find the adapter of a port with a bug."""
    return Outcome(port, right, adapt(make, config, budget=8))


def kind_of(found: Outcome) -> str:
    """What came of a bug: `no bug` if it is another layout alone, or does not act."""
    if found.result.is_proved:
        return "no bug"
    if found.wrong:
        return "wrong"
    return "settled" if found.result.is_settled else "asked"


def main(folder: Path) -> None:
    """Print a line for each bug."""
    right: dict[str, Adapted] = {}
    counts: Counter[str] = Counter()
    for bug in BUGS:
        port, new = bug["port"], bug["new"]
        make, config = PORTS[port]
        right.setdefault(port, adapt(make, config))
        found = outcome(broken(folder, **bug), config, port, right[port])
        kind = kind_of(found)
        counts[kind] += 1
        known, faults = found.result.found, {each.fault.id for each in found.result.found.faults}
        told = f"asks for {len(known.unsettled)}, lost at {known.lost_at}" if known.lost_at else f"{faults or ''}"
        print(f"{port:18} {new!r:60} {kind:8} {told} {found.wrong[:3]}", flush=True)  # noqa: T201
    print(dict(counts))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
