"""The pool `attacks`: wrong ports that try to pass the check."""

import argparse
import dataclasses
import re
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

from meta.attacks import process
from meta.pool.bug import Bug, read
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


def attacked_process(id: str) -> dict[str, Any]:
    build = f"{Path(process.__file__)}:build_{id.replace('-', '_')}"
    command = [sys.executable, "-m", "transparity_conformance", "check", build, "--preset", "notes-lm"]
    command += ["--timeout", "15"] * ("never" in id)
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
        *(Trial(f"process: {id}", partial(attacked_process, id), wanted=id) for id in process.PROGRAMS),
    ]


MEASURES = (
    Measure("caught", lambda _, answer: not is_let_through(answer)),
    Measure("as listed", lambda trial, answer: is_let_through(answer) == (trial.wanted in LET_THROUGH), 1.0),
)
