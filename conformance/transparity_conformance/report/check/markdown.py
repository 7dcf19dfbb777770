"""The result of a check as Markdown for a pull request, with everything that is needed to repeat the check."""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from transparity.limits.files import is_file
from transparity_conformance.report.check.terminal import MARKS, WIDTH, as_text
from transparity_conformance.report.check.view import CheckView
from transparity_conformance.report.report import Report, installed

FILES = ("--json", "--html", "--markdown")
"""The options that take the path of a file to write."""

DIGITS = 16
"""The number of digits of a hash that are shown."""


def as_markdown(reports: Sequence[Report], *, weights: Path | None = None) -> str:
    """Return the result and coverage of each report, then the command, the versions, and hashes of the files."""
    return "\n".join([*(line for report in reports for line in _report(report)), *_provenance(reports, weights), ""])


def _report(report: Report) -> Iterator[str]:
    view = CheckView(report)
    yield from (f"### {MARKS[report.verdict]} {_plain(view.title)} ({_plain(view.system)})", "")
    text = "\n".join(as_text([report], WIDTH).splitlines()[1:]).strip("\n")
    fence = "`" * 8  # longer than any fence in the port's code
    yield from (f"{fence}text", text, fence, "")
    if view.coverage:
        yield from (f"Covers {_plain(view.coverage)}.", "")


def _provenance(reports: Sequence[Report], weights: Path | None) -> Iterator[str]:
    port = Path(reports[0].port.rpartition(":")[0] or reports[0].port) if reports else Path()
    rows = [
        ("command", f"`{_plain(shlex.join(['transparity', *_without_files(sys.argv[1:])]))}`"),
        ("versions", ", ".join(f"{name} {_plain(version)}" for name, version in installed().items())),
        ("port", f"`{_plain(port.name)}` {digest([port])}" if is_file(port) else _plain(str(port))),
        (
            "weights",
            "random, made by the checker" if weights is None else digest(sorted(weights.glob("*.safetensors"))),
        ),
    ]
    yield from ("| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows))


def _without_files(options: Sequence[str]) -> Iterator[str]:
    """The options that another machine needs: not those that name the files of the answer."""
    is_path = False
    for option in options:
        if not is_path and not option.startswith(tuple(f"{name}=" for name in FILES)) and option not in FILES:
            yield option
        is_path = not is_path and option in FILES


def digest(files: Iterable[Path]) -> str:
    """Return the SHA-256 hash of the concatenated contents of files."""
    found = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                found.update(block)
    return f"sha256:{found.hexdigest()[:DIGITS]}"


def _plain(text: str) -> str:
    """Escape the markup of Markdown and of tables in a text."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
