"""The pool `independent`: the independent port with one or several bugs, and correct variants of this port."""

import argparse
import itertools
import random
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meta.pool.bug import Bug, PoolError, View, lines_with
from meta.pool.judge import MEASURES, answer_of, bugs_named, falsehoods, is_line, names, says
from meta.pool.port import CASES, VIEWS, all_act, changed, modules_with, pool, port_with
from meta.trial import Answer
from transparity.config import TransformerConfig
from transparity.presets import PRESETS
from transparity.taps import tap_shapes
from transparity_conformance import check
from transparity_conformance.oracle.cases import CASES as FAMILIES

CAPABLE = ("translation", "notes-lm", "pre-norm", "llama", "t5", "qwen3-next", "qwen")
"""The configurations for faults of capabilities."""

SEVERAL = {"pair": (2, 200), "triple": (3, 50)}
"""By kind, the number of bugs in each port and the number of ports."""

DRAFTS, FEWEST, MOST = 60, 3, 6
"""The number of drafts, and the smallest and largest number of bugs in each."""

COMBINED, LENGTHS = 300, (11, 17, 33, 64, 100, 130, 257, 512)
"""The number of correct ports that combine styles, and the maximum lengths of their models."""

KINDS = ("fault", *SEVERAL, "draft", "uncatalogued", "odd", "capability", "control")


def kind_of(bug: Bug) -> str:
    """Return the kind of the trials in which this bug is the only one."""
    if bug.control or bug.shows:
        return "control" if bug.control else "capability"
    return "fault" if bug.causes else bug.group


@dataclass(frozen=True)
class Trial:
    """A port to check: its configuration, its bugs, and what the checker sees."""

    kind: str
    case: str
    bugs: tuple[Bug, ...]
    view: View = "operations"
    length: int | None = None
    dtype: str = "float32"

    @property
    def config(self) -> TransformerConfig:
        return changed(CASES[self.case], {"max_length": self.length} if self.length else {})

    def __str__(self) -> str:
        further = "".join(f", {each}" for each in (self.length, self.dtype.removeprefix("float32")) if each)
        return f"{self.case}, {self.view}{further}: {' and '.join(map(str, self.bugs))}"

    def acts(self) -> bool:
        """Return whether every bug changes the float64 logits; True for correct ports, and for bugs of capabilities."""
        return self.kind in ("control", "capability") or all_act(self.case, self.bugs)

    def run(self) -> dict[str, Any]:
        """Check the port; a crash is a wrong answer, and a trial in which a bug changes nothing is `inert`."""
        answer: dict[str, Any] = {"verdict": "inert", "error": "", "faults": [], "audit": {}, "notes": []}
        try:
            with np.errstate(all="ignore"):
                if self.acts():
                    answer = self.checked(self.bugs)
                    answer |= {"draft": self.drafted(answer)} if self.kind == "draft" else {}
        except Exception:  # noqa: BLE001 - it is counted, whatever it is
            answer |= {"verdict": "crashed", "error": traceback.format_exc().strip().splitlines()[-1]}
        return answer

    def checked(self, bugs: tuple[Bug, ...]) -> dict[str, Any]:
        offers = self.bugs[0].shows.partition(".")[0] if self.kind == "capability" else ""
        build = port_with(*bugs, taps=self.view != "operations", offers=offers)
        which: dict[str, Any] = {"preset": self.case} if self.case in PRESETS and not self.length else {}
        which = which or {"config": self.config}
        which |= {"budget": 8.0} if self.kind == "odd" else {}
        report = check(build, dtype=self.dtype, logits_only=self.view == "logits", **which)
        return answer_of(report, Path(modules_with(bugs).__file__).parent)

    def drafted(self, answer: Answer) -> dict[str, Any]:
        """Return the bugs that the first report names, the bugs named after fixes, whether each reported line is right,
        and the false causes."""
        named: list[Bug] = []
        lines, false = [], []
        for fault in answer["faults"]:
            found = bugs_named(self.bugs, fault)
            if any(bug not in named for bug in found):
                lines.append(any(is_line(bug, fault, [other for other in self.bugs if other != bug]) for bug in found))
            named += [bug for bug in found if bug not in named]
            false += sorted(names(fault)) if fault["causes"] and not found else []
        fixed = self.named_after_fixes(answer)
        return {"named": [bug.id for bug in named], "fixed": fixed, "lines": lines, "false": false}

    def named_after_fixes(self, answer: Answer) -> list[str]:
        """Check the port again and again, each time with the first named bug fixed; return all named bugs."""
        rest = self.bugs
        while named := [bug for fault in answer["faults"] for bug in bugs_named(rest, fault)]:
            rest = tuple(bug for bug in rest if bug != named[0])
            if not rest:
                break
            answer = self.checked(rest)
        return [bug.id for bug in self.bugs if bug not in rest]


def are_apart(bugs: Sequence[Bug]) -> bool:
    lines = [
        (bug.file, line)
        for bug in bugs
        for hunk in bug.hunks
        for line in lines_with(bug.path.read_text(encoding="utf-8"), hunk["old"].strip("\n"))
    ]
    return len(lines) == len(set(lines))


def shows_apart(case: str, bugs: Sequence[Bug]) -> bool:
    config = CASES[case]
    taps = tap_shapes(config, 1, **dict.fromkeys(config.input_names, 1))
    return all(sum(bug.shows_at(tap) for bug in bugs) <= 1 for tap in taps)


def single_trials(kind: str) -> list[Trial]:
    """Return the trials of every bug of a kind: one for each view and each configuration that runs the bug's line."""
    cases = CAPABLE if kind == "capability" else tuple(CASES)
    views: tuple[View, ...] = ("operations",) if kind == "capability" else VIEWS
    rows = [bug for bug in pool().values() if kind_of(bug) == kind]
    return [
        Trial(kind, case, (bug,), view)
        for bug, case in itertools.product(rows, cases)
        if bug.runs_in(CASES[case])
        for view in views
    ]


def _drawn(draw: random.Random, kind: str) -> Iterator[Trial]:
    rows = [bug for bug in pool().values() if kind_of(bug) == "fault" and not is_everywhere(bug)]
    while True:
        case = draw.choice(list(CASES))
        able = [bug for bug in rows if bug.runs_in(CASES[case])]
        size = draw.randint(FEWEST, MOST) if kind == "draft" else SEVERAL[kind][0]
        bugs = tuple(draw.sample(able, min(size, len(able))))
        if are_apart(bugs) and (kind == "draft" or shows_apart(case, bugs)):
            yield Trial(kind, case, bugs)


def is_everywhere(bug: Bug) -> bool:
    """Return whether the bug changes nearly every tap (low precision), or every call gives another answer (dropout)."""
    return bool({"dropout-active", "low-precision"} & set(bug.causes))


def several_trials(kind: str, seed: int) -> list[Trial]:
    number = DRAFTS if kind == "draft" else SEVERAL[kind][1]
    views: tuple[View, ...] = ("operations",) if kind == "draft" else VIEWS
    drawn = itertools.islice(_drawn(random.Random(seed), kind), number)
    return [Trial(kind, each.case, each.bugs, view) for each in drawn for view in views]


def combined_controls(seed: int) -> Iterator[Trial]:
    """Yield correct ports that combine two to four styles of code, with several lengths and two precisions."""
    draw, rows = random.Random(seed), [bug for bug in pool().values() if bug.control]
    cases = [*PRESETS, *FAMILIES]
    while True:
        case, view = draw.choice(cases), draw.choice(VIEWS)
        able = [bug for bug in rows if bug.runs_in(CASES[case])]
        styles = tuple(draw.sample(able, min(draw.randint(2, 4), len(able))))
        if are_apart(styles) and _compiles(styles):
            dtype = (
                "bfloat16" if draw.random() < 0.3 and not any(bug.hidden == "float32" for bug in styles) else "float32"
            )
            yield Trial("control", case, styles, view, draw.choice(LENGTHS), dtype)


def _compiles(bugs: tuple[Bug, ...]) -> bool:
    try:
        modules_with(bugs)
    except (PoolError, SyntaxError):
        return False
    return True


def trials_of(kind: str, seed: int) -> list[Trial]:
    if kind in (*SEVERAL, "draft"):
        return several_trials(kind, seed)
    combined = itertools.islice(combined_controls(seed), COMBINED if kind == "control" else 0)
    return [*single_trials(kind), *combined]


def sampled(trials: Sequence[Trial], size: int, seed: int = 0) -> list[Trial]:
    """Return at most `size` trials of each kind and view, spread evenly over causes and configurations."""
    shuffled = random.Random(seed).sample(trials, len(trials))
    seen: dict[object, int] = {}
    ranked = []
    for trial in shuffled:
        group, first = (trial.kind, trial.view), trial.bugs[0]
        keys = (*first.causes[:1], first.id, trial.case)
        ranked.append(([seen.get((group, key), 0) for key in keys], group, trial))
        seen |= {(group, key): seen.get((group, key), 0) + 1 for key in keys}
    chosen: list[Trial] = []
    for group in sorted({group for _, group, _ in ranked}):
        of_group = sorted((item for item in ranked if item[1] == group), key=lambda item: item[0])
        chosen += [trial for _, _, trial in of_group[:size]]
    return chosen


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kind", action="append", choices=KINDS, help="run only trials of this kind")
    parser.add_argument("--view", action="append", choices=VIEWS, help="show the checker only this part of the ports")
    parser.add_argument("--case", action="append", choices=CASES, help="run only these configurations")


def trials(options: argparse.Namespace) -> list[Trial]:
    every = [trial for kind in options.kind or KINDS for trial in trials_of(kind, options.seed)]
    return [each for each in every if each.view in (options.view or VIEWS) and each.case in (options.case or CASES)]


def choose(every: Sequence[Trial], options: argparse.Namespace) -> list[Trial]:
    found = [each for each in every if options.only in str(each)]
    return sampled(found, options.sample, options.seed) if options.sample else found


def failures(trial: Trial, answer: Answer) -> list[str]:
    return [measure.title for measure in MEASURES if measure.mark(trial, answer) is False]


def line_of(trial: Trial, answer: Answer) -> str:
    if trial.kind == "draft" and "draft" in answer:
        draft = answer["draft"]
        missed = [bug.id for bug in trial.bugs if bug.id not in draft["named"]]
        return f"{trial}: missed {missed}, lines {draft['lines']}, false {draft['false']}"
    wrong = failures(trial, answer)
    false = f" (false: {', '.join(falsehoods(trial.bugs, answer))})" if not answer["error"] else ""
    return f"not {', not '.join(wrong)}: {trial} → {says(answer)}{false}" if wrong else ""
