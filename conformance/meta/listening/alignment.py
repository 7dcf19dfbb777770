"""Measure alignment: `python -m meta.listening.alignment [--framework NAME] [--case NAME] [--faults N]`.

The columns, and independent ports with a catalogued fault each, are listened to while they return only their logits;
what is found is compared with the taps that they show otherwise. At least 95 % have to be found, and none wrongly.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from meta.pool.port import CASES, port_with
from meta.pool.trials import Trial, single_trials
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.identify.alignment.heard import aligned_probe
from transparity_conformance.identify.alignment.plan import plan_of, read
from transparity_conformance.oracle.backends import backend
from transparity_conformance.oracle.budgets import epsilon
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe, probes_of
from transparity_conformance.report.comparison import as_numbers, gap
from transparity_conformance.running.process.running import built, run_listening

FRAMEWORKS = ("pytorch", "flax", "numpy")

SHARE = 0.95
"""The target."""

Build = Callable[..., Callable[..., Arrays]]


@dataclass(frozen=True)
class Aligned:
    """What was found of one port."""

    port: str
    taps: int
    found: int
    wrong: tuple[str, ...]
    """Taps whose values are not the port's own."""


def aligned(name: str, build: Build, probe: Probe) -> Aligned:
    """Listen to the logits of a port, and compare what is found with its own taps."""
    shown_taps = build(probe.config, probe.parameters)(**probe.inputs)
    own = {tap: as_numbers(value) for tap, value in shown_taps.items()}
    taps, operations = run_listening(built(of_logits(build), probe), probe)
    plan = plan_of(probe, operations, taps["logits"], "float32", Clock())
    found, _ = read(plan, probe, operations, taps["logits"])
    shown = found.keys() & own.keys()  # a fault may leave a tap out
    wrong = tuple(tap for tap in own if tap in shown and not _is_same(found[tap], own[tap]))
    return Aligned(name, len(own), len(shown), wrong)


def _is_same(found: np.ndarray, own: np.ndarray) -> bool:
    """Return whether half of the digits agree: rounding costs fewer, and other numbers agree in none."""
    own = own.reshape(found.shape).astype(np.float64)
    largest = float(np.abs(own[np.isfinite(own)]).max(initial=0.0))
    return gap(found, own) <= epsilon("float32") ** 0.5 * largest


def column(framework: str) -> Build:
    """The column of a framework, as a port that shows its taps."""

    def build(config: Any, parameters: Arrays) -> Callable[..., Arrays]:
        forward = backend(framework)(config, parameters, dtype="float32", mode="eager")
        return lambda **inputs: {name: as_numbers(value) for name, value in forward(**inputs).items()}

    return build


def right_ports(frameworks: Sequence[str], cases: Mapping[str, Any]) -> Iterator[tuple[str, Build, Probe]]:
    """Every column, on one row of each configuration."""
    for case, config in cases.items():
        probe = aligned_probe(next(iter(probes_of(config, case).values())))
        yield from ((f"{case}, {framework}", column(framework), probe) for framework in frameworks)


def wrong_ports(cases: Mapping[str, Any], number: int) -> Iterator[tuple[str, Build, Probe]]:
    """Return independent ports with one catalogued fault each, the same number for every configuration."""
    steady = [each for each in single_trials("fault") if each.view == "operations" and _is_steady(each)]
    for case, config in cases.items():
        single = [trial for trial in steady if trial.case == case]
        probe = aligned_probe(next(iter(probes_of(config, case).values())))
        for trial in random.Random(0).sample(single, min(number, len(single))):
            yield str(trial), port_with(*trial.bugs), probe


def _is_steady(trial: Trial) -> bool:
    return not {"dropout-active", "low-precision"} & set(trial.bugs[0].causes)


def of_logits(build: Build) -> Build:
    """The same port, which returns only its logits."""

    def silent(config: Any, parameters: Arrays) -> Callable[..., Arrays]:
        forward = build(config, parameters)
        return lambda **inputs: {"logits": forward(**inputs)["logits"]}

    return silent


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the share of taps found; 1 if it is below the target, or any is wrong."""
    parser = argparse.ArgumentParser(description="Measure how many taps are found by value, and how many wrongly.")
    parser.add_argument("--framework", action="append", choices=FRAMEWORKS)
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--faults", type=int, default=4, metavar="N", help="wrong ports of each configuration")
    options = parser.parse_args(arguments)
    console = Console()
    cases = {name: config for name, config in CASES.items() if name in (options.case or [name])}
    shown = Table("ports", "number", "taps", "found", "wrong", title="Alignment by value")
    reached = True
    frameworks = options.framework or FRAMEWORKS
    groups = {f"right, {each}": right_ports([each], cases) for each in frameworks}
    groups["with a fault"] = wrong_ports(cases, options.faults)
    for title, ports in groups.items():
        answers = []
        for name, build, probe in ports:
            answers.append(answer := aligned(name, build, probe))
            if answer.wrong or answer.found < answer.taps:
                wrongly = f", wrongly {', '.join(answer.wrong)}" if answer.wrong else ""
                console.print(f"{name}: {answer.found} of {answer.taps} found{wrongly}", highlight=False)
        taps, found = sum(each.taps for each in answers), sum(each.found for each in answers)
        wrong = sum(len(each.wrong) for each in answers)
        shown.add_row(title, str(len(answers)), str(taps), str(found), str(wrong))
        reached &= found >= SHARE * taps and not wrong
    console.print(shown)
    return 0 if reached else 1


if __name__ == "__main__":
    raise SystemExit(main())
