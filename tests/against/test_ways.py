"""Test comparisons with a reference in decoding with a cache, generation, losses and gradients."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from transparity_conformance import check
from transparity_conformance.against.probes import Answer, Source
from transparity_conformance.against.ways import catalogue
from transparity_conformance.against.ways.calls import IGNORED, PROMPT, _requests, _with_labels
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.report.report import Cause, Divergence, Report
from transparity_conformance.running.loading import load_port


@pytest.mark.parametrize(("causes", "count"), [((Cause("number", "0.25 instead of 0.5"),), 3), ((), 5)])
def test_a_fault_without_an_edit_is_named_only_if_it_explains_every_call(
    causes: tuple[Cause, ...], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def judged(preset: str, probes: dict[str, Any], *args: Any, **options: Any) -> Report:
        tried.extend(probes)
        return Report(preset, "diverges", "logits")

    tokens, logits = np.ones((1, 3), int), np.ones((1, 3, 5))
    answers = [Answer(f"call {i}", {"input_ids": tokens}, 1.0, 0.1, logits, 15, 0, (1, 3, 5)) for i in range(5)]
    checkpoint = SimpleNamespace(config=example_config("llama"), parameters={})
    monkeypatch.setattr(catalogue, "import_checkpoint", lambda folder: checkpoint)
    monkeypatch.setattr(catalogue, "judge", judged)
    report = Report("theirs", "diverges", "answer", (Divergence("answer", 1.0, 0.1, causes),))
    catalogue.with_names(report, Path(), answers, None, lambda *_: None)
    assert len(tried) == count


THEIRS = """
from types import SimpleNamespace

import torch
from torch import nn
from transformers import PretrainedConfig


class Model(nn.Module):
    main_input_name = "input_ids"

    def __init__(self):
        super().__init__()
        self.config = PretrainedConfig(vocab_size=61, max_position_embeddings=29, sliding_window=6)
        self.embedding, self.positions = nn.Embedding(61, 16), nn.Embedding(29, 16)
        self.query, self.key, self.value, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 24), nn.Linear(24, 16)

    def attention(self, x, past, mask):
        keys, values = self.key(x), self.value(x)
        begin = 0
        if past is not None:
            begin = past[0].shape[1]
            keys, values = torch.cat([past[0], keys], 1), torch.cat([past[1], values], 1)
        scores = self.query(x) @ keys.mT / 4
        far = torch.arange(x.shape[1])[:, None] + begin - torch.arange(keys.shape[1])
        hidden = (far < 0) | (far >= 6)
        if mask is not None:
            hidden = hidden | (mask[:, None] == 0)
        weights = scores.masked_fill(hidden, -1e9).softmax(-1)
        return self.out(weights @ values), (keys, values)

    def forward(self, input_ids, attention_mask=None, past_key_values=None, use_cache=False, labels=None):
        begin = 0 if past_key_values is None else past_key_values[0].shape[1]
        x = self.embedding(input_ids)
        x = x + self.positions(torch.arange(input_ids.shape[1]) + begin)
        context, past = self.attention(self.norm(x), past_key_values, attention_mask)
        x = x + context
        x = x + self.down(nn.functional.silu(self.up(x)))
        logits = x @ self.embedding.weight.T
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return SimpleNamespace(logits=logits, past_key_values=past if use_cache else None, loss=loss)

    def generate(self, tokens, count, attention_mask=None):
        for _ in range(count):
            chosen = self(tokens).logits[:, -1].argmax(-1)
            tokens = torch.cat([tokens, chosen[:, None]], 1)
        return tokens
"""

FAULTS = {
    "a key is forgotten beyond the window": (
        "keys, values = torch.cat([past[0], keys], 1), torch.cat([past[1], values], 1)",
        (
            "keys = torch.cat([past[0] * (torch.arange(begin) != begin - 5)[:, None], keys], 1); "
            "values = torch.cat([past[1], values], 1)"
        ),
        "step",
    ),
    "the position of a step": (
        "x = x + self.positions(torch.arange(input_ids.shape[1]) + begin)",
        "x = x + self.positions(torch.arange(input_ids.shape[1]) + max(begin - 1, 0))",
        "step",
    ),
    "a gradient is cut": (
        "x = x + self.down(nn.functional.silu(self.up(x)))",
        "x = x + self.down(nn.functional.silu(self.up(x.detach())))",
        "gradients",
    ),
    "padding counts in the loss": ("labels[:, 1:].flatten())", "labels[:, 1:].flatten().clamp(min=0))", "loss"),
    "a buffer is kept": (
        "x = self.embedding(input_ids)",
        "x = self.embedding(input_ids) + getattr(self, 'kept', 0.0); self.kept = 0.1 * x.detach().mean((0, 1))",
        "",
    ),
    "a length": (
        "x = self.embedding(input_ids)",
        "x = self.embedding(input_ids) * (1.01 if input_ids.shape[1] > 20 else 1)",
        "forward.reach",
    ),
    "a batch": (
        "x = self.embedding(input_ids)",
        "x = self.embedding(input_ids) * (1.01 if len(input_ids) > 7 else 1)",
        "forward.reach",
    ),
    "a text that repeats one token": (
        "x = self.embedding(input_ids)",
        "x = self.embedding(input_ids) * (1.01 if input_ids.unique().numel() < 3 < input_ids.shape[1] else 1)",
        "",
    ),
    "a loss that is a mean over rows": (
        "loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())",
        (
            "rows = zip(logits[:, :-1], labels[:, 1:]); "
            "loss = torch.stack([nn.functional.cross_entropy(*row) for row in rows]).mean()"
        ),
        "loss",
    ),
    "generation": (
        "chosen = self(tokens).logits[:, -1].argmax(-1)",
        "chosen = (self(tokens).logits[:, -1] * torch.arange(61)).argmax(-1)",
        "generate",
    ),
    "a state after a backward pass": (
        "logits = x @ self.embedding.weight.T",
        (
            "logits = x @ self.embedding.weight.T * (1.01 if getattr(self, 'kept', False) else 1); "
            "self.kept = getattr(self, 'kept', False) or torch.is_grad_enabled()"
        ),
        "repeats",
    ),
    "a state that a large batch sets and a short text shows": (
        "x = self.embedding(input_ids)",
        (
            "x = self.embedding(input_ids) * (1.01 if getattr(self, 'kept', 0) and input_ids.shape[1] == 4 else 1); "
            "self.kept = max(getattr(self, 'kept', 0), len(input_ids) > 12)"
        ),
        "repeats",
    ),
}
"""The replaced text, its replacement, and the claim that must diverge (empty: the forward pass), by fault."""

pytestmark = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")


CONFIGURATION = "        self.config = PretrainedConfig(vocab_size=61, max_position_embeddings=29, sliding_window=6)\n"


def checked(folder: Path, old: str = "", new: str = "", theirs: str = THEIRS) -> Report:
    """Check a copy of `theirs` with `old` replaced by `new` against the original."""
    import torch

    made = []
    for name, text in (("theirs", theirs), ("port", theirs.replace(old, new, 1))):
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
        torch.manual_seed(0)
        made.append(load_port(f"{folder / name}.py:Model")())
    return check(made[1], against=made[0], budget=2)


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_that_a_forward_pass_does_not_show_is_told_with_its_line(kind: str, tmp_path: Path) -> None:
    old, new, claim = FAULTS[kind]
    report = checked(tmp_path, old, new)
    assert report.verdict == "diverges"
    assert [each.id for each in report.claims if each.verdict == "diverges"] == [claim] * bool(claim)
    line = next(number for number, text in enumerate(THEIRS.splitlines(), 1) if old in text)
    told = {each["line"] for fault in report.faults for each in (fault.source, fault.reference_source) if each}
    assert line in told or line + 1 in told, told


@pytest.mark.parametrize("kind", ["the position of a step", "a length", "a batch"])
def test_without_a_configuration_other_sizes_and_steps_show_a_fault(kind: str, tmp_path: Path) -> None:
    old, new, claim = FAULTS[kind]
    report = checked(tmp_path, old, new, THEIRS.replace(CONFIGURATION, ""))
    assert [each.id for each in report.claims if each.verdict == "diverges"] == [claim]


WAYS = ["forward.reach", "step", "generate", "loss", "gradients", "repeats"]


def test_without_a_configuration_a_right_copy_agrees_up_to_the_longest_text(tmp_path: Path) -> None:
    report = checked(tmp_path, theirs=THEIRS.replace(CONFIGURATION, ""))
    assert (report.verdict, report.not_compared) == ("agrees", ())
    assert [each.id for each in report.claims] == ["forward.reach", "step", *WAYS[1:]]  # steps after two prompts
    assert report.coverage.lengths == (*range(1, 18), 29)
    assert report.coverage.batches == tuple(range(1, 14))


def test_a_right_copy_agrees_in_every_way(tmp_path: Path) -> None:
    report = checked(tmp_path)
    assert (report.verdict, report.faults) == ("agrees", ())
    assert [*dict.fromkeys(each.id for each in report.claims)] == WAYS
    assert report.coverage.lengths == (*range(1, 18), 28, 29)
    assert report.coverage.batches == tuple(range(1, 14))


def test_a_prompt_of_codebooks_has_as_many_positions_as_one_of_text() -> None:
    def draw(length: int, batch: int, _: int) -> dict[str, np.ndarray]:
        return {"input_ids": np.zeros((batch, length, 3), int)}

    reference = cast("Any", SimpleNamespace(weights={}, numbers=[20.0]))
    firsts = [way.settings[0] for way, _ in _requests(reference, Source(draw, 64, is_text=True))]
    assert firsts == [PROMPT, PROMPT, 19]


def test_no_label_counts_that_padding_predicts() -> None:
    class Padded:
        def near(self, inputs: Any) -> tuple[np.ndarray, float]:
            return np.zeros((40, 6, 9)), 0.0

        def kept(self, inputs: Any, shape: tuple[int, ...]) -> np.ndarray:
            return np.broadcast_to(np.arange(6)[:, None] > 2, shape)

    labels = _with_labels(cast("Any", Padded()), {})["labels"]
    assert (labels[:, :4] == IGNORED).all()
    assert (labels[:, 4:] != IGNORED).any()


def test_each_row_of_a_classifier_has_one_label() -> None:
    class Classes:
        def near(self, inputs: Any) -> tuple[np.ndarray, float]:
            return np.zeros((40, 9)), 0.0

        def kept(self, inputs: Any, shape: tuple[int, ...]) -> None:
            return None

    labels = _with_labels(cast("Any", Classes()), {})["labels"]
    assert labels.shape == (40,)
    assert (labels != IGNORED).any()


def test_what_a_port_does_not_offer_is_said(tmp_path: Path) -> None:
    import torch

    (tmp_path / "theirs.py").write_text(THEIRS, encoding="utf-8")
    torch.manual_seed(0)
    theirs = load_port(f"{tmp_path / 'theirs'}.py:Model")()

    def port(input_ids: torch.Tensor) -> Any:
        return theirs(input_ids).logits

    report = check(port, against=theirs)
    assert report.verdict == "agrees"
    for what in ("cached steps", "generate", "loss"):
        assert any(what in line and "the port does not support this" in line for line in report.not_compared), what


LOAD = """
import torch
from transformers import AutoModelForCausalLM


def load(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    for layer in model.model.layers:
        layer.self_attn.scaling = 0.1
    return model
"""


@pytest.mark.long
def test_a_fault_of_a_family_that_we_read_has_our_name(tmp_path: Path) -> None:
    (tmp_path / "port.py").write_text(LOAD, encoding="utf-8")
    fields = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "vocab_size": 99}
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96}
    (tmp_path / "config.json").write_text(json.dumps(fields | sizes), encoding="utf-8")
    report = check(f"{tmp_path / 'port'}.py:load", against="transformers", config=tmp_path / "config.json", budget=10)
    (fault,) = report.faults
    assert [cause.mistake for cause in fault.causes] == ["attention-scale"]
    assert fault.reference_source is not None
    assert any("transparity explain attention-scale" in note for note in report.notes)
