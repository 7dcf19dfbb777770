"""With two references, the report says which of the three implementations differs from the other two."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from transparity.errors import TransparityError
from transparity_conformance import check
from transparity_conformance.cli import app
from transparity_conformance.report.check.page import as_html

INPUTS = [{"tokens": np.arange(10).reshape(2, 5)}, {"tokens": np.ones((1, 3), np.int64)}]


class Relu(nn.Module):
    function: Any = staticmethod(nn.functional.relu)

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(32, 16), nn.Linear(16, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.head(self.function(self.embedding(tokens)))
        return hidden


class Silu(Relu):
    function = staticmethod(nn.functional.silu)


class Tanh(Relu):
    function = staticmethod(torch.tanh)


@pytest.mark.parametrize(
    ("kinds", "alone", "says"),
    [
        ((Relu, Silu, Silu), "port", "Your port differs from the other two: Silu and Silu agree."),
        ((Silu, Relu, Silu), "reference", "Relu differs from the other two: your port and Silu agree."),
        ((Silu, Silu, Relu), "third", "Relu differs from the other two: your port and Silu agree."),
        ((Silu, Silu, Silu), "", "All three agree: your port, Silu and Silu."),
        ((Silu, Relu, Tanh), "", "No two of the three agree: your port, Relu and Tanh."),
    ],
)
def test_the_one_that_stands_alone_is_named(kinds: tuple[type[Relu], ...], alone: str, says: str) -> None:
    port, first, second = (kind() for kind in kinds)
    for module in (first, second):
        module.load_state_dict(port.state_dict())
    report = check(port, against=[first, second], inputs=INPUTS, budget=1)
    assert report.as_dict()["third"]["stands_alone"] == alone
    assert report.as_dict()["third"]["sentence"] == says
    assert report.verdict == ("agrees" if kinds[0] is kinds[1] else "diverges")
    assert says in as_html([report])


def test_the_command_takes_two_references_and_no_more(tmp_path: Path) -> None:
    text = "import torch\nfrom torch import nn\n\n\nclass Model(nn.Module):\n    def __init__(self):\n"
    text += "        super().__init__()\n        self.head = nn.Embedding(32, 8)\n\n    def forward(self, tokens):\n"
    for name, factor in (("port", 2), ("one", 1), ("two", 1)):
        answer = f"        return {factor} * torch.tanh(self.head(tokens))\n"
        (tmp_path / f"{name}.py").write_text(text + answer, encoding="utf-8")
    (tmp_path / "inputs.py").write_text("import numpy\ninputs = [{'tokens': numpy.arange(6).reshape(2, 3)}]")
    files = {name: f"{tmp_path / name}.py:Model" for name in ("port", "one", "two")}
    rest = ["--inputs", str(tmp_path / "inputs.py"), "--json", str(tmp_path / "answer.json"), "--budget", "1"]
    command = ["check", files["port"], "--against", files["one"], "--against", files["two"]]
    result = CliRunner().invoke(app, [*command, *rest])
    assert result.exit_code == 1, result.output
    assert "Your port differs from the other two" in re.sub(r"\s+", " ", result.output)
    assert json.loads((tmp_path / "answer.json").read_text())[0]["third"]["stands_alone"] == "port"
    result = CliRunner().invoke(app, [*command, "--against", files["two"], *rest])
    assert result.exit_code == 2
    assert "3 references were given" in re.sub(r"\s+", " ", result.output)


def test_three_references_in_python_are_a_sentence() -> None:
    with pytest.raises(TransparityError, match="3 references were given"):
        check(Relu, against=[Relu, Relu, Relu], inputs=INPUTS)
