"""Recorded runs: what is replayed is what would be computed, and only shapes that come again are recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from transparity_conformance.oracle.probes import probes
from transparity_pytorch.fast import graphs
from transparity_pytorch.port import build

A, B, LONGER = (torch.tensor(values) for values in ([1.0, 2.0], [3.0, 5.0], [1.0, 2.0, 4.0]))


def doubled(model: Any, inputs: dict[str, Any], out: Tensor | None = None) -> Tensor:
    return torch.mul(inputs["x"], 2, out=out)


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What is recorded, by a recorder for a CPU that runs a change again."""
    made: list[Callable[[], None]] = []

    def recorded(change: Callable[[], None]) -> Callable[[], None]:
        made.append(change)
        return change

    monkeypatch.setattr(graphs, "recorded", recorded)
    return made


def test_a_run_is_recorded_at_the_second_call_of_a_shape(recordings: list[Callable[[], None]]) -> None:
    run = graphs.Replayed(doubled)
    for x, count in ((A, 0), (B, 1), (A, 1), (LONGER, 1), (A, 1), (A, 2)):
        assert torch.equal(run(None, {"x": x, "mask": None}), 2 * x)
        assert len(recordings) == count


def test_a_replayed_result_is_not_overwritten_by_the_next(recordings: list[Callable[[], None]]) -> None:
    run = graphs.Replayed(doubled)
    results = [run(None, {"x": x}) for x in (A, A, B)]
    assert torch.equal(results[1], 2 * A) and torch.equal(results[2], 2 * B)
    out = torch.empty(2)
    assert run(None, {"x": A}, out) is out and torch.equal(out, 2 * A)
    assert len(recordings) == 1


def test_without_memory_for_a_recording_runs_are_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def full(change: Callable[[], None]) -> Callable[[], None]:
        tried.append(change)
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(graphs, "recorded", full)
    run = graphs.Replayed(doubled)
    for x in (A, B, A):
        assert torch.equal(run(None, {"x": x}), 2 * x)
    assert len(tried) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # the compiler's advice; float32 is meant
@pytest.mark.parametrize("mode", ["eager", "compile"])
def test_a_gpu_replays_what_it_computes(mode: str) -> None:
    probe = probes("translation")["mixed"]
    forward = build(probe.config, probe.parameters, device="cuda", mode=mode)
    turned = {name: np.roll(value, 1, axis=-1) for name, value in probe.inputs.items()}
    launched = [forward.logits(**inputs).cpu() for inputs in (probe.inputs, turned)]
    for _ in range(2):
        for inputs, expected in zip((probe.inputs, turned), launched, strict=True):
            assert torch.equal(forward.logits(**inputs).cpu(), expected)
