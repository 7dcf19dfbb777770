"""What a workload's result has to be: the reference in float64, computed once, in files that every process reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.race.workloads import TRAINING, Workload

from transparity.parameters import load_parameters, save_parameters
from transparity.protocol import Arrays
from transparity_conformance.oracle.backends import backend
from transparity_conformance.oracle.budgets import NEIGHBOURS, RULES, epsilon, rounded
from transparity_conformance.oracle.oracle import neighbour
from transparity_conformance.report.comparison import as_numbers, difference, share
from transparity_numpy.generation import generate
from transparity_numpy.transformer import transformer

CHUNK = 64
"""So many positions are compared at a time: the logits of all, in float64 and twice, would fill the memory."""

UNSURE = -1
"""Stands for a token of which rounding may decide, and for those behind it."""


def write_oracle(folder: Path, workload: Workload, parameters: Arrays, inputs: Arrays) -> None:
    """The weights, the inputs, the expected result and its budget, as files in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    expected, budget = {"forward": logits, "decode": tokens, "train": losses}[workload.kind](
        workload, parameters, inputs
    )
    save_parameters(folder / "parameters.safetensors", parameters)
    np.savez(folder / "inputs.npz", **dict[str, Any](inputs))
    np.save(folder / "expected.npy", expected)
    (folder / "oracle.json").write_text(json.dumps({"budget": budget, "workload": workload.as_dict()}))


def read_task(folder: Path) -> tuple[Workload, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The workload, the weights and the inputs that `write_oracle` wrote."""
    workload = Workload.from_dict(json.loads((folder / "oracle.json").read_text())["workload"])
    with np.load(folder / "inputs.npz") as inputs:
        return workload, load_parameters(folder / "parameters.safetensors"), dict(inputs)


def conformity(folder: Path, workload: Workload, result: Any) -> dict[str, float]:
    """The error of a result, its budget, and the share of it that the error uses: above 1, or not a number, is a
    disagreement."""
    expected = np.load(folder / "expected.npy", mmap_mode="r")
    budget = json.loads((folder / "oracle.json").read_text())["budget"]
    if workload.kind == "decode":
        error = difference(*sure_tokens(workload, as_numbers(result), expected))
    else:
        error = max(_differences(workload, result, expected))
    return {"error": error, "budget": budget, "share": share(error, budget)}


def _differences(workload: Workload, result: Any, expected: np.ndarray) -> Iterator[float]:
    """Of the positions that are held, some at a time."""
    if workload.kind == "train":
        yield difference(as_numbers(result), expected)
        return
    shape = (workload.batch, list(workload.lengths.values())[-1], workload.config.vocab_size)
    numbers = as_numbers(result)
    yield 0.0 if numbers.shape == shape else np.inf
    for row, positions in enumerate(expected):
        for start in range(0, len(positions), CHUNK):
            at = slice(start, min(start + CHUNK, len(positions)))
            yield difference(numbers[row, at], positions[at])


def sure_tokens(workload: Workload, result: np.ndarray, expected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The tokens behind the prompt, those that are written and those that should be, without what is unsure."""
    written = result[:, -workload.new_tokens :]
    if written.shape != expected.shape:
        return written, expected
    sure = expected != UNSURE
    return written[sure], expected[sure]


def logits(workload: Workload, parameters: Arrays, inputs: Arrays) -> tuple[np.ndarray, float]:
    """The logits in float64, and the budget of the workload's precision."""
    inputs = {name: tokens[:, : workload.held] for name, tokens in inputs.items()}
    exact = _logits_in("float64", workload, parameters, inputs)
    return exact, _budget(workload.dtype, exact, _logits_in(workload.dtype, workload, parameters, inputs))


def tokens(workload: Workload, parameters: Arrays, inputs: Arrays) -> tuple[np.ndarray, float]:
    """The likeliest tokens in float64, up to where rounding may decide; none may differ, so the budget is 0."""
    exact = {name: value.astype(np.float64) for name, value in parameters.items()}
    written = generate(workload.config, exact, inputs["tokens"], workload.new_tokens)
    truth, budget = logits(workload, parameters, {"tokens": written[:, :-1]})
    likeliest = np.partition(truth[:, -workload.new_tokens :], -2, axis=-1)[..., -2:]
    ahead = likeliest[..., 1] - likeliest[..., 0]
    unsure = np.logical_or.accumulate(ahead <= 2 * budget, axis=1)
    return np.where(unsure, UNSURE, written[:, -workload.new_tokens :]), 0.0


def losses(workload: Workload, parameters: Arrays, inputs: Arrays) -> tuple[np.ndarray, float]:
    """The losses before each step, by PyTorch's column in float64: the reference differentiates by one forward pass
    for each number, and takes days. Conformance holds the one to the other where that is possible.

    AdamW divides a small gradient by itself, so that rounding moves a loss by a lot or, with luck, by little: of so few
    numbers the error is measured at neighbouring points, too, as the oracle of the conformance suite does.
    """

    def at_each_point(dtype: str) -> np.ndarray:
        models = (
            backend("pytorch")(workload.config, neighbour(dict(parameters), index), dtype=dtype)
            for index in range(NEIGHBOURS)
        )
        return np.array([model.train([inputs] * workload.steps, TRAINING)[0] for model in models])

    exact = at_each_point("float64")
    return exact[0], _budget("float32", exact, at_each_point("float32"))


def _logits_in(dtype: str, workload: Workload, parameters: Arrays, inputs: Arrays) -> np.ndarray:
    given: dict[str, Any] = dict(inputs)
    arrays = {name: rounded(value, dtype) for name, value in parameters.items()}
    return transformer(workload.config, arrays, **given, tap=lambda name, value: rounded(value, dtype))


def _budget(dtype: str, exact: np.ndarray, rough: np.ndarray) -> float:
    """As the oracle of the conformance suite has it, measured at one point or at each of several."""
    noise = max(difference(one, other) for one, other in zip(rough, exact, strict=True))
    return RULES[dtype].budget(noise, epsilon(dtype), np.abs(exact).max())
