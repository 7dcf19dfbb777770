"""The check as one line of a test."""

from __future__ import annotations

from typing import Any

from transparity_conformance.checking.check import Port, check
from transparity_conformance.report.check.terminal import as_text
from transparity_conformance.report.report import Report


def assert_conforms(build: Port, preset: str | None = None, **options: Any) -> Report:
    """Fail with a table of what is wrong, where and why, unless the port agrees.

    Inconclusive is not agreement. Without a `config` or a `family`, the preset is `translation`; `options` are those of
    `check`.
    """
    # pytest leaves this frame out of the traceback: the error is in the port, not here
    __tracebackhide__ = True
    is_chosen = any(options.get(name) is not None for name in ("config", "family"))
    named = preset or (None if is_chosen else "translation")
    report = check(build, named, **options)
    if report.verdict != "agrees":
        raise AssertionError("\n" + as_text([report]))
    return report
