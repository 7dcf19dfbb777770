"""The pool `modules`: a GPT-2 and a Llama of equinox and Keras, right ones and ones with a mistake."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meta.pool.bug import rows
from meta.trial import Measure
from transparity_conformance.checking.check import check
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.report.report import Report
from transparity_conformance.running.adapters.adapter import Adapter
from transparity_conformance.running.adapters.model import adapted

Mistakes = dict[str, Any]

CASES: list[tuple[str, Mistakes, set[str]]] = [
    (row["family"], row["mistakes"], set(row["causes"])) for row in rows(Path(__file__).with_name("cases.toml"), "case")
]
"""Family, mistakes, and the right causes; a model without a mistake agrees."""

LINES: dict[str, dict[str, dict[str, str]]] = tomllib.loads(Path(__file__).with_name("lines.toml").read_text())
"""Where the models of a framework and family store the reference's parameters."""

QUERY = "decoder.layers.{i}.self_attention.query.weight"


def models_of(framework: str) -> Any:
    """Return the file of a framework's models: `model(family, **mistakes)`."""
    return importlib.import_module(f"meta.modules.{framework}_models")


def judged(framework: str, family: str, mistakes: Mistakes) -> Report:
    """Return the report on a model of one layer, whose tensors are placed by the lines of its file."""
    given, lines = dict(mistakes), dict(LINES[framework][family])
    if given.pop("transposed", False):
        lines[QUERY] = lines[QUERY].removesuffix(".T") if lines[QUERY].endswith(".T") else f"{lines[QUERY]}.T"
    config = dataclasses.replace(example_config(family), num_decoder_layers=1)
    return check(adapted(models_of(framework).model(family, **given), Adapter(lines)), family, config=config)


def causes(report: Report) -> set[str]:
    """Return the ids of all causes."""
    return {cause.mistake for fault in report.faults for cause in fault.causes}


@dataclass(frozen=True)
class ModuleTrial:
    """A case in a framework; Keras runs on the backend that KERAS_BACKEND names, PyTorch without one."""

    framework: str
    family: str
    mistakes: Mistakes
    expected: set[str]

    def __str__(self) -> str:
        return f"{self.framework}, {self.family}, {self.mistakes}"

    def run(self) -> dict[str, Any]:
        report = judged(self.framework, self.family, self.mistakes)
        is_right = report.verdict == ("diverges" if self.expected else "agrees")
        found, source = causes(report), report.faults[0].source if report.faults else None
        line = "no line" if source is None else f"line {source['line']}: {source['code']}"
        says = f"{report.verdict} {', '.join(found)}; {line}"
        return {"is_right": is_right and found == self.expected, "says": says}


def trials(options: argparse.Namespace) -> list[ModuleTrial]:
    """Return every case in every framework."""
    return [ModuleTrial(framework, *case) for framework in LINES for case in CASES]


MEASURES = (Measure("judged rightly", lambda _, answer: answer["is_right"], 1.0),)
