"""Reports as files: JSON, and HTML pages."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transparity.errors import TransparityError
from transparity.limits.files import is_folder
from transparity_conformance.report.text import reason

if TYPE_CHECKING:
    from transparity_conformance.report.report import Report

STANDARD_OUTPUT = Path("-")
"""The path that stands for standard output."""


class OutputError(TransparityError):
    """A report cannot be written where it was asked for."""


def check_writable(*paths: Path | None) -> None:
    """Raise `OutputError` before the work, not after it, if a path cannot be written."""
    for path in filter(None, paths):
        if path == STANDARD_OUTPUT:
            continue
        if is_folder(path) or not is_folder(path.absolute().parent):
            raise OutputError(
                f"{path} cannot be written: it is a folder, or its folder does not exist; choose another path."
            )
        if problem := _unwritable(path):
            raise OutputError(f"{path} cannot be written: {problem}; choose another path.")


def _unwritable(path: Path) -> str:
    """The reason why a path cannot be opened for writing; empty if it can, and nothing is created."""
    try:
        if os.path.lexists(path):
            # a pipe that nobody reads would be waited for, without an end
            os.close(os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0)))
            return ""
        # a file system tells what a name may be only when it is asked
        path.stat()
    except FileNotFoundError:
        return "" if os.access(path.absolute().parent, os.W_OK) else "permission denied"
    except (OSError, ValueError) as error:
        return reason(error)
    return ""


def write_reports(
    reports: Sequence[Report],
    json_file: Path | None,
    html_file: Path | None = None,
    markdown_file: Path | None = None,
    *,
    weights: Path | None = None,
) -> None:
    """Write the reports as JSON, HTML and Markdown, each to a file or to standard output; `weights`: a checkpoint."""
    if json_file is not None:
        text = json.dumps([report.as_dict() for report in reports], indent=2, ensure_ascii=False)
        write_text(json_file, text + "\n")
    if html_file is not None:
        from transparity_conformance.report.check.page import as_html

        write_text(html_file, as_html(reports))
    if markdown_file is not None:
        from transparity_conformance.report.check.markdown import as_markdown

        write_text(markdown_file, as_markdown(reports, weights=weights))


def write_text(path: Path, text: str) -> None:
    """Write a text to a file, or to standard output; raises `OutputError`."""
    if path == STANDARD_OUTPUT:
        sys.stdout.write(text)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {reason(error)}.") from None
