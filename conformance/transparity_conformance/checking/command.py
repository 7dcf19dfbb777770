"""Ports that are programs: run on a bundle, with a time limit, and judged however they end."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

from transparity.config import TransformerConfig
from transparity.errors import shown
from transparity_conformance.checking.ranks.program import Beside, beside_one, run_ranks
from transparity_conformance.checking.ranks.sizes import sized
from transparity_conformance.checking.stages.evidence import LastReport
from transparity_conformance.checkpoints.files import BundleError
from transparity_conformance.diagnosis.judge import Actual, Located, Progress, silent, untold
from transparity_conformance.diagnosis.search.clock import BUDGET
from transparity_conformance.exchange.bundle import Bundle
from transparity_conformance.exchange.judging import judge_bundle
from transparity_conformance.exchange.reading import read_actual
from transparity_conformance.exchange.writing import export_bundle
from transparity_conformance.report.report import Report
from transparity_conformance.running.process.isolation import TIMEOUT
from transparity_conformance.running.process.program import Completed


def check_command(
    command: str,
    name: str,
    config: TransformerConfig,
    *,
    dtype: str = "float32",
    logits_only: bool = False,
    timeout: float = TIMEOUT,
    progress: Progress | None = None,
    sections: Collection[str] = (),
    budget: float = BUDGET,
    located: Located = untold,
    ranks: int = 1,
) -> Report:
    """Check a program: its outputs are judged however it ended, but unless it ended well it cannot agree.

    Args:
        command: the program and its arguments, as for `run_command`.
        name: the preset's name, or `config`.
        config, dtype: the configuration that the program is checked on, and the precision that it computes in.
        logits_only: compare the logits alone.
        timeout: seconds that it has.
        progress, budget, located: as for `check`.
        ranks: the number of processes, each with its rank in the environment and with a file of its own to write.
        sections: optional sections of its bundle.

    Raises `BundleError` if it wrote nothing that can be judged.
    """
    config = sized(name, config, ranks) if ranks > 1 else config
    with tempfile.TemporaryDirectory(prefix="transparity-") as folder:
        bundle = export_bundle(config, Path(folder, "bundle"), name=name, dtype=dtype, sections=sections)
        (progress or silent)("running the program", 0, 1)
        completed = run_ranks(command, Path(folder), ranks, timeout)
        failure = next((each.failure for each in completed if each.failure), None)
        outputs = _outputs(command, Completed(completed[0].actual, failure), bundle)
        beside = beside_one(command, Path(folder), completed, outputs, bundle, timeout) if ranks > 1 else None
    known = LastReport(located)
    options: dict[str, Any] = {"logits_only": logits_only, "progress": progress, "budget": budget, "port": command}
    options["ranks"] = ranks if beside and beside.is_sharding else 1
    return _judged(bundle, outputs, failure, beside, known, options)


def _judged(
    bundle: Bundle,
    outputs: Actual,
    failure: str | None,
    beside: Beside | None,
    known: LastReport,
    options: dict[str, Any],
) -> Report:
    """The report on what a program wrote, which cannot agree with a `failure`."""
    with known.kept():
        report = judge_bundle(bundle, outputs, stopped=failure is not None, located=known, **options)
        report = report if beside is None else beside.added(report)
    if failure is None:
        return report
    verdict = "inconclusive" if report.verdict == "agrees" else report.verdict
    return dataclasses.replace(report, verdict=verdict, notes=(failure, *report.notes))


def _outputs(command: str, completed: Completed, bundle: Bundle) -> Actual:
    """The outputs that a program wrote; the complete ones, if it was stopped while it wrote them."""
    actual, failure = completed.actual, completed.failure
    if not os.path.lexists(actual):
        ended = f"The command {shown(command)} ended well" if failure is None else failure.removesuffix(".")
        raise BundleError(f"{ended}, but wrote no {actual.name}.")
    try:
        return read_actual(actual, bundle, cut=failure is not None)
    except BundleError as error:
        if failure is None:
            raise
        raise BundleError(f"{failure.removesuffix('.')}; {error}") from None
