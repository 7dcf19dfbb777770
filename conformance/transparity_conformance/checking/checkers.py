"""The command `transparity check`: choose the kind of check and the configurations, and run the checks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import cast

from transparity.errors import TransparityError, UsageError
from transparity.presets import PRESETS
from transparity.text import safe
from transparity_conformance import STARTED
from transparity_conformance.capabilities.port_calls import signature_of
from transparity_conformance.checking.options import Options, one_sentence
from transparity_conformance.checking.systems import (
    System,
    artefact_system,
    checkpoint_systems,
    family_systems,
    layer_systems,
    sized,
    systems,
)
from transparity_conformance.checkpoints.importing import Checkpoint
from transparity_conformance.diagnosis.judge import Progress
from transparity_conformance.report.parts import Stopwatch, Timing
from transparity_conformance.report.report import Interrupted, Report
from transparity_conformance.running.adapters.adapter import read_adapter
from transparity_conformance.running.artefacts import runtime_of
from transparity_conformance.running.forward import required_arguments
from transparity_conformance.running.loading import Limits, require
from transparity_conformance.running.process.child import checked_timeout
from transparity_conformance.running.process.isolation import IsolatedBuild, isolated_build

Check = Callable[[System, Progress], Report]


def checker(options: Options) -> Check:
    """Return a function that checks the port (a function, a model file or a program) on one configuration."""
    if options.command is not None:
        from transparity_conformance.checking.command import check_command  # a slow import that is rarely needed

        named = options.named("dtype", "logits_only", "budget", "located", "sections", "ranks")
        command, named["timeout"] = options.command, checked_timeout(options.timeout)
        return lambda system, progress: check_command(command, system.name, system.config, **named, progress=progress)
    assert options.port is not None
    runtime = runtime_of(options.port)
    if runtime is not None:
        require(options.port, runtime.package)
    if runtime is not None and not runtime.module:
        from transparity_conformance.checking.gguf.checking import GgufCheck

        return GgufCheck(options)
    return PortCheck(options)


class PortCheck:
    """A check of a port in a separate process. All checks share this process, until the process ends."""

    def __init__(self, options: Options) -> None:
        if options.adapter is not None:
            read_adapter(options.adapter)
        self.options, self.spec, self.build = options, options.spec, self.start(options)
        from transparity_conformance.checking.check import check  # a slow import, while the port's process starts

        self.check = check
        self.starts = {"start": Timing(STARTED, port=0.0)}

    @staticmethod
    def start(options: Options) -> IsolatedBuild:
        adapter = None if options.adapter is None else str(options.adapter)
        return isolated_build(options.spec, options.timeout, adapter, options.ranks, is_small=options.is_small)

    def __call__(self, system: System, progress: Progress) -> Report:
        options = self.options
        if not self.build.process.is_running:
            self.build = self.start(options)
        is_drawn, dtype = system.parameters is None, system.dtype or options.dtype
        is_preset = is_drawn and system.model_type is None and system.name in PRESETS
        config = None if is_preset else system.config
        if options.ranks > 1 and is_drawn:
            config = sized(system.name, system.config, options.ranks)
        now = Stopwatch(self.build.process.processor_seconds).read()
        # Only the first report includes the time since the command started.
        starts, self.starts = {name: now.since(began) for name, began in self.starts.items()}, {}
        report = self.check(
            replace(self.build, model_type=system.model_type),
            system.name,
            config=config,
            parameters=system.parameters,
            dtype=dtype,
            name=options.spec,
            lengths=tuple(options.length or ()) if system.is_asked else (),
            progress=progress,
            **options.named("logits_only", "budget", "audit", "quick", "located"),
        )
        not_compared, notes = (*system.not_compared, *report.not_compared), report.notes
        if dtype != options.dtype:
            its = f"the artifact's weights are {dtype}, so the tolerances are for {dtype} instead of {options.dtype}"
            notes = (*notes, its)
        return replace(report, not_compared=not_compared, notes=notes, timing={**starts, **report.timing})

    def systems(self, checkpoint: Checkpoint) -> Iterator[System]:
        if runtime_of(self.spec) is None:
            yield from checkpoint_systems(checkpoint, for_loader=self.is_loader())
            return
        limits = Limits(**self.build.limits())
        if limits.dtype == "int8":
            raise UsageError(
                f"{self.spec} has quantized weights, and no budget separates quantization errors from mistakes; "
                "check the graph before it is quantized, or check a GGUF file."
            )
        yield artefact_system(checkpoint, limits)

    def is_loader(self, needed_by: str = "") -> bool:
        """Return whether the port takes one argument, like a loader. Raise `UsageError` for a port with another number
        of arguments than one or two. If an option `needed_by` needs a loader, also raise `UsageError` for a port with
        two arguments."""
        count = required_arguments(signature_of(self.build))
        if count not in (1, 2, None):
            raise UsageError(
                f"{safe(self.spec)} takes {count} arguments; expected load(folder) with one argument, or "
                "build(config, parameters) with two."
            )
        if needed_by and count != 1:
            raise UsageError(
                f"{needed_by} needs load(folder), but {safe(self.spec)} does not take exactly one required argument; "
                "check a build(config, parameters) with --preset, --config or --checkpoint."
            )
        return count == 1


def named_systems(options: Options) -> list[System]:
    """Return the configurations that the user chose by families, presets or a file; return [] for a checkpoint."""
    if options.checkpoint is not None:
        return []
    return list(
        family_systems(options.family, options.changes or (), options.head)
        if options.family
        else systems(options.preset or (), options.config)
    )


def chosen_systems(
    check: Check, options: Options, named: Sequence[System], imported: Callable[[Path, str | None], Checkpoint]
) -> Iterator[System]:
    """Return the configurations `named`, the checkpoint as one model, or the layers of the checkpoint. Raise
    `UsageError` if these configurations need a loader and the port is a `build`, or the reverse."""
    if options.checkpoint is not None and "--by-layer" in options.given:
        assert isinstance(check, PortCheck)
        check.is_loader("--by-layer")
        return layer_systems(options.checkpoint, options.head, options.layers)
    if options.checkpoint is not None:
        return iter(list(cast(PortCheck, check).systems(imported(options.checkpoint, options.head))))
    if isinstance(check, PortCheck) and options.adapter is not None:  # with an adapter, a port may take any arguments
        return (replace(system, model_type=None) for system in named)
    if isinstance(check, PortCheck) and options.family:
        check.is_loader("--family")
    elif isinstance(check, PortCheck) and check.is_loader():
        raise UsageError(
            f"{safe(check.spec)} takes one argument, so it must be a loader load(folder); add --family NAME or "
            "--checkpoint FOLDER, or give a build(config, parameters)."
        )
    return iter(named)


def check_all(
    check: Check,
    systems: Iterable[System],
    progress: Callable[[], AbstractContextManager[Progress]],
    show: Callable[[Report], None],
) -> tuple[list[Report], dict[str, list[str]]]:
    """Check all configurations, and show each report. Return the reports and, for each error message, the names of the
    configurations whose check ended with this error. After Ctrl-C, run no further check, but show a known
    divergence."""
    reports: list[Report] = []
    errors: dict[str, list[str]] = {}
    for system in systems:
        try:
            with progress() as report_progress:
                reports.append(check(system, report_progress))
        except Interrupted as ended:
            reports.append(ended.report)
            show(ended.report)
            break
        except (TransparityError, MemoryError, KeyboardInterrupt) as error:
            errors.setdefault(one_sentence(error), []).append(system.name)
            if isinstance(error, KeyboardInterrupt):
                break
        else:
            show(reports[-1])
    return reports, errors
