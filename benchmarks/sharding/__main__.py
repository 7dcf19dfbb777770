"""`python -m benchmarks.sharding`: measure, print a table, keep the figures, and write them into docs/sharding.md."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

from benchmarks.environment import cores, processor, versions
from benchmarks.sharding.measure import CONFIG, LENGTH, ROWS, Figures, measure
from rich.console import Console
from rich.table import Table

from transparity.parameters import parameter_shapes

ROOT = Path(__file__).parents[2]
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
        f"All ranks share {cores()} core(s) of one machine and exchange by gloo, or within one process in JAX: the "
        "table shows what sharding costs and which memory it saves, not how it scales. The peak is that of a training "
        "step with AdamW in one process, which in JAX has all devices; it ends with all learned parameters as NumPy "
        "arrays. The machine was shared, too."
    )
    conditions = {"cores": cores(), "device": "cpu", "processor": processor(), "versions": versions()}
    kept = {"taken": taken, "conditions": conditions, "figures": [dataclasses.asdict(it) for it in figures]}
    RESULT.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), markdown(kept)), encoding="utf-8")


if __name__ == "__main__":
    main()
