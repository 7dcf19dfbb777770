"""Test the faults that a check against a reference tells: their lines, and an edit that explains each mistake."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.against.test_check import THEIRS, against_theirs, replaced
from tests.looping import for_each

from transparity_conformance.against.edits.edit import At, Edit
from transparity_conformance.against.edits.fitted import _fitted_cap
from transparity_conformance.against.edits.numbers import _slices
from transparity_conformance.against.search import EditSearch, Explanation
from transparity_conformance.listening.program import record_program
from transparity_conformance.report.check.findings import findings
from transparity_conformance.report.report import Report

ROTATED = replaced(
    THEIRS,
    {
        "    def attention(self, x):\n": """    def table(self, x):
        angles = torch.arange(x.shape[1])[:, None] * 10000 ** -(torch.arange(2) / 2)
        angles = torch.cat((angles, angles), -1)
        return angles.cos(), angles.sin()

    def turned(self, x, cos, sin):
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    def attention(self, x):
        cos, sin = self.table(x)
""",
        "        scores = q @": """        q, k = self.turned(q, cos, sin), self.turned(k, cos, sin)
        scores = q @""",
    },
)

SOMETIMES_ROTATED = replaced(
    ROTATED,
    {
        "class Layer(nn.Module):\n    def __init__(self):\n        super().__init__()": """class Layer(nn.Module):
    def __init__(self, turns):
        super().__init__()
        self.turns = turns""",
        "        q, k = self.turned": "        if self.turns:\n            q, k = self.turned",
        "Layer() for _ in range(2)": "Layer(n % 2 == 0) for n in range(4)",
    },
)

GATED = replaced(
    THEIRS,
    {
        "self.up, self.gate, self.down = nn.Linear(16, 24), nn.Linear(16, 24)": (
            "self.up, self.down = nn.Linear(16, 48)"
        ),
        "h = nn.functional.silu(self.gate(h)) * self.up(h)": """gate, up = self.up(h).chunk(2, -1)
        h = nn.functional.silu(gate) * up""",
    },
)

BIASED = replaced(
    THEIRS,
    {
        "        x = self.embedding(tokens)": """        x = self.embedding(tokens)
        x = torch.cat((x[:, :1] * 2, x[:, 1:]), 1) + self.bias\n""",
        "        self.norm = nn.RMSNorm(16, eps=1e-5)\n        gen": """        self.norm = nn.RMSNorm(16, eps=1e-5)
        self.bias = nn.Parameter(torch.zeros(16))
        gen""",
    },
)

SHIFTED = replaced(
    THEIRS,
    {
        "        x = self.embedding(tokens)": """        x = self.embedding(tokens)
        x = x + 0.5 * nn.functional.pad(x, (0, 0, 2, 0))[:, : x.shape[1]]"""
    },
)

GELU = replaced(THEIRS, {"nn.functional.silu(": "nn.functional.gelu("})

LAYER_NORMS = replaced(THEIRS, {"nn.RMSNorm(16, eps=1e-5)": "nn.LayerNorm(16, eps=1e-5)"})

BATCH_NORM = replaced(
    THEIRS,
    {
        "self.norm = nn.RMSNorm(16, eps=1e-5)\n        gen": "self.norm = nn.BatchNorm1d(16, eps=1e-3)\n        gen",
        "self.norm(x) @": "self.norm(x.mT).mT @",
    },
)

ONE_LAYER = replaced(
    THEIRS,
    {
        "forward(self, x):": "forward(self, x, no_norm=False):",
        "h = self.norm2(x)": "h = x if no_norm else self.norm2(x)",
    },
)

ONE_GATE = replaced(
    THEIRS,
    {
        "forward(self, x):\n        h = self.norm(x)": "forward(self, x, swaps=False):\n        h = self.norm(x)",
        "h = nn.functional.silu(self.gate(h)) * self.up(h)": """gate, up = self.gate, self.up
        gate, up = (up, gate) if swaps else (gate, up)
        h = nn.functional.silu(gate(h)) * up(h)""",
    },
)

WINDOW = replaced(THEIRS, {".tril()": ".tril().triu(-8)"})

IN_ORDER = replaced(
    THEIRS,
    {
        "    def attention(self, x):": """    def scaled(self, x):
        return nn.functional.normalize(x, dim=-1) * 2.0

    def turned(self, x):
        return x + 0.5 * x.cumsum(2)

    def attention(self, x):""",
        "        scores = q @": """        q = self.turned(self.scaled(q))
        k = self.turned(self.scaled(k))
        scores = q @""",
    },
)

LARGE_SCORES = replaced(THEIRS, {"noise / parameter.shape[-1] ** 0.5": "6 * noise / parameter.shape[-1] ** 0.5"})

CLIPPED = replaced(LARGE_SCORES, {"q @ k.mT * 0.5": "(q @ k.mT * 0.5).clamp(-5, 5)"})

CAPPED = replaced(LARGE_SCORES, {"q @ k.mT * 0.5": "(q @ k.mT * 0.5 / 5).tanh() * 5"})

SCALE = "scores = q @ k.mT * 0.5"
SLOPED = replaced(
    THEIRS,
    {
        SCALE: f"""far = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        {SCALE} - self.slopes[:, None, None] * far""",
        "        self.query, self.key": """        slopes = 0.5 ** torch.arange(1.0, 5.0)
        self.register_buffer("slopes", slopes, persistent=False)
        self.query, self.key""",
    },
)
TURNING = "return x * cos + torch.cat((-second, first), -1) * sin"
TURNED_BY_HALVES = """cos, sin = cos[:, :2], sin[:, :2]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)"""
FILLED = 'scores = scores.masked_fill(~seen, float("-inf"))'
LOWEST_MASK = " + torch.where(seen, 0.0, torch.finfo(scores.dtype).min)"
LOWEST = replaced(THEIRS, {FILLED: f"scores = scores{LOWEST_MASK}"})
HALF = {"k.mT * 0.5": "k.mT * 0.25"}
OTHER_ORDER = {"k = self.turned(self.scaled(k))": "k = self.scaled(self.turned(k))"}
ANSWER = "self.norm(x) @ self.embedding.weight.T"
FLAT = replaced(THEIRS, {ANSWER: f"({ANSWER}).flatten(0, 1)"})
ROOT_MEAN_SQUARE = "h = nn.functional.rms_norm(x, (16,), self.norm2.weight, 1e-5)"
NUMBER, OPPOSITE = "0.25 instead of 0.5", "the reference does the opposite"
SHAPE, TURNED = "your port returns a result of the shape", "`self.turned(q, cos, sin)`"


ROUTED = THEIRS.replace(
    "h = nn.functional.silu(self.gate(h)) * self.up(h)",
    """best = self.gate(h).softmax(-1).topk(3).values
        best = best / best.sum(-1, keepdim=True)
        h = self.up(h) * best[..., :1]""",
)
"""A model whose largest gates are divided by their sum."""


@dataclass(frozen=True)
class Mistake:
    edits: dict[str, str]
    """The port's text by the text of the reference that it replaces."""
    says: tuple[str | None, ...]
    """Words of the cause of each fault, in order; None where no edit explains the fault."""
    reference: str = THEIRS
    line: str | None = None
    """Text of the line of the reference where the first fault is; without it, the first replaced text."""
    port: str = ""
    """Text of the line of the port where the first fault is."""


def one(old: str, new: str, says: str | None, reference: str = THEIRS, line: str | None = None) -> Mistake:
    return Mistake({old: new}, (says,), reference, line)


MISTAKES: dict[str, Mistake] = {
    "number": one("q @ k.mT * 0.5", "q @ k.mT * 0.25", f"uses {NUMBER}"),
    "fitted number": one("k.mT * 0.5", "k.mT * 0.317", "uses 0.317 instead of 0.5"),
    "fitted epsilon": Mistake({"eps=1e-5": "eps=3e-3"}, ("uses 0.003 instead of 1e-05",) * 3, line="h = self.norm(x)"),
    "left out": one("h = self.norm2(x)", "h = x", "leaves out `self.norm2(x)`"),
    "twice": one("h = self.norm(x)", "h = self.norm(self.norm(x))", "applies `self.norm(x)` twice"),
    "operand": one("weights @ v", "weights @ k", "where the reference passes"),
    "function": one("functional.silu", "functional.relu", "applies ReLU"),
    "swapped gate": one(
        "silu(self.gate(h)) * self.up(h)", "silu(self.up(h)) * self.gate(h)", "swaps the parameters of gate and up"
    ),
    "swapped gate in one layer": one(
        "layer(x)",
        "layer(x, layer is self.layers[1])",
        "swaps the parameters of layers.1.gate and layers.1.up",
        ONE_GATE,
        "if swaps",
    ),
    "end of a slice": one("[:, : x.shape[1]]", "[:, -x.shape[1] :]", "(the last) instead of elements 0 to", SHIFTED),
    "half of a function": Mistake(
        {"h = nn.functional.gelu(self.gate(h))": "g = self.gate(h)\n        h = g * (1 + torch.erf(g / 2**0.5))"},
        ("multiplies the result of `nn.functional.gelu(self.gate(h))` by 2",),
        GELU,
    ),
    "scores of keys by queries": Mistake(
        {"q @ k.mT": "k @ q.mT"}, ("swaps the axes -2 and -1",), port="scores = k @ q.mT"
    ),
    "bias of only a part": Mistake(
        {"(x[:, :1] * 2, x[:, 1:]), 1) + self.bias": "(x[:, :1] * 2, x[:, 1:] + self.bias), 1)"}, (None,), BIASED
    ),
    "function with a part left out": Mistake(
        {"h = nn.functional.gelu(self.gate(h))": "g = self.gate(h)\n        h = g * (1 + torch.erf(g)) / 2"},
        ("applies GELU with erf(x) instead of erf(x / √2)",),
        GELU,
    ),
    "mask": one(".tril()", ".tril(1)", "shows one later key"),
    "mask after the softmax": Mistake(
        {LOWEST_MASK: "", "scores.softmax(-1)": "scores.softmax(-1).masked_fill(~seen, 0.0)"}, (None,), LOWEST
    ),
    "axis": one("scores.softmax(-1)", "scores.softmax(-2).nan_to_num()", "uses -2 instead of -1"),
    "sign": one("x + self.down(h)", "x - self.down(h)", "applies `sub`"),
    "parameters": one("h = self.norm2(x)", "h = self.norm(x)", "parameters of layers.0.norm for"),
    "rounding": one("context = weights @ v", "context = (weights @ v).bfloat16().float()", "to bfloat16"),
    "bfloat16 scores": one(
        SCALE, "scores = (q.bfloat16() @ k.mT.bfloat16()).float() * 0.5", "computes `bmm` in `q @ k.mT` in bfloat16"
    ),
    "bfloat16 softmax": one(
        "scores.softmax(-1)", "scores.bfloat16().softmax(-1).float()", "computes `scores.softmax(-1)` in bfloat16"
    ),
    "order": one("unflatten(-1, (4, 4))", "unflatten(-1, (4, 4)).mT", "swaps the axes -2 and -1"),
    "the parameters of another layer": one(
        "layer(x)", "self.layers[0](x)", "the parameters of layers.0 for layers.1", ONE_LAYER, "h = self.norm(x)"
    ),
    "in one layer": one(
        "layer(x)", "layer(x, layer is self.layers[1])", "in layers.1.norm2 only", ONE_LAYER, "if no_norm"
    ),
    "two": Mistake(HALF | {"functional.silu": "functional.relu"}, (NUMBER, "ReLU")),
    "two, of which longer calls show one": Mistake(HALF | {"triu(-8)": "triu(-9)"}, (NUMBER, "one more key"), WINDOW),
    "flattened answer": one(ANSWER, f"({ANSWER}).flatten(0, 1)", SHAPE),
    "flattened answer and number": Mistake(HALF | {ANSWER: f"({ANSWER}).flatten(0, 1)"}, (NUMBER, SHAPE)),
    "answer that only the reference flattens": one(f"({ANSWER}).flatten(0, 1)", ANSWER, SHAPE, FLAT),
    "answer that only the reference flattens, and number": Mistake(
        HALF | {f"({ANSWER}).flatten(0, 1)": ANSWER}, (NUMBER, SHAPE), FLAT
    ),
    "answer with swapped axes": one(ANSWER, f"({ANSWER}).transpose(0, 1)", None),
    "swapped tables": one(
        "cos, sin = self.table", "sin, cos = self.table", "swaps the result of `angles", ROTATED, "return x * cos"
    ),
    "swapped tables, used in other steps": Mistake(
        {"cos, sin = self.table": "sin, cos = self.table", TURNING: TURNED_BY_HALVES},
        ("swaps the result of `angles",),
        ROTATED,
        "return x * cos",
    ),
    "swapped halves": one("gate, up =", "up, gate =", "swaps part 1 of the result of `self.up(h).chunk", GATED),
    "swapped parts": one("first, second = x", "second, first = x", "swaps part 2 of the result", ROTATED),
    "rms": one("h = self.norm2(x)", ROOT_MEAN_SQUARE, "no bias", LAYER_NORMS),
    "rms and bias": one(
        "h = self.norm2(x)",
        f"{ROOT_MEAN_SQUARE} + self.norm2.bias",
        "divides by the root mean square with the epsilon 1e-05 and adds the bias",
        LAYER_NORMS,
    ),
    "epsilon outside": one(
        "h = self.norm2(x)",
        "h = x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-3) * self.norm2.weight",
        "divides by the root mean square plus 0.001",
    ),
    "n - 1": one(
        "h = self.norm2(x)",
        "mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)\n"
        "        h = (x - mean) / (std + 1e-5) * self.norm2.weight + self.norm2.bias",
        "divides by the standard deviation with n - 1 plus 1e-05",
        LAYER_NORMS,
    ),
    "table": one(
        "self.slopes[",
        "0.3 ** torch.arange(1.0, 5.0)[",
        "has values that differ from layers.0.slopes: 4 of 4 differ; the first of them is 0.3 instead of 0.5",
        SLOPED,
    ),
    "mean": one(
        "h = self.norm2(x)",
        "h = nn.functional.layer_norm(x, (16,), self.norm2.weight, eps=1e-3)",
        "the standard deviation with the epsilon 0.001",
    ),
    "added twice": one("x = x + self.attention(h)", "a = self.attention(h)\n        x = x + a + a", "once more in"),
    "residual twice": one("x = x + self.attention(h)", "x = x + self.attention(h) + x", "once more in"),
    "clipped": one(SCALE, f"{SCALE}\n        scores = scores.clamp(-5, 5)", "at least -5 and at most 5", LARGE_SCORES),
    "clipped above": one(SCALE, f"{SCALE}\n        scores = scores.clamp(max=5)", "` to at most 5", LARGE_SCORES),
    "capped": one(SCALE, "scores = (q @ k.mT * 0.5 / 5).tanh() * 5", "applies 5 · tanh(x / 5) to", LARGE_SCORES),
    "not capped": one("(q @ k.mT * 0.5 / 5).tanh() * 5", "q @ k.mT * 0.5", "leaves out", CAPPED),
    "other cap": Mistake(
        {"(q @ k.mT * 0.5 / 5).tanh() * 5": "(q @ k.mT * 0.5 / 8).tanh() * 8"},
        ("8 instead of 5 in `div`", "8 instead of 5 in `mul`"),
        CAPPED,
    ),
    "not clipped": one(".clamp(-5, 5)", "", "leaves out `(q @ k.mT * 0.5).clamp(-5, 5)`", CLIPPED),
    "other limits": one(".clamp(-5, 5)", ".clamp(-9, 9)", "at least -9 and at most 9", CLIPPED),
    "rotated in all layers": one(
        "if self.turns:",
        "if True:",
        f"{TURNED}, which the reference applies only in other layers, in layers.1 and layers.3 only",
        SOMETIMES_ROTATED,
        "first, second = x.chunk",
    ),
    "never rotated": one("if self.turns:", "if False:", f"leaves out {TURNED}", SOMETIMES_ROTATED),
    "batch norm": one(
        "eps=1e-3", "eps=1e-5", "uses 1e-05 instead of 0.001 in `native_batch_norm`", BATCH_NORM, "self.norm(x.mT)"
    ),
    "opposite order": Mistake(OTHER_ORDER, (OPPOSITE,), IN_ORDER),
    "scale and opposite order": Mistake({"* 2.0": "* 3.0"} | OTHER_ORDER, ("3 instead of 2", OPPOSITE), IN_ORDER),
    "opposite order, before a layer that is written in another way": Mistake(
        {"silu(self.gate(h)) * self.up(h)": "silu(self.gate(h) * self.up(h))", TURNING: TURNED_BY_HALVES},
        (OPPOSITE,),
        ROTATED,
        port="self.gate(h) * self.up(h)",
    ),
    "number and opposite order": Mistake(
        {"0.5 * x.cumsum": "0.25 * x.cumsum"} | OTHER_ORDER, (NUMBER, OPPOSITE), IN_ORDER
    ),
}
"""Mistakes by kind."""

USUAL = (
    "the parameters of another layer",
    "two, of which longer calls show one",
    "flattened answer",
    "flattened answer and number",
    "answer with swapped axes",
)
"""The rows of `nox -s tests`; `nox -s nightly` runs all."""

CASES = [pytest.param(each, id=kind, marks=[pytest.mark.long] * (kind not in USUAL)) for kind, each in MISTAKES.items()]


def checked(mistake: Mistake, folder: Path) -> Report:
    text = replaced(mistake.reference, mistake.edits)
    return against_theirs(folder, text, reference=mistake.reference)


@pytest.mark.parametrize("mistake", CASES)
def test_a_mistake_is_told_with_both_lines_and_an_edit_that_gives_the_ports_answer(
    mistake: Mistake, tmp_path: Path
) -> None:
    report = checked(mistake, tmp_path)
    assert report.verdict == "diverges"
    causes = [fault.causes[0].says if fault.causes else None for fault in report.faults]
    assert len(causes) == len(mistake.says), causes
    for cause, says in zip(causes, mistake.says, strict=True):
        assert (cause is None) == (says is None)
        assert (says or "") in (cause or "")
    told = [finding.causes[0].says for finding in findings(report) if finding.causes]
    assert {*told} == {*causes} - {None}
    fault, text = report.faults[0], mistake.line or next(iter(mistake.edits))
    assert mistake.port in (fault.source or {"code": ""})["code"]
    if ANSWER in text:
        return
    line = next(number for number, each in enumerate(mistake.reference.splitlines(), 1) if text in each)
    assert fault.source is not None
    assert fault.reference_source is not None
    near = {fault.source["line"], fault.reference_source["line"]}
    assert any(line <= each <= line + 3 for each in near), (line, near)


def test_a_weight_that_is_not_normalized_is_not_called_another_order(tmp_path: Path) -> None:
    """In another order, the softmax of a sum is 1, and dividing by 1 is the same as leaving out the division."""
    report = checked(one("best / best.sum(-1, keepdim=True)", "best", None, ROUTED), tmp_path)
    assert [fault.causes[0].mistake for fault in report.faults] == ["left out"]
    assert not any("explained if" in note for note in report.notes)


def test_one_answer_of_another_shape_is_a_fault_beside_wrong_numbers(tmp_path: Path) -> None:
    report = checked(Mistake(HALF | {ANSWER: f"({ANSWER}).squeeze(0)"}, (NUMBER, SHAPE)), tmp_path)
    scale, shape = report.faults
    assert NUMBER in scale.causes[0].says
    assert SHAPE in shape.causes[0].says
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
    """For small x, c · tanh(x / c) and 1 / √(1 / x² + ε) both equal x minus a multiple of x³."""
    sizes = np.linspace(0.1, 6.0, 50)
    assert _fitted_cap(sizes, np.sort(1 / np.sqrt(sizes**-2 + 3e-5))) is None
    assert _fitted_cap(sizes, 30 * np.tanh(sizes / 30)) == 30
