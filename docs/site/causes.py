"""What a cause does to a small model: the reference runs with the fault in it, and its error is drawn."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape

import numpy as np
from docs.site.figures import heat_map

from transparity_conformance.diagnosis.fault import Hypothesis
from transparity_conformance.diagnosis.faults import hypotheses, whole_model
from transparity_conformance.diagnosis.walk import Impossible, walk
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.probes import Probe, probes_of

PRECISION = "float32"

PROBES = ("mixed", "longest", "tiny", "hot", "one")
"""Inputs and weights on which a fault is tried."""

TRIED = 8
"""Ways to make a fault that are tried until one shows."""

DRAWN = """A run of the reference, as a small {case}, with the fault in it: {fault} (at {where}). Each bar is the
largest error at a tap beside the tap's largest element, with the errors before it; the line across it is the most that
rounding in {precision} explains."""

LEAST, MOST = -8, 2
"""Powers of ten between which relative errors are drawn."""


@dataclass(frozen=True)
class Run:
    """The reference with a fault, beside the reference."""

    probe: Probe
    hypothesis: Hypothesis
    wrong: Mapping[str, np.ndarray]

    def error(self, tap: str) -> float:
        """The largest difference at a tap; infinite where the fault makes NaN."""
        right, wrong = self.probe.oracle.expected[tap], self.wrong[tap]
        if right.shape != wrong.shape:
            return math.inf
        return float(np.abs(np.where(np.isfinite(wrong), wrong, np.inf) - right).max(initial=0.0))

    def scale(self, tap: str) -> float:
        """The largest element of the right value at a tap."""
        return float(np.abs(self.probe.oracle.expected[tap]).max(initial=0.0)) or 1.0

    def share(self, tap: str) -> float:
        """The error in budgets of float32."""
        return self.error(tap) / self.probe.oracle.budget(tap, PRECISION)


def shown_probes() -> dict[str, dict[str, Probe]]:
    """Return the probes on which faults are shown, by case and name, in the order in which they are tried."""
    return {case: {name: probes_of(config, case)[name] for name in PROBES} for case, config in CASES.items()}


def runs() -> dict[str, list[Run]]:
    """Return for each cause of the forward pass that shows in a result its run on every probe, by its id.

    The run that shows it is the first of them: the first way to make the fault that shows, on the first probe where any
    does.
    """
    probes = shown_probes()
    candidates: defaultdict[str, list[tuple[str, Hypothesis]]] = defaultdict(list)
    for case, hypothesis in _ways(probes):
        candidates[hypothesis.fault.id].append((case, hypothesis))
    found = {}
    for name, ways in candidates.items():
        tried = ((case, way, probes[case][each]) for each in PROBES for case, way in _spread(ways))
        shows = (run for _, way, probe in tried for run in _run(probe, way) if run.share("logits") > 1)
        if first := next(shows, None):
            others = [probe for probe in probes[first.probe.case].values() if probe is not first.probe]
            found[name] = [first, *(run for probe in others for run in _run(probe, first.hypothesis))]
    return found


def _ways(probes: Mapping[str, Mapping[str, Probe]]) -> Iterator[tuple[str, Hypothesis]]:
    """Yield every fault at every group of taps, with the name of the model that can have it."""
    for case, by_name in probes.items():
        probe = by_name[PROBES[0]]
        found = [*hypotheses(probe.config, list(probe.oracle.expected)), *whole_model(probe.config)]
        yield from ((case, hypothesis) for hypothesis in found)


def _spread(ways: list[tuple[str, Hypothesis]]) -> list[tuple[str, Hypothesis]]:
    """Return some of many ways: one of each variant, at as few taps as can be."""
    first: dict[str, tuple[str, Hypothesis]] = {}
    for way in sorted(ways, key=lambda way: len(way[1].sites)):
        first.setdefault(way[1].fault.variant, way)
    return list(first.values())[:TRIED]


def _run(probe: Probe, hypothesis: Hypothesis) -> Iterator[Run]:
    """Yield the run, if the fault can be made in this model."""
    try:
        run = Run(probe, hypothesis, walk(probe, {}, [hypothesis]))
    except Impossible:
        return
    if "logits" in run.wrong:
        yield run


def section(shown: list[Run]) -> str:
    """Return what a fault does, as Markdown with HTML: its error by tap, at the result, and on other inputs."""
    run = shown[0]
    where = ", ".join(f"`{site}`" for site in run.hypothesis.sites[:3]) or "the whole model"
    where += " …" if len(run.hypothesis.sites) > 3 else ""
    told = DRAWN.format(case=run.probe.case, fault=run.hypothesis.fault.description, where=where, precision=PRECISION)
    parts = ["## What it does to a small model", told, f'<div class="plot">{by_tap(run)}</div>']
    if positions := by_position(run):
        parts += ["The error of the result by row (down) and position (across); the darker, the larger:", positions]
    rows = [f"| {each.probe.purpose} | {_counted(each.share('logits'))} |" for each in shown]
    parts.append("\n".join(["| inputs | error of the result, in budgets |", "|---|--:|", *rows]))
    return "\n\n".join(parts) + "\n"


def _counted(share: float) -> str:
    if not math.isfinite(share):
        return "not finite"
    return f"{share:,.0f}" if share > 1 else f"{share:.2f}: it does not show"


def by_tap(run: Run) -> str:
    """Return a bar for each tap as SVG, on a logarithmic scale."""
    taps = [tap for tap in run.probe.oracle.expected if tap in run.wrong]
    height, width, left = 120, 9, 34
    parts = []
    for power in range(LEAST, MOST + 1, 2):
        y = _height(10.0**power, height)
        parts.append(
            f'<path class="grid" d="M{left} {y:.0f}h{width * len(taps)}"/><text y="{y + 3:.0f}">1e{power}</text>'
        )
    for index, tap in enumerate(taps):
        x, scale = left + index * width, run.scale(tap)
        error, budget = run.error(tap) / scale, run.probe.oracle.budget(tap, PRECISION) / scale
        top, mark = _height(error, height), _height(budget, height)
        kind = "over" if error > budget else "within"
        text = f"{tap}: error {error:.0e}, budget {budget:.0e}"
        parts.append(
            f'<g><title>{escape(text)}</title><rect class="{kind}" x="{x}" y="{top:.0f}" width="{width - 2}" '
            f'height="{height - top:.0f}"/><path class="budget" d="M{x} {mark:.0f}h{width - 2}"/></g>'
        )
    wrong = [tap for tap in taps if run.share(tap) > 1]
    label = f"Error by tap: {len(wrong)} of {len(taps)} are over budget, the first is {wrong[0] if wrong else 'none'}"
    box = f'viewBox="0 -8 {left + width * len(taps)} {height + 12}"'
    size = f'style="width:{(left + width * len(taps)) / 12:.0f}em"'
    drawn = f'<svg class="bars" role="img" aria-label="{escape(label)}" {box} {size}>{"".join(parts)}</svg>'
    return f"{drawn}<p>{escape(label)}.</p>"


def _height(value: float, height: int) -> float:
    """Return the place of a number on the scale, from the top."""
    power = MOST if math.isinf(value) else math.log10(value) if value > 0 else LEAST
    return height * (MOST - min(max(power, LEAST), MOST)) / (MOST - LEAST)


def by_position(run: Run) -> str:
    """Return the error of the result by row and position; nothing if the result has no positions."""
    right, wrong = run.probe.oracle.expected["logits"], run.wrong["logits"]
    if right.ndim < 3 or right.shape != wrong.shape:
        return ""
    error = np.nan_to_num(np.abs(wrong - right).max(axis=-1), nan=np.inf, posinf=np.inf)
    finite = error[np.isfinite(error)].max(initial=0.0)
    return heat_map(np.where(np.isfinite(error), error, finite), "Error of the result by row and position")
