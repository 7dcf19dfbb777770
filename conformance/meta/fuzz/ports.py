"""Ports that return or raise anything, in this process, and programs that write or do anything."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from meta.fuzz.documents import TINY
from meta.fuzz.folders import right_bundle, write
from meta.fuzz.outcome import ACCEPTED, WrongAnswerError
from meta.fuzz.wild import ERRORS, EXITS, NAMES, NOT_FINITE, Hostile, damaged, wild_object
from transparity_conformance.checking.check import check
from transparity_conformance.exchange.bundle import ACTUAL
from transparity_conformance.exchange.reading import read_actual
from transparity_conformance.oracle.probes import Probe, probes_of
from transparity_conformance.running.loading import load_port
from transparity_conformance.running.process.program import run_command
from transparity_conformance.running.process.running import built, run
from transparity_numpy.port import build as right_port

SEARCH = 2.0
"""Seconds for the search for causes, so that it is no part of what is measured."""


class Surprising(dict[str, Any]):
    """Taps that raise where they are looked at."""

    def items(self) -> Any:
        raise RuntimeError("items")

    def keys(self) -> Any:
        raise SystemExit(0)

    __iter__ = keys


def answer(random: Random, right: dict[str, Any]) -> Any:
    """Values that a port may return instead of the right taps."""
    logits = right["logits"]
    ways: tuple[Callable[[], Any], ...] = (
        lambda: wild_object(random),
        lambda: {"logits": wild_object(random)},
        lambda: right | {random.choice([*right]): wild_object(random)},
        lambda: right | {random.choice((*NAMES, 3, None, (1,), Hostile(random.choice(ERRORS)))): logits},
        lambda: Surprising(right),
        dict,
        lambda: [logits[:1]],
        lambda: logits[:1],
        lambda: logits.T,
        lambda: logits.astype(random.choice(("float16", "complex128", "bool", "object", "int64", "S8"))),
        lambda: np.where(np.arange(logits.size).reshape(logits.shape) == 3, random.choice(NOT_FINITE), logits),
        lambda: logits * random.choice((0, 1e300, -1, 1e-300)),
        lambda: _raised(random),
    )
    return random.choice(ways)()


def _raised(random: Random) -> Any:
    raise random.choice((*ERRORS, *EXITS))(random.choice((*NAMES, "x" * 10**6, Hostile(ValueError))))


def wild_build(random: Random, share_of_builds: float = 0.3) -> Callable[..., Any]:
    """A port that is wrong when it is built, or when it is called."""
    fails_in_build, chosen = random.random() < share_of_builds, random.random()

    def build(config: Any, parameters: Any) -> Any:
        if fails_in_build:
            return _raised(random) if random.random() < 0.7 else wild_object(random)
        forward = right_port(config, parameters)
        # the same answer to every call: a port that changes is found out by that alone
        return lambda **tokens: answer(Random(chosen), forward(**tokens))

    return build


@functools.cache
def probe() -> Probe:
    return probes_of(TINY, "config")["one"]


def port_call(random: Random, folder: Path) -> str:
    """A port that is built and called once."""
    run(built(wild_build(random), probe()), probe(), logits_only=random.random() < 0.2)
    return ACCEPTED


def port_check(random: Random, folder: Path) -> str:
    """A whole check of a port; what is wrong never agrees."""
    report = check(wild_build(random, 0.1), config=TINY, budget=SEARCH)
    if report.verdict == "agrees":
        raise WrongAnswerError("a port that is wrong agrees")
    if any(not line.isprintable() for line in (*report.notes, *report.not_compared)):
        raise WrongAnswerError("a line of the report is not printable")
    return report.verdict


SOURCES = (
    "raise {error}({text!a})",
    "import sys; sys.exit({number})",
    "def build(config, parameters): raise {error}({text!a})",
    "build = {number}",
    "def build(",
    "\0",
    "\xff",
    "import no_such_module",
    "def __getattr__(name): raise {error}({text!a})",
    "class build:\n    def __init__(self, *_): raise {error}",
    "",
)


def port_file(random: Random, folder: Path) -> str:
    """A Python file that cannot be imported, or has no port; and names of ports that are none."""
    source = random.choice(SOURCES).format(
        error=random.choice((*ERRORS, *EXITS)).__name__, text=random.choice(NAMES), number=random.randrange(4)
    )
    path = folder / "port.py"
    path.write_text(source, encoding="latin-1")
    name = random.choice(("build", "build", "build", "x y", "", "__name__", "é", "a.b"))
    spec = random.choice((f"{path}:{name}", f"{path}:{name}", random.choice(NAMES), f"{random.choice(NAMES)}:{name}"))
    run(built(load_port(spec), probe()), probe())
    return ACCEPTED


PROGRAMS = (
    "true",
    "false",
    "exit {number}",
    "kill -{number} $$",
    "cp {source} {actual}",
    "cp {source} {actual}; exit {number}",
    "cp {source} {actual}; kill -9 $$",
    "mkdir {actual}",
    "mkfifo {actual}",
    "ln -s {actual} {actual}",
    "ln -s /dev/zero {actual}",
    "truncate -s 8T {actual}",
    "printf '\\033[2J\\342\\200\\256%300s' x >&2; exit 1",
    "head -c 1000000 /dev/urandom >&2; exit 2",
    "rm -rf {bundle}",
)


def program(random: Random, folder: Path) -> str:
    """A program that ends in any way, and writes anything."""
    bundle, files = right_bundle()
    (folder / "bundle").mkdir()
    write(folder / "bundle", {"config.json": files["config.json"]})
    (folder / "source").write_bytes(damaged(random, files["expected.safetensors"]))
    paths = {"source": folder / "source", "actual": folder / ACTUAL, "bundle": folder / "bundle"}
    script = random.choice(PROGRAMS).format(**paths, number=random.randrange(1, 65))
    command = f"sh -c {shlex.quote(script)}"
    if random.random() < 0.1:
        command = random.choice((*NAMES, "'", "/", "/etc/passwd", "x" * 10**5))
    completed = run_command(command, folder / "bundle", folder / ACTUAL, timeout=5)
    read_actual(completed.actual, bundle, cut=completed.failure is not None)
    return ACCEPTED
