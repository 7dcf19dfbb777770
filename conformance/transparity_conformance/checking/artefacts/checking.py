"""The check of an artefact that a runtime runs, in a process of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transparity.config import TransformerConfig
from transparity_conformance.checking.artefacts.systems import ArtefactSystem, artefact_system
from transparity_conformance.checking.check import check
from transparity_conformance.checking.systems import System
from transparity_conformance.checkpoints.importing import Checkpoint
from transparity_conformance.diagnosis.judge import Progress
from transparity_conformance.oracle.budgets import HALF
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.report.report import Report
from transparity_conformance.running.loading import UsageError
from transparity_conformance.running.process.isolation import isolated_build
from transparity_conformance.running.process.running import told_dtype
from transparity_conformance.running.runtimes.runtime import Limits, Runtime, require, runtime_of

if TYPE_CHECKING:
    from transparity_conformance.checking.artefacts.gguf.checking import GgufCheck


class ArtefactCheck:
    """The check of an artefact against the reference with the weights of its checkpoint."""

    def __init__(self, port: str, timeout: float, options: dict[str, Any]) -> None:
        self.port, self.timeout, self.options = port, timeout, options
        self.build = isolated_build(port, timeout)

    def systems(self, checkpoint: Checkpoint | None) -> Iterator[ArtefactSystem]:
        """The systems that it is checked on; raises `UsageError` without a checkpoint."""
        if checkpoint is None:
            raise UsageError(
                f"{self.port} has weights of its own; give the folder of the checkpoint that it was made of, "
                "by --checkpoint FOLDER."
            )
        limits = Limits(**self.build.limits())
        if limits.dtype == "int8":
            raise UsageError(
                f"{self.port} holds quantised weights: there is no budget for what that changes, so a mistake cannot "
                "be told from it; check the graph before it is quantised, or a GGUF file, whose numbers are compared."
            )
        yield dataclasses.replace(
            artefact_system(checkpoint, limits), dtype=limits.dtype if limits.dtype in HALF else None
        )

    def __call__(self, system: System, progress: Progress) -> Report:
        assert isinstance(system, ArtefactSystem)
        if not self.build.process.is_running:
            self.build = isolated_build(self.port, self.timeout)

        asked = self.options["dtype"]
        dtype = system.dtype or asked

        def its_own(config: TransformerConfig, parameters: Arrays) -> Any:
            """The artefact, to which no weights are sent."""
            return told_dtype(self.build, dtype)(config, {})

        given: dict[str, Any] = {"config": system.config, "parameters": system.parameters}
        report = check(its_own, system.name, **given, progress=progress, **{**self.options, "dtype": dtype})
        its = f"its weights are {dtype}, so it is compared within the budgets of {dtype}, and not of {asked}"
        return dataclasses.replace(
            report,
            not_compared=(*system.not_compared, *report.not_compared),
            notes=report.notes if dtype == asked else (*report.notes, its),
        )


def artefact_check(port: str, runtime: Runtime, timeout: float, options: dict[str, Any]) -> ArtefactCheck | GgufCheck:
    """The check of an artefact; raises `LoadError` if the extra that it needs is not installed."""
    require(port, runtime)
    if runtime.is_process:
        return ArtefactCheck(port, timeout, options)
    from transparity_conformance.checking.artefacts.gguf.checking import GgufCheck

    return GgufCheck(port, options)


def checkpoint_of(port: str | None, checkpoint: Path | None, *others: Any) -> Path | None:
    """The checkpoint of a check: a hub folder that is the port is its own, unless another is given."""
    runtime = runtime_of(port)
    if checkpoint is not None or port is None or runtime is None or runtime.needs_checkpoint or any(others):
        return checkpoint
    return Path(port)
