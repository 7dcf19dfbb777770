"""If we support the family of the reference, the checker also names the cause as the catalogue does."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from transparity_conformance import check

pytestmark = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")

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
