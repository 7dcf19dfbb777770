"""Measure the time of each stage of a check, and how this time grows with the model.

    python -m meta.timing [--rounds N] [--only WORD …]

Every check runs in a new process, through the command line. The rounds are interleaved, and the figures are medians.
The program writes the results into docs/timing.json, and their tables into docs/performance.md and NOTES.md.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from rich.progress import track

from meta.page import DOCS, NOTES, table, write_part
from transparity import preset

RIGHT = """
from transparity_{column}.port import build as build_right


def build(config, parameters):
    return build_right(config, parameters).logits
"""
"""A port that returns only the logits, and has no other method."""

WRONG = """
import dataclasses

from transparity_pytorch.port import build as build_right


def build(config, parameters):
    wrong = dataclasses.replace(config, attention_multiplier=config.attention_multiplier * 0.7071)
    return build_right(wrong, parameters).logits
"""
"""A port whose scores are 0.7071 times the right scores."""

FILES = {"right.py": RIGHT.format(column="pytorch"), "right_flax.py": RIGHT.format(column="flax"), "wrong.py": WRONG}

CASES: dict[str, Sequence[str]] = {
    "usage: `transparity --help`": (),
    "right port in PyTorch, its logits": ("right.py:build", "--preset", "translation", "--logits-only"),
    "right port in PyTorch with every capability": ("transparity_pytorch.port:build", "--preset", "translation"),
    "wrong port in PyTorch, its logits": ("wrong.py:build", "--preset", "translation", "--logits-only"),
    "right port in Flax, its logits": ("right_flax.py:build", "--preset", "notes-lm", "--logits-only"),
    "right loader of Llama, with the audit": ("meta.audits.loaders.llama_module:load", "--family", "llama", "--audit"),
    "Whisper of `transformers`, with the audit": ("meta.exam.subjects.hub:listener", "--family", "whisper", "--audit"),
}
"""The arguments of `transparity check` for each row of the table."""

GROWING: dict[str, tuple[str, Sequence[int]]] = {
    "layers": ("num_decoder_layers", (2, 8, 32)),
    "features": ("embed_dim", (48, 192, 768)),
    "positions of one prompt": ("", (1024, 4096, 16_384)),
    "prompts of 1,000 positions": ("", (1, 4, 16)),
}
"""The sizes that grow, by name: the configuration field to change (if any), and the values."""

LONGEST = 16_384
"""The `max_length` of models that read long prompts."""


def growing(folder: Path) -> Iterator[tuple[str, int, Sequence[str]]]:
    """Write configurations of growing size into `folder`; yield (kind of size, value, arguments of the check)."""
    for size, (field, values) in GROWING.items():
        for value in values:
            path = folder / f"{field or 'itself'}-{value}.json"
            changes: dict[str, Any] = {field: value} if field else {"max_length": LONGEST}
            path.write_text(preset("notes-lm").resized(**changes).to_json())
            lengths = {"positions of one prompt": [value], "prompts of 1,000 positions": range(1000, 1000 + value)}
            prompts = [word for length in lengths.get(size, []) for word in ("--length", str(length))]
            yield size, value, ["right.py:build", "--logits-only", "--config", path.name, *prompts]


def measured(arguments: Sequence[str], folder: Path) -> dict[str, Any]:
    """Return the time, processor time and peak memory of a check, and the processor time of its stages."""
    command = ["check", *arguments, "--json", "report.json"] if arguments else ["--help"]
    began = time.perf_counter()
    with (folder / "told").open("w+") as told:
        process = subprocess.Popen(
            [sys.executable, "-m", "transparity_conformance", *command],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            stdout=subprocess.DEVNULL,
            stderr=told,
        )
        _, status, used = os.wait4(process.pid, 0)  # with the processes that the checker started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 1):
            told.seek(0)
            raise RuntimeError(f"transparity {' '.join(command)} ended with {process.returncode}: {told.read()}")
    (report,) = json.loads((folder / "report.json").read_text()) if arguments else [{"timing": {}}]
    figures = {"seconds": time.perf_counter() - began, "processor": used.ru_utime + used.ru_stime}
    stages = {f"stage: {name}": each["processor"] + each["port"] for name, each in report["timing"].items()}
    return figures | {"GB": used.ru_maxrss * 1024 / 1e9} | stages


def exponent(values: Sequence[float], measured: Sequence[float]) -> float:
    return math.log(measured[-1] / measured[-2]) / math.log(values[-1] / values[-2])


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: round(median(each[name] for each in rounds), 3) for name in rounds[0]}


def cases_table(found: Mapping[str, Mapping[str, float]]) -> str:
    lines = []
    for name, row in found.items():
        stages = {each.removeprefix("stage: "): row[each] for each in row if each.startswith("stage: ")}
        longest = sorted(stages, key=stages.__getitem__, reverse=True)[:3]
        says = ", ".join(f"{stage} {stages[stage]:.1f}" for stage in longest)
        lines.append([name, f"{row['seconds']:.1f}", f"{row['processor']:.1f}", f"{row['GB']:.2f}", says])
    heads = ("check", "seconds", "processor seconds", "peak memory, GB", "longest stages, processor seconds")
    return table(heads, lines, (1, 2, 3))


def growth_table(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    lines = []
    for size, rows in found.items():
        values = [int(value) for value in rows]
        for what, unit in (("processor", "s"), ("GB", "GB")):
            figures = [row[what] for row in rows.values()]
            shown = ", ".join(f"{figure:.{1 if unit == 's' else 2}f}" for figure in figures)
            lines.append(
                [size, f"{values[0]:,} to {values[-1]:,}", f"{shown} {unit}", f"{exponent(values, figures):.2f}"]
            )
    return table(("size", "values", "processor time, or peak memory", "exponent"), lines, (3,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[""], help="measure only rows with one of these words")
    options = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in FILES.items():
            (folder / file).write_text(text)
        tasks: dict[tuple[str, ...], Sequence[str]] = {(case,): arguments for case, arguments in CASES.items()}
        tasks |= {(size, str(value)): arguments for size, value, arguments in growing(folder)}
        tasks = {key: tasks[key] for key in tasks if any(word in key[0] for word in options.only)}
        rounds: dict[tuple[str, ...], list[dict[str, Any]]] = {key: [] for key in tasks}
        for _ in range(options.rounds):
            for key in track(tasks, "Measuring checks"):
                rounds[key].append(measured(tasks[key], folder))
    path = DOCS / "timing.json"
    kept = json.loads(path.read_text()) if path.exists() else {"checks": {}, "growth": {}}
    for key, found in rounds.items():
        (kept["checks"] if len(key) == 1 else kept["growth"].setdefault(key[0], {}))[key[-1]] = medians(found)
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    write_part(DOCS / "performance.md", "checks", cases_table(kept["checks"]))
    write_part(NOTES, "growth of checks", growth_table(kept["growth"]))


if __name__ == "__main__":
    main()
