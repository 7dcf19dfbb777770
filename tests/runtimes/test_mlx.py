"""Models of MLX are ports as they stand: mlx-lm's right ones agree, and mistakes put into them are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_model

from transparity_conformance.checking.check import check
from transparity_conformance.report.comparison import as_numbers
from transparity_conformance.report.report import Report


def judged(family: str, edit: Callable[[Any], Any] = lambda model: None, **fields: Any) -> Report:
    """The report on mlx-lm's model, with other fields of config.json, and after an edit."""

    def load(folder: str) -> Any:
        model, _ = load_model(Path(folder), model_config=fields)
        edit(model)
        return model

    return check(load, family=family)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_right_model_agrees(family: str) -> None:
    report = judged(family)
    assert report.verdict == "agrees"
    assert not [line for line in report.not_compared if "probe" in line]


def swap_gate_and_up(model: Any) -> None:
    mlp = model.layers[0].mlp
    mlp.gate_proj, mlp.up_proj = mlp.up_proj, mlp.gate_proj


def scale_scores(model: Any) -> None:
    for layer in model.layers:
        layer.self_attn.scale = model.args.hidden_size**-0.5


def forget_gain(model: Any) -> None:
    norm = model.layers[0].input_layernorm
    norm.weight = mx.ones_like(norm.weight)


def forget_key_norm(model: Any) -> None:
    for layer in model.layers:
        layer.self_attn.k_norm = lambda keys: keys


WRONG = [
    *(("llama", {"rope_theta": 500.0}, None, "rotary-base"), ("llama", {"rms_norm_eps": 1e-3}, None, "norm-eps")),
    ("llama", {}, swap_gate_and_up, "gate-swapped"),
    ("llama", {}, scale_scores, "attention-scale"),
    ("llama", {}, forget_gain, "norm-kind"),
    *(("qwen3", {"rope_theta": 500.0}, None, "rotary-base"), ("qwen3", {"rms_norm_eps": 1e-3}, None, "norm-eps")),
    ("qwen3", {}, swap_gate_and_up, "gate-swapped"),
    ("qwen3", {}, scale_scores, "attention-scale"),
    ("qwen3", {}, forget_key_norm, "norm-missing"),
]


@pytest.mark.parametrize(("family", "fields", "edit", "cause"), WRONG, ids=[f"{each[0]}-{each[3]}" for each in WRONG])
def test_a_wrong_model_diverges_by_its_cause(
    family: str, fields: dict[str, Any], edit: Callable[[Any], Any] | None, cause: str
) -> None:
    report = judged(family, **({} if edit is None else {"edit": edit}), **fields)
    assert report.verdict == "diverges"
    assert {found.mistake for fault in report.faults for found in fault.causes} == {cause}


def test_numbers_of_half_precision_are_read() -> None:
    for dtype in (mx.bfloat16, mx.float16, mx.float32):
        assert np.array_equal(as_numbers(mx.array([1.5, -2.0], dtype)), [1.5, -2.0])
