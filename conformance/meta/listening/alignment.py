"""The pool `alignment`: the checker must find the activations of ports among recorded values.

The ports are the columns, and independent ports with one fault each. While a port is recorded, it returns only logits.
The found values are compared with the taps that the same ports can return. At least 95 % of the taps must be found, and
no found value may be wrong.
"""

import argparse
import functools
import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from meta.pool.port import CASES, port_with
from meta.pool.trials import is_everywhere, single_trials
from meta.trial import Answer, Measure, Trial
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
FAULTS = 4
"""The number of faulty ports for each configuration."""

Build = Callable[..., Callable[..., Arrays]]


def aligned(build: Build, probe: Probe) -> dict[str, Any]:
    """Record a port that returns only logits. Return how many taps the port has, how many were found, and the names of
    wrongly found taps."""
    shown_taps = build(probe.config, probe.parameters)(**probe.inputs)
    own = {tap: as_numbers(value) for tap, value in shown_taps.items()}
    taps, operations = run_listening(built(of_logits(build), probe), probe)
    plan = plan_of(probe, operations, taps["logits"], "float32", Clock())
    found, _ = read(plan, probe, operations, taps["logits"])
    shown = found.keys() & own.keys()  # a faulty port may lack a tap
    wrong = [tap for tap in own if tap in shown and not _is_same(found[tap], own[tap])]
    return {"taps": len(own), "found": len(shown), "wrong": wrong}


def _is_same(found: np.ndarray, own: np.ndarray) -> bool:
    """Return whether half of the digits agree; rounding changes fewer digits."""
    own = own.reshape(found.shape).astype(np.float64)
    largest = float(np.abs(own[np.isfinite(own)]).max(initial=0.0))
    return gap(found, own) <= epsilon("float32") ** 0.5 * largest


def column(framework: str) -> Build:
    def build(config: Any, parameters: Arrays) -> Callable[..., Arrays]:
        forward = backend(framework)(config, parameters, dtype="float32", mode="eager")
        return lambda **inputs: {name: as_numbers(value) for name, value in forward(**inputs).items()}

    return build


@functools.cache
def _probe(case: str) -> Probe:
    return aligned_probe(next(iter(probes_of(CASES[case], case).values())))


def aligned_in(case: str, build: Build) -> dict[str, Any]:
    return aligned(build, _probe(case))


def of_logits(build: Build) -> Build:
    def silent(config: Any, parameters: Arrays) -> Callable[..., Arrays]:
        forward = build(config, parameters)
        return lambda **inputs: {"logits": forward(**inputs)["logits"]}

    return silent


def trials(options: argparse.Namespace) -> list[Trial]:
    """Return a trial for each column and configuration, and for a sample of faulty independent ports."""
    found = [
        Trial(f"{case}, {framework}", partial(aligned_in, case, column(framework)), f"right, {framework}")
        for framework, case in itertools.product(FRAMEWORKS, CASES)
    ]
    every = [each for each in single_trials("fault") if each.view == "operations" and not is_everywhere(each.bugs[0])]
    for case in CASES:
        single = [trial for trial in every if trial.case == case]
        drawn = random.Random(0).sample(single, min(FAULTS, len(single)))
        found += [Trial(str(each), partial(aligned_in, case, port_with(*each.bugs)), "with a fault") for each in drawn]
    return found


def line_of(trial: Trial, answer: Answer) -> str:
    if answer["found"] == answer["taps"] and not answer["wrong"]:
        return ""
    wrong = ", ".join(answer["wrong"]) or "none"
    return f"{trial}: {answer['found']} of {answer['taps']} taps found; wrong values: {wrong}"


def _taps(right: Callable[[Answer], int]) -> Callable[[Trial, Answer], tuple[int, int]]:
    return lambda _, answer: (right(answer), answer["taps"])


MEASURES = [
    Measure(f"{group}: {title}", _taps(right), target, group)
    for group in (*(f"right, {framework}" for framework in FRAMEWORKS), "with a fault")
    for title, right, target in (
        ("taps found", lambda answer: answer["found"], 0.95),
        ("taps without a wrong value", lambda answer: answer["taps"] - len(answer["wrong"]), 1.0),
    )
]
