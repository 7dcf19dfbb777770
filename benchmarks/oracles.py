"""Expected results of benchmarks: a candidate is only timed if its result agrees with the reference in float64."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.environment import ROOT, python_path
from benchmarks.workloads import TRAINING, Task, Workload, inputs_of, parameters_of

from transparity.parameters import load_parameters, save_parameters
from transparity.protocol import Arrays
from transparity_conformance.cache import digest
from transparity_conformance.oracle.backends import backend
from transparity_conformance.oracle.budgets import NEIGHBOURS, RULES, epsilon, rounded
from transparity_conformance.oracle.oracle import neighbour
from transparity_conformance.report.comparison import as_numbers, difference, dtype_name, share
from transparity_numpy.decoding.generation import generate
from transparity_numpy.transformer import transformer

ORACLES = ROOT / "build/oracles"
"""The folder of oracles (expected results); an oracle stays valid until the code that computes oracles changes."""

SOURCES = (
    *("reference/transparity", "reference/transparity_numpy", "conformance/transparity_conformance/oracle"),
    *("benchmarks/workloads.py", "benchmarks/workloads.toml", "benchmarks/oracles.py"),
)
"""The code that computes oracles; oracles for training also depend on the project's PyTorch implementation."""

WRITE = """
import pathlib, sys
from benchmarks.oracles import write_oracle
from benchmarks.workloads import WORKLOADS
write_oracle(pathlib.Path(sys.argv[1]), WORKLOADS[sys.argv[2]])
"""

CHUNK = 64
"""The number of positions that are compared at a time; float64 copies of all logits would fill the memory."""

UNSURE = -1
"""A number in place of a token. In each row, it replaces the first token that rounding may change, and all later
tokens."""


@dataclass(frozen=True)
class Expected:
    """A workload's expected result in float64, and the error budget: the largest difference that rounding explains."""

    workload: Workload
    values: np.ndarray
    budget: float


def expected_of(workload: Workload, parameters: Arrays, inputs: Arrays) -> Expected:
    compute = {"forward": logits, "decode": tokens, "train": losses}[workload.kind]
    return Expected(workload, *compute(workload, parameters, inputs))


def conformity(expected: Expected, result: Any) -> dict[str, float]:
    """Return the `error` of a result, its `budget` and the `share` error / budget. The result is wrong if share > 1."""
    if expected.workload.kind == "decode":
        error = difference(*sure_tokens(expected.workload, as_numbers(result), expected.values))
    elif expected.workload.kind == "train":
        error = difference(as_numbers(result), expected.values)
    else:
        right_dtype = dtype_name(result) in (expected.workload.dtype, "float32")  # a peer may return logits in float32
        found = as_numbers(result)
        error = max(_differences(expected.workload, found, expected.values)) if right_dtype else np.inf
    return {"error": error, "budget": expected.budget, "share": share(error, expected.budget)}


def worst(found: Iterable[dict[str, float]]) -> dict[str, float]:
    return max(found, key=lambda item: item["share"])


def oracle_of(workload: Workload, root: Path | None = None) -> Path:
    """Return the folder with a workload's oracle. The code of `root`, by default this checkout, computes a missing
    oracle."""
    digest = digest_of(workload, root or ROOT)
    if root is None:
        return kept(f"{workload.name}-{digest}", lambda folder: write_oracle(folder, workload))

    def write(folder: Path) -> None:
        command = [sys.executable, "-c", WRITE, str(folder), workload.name]
        subprocess.run(command, cwd=root, env=os.environ | {"PYTHONPATH": python_path(root)}, check=True)

    return kept(f"{workload.name}-{root.name}-{digest}", write)


def digest_of(workload: Workload, root: Path) -> str:
    paths = [root / source for source in (*SOURCES, *["backends/transparity_pytorch"] * (workload.kind == "train"))]
    files = [file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    return digest(json.dumps(workload.as_dict()), *(file.read_bytes() for file in files))[:16]


def kept(name: str, write: Callable[[Path], None]) -> Path:
    """Return the folder `name`, which ends with a digest. If the folder is missing, fill it by `write`, and remove
    folders that differ only in the digest."""
    folder = ORACLES / name
    if not folder.exists():
        ORACLES.mkdir(parents=True, exist_ok=True)
        for old in ORACLES.glob(f"{name.rpartition('-')[0]}-{'[0-9a-f]' * 16}"):
            shutil.rmtree(old)
        with tempfile.TemporaryDirectory(dir=ORACLES) as temporary:
            write(Path(temporary))
            Path(temporary).rename(folder)
            Path(temporary).mkdir()  # an empty folder for the context manager to remove
    return folder


def write_oracle(folder: Path, workload: Workload) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    parameters, inputs = parameters_of(workload), inputs_of(workload)
    expected = expected_of(workload, parameters, inputs)
    save_parameters(folder / "parameters.safetensors", parameters)
    np.savez(folder / "inputs.npz", **dict[str, Any](inputs))
    np.save(folder / "expected.npy", expected.values)
    (folder / "oracle.json").write_text(json.dumps({"budget": expected.budget, "workload": workload.as_dict()}))


def read_oracle(folder: Path) -> Expected:
    written = json.loads((folder / "oracle.json").read_text())
    values = np.load(folder / "expected.npy", mmap_mode="r")
    return Expected(Workload.from_dict(written["workload"]), values, written["budget"])


def read_task(folder: Path, device: str = "cpu") -> Task:
    with np.load(folder / "inputs.npz") as inputs:
        parameters = load_parameters(folder / "parameters.safetensors")
        return Task(read_oracle(folder).workload, parameters, dict(inputs), str(folder), device)


def _differences(workload: Workload, result: np.ndarray, expected: np.ndarray) -> Iterator[float]:
    shape = (workload.batch, list(workload.lengths.values())[-1], workload.config.vocab_size)
    yield 0.0 if result.shape == shape else np.inf
    for row, positions in enumerate(expected):
        for start in range(0, len(positions), CHUNK):
            part = slice(start, min(start + CHUNK, len(positions)))
            yield difference(result[row, part], positions[part])


def sure_tokens(workload: Workload, result: np.ndarray, expected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the generated and the expected tokens, without the tokens that rounding may change."""
    generated = result[:, -workload.new_tokens :]
    if generated.shape != expected.shape:
        return generated, expected
    sure = expected != UNSURE
    return generated[sure], expected[sure]


def logits(workload: Workload, parameters: Arrays, inputs: Arrays) -> tuple[np.ndarray, float]:
    inputs = {name: tokens[:, : workload.held] for name, tokens in inputs.items()}
    exact = _logits_in("float64", workload, parameters, inputs)
    return exact, _budget(workload.dtype, exact, _logits_in(workload.dtype, workload, parameters, inputs))


def tokens(workload: Workload, parameters: Arrays, inputs: Arrays) -> tuple[np.ndarray, float]:
    """Return the tokens of greedy decoding in float64, and a budget of 0.

    `UNSURE` replaces the first token of a row that rounding may change, and all later tokens of the row.
    """
    exact = {name: value.astype(np.float64) for name, value in parameters.items()}
    written = generate(workload.config, exact, inputs["tokens"], workload.new_tokens)
    truth, budget = logits(workload, parameters, {"tokens": written[:, :-1]})
    likeliest = np.partition(truth[:, -workload.new_tokens :], -2, axis=-1)[..., -2:]
    ahead = likeliest[..., 1] - likeliest[..., 0]
    unsure = np.logical_or.accumulate(ahead <= 2 * budget, axis=1)
    return np.where(unsure, UNSURE, written[:, -workload.new_tokens :]), 0.0


def losses(workload: Workload, parameters: Arrays, inputs: Arrays) -> tuple[np.ndarray, float]:
    """Return the loss before each step, computed by the project's PyTorch implementation in float64, and the budget.

    The NumPy reference would take days, because gradients need one forward pass for each element of the parameters. On
    small models, the conformance suite compares the gradients of PyTorch with the reference.

    AdamW divides a gradient by its own size, so the rounding of a small gradient may change the loss considerably.
    Rounding errors are therefore measured for the given weights and for slightly different weights.
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
    noise = max(difference(one, other) for one, other in zip(rough, exact, strict=True))
    return RULES[dtype].budget(noise, epsilon(dtype), np.abs(exact).max())
