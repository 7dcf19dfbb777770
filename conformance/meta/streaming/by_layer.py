"""The pool `by-layer`: checks of one layer of a checkpoint at a time.

`--folder` is the folder of a Llama, such as the one with 8 billion parameters that the pool `sizes` writes. The port
is the loader of transformers. Without a mistake, every layer is checked, and so are the embedding and the head. With a
mistake in layer N, only this layer and the layer before it are checked.
"""

import argparse
import contextlib
import functools
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from meta.streaming import planted
from meta.streaming.measure import peak_memory
from meta.trial import Measure, Trial
from transparity_conformance.checking.checkers import PortCheck
from transparity_conformance.checking.options import Options
from transparity_conformance.checking.systems import System, layer_systems
from transparity_conformance.checkpoints.importing import open_checkpoint
from transparity_conformance.report.report import Report


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


@contextlib.contextmanager
def marked(folder: Path, layer: int) -> Iterator[None]:
    """Tell the loaders which layer has the mistake."""
    name = f"decoder.layers.{layer}.self_attention.query.weight"
    values, _ = open_checkpoint(folder).read([name])
    with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        np.save(file, values[name][:1][0])
        file.flush()
        os.environ["PLANTED_ROW"] = file.name
        yield


def every_piece(folder: Path, layer: int) -> dict[str, Any]:
    with marked(folder, layer):
        check = checker("right")
        rows = [measured(check, system)[1] for system in layer_systems(folder, None, None)]
        check.build.process.stop()
    return {"is_right": all(row["verdict"] == "agrees" for row in rows), "pieces": rows}


def with_mistake(folder: Path, layer: int, mistake: str) -> dict[str, Any]:
    """Check the layer with a mistake, and the layer before it, which has no mistake."""
    reports: dict[str, Report] = {}
    with marked(folder, layer):
        for system in layer_systems(folder, None, f"{layer - 1},{layer}"):
            if (number := system.name.rpartition(" layer ")[2]) in (f"{layer - 1}", f"{layer}"):
                check = checker(mistake)
                reports[number], _ = measured(check, system)
                check.build.process.stop()
    before, report = reports[f"{layer - 1}"], reports[f"{layer}"]
    sources = [fault.source for fault in report.faults if fault.source]
    return {
        "is_right": (before.verdict, report.verdict) == ("agrees", "diverges"),
        "causes": [cause.says for fault in report.faults for cause in fault.causes],
        "lines": [f"{Path(source['file']).name}:{source['line']}" for source in sources],
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", type=Path, required=True, help="the folder of a Llama from a hub")
    parser.add_argument("--layer", type=int, default=7, help="the layer that has the mistakes")


def trials(options: argparse.Namespace) -> list[Trial]:
    wrong = functools.partial(with_mistake, options.folder, options.layer)
    right = functools.partial(every_piece, options.folder, options.layer)
    mistakes = [Trial(says, functools.partial(wrong, name), "mistake") for name, says in planted.MISTAKES.items()]
    return [Trial("without a mistake", right, "right"), *mistakes]


MEASURES = (
    Measure("all pieces agree", lambda _, answer: answer["is_right"], 1.0, "right"),
    Measure("only the layer with the mistake diverges", lambda _, answer: answer["is_right"], 1.0, "mistake"),
)
