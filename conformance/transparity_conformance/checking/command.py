"""Check a port that is a program: run the program on a bundle with a time limit, and compare its outputs."""

import dataclasses
import functools
import os
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from transparity.config import TransformerConfig
from transparity.errors import TransparityError, shown
from transparity_conformance.checking.stages.evidence import LastReport
from transparity_conformance.checking.stages.ranks import adding_ranks, compared
from transparity_conformance.checking.systems import sized
from transparity_conformance.checkpoints.files import BundleError
from transparity_conformance.diagnosis.judge import Actual, Located, Progress, ignore_progress, ignore_report
from transparity_conformance.exchange.bundle import ACTUAL, Bundle
from transparity_conformance.exchange.judging import judge_bundle
from transparity_conformance.exchange.reading import read_actual
from transparity_conformance.exchange.writing import export_bundle
from transparity_conformance.report.comparison import gap
from transparity_conformance.report.parts import RanksComparison
from transparity_conformance.report.report import Report
from transparity_conformance.running.process.child import TIMEOUT, run_together
from transparity_conformance.running.process.joining import Differing
from transparity_conformance.running.process.ranks import environments


def check_command(
    command: str,
    name: str,
    config: TransformerConfig,
    *,
    dtype: str = "float32",
    logits_only: bool = False,
    timeout: float = TIMEOUT,
    progress: Progress = ignore_progress,
    sections: Collection[str] = (),
    budget: float | None = None,
    located: Located = ignore_report,
    ranks: int = 1,
) -> Report:
    """Run a program and compare its outputs. The verdict is `agrees` only if the program also exits normally. Raise
    `BundleError` if the program writes no valid output file. `name` is the name of the preset, or `config` for any
    other configuration. Each of `ranks` processes gets its rank in the environment, and writes its own output file.
    `check` documents the other arguments."""
    config = sized(name, config, ranks)
    with tempfile.TemporaryDirectory(prefix="transparity-") as folder:
        bundle = export_bundle(config, Path(folder, "bundle"), name=name, dtype=dtype, sections=sections)
        progress("running the program", 0, 1)
        run = functools.partial(_run, command, Path(folder), timeout)
        written, failure = run(environments(ranks) if ranks > 1 else [{}])
        outputs = _outputs(command, written[0], failure, bundle)
        beside = _beside_one(run, written, outputs, bundle) if ranks > 1 else None
    known, of_ranks = LastReport(located), ranks if beside and beside[0].one_rank != "agrees" else 1
    how: dict[str, Any] = {"logits_only": logits_only, "progress": progress, "budget": budget, "ranks": of_ranks}
    with known.kept():
        report = judge_bundle(bundle, outputs, stopped=bool(failure), located=known, port=command, **how)
        if beside is not None:
            report = adding_ranks(report, *beside[:2], bundle.probes).adding(not_compared=beside[2])
    verdict = "inconclusive" if failure and report.verdict == "agrees" else report.verdict
    return dataclasses.replace(report, verdict=verdict, notes=(*filter(None, [failure]), *report.notes))


def _run(
    command: str, folder: Path, timeout: float, environments: Sequence[Mapping[str, str]]
) -> tuple[list[Path], str]:
    """Run one copy of a program in each environment. Return the output files, and the reason for a failure."""
    copies = []
    for rank, environment in enumerate(environments):
        own = folder / f"{rank}-of-{len(environments)}"
        own.mkdir()
        copies.append((own / ACTUAL, environment))
    return [actual for actual, _ in copies], run_together(command, folder / "bundle", copies, timeout)


def _outputs(command: str, actual: Path, failure: str, bundle: Bundle) -> Actual:
    if not os.path.lexists(actual):
        ended = failure.removesuffix(".") or f"The command {shown(command)} exited normally"
        raise BundleError(f"{ended}, but wrote no {actual.name}.")
    try:
        return read_actual(actual, bundle)
    except BundleError as error:
        if not failure:
            raise
        raise BundleError(f"{failure.removesuffix('.')}; {error}") from None


def _beside_one(
    run: Callable[[Sequence[Mapping[str, str]]], tuple[list[Path], str]],
    written: Sequence[Path],
    outputs: Actual,
    bundle: Bundle,
) -> tuple[RanksComparison, Differing, list[str]]:
    """Compare the outputs of the first rank with a run on one rank, and with the outputs of the other ranks. Return
    both comparisons, and a line for the report if some ranks wrote no file."""
    count, differing, probes = len(written), Differing(), bundle.probes
    silent = [str(rank) for rank, actual in enumerate(written) if not os.path.lexists(actual)]
    absent = [f"output of rank {', '.join(silent)}: not compared, because no file was written"] if silent else []
    for rank, actual in enumerate(written):
        if rank and os.path.lexists(actual):
            _note(differing, outputs, read_actual(actual, bundle), rank)
    (one,), failure = run(environments(1))
    try:
        if failure:
            raise TransparityError(failure)
        alone = read_actual(one, bundle)
    except (TransparityError, OSError) as error:
        return RanksComparison(count, "inconclusive", reason=str(error)), differing, absent
    both = {key: probe for key, probe in probes.items() if key in alone and key in outputs}
    return compared(count, both, alone, outputs, bundle.dtype), differing, absent


def _note(differing: Differing, outputs: Actual, others: Actual, rank: int) -> None:
    for group in outputs.keys() & others.keys():
        for name in outputs[group].keys() & others[group].keys():
            ours, theirs = outputs[group][name], others[group][name]
            if (apart := gap(theirs, ours)) > 0:
                differing.note(name, (ours, theirs), apart, rank)
