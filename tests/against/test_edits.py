"""Test that one edit explains each mistake, and that its words name the mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.against.test_check import THEIRS, against_theirs, replaced

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

LAYER_NORMS = replaced(THEIRS, {"nn.RMSNorm(16, eps=1e-5)": "nn.LayerNorm(16, eps=1e-5)"})

BATCH_NORM = replaced(
    THEIRS,
    {
        "self.norm = nn.RMSNorm(16, eps=1e-5)\n        gen": "self.norm = nn.BatchNorm1d(16, eps=1e-3)\n        gen",
        "self.norm(x) @": "self.norm(x.mT).mT @",
    },
)

LARGE_SCORES = replaced(THEIRS, {"noise / parameter.shape[-1] ** 0.5": "6 * noise / parameter.shape[-1] ** 0.5"})

CLIPPED = replaced(LARGE_SCORES, {"q @ k.mT * 0.5": "(q @ k.mT * 0.5).clamp(-5, 5)"})

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

MISTAKES = {
    "swapped tables": (ROTATED, "cos, sin = self.table(x)", "sin, cos = self.table(x)", "swaps the result of `angles"),
    "swapped halves": (GATED, "gate, up =", "up, gate =", "swaps part 1 of the result of `self.up(h).chunk"),
    "swapped parts": (ROTATED, "first, second = x.chunk", "second, first = x.chunk", "swaps part 2 of the result"),
    "rms": (
        LAYER_NORMS,
        "h = self.norm2(x)",
        "h = nn.functional.rms_norm(x, (16,), self.norm2.weight, 1e-5)",
        "no bias",
    ),
    "rms and bias": (
        LAYER_NORMS,
        "h = self.norm2(x)",
        "h = nn.functional.rms_norm(x, (16,), self.norm2.weight, 1e-5) + self.norm2.bias",
        "divides by the root mean square with the epsilon 1e-05 and adds the bias",
    ),
    "epsilon outside": (
        THEIRS,
        "h = self.norm2(x)",
        "h = x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-3) * self.norm2.weight",
        "divides by the root mean square plus 0.001",
    ),
    "n - 1": (
        LAYER_NORMS,
        "h = self.norm2(x)",
        "h = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5) * self.norm2.weight + self.norm2.bias",
        "divides by the standard deviation with n - 1 plus 1e-05",
    ),
    "table": (
        SLOPED,
        "self.slopes[",
        "0.3 ** torch.arange(1.0, 5.0)[",
        "has other numbers than layers.0.slopes: 4 of 4 differ; the first of them is 0.3 instead of 0.5",
    ),
    "mean": (
        THEIRS,
        "h = self.norm2(x)",
        "h = nn.functional.layer_norm(x, (16,), self.norm2.weight, eps=1e-3)",
        "the standard deviation with the epsilon 0.001",
    ),
    "added twice": (
        THEIRS,
        "x = x + self.attention(h)",
        "a = self.attention(h)\n        x = x + a + a",
        "once more in",
    ),
    "residual twice": (THEIRS, "x = x + self.attention(h)", "x = x + self.attention(h) + x", "once more in"),
    "clipped": (LARGE_SCORES, SCALE, f"{SCALE}\n        scores = scores.clamp(-5, 5)", "at least -5 and at most 5"),
    "clipped above": (LARGE_SCORES, SCALE, f"{SCALE}\n        scores = scores.clamp(max=5)", "` to at most 5"),
    "not clipped": (CLIPPED, ".clamp(-5, 5)", "", "leaves out `(q @ k.mT * 0.5).clamp(-5, 5)`"),
    "other limits": (CLIPPED, ".clamp(-5, 5)", ".clamp(-9, 9)", "at least -9 and at most 9"),
    "rotated in all layers": (
        SOMETIMES_ROTATED,
        "if self.turns:",
        "if True:",
        "`self.turned(q, cos, sin)`, which the reference applies only in other layers, in layers.1 and layers.3 only",
    ),
    "never rotated": (SOMETIMES_ROTATED, "if self.turns:", "if False:", "leaves out `self.turned(q, cos, sin)`"),
    "batch norm": (BATCH_NORM, "eps=1e-3", "eps=1e-5", "uses 1e-05 instead of 0.001 in `native_batch_norm`"),
}
"""Mistakes: the reference, a part of its text, the port's text in its place, and words of the cause."""


@pytest.mark.parametrize("kind", MISTAKES)
def test_one_edit_explains_a_mistake(kind: str, tmp_path: Path) -> None:
    theirs, old, new, says = MISTAKES[kind]
    name = f"port_{kind.replace(' ', '_')}"
    (fault,) = against_theirs(tmp_path, replaced(theirs, {old: new}), name, theirs, budget=30.0).faults
    assert says in fault.causes[0].says
    assert fault.source is not None


ANSWER = "self.norm(x) @ self.embedding.weight.T"
FLAT = replaced(THEIRS, {ANSWER: f"({ANSWER}).flatten(0, 1)"})


@pytest.mark.parametrize(("text", "theirs"), [(FLAT, THEIRS), (THEIRS, FLAT)], ids=["port", "reference"])
def test_a_flattened_answer_is_a_fault_beside_the_others(text: str, theirs: str, tmp_path: Path) -> None:
    (shape,) = against_theirs(tmp_path, text, "port_flat", theirs).faults
    assert "your port returns the answer in the shape" in shape.causes[0].says
    scale, shape = against_theirs(tmp_path, text.replace("k.mT * 0.5", "k.mT * 0.25"), "port_scaled", theirs).faults
    assert "0.25 instead of 0.5" in scale.causes[0].says
    assert "your port returns the answer in the shape" in shape.causes[0].says


def test_an_answer_with_swapped_axes_has_no_cause(tmp_path: Path) -> None:
    report = against_theirs(tmp_path, replaced(THEIRS, {ANSWER: f"({ANSWER}).transpose(0, 1)"}), "port_swapped")
    assert report.verdict == "diverges"
    assert [cause for fault in report.faults for cause in fault.causes] == []


def test_one_answer_of_another_shape_is_a_fault_beside_wrong_numbers(tmp_path: Path) -> None:
    text = replaced(THEIRS, {ANSWER: f"({ANSWER}).squeeze(0)", "k.mT * 0.5": "k.mT * 0.25"})
    report = against_theirs(tmp_path, text, "port_squeezed")
    scale, shape = report.faults
    assert "0.25 instead of 0.5" in scale.causes[0].says
    assert "your port returns the answer in the shape" in shape.causes[0].says
    assert [each["share"] for each in report.as_dict()["taps"] if each["probe"].startswith("2")] == ["inf"]
