"""The pool `audits`: loaders with planted faults (`faults.toml`), and correct loaders.

Every correct loader must agree. For each fault, the check must diverge, and the audit must name the field or tensor.
Many faults are not detected without the audit. With `--twins`, the loaders of transformers are checked too.
"""

import argparse
import functools
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meta.pool.bug import edited_copy, rows
from meta.trial import Measure, Trial
from transparity_conformance.checking.audit.audit import audited
from transparity_conformance.checking.audit.fields import audited_of
from transparity_conformance.checking.check import check
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.checkpoints.families import FAMILIES
from transparity_conformance.diagnosis.judge import ignore_progress
from transparity_conformance.report.audit import CAUSES, Audit
from transparity_conformance.running.hub import HubBuild
from transparity_conformance.running.loading import load_port

FOLDER = Path(__file__).parent / "loaders"

RIGHT = {
    "llama_module": ("llama", "mistral", "qwen2", "qwen3"),
    "llama_numpy": ("llama",),
    "gpt2_numpy": ("gpt2",),
    "gpt2_jax": ("gpt2",),
    "gemma_functional": ("gemma", "gemma2"),
    "bert_module": ("bert", "roberta"),
    "t5_functional": ("t5",),
    "opt_module": ("opt",),
}

Load = Callable[[str], Any]


@dataclass(frozen=True)
class Planted:
    """A loader in which `new` replaces `old`. The audit must report the field or tensor `name`."""

    loader: str
    family: str
    name: str
    old: str
    new: str
    kind: str = "field"

    def __str__(self) -> str:
        return f"{self.family}, {self.name}: {self.new.strip().splitlines()[0] if self.new.strip() else 'removed'}"

    def load(self, folder: Path) -> Load:
        return changed(self.old, self.new, folder, self.loader)

    def run(self) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            load = self.load(Path(folder))
            answer = checked(load, self.family)
            answer["without"] = check(load, family=self.family, audit=False).verdict
        return answer


def changed(old: str, new: str, folder: Path, loader: str = "llama_module") -> Load:
    """Write a copy of a loader, with `new` in place of `old`, into a folder, and load the copy."""
    return load_port(f"{edited_copy(FOLDER / f'{loader}.py', folder, old, new)}:load")


def judged_right(loader: str, family: str) -> dict[str, Any]:
    if loader in RIGHT:
        return checked(load_port(f"{FOLDER / loader}.py:load"), family)
    with warnings.catch_warnings():  # import warnings do not concern this project
        warnings.simplefilter("ignore")
        from meta.exam.subjects.hub import named as published
    return checked(published, family)


PLANTED = tuple(
    Planted(**row, kind=kind)
    for kind in ("field", "tensor")
    for row in rows(Path(__file__).with_name("faults.toml"), kind)
)


def checked(load: Load, family: str) -> dict[str, Any]:
    report = check(load, family=family, audit=True)
    audit = report.audit
    told = {"says": audit.faults, "audit_seconds": audit.seconds} if audit else {"says": "", "audit_seconds": 0.0}
    return {"verdict": report.verdict, "named": named(audit)} | told


def named(audit: Audit | None) -> list[str]:
    found: list[Any] = [*audit.fields, *audit.tensors] if audit else []
    return [each.name for each in found if each.outcome in CAUSES]


def audit_of(load: Load, family: str, folder: Path, *, with_fields: bool = True) -> Audit:
    loader = audited_of(HubBuild(load, family, str(folder)))
    return audited(loader, example_config(family), "float32", ignore_progress, with_fields=with_fields)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--twins", action="store_true", help="also check the loaders of transformers")


def trials(options: argparse.Namespace) -> list[Trial]:
    right = [(loader, family) for loader, families in RIGHT.items() for family in families]
    right += [("transformers", family) for family in FAMILIES if options.twins]
    return [
        *(Trial(str(planted), planted.run, planted.kind, planted.name) for planted in PLANTED),
        *(Trial(", ".join(each), functools.partial(judged_right, *each), "right") for each in right),
    ]


MEASURES = [
    Measure(f"{kind}s: {title}", is_right, target, kind)
    for kind in ("field", "tensor")
    for title, is_right, target in (
        ("found", lambda _, answer: answer["verdict"] == "diverges", 1.0),
        ("named", lambda trial, answer: trial.wanted in answer["named"], 1.0),
        ("found without the audit", lambda _, answer: answer["without"] != "agrees", 0.0),
    )
] + [Measure("correct loaders agree", lambda _, answer: answer["verdict"] == "agrees", 1.0, "right")]
