"""Test the notation of an adapter's lines: the tensors that it selects, and the errors for everything else."""

from __future__ import annotations

import numpy as np
import pytest
from tests.looping import for_each

from transparity_conformance.running.adapters.notation import AdapterError, Shapes, select

SIZES = {"D": 6, "N": 3, "K": 1, "H": 2, "F": 8}
TENSORS = {
    "fused.weight": np.arange(18 * 6).reshape(18, 6),
    "kernel": np.arange(6 * 3 * 2).reshape(6, 3, 2),
    "heads.0.w": np.arange(12).reshape(2, 6),
    "heads.1.w": np.arange(12, 24).reshape(2, 6),
    "heads.2.w": np.arange(24, 36).reshape(2, 6),
    "odd.T": np.arange(4).reshape(2, 2),
}
SHAPES: Shapes = {name: value.shape for name, value in TENSORS.items()}
FUSED, KERNEL = TENSORS["fused.weight"], TENSORS["kernel"]


@for_each(
    ("text", "expected"),
    [
        ("fused.weight", FUSED),
        ("fused.weight.T", FUSED.T),
        ("fused.weight[N*H:2*N*H]", FUSED[6:12]),
        ("fused.weight[:, 2:4].T", FUSED[:, 2:4].T),
        ("fused.weight.view(N, 3, H, -1)[:, 1]", FUSED.reshape(3, 3, 2, 6)[:, 1]),
        ("fused.weight.view(K, N/K+2, -1)[0, 1:]", FUSED.reshape(1, 5, -1)[0, 1:] if 18 * 6 % 5 == 0 else None),
        ("kernel.permute(1, 2, 0)", KERNEL.transpose(1, 2, 0)),
        ("heads.{n}.w", np.stack([TENSORS[f"heads.{n}.w"] for n in range(3)])),
        ("odd.T", TENSORS["odd.T"]),
        ("odd.T.T", TENSORS["odd.T"].T),
    ],
)
def test_a_line_selects_what_pytorch_would(text: str, expected: np.ndarray | None) -> None:
    if expected is None:
        with pytest.raises(AdapterError, match="does not fit the shape"):
            select(text, SHAPES, SIZES)
        return
    found = select(text, SHAPES, SIZES).read(TENSORS)
    np.testing.assert_array_equal(found.ravel(), expected.ravel())


@for_each(
    ("text", "message"),
    [
        ("absent.weight", "'absent.weight', which is not a tensor of the port"),
        ("heads.{n}.b", "'heads.{n}.b', which is not a tensor of the port"),
        ("fused.weight[0:X]", "'X' is not a size; expected numbers and D, N, K, H, F"),
        ("fused.weight[0:7/2]", "'7 / 2' is not a whole number"),
        ("fused.weight.view(N, 5, -1)", r"'.view\(N, 5, -1\)' of 'fused.weight.view\(N, 5, -1\)' does not fit"),
        ("fused.weight[99]", "does not fit the shape"),
        ("fused.weight.view(__import__, -1)", "not a size"),
        ("fused.weight[len]", "'len' is not a size"),
        ("fused.weight[2**99]", "not a whole number"),
        ("fused.weight[0:6:2]", "not a size"),
        ("fused.weight.exp()", "not a tensor of the port"),
    ],
)
def test_whatever_else_is_written_is_one_sentence_and_never_run(text: str, message: str) -> None:
    with pytest.raises(AdapterError, match=message) as error:
        select(text, SHAPES, SIZES)
    assert str(error.value).count("\n") == 0
