"""The gallery: ten real bugs in small ports, each with the checker's diagnosis and report."""

import dataclasses
import tomllib
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from docs.site.kept import kept
from docs.site.pages import ROOT, SOURCES, lines_around

from transparity_conformance import check
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.report.check.findings import sentence
from transparity_conformance.report.check.page import as_html
from transparity_conformance.report.report import Report
from transparity_conformance.running.loading import load_port

FOLDER = ROOT / "examples/gallery"
PLACE = "<!-- checked: by docs/site/gallery.py, in the site -->"
"""The line of docs/gallery.md that the diagnoses replace."""

AROUND = 2
"""The number of lines shown before and after the wrong line."""


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """A bug: its port, its story, the thread that reported it, and the cause that the checker should find."""

    port: str
    family: str
    title: str
    story: str
    thread: str
    cause: str
    fields: dict[str, Any] = field(default_factory=dict)
    """The fields of the configuration that differ from the family's small model."""

    @property
    def file(self) -> Path:
        return FOLDER / f"{self.port}.py"

    @property
    def link(self) -> str:
        repository, _, number = self.thread.partition("#")
        return f"https://github.com/{repository}/issues/{number}"

    @property
    def command(self) -> str:
        """The command that checks the port, in the folder of the gallery."""
        options = "".join(f" --set {name}={value}" for name, value in self.fields.items())
        return f"transparity check {self.file.name}:load --family {self.family}{options}"


def table() -> str:
    rows = ["| file | command | bug |", "|---|---|---|"]
    for each in diagnoses():
        place = each.file.relative_to(ROOT)
        rows.append(f"| [{each.file.name}](../{place}) | `{each.command}` | {each.title} |")
    return "\n".join(rows)


def diagnoses() -> list[Diagnosis]:
    return [Diagnosis(**row) for row in tomllib.loads((FOLDER / "diagnoses.toml").read_text())["diagnosis"]]


def checked(diagnosis: Diagnosis) -> Report:
    config = dataclasses.replace(example_config(diagnosis.family), **diagnosis.fields)
    report = check(
        load_port(f"{diagnosis.file}:load"),
        family=diagnosis.family,
        config=config,
        name=diagnosis.file.name,
        audit=False,  # the page does not show the audit
    )
    found = [cause.mistake for fault in report.faults[:1] for cause in fault.causes]
    if diagnosis.cause not in found:
        raise ValueError(f"{diagnosis.file.name}: the checker finds the causes {found}; expected {diagnosis.cause}.")
    return report


def shown(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the verdict, the first wrong line of the port (if any), and the report as HTML."""
    report = checked(diagnosis)
    sources = [each for fault in report.faults for each in (fault.source, *(cause.source for cause in fault.causes))]
    own = (source["line"] for source in sources if source and Path(source["file"]) == diagnosis.file)
    return {"says": sentence(report), "line": next(own, None), "html": as_html([report]).replace(f"{ROOT}/", "")}


def kept_for(diagnosis: Diagnosis) -> Any:
    inputs = [diagnosis.file.read_bytes(), repr(diagnosis).encode(), Path(__file__).read_bytes()]
    return kept(f"gallery-{diagnosis.port}", inputs, partial(shown, diagnosis))


def gallery() -> tuple[str, dict[str, str]]:
    """Return the diagnoses as Markdown, and the reports as HTML by their path in the site."""
    found = {diagnosis: kept_for(diagnosis) for diagnosis in diagnoses()}
    reports = {report_place(diagnosis): each["html"] for diagnosis, each in found.items()}
    return "\n".join(_section(diagnosis, each) for diagnosis, each in found.items()), reports


def report_place(diagnosis: Diagnosis) -> str:
    return f"gallery/{diagnosis.port.replace('_', '-')}.html"


def _section(diagnosis: Diagnosis, found: dict[str, Any]) -> str:
    source = f"{SOURCES}/{diagnosis.file.relative_to(ROOT)}"
    links = [
        f"[The report]({report_place(diagnosis)})",
        f"[the port]({source})",
        f"[the thread]({diagnosis.link})",
        f"[`{diagnosis.cause}`](causes/{diagnosis.cause}.md)",
    ]
    line, text = found["line"], diagnosis.file.read_text(encoding="utf-8")
    shown = "" if line is None else lines_around(diagnosis.file.name, text, line, AROUND)
    parts = [f"## {diagnosis.title}", diagnosis.story, shown, f"> {found['says']}"]
    return "\n\n".join([*(part for part in parts if part), " · ".join(links)]) + "\n"
