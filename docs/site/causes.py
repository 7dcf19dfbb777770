"""Pictures of causes: the error of the reference with a fault, on a small model."""

import dataclasses
import functools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping

from docs.site.errors import PRECISION, Run, by_head, by_length, by_position, by_tap
from docs.site.pages import table

from transparity_conformance.catalogue import hypotheses, whole_model
from transparity_conformance.catalogue.fault import Hypothesis
from transparity_conformance.diagnosis.walk import Impossible, walk
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.probes import Probe, probes_of

PROBES = ("mixed", "longest", "tiny", "hot", "one")
"""The probes on which a fault is tried, in this order."""

TRIED = 8
"""The largest number of variants of a fault that `runs` tries until the error is visible."""

LENGTHS = (1, 2, 4, 8, 16)
"""The lengths to which the longest rows are cut."""

DRAWN = """The reference runs as a small {case} with this fault: {fault} (at {where}). Each bar is the largest error of
an activation, relative to its largest element. The line across a bar is the largest
error that rounding in {precision} explains."""


def runs() -> dict[str, list[Run]]:
    """Return the runs of each visible cause of the forward pass, one per probe, by the cause's id.

    The first run of a cause uses the first variant and the first probe with which the fault is visible.
    """
    probes = {case: {name: probes_of(config, case)[name] for name in PROBES} for case, config in CASES.items()}
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
    for case, by_name in probes.items():
        probe = by_name[PROBES[0]]
        found = [*hypotheses(probe.config, list(probe.oracle.expected)), *whole_model(probe.config)]
        yield from ((case, hypothesis) for hypothesis in found)


def _spread(ways: list[tuple[str, Hypothesis]]) -> list[tuple[str, Hypothesis]]:
    first: dict[str, tuple[str, Hypothesis]] = {}
    for way in sorted(ways, key=lambda way: len(way[1].sites)):
        first.setdefault(way[1].fault.variant, way)
    return list(first.values())[:TRIED]


def _run(probe: Probe, hypothesis: Hypothesis) -> Iterator[Run]:
    try:
        run = Run(probe, hypothesis, walk(probe, {}, [hypothesis]))
    except Impossible:
        return
    if "logits" in run.wrong:
        yield run


def at_each_length(shown: list[Run]) -> list[Run]:
    """Return runs of a fault on growing prefixes of the longest input; empty if the model reads no tokens."""
    longest = max((run.probe for run in shown), key=lambda probe: max(_lengths(probe), default=0))
    case, fault = longest.case, shown[0].hypothesis
    lengths = [length for length in LENGTHS if length < max(_lengths(longest), default=0)]
    probes = [*(_cut(case, longest.name, length) for length in lengths), longest]
    return [run for probe in probes for run in _run(probe, fault)]


def _lengths(probe: Probe) -> list[int]:
    return [] if probe.config.reads_pixels else [value.shape[1] for value in probe.inputs.values()]


@functools.cache
def _cut(case: str, name: str, length: int) -> Probe:
    """Return a probe cut to `length` tokens. Cache the probe, so that all faults share one oracle."""
    probe = probes_of(CASES[case], case)[name]
    inputs = {name: value[:, :length] for name, value in probe.inputs.items()}
    return dataclasses.replace(probe, inputs=inputs, name=f"{name}, {length} long")


def sections() -> dict[str, str]:
    return {name: section(shown) for name, shown in runs().items()}


def section(shown: list[Run]) -> str:
    run = shown[0]
    where = ", ".join(f"`{site}`" for site in run.hypothesis.sites[:3]) or "the whole model"
    where += " …" if len(run.hypothesis.sites) > 3 else ""
    told = DRAWN.format(case=run.probe.case, fault=run.hypothesis.fault.description, where=where, precision=PRECISION)
    parts = ["## The fault in a small model", told, f'<div class="plot">{by_tap(run)}</div>']
    if positions := by_position(run):
        parts += ["The error of the result by row (down) and position (across); the darker, the larger:", positions]
    if found := by_head(run):
        tap, heads = found
        parts += [f"The error at `{tap}` by head (down) and position (across):", heads]
    if len(lengths := at_each_length(shown)) > 1:
        parts += ["The error of the result by length:", f'<div class="plot">{by_length(lengths)}</div>']
    rows = [(each.probe.purpose, _counted(each.share("logits"))) for each in shown]
    parts.append(table(("inputs", "error of the result, divided by its tolerance"), rows, numbers=1))
    return "\n\n".join(parts) + "\n"


def _counted(share: float) -> str:
    if not math.isfinite(share):
        return "not finite"
    return f"{share:,.0f}" if share > 1 else f"{share:.2f}: the fault does not show"
