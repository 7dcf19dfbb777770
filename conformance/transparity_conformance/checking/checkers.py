"""Checks of several systems: of a function, or of a program."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from transparity.errors import TransparityError
from transparity.presets import PRESETS
from transparity_conformance.capabilities.stranger import signature_of
from transparity_conformance.checking.artefacts.checking import artefact_check
from transparity_conformance.checking.artefacts.systems import OfCheckpoint
from transparity_conformance.checking.check import check
from transparity_conformance.checking.command import check_command
from transparity_conformance.checking.ranks.group import ranked_build
from transparity_conformance.checking.ranks.sizes import sized
from transparity_conformance.checking.systems import (
    System,
    checkpoint_systems,
    family_systems,
    layer_systems,
    systems,
)
from transparity_conformance.checkpoints.importing import Checkpoint
from transparity_conformance.diagnosis.judge import Located, Progress, untold
from transparity_conformance.report.report import Interrupted, Report
from transparity_conformance.report.text import reason, safe
from transparity_conformance.running.adapters.adapter import read_adapter
from transparity_conformance.running.forward import required_arguments
from transparity_conformance.running.loading import UsageError
from transparity_conformance.running.process.isolation import checked_timeout, isolated_build
from transparity_conformance.running.runtimes.runtime import runtime_of

Check = Callable[[System, Progress], Report]


def checker(
    port: str | None,
    command: str | None,
    *,
    dtype: str,
    logits_only: bool,
    timeout: float | None,
    budget: float,
    sections: Collection[str],
    audit: bool | None = None,
    located: Located = untold,
    adapter: Path | None = None,
    ranks: int = 1,
    lengths: Sequence[int] | None = None,
) -> Check:
    """The check of a system, by a function or by a program, each in a process of its own.

    Args:
        port: the function, as `path/to/file.py:build` or `package.module:build`.
        command: the program; either this or `port`.
        timeout: seconds that the program has, or the function for one answer; None for the default.
        sections: sections of the bundle that the program is given.
        audit, budget, located, lengths: as for `check`; `lengths` of sizes that were asked for.
        adapter, ranks: the file that matches the tensors of the model that `port` makes; the processes that run it.

    Raises `UsageError` for options of the other kind.
    """
    if (port is None) == (command is None):
        raise UsageError("check takes either a PORT or --command; give one of the two.")
    options: dict[str, Any] = {"dtype": dtype, "logits_only": logits_only, "budget": budget, "located": located}
    if command is not None:
        _must_not_be_audited(audit)
        options |= {"timeout": checked_timeout(timeout), "sections": sections, "ranks": ranks}
        return lambda system, progress: check_command(command, system.name, system.config, **options, progress=progress)
    if sections:
        flags = " and ".join(f"--{name}" for name in sections)
        raise UsageError(f"{flags} asks for more in a bundle, for --command; a PORT is compared in all that it offers.")
    assert port is not None
    options |= {"name": port, "audit": audit}
    return _of_port(port, checked_timeout(timeout), options, adapter, ranks, tuple(lengths or ()))


def _must_not_be_audited(audit: bool | None) -> None:
    if audit:
        raise UsageError("--audit builds a PORT many times, and a --command runs once; leave out one of the two.")


def _of_port(
    port: str, timeout: float, options: dict[str, Any], adapter: Path | None, ranks: int, lengths: tuple[int, ...]
) -> Check:
    """The check of a function or of a model with an adapter, or of an artefact by its runtime."""
    runtime = runtime_of(port)
    if runtime is None:
        return PortCheck(port, timeout, options, adapter, ranks, lengths)
    if lengths:
        raise UsageError(f"--length is for a PORT that makes a model; {safe(port)} is an artefact.")
    if ranks > 1:
        raise UsageError(f"--ranks is for a PORT that makes a model, or a --command; {safe(port)} is an artefact.")
    if adapter is not None:
        raise UsageError(
            f"--adapter is for a PORT that makes a model; {safe(port)} is an artefact with its own weights."
        )
    return artefact_check(port, runtime, timeout, options)


class PortCheck:
    """The check of a port in a process of its own, which serves all systems until it ends."""

    def __init__(
        self,
        spec: str,
        timeout: float,
        options: dict[str, Any],
        adapter: Path | None = None,
        ranks: int = 1,
        lengths: tuple[int, ...] = (),
    ) -> None:
        if adapter is not None:
            read_adapter(adapter)
        self.spec, self.has_adapter, self.ranks, self.lengths = spec, adapter is not None, ranks, lengths
        given = None if adapter is None else str(adapter)
        self.start = functools.partial(isolated_build, spec, timeout, given)
        if ranks > 1:
            self.start = functools.partial(ranked_build, spec, timeout, ranks, given)
        self.build, self.options = self.start(), options

    def __call__(self, system: System, progress: Progress) -> Report:
        if not self.build.process.is_running:
            self.build = self.start()
        build, is_drawn = self.build.loading(system.model_type), system.parameters is None
        is_preset = is_drawn and system.model_type is None and system.name in PRESETS
        config = None if is_preset else system.config
        if self.ranks > 1 and is_drawn:
            config = sized(system.name, system.config, self.ranks)
        options = {**self.options, "progress": progress, "lengths": self.lengths if system.is_asked else ()}
        return check(build, system.name, config=config, parameters=system.parameters, **options)

    def is_loader(self) -> bool:
        """Return whether the port is a loader, `load(folder)`, by its signature.

        Raises `UsageError` if it is neither that nor a `build`, and `LoadError` if there is no such port.
        """
        count = required_arguments(signature_of(self.build))
        if count not in (1, 2, None):
            raise UsageError(
                f"{safe(self.spec)} takes {count} arguments; expected load(folder), with one, or build(config, "
                "parameters), with two."
            )
        return count == 1

    def must_be_no_loader(self) -> None:
        """Raise `UsageError` for a port that takes a folder alone; a model with an adapter takes what it likes."""
        if not self.has_adapter and required_arguments(signature_of(self.build)) == 1:
            raise UsageError(
                f"{safe(self.spec)} takes one argument, as a loader, load(folder), does: add --family NAME or "
                "--checkpoint FOLDER; a build takes (config, parameters)."
            )

    def must_be_loader(self, option: str) -> None:
        """Raise `UsageError` for a port that is no loader, which `option` needs."""
        if not self.is_loader():
            raise UsageError(
                f"{option} was given {safe(self.spec)}, which takes no folder alone; expected load(folder): check a "
                "build(config, parameters) by --preset, --config or --checkpoint."
            )


def check_goes_together(
    names: Sequence[str],
    config: Path | None,
    checkpoint: Path | None,
    families: Sequence[str],
    command: str | None,
    head: str | None,
    adapter: Path | None = None,
    is_by_layer: bool = False,
    lengths: Sequence[int] = (),
) -> None:
    """Raise `UsageError` for options of a command that exclude each other."""
    if is_by_layer and (checkpoint is None or adapter is not None):
        raise UsageError(
            "--by-layer and --layers write each layer of a checkpoint as a model of its own for the port's loader; "
            "give --checkpoint FOLDER and a PORT that is load(folder)."
        )
    if lengths and command is not None:
        raise UsageError("--length is for a PORT; a --command is given the prompts of its bundle.")
    if lengths and checkpoint is None and config is None:
        raise UsageError(
            "--length was given for models of probe size, whose longest prompt is short; give --checkpoint FOLDER or "
            "--config FILE, whose max_length allows it."
        )
    besides = bool(names) or config is not None or command is not None
    if checkpoint is not None and (besides or families):
        raise UsageError("--checkpoint goes with a PORT alone; leave out --preset, --config, --family and --command.")
    if families and besides:
        raise UsageError("--family goes with a PORT alone; leave out --preset, --config and --command.")
    if adapter is not None and command is not None:
        raise UsageError("--adapter is for a PORT that makes a model; a --command reads its weights from the bundle.")
    if head is not None and checkpoint is None:
        raise UsageError("--head is for --checkpoint; a configuration has a field `head` of its own.")


def named_systems(
    names: Sequence[str], config: Path | None, checkpoint: Path | None, families: Sequence[str], *others: Any
) -> list[System]:
    """The systems of families, or of presets and a configuration; none with a checkpoint.

    Raises for one that does not exist, and for options that exclude each other (`check_goes_together`).
    """
    check_goes_together(names, config, checkpoint, families, *others)
    if checkpoint is not None:
        return []
    return list(family_systems(families) if families else systems(names, config))


def chosen_systems(
    check: Check, named: Sequence[System], families: Sequence[str], checkpoint: Checkpoint | None
) -> Iterator[System]:
    """The systems that a command asks for: those that are `named`, or a checkpoint.

    Raises `UsageError` for a port of another kind than they need.
    """
    if isinstance(check, OfCheckpoint):
        yield from check.systems(checkpoint)
    elif checkpoint is not None:
        yield from checkpoint_systems(checkpoint, for_loader=isinstance(check, PortCheck) and check.is_loader())
    elif families:
        is_adapted = isinstance(check, PortCheck) and check.has_adapter
        if isinstance(check, PortCheck) and not is_adapted:
            check.must_be_loader("--family")
        for system in named:
            yield dataclasses.replace(system, model_type=None) if is_adapted else system
    else:
        if isinstance(check, PortCheck):
            check.must_be_no_loader()
        yield from named


def chosen_layers(check: Check, folder: Path, head: str | None, layers: str | None) -> Iterator[System]:
    """The parts of a checkpoint, one at a time; raises `UsageError` for a port that is no loader."""
    if not isinstance(check, PortCheck):
        raise UsageError("--by-layer is for a PORT that is load(folder); an artefact has its own weights, all at once.")
    check.must_be_loader("--by-layer")
    yield from layer_systems(folder, head, layers)


def one_sentence(error: BaseException) -> str:
    """The end of a check for users: Ctrl-C, an error, or too little memory; and what is known of the port by then."""
    known = "".join(f" {note}" for note in getattr(error, "__notes__", ()))
    if isinstance(error, KeyboardInterrupt):
        return f"Interrupted before there was a verdict.{known}"
    if isinstance(error, TransparityError):
        return f"{error}{known}"
    return f"There is not enough memory ({reason(error)}); choose smaller sizes, or a machine with more."


def check_all(
    check: Check,
    systems: Iterable[System],
    progress: Callable[[], AbstractContextManager[Progress]],
    show: Callable[[Report], None],
) -> tuple[list[Report], dict[str, list[str]]]:
    """Check every system and show each report; an error ends the check of its own system only, Ctrl-C that of all, with
    a report on the last if it is known to diverge.

    Returns: the reports, and the names of the systems by the message of their error.
    """
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
