"""The coverage of the compared calls, and the lengths at which results become wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from transparity.config import TransformerConfig
from transparity.taps import lengths_of
from transparity_conformance.oracle.probes import Probe, probe_parameters
from transparity_conformance.oracle.reach.features import covered_sizes, exercised
from transparity_conformance.oracle.reach.long import LongProbe, long_probe
from transparity_conformance.oracle.reach.models import ReachModel, narrow
from transparity_conformance.oracle.reach.thresholds import becomes_wrong
from transparity_conformance.report.parts import Coverage, range_of
from transparity_conformance.report.report import Report


def covered(report: Report, config: TransformerConfig, probes: Sequence[Probe], failed: Sequence[str] = ()) -> Report:
    """Add the coverage. `agrees` becomes `inconclusive` if a field was not exercised, or a call failed."""
    if report.verdict != "agrees":
        return dataclasses.replace(report, coverage=coverage_of(probes))
    seen, unseen = exercised(config, sorted(affordable(config, probes), key=_cost))
    untested = tuple(f"{name} = {getattr(config, name)}" for name in unseen) + tuple(failed)
    coverage = dataclasses.replace(coverage_of(probes), features=seen, untested=untested)
    return dataclasses.replace(report, verdict="inconclusive" if untested else report.verdict, coverage=coverage)


def coverage_of(probes: Iterable[Probe]) -> Coverage:
    every = list(probes)
    if not every:
        return Coverage()
    lengths = [
        sorted({lengths_of(probe.config, probe.inputs)[name] for probe in every})
        for name in every[0].config.input_names
    ]
    batches = {len(probe.inputs[probe.config.input_names[0]]) for probe in every}
    sizes = covered_sizes(probe.config for probe in every)
    return Coverage(
        tuple(lengths[-1]),
        tuple(lengths[0]) if lengths[1:] else (),
        tuple(sorted(batches)),
        sizes=tuple(range_of(name, values) for name, values in sizes.items()),
    )


def affordable(config: TransformerConfig, probes: Sequence[Probe]) -> list[Probe]:
    """Replace the calls of a large model by calls of a narrow model with the same features, batch sizes and lengths."""
    large = [probe for probe in probes if probe.is_large]
    if not large or config.reads_pixels:
        return list(probes)
    long = {max(probe.lengths) for probe in large if isinstance(probe, LongProbe)}
    others = [probe for probe in large if not isinstance(probe, LongProbe)]
    shapes = {tuple(probe.inputs[name].shape for name in config.input_names) for probe in others}
    calls = [(shape[0][0], tuple(length for _, length in shape)) for shape in sorted(shapes)]
    small = narrow(config, max([*long, *(length for _, lengths in calls for length in lengths)]))
    model = ReachModel("narrow", small, probe_parameters(small, 6), calls)
    few = [*model.probes, *(long_probe(model, length) for length in sorted(long))]
    return [*(probe for probe in probes if not probe.is_large), *few]


def _cost(probe: Probe) -> int:
    tokens = sum(probe.inputs[name].size for name in probe.config.input_names)
    return tokens * probe.config.embed_dim * probe.config.embed_dim


SECONDS_OF_A_PORT = 10.0
"""After this time, only the most informative calls follow. All calls of a small PyTorch model take about 0.5 s; a port
that compiles for each shape may take longer."""

CALLS = 120
"""The number of calls of one built model. If all are right, at most 2.5 % of calls are wrong (95 % confidence)."""

HISTORY = "a newly built model answers this call correctly: the port keeps state between calls"
"""The cause of a result that is wrong only after other calls."""

DRAWN = "a weight keeps a random value: if the port is built again from the same weights, its result changes"
UNSTEADY = "two runs on the same inputs differ: dropout, or another random operation, is active"


@dataclass(frozen=True)
class Call:
    name: str
    length: int
    is_wrong: bool


def boundary(calls: Sequence[Call], config: TransformerConfig | None = None) -> str:
    wrong = sorted((each for each in calls if each.is_wrong), key=lambda each: each.length)
    names = [each.name for each in wrong]
    lengths = {each.length for each in wrong}
    right = {each.length for each in calls if not each.is_wrong}
    listed = "; ".join(names[:4]) + (f"; and {len(names) - 4} more" if names[4:] else "")
    since = becomes_wrong(right, lengths, config)
    return f"wrong on {len(names)} of {len(calls)} calls at other sizes ({listed}){since}"


def bisect(calls: Sequence[Call], call: Callable[[int], bool | None]) -> None:
    """Find the first wrong length. `call(length)` returns whether the result is wrong; None ends the search."""
    right = max((each.length for each in calls if not each.is_wrong), default=0)
    wrong = min((each.length for each in calls if each.is_wrong), default=0)
    while 0 < right < wrong - 1:
        middle = (right + wrong) // 2
        is_wrong = call(middle)
        if is_wrong is None:
            return
        right, wrong = (right, middle) if is_wrong else (middle, wrong)
