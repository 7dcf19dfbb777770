"""Reports as files: JSON, and HTML pages."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from transparity.errors import TransparityError
from transparity_conformance.report.report import Report


class OutputError(TransparityError):
    """A report cannot be written where it was asked for."""


def check_writable(*paths: Path | None) -> None:
    """Raise `OutputError` before the work, not after it, if a path cannot be written."""
    for path in filter(None, paths):
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise OutputError(
                f"{path} cannot be written: it is a folder, or its folder does not exist; choose another path."
            )
        if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
            raise OutputError(f"{path} cannot be written: permission denied; choose another path.")


def write_reports(reports: Sequence[Report], json_file: Path | None, html_file: Path | None) -> None:
    """Write the reports as JSON, as one HTML page, or both."""
    if json_file is not None:
        text = json.dumps([report.as_dict() for report in reports], indent=2, ensure_ascii=False)
        _write(json_file, text + "\n")
    if html_file is not None:
        from transparity_conformance.report.check.page import as_html

        _write(html_file, as_html(reports))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}.") from None
