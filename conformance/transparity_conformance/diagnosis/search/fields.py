"""Find fields of the configuration whose changes together explain a difference."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from transparity.config import FIELD_TYPES, TransformerConfig
from transparity_conformance.catalogue.fault import Fault, Hypothesis
from transparity_conformance.diagnosis.probe_result import Results, still_wrong
from transparity_conformance.diagnosis.search.clock import STAGES, Clock
from transparity_conformance.diagnosis.segment import segment_of
from transparity_conformance.diagnosis.thresholds import DEEPEST, WALKS
from transparity_conformance.diagnosis.walk import Impossible
from transparity_conformance.oracle.reach.features import is_choice, replaced
from transparity_conformance.report.report import Divergence

Fields = dict[str, Any]

ONLY_FORMS = {"rope_layout"}
"""Fields that change only the order of features; `_one_by_one` ignores them when it counts changed fields."""

OF_THE_CALL = {"architecture", "head", "padding"}
"""Fields that a call's inputs and output determine."""


@functools.cache
def alternatives() -> dict[str, tuple[Any, ...]]:
    """Return the values of each field that has a fixed list of values, except `OF_THE_CALL`."""
    few = [name for name, kind in FIELD_TYPES.items() if kind is bool or is_choice(name)]
    return {name: get_args(FIELD_TYPES[name]) or (False, True) for name in few if name not in OF_THE_CALL}


def changed(fields: Mapping[str, Any]) -> Hypothesis:
    return Hypothesis(Fault("several-fields", "", "", fields=fields))


def single_changes(config: TransformerConfig, besides: Fields) -> list[Fields]:
    """Return changes of one field that, with the changes `besides`, need no new parameters."""
    own = {name: getattr(config, name) for name in alternatives()}
    new = [
        {name: value}
        for name, tried in alternatives().items()
        for value in tried
        if name not in besides and value != own[name]
    ]
    return [change for change in new if replaced(config, **besides, **change) is not None]


def departures(config: TransformerConfig, left: Callable[[Hypothesis], float], clock: Clock) -> Fields:
    """Return changes of up to `DEEPEST` fields that leave the smallest difference."""
    found = beam = [(left(changed({})), Fields())]
    for _ in range(DEEPEST):
        more = [chosen | change for _, chosen in beam for change in single_changes(config, chosen)]
        distinct = {tuple(sorted(fields.items())): fields for fields in more}.values()
        tried = ((left(changed(fields)), fields) for fields in distinct if not clock.is_over)
        beam = sorted(tried, key=lambda each: each[0])[: WALKS // len(alternatives())]
        found = [*found, *beam]
    return min(found, key=lambda each: each[0])[1]


def other_fields(
    results: Results, places: Sequence[str], divergences: Sequence[Divergence], clock: Clock
) -> dict[str, tuple[Any, Any]]:
    """Return {field: (configured value, value in the port)} for a set of changes that makes the taps `places` right.
    Return {} if one cause explains all divergences, or for a large model."""
    kinds = {divergence.causes[0].mistake if divergence.causes else divergence.where for divergence in divergences}
    config, chosen = next(iter(results.values())).probe.config, Fields()
    if any(each.probe.is_large for each in results.values()):
        return {}
    if len(places) > 1 and len(kinds) > 1:
        chosen = _one_by_one(config, results, len(places), clock)
    elif kinds == {"logits"} and all(result.recorded.keys() == {"logits"} for result in results.values()):
        segment = segment_of(results, "logits")
        clock.begin(STAGES)
        probe = max(segment.probes, key=lambda each: segment.share(each, ()))
        chosen = departures(config, lambda hypothesis: segment.rms(probe, (hypothesis,)), clock)
        chosen = chosen if segment.vanishes((changed(chosen),)) else {}
    return {name: (getattr(config, name), value) for name, value in chosen.items()}


def _one_by_one(config: TransformerConfig, results: Results, left: int, clock: Clock) -> Fields:
    """Change one more field at a time until no tap is wrong; return the changes if there are at least two."""
    chosen = Fields()
    while left and not clock.is_over:
        tried = [changed(chosen | change) for change in single_changes(config, chosen)]
        best, left = fewest_wrong(results, tried, left - 1)
        if best is None:
            break
        chosen = {**(best.fault.fields or {})}
    return chosen if not left and len(chosen.keys() - ONLY_FORMS) > 1 else {}


def fewest_wrong(results: Results, tried: Sequence[Hypothesis], most: int) -> tuple[Hypothesis | None, int]:
    """Return the hypothesis with the fewest wrong taps, and their number; (None, `most` + 1) if none has at most
    `most`."""
    best = None
    for hypothesis in tried:
        with contextlib.suppress(Impossible):
            if (count := len(still_wrong(results, (hypothesis,), most))) <= most:
                best, most = hypothesis, count - 1
    return best, most + 1
