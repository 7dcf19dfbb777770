"""Calls of a port at many sizes: one that agrees on every probe is called at many lengths, batches and widths.

A derived model that the port refuses, when it is built or when it is called with a single token, narrows the range that
is stated; one that it answers with a token and then fails on leaves the verdict open.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transparity_conformance.capabilities.stranger import PortError, PortProcessError
from transparity_conformance.diagnosis.judge import Progress
from transparity_conformance.diagnosis.probe_result import error_profile
from transparity_conformance.diagnosis.thresholds import REMEASURED_WITHIN
from transparity_conformance.oracle.probes import Probe, in_other_sizes, shortened
from transparity_conformance.oracle.reach.models import WITHOUT_LIMIT, ReachModel, ReachProbe
from transparity_conformance.report.comparison import difference, share
from transparity_conformance.running.process.running import Port, built, run

SECONDS = 10.0
"""Seconds of the port's own time, after which only the calls that tell most are made: 20 times what PyTorch needs for
all, so that a busy machine leaves none out; a port that compiles for every shape may need more."""


@dataclass(frozen=True)
class Comparison:
    """One call, compared."""

    probe: ReachProbe
    error: float
    budget: float
    profile: Mapping[str, Any]

    @property
    def is_wrong(self) -> bool:
        return share(self.error, self.budget) > 1


@dataclass
class Reached:
    """The calls that were compared, and those that were not, with the reasons."""

    compared: list[Comparison] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left_out: list[ReachProbe] = field(default_factory=list)
    seconds: float = 0.0
    is_history: bool = False
    """Whether the first wrong call is right for an object that was built for it alone."""
    forwards: dict[int, Callable[..., Any]] = field(default_factory=dict)
    """The built ports, by the identity of their parameters."""
    notes: list[str] = field(default_factory=list)
    """What is known of wrong calls besides their sizes."""

    @property
    def probes(self) -> list[ReachProbe]:
        """The calls that were compared."""
        return [comparison.probe for comparison in self.compared]

    @property
    def wrong(self) -> list[Comparison]:
        """The wrong calls, the shortest first."""
        wrong = [comparison for comparison in self.compared if comparison.is_wrong]
        return sorted(wrong, key=lambda each: (max(each.probe.lengths), each.probe.batch))


def reach(
    build: Port,
    forward: Callable[..., Any],
    models: Sequence[ReachModel],
    dtype: str,
    progress: Progress,
    reached: Reached,
) -> Reached:
    """Call a port on every probe of `models`; `forward` is the port that was built for the model itself."""
    calls = sum(len(model.calls) for model in models)
    for model in models:
        function: Callable[..., Any] | None = forward
        if not model.is_asked:
            function = build_model(build, model.probes[0], f"{model.name} model", reached, is_derived=True)
        if function is None:
            continue
        reached.forwards[id(model.parameters)] = function
        for number, probe in enumerate(model.probes):
            progress("calling the port at other sizes", len(reached.compared), calls)
            if reached.seconds > SECONDS and number >= WITHOUT_LIMIT:
                reached.left_out.append(probe)
                continue
            taps = call_model(function, probe, reached, not model.is_asked, logits_only=True)
            if taps is None:
                break
            reached.compared.append(compare(probe, taps["logits"], dtype))
        _bisect(function, model, reached, dtype)
    if reached.wrong:
        probe = reached.wrong[0].probe
        with contextlib.suppress(PortError):  # then it is wrong alone, too
            alone = run(built(build, probe), probe, logits_only=True)
            reached.is_history = not compare(probe, alone["logits"], dtype).is_wrong
    return reached


def _bisect(function: Callable[..., Any], model: ReachModel, reached: Reached, dtype: str) -> None:
    """Find the first wrong length of a model that is right up to some length and wrong beyond."""
    of_model = [each for each in reached.compared if each.probe.model is model]
    right = max((max(each.probe.lengths) for each in of_model if not each.is_wrong), default=0)
    wrong = min((max(each.probe.lengths) for each in of_model if each.is_wrong), default=0)
    sides = len(model.config.input_names)
    while 0 < right < wrong - 1:
        middle = (right + wrong) // 2
        probe = model.probe(1, (middle,) * sides)
        taps = call_model(function, probe, reached, not model.is_asked, logits_only=True)
        if taps is None:
            return
        reached.compared.append(compare(probe, taps["logits"], dtype))
        right, wrong = (right, middle) if reached.compared[-1].is_wrong else (middle, wrong)


def build_model(
    build: Port, probe: Probe, name: str, reached: Reached, *, is_derived: bool
) -> Callable[..., Any] | None:
    """Build a port; None, with a note, if it refuses a model of derived sizes."""
    try:
        return built(build, probe)
    except PortProcessError:
        raise
    except PortError as error:
        if not is_derived:
            raise
        reached.refused.append(f"{name}: {error}")
        return None


def call_model(
    function: Callable[..., Any], probe: Probe, reached: Reached, is_derived: bool, *, logits_only: bool
) -> Mapping[str, np.ndarray] | None:
    """Run a port on a probe; None, with a note, if it fails on a model of derived sizes.

    Code that is given its weights with every call can refuse them only then: at a single token, too.
    """
    began = time.monotonic()
    try:
        return run(function, probe, logits_only=logits_only)
    except PortProcessError:
        raise
    except PortError as error:
        if not is_derived:
            raise
        noted = reached.failed if _answers_a_token(function, probe) else reached.refused
        noted.append(f"probe {probe.name}: {error}")
        return None
    finally:
        reached.seconds += time.monotonic() - began


def _answers_a_token(function: Callable[..., Any], probe: Probe) -> bool:
    inputs = {name: value[:1] for name, value in shortened(probe.config, probe.inputs, 1).items()}
    try:
        run(function, dataclasses.replace(probe, inputs=inputs), logits_only=True)
    except PortProcessError:
        raise
    except PortError:
        return False
    return True


def compare(probe: ReachProbe, logits: np.ndarray, dtype: str) -> Comparison:
    """Compare logits with the reference's; a difference over the budget may be that of sums taken in sequence."""
    with np.errstate(all="ignore"):
        expected, budget = probe.oracle.expected["logits"], probe.budget(dtype)
        error = difference(logits, expected)
        if 1 < share(error, budget) < REMEASURED_WITHIN[dtype]:
            budget = probe.budget(dtype, in_sequence=True)
        wrong = share(error, budget) > 1 and logits.shape == expected.shape
        return Comparison(probe, error, budget, error_profile(logits, expected) if wrong else {})


def whole(probe: ReachProbe) -> Probe:
    """The same call with all taps, and not its logits alone."""
    return Probe(probe.case, probe.name, probe.purpose, probe.config, probe.parameters, probe.inputs)


@dataclass
class Ran:
    """The activations of every probe that ran, by probe and tap, and the port that was built for the first."""

    actual: dict[str, Mapping[str, np.ndarray]]
    forward: Callable[..., Any]
    reached: Reached
    forwards: dict[int, Callable[..., Any]]
    """The built port, by the identity of the parameters."""
    probes: dict[str, Probe]
    """The probes that ran; one whose sizes the port refused has others."""
    raised: PortError | None = None
    """The first error at the sizes that were asked for; the port answered other probes of them."""


def run_all(build: Port, probes: Mapping[str, Probe], progress: Progress, *, logits_only: bool) -> Ran:
    """Run a port on every probe; a model of other sizes than the first probe's may be refused, and then further sizes
    are tried."""
    first = next(iter(probes.values()))
    forwards = {id(first.parameters): built(build, first)}
    ran = Ran({}, forwards[id(first.parameters)], Reached(), forwards, {})
    for done, (key, probe) in enumerate(probes.items()):
        progress("running the port", done, len(probes))
        is_derived = probe.config != first.config
        others = in_other_sizes(probe, first.config) if is_derived else ()
        for size in (probe, *others) if id(probe.parameters) not in forwards else (probe,):
            if _built(build, key, size, ran, is_derived=is_derived):
                if (taps := _called(key, size, ran, is_first=probe is first, logits_only=logits_only)) is not None:
                    ran.actual[key], ran.probes[key] = taps, size
                break
    return ran


def _called(key: str, probe: Probe, ran: Ran, *, is_first: bool, logits_only: bool) -> Mapping[str, np.ndarray] | None:
    """Call the port on a probe; an error, once it has answered the first, is kept in `ran`."""
    is_derived = probe.config != next(iter(ran.probes.values()), probe).config
    try:
        return call_model(ran.forwards[id(probe.parameters)], probe, ran.reached, is_derived, logits_only=logits_only)
    except PortProcessError:
        raise
    except PortError as error:
        if is_first:
            raise
        ran.raised = ran.raised or error
        ran.reached.refused.append(f"probe {key}: {error}")
        return None


def _built(build: Port, key: str, probe: Probe, ran: Ran, *, is_derived: bool) -> bool:
    """Build the port for a probe, if it has not been; return whether it could be."""
    if id(probe.parameters) not in ran.forwards:
        said = f"probe {key} (embed_dim {probe.config.embed_dim}, feed_forward_dim {probe.config.feed_forward_dim})"
        made = build_model(build, probe, said, ran.reached, is_derived=is_derived)
        if made is None:
            return False
        ran.forwards[id(probe.parameters)] = made
    return True
