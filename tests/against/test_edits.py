from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from tests.against.test_check import MISTAKES, MODELS, against_theirs, replaced
from tests.looping import for_each

from transparity_conformance.against.departures import Departure, Departures
from transparity_conformance.against.edits.edit import At, Context, Edit
from transparity_conformance.against.edits.elements import _along, orders
from transparity_conformance.against.edits.fitted import _fitted_cap
from transparity_conformance.against.edits.numbers import _slices
from transparity_conformance.against.edits.operands import operands
from transparity_conformance.against.flow import DataFlow
from transparity_conformance.against.search import EditSearch, Explanation
from transparity_conformance.listening.program import record_program
from transparity_conformance.report.check.findings import findings
from transparity_conformance.report.report import Report


@dataclass(frozen=True)
class Mistake:
    edits: Sequence[Sequence[str]]
    says: Sequence[str] = ()
    reference: str = "theirs"
    line: str | None = None
    port: str = ""
    is_usual: bool = False


CASES = {kind: Mistake(**row) for kind, row in MISTAKES["mistakes"].items()}
"""Mistakes by kind; `mistakes.toml` documents their fields."""

ANSWER = "self.norm(x) @ self.embedding.weight.T"


def checked(mistake: Mistake, folder: Path) -> Report:
    reference = MODELS[mistake.reference]
    return against_theirs(folder, replaced(reference, mistake.edits), reference=reference)


@pytest.mark.parametrize(
    "mistake",
    [pytest.param(each, id=kind, marks=[pytest.mark.long] * (not each.is_usual)) for kind, each in CASES.items()],
)
def test_a_mistake_is_told_with_both_lines_and_an_edit_that_gives_the_ports_answer(
    mistake: Mistake, tmp_path: Path
) -> None:
    report = checked(mistake, tmp_path)
    assert report.verdict == "diverges"
    causes = [fault.causes[0].says if fault.causes else "" for fault in report.faults]
    assert len(causes) == len(mistake.says), causes
    for cause, says in zip(causes, mistake.says, strict=True):
        assert bool(cause) == bool(says) and says in cause, causes
    told = [finding.causes[0].says for finding in findings(report) if finding.causes]
    assert {*told} == {*causes} - {""}
    fault, text = report.faults[0], mistake.line or mistake.edits[0][0]
    assert mistake.port in (fault.source or {"code": ""})["code"]
    if ANSWER in text:
        return
    line = next(number for number, each in enumerate(MODELS[mistake.reference].splitlines(), 1) if text in each)
    assert fault.source is not None
    assert fault.reference_source is not None
    near = {fault.source["line"], fault.reference_source["line"]}
    assert any(line <= each <= line + 3 for each in near), (line, near)


def test_a_regular_order_of_elements_is_told_in_words() -> None:
    for size, parts, says in (
        (8, 2, "takes the elements of q on axis -1 in the order 0, 4, 1, 5, …"),
        (8, 4, "takes the elements of q on axis -1 in the order 0, 2, 4, 6, …"),
        (9, 3, "takes the elements of q on axis -1 in the order 0, 3, 6, 1, …"),
    ):
        x = torch.arange(size)
        at: Any = SimpleNamespace(changing=lambda _, change, x=x: change(x))
        port = x.view(parts, -1).T.flatten()
        assert [edit.says for edit in _along(-1, size, "q") if torch.equal(cast(Any, edit.make(at)), port)] == [says]


def test_a_weight_that_is_not_normalized_is_not_called_another_order(tmp_path: Path) -> None:
    """`best.sum` is one number, so its softmax is 1: dividing by this softmax has the same effect as no division."""
    report = checked(Mistake([("best / best.sum(-1, keepdim=True)", "best")], reference="routed"), tmp_path)
    assert [fault.causes[0].mistake for fault in report.faults] == ["left out"]
    assert not any("explained if" in note for note in report.notes)


def test_one_answer_of_another_shape_is_a_fault_beside_wrong_numbers(tmp_path: Path) -> None:
    report = checked(Mistake([("k.mT * 0.5", "k.mT * 0.25"), (ANSWER, f"({ANSWER}).squeeze(0)")]), tmp_path)
    scale, shape = report.faults
    assert "0.25 instead of 0.5" in scale.causes[0].says
    assert "your port returns a result of the shape" in shape.causes[0].says
    assert [each["share"] for each in report.as_dict()["taps"] if each["probe"].startswith("2")] == ["inf"]


@for_each(
    ("first", "says", "count"), [(-3, "elements 3 to 5", 2), (3, "elements 3 to 5", 2), (-64, "elements 0 to 5", 0)]
)
def test_each_slice_of_another_place_has_other_elements(first: int, says: str, count: int) -> None:
    x = torch.arange(12.0, dtype=torch.float64).reshape(2, 6)
    program = record_program(torch.nn.Identity(), {"x": x}, lambda: x[:, first:] * 2)
    step = next(each for each in program.steps if "slice" in each.name and each.args[1] == 1)
    flow: Any = None
    at = At(program, flow, step)
    edits = [*_slices(at)]
    assert all(says in edit.says for edit in edits)
    made = [change(program.values) for edit in edits if (change := edit.make(at))]
    assert len(made) == count
    assert not any(torch.equal(each, at.value) for each in made)


def test_a_number_and_an_empty_tensor_have_no_other_order() -> None:
    x = torch.arange(12.0, dtype=torch.float64).reshape(2, 6)
    program = record_program(torch.nn.Identity(), {"x": x}, lambda: x.sum() + (x[:, :6:2] * 1)[:, 3:].sum())
    flow: Any = None
    found = [edit for step in program.steps for edit in orders(At(program, flow, step), Context())]
    assert {edit.kind for edit in found} == {"sign", "order"}


def test_an_edit_of_an_in_place_step_does_not_overwrite_recorded_values() -> None:
    x = torch.arange(6.0, dtype=torch.float64)
    program = record_program(torch.nn.Identity(), {"x": x}, lambda: (x * 2).add_(x))
    step = next(each for each in program.steps if each.aliases)
    at = At(program, DataFlow(program, {"x"}), step)
    copies = {index: value.clone() for index, value in program.values.items()}
    made = [change(program.values) for edit in operands(at, Context()) if (change := edit.make(at))]
    assert len(made) > 1
    assert all(torch.equal(value, copies[index]) for index, value in program.values.items())


def test_an_edit_that_only_a_new_tolerance_explains_is_measured_beside_one_that_agrees() -> None:
    def explanation(agrees: bool, lost: list[int]) -> Explanation:
        after: Any = SimpleNamespace(agrees=agrees, lost=lost, values={0: torch.zeros(1)})
        step: Any = SimpleNamespace(func="aten.mul.Tensor")
        return Explanation(Edit("number", "", lambda at: None), step, [0], 1, after)

    right: Any = SimpleNamespace(agrees=True, lost=[])
    search: Any = SimpleNamespace(
        program=SimpleNamespace(answer=0), comparer=SimpleNamespace(measured=lambda after: right)
    )
    found = [explanation(True, [1]), explanation(False, [1, 2])]
    assert EditSearch._ranked(search, found)[0].after is right


def test_another_epsilon_is_not_called_a_cap() -> None:
    """For small x, both c · tanh(x / c) and 1 / √(1 / x² + ε) are approximately x minus a multiple of x³."""
    sizes = np.linspace(0.1, 6.0, 50)
    assert _fitted_cap(sizes, np.sort(1 / np.sqrt(sizes**-2 + 3e-5))) is None
    assert _fitted_cap(sizes, 30 * np.tanh(sizes / 30)) == 30


def test_edits_are_tried_in_the_layers_of_each_type() -> None:
    steps = [SimpleNamespace(module=f"model.layers.{layer}.self_attn") for layer in range(4)]
    comparer: Any = SimpleNamespace(program=SimpleNamespace(steps=steps))
    search: Any = None
    departures = Departures(comparer, search, layer_types=("full", "sliding", "full", "sliding"))
    everywhere: Any = [Departure(departures, 0, comparer.program.steps[0], None, steps=[0, 1, 2, 3])]
    found = [[each.steps for each in tried] for tried in departures.in_one_type(everywhere)]
    assert found == [[[0, 2]], [[1, 3]]]
