"""The pool `timing`: the time of each stage of a check, and how this time grows with the model.

Every check runs in a new process, through the command line, in several interleaved rounds. `python -m meta.timing FILE`
reads the answers that `--json FILE` wrote. The command writes the medians of the times into docs/timing.json, and
tables into docs/performance.md and NOTES.md."""

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from meta.page import DOCS, NOTES, table, write_part
from meta.trial import Measure, Trial
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


def growing() -> Iterator[tuple[str, Sequence[str], dict[str, int]]]:
    """Yield (`SIZE: VALUE`, arguments of the check, changed fields of `notes-lm`) for each value of `GROWING`."""
    for size, (field, values) in GROWING.items():
        for value in values:
            lengths = {"positions of one prompt": [value], "prompts of 1,000 positions": range(1000, 1000 + value)}
            prompts = [word for length in lengths.get(size, []) for word in ("--length", str(length))]
            arguments = ["right.py:build", "--logits-only", "--config", "grown.json", *prompts]
            yield f"{size}: {value}", arguments, {field: value} if field else {"max_length": LONGEST}


def answer_of(arguments: Sequence[str], changes: dict[str, Any]) -> dict[str, Any]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in (FILES | {"grown.json": preset("notes-lm").resized(**changes).to_json()}).items():
            (folder / file).write_text(text, encoding="utf-8")
        return measured(arguments, folder)


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


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5)


def trials(options: argparse.Namespace) -> list[Trial]:
    tasks: dict[str, tuple[Sequence[str], dict[str, int]]] = {name: (CASES[name], {}) for name in CASES}
    tasks |= {name: (arguments, changes) for name, arguments, changes in growing()}
    rounds = itertools.product(range(1, options.rounds + 1), tasks.items())
    return [Trial(f"{name}, round {number}", partial(answer_of, *task)) for number, (name, task) in rounds]


MEASURES: tuple[Measure, ...] = ()


def main(file: str) -> None:
    rounds: dict[str, list[dict[str, Any]]] = {}
    for row in json.loads(Path(file).read_text(encoding="utf-8")):
        rounds.setdefault(row["trial"].rpartition(", round ")[0], []).append(row["answer"])
    path = DOCS / "timing.json"
    kept = json.loads(path.read_text()) if path.exists() else {"checks": {}, "growth": {}}
    for name, found in rounds.items():
        size, _, value = name.rpartition(": ")
        if size in GROWING:
            kept["growth"].setdefault(size, {})[value] = medians(found)
        else:
            kept["checks"][name] = medians(found)
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    write_part(DOCS / "performance.md", "checks", cases_table(kept["checks"]))
    write_part(NOTES, "growth of checks", growth_table(kept["growth"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
