"""Checks of several systems: of a function in this process, or of a program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from typing import Any

from transparity.errors import TransparityError
from transparity_conformance.diagnosis.judge import Progress
from transparity_conformance.ports.check import Port, PortError, check
from transparity_conformance.ports.command import TIMEOUT, check_command
from transparity_conformance.ports.loading import load_port
from transparity_conformance.ports.systems import System, UsageError
from transparity_conformance.report.report import Report

Check = Callable[[System, Progress], Report]


def checker(
    port: str | None,
    command: str | None,
    *,
    dtype: str,
    logits_only: bool,
    timeout: float | None,
    sections: Collection[str],
) -> Check:
    """The check of a system, by a function that is loaded here or by a program.

    Args:
        port: the function, as `path/to/file.py:build` or `package.module:build`.
        command: the program; either this or `port`.
        timeout: seconds that the program has; None for the default.
        sections: sections of the bundle that the program is given.

    Raises `UsageError` for options of the other kind, and `LoadError` if there is no such function.
    """
    if (port is None) == (command is None):
        raise UsageError("check takes either a PORT or --command; give one of the two.")
    if command is not None:
        options: dict[str, Any] = {
            "dtype": dtype,
            "logits_only": logits_only,
            "timeout": timeout or TIMEOUT,
            "sections": sections,
        }
        return lambda system, progress: check_command(command, system.name, system.config, **options, progress=progress)
    if sections:
        flags = " and ".join(f"--{name}" for name in sections)
        raise UsageError(f"{flags} asks for more in a bundle, for --command; a PORT is compared in all that it offers.")
    if timeout is not None:
        raise UsageError("--timeout is for --command; a PORT runs in this process, without a time limit.")
    assert port is not None
    return functools.partial(_check_port, load_port(port), {"dtype": dtype, "logits_only": logits_only})


def _check_port(build: Port, options: dict[str, Any], system: System, progress: Progress) -> Report:
    is_preset = system.parameters is None and system.name != "config"
    config = None if is_preset else system.config
    try:
        return check(build, system.name, config=config, parameters=system.parameters, **options, progress=progress)
    except SystemExit as end:  # its code would be taken for a verdict
        raise PortError(f"The port ended the process with sys.exit({end.code!r}).") from None


def check_all(
    check: Check,
    systems: Iterable[System],
    progress: Callable[[], AbstractContextManager[Progress]],
    show: Callable[[Report], None],
) -> tuple[list[Report], dict[str, list[str]]]:
    """Check every system and show each report; an error ends the check of its own system only.

    Returns: the reports, and the names of the systems by the message of their error.
    """
    reports: list[Report] = []
    errors: dict[str, list[str]] = {}
    for system in systems:
        try:
            with progress() as report_progress:
                reports.append(check(system, report_progress))
        except TransparityError as error:
            errors.setdefault(str(error), []).append(system.name)
        else:
            show(reports[-1])
    return reports, errors
