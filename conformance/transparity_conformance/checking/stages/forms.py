"""Results that are not logits: recognize their form, and convert forms that contain all logits.

A form combines a kind of numbers, such as probabilities (`VALUES`), with an arrangement of axes (`PARTS`).
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.checking.calls import Ran
from transparity_conformance.diagnosis.judge import Actual
from transparity_conformance.listening.operation import Operation
from transparity_conformance.oracle.budgets import RULES, epsilon
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.oracle.undetermined import undetermined_positions
from transparity_conformance.report.comparison import Compared, as_numbers, share
from transparity_conformance.report.formatting import format_share
from transparity_conformance.running.inputs import shapes_of, taps_in
from transparity_conformance.running.process.isolation import RemotePort
from transparity_numpy.arithmetic.functional import log_softmax, softmax

Arrange = Callable[[np.ndarray], np.ndarray]
Read = Callable[[np.ndarray, tuple[int, ...]], np.ndarray]


class OtherForm(Exception):  # noqa: N818 - not an error
    """Raised if the shape of a result excludes a form."""


@dataclass(frozen=True)
class Part:
    """An arrangement of a result's axes, such as "the vocabulary before the positions"."""

    says: str
    """The description, in which `{}` stands for the kind of numbers."""
    advice: str = ""
    """Advice on how to return logits, in which `{}` stands for the size of the vocabulary."""
    covers: str = ""
    """The part of the logits that the result contains; empty if it contains all logits."""
    part: Arrange = lambda ours: ours
    """A function that returns the part of a reference array which the port's result contains."""
    read: Read = lambda theirs, shape: theirs
    """A function that arranges the port's result like the reference's array, given this array's shape. The function
    raises `OtherForm` or `ValueError` if the port's result has no such arrangement."""


@dataclass(frozen=True)
class Value:
    """A kind of numbers in a result, such as probabilities."""

    noun: str
    advice: str = ""
    of: Arrange = lambda ours: ours
    """A function that computes numbers of this kind from the reference's value at `tap`."""
    tap: str = "logits"
    slope: float = 1.0
    """The largest change of a number of this kind if each logit changes by at most 1."""
    are_ids: bool = False


def error(value: Value, theirs: np.ndarray, ours: np.ndarray) -> np.ndarray:
    """Return the elementwise error. `ours` is the reference's value at `value.tap` in the same arrangement."""
    if value.are_ids:
        return _below_the_largest(theirs, ours)
    if theirs.shape != ours.shape:
        raise OtherForm
    return np.abs(theirs - value.of(ours))


def _below_the_largest(theirs: np.ndarray, ours: np.ndarray) -> np.ndarray:
    """For each returned token, return the reference's largest logit at the position minus the reference's logit of the
    token."""
    if theirs.shape != ours.shape[:-1]:
        raise OtherForm
    ids = theirs.astype(np.int64)
    is_token = (ids == theirs) & (ids >= 0) & (ids < ours.shape[-1])
    chosen = np.take_along_axis(ours, np.where(is_token, ids, 0)[..., None], -1)[..., 0]
    return np.where(is_token, ours.max(-1) - chosen, np.inf)


def _unflattened(theirs: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if theirs.ndim != 2:
        raise OtherForm
    return theirs.reshape(*shape[:2], -1)


PARTS = (
    Part("{}"),
    Part(
        "{} of a padded vocabulary", "cut to the first {} columns", read=lambda theirs, shape: theirs[..., : shape[-1]]
    ),
    Part("{} with the vocabulary before the positions", "transposed", read=lambda theirs, shape: theirs.swapaxes(1, 2)),
    Part("{} with the positions before the rows", "transposed", read=lambda theirs, shape: theirs.swapaxes(0, 1)),
    *(
        Part(
            "{} with an additional axis",
            "without this axis",
            read=lambda theirs, shape, axis=axis: np.squeeze(theirs, axis),  # type: ignore[misc]
        )
        for axis in range(4)
    ),
    Part("{} with rows and positions in one axis", "reshaped", read=_unflattened),
    Part("{} of only the last position", "", "the last position", lambda ours: ours[:, -1]),
    Part("{} of only the last position", "", "the last position", lambda ours: ours[:, -1:]),
    Part("{} of one row, without a batch dimension", "", "the first row", lambda ours: ours[0]),
    Part("{} of one position, the last of the first row", "", "this position", lambda ours: ours[0, -1]),
)

LOGITS = Value("logits")

VALUES = (
    LOGITS,
    Value("log-probabilities", "without log_softmax", log_softmax, slope=2),
    Value("probabilities", "without softmax", softmax, slope=2),
    Value("hidden states", "through the head", tap="{stack}.output"),
    Value("hidden states before the final norm", "through the norm and the head", tap="{layer}.output"),
    Value("token ids", "without argmax", slope=2, are_ids=True),
)


@dataclass(frozen=True)
class AnswerForm(Compared):
    """The form of a port's results, and their largest error in this form."""

    part: Part
    value: Value
    error: float
    budget: float
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    """The shape of the port's first result, and the expected shape."""

    @property
    def has_all_logits(self) -> bool:
        return self.value is LOGITS and not self.part.covers

    def logits(self, answer: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        try:
            return self.part.read(answer, shape)
        except (OtherForm, ValueError, IndexError):
            return answer

    @property
    def says(self) -> str:
        """A clause that names the form, and tells the user what the port should return."""
        theirs, ours = self.shapes
        found = self.part.says.format(self.value.noun)
        advice = ", ".join(filter(None, [self.part.advice.format(ours[-1]), self.value.advice]))
        text = f"the port returns {found}, {theirs}: return the logits of every position, {ours}"
        text += f", {advice}" if advice else ""
        if self.has_all_logits:
            return text
        part, verb = self.part.covers or f"the {self.value.noun}", "agrees" if self.part.covers else "agree"
        if self.is_wrong:
            verb = f"{verb.replace('agree', 'differ')}, by {format_share(self.share)} the budget"
        return f"{text}; {part} {verb}" + (", and nothing else was compared" if self.part.covers else "")


def form_of(probes: Mapping[str, Probe], actual: Actual, dtype: str) -> AnswerForm | None:
    """Return the form of a port's results. Return None if the results have the shape of the logits, or if the model has
    one output per row.

    Prefer a form in which the results are right, then a form of logits, then the form with the smallest error. If the
    results are wrong in every form, return only a form of logits, or a form with the axes of logits.
    """
    answers = {key: taps["logits"] for key, taps in actual.items()}
    first = next(iter(answers))
    expected = probes[first].oracle.expected["logits"]
    if expected.ndim != 3 or answers[first].shape == expected.shape:
        return None
    fitting = _fitting({key: probes[key] for key in answers}, answers, dtype)
    forms = [form for form in fitting if not form.is_wrong or form.value is LOGITS or form.part is PARTS[0]]
    return min(forms, key=lambda form: (form.is_wrong, form.value is not LOGITS, form.share), default=None)


def _fitting(probes: Mapping[str, Probe], answers: Mapping[str, np.ndarray], dtype: str) -> Iterator[AnswerForm]:
    first = next(iter(probes))
    shapes = answers[first].shape, probes[first].oracle.expected["logits"].shape
    for value in VALUES if probes[first].config.head == "logits" else (LOGITS,):
        for part in PARTS:
            try:
                found = [_compared(part, value, probes[key], answers[key], dtype) for key in answers]
            except (OtherForm, ValueError, IndexError):
                continue
            largest, budget = max(found, key=lambda each: share(*each))
            if value is LOGITS or math.isfinite(largest):
                yield AnswerForm(part, value, largest, budget, shapes)


def _compared(part: Part, value: Value, probe: Probe, answer: np.ndarray, dtype: str) -> tuple[float, float]:
    oracle, stack = probe.oracle, probe.config.stacks[-1]
    layers = probe.config.num_decoder_layers if stack == "decoder" else probe.config.num_encoder_layers
    tap = value.tap.format(stack=stack, layer=f"{stack}.layers.{layers - 1}")
    if tap not in oracle.expected:
        raise OtherForm
    ours = oracle.expected[tap]
    with np.errstate(all="ignore"):
        apart = error(value, part.read(answer, ours.shape), part.part(ours))
    undetermined = part.part(undetermined_positions(probe, dtype).get(tap, np.zeros(ours.shape, bool)))
    apart = np.where(undetermined if undetermined.shape == apart.shape else undetermined.any(-1), 0.0, apart)
    largest = float(np.nan_to_num(apart, nan=math.inf, posinf=math.inf).max(initial=0.0))
    own = RULES[dtype].budget(0.0, epsilon(dtype), float(np.abs(value.of(ours)).max(initial=0.0)))
    return largest, value.slope * oracle.budget(tap, dtype) + own


class _InForm:
    """A built port whose results are converted to logits. All other attributes are attributes of the original port."""

    def __init__(self, forward: Any, form: AnswerForm, config: TransformerConfig) -> None:
        self.forward, self.form, self.config = forward, form, config

    def __call__(self, **tokens: np.ndarray) -> Any:
        return self._read(self.forward(**tokens), tokens)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.forward, name)

    def _read(self, returned: Any, tokens: Mapping[str, np.ndarray]) -> dict[str, Any]:
        shape, taps = shapes_of(self.config, tokens)["logits"], taps_in(returned, self.config)
        return {**taps, "logits": self.form.logits(as_numbers(taps["logits"]), shape)}


class _RemoteInForm(_InForm, RemotePort):
    """A built port in a separate process whose results are converted to logits."""

    def listened(
        self, method: str = "", /, *args: Any, whole_numbers: bool = False, **named: Any
    ) -> tuple[Any, list[Operation]]:
        returned, operations = self.forward.listened(method, *args, whole_numbers=whole_numbers, **named)
        return returned if method else self._read(returned, named), operations


def in_form(ran: Ran, form: AnswerForm, probes: Mapping[str, Probe]) -> Ran:
    """Convert the results of a port to logits, and wrap the port so that later results are converted, too."""
    configs = {id(probe.parameters): probe.config for probe in probes.values()}
    forwards: dict[int, Callable[..., Any]] = {
        key: (_RemoteInForm if isinstance(forward, RemotePort) else _InForm)(forward, form, configs[key])
        for key, forward in ran.forwards.items()
        if key in configs
    }
    actual: dict[str, Mapping[str, np.ndarray]] = {
        key: {**taps, "logits": form.logits(taps["logits"], probes[key].oracle.expected["logits"].shape)}
        for key, taps in ran.actual.items()
    }
    return dataclasses.replace(ran, actual=actual, forwards=forwards)
