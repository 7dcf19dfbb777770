"""`python -m benchmarks.sharding` measures the PyTorch and JAX implementations on 1 to 4 ranks: throughput and memory.

All ranks share the cores of one machine, so more ranks are not faster. The figures show the cost of sharding and how
much memory it saves. PyTorch's ranks are processes that exchange data by gloo; JAX's devices are in one process.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.environment import ROOT, cores, memory, processor, versions
from benchmarks.oracles import conformity, oracle_of, read_oracle, read_task
from benchmarks.race.race import refusal
from benchmarks.race.timing import seconds
from benchmarks.workloads import TRAINED, TRAINING, WORKLOADS, inputs_of
from rich.console import Console
from rich.table import Table

from meta.page import table, with_part
from transparity.parameters import initialize_parameters, load_parameters
from transparity_conformance.oracle.backends import backend, harness
from transparity_conformance.suite.ranks import Ranks, State

FORWARD = WORKLOADS["batch-8"]
TRAIN = dataclasses.replace(FORWARD, name="batch-8-train", kind="train", steps=TRAINED)
ROUNDS = 3

MESHES = (None, (1, 2), (2, 1), (1, 4), (2, 2), (4, 1))
"""The numbers of data-parallel and tensor-parallel ranks; None for the unsharded implementation in one process."""

MEBI = 2**20


@dataclass(frozen=True)
class Figures:
    """The figures of one number of ranks: the throughput of the slowest rank, and the memory of the largest rank."""

    column: str
    ranks: str
    forward: float
    """Tokens per second."""
    training: float
    parameters: float
    """MiB of parameters on the rank with the most parameters."""
    peak: float
    """The peak memory of a training process in MiB, minus its memory before loading the parameters."""


def measured(
    state: State, name: str, mesh: tuple[int, int] | None, forward_folder: Path, train_folder: Path
) -> tuple[float, float, float, float] | None:
    """Return the seconds of a forward pass and of training, the bytes of parameters, and the peak memory of training.

    A rank that has no place in the `mesh` returns None.

    Raises:
        ValueError: A result is not within its budget.
    """
    build: Any = backend(name) if mesh is None else _over(state, mesh)
    if mesh is not None and not build.takes_part:
        return None
    inputs, batches = read_task(forward_folder).inputs, [read_task(train_folder).inputs] * TRAINED
    _warm(build)
    before, config, path = memory("VmRSS"), FORWARD.config, str(forward_folder / "parameters.safetensors")
    forward: Any = build(config, load_parameters(path)) if mesh is None else build.from_file(config, path)
    held = _held(forward)
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak memory

    def run() -> Any:
        logits = forward.logits(**inputs)
        forward.ready(logits)
        return logits

    def train() -> Any:
        return np.array(forward.train(batches, TRAINING)[0])

    taken = _seconds(run, forward_folder), _seconds(train, train_folder)
    return *taken, held, memory("VmHWM") - before


def _warm(build: Any) -> None:
    """Run a tiny model, so that the measured memory excludes modules that are imported on first use."""
    workload = WORKLOADS["tiny-decoder"]
    model, inputs = build(workload.config, initialize_parameters(workload.config)), inputs_of(workload)
    model.logits(**inputs)
    model.train([inputs | {"targets": inputs["tokens"]}], TRAINING)


def measure(name: str) -> list[Figures]:
    """Return the figures of the implementation `name` for every mesh, each in new processes."""
    parts: Any = harness(name)
    figures = []
    for mesh in MESHES:
        count = 1 if mesh is None else mesh[0] * mesh[1]
        ranks = Ranks(parts.SHARDED, parts.processes(count), devices=count)
        try:
            found = ranks.do(measured, name, mesh, oracle_of(FORWARD), oracle_of(TRAIN))
        finally:
            ranks.stop()
        taken = zip(*(it for it in found if it is not None), strict=True)
        forward, training, held, peak = (max(values) for values in taken)
        said = "unsharded" if mesh is None else f"{mesh[0]} × {mesh[1]}"
        speeds = FORWARD.tokens / forward, TRAIN.tokens / training
        figures.append(Figures(name, said, *speeds, held / MEBI, peak / MEBI))
    return figures


def _over(state: State, mesh: tuple[int, int]) -> Any:
    return __import__(state.module, fromlist=["ShardedBackend"]).ShardedBackend(*mesh)


def _seconds(run: Callable[[], Any], folder: Path) -> float:
    """Return the median seconds of a call, after comparing the result of a first call with the expected result."""
    if reason := refusal(conformity(read_oracle(folder), run())):
        raise ValueError(reason)
    return statistics.median(seconds(run, "cpu") for _ in range(ROUNDS))


def _held(forward: Any) -> int:
    """Return the bytes of the parameters on this rank (PyTorch), or on the first device (JAX)."""
    if hasattr(forward, "weights"):
        leaves = sys.modules["jax"].tree.leaves(forward.weights)
        return sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves)
    values = [getattr(value, "_local_tensor", value) for value in forward.model.parameters()]
    return sum(value.numel() * value.element_size() for value in values)


RESULT, PAGE = ROOT / "benchmarks/results/sharding.json", ROOT / "docs/columns.md"
HEADS = ("column", "data × tensor", "forward, tokens/s", "training, tokens/s", "parameters of a rank, MiB", "peak, MiB")


def row(figures: Figures) -> tuple[str, ...]:
    numbers = (figures.forward, figures.training, figures.parameters, figures.peak)
    return figures.column, figures.ranks, *(f"{value:,.0f}" for value in numbers)


def markdown(kept: dict[str, Any]) -> str:
    """Return the figures of the result file as a Markdown table for docs/columns.md."""
    return f"{kept['taken']}\n\n{table(HEADS, [row(Figures(**figures)) for figures in kept['figures']], (2, 3, 4, 5))}"


def main() -> None:
    figures = [it for name in ("pytorch", "flax") for it in measure(name)]
    table = Table(*HEADS)
    for it in figures:
        table.add_row(*row(it))
    Console().print(table)
    taken = (
        f"The model is a decoder of {FORWARD.weights / 1e6:.0f} million parameters in float32, with 8 rows of 64 "
        f"tokens. All ranks share {cores()} cores of one machine. PyTorch's ranks exchange data with gloo; JAX has "
        "one process. The table shows what sharding costs and how much memory it saves. It does not show how the "
        "speed grows with more machines. *Peak* is the largest memory of a process during forward passes and "
        "training with AdamW, minus its memory before it loads the parameters. If there are several processes, "
        "*peak* is from the process with the largest value. The training ends with all learned parameters as NumPy "
        "arrays. Other programs used the machine at the same time."
    )
    conditions = {"cores": cores(), "device": "cpu", "processor": processor(), "versions": versions()}
    kept = {"taken": taken, "conditions": conditions, "figures": [dataclasses.asdict(it) for it in figures]}
    RESULT.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(with_part(PAGE.read_text(encoding="utf-8"), "figures", markdown(kept)), encoding="utf-8")


if __name__ == "__main__":
    from benchmarks import sharding  # rank processes import `measured` by the module's name, not from __main__

    sharding.main()
