"""A program on several ranks: each has its rank in the environment and a file of its own to write."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transparity.errors import TransparityError
from transparity_conformance.checking.ranks.against_one import compared, with_ranks
from transparity_conformance.checking.ranks.joining import Differing
from transparity_conformance.checking.ranks.launching import environments
from transparity_conformance.diagnosis.judge import Actual
from transparity_conformance.exchange.bundle import ACTUAL, Bundle
from transparity_conformance.exchange.reading import read_actual
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.report.comparison import gap
from transparity_conformance.report.ranks import Ranks
from transparity_conformance.report.report import Report
from transparity_conformance.running.process.program import Completed, run_together


@dataclass(frozen=True)
class Beside:
    """What the ranks wrote beside each other, and beside one rank."""

    ranks: Ranks
    differing: Differing
    probes: Mapping[str, Probe]
    silent: tuple[int, ...]
    """The ranks that wrote nothing."""

    @property
    def is_sharding(self) -> bool:
        """Return whether what is wrong may be the sharding's doing."""
        return self.ranks.one_rank != "agrees"

    def added(self, report: Report) -> Report:
        """The report with the comparison."""
        report = with_ranks(report, self.ranks, self.differing, self.probes)
        absent = f"ranks {', '.join(map(str, self.silent))}: they wrote no file"
        return dataclasses.replace(report, not_compared=(*report.not_compared, *([absent] if self.silent else [])))


def run_ranks(command: str, folder: Path, ranks: int, timeout: float) -> list[Completed]:
    """Run a program on `ranks` ranks, or alone for 1, on the bundle in `folder`."""
    return run_together(
        command, folder / "bundle", _copies(folder, ranks) if ranks > 1 else [(folder / ACTUAL, {})], timeout
    )


def _copies(folder: Path, ranks: int) -> list[tuple[Path, Mapping[str, str]]]:
    """The file and the environment of each rank."""
    copies: list[tuple[Path, Mapping[str, str]]] = []
    for rank, environment in enumerate(environments(ranks)):
        own = folder / f"{rank}-of-{ranks}"
        own.mkdir()
        copies.append((own / ACTUAL, environment))
    return copies


def beside_one(
    command: str, folder: Path, completed: Sequence[Completed], outputs: Actual, bundle: Bundle, timeout: float
) -> Beside:
    """Compare what the first rank wrote with what the others wrote, and with what one rank writes.

    Raises `BundleError` for a file of another rank that is none.
    """
    count, differing, probes = len(completed), Differing(), bundle.probes
    wrote = [rank for rank, each in enumerate(completed) if os.path.lexists(each.actual)]
    for rank in wrote[1:]:
        _note(differing, outputs, read_actual(completed[rank].actual, bundle), rank)
    silent = tuple(rank for rank in range(count) if rank not in wrote)
    (one,) = run_together(command, folder / "bundle", _copies(folder, 1), timeout)
    try:
        if one.failure is not None:
            raise TransparityError(one.failure)
        alone = read_actual(one.actual, bundle)
    except (TransparityError, OSError) as error:
        return Beside(Ranks(count, "inconclusive", reason=str(error)), differing, probes, silent)
    both = {key: probe for key, probe in probes.items() if key in alone and key in outputs}
    return Beside(compared(count, both, alone, outputs, bundle.dtype), differing, probes, silent)


def _note(differing: Differing, outputs: Actual, others: Actual, rank: int) -> None:
    """Compare the tensors of another rank with those of the first."""
    for group in outputs.keys() & others.keys():
        for name in outputs[group].keys() & others[group].keys():
            ours, theirs = outputs[group][name], others[group][name]
            if (apart := gap(theirs, ours)) > 0:
                differing.note(name, (ours, theirs), apart, rank)
