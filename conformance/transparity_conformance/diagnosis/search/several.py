"""Several fields at once in which a port that shows its activations is another model than its configuration says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from transparity_conformance.diagnosis.probe_result import Results, still_wrong
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.diagnosis.search.departures import changed, single_changes
from transparity_conformance.diagnosis.walk import Impossible
from transparity_conformance.report.report import Divergence

FORMS = {"rope_layout"}
"""Fields that only say how another one is meant."""


def several_fields(
    results: Results, places: Sequence[str], divergences: Sequence[Divergence], dtype: str, clock: Clock
) -> dict[str, tuple[object, object]]:
    """The fields with whose other values most places agree, with the configuration's and the port's value; none if that
    are fewer than two.

    Every place is judged by itself, from the port's own activations in front of it, so that the places which a field
    explains do not depend on the other fields: the best one is taken first.

    Args:
        results: those of the probes.
        places: the taps that are wrong.
        divergences: what was found there; if that is one cause, no fields are sought.
        dtype: the precision of the port.
        clock: the time that is left.
    """
    kinds = {divergence.causes[0].mistake if divergence.causes else divergence.where for divergence in divergences}
    if len(places) < 2 or len(kinds) < 2 or any(each.probe.is_large for each in results.values()):
        return {}
    chosen: dict[str, object] = {}
    left = len(places)
    config = next(iter(results.values())).probe.config
    while left and clock.left:
        tried = [
            (_wrong(results, chosen | change, dtype, left - 1), index, change)
            for index, change in enumerate(single_changes(config, chosen))
        ]
        fewest, _, best = min(tried, default=(left, 0, {}))
        if fewest >= left:
            break
        chosen, left = chosen | best, fewest
    if len(chosen.keys() - FORMS) < 2 or left > len(places) // 2:
        return {}
    return {name: (getattr(config, name), value) for name, value in chosen.items()}


def _wrong(results: Results, fields: Mapping[str, object], dtype: str, most: int) -> int:
    """The number of wrong places with other fields, or one more than `most`."""
    try:
        return min(len(still_wrong(results, (changed(fields),), dtype, most)), most + 1)
    except Impossible:
        return most + 1
