"""The checker accepts an MLX model without changes, and the models of mlx-lm agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_model

from transparity_conformance.checking.check import check
from transparity_conformance.report.comparison import as_numbers


def load(folder: str) -> Any:
    return load_model(Path(folder))[0]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_right_model_agrees(family: str) -> None:
    report = check(load, family=family)
    assert report.verdict == "agrees"
    assert not [line for line in report.not_compared if "probe" in line]


def test_numbers_of_half_precision_are_read() -> None:
    for dtype in (mx.bfloat16, mx.float16, mx.float32):
        assert np.array_equal(as_numbers(mx.array([1.5, -2.0], dtype)), [1.5, -2.0])
