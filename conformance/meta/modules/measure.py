"""The pool `modules`: GPT-2 and Llama in Equinox and Keras, correct or with one mistake."""

import argparse
import dataclasses
import importlib
import tempfile
import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from meta.pool.bug import edited_copy, rows
from meta.trial import Measure, Trial
from transparity_conformance.checking.check import check
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.report.report import Report
from transparity_conformance.running.adapters.adapter import Adapter
from transparity_conformance.running.adapters.model import adapted
from transparity_conformance.running.loading import load_file

CASES = rows(Path(__file__).with_name("cases.toml"), "case")
"""Rows with a family, an edit of each framework's file, and the causes that the checker must name."""

LINES: dict[str, dict[str, dict[str, str]]] = tomllib.loads(Path(__file__).with_name("lines.toml").read_text())
"""The model's attribute for each parameter of the reference, by framework and family."""

QUERY = "decoder.layers.{i}.self_attention.query.weight"


def models_of(framework: str) -> Any:
    return importlib.import_module(f"meta.modules.{framework}_models")


def file_of(framework: str, case: Mapping[str, Any], folder: Path) -> Path:
    path = Path(__file__).with_name(f"{framework}_models.py")
    return edited_copy(path, folder, **case[framework]) if framework in case else path


def judged(framework: str, case: Mapping[str, Any]) -> Report:
    """Check a one-layer model; `LINES` maps its tensors to the reference's parameters."""
    family, lines = case["family"], dict(LINES[framework][case["family"]])
    if case["id"] == "transposed":
        lines[QUERY] = lines[QUERY].removesuffix(".T") if lines[QUERY].endswith(".T") else f"{lines[QUERY]}.T"
    config = dataclasses.replace(example_config(family), num_decoder_layers=1)
    with tempfile.TemporaryDirectory() as folder:
        model = load_file(file_of(framework, case, Path(folder))).model(family)
        return check(adapted(model, Adapter(lines)), family, config=config)


def causes(report: Report) -> set[str]:
    return {cause.mistake for fault in report.faults for cause in fault.causes}


def answer_of(framework: str, case: Mapping[str, Any]) -> dict[str, Any]:
    report = judged(framework, case)
    is_right = report.verdict == ("diverges" if case["causes"] else "agrees")
    found, source = causes(report), report.faults[0].source if report.faults else None
    line = "no line" if source is None else f"line {source['line']}: {source['code']}"
    return {"is_right": is_right and found == {*case["causes"]}, "says": f"{report.verdict} {', '.join(found)}; {line}"}


def trials(options: argparse.Namespace) -> list[Trial]:
    """Return every case in every framework; Keras uses the backend in KERAS_BACKEND, by default PyTorch."""
    return [
        Trial(f"{framework}, {case['family']}, {case['id']}", partial(answer_of, framework, case))
        for framework in LINES
        for case in CASES
    ]


MEASURES = (Measure("judged rightly", lambda _, answer: answer["is_right"], 1.0),)
