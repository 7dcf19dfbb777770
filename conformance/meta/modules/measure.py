"""The pool `modules`: GPT-2 and Llama in Equinox and Keras, without and with one mistake."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

from meta.pool.bug import rows
from meta.trial import Measure, Trial
from transparity_conformance.checking.check import check
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.report.report import Report
from transparity_conformance.running.adapters.adapter import Adapter
from transparity_conformance.running.adapters.model import adapted

Mistakes = dict[str, Any]

CASES: list[tuple[str, Mistakes, set[str]]] = [
    (row["family"], row["mistakes"], set(row["causes"])) for row in rows(Path(__file__).with_name("cases.toml"), "case")
]
"""The cases: a family, mistakes, and the causes that the checker must name; without a mistake it must agree."""

LINES: dict[str, dict[str, dict[str, str]]] = tomllib.loads(Path(__file__).with_name("lines.toml").read_text())
"""By framework and family, the attribute of the model that stores each parameter of the reference."""

QUERY = "decoder.layers.{i}.self_attention.query.weight"


def models_of(framework: str) -> Any:
    """Return the module that defines a framework's models."""
    return importlib.import_module(f"meta.modules.{framework}_models")


def judged(framework: str, family: str, mistakes: Mistakes) -> Report:
    """Check a one-layer model; `LINES` maps its tensors to the reference's parameters."""
    given, lines = dict(mistakes), dict(LINES[framework][family])
    if given.pop("transposed", False):
        lines[QUERY] = lines[QUERY].removesuffix(".T") if lines[QUERY].endswith(".T") else f"{lines[QUERY]}.T"
    config = dataclasses.replace(example_config(family), num_decoder_layers=1)
    return check(adapted(models_of(framework).model(family, **given), Adapter(lines)), family, config=config)


def causes(report: Report) -> set[str]:
    """Return the ids of all causes in a report."""
    return {cause.mistake for fault in report.faults for cause in fault.causes}


def answer_of(framework: str, family: str, mistakes: Mistakes, expected: set[str]) -> dict[str, Any]:
    """Return whether the verdict and the causes are right, with the line of the first fault."""
    report = judged(framework, family, mistakes)
    is_right = report.verdict == ("diverges" if expected else "agrees")
    found, source = causes(report), report.faults[0].source if report.faults else None
    line = "no line" if source is None else f"line {source['line']}: {source['code']}"
    return {"is_right": is_right and found == expected, "says": f"{report.verdict} {', '.join(found)}; {line}"}


def trials(options: argparse.Namespace) -> list[Trial]:
    """Return every case in every framework.

    Keras uses the backend in the environment variable KERAS_BACKEND, or PyTorch.
    """
    return [
        Trial(f"{framework}, {family}, {mistakes}", partial(answer_of, framework, family, mistakes, expected))
        for framework in LINES
        for family, mistakes, expected in CASES
    ]


MEASURES = (Measure("judged rightly", lambda _, answer: answer["is_right"], 1.0),)
