"""The pool `ranks`: mistakes of sharding, which the checker must name, and correct ports."""

import argparse
import atexit
import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meta.pool.bug import rows
from meta.trial import Measure, Trial
from transparity.config import TransformerConfig
from transparity.presets import preset
from transparity_conformance.checking.check import check
from transparity_conformance.checking.systems import divisible
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.checkpoints.tables.kinds import full_attention_every
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.report.report import Report
from transparity_conformance.running.process.isolation import IsolatedBuild, isolated_build
from transparity_conformance.running.process.ranks import group_of

HERE = Path(__file__).parent
TIMEOUT = 120.0

_LLAMA = dataclasses.replace(CASES["llama"], rotary_scaling="none", rotary_factor=1.0, rotary_original_length=8192)

CONFIGS: dict[str, TransformerConfig] = {
    "notes-lm": preset("notes-lm"),
    "llama": _LLAMA,
    "one-key-head": dataclasses.replace(_LLAMA, num_key_value_heads=1),
    "windows": dataclasses.replace(_LLAMA, sliding_window=4, **full_attention_every(2)),
    "alibi": CASES["bloom"],
    "olmo2": CASES["olmo2"],
    "gpt2": example_config("gpt2"),
    "relative": dataclasses.replace(preset("notes-lm"), positions="relative"),
}


@dataclass(frozen=True)
class Case:
    """A sharded port, its configuration, and the id of its mistake; correct ports have no id."""

    port: str
    config: str
    ranks: int
    cause: str = ""
    file: str = "by_hand.py"

    @property
    def spec(self) -> str:
        return f"{HERE / self.file}:{self.port}"

    def __str__(self) -> str:
        return f"{self.file}:{self.port}, {self.config}, {self.ranks} ranks"


RIGHT = tuple(
    Case(row["port"], config, ranks)
    for ranks in (2, 4, 3)
    for row in rows(HERE / "cases.toml", "right")
    for config in row["configs"]
    if ranks != 3 or row["port"] in ("tensor", "columns", "stages", "rows")
)

WRONG = tuple(Case(ranks=ranks, **row) for ranks in (2, 4) for row in rows(HERE / "cases.toml", "mistake"))


@contextlib.contextmanager
def started(spec: str, ranks: int, timeout: float = TIMEOUT) -> Iterator[IsolatedBuild]:
    with contextlib.closing(isolated_build(spec, timeout, ranks=ranks)) as build:
        yield build


def checked(build: IsolatedBuild, case: Case) -> Report:
    group = group_of(build)
    assert group is not None
    group.load(case.spec)
    return check(build, case.config, config=divisible(CONFIGS[case.config], case.ranks), name=case.port)


@functools.cache
def _processes(ranks: int) -> IsolatedBuild:
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(started(RIGHT[0].spec, ranks))


def judged(case: Case) -> dict[str, Any]:
    report = checked(_processes(case.ranks), case)
    return {"verdict": report.verdict, "causes": [cause.mistake for fault in report.faults for cause in fault.causes]}


def trials(options: argparse.Namespace) -> list[Trial]:
    cases = sorted([*RIGHT, *WRONG], key=lambda case: case.ranks)
    return [
        Trial(
            f"{case}, {case.cause or 'right'}",
            functools.partial(judged, case),
            "wrong" if case.cause else "right",
            case.cause,
        )
        for case in cases
    ]


MEASURES = (
    Measure("correct ports that agree", lambda _, answer: answer["verdict"] == "agrees", kind="right"),
    Measure("mistakes detected", lambda _, answer: answer["verdict"] == "diverges", kind="wrong"),
    Measure("mistakes named", lambda trial, answer: trial.wanted in answer["causes"], kind="wrong"),
)
