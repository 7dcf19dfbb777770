"""Charts of the error of the reference with a fault: by activation, position, head and length."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from docs.site.figures import heat_map

from transparity_conformance.catalogue.fault import Hypothesis
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.report.comparison import gap, largest

PRECISION = "float32"

LEAST, MOST = -8, 2
"""The range of relative errors in charts, as powers of ten."""


@dataclass(frozen=True)
class Run:
    """A run of the reference with a fault."""

    probe: Probe
    hypothesis: Hypothesis
    wrong: Mapping[str, np.ndarray]

    def error(self, tap: str) -> float:
        """Return the largest error in an activation; infinite if the fault makes NaN or changes the shape."""
        return gap(self.wrong[tap], self.probe.oracle.expected[tap])

    def scale(self, tap: str) -> float:
        return largest(self.probe.oracle.expected[tap]) or 1.0

    def share(self, tap: str) -> float:
        return self.error(tap) / self.probe.oracle.budget(tap, PRECISION)


def by_tap(run: Run) -> str:
    """Return a bar chart of the errors of all activations, as SVG, on a logarithmic scale."""
    taps = [tap for tap in run.probe.oracle.expected if tap in run.wrong]
    wrong = [tap for tap in taps if run.share(tap) > 1]
    first = f"; the first is {wrong[0]}" if wrong else ""
    label = f"Error by activation: {len(wrong)} of {len(taps)} exceed the tolerance{first}"
    return _bars([(tap, run, tap) for tap in taps], label)


def by_length(runs: Sequence[Run]) -> str:
    """Return a bar chart of the result's error by length, as SVG, on the scale of `by_tap`."""
    lengths = [max(value.shape[1] for value in run.probe.inputs.values()) for run in runs]
    wrong = [str(length) for length, run in zip(lengths, runs, strict=True) if run.share("logits") > 1]
    above = ", ".join(wrong) or "none"
    span = f"{lengths[0]} to {lengths[-1]} tokens"
    label = f"Error by length, from {span}; lengths whose error exceeds the tolerance: {above}"
    return _bars([(f"length {length}", run, "logits") for length, run in zip(lengths, runs, strict=True)], label)


def _bars(named: Sequence[tuple[str, Run, str]], label: str) -> str:
    height, width, left = 120, 9, 34
    parts = []
    for power in range(LEAST, MOST + 1, 2):
        y = _height(10.0**power, height)
        parts.append(
            f'<path class="grid" d="M{left} {y:.0f}h{width * len(named)}"/><text y="{y + 3:.0f}">1e{power}</text>'
        )
    for index, (name, run, tap) in enumerate(named):
        x, scale = left + index * width, run.scale(tap)
        error, budget = run.error(tap) / scale, run.probe.oracle.budget(tap, PRECISION) / scale
        top, mark = _height(error, height), _height(budget, height)
        kind = "over" if error > budget else "within"
        text = f"{name}: error {error:.0e}, budget {budget:.0e}"
        parts.append(
            f'<g><title>{escape(text)}</title><rect class="{kind}" x="{x}" y="{top:.0f}" width="{width - 2}" '
            f'height="{height - top:.0f}"/><path class="budget" d="M{x} {mark:.0f}h{width - 2}"/></g>'
        )
    box = f'viewBox="0 -8 {left + width * len(named)} {height + 12}"'
    size = f'style="width:{(left + width * len(named)) / 12:.0f}em"'
    drawn = f'<svg class="bars" role="img" aria-label="{escape(label)}" {box} {size}>{"".join(parts)}</svg>'
    return f"{drawn}<p>{escape(label)}.</p>"


def _height(value: float, height: int) -> float:
    power = MOST if math.isinf(value) else math.log10(value) if value > 0 else LEAST
    return height * (MOST - min(max(power, LEAST), MOST)) / (MOST - LEAST)


def by_position(run: Run) -> str:
    """Return a heat map of the error of the result by row and position; empty if the result has no positions."""
    right, wrong = run.probe.oracle.expected["logits"], run.wrong["logits"]
    if right.ndim < 3 or right.shape != wrong.shape:
        return ""
    return _map(np.abs(wrong - right).max(axis=-1), "Error of the result by row and position")


def by_head(run: Run) -> tuple[str, str] | None:
    """Return the first wrong activation with several heads, and a heat map of its error by head and position."""
    for tap, right in run.probe.oracle.expected.items():
        wrong = run.wrong.get(tap)
        if right.ndim == 4 and right.shape[1] > 1 and wrong is not None and run.share(tap) > 1:
            if right.shape != wrong.shape:
                return None
            return tap, _map(np.abs(wrong - right).max(axis=(0, 3)), f"Error at {tap} by head and position")
    return None


def _map(error: np.ndarray, alternative: str) -> str:
    """Return a heat map of errors; infinite errors have the shade of the largest finite error."""
    finite = error[np.isfinite(error)].max(initial=0.0)
    return heat_map(np.where(np.isfinite(error), error, finite), alternative)
