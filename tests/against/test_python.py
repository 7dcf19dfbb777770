"""Test that `check(port, against=reference)` in Python reports the same as the command, and raises the same errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from transparity.errors import TransparityError
from transparity_conformance import assert_conforms, check

INPUTS = [{"tokens": np.arange(10).reshape(2, 5)}, {"tokens": np.ones((1, 3), np.int64)}]

TEXT = """
import torch
from torch import nn


class Theirs(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(32, 16), nn.Linear(16, 32)

    def forward(self, tokens):
        return self.head(nn.functional.silu(self.embedding(tokens)))


class Wrong(Theirs):
    def forward(self, tokens):
        return self.head(nn.functional.relu(self.embedding(tokens)))


def load(folder):
    return Wrong()
"""


class Theirs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(32, 16), nn.Linear(16, 32)

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.head(nn.functional.silu(self.embedding(tokens)))


class Wrong(Theirs):
    def forward(self, tokens: torch.Tensor) -> Any:
        return self.head(nn.functional.relu(self.embedding(tokens)))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ports") / "both.py"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_modules_classes_functions_and_files_give_one_report(file: Path) -> None:
    theirs = Theirs()
    port = Wrong()
    port.load_state_dict(theirs.state_dict())
    ways: dict[str, tuple[Any, Any]] = {
        "modules": (port, theirs),
        "a function": (port.forward, theirs),
        "classes": (Wrong, Theirs),
        "files": (f"{file}:Wrong", f"{file}:Theirs"),
    }
    for name, (given, against) in ways.items():
        report = check(given, against=against, inputs=INPUTS)
        assert report.verdict == "diverges", name
        says = [cause.says for fault in report.faults for cause in fault.causes]
        assert says == ["your port applies ReLU, where theirs applies `silu`"], name


def test_a_right_port_passes_and_a_wrong_one_raises_the_report() -> None:
    theirs = Theirs()
    assert assert_conforms(theirs, against=theirs, inputs=INPUTS).verdict == "agrees"
    port = Wrong()
    port.load_state_dict(theirs.state_dict())
    with pytest.raises(AssertionError, match="departs from"):
        assert_conforms(port, against=theirs, inputs=INPUTS)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"against": "transformers"}, "needs a configuration"),
        ({"against": Theirs}, "no configuration of transformers to draw inputs from"),
        ({"against": len, "inputs": INPUTS}, "cannot be recorded"),
        ({"against": Theirs, "inputs": {"tokens": 1}}, "expected a list of dicts of arrays"),
        ({"inputs": INPUTS}, "or give against"),
        ({"against": Theirs, "inputs": INPUTS, "family": "llama"}, "leave out the other options"),
        ({"against": Theirs, "inputs": INPUTS, "config": "config.json"}, "takes a folder|config.json"),
    ],
)
def test_a_mistake_of_the_user_is_one_sentence(options: dict[str, Any], says: str) -> None:
    with pytest.raises(TransparityError, match=says) as raised:
        check(Wrong, **options)
    assert str(raised.value).count(". ") == 0
