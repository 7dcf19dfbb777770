from pathlib import Path

import pytest
from tests.against.test_check import checked_with

THEIRS = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(32, 16)
        self.router = torch.nn.Linear(16, 3)
        self.experts = torch.nn.Parameter(torch.randn(3, 16, 10))
        self.down = torch.nn.Parameter(torch.randn(3, 10, 16))

    def forward(self, tokens):
        x = self.embedding(tokens)
        h = torch.einsum("btd,edf->betf", x, self.experts).relu() @ self.down
        return torch.einsum("betd,bte->btd", h, self.router(x).softmax(-1))
"""

PORT = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.gate = torch.nn.Embedding(32, 16), torch.nn.Linear(16, 3)
        self.wide = torch.nn.ModuleList([torch.nn.Linear(16, 10, bias=False) for _ in range(3)])
        self.narrow = torch.nn.ModuleList([torch.nn.Linear(10, 16, bias=False) for _ in range(3)])

    def forward(self, tokens):
        x = self.table(tokens)
        weights = self.gate(x).softmax(-1).unbind(-1)
        layers = zip(weights, self.wide, self.narrow)
        return sum(weight[..., None] * narrow(wide(x).relu()) for weight, wide, narrow in layers)
"""


def test_the_rows_of_a_tensor_are_paired_with_the_experts_of_the_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = checked_with(PORT, tmp_path, THEIRS)
    assert result.exit_code == 0, result.output
    assert checked_with(PORT.replace("self.wide,", "self.wide[::-1],"), tmp_path, THEIRS).exit_code == 1
