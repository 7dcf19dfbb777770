"""The candidates of the race: the project's implementations, other implementations (peers), and machine limits."""

import itertools
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.workloads import Kind, Workload

from transparity_conformance.oracle.backends import backend, named

FORWARD: tuple[Kind, ...] = ("forward",)
TORCH, COMPILED, JAX, NUMPY, LIMIT = "torch, eager", "compiled", "jax, jit", "numpy", "limit"


@dataclass(frozen=True)
class Candidate:
    name: str
    kinds: tuple[str, ...]
    """The kinds of software, such as `compiled`. The table lists a candidate under its first kind, and compares
    the candidate with peers of this kind."""
    needs: tuple[str, ...]
    """Modules to import; the import is timed."""
    build: str
    """The `module:function` that returns a `Run` for a `Task`."""
    tasks: tuple[Kind, ...] = FORWARD
    architectures: tuple[str, ...] = ("encoder-decoder", "decoder")
    dtypes: tuple[str, ...] = ("float32",)
    devices: tuple[str, ...] = ("cpu",)
    ours: bool = False
    also: tuple[str, ...] = ()
    """Other modules that have to be installed; their import is not timed."""
    longest: int | None = None
    choices: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of the candidate's process; `{threads}` stands for the number of cores."""
    root: Path | None = None

    @property
    def is_limit(self) -> bool:
        return LIMIT in self.kinds

    def why_missing(self) -> str | None:
        missing = [name for name in (*self.needs, *self.also) if find_spec(name.partition(".")[0]) is None]
        return f"{', '.join(missing)} not installed" if missing else None

    def why_not(self, workload: Workload, device: str = "cpu") -> str | None:
        longest = max(workload.lengths.values())
        if workload.kind not in self.tasks:
            return f"does not support {workload.kind}"
        if workload.config.architecture not in self.architectures:
            return f"written for {' and '.join(self.architectures)} only"
        if workload.dtype not in self.dtypes:
            return f"computes in {' and '.join(self.dtypes)} only"
        if not (workload.peers or self.ours or self.is_limit):
            return "cannot run the model of this workload"
        if device not in self.devices:
            return f"runs on {' and '.join(self.devices)} only"
        if self.longest and longest > self.longest:
            return f"takes at most {self.longest} tokens, because several copies of all scores are in memory"
        return None


LISTS = ("tasks", "architectures", "dtypes", "devices", "needs", "also")
"""Fields that are lists, written in candidates.toml as a string of words."""


def _candidates() -> tuple[Candidate, ...]:
    tables = tomllib.loads(Path(__file__).with_name("candidates.toml").read_text(encoding="utf-8"))
    found = []
    for row in tables["candidates"]:
        fields = tables["groups"].get(row.pop("like", ""), {}) | row
        fields |= {name: tuple(fields[name].split()) for name in LISTS if name in fields}
        found.append(Candidate(**fields | {"kinds": tuple(fields["kinds"])}))
    known = {candidate.choices.get("name") for candidate in found if candidate.ours}
    return *found, *itertools.chain.from_iterable(_modes(name) for name in named() if name not in known)


def _modes(name: str) -> Iterator[Candidate]:
    """Yield a candidate for each mode of a third-party backend. If its import fails, yield one candidate that counts as
    missing."""
    fields: dict[str, Any] = {"kinds": (NUMPY,), "build": "benchmarks.peers.ours:build", "ours": True}
    try:
        build = backend(name)
        given = {"needs": (), "dtypes": tuple(build.dtypes), "devices": tuple(build.devices())}
    except ImportError:
        yield Candidate(name, needs=(named()[name].partition(":")[0],), **fields)
        return
    for mode in build.modes:
        yield Candidate(f"{name} {mode}", choices={"name": name, "mode": mode}, **given | fields)


CANDIDATES = _candidates()


def against(root: Path) -> list[Candidate]:
    """Return this checkout's implementations, and as their peers, the implementations of the checkout `root`."""
    ours = [replace(candidate, kinds=(candidate.name,)) for candidate in CANDIDATES if candidate.ours]
    twins = [replace(each, name=f"{each.name}, {root.name}", ours=False, root=root.resolve()) for each in ours]
    return [*ours, *twins]
