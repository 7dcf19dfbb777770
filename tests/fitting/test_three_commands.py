"""Three commands lead from a model to a verdict, with two lines of code and without a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from transparity_conformance.cli import app

MODEL = """
import dataclasses
import torch
from torch import nn
from torch.nn import functional as F

@dataclasses.dataclass
class Config:
    vocab: int = 50304
    context: int = 1024
    width: int = 768
    heads: int = 12
    layers: int = 12

class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.norm_1, self.norm_2 = c.heads, nn.LayerNorm(c.width), nn.LayerNorm(c.width)
        self.key, self.query, self.value, self.out = (nn.Linear(c.width, c.width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(c.width, 2 * c.width), nn.Linear(2 * c.width, c.width)

    def forward(self, x):
        h = self.norm_1(x)
        k, q, v = (f(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.key, self.query, self.value))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(self.norm_2(x))))

class Chat(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tokens, self.places = nn.Embedding(c.vocab, c.width), nn.Embedding(c.context, c.width)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm, self.head = nn.LayerNorm(c.width), nn.Linear(c.width, c.vocab)

    def forward(self, idx, targets=None):
        x = self.tokens(idx) + self.places.weight[: idx.shape[1]]
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        if targets is None:
            return self.head(x[:, [-1]]), None
        logits = self.head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())
"""

PORT = """
from chat import Chat, Config
model = Chat(Config(vocab=53, context=40, width=24, heads=3, layers=2))
def port(): return lambda idx, targets=None: model(idx, targets)
"""


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    return result.exit_code, result.output


@pytest.mark.parametrize(("wrong", "code"), [(False, 0), (True, 1)], ids=["right", "wrong"])
def test_a_model_is_fitted_adapted_and_checked(tmp_path: Path, wrong: bool, code: int) -> None:
    (tmp_path / "chat.py").write_text(MODEL)
    (tmp_path / "my.py").write_text(PORT)
    port, config, adapter = f"{tmp_path / 'my.py'}:port", tmp_path / "config.json", tmp_path / "adapter.toml"
    assert run("fit", port, "--json", config)[0] == 0
    assert run("adapt", port, "--config", config, "--out", adapter)[0] == 0
    if wrong:
        (tmp_path / "chat.py").write_text(MODEL.replace("self.up(self.norm_2(x))", "self.up(x)"))
    exit_code, said = run("check", port, "--config", config, "--adapter", adapter, "--budget", 5)
    assert exit_code == code, said
    assert ("chat.py:" in said) is wrong
