"""Measure the audits: `python -m meta.audits.measure [--only WORD] [--twins]`.

Every right loader has to agree. Of every planted fault the check has to diverge, and the audit to tell the name of the
field or the tensor; without the audit, many agree. With `--twins`, the loaders of transformers are checked, too.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meta.audits.planted import FIELDS, FOLDER, LOADING, RIGHT, Planted, written
from transparity_conformance.checking.audit.audit import audited
from transparity_conformance.checking.audit.fields import audited_of
from transparity_conformance.checking.check import check
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.checkpoints.families import FAMILIES
from transparity_conformance.diagnosis.judge import ignore_progress
from transparity_conformance.report.audit.result import CAUSES, Audit
from transparity_conformance.running.hub import HubBuild
from transparity_conformance.running.loading import load_port

HEADS = {
    "AutoModel": ("bert", "roberta", "xlm-roberta"),
    "AutoModelForSeq2SeqLM": ("bart", "marian", "t5"),
    "AutoModelForMaskedLM": ("distilbert", "modernbert"),
}
"""The models of transformers, by family; of all others, `AutoModelForCausalLM`."""


@dataclass(frozen=True)
class Judged:
    """The check of one loader, with and without its audit."""

    what: str
    is_found: bool
    is_named: bool
    is_seen_without: bool
    seconds: float
    """Of the audit."""
    says: str

    def __str__(self) -> str:
        marks = [("found", self.is_found), ("named", self.is_named), ("seen without audit", self.is_seen_without)]
        told = ", ".join(f"{'' if is_so else 'not '}{mark}" for mark, is_so in marks)
        return f"{self.what}: {told} ({self.seconds:.1f} s): {self.says}"


def named(audit: Audit | None) -> list[str]:
    """The fields and tensors at which an audit found a fault."""
    if audit is None:
        return []
    fields = [each.name for each in audit.fields if each.outcome in CAUSES]
    return fields + [each.name for each in audit.tensors if each.outcome in CAUSES]


def audit_alone(load: Callable[..., Any], family: str, folder: Path) -> list[str]:
    """The names that the audit tells, without the check of the forward pass."""
    loader = audited_of(HubBuild(load, family, str(folder)))
    return named(audited(loader, example_config(family), "float32", ignore_progress, with_fields=True))


def judged(planted: Planted, folder: Path, *, alone: bool = True) -> Judged:
    """Check a planted fault; `alone`: also without the audit."""
    load = load_port(f"{written(planted, folder)}:load")
    report = check(load, family=planted.family, audit=True)
    names = named(report.audit)
    without = check(load, family=planted.family, audit=False).verdict if alone else "agrees"
    says = report.audit.faults if report.audit else ""
    is_found, seconds = report.verdict == "diverges", report.audit.seconds if report.audit else 0.0
    return Judged(str(planted), is_found, planted.name in names, without != "agrees", seconds, says)


def right_loaders(*, twins: bool) -> list[tuple[str, str, Callable[..., Any]]]:
    """The right loaders, by name and family."""
    own = [
        (name, family, load_port(f"{FOLDER / name}.py:load")) for name, families in RIGHT.items() for family in families
    ]
    if not twins:
        return own
    return own + [("transformers", family, published(family)) for family in FAMILIES]


def published(family: str) -> Callable[..., Any]:
    """The loader of transformers, which has every family."""
    with warnings.catch_warnings():  # its warnings while it is imported are not about this project
        warnings.simplefilter("ignore")
        import transformers
    transformers.logging.disable_progress_bar()
    kind = next((kind for kind, families in HEADS.items() if family in families), "AutoModelForCausalLM")
    model = getattr(transformers, kind)

    def load(folder: str) -> Any:
        return model.from_pretrained(folder)

    return load


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge every loader, print each and the shares; 1 if a fault is not found or a right loader does not agree."""
    parser = argparse.ArgumentParser(description="Measure the audits of loaders.")
    parser.add_argument("--only", default="", metavar="WORD", help="only faults with this in their description")
    parser.add_argument("--twins", action="store_true", help="check the loaders of transformers, too")
    options = parser.parse_args(arguments)
    missed = 0
    with tempfile.TemporaryDirectory() as name:
        for kind, faults in (("fields", FIELDS), ("loading", LOADING)):
            results = []
            for planted in (each for each in faults if options.only in str(each)):
                results.append(judged(planted, Path(name)))
                print(results[-1], flush=True)  # noqa: T201
            missed += _print_shares(kind, results)
    for name, family, load in [] if options.only else right_loaders(twins=options.twins):
        began = time.monotonic()
        report = check(load, family=family, audit=True)
        missed += report.verdict != "agrees"
        seconds = report.audit.seconds if report.audit else 0.0
        took = f"{time.monotonic() - began:.1f} s, {seconds:.1f} of them for the audit"
        print(f"{name}, {family}: {report.verdict} ({took}): {named(report.audit)}", flush=True)  # noqa: T201
    return int(missed > 0)


def _print_shares(kind: str, results: list[Judged]) -> int:
    """Print how many were found; return how many were not, or not by name."""
    found, told = sum(each.is_found for each in results), sum(each.is_named for each in results)
    without = sum(each.is_seen_without for each in results)
    print(f"{kind}: {found} of {len(results)} found, {told} named; {without} found without the audit")  # noqa: T201
    return 2 * len(results) - found - told


if __name__ == "__main__":
    raise SystemExit(main())
