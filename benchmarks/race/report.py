"""What a race prints and writes: tables, and one JSON file."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.race.candidates import Candidate
from benchmarks.race.race import Conditions
from benchmarks.race.rounds import Result, overridden
from benchmarks.race.standings import Quartiles, Standing, as_dict
from benchmarks.race.workloads import Workload
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

FORMAT_VERSION = 1

PACKAGES = (
    "torch",
    "jax",
    "flax",
    "numpy",
    "optax",
    "transformers",
    "x-transformers",
    "equinox",
    "keras",
    "keras-hub",
    "onnx",
    "onnxruntime",
    "openvino",
    "ctranslate2",
)

LEGEND = (
    "Medians of the rounds, in brackets (where there is room) their quartiles. FLOPs are those of matrix products; "
    "a training step counts three forward passes. The limit is the fastest matrix product of any library in the "
    "same rounds; of decoding, the fastest pass over memory, and the share is the time to read the weights once for "
    "each token. The ratio is to the best peer of the kind (of all, where the kind has none), round by round: above "
    "1 is faster. Of budget is the share of the error budget that is used; decoding has to write the same tokens as "
    "float64, and who cannot hold the weights has its own. First is the first call, compilation included; peak is "
    "the most memory held until then, the weights as they were given included."
)


HEADING = ("ms", "tokens /s", "GFLOP /s", "of the limit", "to best peer", "of budget", "first s", "import s", "peak GB")
"""The columns behind the name."""

WIDE = 130
"""From so many characters on, a table has its quartiles."""


@dataclass(frozen=True)
class Report:
    """All that is to be said about a race."""

    rows: Sequence[Standing]
    conditions: Mapping[str, Any]
    absent: Sequence[str]
    not_asked: Mapping[str, Mapping[str, str]]
    """Of each workload, who was not asked to run it, and why."""

    def by_workload(self) -> Iterator[tuple[Workload, list[Standing]]]:
        for _, rows in groupby(self.rows, lambda row: row.workload.name):
            found = list(rows)
            yield found[0].workload, found


def report_of(
    rows: Sequence[Standing], workloads: Sequence[Workload], candidates: Sequence[Candidate], conditions: Conditions
) -> Report:
    """The report of a race over `workloads`, run by those of `candidates` that are installed."""
    not_asked = {
        workload.name: {
            candidate.name: reason
            for candidate in candidates
            if not candidate.is_limit and (reason := candidate.why_not(workload, conditions.device))
        }
        for workload in workloads
    }
    return Report(rows, surroundings(conditions), absent(candidates), not_asked)


def absent(candidates: Sequence[Candidate]) -> list[str]:
    """Who cannot run here, each with the reason."""
    return [f"{candidate.name}: {reason}" for candidate in candidates if (reason := candidate.why_missing())]


def surroundings(conditions: Conditions) -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "threads": conditions.threads,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "rounds": conditions.rounds,
        "device": conditions.device,
        "processor": processor(),
        "python": platform.python_version(),
        "environment": {n: v for n, v in os.environ.items() if n.startswith(("OMP_", "MKL_", "MALLOC_", "XLA_"))},
        "kernels not held to": overridden(),
        "heap kept": conditions.keeps_heap,
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
    } | cuda(conditions.device)


def cuda(device: str) -> dict[str, str]:
    """A CUDA device's name, and the precision of its float32 products: below `highest`, TF32 may be used."""
    if device != "cuda":
        return {}
    import torch

    precision = torch.get_float32_matmul_precision()
    return {"device name": torch.cuda.get_device_name(), "float32 products": f"{precision} in PyTorch, highest in JAX"}


def processor() -> str:
    """What the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def as_json(report: Report, results: Sequence[Result]) -> str:
    """Everything, and the seconds of every round."""
    return json.dumps(
        {
            "format": FORMAT_VERSION,
            "conditions": report.conditions,
            "workloads": {workload.name: workload.as_dict() for workload, _ in report.by_workload()},
            "standings": [as_dict(row) for row in report.rows],
            "seconds": [
                {
                    "candidate": result.candidate.name,
                    "workload": result.workload.name,
                    "heat": result.heat,
                    "rounds": {str(turn): seconds for (_, turn), seconds in result.seconds.items()},
                }
                for result in results
            ],
            "absent": report.absent,
            "not_asked": report.not_asked,
        },
        indent=2,
    )


def as_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Our columns beside the best peer of their kind: a table of the `standings` in a race's JSON."""
    lines = ["| workload | column | ms | of the limit | as fast as the best peer |", "|---|---|--:|--:|:--|"]
    before = None
    for row in rows:
        if row["ours"] and row["seconds"]:
            name = "" if row["workload"] == before else f"`{row['workload']}`"
            beside = f"{row['ratio']['middle']:.2f} × {row['best_peer']}" if row["ratio"] else ""
            share = f"{row['share']['middle']:.0%}".replace("%", " %") if row["share"] else ""
            lines.append(
                f"| {name} | {row['candidate']} | {row['seconds']['middle'] * 1e3:,.0f} | {share} | {beside} |"
            )
            before = row["workload"]
    return "\n".join(lines)


def as_text(report: Report, width: int) -> Group:
    """The tables, what they mean, and who is absent; without the quartiles, if `width` has no room for them."""
    quartiles = width >= WIDE
    parts: list[RenderableType] = [
        as_table(workload, rows, quartiles=quartiles) for workload, rows in report.by_workload()
    ]
    parts.append(Text(LEGEND, style="dim"))
    if report.absent:
        parts.append(Text(f"Absent: {len(report.absent)}", style="bold"))
        parts += [Text(f"  {line}") for line in report.absent]
    return Group(*parts)


def as_table(workload: Workload, rows: Sequence[Standing], *, quartiles: bool) -> Table:
    """One workload, its kinds one below the other."""
    table = Table(title=title(workload, rows), box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.title_justify = "left"
    table.padding = (0, int(quartiles), 0, 0)
    table.add_column("candidate", no_wrap=True)
    for name in HEADING:
        table.add_column(name if quartiles else name.replace(" ", "\n"), justify="right", no_wrap=quartiles)
    for kind, of_kind in groupby(rows, lambda row: row.candidate.kinds[0]):
        table.add_row(Text(kind, style="bold"))
        for row in of_kind:
            label = Text(row.candidate.name, style="green" if row.candidate.ours else "")
            table.add_row(label, *([] if row.failed else cells(row, quartiles=quartiles)))
            if row.failed:
                table.add_row(Text(f"    {row.failed}", style="red", overflow="fold"))
        table.add_section()
    return table


def title(workload: Workload, rows: Sequence[Standing]) -> str:
    """What is computed, with its sizes, and in how many heats and finals."""
    heats = {heat for row in rows for heat in row.heats}
    finals = {heat for heat in heats if heat < 0}
    and_finals = f" and {len(finals)} finals" if finals else ""
    in_heats = f"; in {len(heats - finals)} heats{and_finals}, for not all fit into memory" if len(heats) > 1 else ""
    config, shapes = workload.config, " → ".join(str(length) for length in workload.lengths.values())
    layers = f"{config.num_encoder_layers}+" * config.has_encoder + str(config.num_decoder_layers)
    what = {
        "forward": "a forward pass",
        "decode": f"{workload.new_tokens} tokens, greedily, with a cache",
        "train": f"{workload.steps} steps of AdamW",
    }[workload.kind]
    return (
        f"{workload.name}: {what}, {workload.batch}×{shapes}, {workload.dtype} "
        f"({config.architecture}, {layers} layers, {config.embed_dim} features, {config.num_heads} heads, "
        f"{config.feed_forward_dim} hidden, vocabulary {config.vocab_size:,}){in_heats}"
    )


def cells(row: Standing, *, quartiles: bool = True) -> list[str]:
    """The columns behind the name, in words."""
    between = _range if quartiles else _middle
    ready = row.ready
    limits_bytes = row.candidate.is_limit and row.workload.kind == "decode"
    rate = f"{row.per_second.middle / 1e9:,.1f}" if row.candidate.is_limit and row.per_second else _number(row.gflops)
    taken = None if row.candidate.is_limit or not row.seconds else row.seconds.times(1e3)
    return [
        between(taken, "{:.3g}" if taken and taken.middle < 100 else "{:.0f}"),
        f"{row.tokens_per_second.middle:,.0f}" if row.tokens_per_second else "",
        f"{rate} GB/s" if limits_bytes else rate,
        between(row.share, "{:.0%}"),
        between(row.ratio, "{:.2f}"),
        row.conformity,
        f"{ready['first_seconds']:.3g}",
        f"{ready['import_seconds']:.3g}",
        f"{ready['peak_bytes'] / 1e9:.3g}",
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"


def _middle(value: Quartiles | None, form: str) -> str:
    return "" if value is None else form.format(value.middle)


def _range(value: Quartiles | None, form: str) -> str:
    if value is None:
        return ""
    return f"{form} [{form}–{form}]".format(value.middle, value.low, value.high)
