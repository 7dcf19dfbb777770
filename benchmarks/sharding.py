"""`python -m benchmarks.sharding`: throughput and memory of the columns over ranks, beside their unsharded runs.

All ranks share the cores of one machine and exchange by gloo, or within one process in JAX: the figures show what
sharding costs and what memory it saves, not how it scales.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import statistics
import sys
import tempfile
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.environment import cores, memory, processor, versions
from rich.console import Console
from rich.table import Table

from transparity.config import TransformerConfig
from transparity.parameters import initialize_parameters, load_parameters, parameter_shapes, save_parameters
from transparity.training import Training
from transparity_conformance.oracle.backends import backend, harness
from transparity_conformance.suite.ranks.processes import Ranks, State

CONFIG = TransformerConfig(
    architecture="decoder",
    target_vocab_size=8192,
    max_length=64,
    embed_dim=512,
    num_heads=8,
    num_decoder_layers=4,
    feed_forward_dim=2048,
    norm_position="pre",
    final_norm=True,
    activation="gelu",
)
ROWS, LENGTH, ROUNDS = 8, 64, 3

TRAINING = Training("adamw", learning_rate=1e-3)

MESHES = (None, (1, 2), (2, 1), (1, 4), (2, 2), (4, 1))
"""Data × tensor ranks; None: the column in one process, unsharded."""

MEBI = 2**20


@dataclass(frozen=True)
class Figures:
    """What one layout takes; of several ranks, the slowest's time and the largest's memory."""

    column: str
    ranks: str
    forward: float
    """Tokens a second."""
    training: float
    parameters: float
    """MiB of parameters in the rank with most."""
    peak: float
    """MiB by which a training step, parameters included, raised the memory of a process."""


def measured(
    state: State, name: str, mesh: tuple[int, int] | None, config: TransformerConfig, path: str
) -> tuple[float, float, float, float] | None:
    """Return the seconds of a forward pass and of a training step, and MiB; None from a rank that takes no part."""
    build: Any = backend(name) if mesh is None else _over(state, mesh)
    if mesh is not None and not build.takes_part:
        return None
    inputs, batch = _drawn(config)
    # Code that is loaded when it is first used is not counted.
    tiny = dataclasses.replace(config, target_vocab_size=64, embed_dim=32, feed_forward_dim=64, num_decoder_layers=1)
    warm, others = build(tiny, initialize_parameters(tiny)), _drawn(tiny)
    warm.logits(**others[0])
    warm.train([others[1]], TRAINING)
    before = memory("VmRSS")
    forward: Any = build(config, load_parameters(path)) if mesh is None else build.from_file(config, path)
    held = _held(forward)
    Path("/proc/self/clear_refs").write_text("5")  # from here on counts the peak
    seconds = (
        _seconds(lambda: forward.ready(forward.logits(**inputs))),
        _seconds(lambda: forward.train([batch], TRAINING)),
    )
    return *seconds, held, memory("VmHWM") - before


def measure(name: str, config: TransformerConfig = CONFIG) -> list[Figures]:
    """Measure every layout of a column, each in processes of its own."""
    parts: Any = harness(name)
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "parameters.safetensors"))
        save_parameters(path, initialize_parameters(config))
        for mesh in MESHES:
            count = 1 if mesh is None else mesh[0] * mesh[1]
            ranks = Ranks(parts.SHARDED, parts.processes(count), devices=count)
            try:
                taken = [it for it in ranks.do(measured, name, mesh, config, path) if it is not None]
            finally:
                ranks.stop()
            forward, training, held, peak = (max(values) for values in zip(*taken, strict=True))
            said = "unsharded" if mesh is None else f"{mesh[0]} × {mesh[1]}"
            tokens = ROWS * LENGTH
            figures.append(Figures(name, said, tokens / forward, tokens / training, held / MEBI, peak / MEBI))
    return figures


def _drawn(config: TransformerConfig) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return tokens, and a batch with targets."""
    tokens = np.random.default_rng(0).integers(1, config.vocab_size, (ROWS, LENGTH + 1))
    return {"tokens": tokens[:, :-1]}, {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}


def _over(state: State, mesh: tuple[int, int]) -> Any:
    return __import__(state.module, fromlist=["ShardedBackend"]).ShardedBackend(*mesh)


def _seconds(run: Callable[[], Any]) -> float:
    """Return the median time of a call, after a first one."""
    run()
    return statistics.median(timeit.repeat(run, number=1, repeat=ROUNDS))


def _held(forward: Any) -> int:
    """Return the bytes of the parameters that this rank holds, or the first device."""
    if "jax" in type(forward.model).__module__ or hasattr(forward, "state"):
        leaves = sys.modules["jax"].tree.leaves(forward.state)
        return sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves)
    values = [getattr(value, "_local_tensor", value) for value in forward.model.parameters()]
    return sum(value.numel() * value.element_size() for value in values)


ROOT = Path(__file__).parents[1]
RESULT, PAGE = ROOT / "benchmarks/results/sharding.json", ROOT / "docs/sharding.md"
HEADS = ("column", "data × tensor", "forward, tokens/s", "training, tokens/s", "parameters of a rank, MiB", "peak, MiB")


def row(figures: Figures) -> tuple[str, ...]:
    numbers = (figures.forward, figures.training, figures.parameters, figures.peak)
    return figures.column, figures.ranks, *(f"{value:,.0f}" for value in numbers)


def markdown(kept: dict[str, Any]) -> str:
    """Return kept figures as docs/sharding.md shows them."""
    lines = [f"| {' | '.join(HEADS)} |", "|---|---|--:|--:|--:|--:|"]
    lines += [f"| {' | '.join(row(Figures(**figures)))} |" for figures in kept["figures"]]
    return f"{kept['taken']}\n\n" + "\n".join(lines)


def written(page: str, text: str) -> str:
    """Return the page with `text` between its two comments."""
    pattern = r"(?s)(<!-- figures: .*? -->\n).*?(<!-- end of figures -->)"
    return re.sub(pattern, lambda found: f"{found[1]}{text}\n{found[2]}", page)


def main() -> None:
    figures = [it for name in ("pytorch", "flax") for it in measure(name)]
    table = Table(*HEADS)
    for it in figures:
        table.add_row(*row(it))
    Console().print(table)
    count = sum(map(math.prod, parameter_shapes(CONFIG).values()))
    taken = (
        f"A decoder of {count / 1e6:.0f} million parameters in float32, {ROWS} rows of {LENGTH} tokens. "
        f"All ranks share {cores()} cores of one machine and exchange by gloo; JAX has one process. The table shows "
        "the cost of sharding and the memory it saves, not how it scales. The peak is the memory of one process in "
        "a training step with AdamW. The step ends with all learned parameters as NumPy arrays. The machine was shared."
    )
    conditions = {"cores": cores(), "device": "cpu", "processor": processor(), "versions": versions()}
    kept = {"taken": taken, "conditions": conditions, "figures": [dataclasses.asdict(it) for it in figures]}
    RESULT.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), markdown(kept)), encoding="utf-8")


if __name__ == "__main__":
    from benchmarks import sharding  # ranks look `measured` up by the name of its module

    sharding.main()
