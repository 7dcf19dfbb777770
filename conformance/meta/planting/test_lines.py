import functools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from meta.planting.planted import REFERENCE_COLUMN, Plant, planted
from meta.pool.bug import META, edited, rows
from meta.pool.port import pool
from transparity_conformance import check
from transparity_conformance.capabilities.capability import BuiltPort, ForwardPass
from transparity_conformance.capabilities.table import CAPABILITIES, compare_capability
from transparity_conformance.catalogue import hypotheses, whole_model
from transparity_conformance.catalogue.fault import Hypothesis
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.checkpoints.exporting import export_checkpoint
from transparity_conformance.cli import app
from transparity_conformance.diagnosis.walk import Impossible, walk
from transparity_conformance.oracle.cases import MODELS
from transparity_conformance.oracle.probes import Probe, probe_parameters, probes_of
from transparity_conformance.report.comparison import gap

COLUMNS = ("transparity_pytorch", "transparity_flax", REFERENCE_COLUMN)


def lines() -> Iterator[tuple[Plant, dict[str, Any]]]:
    of_bugs = [{"cause": bug.causes[0], **bug.columns} for bug in pool().values() if bug.columns]
    plants = [row for row in rows(META / "planting/plants.toml", "plant") if "case" in row]
    for row in (*of_bugs, *rows(META / "planting/around.toml", "columns"), *plants):
        for column in COLUMNS:
            own = row.get(column.removeprefix("transparity_"), {})
            text = row | own
            if own or "old" in text:  # a column with other code needs its own line
                yield Plant(row.get("cause") or row["id"], column, text["file"], text["old"], text["new"], ()), row


LINES = [*lines()]


@functools.cache
def probe_of(case: str, name: str) -> Probe:
    return probes_of(MODELS[case], case)[name]


@functools.cache
def faults_of(case: str) -> list[Hypothesis]:
    probe = probe_of(case, "mixed")
    return [*hypotheses(probe.config, list(probe.oracle.expected)), *whole_model(probe.config)]


def logits_with_the_fault(probe: Probe, cause: str) -> Iterator[np.ndarray]:
    for each in faults_of(probe.case):
        if each.fault.id == cause:
            try:
                yield walk(probe, {}, [each])["logits"]
            except Impossible:
                continue


@pytest.mark.parametrize(
    "line", [(plant, row) for plant, row in LINES if "capability" not in row], ids=lambda line: str(line[0])
)
def test_a_column_with_a_wrong_line_computes_what_the_reference_with_the_fault_computes(
    line: tuple[Plant, dict[str, Any]],
) -> None:
    plant, row = line
    probe = probe_of(row["case"], row.get("probe", "mixed"))
    with planted(plant.column, plant.file, plant.source()) as build, np.errstate(all="ignore"):
        model = build(probe.config, probe.parameters, dtype="float64", mode="eager")
        wrong = np.asarray(model(**probe.inputs)["logits"])
    budget = probe.budget("float32")
    assert gap(wrong, probe.oracle.expected["logits"]) > budget
    assert any(gap(wrong, logits) <= budget for logits in logits_with_the_fault(probe, plant.mistake))


@pytest.mark.parametrize(
    "line", [(plant, row) for plant, row in LINES if "capability" in row], ids=lambda line: str(line[0])
)
def test_the_checker_names_the_fault_of_a_column_with_a_wrong_line(line: tuple[Plant, dict[str, Any]]) -> None:
    plant, row = line
    if row["capability"] == "forward":
        with planted(plant.column, plant.file, plant.source()) as build:
            report = check(build, config=replace(MODELS[row["case"]], **row.get("fields", {})), quick=True)
        assert [cause.mistake for fault in report.faults for cause in fault.causes] == [plant.mistake]
        return
    probes = {name: probe_of(row["case"], name) for name in ("mixed", "text", "longest")}
    with planted(plant.column, plant.file, plant.source()) as build:
        model = build(probes["mixed"].config, probes["mixed"].parameters, dtype="float32")
    logits = {name: np.asarray(model.logits(**probe.inputs)) for name, probe in probes.items()}
    forward = ForwardPass(probes, logits, "float32")
    found = compare_capability(CAPABILITIES[row["capability"]], BuiltPort(build, model), forward)
    assert {cause.mistake for fault in found.faults for cause in fault.causes} == {plant.mistake}


def test_bits_of_bfloat16_that_are_read_as_float16_are_named(tmp_path: Path) -> None:
    (row,) = (row for row in rows(META / "planting/around.toml", "line") if row["cause"] == "folder-read")
    text = (META.parents[1] / row["file"]).read_text(encoding="utf-8")
    (tmp_path / "right.py").write_text(text, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(edited(text, row["old"], row["new"]), encoding="utf-8")
    config, folder = example_config("llama"), tmp_path / "folder"
    export_checkpoint("llama", config, probe_parameters(config), folder)
    weights = folder / "model.safetensors"
    save_file({name: value.to(torch.bfloat16) for name, value in load_file(weights).items()}, weights)
    answers = [
        CliRunner().invoke(app, ["check", f"{tmp_path / name}.py:load", "--checkpoint", str(folder), "--no-audit"])
        for name in ("right", "wrong")
    ]
    assert [answer.exit_code for answer in answers] == [0, 1]
    assert ["  folder-read  " in answer.output for answer in answers] == [False, True]
