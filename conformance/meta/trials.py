"""What the checker is tried on, and what a right answer is: the measures of the checker, as data.

Each trial is one port, one configuration, and one way to look at it (with taps, or by its logits alone). The port is
known to be right or wrong; whether the answer is right is judged here, and by nothing that the checker knows.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meta.plain_port import PLAIN, Slip, Style, build_port
from meta.slips import acting, placed_at, probes_for, slips, styles, uncatalogued
from transparity.config import TransformerConfig
from transparity.presets import PRESETS, preset
from transparity.taps import tap_shapes
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.ports.check import check

Build = Callable[..., Callable[..., dict[str, np.ndarray]]]
"""`build(config, parameters)` of a port."""

FURTHER = {
    "batch-norm": dataclasses.replace(preset("notes-attention"), norm="batch").resized(),
    "weak-mask": dataclasses.replace(
        preset("translation"), mask_value=-3.0, target_mask="causal-and-padding"
    ).resized(),
    "lone-encoder": dataclasses.replace(
        preset("translation"), architecture="encoder", target_vocab_size=None, final_norm=True, mask_order="after-scale"
    ).resized(),
}
"""Configurations for what no preset has: batch statistics, a mask whose order matters, an encoder alone."""

CASES: dict[str, TransformerConfig] = {name: preset(name).resized() for name in PRESETS} | FURTHER

PAIRS = 60


@dataclass(frozen=True)
class Trial:
    """One port to be checked, and how."""

    measure: str
    case: str
    slips: tuple[Slip, ...] = ()
    style: Style = PLAIN
    logits_only: bool = False

    def __str__(self) -> str:
        made = " and ".join(map(str, self.slips)) or str(self.style)
        return f"{self.case}, {'logits' if self.logits_only else 'taps'}: {made}"


@dataclass(frozen=True)
class Answer:
    """What the checker said: `Report.as_dict`, or how it fell over."""

    trial: Trial
    report: dict[str, Any]
    seconds: float
    crash: str = ""

    @property
    def verdict(self) -> str:
        return str(self.report.get("verdict", "crashed"))

    @property
    def faults(self) -> list[dict[str, Any]]:
        return list(self.report.get("faults", ()))

    @property
    def first_cause(self) -> str:
        """The mistake named first at the first fault; empty: unexplained."""
        return named(self.faults[0]) if self.faults else ""

    def __str__(self) -> str:
        faults = [f"{fault['where']}: {named(fault) or 'unexplained'}" for fault in self.faults]
        ties = dict.fromkeys(other for fault in self.faults for other in fault["indistinguishable"])
        tied = f" (or {', '.join(ties)})" if ties else ""
        return self.crash or f"{self.verdict}; {'; '.join(faults[:4])}{' …' * (len(faults) > 4)}{tied}"


def named(fault: dict[str, Any]) -> str:
    """The mistake that a fault is first put down to."""
    return str(fault["causes"][0]["mistake"]) if fault["causes"] else ""


def ask(trial: Trial) -> Answer:
    """Check the port of `trial`. An exception is an answer too: a wrong one."""
    declared = "bfloat16" if trial.style.kind == "bfloat16" else "float32"
    port = build_port(trial.slips, trial.style)
    which: dict[str, Any] = {"preset": trial.case} if trial.case in PRESETS else {"config": CASES[trial.case]}
    began = time.perf_counter()
    try:
        with np.errstate(all="ignore"):
            report = check(port, dtype=declared, logits_only=trial.logits_only, **which).as_dict()
        return Answer(trial, report, time.perf_counter() - began)
    except Exception:  # noqa: BLE001 - it is counted, whatever it is
        return Answer(trial, {}, time.perf_counter() - began, traceback.format_exc().strip().splitlines()[-1])


def is_detected(answer: Answer) -> bool:
    """Said to be wrong; of rounding alone, said to be that, which is no mistake."""
    if [slip.id for slip in answer.trial.slips] == ["low-precision"]:
        return any(named(fault) == "low-precision" for fault in answer.faults)
    return answer.verdict == "diverges"


def is_placed(answer: Answer) -> bool:
    """Every fault stands where some mistake of the trial is made, and every mistake has its fault."""
    config, made = CASES[answer.trial.case], answer.trial.slips
    where = [fault["where"] for fault in answer.faults]
    return all(any(placed_at(slip, config, tap) for slip in made) for tap in where) and all(
        any(placed_at(slip, config, tap) for tap in where) for slip in made
    )


def is_named(answer: Answer) -> bool:
    """The cause named first is the mistake, or one that nothing can tell from it."""
    (slip,) = answer.trial.slips
    return bool(answer.first_cause) and (answer.first_cause == slip.id or _tied(answer, slip))


def is_unexplained(answer: Answer) -> bool:
    """Found, but called by no name."""
    return is_detected(answer) and not any(fault["causes"] for fault in answer.faults)


def both_named(answer: Answer) -> bool:
    """Every mistake is named at a place of its own."""
    config = CASES[answer.trial.case]
    return is_placed(answer) and all(
        any(
            placed_at(slip, config, fault["where"])
            and (named(fault) == slip.id or (named(fault) and _tied(answer, slip)))
            for fault in answer.faults
        )
        for slip in answer.trial.slips
    )


def one_named(answer: Answer) -> bool:
    """One mistake is named; the other is too, or is said to remain."""
    causes = [cause for fault in answer.faults for cause in fault["causes"][:1]]
    ids = {slip.id for slip in answer.trial.slips}
    right = {cause["mistake"] for cause in causes} & ids
    left = any(not fault["causes"] or fault["causes"][0]["residual"] > fault["budget"] for fault in answer.faults)
    said = left or any("remain" in note for note in answer.report.get("notes", ()))
    return right == ids or (bool(right) and said)


def agrees(answer: Answer) -> bool:
    return answer.verdict == "agrees"


def _tied(answer: Answer, slip: Slip) -> bool:
    return any(other.startswith(slip.id) for fault in answer.faults for other in fault["indistinguishable"])


@dataclass(frozen=True)
class Measure:
    """A share of right answers that the checker has to reach."""

    says: str
    trials: str
    """The `Trial.measure` of those that count."""
    logits_only: bool | None
    right: Callable[[Answer], bool]
    target: float

    def counts(self, answer: Answer) -> bool:
        wanted = self.logits_only
        return answer.trial.measure == self.trials and wanted in (None, answer.trial.logits_only)


MEASURES = (
    Measure("detected, with taps", "slip", False, is_detected, 1.0),
    Measure("detected, by logits alone", "slip", True, is_detected, 1.0),
    Measure("placed, with taps", "slip", False, is_placed, 0.98),
    Measure("named first, with taps", "slip", False, is_named, 0.98),
    Measure("named first, by logits alone", "slip", True, is_named, 0.92),
    Measure("two mistakes: both placed and named, with taps", "pair", False, both_named, 0.95),
    Measure("two mistakes: one named, the other said to remain, by logits", "pair", True, one_named, 0.90),
    Measure("no false alarm", "style", None, agrees, 1.0),
    Measure("no false cause: found", "uncatalogued", None, is_detected, 1.0),
    Measure("no false cause: placed, with taps", "uncatalogued", False, is_placed, 1.0),
    Measure("no false cause: unexplained", "uncatalogued", None, is_unexplained, 1.0),
)


@functools.cache
def all_trials(cases: tuple[str, ...] = tuple(CASES), seed: int = 0) -> tuple[Trial, ...]:
    """Everything there is to try."""
    trials: list[Trial] = []
    for case in cases:
        config = CASES[case]
        for alone in (False, True):
            trials += [Trial("slip", case, (slip,), logits_only=alone) for slip in acting(config)]
            trials += [Trial("uncatalogued", case, (slip,), logits_only=alone) for slip in uncatalogued(config)]
        trials += [Trial("style", case, style=style) for style in styles(config)]
    pairs = itertools.islice(_pairs(cases, seed), PAIRS)
    trials += [Trial("pair", case, pair, logits_only=alone) for case, pair in pairs for alone in (False, True)]
    return tuple(trials)


def sampled(trials: Sequence[Trial], size: int, seed: int = 0) -> list[Trial]:
    """At most `size` of each measure and way to look, every mistake and every configuration as often as the next."""
    shuffled = random.Random(seed).sample(trials, len(trials))
    seen: dict[object, int] = {}
    ranked = []
    for trial in shuffled:
        made = [slip.variant if trial.measure == "uncatalogued" else slip.id for slip in trial.slips[:1]] + [
            trial.style.kind
        ]
        group = (trial.measure, trial.logits_only)
        keys = (" ".join(made), trial.case)
        rank = tuple(seen.get((*group, key), 0) for key in keys)
        seen |= {(*group, key): count + 1 for key, count in zip(keys, rank, strict=True)}
        ranked.append((rank, group, trial))
    chosen: list[Trial] = []
    for group in sorted({group for _, group, _ in ranked}):
        of_group = sorted((item for item in ranked if item[1] == group), key=lambda item: item[0])
        chosen += [trial for _, _, trial in of_group[:size]]
    return chosen


def _pairs(cases: Sequence[str], seed: int) -> Iterator[tuple[str, tuple[Slip, Slip]]]:
    """Two mistakes at different places, each of which shows beside the other, drawn at random without end."""
    draw = random.Random(seed)
    while True:
        case = draw.choice(cases)
        config = CASES[case]
        one, other = draw.sample(
            [slip for slip in acting(config) if slip.id not in ("low-precision", "dropout-active")], 2
        )
        if one.id != other.id and not taps_of(one, config) & taps_of(other, config) and _both_act(config, one, other):
            yield case, (one, other)


@functools.cache
def taps_of(slip: Slip, config: TransformerConfig) -> frozenset[str]:
    """Every tap of `config` at which `slip` may show."""
    names = tap_shapes(config, 1, **dict.fromkeys(config.input_names, 1))
    return frozenset(name for name in names if placed_at(slip, config, name))


def _both_act(config: TransformerConfig, one: Slip, other: Slip) -> bool:
    ports = [build_port(made, dtype="float64") for made in ((one, other), one, other)]
    return neither_hides(probes_for(config).values(), *ports)


def neither_hides(probes: Iterable[Probe], both: Build, *single: Build) -> bool:
    """Whether none of the mistakes of `single` ports hides another from the logits of the port that makes `both`."""
    seen = set()
    for probe in probes:
        with np.errstate(all="ignore"):
            together, *alone = (
                build(probe.config, probe.parameters)(**probe.inputs)["logits"] for build in (both, *single)
            )
        budget = probe.oracle.budget("logits", "float32")
        seen |= {index for index, logits in enumerate(alone) if (np.abs(together - logits) > budget).any()}
    return len(seen) == len(single)


def not_acting() -> set[str]:
    """Mistakes that act nowhere: the measure would be silent about them."""
    made = {slip.id for config in CASES.values() for slip in slips(config)}
    return made - {slip.id for config in CASES.values() for slip in acting(config)}
