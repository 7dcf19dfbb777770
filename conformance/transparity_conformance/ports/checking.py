"""Checks of several systems: of a function, or of a program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from typing import Any

from transparity.errors import TransparityError
from transparity_conformance.diagnosis.judge import Progress
from transparity_conformance.ports.check import check
from transparity_conformance.ports.command import check_command
from transparity_conformance.ports.loading import UsageError
from transparity_conformance.ports.process.isolation import checked_timeout, isolated_build
from transparity_conformance.ports.systems import System
from transparity_conformance.report.report import Report
from transparity_conformance.report.text import reason

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
) -> Check:
    """The check of a system, by a function or by a program, each in a process of its own.

    Args:
        port: the function, as `path/to/file.py:build` or `package.module:build`.
        command: the program; either this or `port`.
        timeout: seconds that the program has, or the function for one answer; None for the default.
        budget: seconds for the search for causes.
        sections: sections of the bundle that the program is given.

    Raises `UsageError` for options of the other kind.
    """
    if (port is None) == (command is None):
        raise UsageError("check takes either a PORT or --command; give one of the two.")
    if command is not None:
        options: dict[str, Any] = {
            "dtype": dtype,
            "logits_only": logits_only,
            "timeout": checked_timeout(timeout),
            "sections": sections,
            "budget": budget,
        }
        return lambda system, progress: check_command(command, system.name, system.config, **options, progress=progress)
    if sections:
        flags = " and ".join(f"--{name}" for name in sections)
        raise UsageError(f"{flags} asks for more in a bundle, for --command; a PORT is compared in all that it offers.")
    assert port is not None
    return _PortCheck(port, checked_timeout(timeout), {"dtype": dtype, "logits_only": logits_only, "budget": budget})


class _PortCheck:
    """The check of a port in a process of its own, which serves all systems until it ends."""

    def __init__(self, spec: str, timeout: float, options: dict[str, Any]) -> None:
        self.start = functools.partial(isolated_build, spec, timeout)
        self.build, self.options = self.start(), options

    def __call__(self, system: System, progress: Progress) -> Report:
        if not self.build.process.is_running:
            self.build = self.start()
        is_preset = system.parameters is None and system.name != "config"
        config = None if is_preset else system.config
        return check(
            self.build, system.name, config=config, parameters=system.parameters, progress=progress, **self.options
        )


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
    """Check every system and show each report; an error ends the check of its own system only, Ctrl-C that of all.

    Returns: the reports, and the names of the systems by the message of their error.
    """
    reports: list[Report] = []
    errors: dict[str, list[str]] = {}
    for system in systems:
        try:
            with progress() as report_progress:
                reports.append(check(system, report_progress))
        except (TransparityError, MemoryError, KeyboardInterrupt) as error:
            errors.setdefault(one_sentence(error), []).append(system.name)
            if isinstance(error, KeyboardInterrupt):
                break
        else:
            show(reports[-1])
    return reports, errors
