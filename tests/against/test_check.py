import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.helpers import invoke, table

from transparity_conformance import check
from transparity_conformance.against.compare import without_consequences
from transparity_conformance.against.departures import Departure
from transparity_conformance.against.edits.edit import Edit
from transparity_conformance.against.masks import dropping_line
from transparity_conformance.against.references.weights import Choice, Paired, Place
from transparity_conformance.listening.operation import Source
from transparity_conformance.report.check.findings import sentence
from transparity_conformance.report.report import Report
from transparity_conformance.running.loading import load_port

MODELS: dict[str, str] = {}


def replaced(text: str, edits: Iterable[Sequence[str]]) -> str:
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return text


MISTAKES = table(__file__, "mistakes.toml")
for _name, _row in MISTAKES["models"].items():
    MODELS[_name] = _row["text"] if "text" in _row else replaced(MODELS[_row.get("like", "theirs")], _row["edits"])
THEIRS = MODELS["theirs"]

INPUTS = [
    {"tokens": np.random.default_rng(n).integers(0, 32, shape)} for n, shape in enumerate([(2, 7), (1, 1), (3, 12)])
]


def written(folder: Path, name: str, text: str) -> str:
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return f"{folder / name}.py:Model"


def against_theirs(folder: Path, text: str, name: str = "port", reference: str = THEIRS) -> Report:
    port, theirs = written(folder, name, text), written(folder, "theirs", reference)
    return check(load_port(port)(), against=load_port(theirs)(), inputs=INPUTS)


def test_right_ports_agree_however_they_are_written(tmp_path: Path) -> None:
    report = against_theirs(tmp_path, MODELS["written otherwise"])
    assert (report.verdict, report.faults) == ("agrees", ())
    assert report.coverage.lengths == (1, 7, 12)


def test_an_unlike_port_is_not_explained(tmp_path: Path) -> None:
    report = against_theirs(tmp_path, THEIRS.replace("x + self.down(h)", "x + self.down(h).cumsum(1) * x.sin()"))
    assert report.verdict == "diverges"
    assert any(not fault.causes for fault in report.faults)
    assert not any("explained if" in note or "computes the port's answers" in note for note in report.notes)


def test_a_difference_that_follows_from_an_unexplained_one_is_not_told() -> None:
    operations = [SimpleNamespace(source="", inputs=each) for each in ((), (0,), (1,), (2,), (3,), (4,))]
    port = SimpleNamespace(operations=operations, leads_to=lambda one, other: one <= other)
    program = SimpleNamespace(makers=lambda number: set[int]())
    by: Any = SimpleNamespace(comparer=SimpleNamespace(port=port, program=program))

    def departure(operation: int, line: int, edit: Edit | None = None) -> Departure:
        step: Any = SimpleNamespace(line=line, number=operation)
        return Departure(by, operation, step, edit)

    before, explained = departure(1, 10), departure(4, 40, Edit("number", "", lambda at: None))
    first, again, follows = departure(2, 20), departure(3, 20), departure(5, 30)
    assert without_consequences([first, again, explained, follows, before]) == [first, again, explained, before]


@pytest.mark.parametrize(("part", "shape"), [("[:, :-1]", "(2, 6, 32)"), ("[:0]", "(0, 7, 32)"), ("[0, 0, 0]", "()")])
def test_an_answer_of_another_shape_diverges(part: str, shape: str, tmp_path: Path) -> None:
    answer = "self.norm(x) @ self.embedding.weight.T"
    report = against_theirs(tmp_path, THEIRS.replace(answer, f"({answer}){part}"))
    assert report.verdict == "diverges" and "its shape is wrong" in sentence(report)
    assert report.as_dict()["faults"][0]["error"] == "inf"
    assert any(f"shape {shape} on" in note and "expected (2, 7, 32)" in note for note in report.notes), report.notes


def test_the_command_checks_modules_and_writes_both_lines(tmp_path: Path) -> None:
    port = written(tmp_path, "port", THEIRS.replace("k.mT * 0.5", "k.mT * 0.25"))
    theirs = written(tmp_path, "theirs", THEIRS)
    inputs, answer = tmp_path / "inputs.py", tmp_path / "answer.json"
    inputs.write_text(
        "import numpy\ninputs = [{'tokens': numpy.arange(10).reshape(2, 5)}, {'tokens': numpy.ones((1, 3), int)}]"
    )
    result = invoke("check", port, "--against", theirs, "--inputs", inputs, "--json", answer)
    assert result.exit_code == 1, result.output
    assert "departs from theirs.py:" in re.sub(r"\s+", " ", result.output)
    fault = json.loads(answer.read_text())[0]["faults"][0]
    assert fault["source"]["line"] == fault["reference_source"]["line"]
    missing = invoke("check", port, "--against", theirs, "--inputs", tmp_path / "none.py")
    assert (missing.exit_code, "none.py" in missing.stderr, missing.stderr.count("\n")) == (2, True, 1)


def checked_with(text: str, folder: Path, theirs: str = THEIRS) -> Any:
    written(folder, "port", text)
    written(folder, "theirs", theirs)
    (folder / "inputs.py").write_text("import numpy\ninputs = [{'tokens': numpy.arange(14).reshape(2, 7)}]")
    command = ["check", "port.py:Model", "--against", "theirs.py:Model", "--inputs", "inputs.py"]
    return invoke(*command)


@pytest.mark.parametrize(
    ("port", "reference"),
    [
        ("packed", "theirs"),
        ("norms apart", "two norms"),
        ("one map", "three maps"),
        ("three maps", "one map"),
        ("two maps", "three maps"),
    ],
)
def test_tensors_with_other_names_or_fused_are_paired_by_what_the_port_computes(
    port: str, reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = checked_with(MODELS[port], tmp_path, MODELS[reference])
    assert result.exit_code == 0, result.output
    assert "matched only by names and order" not in " ".join(result.output.split())
    if "tanh" in MODELS[port]:
        wrong = checked_with(MODELS[port].replace("tanh", "sigmoid"), tmp_path, MODELS[reference])
        assert "sigmoid, where the reference applies `tanh`" in re.sub(r"\s+", " ", wrong.output)


INSIDE = """

class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Model()

    def forward(self, tokens):
        return self.model(tokens)
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("silu(self.gate(h)) * self.up(h)", "silu(self.up(h)) * self.gate(h)"),
        ("self.heads(self.query(x)), self.heads(self.key(x))", "self.heads(self.key(x)), self.heads(self.query(x))"),
        ("self.out({})", "nn.functional.linear({}, self.out.weight.T, self.out.bias)"),
    ],
)
def test_tensors_with_the_names_of_the_reference_are_paired_by_name(old: str, new: str, tmp_path: Path) -> None:
    context = "context.transpose(1, 2).flatten(-2)"
    renamed = [
        ("self.norm, self.norm2", "self.norm2, self.first"),
        ("self.norm(x)\n        x", "self.first(x)\n        x"),
    ]
    right = replaced(THEIRS, renamed) + INSIDE
    wrong = replaced(right, [(old.format(context), new.format(context))])
    written(tmp_path, "theirs", THEIRS)
    for name, text in (("right", right), ("wrong", wrong)):
        written(tmp_path, name, text)
        report = check(
            load_port(f"{tmp_path / name}.py:Outer"),
            against=load_port(f"{tmp_path / 'theirs'}.py:Model"),
            inputs=INPUTS,
        )
        assert report.verdict == ("agrees" if name == "right" else "diverges"), report.notes
    assert "your port swaps" in report.faults[0].causes[0].says


def test_heads_of_flax_are_paired_with_the_fused_matrices_of_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = checked_with(MODELS["of Flax"], tmp_path, MODELS["attention of PyTorch"])
    assert result.exit_code == 0, result.output
    assert "matched only by names and order" not in " ".join(result.output.split())


def test_a_tensor_in_another_order_of_memory_is_filled() -> None:
    theirs, port = np.arange(24.0).reshape(4, 6), np.asfortranarray(np.zeros((6, 2, 2)))
    pairs = Paired({"map": Choice((Place("kernel", (1, 0), (6, 4)),))})
    assert (pairs.values({"map": theirs}, {"kernel": port})["kernel"] == theirs.T.reshape(6, 2, 2)).all()


def test_tensors_of_flax_with_the_names_of_the_reference_are_paired_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    port, theirs = MODELS["scores of Flax"], MODELS["scores of PyTorch"]
    assert checked_with(port, tmp_path, theirs).exit_code == 0
    swapped = port.replace("query @ key.swap", "key @ query.swap")
    assert checked_with(swapped, tmp_path, theirs).exit_code == 1


def test_a_parameter_that_a_new_module_fills_with_zeros_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    theirs = MODELS["attention of PyTorch"]
    assert checked_with(theirs.replace("+ self.shift", ""), tmp_path, theirs).exit_code == 1
    assert checked_with(theirs, tmp_path, theirs).exit_code == 0


def test_a_tensor_without_a_counterpart_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = checked_with(THEIRS.replace("nn.Linear(24, 16)", "nn.Linear(24, 16, bias=False)"), tmp_path)
    assert result.exit_code == 2
    assert "has no counterpart in the port" in re.sub(r"\s+", " ", result.output)
    assert ".bias" in result.output


def test_the_rows_of_a_tensor_are_paired_with_the_experts_of_the_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    port, theirs = MODELS["experts as layers"], MODELS["experts in one tensor"]
    result = checked_with(port, tmp_path, theirs)
    assert result.exit_code == 0, result.output
    assert checked_with(port.replace("self.wide,", "self.wide[::-1],"), tmp_path, theirs).exit_code == 1


MASKED = """
def model(ids, attention_mask=None):
    x = embed(ids)
    bias = bias_of(attention_mask)
    for layer in layers:
        x = layer(x, {given})
    return x


def layer(x, mask):
    return x + attention(norm(x), {passed})


def attention(x, mask):
    return softmax(x @ x.mT)
"""
LAYER, ATTENTION, SOFTMAX = 6, 11, 15


@pytest.mark.parametrize(
    ("given", "passed", "line"),
    [("None", "mask", LAYER), ("bias", "mask=None", ATTENTION), ("bias", "mask", SOFTMAX)],
)
def test_the_outermost_line_that_drops_the_mask_is_found(tmp_path: Path, given: str, passed: str, line: int) -> None:
    file = tmp_path / "port.py"
    file.write_text(MASKED.format(given=given, passed=passed))
    stack = [Source(str(file), number, "") for number in (SOFTMAX, ATTENTION, LAYER)]
    assert dropping_line(stack) == stack[[SOFTMAX, ATTENTION, LAYER].index(line)]


def test_a_mask_that_every_function_reads_is_not_dropped(tmp_path: Path) -> None:
    file = tmp_path / "port.py"
    file.write_text("def attention(x, mask):\n    scores = x @ x.mT + mask\n    return softmax(scores)\n")
    assert dropping_line([Source(str(file), 3, "")]) is None
