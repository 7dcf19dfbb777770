"""The pool `attacks`: wrong ports that try to pass the check."""

import argparse
import dataclasses
import re
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

from meta.pool.bug import Bug, read, rows
from meta.pool.port import port_with
from meta.trial import Answer, Measure, Trial
from transparity.errors import TransparityError
from transparity.presets import PRESETS
from transparity_conformance import check
from transparity_conformance.oracle.cases import CASES

KINDS = ("capabilities", "histories", "numbers", "budgets", "precision", "shapes")
ATTACKS = [bug for kind in KINDS for bug in read(Path(__file__).parent / f"bugs/{kind}.toml")]
"""The attacks of every kind: edits of the independent port, in the configuration that `subject` names."""

LIMITS: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("limits.toml").read_text(encoding="utf-8"))
LET_THROUGH = {id: reason for reason, ids in LIMITS.items() for id in ids}
"""The attacks that the checker does not detect, with the reason."""

PROGRAMS: dict[str, dict[str, str]] = {
    row["id"]: row for row in rows(Path(__file__).with_name("programs.toml"), "program")
}

PROGRAM = """
import asyncio, atexit, os, signal, sys, tempfile, threading, time, warnings
import numpy as np


def read_as(zeros, array):
    return type("Lazy", (), {{"shape": zeros.shape, "dtype": zeros.dtype, "__array__": array}})()


def build(config, parameters):
    def forward(**inputs):
        first = np.asarray(inputs.get("tokens", inputs.get("target")))
        zeros = np.zeros((*first.shape, config.target_vocab_size), np.float32)
{does}
        return zeros

    return forward
"""
"""The source of a port; code of an attack replaces `{does}`."""

LIMIT = 120
"""The seconds after which a program counts as hanging."""

SEARCH = 3.0
"""The seconds for the search for causes. A few seconds suffice, because only the verdict counts."""


def attacked(attack: Bug) -> dict[str, Any]:
    build = port_with(attack, taps=False, offers="all" if attack.shows else "")
    try:
        report = check(build, dtype=attack.dtype, budget=SEARCH, **subject(attack))
    except TransparityError as error:
        return {"verdict": "refused", "code": 2, "why": str(error)[:200]}
    causes = [(fault.where, " / ".join(cause.mistake for cause in fault.causes)) for fault in report.faults[:2]]
    why = "; ".join(f"{where}: {named or 'unexplained'}" for where, named in causes)
    return {"verdict": report.verdict, "code": report.exit_code, "why": why}


def is_let_through(answer: Answer) -> bool:
    return answer["code"] not in (1, 2, 3)


def subject(attack: Bug) -> dict[str, Any]:
    if attack.subject in PRESETS and not attack.config:
        return {"preset": attack.subject}
    return {"config": dataclasses.replace(CASES[attack.subject], **attack.config)}


def source_of(program: dict[str, str]) -> str:
    return PROGRAM.format(does=textwrap.indent(program["does"].strip(), " " * 8))


def run_program(program: dict[str, str]) -> dict[str, Any]:
    """Check a program from the command line."""
    with tempfile.TemporaryDirectory() as folder:
        port = Path(folder, "port.py")
        port.write_text(source_of(program), encoding="utf-8")
        return judged_program(f"{port}:build", ["--timeout", "15"] * ("never" in program["id"]))


def judged_program(port: str, options: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "transparity_conformance", "check", port, "--preset", "notes-lm", *options]
    given: dict[str, Any] = {"capture_output": True, "text": True, "timeout": LIMIT, "start_new_session": True}
    try:
        done = subprocess.run(command, **given, check=False)
        code, text = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        code, text = 124, f"no answer within {LIMIT} s"
    verdict = "traceback" if "Traceback" in text else {0: "agrees", 1: "diverges", 2: "refused"}.get(code, "")
    return {"verdict": verdict or "inconclusive", "code": code, "why": re.sub(r"\s+", " ", text).strip()[-120:]}


def trials(options: argparse.Namespace) -> list[Trial]:
    return [
        *(Trial(f"{each.group}: {each.id}", partial(attacked, each), wanted=each.id) for each in ATTACKS),
        *(Trial(f"process: {id}", partial(run_program, each), wanted=id) for id, each in PROGRAMS.items()),
    ]


MEASURES = (
    Measure("caught", lambda _, answer: not is_let_through(answer)),
    Measure("as listed", lambda trial, answer: is_let_through(answer) == (trial.wanted in LET_THROUGH), 1.0),
)
