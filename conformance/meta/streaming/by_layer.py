"""Measure checks of one layer at a time: `python -m meta.streaming.by_layer FOLDER [--planted …] [--layer N]`.

FOLDER is the folder with 8 billion parameters that `meta.streaming.measure` writes, or another Llama. The port is the
loader of transformers; every layer is checked, and so are the embedding and the head. With `--planted`, mistakes are
planted in layer N, and only this layer and the layer before it are checked. The results are written into
docs/by-layer.json and conformance/meta/NOTES.md.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from meta.page import DOCS, NOTES, table, write_part
from meta.streaming import planted
from meta.streaming.measure import peak_memory
from transparity_conformance.checking.checkers import PortCheck
from transparity_conformance.checking.options import Options
from transparity_conformance.checking.systems import System, layer_systems
from transparity_conformance.checkpoints.importing import open_checkpoint
from transparity_conformance.report.report import Report

FILE = DOCS / "by-layer.json"


def checker(mistake: str) -> PortCheck:
    return PortCheck(Options(f"{planted.__file__}:{mistake}", timeout=600.0, audit=False))


def measured(check: PortCheck, system: System) -> tuple[Report, dict[str, Any]]:
    """Check a layer, the embedding or the head; return the report, the seconds, and the processes' peak memory."""
    began = time.monotonic()
    report = check(system, lambda *_: None)
    peaks = {"checker": peak(os.getpid()), "port": peak(check.build.process.processes[0].process.pid)}
    return report, {"piece": system.name, "verdict": report.verdict, "seconds": time.monotonic() - began, **peaks}


def peak(process: int) -> int:
    """Return the peak memory of a process since the last call, in bytes."""
    held = peak_memory(process)
    Path(f"/proc/{process}/clear_refs").write_text("5", encoding="utf-8")
    return held


def every_piece(folder: Path) -> dict[str, Any]:
    check, rows, began = checker("right"), [], time.monotonic()
    for system in layer_systems(folder, None, None):
        _, row = measured(check, system)
        rows.append(row)
        Console().print_json(json.dumps(row), indent=None)
    check.build.process.stop()
    return {"seconds": time.monotonic() - began, "pieces": rows}


def every_mistake(folder: Path, layer: int, mistakes: Sequence[str]) -> list[dict[str, Any]]:
    """Check the layer with each mistake, and the layer before it, which has no mistake."""
    rows: dict[str, dict[str, Any]] = {mistake: {"mistake": mistake} for mistake in mistakes}
    for system in layer_systems(folder, None, f"{layer - 1},{layer}"):
        before = system.name.endswith(f" layer {layer - 1}")
        for mistake in mistakes if before or system.name.endswith(f" layer {layer}") else ():
            check = checker(mistake)
            report, took = measured(check, system)
            check.build.process.stop()
            rows[mistake] |= {"before": report.verdict} if before else told(report) | {"seconds": took["seconds"]}
            Console().print_json(json.dumps(rows[mistake]), indent=None)
    return list(rows.values())


def told(report: Report) -> dict[str, Any]:
    causes = [cause.says for fault in report.faults for cause in fault.causes]
    sources = [fault.source for fault in report.faults if fault.source]
    lines = [f"{Path(source['file']).name}:{source['line']}" for source in sources]
    return {"verdict": report.verdict, "causes": causes, "lines": lines}


def page(found: dict[str, Any]) -> str:
    whole = found["whole"]
    agreeing = sum(row["verdict"] == "agrees" for row in whole["pieces"])
    peaks = [max(row[who] for row in whole["pieces"]) / 1e9 for who in ("checker", "port")]
    text = (
        f"Without a mistake, {agreeing} of the model's {len(whole['pieces'])} pieces agree. "
        f"This check takes {whole['seconds'] / 60:.0f} minutes, including the check of a small model.\n"
        f"The checker uses at most {peaks[0]:.1f} GB, and the port at most {peaks[1]:.1f} GB. "
    )
    rows = [
        [
            planted.MISTAKES[row["mistake"]],
            "; ".join(dict.fromkeys(row["causes"])) or "–",
            ", ".join(dict.fromkeys(row["lines"])),
            f"{row['seconds']:.0f}",
        ]
        for row in found["planted"]
    ]
    right = sum((row["before"], row["verdict"]) == ("agrees", "diverges") for row in found["planted"])
    text += f"For {right} of {len(rows)} mistakes, layer 6 agrees and layer 7 diverges.\n\n"
    return text + table(["mistake, only in layer 7", "reported cause", "reported line", "seconds"], rows, (3,))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure checks of one layer at a time.")
    parser.add_argument("folder", type=Path, help="the folder of a Llama from a hub")
    parser.add_argument(
        "--planted",
        nargs="*",
        choices=list(planted.MISTAKES),
        help="check one layer with each of these mistakes, instead of all layers without a mistake",
    )
    parser.add_argument("--layer", type=int, default=7, help="the layer that has the mistakes")
    options = parser.parse_args(arguments)
    found = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    name = f"decoder.layers.{options.layer}.self_attention.query.weight"
    values, _ = open_checkpoint(options.folder).read([name])
    with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        np.save(file, values[name][:1][0])
        file.flush()
        os.environ["PLANTED_ROW"] = file.name
        if options.planted is not None:
            rows = every_mistake(options.folder, options.layer, options.planted or list(planted.MISTAKES))
            known = {row["mistake"]: row for row in [*found.get("planted", []), *rows]}
            found["planted"] = [known[mistake] for mistake in planted.MISTAKES if mistake in known]
        else:
            found["whole"] = every_piece(options.folder)
    FILE.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    write_part(NOTES, "by layer", page(found))


if __name__ == "__main__":
    main()
