"""What is known of a port before its check has ended: told at once, and not lost at Ctrl-C."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

from transparity_conformance.diagnosis.judge import Located
from transparity_conformance.report.report import Interrupted, Report

NOTE = "the check was interrupted: what had no cause by then is unexplained, and the rest was not compared"


class Known:
    """The last report on a port that diverges, which `located` is told of when it is new."""

    def __init__(self, located: Located) -> None:
        self.report: Report | None = None
        self.located = located

    def __call__(self, report: Report) -> None:
        """Receive a report before its causes are sought."""
        self.report = report
        self.located(report)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Raise `Interrupted` for a Ctrl-C after something was found to diverge."""
        try:
            yield
        except Interrupted as ended:
            raise Interrupted(_noted(ended.report)) from None
        except KeyboardInterrupt:
            if self.report is None or self.report.verdict != "diverges":
                raise
            raise Interrupted(_noted(self.report)) from None


def _noted(report: Report) -> Report:
    return dataclasses.replace(report, notes=(*report.notes, NOTE))


def name_of(build: Callable[..., Any]) -> str:
    """The name of a function in reports, `module:build`; that of its class for an object without one."""
    while isinstance(build, functools.partial):
        build = build.func
    named = build if hasattr(build, "__qualname__") else type(build)
    return f"{named.__module__}:{named.__qualname__}"
