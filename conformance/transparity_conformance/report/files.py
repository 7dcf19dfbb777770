"""Write reports to JSON, HTML and Markdown files."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from transparity.errors import TransparityError
from transparity.text import reason
from transparity_conformance.storage.paths import is_folder

if TYPE_CHECKING:
    from transparity_conformance.report.report import Report

STANDARD_OUTPUT = Path("-")


class OutputError(TransparityError):
    """A report cannot be written to its path."""


def check_writable(*paths: Path | None) -> None:
    """Raise `OutputError` if a path cannot be written, or if two paths are the same."""
    given = [path for path in paths if path is not None]
    for path in given:
        if path == STANDARD_OUTPUT:
            _standard_output()
            continue
        if is_folder(path) or not is_folder(path.absolute().parent):
            raise OutputError(
                f"{path} cannot be written: it is a folder, or its folder does not exist; choose another path."
            )
        if problem := _unwritable(path):
            raise OutputError(f"{path} cannot be written: {problem}; choose another path.")
    places = [os.path.realpath(path) for path in given]
    if twice := [path for path, place in zip(given, places, strict=True) if places.count(place) > 1]:
        raise OutputError(
            f"{twice[0]} is given for two files, so the second would replace the first; give two different paths."
        )


def _unwritable(path: Path) -> str:
    """Return why a path cannot be written, without creating the file."""
    try:
        if os.path.lexists(path):
            # Without O_NONBLOCK, opening a pipe without a reader would wait forever.
            os.close(os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0)))
            return ""
        # `stat` raises for names that the file system does not allow.
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
    if json_file is not None:
        write_json(json_file, [report.as_dict() for report in reports])
    if html_file is not None:
        from transparity_conformance.report.check.page import as_html

        write_text(html_file, as_html(reports), errors="xmlcharrefreplace")
    if markdown_file is not None:
        from transparity_conformance.report.check.page import as_markdown

        write_text(markdown_file, as_markdown(reports, weights=weights))


def write_json(path: Path, value: Any) -> None:
    """Write JSON; on standard output, use only ASCII characters, which exist in every encoding."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=path == STANDARD_OUTPUT) + "\n")


def write_text(path: Path, text: str, errors: str = "backslashreplace") -> None:
    """Write a text; `errors` replaces characters that standard output cannot encode."""
    if path == STANDARD_OUTPUT:
        stream = _standard_output()
        encoding = stream.encoding or "utf-8"
        stream.write(text.encode(encoding, errors).decode(encoding))
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {reason(error)}.") from None


def _standard_output() -> TextIO:
    if sys.stdout is None:
        raise OutputError("Standard output (-) is closed; give the path of a file instead.")
    return sys.stdout
