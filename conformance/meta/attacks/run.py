"""Run the attacks: `python -m meta.attacks.run [--only WORD] [--kind KIND]`, one line for each."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import meta.attacks.capabilities
import meta.attacks.histories
import meta.attacks.numbers
import meta.attacks.precision
import meta.attacks.shapes  # noqa: F401 - importing them registers their attacks
from meta.attacks import process
from meta.attacks.attack import ATTACKS, Attack
from meta.attacks.limits import LET_THROUGH
from transparity.errors import TransparityError
from transparity.presets import PRESETS
from transparity_conformance import check
from transparity_conformance.oracle.cases import CASES

EXIT_CODES = {"agrees": 0, "diverges": 1, "refused": 2, "inconclusive": 3}
LIMIT = 120
"""Seconds after which a program counts as one that hangs."""


SEARCH = 3.0
"""Seconds for the search for causes: what counts here is the verdict."""


@dataclass(frozen=True)
class Outcome:
    """The checker's answer to an attack."""

    id: str
    kind: str
    says: str
    verdict: str
    code: int | None
    seconds: float
    why: str = ""

    @property
    def let_through(self) -> bool:
        """Return whether somebody who looks at the verdict, or at the exit code alone, takes the port for right."""
        return self.code not in (1, 2, 3)

    def __str__(self) -> str:
        mark = "LET THROUGH" if self.let_through else "caught"
        return f"{mark:11} {self.kind:12} {self.id:36} {self.verdict:12} {self.code} {self.seconds:5.1f}s  {self.why}"


def outcome(attack: Attack) -> Outcome:
    """Check one attack in this process."""
    began, why = time.perf_counter(), ""
    verdict = "refused"
    try:
        report = check(attack.build, dtype=attack.dtype, budget=SEARCH, **subject(attack))
        verdict, why = str(report.verdict), "; ".join(_causes(report))
    except TransparityError as error:
        why = str(error)[:200]
    seconds = time.perf_counter() - began
    return Outcome(attack.id, attack.kind, attack.says, verdict, EXIT_CODES[verdict], seconds, why)


def subject(attack: Attack) -> dict[str, Any]:
    """The configuration of an attack, as arguments of `check`."""
    if attack.on in PRESETS and not attack.fields:
        return {"preset": attack.on}
    return {"config": dataclasses.replace(CASES[attack.on], **dict(attack.fields))}


def _causes(report: Any) -> Iterator[str]:
    for fault in report.faults[:2]:
        yield f"{fault.where}: {' / '.join(cause.mistake for cause in fault.causes) or 'unexplained'}"


def process_outcome(id: str) -> Outcome:
    """Check one program of `process` from the command line."""
    says, _ = process.PROGRAMS[id]
    build = f"{Path(process.__file__)}:build_{id.replace('-', '_')}"
    command = [sys.executable, "-m", "transparity_conformance", "check", build, "--preset", "notes-lm"]
    if "never" in id and "--timeout" in _help():
        command += ["--timeout", "15"]
    began = time.perf_counter()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT, check=False, start_new_session=True, env=os.environ
        )
        code, text = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        code, text = 124, f"no answer within {LIMIT} s"
    verdict = "traceback" if "Traceback" in text else {0: "agrees", 1: "diverges", 2: "refused"}.get(code, "")
    why = re.sub(r"\s+", " ", text).strip()[-120:]
    return Outcome(id, "process", says, verdict or "inconclusive", code, time.perf_counter() - began, why)


def _help() -> str:
    command = [sys.executable, "-m", "transparity_conformance", "check", "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def outcomes(kind: str | None = None, only: str = "") -> Iterator[Outcome]:
    """Every attack's outcome, of a kind, with a word in its id."""
    for attack in ATTACKS:
        if kind in (None, attack.kind) and only in attack.id:
            yield outcome(attack)
    for id in process.PROGRAMS:
        if kind in (None, "process") and only in id:
            yield process_outcome(id)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print every outcome; 1 if an attack is let through that `LET_THROUGH` lacks, or caught that it has."""
    parser = argparse.ArgumentParser(description="Offer wrong ports to the checker.")
    parser.add_argument("--kind")
    parser.add_argument("--only", default="")
    options = parser.parse_args(arguments)
    let_through, number, surprises = 0, 0, list[str]()
    for found in outcomes(options.kind, options.only):
        print(found, flush=True)  # noqa: T201 - its answer
        let_through, number = let_through + found.let_through, number + 1
        surprises += [found.id] * (found.let_through != (found.id in LET_THROUGH))
    print(f"{number} attacks, {let_through} let through; not as listed: {', '.join(surprises) or 'none'}")  # noqa: T201
    return int(bool(surprises))


if __name__ == "__main__":
    raise SystemExit(main())
