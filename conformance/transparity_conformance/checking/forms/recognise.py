"""The form of a port's answers, recognised by comparing them with the reference's own in every form."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from transparity_conformance.checking.forms.table import LOGITS, PARTS, VALUES, OtherForm, Part, Value, error
from transparity_conformance.diagnosis.judge import Actual
from transparity_conformance.oracle.budgets import RULES, epsilon
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.oracle.undetermined import undetermined_positions
from transparity_conformance.report.comparison import share
from transparity_conformance.report.formatting import format_share
from transparity_conformance.report.report import Cause, Divergence, Report


@dataclass(frozen=True)
class Form:
    """The form of a port's answers, and how far they are from the reference's in that form."""

    part: Part
    value: Value
    error: float
    budget: float
    """On the probe where the share is largest."""
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    """The port's, and the one expected, on the first probe."""

    @property
    def agrees(self) -> bool:
        return share(self.error, self.budget) <= 1

    @property
    def has_all_logits(self) -> bool:
        """Return whether the logits can be read from it."""
        return self.value is LOGITS and not self.part.covers

    def logits(self, answer: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """The logits of `shape` in an answer that has them all; the answer itself where it is of another form."""
        try:
            return self.part.read(answer, shape)
        except (OtherForm, ValueError):
            return answer

    @property
    def says(self) -> str:
        """The form, and what to return, as a clause."""
        theirs, ours = self.shapes
        found = self.part.says.format(self.value.noun)
        advice = ", ".join(filter(None, [self.part.advice.format(ours[-1]), self.value.advice]))
        text = f"{found} are returned, {theirs}: return the logits of every position, {ours}"
        text += f", {advice}" if advice else ""
        if self.has_all_logits:
            return text
        part, verb = self.part.covers or f"the {self.value.noun}", "agrees" if self.part.covers else "agree"
        how = verb if self.agrees else f"{verb.replace('agree', 'differ')}, by {format_share(self.share)} the budget"
        return f"{text}; {part} {how}" + (", and nothing was compared elsewhere" if self.part.covers else "")

    @property
    def share(self) -> float:
        return share(self.error, self.budget)


def form_of(probes: Mapping[str, Probe], actual: Actual, dtype: str) -> Form | None:
    """The form of a port's answers, if they have another shape than logits; None if no form has their shapes.

    Of several, one whose numbers agree, the logits themselves, or the nearest. Numbers that are wrong are told by their
    shape alone, if they are logits in some arrangement, or others in the usual one.
    """
    answers = {key: taps["logits"] for key, taps in actual.items()}
    first = next(iter(answers))
    expected = probes[first].oracle.expected["logits"]
    if expected.ndim != 3 or answers[first].shape == expected.shape:
        return None
    fitting = _fitting({key: probes[key] for key in answers}, answers, dtype)
    forms = [form for form in fitting if form.agrees or form.value is LOGITS or form.part is PARTS[0]]
    return min(forms, key=lambda form: (not form.agrees, form.value is not LOGITS, form.share), default=None)


def _fitting(probes: Mapping[str, Probe], answers: Mapping[str, np.ndarray], dtype: str) -> Iterator[Form]:
    """Every form that has the shapes of all answers."""
    first = next(iter(probes))
    shapes = answers[first].shape, probes[first].oracle.expected["logits"].shape
    for value in VALUES if probes[first].config.head == "logits" else (LOGITS,):
        for part in PARTS:
            try:
                found = [_compared(part, value, probes[key], answers[key], dtype) for key in answers]
            except (OtherForm, ValueError):
                continue
            largest, budget = max(found, key=lambda each: share(*each))
            if value is LOGITS or math.isfinite(largest):
                yield Form(part, value, largest, budget, shapes)


def _compared(part: Part, value: Value, probe: Probe, answer: np.ndarray, dtype: str) -> tuple[float, float]:
    """The largest error where no convention decides, and its budget; raises `OtherForm` for another shape."""
    oracle, stack = probe.oracle, probe.config.stacks[-1]
    layers = probe.config.num_decoder_layers if stack == "decoder" else probe.config.num_encoder_layers
    tap = value.tap.format(stack=stack, layer=f"{stack}.layers.{layers - 1}")
    if tap not in oracle.expected:
        raise OtherForm
    ours = oracle.expected[tap]
    with np.errstate(all="ignore"):
        apart = error(value, part.read(answer, ours.shape), part.part(ours))
    free = part.part(undetermined_positions(probe, dtype).get(tap, np.zeros(ours.shape, bool)))
    apart = np.where(free if free.shape == apart.shape else free.any(-1), 0.0, apart)
    largest = float(np.nan_to_num(apart, nan=math.inf, posinf=math.inf).max(initial=0.0))
    own = RULES[dtype].budget(0.0, epsilon(dtype), float(np.abs(value.of(ours)).max(initial=0.0)))
    return largest, value.slope * oracle.budget(tap, dtype) + own


def with_form(report: Report, form: Form) -> Report:
    """The report with the form as its first divergence."""
    is_all = form.has_all_logits and report.verdict == "agrees"
    cause = Cause("answer-form", form.says, None, form.error, float(is_all))
    fault = Divergence("logits", math.inf, form.budget, (cause,), is_misshapen=True)
    theirs, ours = form.shapes
    return dataclasses.replace(
        report,
        verdict="diverges",
        first_divergence="logits",
        faults=(fault, *report.faults),
        notes=(*report.notes, f"logits has the shape {theirs}, expected {ours}"),
    )
