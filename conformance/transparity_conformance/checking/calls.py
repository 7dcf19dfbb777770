"""Calls of a port on every probe, and on inputs with other lengths, batch sizes or model sizes.

A port refuses a model if `build` fails, or if a call with a single token fails. If the checker chose the sizes of a
refused model, only the coverage changes, not the verdict. If the port accepts one token but fails on longer inputs, the
verdict is inconclusive.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from transparity_conformance.capabilities.port_calls import PortError, PortProcessError
from transparity_conformance.diagnosis.judge import Progress
from transparity_conformance.diagnosis.reach.coverage import Call
from transparity_conformance.oracle.probes import Probe, in_other_sizes, shortened
from transparity_conformance.oracle.reach.models import ReachProbe
from transparity_conformance.report.comparison import Compared
from transparity_conformance.running.process.running import Port, built, run

Answer = TypeVar("Answer")


def answer_or_error(call: Callable[[], Answer]) -> Answer | PortError:
    """Return the port's result, or its error; raise only if the port's process has ended."""
    try:
        return call()
    except PortProcessError:
        raise
    except PortError as error:
        return error


@dataclass(frozen=True)
class Comparison(Compared):
    probe: ReachProbe
    error: float
    budget: float
    profile: Mapping[str, Any]

    @property
    def call(self) -> Call:
        return Call(self.probe.name, max(self.probe.lengths), self.is_wrong)


@dataclass
class ReachedCalls:
    """Calls with other lengths or sizes than the probes: the comparisons, and the reasons for missing comparisons."""

    compared: list[Comparison] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left_out: list[ReachProbe] = field(default_factory=list)
    seconds: float = 0.0
    is_history: bool = False
    """Whether a newly built port is right on the first wrong call, so that earlier calls caused the error."""
    forwards: dict[int, Callable[..., Any]] = field(default_factory=dict)
    """The built ports, by the `id` of their parameters."""
    notes: list[str] = field(default_factory=list)
    """Notes about wrong calls, such as the number of wrong positions."""

    @property
    def probes(self) -> list[ReachProbe]:
        return [comparison.probe for comparison in self.compared]

    @property
    def wrong(self) -> list[Comparison]:
        wrong = (comparison for comparison in self.compared if comparison.is_wrong)
        return sorted(wrong, key=lambda each: (max(each.probe.lengths), each.probe.batch))

    @property
    def right(self) -> list[Comparison]:
        return [comparison for comparison in self.compared if not comparison.is_wrong]


@dataclass
class Ran:
    actual: dict[str, Mapping[str, np.ndarray]]
    reached: ReachedCalls
    forwards: dict[int, Callable[..., Any]]
    """The built ports, by the `id` of their parameters. The first item is the port for the first probe."""
    probes: dict[str, Probe]
    """The probes on which the port ran. If the port refused the model of a probe, a model of other sizes replaces this
    model."""
    raised: PortError | None = None
    """The first error on a probe with the first probe's configuration; an error on the first probe itself is raised."""

    @property
    def forward(self) -> Callable[..., Any]:
        return next(iter(self.forwards.values()))


def run_all(
    build: Port,
    probes: Mapping[str, Probe],
    progress: Progress,
    *,
    logits_only: bool,
    answered: Callable[[Probe, Mapping[str, np.ndarray]], None] = lambda probe, taps: None,
) -> Ran:
    """Run a port on every probe, and pass each result to `answered`. If the port refuses a model, try other sizes."""
    first = next(iter(probes.values()))
    ran = Ran({}, ReachedCalls(), {id(first.parameters): built(build, first)}, {})
    for done, (key, probe) in enumerate(probes.items()):
        progress("running the port", done, len(probes))
        is_derived = probe.config != first.config
        others = in_other_sizes(probe, first.config) if is_derived and id(probe.parameters) not in ran.forwards else ()
        size = next((size for size in (probe, *others) if _can_be_built(build, key, size, ran, is_derived)), None)
        if size is not None and (taps := _called(key, size, ran, first, logits_only=logits_only)) is not None:
            ran.actual[key], ran.probes[key] = taps, size
            answered(size, taps)
    return ran


def _can_be_built(build: Port, key: str, probe: Probe, ran: Ran, is_derived: bool) -> bool:
    name = f"probe {key} (embed_dim {probe.config.embed_dim}, feed_forward_dim {probe.config.feed_forward_dim})"
    if id(probe.parameters) not in ran.forwards:
        made = build_model(build, probe, name, ran.reached, is_derived=is_derived)
        ran.forwards |= {} if made is None else {id(probe.parameters): made}
    return id(probe.parameters) in ran.forwards


def _called(key: str, probe: Probe, ran: Ran, first: Probe, *, logits_only: bool) -> Mapping[str, np.ndarray] | None:
    forward, is_derived = ran.forwards[id(probe.parameters)], probe.config != first.config
    taps = answer_or_error(lambda: call_model(forward, probe, ran.reached, is_derived, logits_only=logits_only))
    if not isinstance(taps, PortError):
        return taps
    if probe is first:
        raise taps
    ran.raised = ran.raised or taps
    ran.reached.refused.append(f"probe {key}: {taps}")
    return None


def build_model(
    build: Port, probe: Probe, name: str, reached: ReachedCalls, *, is_derived: bool
) -> Callable[..., Any] | None:
    """Build a port. If the port refuses sizes that the checker chose (`is_derived`), add a note and return None."""
    made = answer_or_error(lambda: built(build, probe))
    if not isinstance(made, PortError):
        return made
    if not is_derived:
        raise made
    reached.refused.append(f"{name}: {made}")
    return None


def call_model(
    function: Callable[..., Any],
    probe: Probe,
    reached: ReachedCalls,
    is_derived: bool,
    *,
    logits_only: bool,
    may_refuse: bool = False,
) -> Mapping[str, np.ndarray] | None:
    """Run a port on a probe. If the port fails on a model whose sizes the checker chose, record the error and return
    None. A failure on a single token counts as a refusal, because some ports load their weights only when called. With
    `may_refuse`, the port may also refuse the length."""
    began = time.monotonic()
    taps = answer_or_error(lambda: run(function, probe, logits_only=logits_only))
    try:
        if not isinstance(taps, PortError):
            return taps
        if not is_derived:
            raise taps
        inputs = {name: value[:1] for name, value in shortened(probe.config, probe.inputs, 1).items()}
        token = dataclasses.replace(probe, inputs=inputs)
        of_token = answer_or_error(lambda: run(function, token, logits_only=True))
        noted = reached.refused if may_refuse or isinstance(of_token, PortError) else reached.failed
        noted.append(f"probe {probe.name}: {taps}")
        return None
    finally:
        reached.seconds += time.monotonic() - began
